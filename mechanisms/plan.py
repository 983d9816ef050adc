"""The public plan of a study: one frozen object that both sides build everything from.

A `Plan` that exists is a plan that holds: construction checks every field, the wrap bound, the integer norms and the
privacy target, so a client that parses a plan has verified it. `make_plan` finds the numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

import numpy as np

from mechanisms.calibration import VARIANCE_DENOMINATOR, calibrate, smallest_variance, wrap_load
from mechanisms.clip_rule import ClipRule, update_norm
from mechanisms.evaluation import NOT_EVALUATED, Evaluation
from mechanisms.lattice_noise import LARGEST_VARIANCE
from mechanisms.mechanism import DESCRIPTIONS
from mechanisms.noise_parts import parts_needed
from mechanisms.privacy_curves import SMALLEST_GAUSSIAN_PART, Curve, ddgauss_tau
from mechanisms.refusals import InfeasiblePlan
from mechanisms.rotation import ROTATIONS, default_rotation, rotation_layout
from mechanisms.round_cost import (
    LARGEST_ORDER,
    Noise,
    conditional_epsilon,
    planned_epsilon,
    reader_curve,
    round_curve,
    sensitivity,
    smallest_part,
)
from mechanisms.rounding import LARGEST_PLANNED_NORM
from mechanisms.statement import (
    CONDITIONAL,
    COORDINATOR,
    DDGAUSS,
    EPOCHS,
    GAUSSIAN,
    LARGEST_DIM,
    NO_SAMPLING,
    RELEASED,
    SKELLAM,
    VECTOR_MECHANISMS,
    Statement,
    assumed_colluders,
)

__all__ = ["InfeasiblePlan", "Plan", "VECTOR_MECHANISMS", "assumed_colluders", "make_plan", "verify_plan"]

LONGEST_OFFSET_S: Final = 86400.0
"""Of `Plan.offer_offset_s`: a day."""


@dataclass(frozen=True, kw_only=True)
class Plan(Statement):
    """Everything about privacy and encoding that is public, fixed and equal on both sides.

    Raises InfeasiblePlan: the numbers break a promise (a `ValueError`); TypeError: a field has another type than
    declared; nothing is converted.
    """

    granularity: float  # data units per grid step, with the first round's clips
    local_variance: Fraction  # of ONE noise share, grid units squared, exactly what is drawn
    order: float  # of the filter that bounds epsilon_coordinator: a Renyi order, or 1 for exact Gaussian cost
    order_released: float  # of the one that bounds epsilon_released
    order_conditional: float  # at which epsilon_conditional is stated
    budget_coordinator: float  # either budget stops the study; the target's is epsilon
    budget_released: float
    graph: str = "complete"  # on which secrets are shared; the protocol's word, nothing here depends on it
    adversary: str = "malicious"  # what the coordinator may do, as the protocol names it
    key_agreement: str = "x25519"  # of channels and masks, likewise
    offer_offset_s: float = 0.0  # from a round's start until offers leave, ready or not; 0: when they are ready

    def __post_init__(self) -> None:
        super().__post_init__()
        names: tuple[object, ...] = (self.graph, self.adversary, self.key_agreement)
        if not all(isinstance(name, str) and name.isascii() and 0 < len(name) <= 32 for name in names):
            raise InfeasiblePlan(
                "graph, adversary and key_agreement must be names", "use those that the protocol knows"
            )
        if not 0 <= self.offer_offset_s <= LONGEST_OFFSET_S:
            raise InfeasiblePlan(f"offer_offset_s must lie in 0..{LONGEST_OFFSET_S:g} seconds", "use 0 for none")
        orders = self.order, self.order_released, self.order_conditional
        if not self.granularity > 0 or not all(one >= 1 for one in orders):
            raise InfeasiblePlan("granularity must be positive and the filters' orders at least 1", "use make_plan")
        if max(orders) > LARGEST_ORDER:
            raise InfeasiblePlan("a filter's order is beyond any that is looked for", "use make_plan")
        if self.mechanism == SKELLAM and any(one % 1 for one in orders):
            raise InfeasiblePlan("the Skellam bound is proved for whole orders only", "use make_plan")
        verify_plan(self)

    @property
    def adjacency(self) -> str:
        """What two neighbouring inputs are."""
        return DESCRIPTIONS[self.mechanism].adjacency

    @property
    def noise(self) -> Noise:
        """The calibrated part."""
        return Noise(self.granularity, self.local_variance)

    @property
    def local_stddev(self) -> float:
        """Of one noise share, data units. Noise of the coordinator counts as if it were split among h_min."""
        return math.sqrt(self.local_variance) * self.granularity

    @property
    def central_stddev(self) -> float:
        """Of the unknown noise in the smallest sum that is opened, data units."""
        return self.local_stddev * math.sqrt(self.h_min)

    @property
    def full_stddev(self) -> float:
        """Of the noise in the sum when all survive and take back what they can, data units."""
        if self.mechanism == GAUSSIAN:
            return self.central_stddev
        stays = self.share_variance(self.local_variance, self.clients)
        return math.sqrt(stays * self.clients) * self.granularity

    @property
    def noise_norm(self) -> float:
        """L2 norm of the noise in the mean of a round that all survive, over the norm of an update at its clips.

        Both in data units; a sketch leaves it as it is.
        """
        scales = self.clipping.scales(self.clipping.clips)
        sizes = [self.dim] if self.sketch_rows else self.clipping.layers
        spread = math.sqrt(sum(size * scale * scale for size, scale in zip(sizes, scales, strict=True)))
        return self.full_stddev / self.clients * spread / math.hypot(*self.clipping.clips)

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
    def squared_norm_limit(self) -> int:
        """What a rounded update's squared norm may not exceed: floor(l2_bound_grid^2), exactly."""
        return math.floor(Fraction(self.l2_bound_grid) ** 2)

    def granularity_at(self, clips: Sequence[float]) -> float:
        """Data units per grid step in a round with these clips: in proportion to what they bound."""
        return self.granularity * (self.clipping.bound(clips) / self.clip)

    def update_norm(self, clips: Sequence[float]) -> float:
        """`mechanisms.clip_rule.update_norm` of a round with these clips."""
        return update_norm(clips, self.sketch_rows)

    def round_curve(self, honest: int) -> Curve:
        """The Renyi curve of one sum that carries ``honest = |u3| - A`` unknown noise shares, unamplified.

        Raises ValueError: fewer honest shares than `h_min`, or more than there can be.
        """
        if not self.h_min <= honest <= self.clients - self.colluders:
            raise ValueError(f"{honest} honest shares: the plan covers {self.h_min} to {self.clients - self.colluders}")
        return round_curve(self, self.noise, honest)

    def round_cost(self, honest: int, order: float | None = None) -> float:
        """`round_curve` at one order, by default the filter's: what both sides' ledgers charge."""
        return float(self.round_curve(honest)(np.array([self.order if order is None else order]))[0])

    @cached_property
    def released_cost(self) -> float:
        """What one round costs against readers of released models, at `order_released`, with any survivors."""
        curve = reader_curve(self, self.noise, RELEASED, self.h_min)
        return float(curve(np.array([self.order_released]))[0])

    @cached_property
    def epsilon_coordinator(self) -> float:
        """After all planned rounds, each holding the participant, each with the fewest survivors."""
        return planned_epsilon(self, self.noise, COORDINATOR, self.order)

    @cached_property
    def epsilon_released(self) -> float:
        """After all planned rounds, for readers of released models."""
        return planned_epsilon(self, self.noise, RELEASED, self.order_released)

    @cached_property
    def epsilon_conditional(self) -> float:
        """The published figure, on the condition of Poisson sampling; without sampling as for the coordinator."""
        return conditional_epsilon(self, self.noise, self.order_conditional, self.rounds)

    @property
    def planned_epsilon(self) -> float:
        """The target's epsilon after all planned rounds; at most `epsilon`."""
        if self.target == CONDITIONAL:  # else it isn't computed: a participant has no dp-accounting
            return self.epsilon_conditional
        return self.epsilon_released if self.target == RELEASED else self.epsilon_coordinator

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but costs accuracy, one sentence each."""
        found = []
        if self.k_stddevs < 3:
            found.append(f"k_stddevs {self.k_stddevs:g}: some coordinates of a sum may wrap around")
        if self.inflated_clip > 1.5 * self.clip:
            ratio = self.inflated_clip / self.clip
            found.append(f"rounding inflates the clip {ratio:.2f} times and the noise with it: more bits help")
        tau = ddgauss_tau(self.local_variance, self.h_min) if self.mechanism == DDGAUSS else 0.0
        if tau * math.sqrt(self.padded_dim * self.h_min * self.local_variance) > 0.01 * self.l2_bound_grid:
            found.append("local noise is so close to the grid step that tau costs privacy: more bits help")
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """A JSON object with one entry per field; fractions as "num/den". Floats round-trip by repr."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if not self.noise_parts:  # plans from before there were any have the same bytes, and so below
            del values["noise_parts"]
        if not self.evaluation:
            del values["evaluation"]
        variance = f"{self.local_variance.numerator}/{self.local_variance.denominator}"
        nested = {name: value.to_json() for name, value in values.items() if isinstance(value, ClipRule | Evaluation)}
        return values | {"local_variance": variance} | nested

    @classmethod
    def from_json(cls, source: Mapping[str, Any] | str | bytes) -> Plan:
        """Parse what `to_json` or `to_bytes` gave; everything is checked again.

        Raises ValueError: not JSON, a field unknown, missing, twice or malformed; or `InfeasiblePlan`.
        """
        if isinstance(source, (str, bytes)):
            source = json.loads(source, object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant)
        if not isinstance(source, Mapping):
            raise ValueError("plan: a JSON object is needed")
        names = {field.name for field in fields(cls)}
        wrong = (set(source) ^ names) - ({"noise_parts", "evaluation"} - set(source))
        if wrong or source.get("noise_parts", 1) == 0:
            raise ValueError(f"plan: unknown or missing fields: {sorted(map(str, wrong))}")
        values = dict(source)
        values["local_variance"] = _parse_fraction(values["local_variance"])
        try:
            values["clipping"] = ClipRule.from_json(values["clipping"])
            if "evaluation" in values:
                values["evaluation"] = Evaluation.from_json(values["evaluation"])
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
    plain = all(part.isascii() and part.isdigit() and len(part) <= 32 for part in (numerator, denominator))
    if not slash or not plain or int(denominator) == 0:
        raise ValueError('plan: local_variance must read "numerator/denominator"')
    value = Fraction(int(numerator), int(denominator))
    if f"{value.numerator}/{value.denominator}" != text:
        raise ValueError("plan: local_variance is not in lowest terms")
    return value


