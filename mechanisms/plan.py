"""The public plan of a study: one frozen object that both sides build everything from.

A `Plan` that exists is a plan that holds: construction checks every field, the wrap bound, the integer norms
and the privacy target, so a client that parses a plan from the wire has verified it. `make_plan` finds the
numbers.

Adjacency: one participant's update against zero, her noise share present. It hides content, not
participation.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

from mechanisms.calibration import VARIANCE_DENOMINATOR, calibrate, planned_epsilon, sensitivity, wrap_load
from mechanisms.discrete_gaussian import LARGEST_VARIANCE
from mechanisms.privacy_curves import SMALLEST_STDDEV, ddgauss_tau
from mechanisms.rotation import padded_dimension
from mechanisms.rounding import LARGEST_NORM
from mechanisms.statement import MECHANISMS, InfeasiblePlan, Statement, assumed_colluders

__all__ = [
    "ADJACENCY",
    "InfeasiblePlan",
    "MECHANISMS",
    "Plan",
    "assumed_colluders",
    "make_plan",
    "verify_plan",
]

ADJACENCY: Final = "zero-out: one participant's update against zero, her noise share present"
DEFAULT_BETA: Final = math.exp(-0.5)
DEFAULT_K_STDDEVS: Final = 4.0


@dataclass(frozen=True, kw_only=True)
class Plan(Statement):
    """Everything about privacy and encoding that is public, fixed and equal on both sides.

    Raises:
        InfeasiblePlan: the numbers break a promise (a `ValueError`).
        TypeError: a field has another type than declared; nothing is converted.
    """

    granularity: float  # data units per grid step
    local_variance: Fraction  # of ONE noise share, grid units squared, exactly what is drawn
    order: float  # Renyi order of the filter

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.granularity > 0 or not self.order > 1:
            raise InfeasiblePlan("granularity must be positive and the filter's order above 1", "use make_plan")
        verify_plan(self)

    @property
    def adjacency(self) -> str:
        """What two neighbouring inputs are."""
        return ADJACENCY

    @property
    def local_stddev(self) -> float:
        """Of one noise share, data units."""
        return math.sqrt(self.local_variance) * self.granularity

    @property
    def central_stddev(self) -> float:
        """Of the unknown noise in the smallest sum that is opened, data units."""
        return self.local_stddev * math.sqrt(self.h_min)

    @property
    def full_stddev(self) -> float:
        """Of the noise in the sum when everybody survives, data units."""
        return self.local_stddev * math.sqrt(self.clients)

    @property
    def noise_multiplier(self) -> float:
        """central_stddev / clip."""
        return self.central_stddev / self.clip

    @property
    def inflated_clip(self) -> float:
        """The L2 sensitivity after rounding, data units."""
        return self.l2_bound_grid * self.granularity

    @property
    def effective_noise_multiplier(self) -> float:
        """central_stddev / inflated_clip: what the accounting sees."""
        return self.central_stddev / self.inflated_clip

    @property
    def l2_bound_grid(self) -> float:
        """Bound on the L2 norm of the rounded update, grid units."""
        return sensitivity(self, self.granularity)[0]

    @property
    def l1_bound_grid(self) -> float:
        """Bound on the L1 norm of the rounded update, grid units."""
        return sensitivity(self, self.granularity)[1]

    @property
    def squared_norm_limit(self) -> int:
        """What a rounded update's squared norm may not exceed: floor(l2_bound_grid^2), exactly."""
        return math.floor(Fraction(self.l2_bound_grid) ** 2)

    @property
    def planned_epsilon(self) -> float:
        """epsilon_coordinator after all planned rounds, each with the fewest survivors; at most `epsilon`."""
        return planned_epsilon(self, self.granularity, self.local_variance, self.order)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but costs accuracy, one sentence each."""
        found = []
        if self.k_stddevs < 3:
            found.append(f"k_stddevs {self.k_stddevs:g}: some coordinates of a sum may wrap around")
        if self.inflated_clip > 1.5 * self.clip:
            ratio = self.inflated_clip / self.clip
            found.append(f"rounding inflates the clip {ratio:.2f} times and the noise with it: more bits help")
        tau = ddgauss_tau(self.local_variance, self.h_min)
        if tau * math.sqrt(self.padded_dim * self.h_min * self.local_variance) > 0.01 * self.l2_bound_grid:
            found.append("local noise is so close to the grid step that tau costs privacy: more bits help")
        return tuple(found)

    def to_json(self) -> dict[str, int | float | str]:
        """A JSON object with one entry per field; fractions as "num/den". Floats round-trip by repr."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"local_variance": f"{self.local_variance.numerator}/{self.local_variance.denominator}"}

    @classmethod
    def from_json(cls, source: Mapping[str, Any] | str | bytes) -> Plan:
        """Parse what `to_json` or `to_bytes` gave; everything is checked again.

        Raises:
            ValueError: not JSON, a field unknown, missing, twice or malformed; or `InfeasiblePlan`.
        """
        if isinstance(source, (str, bytes)):
            source = json.loads(source, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
        if not isinstance(source, Mapping):
            raise ValueError("plan: a JSON object is needed")
        names = {field.name for field in fields(cls)}
        if set(source) != names:
            raise ValueError(f"plan: unknown or missing fields: {sorted(map(str, set(source) ^ names))}")
        values = dict(source)
        values["local_variance"] = _parse_fraction(values["local_variance"])
        try:
            return cls(**values)
        except (TypeError, OverflowError) as problem:
            raise ValueError(str(problem)) from None

    def to_bytes(self) -> bytes:
        """Canonical JSON: sorted names, no blanks. Equal plans have equal bytes."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @cached_property
    def identity(self) -> str:
        """SHA-256 of `to_bytes`, hexadecimal."""
        return hashlib.sha256(b"sordino/v1/plan\x00" + self.to_bytes()).hexdigest()


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("plan: a field appears twice")
    return found


def _refuse_constant(name: str) -> float:
    raise ValueError(f"plan: {name} is not a number")


def _parse_fraction(text: object) -> Fraction:
    numerator, slash, denominator = text.partition("/") if isinstance(text, str) else ("", "", "")
    plain = all(part.isascii() and part.isdigit() and len(part) <= 24 for part in (numerator, denominator))
    if not slash or not plain or int(denominator) == 0:
        raise ValueError('plan: local_variance must read "numerator/denominator"')
    value = Fraction(int(numerator), int(denominator))
    if f"{value.numerator}/{value.denominator}" != text:
        raise ValueError("plan: local_variance is not in lowest terms")
    return value


def verify_plan(plan: Plan) -> None:
    """Recompute from the public numbers alone that the plan keeps its promises; what every client runs.

    Raises:
        InfeasiblePlan: local noise below half a grid step or beyond the sampler, integer norms beyond 64
            bits, sums that may wrap at k_stddevs, or an epsilon after all rounds at h_min above the target.
    """
    variance = plan.local_variance
    if variance < SMALLEST_STDDEV**2:
        raise InfeasiblePlan("local noise is below half a grid step, where nothing is proved", "use more bits")
    if variance > LARGEST_VARIANCE or variance.denominator > VARIANCE_DENOMINATOR:
        raise InfeasiblePlan("the local variance is not one that the sampler takes", "use make_plan")
    if plan.granularity > plan.clip:
        raise InfeasiblePlan("one grid step exceeds the clip", "use more bits")
    if plan.clip / plan.granularity + math.sqrt(plan.padded_dim) >= LARGEST_NORM:
        raise InfeasiblePlan("squared integer norms leave 64 bits", "use fewer bits")
    if wrap_load(plan, Fraction(plan.granularity), variance) > 1:
        raise InfeasiblePlan(f"sums may wrap within {plan.k_stddevs:g} standard deviations", "use more bits")
    achieved = plan.planned_epsilon
    if not achieved <= plan.epsilon:
        raise InfeasiblePlan(
            f"epsilon {achieved:.6g} after {plan.rounds} rounds exceeds the target {plan.epsilon:g}",
            "add noise, or plan fewer rounds",
        )


def make_plan(
    *,
    mechanism: str = "ddgauss",
    clients: int,
    dim: int,
    bits: int,
    clip: float,
    epsilon: float,
    delta: float,
    rounds: int,
    colluders: int,
    min_survivors: int,
    quorum: int,
    max_dropout: float,
    adversarial: float,
    beta: float = DEFAULT_BETA,
    k_stddevs: float = DEFAULT_K_STDDEVS,
) -> Plan:
    """Find granularity, noise and filter order for what is wanted; the arguments are the fields of `Plan`.

    The result's epsilon, over all rounds with the fewest survivors, never exceeds the target, and is as close
    below as the variances' denominator (2^16) allows.

    Raises:
        InfeasiblePlan: nothing fits, with the reason and the nearest setting that works.
    """
    stated = Statement(
        mechanism=mechanism,
        clients=clients,
        dim=dim,
        padded_dim=padded_dimension(dim) if type(dim) is int and dim > 0 else 1,  # refused by Statement
        bits=bits,
        clip=float(clip),
        epsilon=float(epsilon),
        delta=float(delta),
        rounds=rounds,
        target="coordinator",
        max_dropout=float(max_dropout),
        adversarial=float(adversarial),
        colluders=colluders,
        min_survivors=min_survivors,
        quorum=quorum,
        beta=float(beta),
        k_stddevs=float(k_stddevs),
    )
    found = calibrate(stated)
    return Plan(
        **{field.name: getattr(stated, field.name) for field in fields(stated)},
        granularity=found.granularity,
        local_variance=found.local_variance,
        order=found.order,
    )