def verify_plan(plan: Plan) -> None:
    """Recompute from the public numbers alone that the plan keeps its promises; every client runs it.

    Raises InfeasiblePlan: local noise outside the theorems or the sampler, integer norms beyond 64 bits, sums that may
    wrap at k_stddevs, or an epsilon after all rounds at h_min above its target or budget.
    """
    variance = plan.local_variance
    if variance < smallest_variance(plan.mechanism):
        least = "half a grid step" if plan.mechanism == DDGAUSS else "a thousandth of a grid step"
        raise InfeasiblePlan(f"local noise is below {least}, where nothing is proved", "use more bits")
    if plan.noise_parts and smallest_part(plan, variance) < _smallest_part_of(plan.mechanism):
        raise InfeasiblePlan("parts of the noise are too small for what is proved", "use make_plan")
    drawn = variance * plan.h_min if plan.mechanism == GAUSSIAN else variance
    if drawn > LARGEST_VARIANCE or variance.denominator > VARIANCE_DENOMINATOR:
        raise InfeasiblePlan("the local variance is not one that the sampler takes", "use make_plan")
    if plan.granularity > plan.encoder_clip:
        raise InfeasiblePlan("one grid step exceeds the clip", "use more bits")
    if plan.encoder_clip / plan.granularity + math.sqrt(plan.padded_dim) >= LARGEST_PLANNED_NORM:
        raise InfeasiblePlan("squared integer norms leave 64 bits", "use fewer bits")
    if wrap_load(plan, Fraction(plan.granularity), variance) > 1:
        raise InfeasiblePlan(f"sums may wrap within {plan.k_stddevs:g} standard deviations", "use more bits")
    achieved = plan.planned_epsilon
    if not achieved <= plan.epsilon:
        raise InfeasiblePlan(
            f"epsilon {achieved:.6g} after {plan.rounds} rounds exceeds the target {plan.epsilon:g}",
            "add noise, or plan fewer rounds",
            {"rounds": None},
        )
    if plan.sampling == EPOCHS and plan.budget_coordinator != plan.budget_released:
        raise InfeasiblePlan("with epochs both epsilons are the same, and so are the budgets", "leave budgets out")
    if plan.target == CONDITIONAL:
        return  # for comparison only: nothing is served, nothing spent
    for reader, budget, planned in (
        (COORDINATOR, plan.budget_coordinator, plan.epsilon_coordinator),
        (RELEASED, plan.budget_released, plan.epsilon_released),
    ):
        if reader == plan.target and budget != plan.epsilon:
            raise InfeasiblePlan(f"budget_{reader} {budget:g} is not the target {plan.epsilon:g}", "leave it out")
        if not planned <= budget:
            raise InfeasiblePlan(
                f"epsilon_{reader} {planned:.6g} after {plan.rounds} rounds exceeds its budget {budget:g}",
                f"use a budget_{reader} of at least {planned:.6g}, or plan fewer rounds",
                {f"budget_{reader}": planned, "rounds": None},
            )


def _smallest_part_of(mechanism: str) -> int:
    # A Skellam part may have any variance; below a grid step squared it takes back next to nothing.
    return SMALLEST_GAUSSIAN_PART if mechanism == DDGAUSS else 1


def make_plan(
    *,
    mechanism: str = DDGAUSS,
    clients: int,
    dim: int,
    bits: int,
    clip: float | None = None,
    clipping: ClipRule | None = None,
    epsilon: float,
    delta: float,
    rounds: int,
    colluders: int,
    min_survivors: int,
    quorum: int,
    max_dropout: float,
    adversarial: float,
    target: str = COORDINATOR,
    sampling: str = NO_SAMPLING,
    population: int | None = None,
    rotation: str | None = None,
    sketch: tuple[int, int] = (0, 0),
    beta: float = math.exp(-0.5),
    k_stddevs: float = 4.0,
    budget_coordinator: float | None = None,
    budget_released: float | None = None,
    graph: str = "complete",
    adversary: str = "malicious",
    key_agreement: str = "x25519",
    offer_offset_s: float = 0.0,
    noise_parts: int | None = None,
    evaluation: Evaluation = NOT_EVALUATED,
) -> Plan:
    """Find granularity, noise and filter orders for a target; the arguments are the fields of `Plan`.

    The result's epsilon, over all rounds with the fewest survivors, never exceeds the target, and is as close below as
    the variances' denominator (2^28) allows.

    Args:
        clip: one fixed clip for the whole update; or give ``clipping``.
        rotation: by default `mechanisms.rotation.default_rotation` of the values that are coded.
        sketch: rows and width of a count-mean sketch; (0, 0) for none.
        budget_coordinator, budget_released: of the reader that isn't the target; by default what is planned.
        noise_parts: of a share, for survivors to take back; by default as many as bring the noise close to what is
            needed, however many survive, or as the grid is fine enough for. 0: all noise stays.
        evaluation: of the model by participants, in the same sum; by default none.

    Raises InfeasiblePlan: nothing fits, with the reason and the nearest setting that works.
    """
    if type(dim) is int and not 1 <= dim <= LARGEST_DIM:
        raise InfeasiblePlan(f"dim {dim} is out of range", f"use 1 to {LARGEST_DIM}")
    if clip is not None and clipping is not None:
        raise InfeasiblePlan("clip and clipping are both stated", "state one of them")
    budgets = {COORDINATOR: budget_coordinator, RELEASED: budget_released}
    if budgets.get(target) is not None:
        raise InfeasiblePlan("epsilon is the budget of the target", f"leave budget_{target} out")
    if wrong := [reader for reader, most in budgets.items() if most is not None and not 0 < most < math.inf]:
        raise InfeasiblePlan(f"budget_{wrong[0]} must be above 0", "state a finite epsilon")
    coded = sketch[0] * sketch[1] or dim
    if clipping is None:
        if clip is None:
            raise InfeasiblePlan("neither clip nor clipping is stated", "state the largest L2 norm of an update")
        clipping = ClipRule.flat(coded if type(coded) is int and coded > 0 else 1, clip)
    if type(coded) is int and coded > 0:
        coded += clipping.bits + evaluation.values
        rotation = default_rotation(coded) if rotation is None else rotation
        padded_dim = rotation_layout(coded, rotation)[1] if rotation in ROTATIONS else 0  # refused by Statement
    else:
        rotation, padded_dim = rotation or ROTATIONS[0], 0  # refused by Statement
    stated = Statement(
        mechanism=mechanism,
        clients=clients,
        population=clients if population is None else population,
        sampling=sampling,
        dim=dim,
        clipping=clipping,
        sketch_rows=sketch[0],
        sketch_width=sketch[1],
        rotation=rotation,
        padded_dim=padded_dim,
        bits=bits,
        epsilon=float(epsilon),
        delta=float(delta),
        rounds=rounds,
        target=target,
        max_dropout=float(max_dropout),
        adversarial=float(adversarial),
        colluders=colluders,
        min_survivors=min_survivors,
        quorum=quorum,
        beta=float(beta),
        k_stddevs=float(k_stddevs),
        evaluation=evaluation,
    )
    if noise_parts is None:
        has_parts = mechanism in (DDGAUSS, SKELLAM) and target != CONDITIONAL
        noise_parts = parts_needed(clients, min_survivors, colluders) if has_parts else 0
    while True:
        stated = replace(stated, noise_parts=noise_parts)
        try:
            found = calibrate(stated)
        except InfeasiblePlan:
            if not noise_parts:
                raise
            noise_parts = 0  # what is suggested works with or without parts
            continue
        if not noise_parts or smallest_part(stated, found.noise.local_variance) >= _smallest_part_of(mechanism):
            break
        noise_parts -= 1  # a coarse grid has room for fewer and larger parts
    if not stated.amplified:  # both epsilons are the same, and so are the budgets
        budgets = {reader: stated.epsilon if most is None else most for reader, most in budgets.items()}
    for reader in budgets:
        if reader == target:
            budgets[reader] = stated.epsilon
        elif target != CONDITIONAL and budgets[reader] is None:
            planned = planned_epsilon(stated, found.noise, reader, found.orders[reader])
            if not math.isfinite(planned):
                raise InfeasiblePlan(
                    f"epsilon_{reader} would lie beyond anything that can be stated",
                    "use a smaller epsilon, fewer rounds or a smaller population",
                    {"rounds": None},
                )
            budgets[reader] = planned * (1 + 1e-9)  # a hair above, for other machines' mathematical functions
    return Plan(
        **{field.name: getattr(stated, field.name) for field in fields(stated)},
        granularity=found.noise.granularity,
        local_variance=found.noise.local_variance,
        order=found.orders[COORDINATOR],
        order_released=found.orders[RELEASED],
        order_conditional=found.orders[CONDITIONAL],
        budget_coordinator=float(budgets[COORDINATOR] or 0),
        budget_released=float(budgets[RELEASED] or 0),
        graph=graph,
        adversary=adversary,
        key_agreement=key_agreement,
        offer_offset_s=offer_offset_s,
    )
