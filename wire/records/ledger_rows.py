"""The content of one row of a ledger, in bytes that can be hashed.

A row is a fact with its price: which data, in which attempt, under which assumptions (adjacency, mechanism, A, honest
survivors, sampling), and its cost at the study's order and as a Renyi curve. The price is the one charged at that
time; a newer formula can't change it unnoticed.

The coordinator's rows name participants by their position in the roster. A participant's rows name its identity; there
a charge at h_min may be replaced, once, by the exact cost or by zero, and the replacement is another row. They also
name its data: costs of identities over the same data add up, since noise protects the data.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from mechanisms.plan import Plan

CHARGE: Final = "charge"  # the attempt costs this much, however it ends
EXACT: Final = "exact"  # replaces the charge at h_min: a quorum has signed a u3 with this participant
EXCLUDED: Final = "excluded"
"""Replaces the charge at h_min: a quorum has signed a u3 without this participant, which costs nothing."""
KINDS: Final = (CHARGE, EXACT, EXCLUDED)

# Every row has the cost at those of these orders at which its mechanism has a bound, so that rows of studies with
# filters of different orders can be composed. Skellam's bound holds for whole orders only.
FURTHER_ORDERS: Final = (
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0, 20.0, 24.0, 28.0, 32.0),
    *(40.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0, 1024.0),
)


class InvalidRow(ValueError):
    """A row that contradicts itself, or can't follow those before it; one sentence."""


@dataclass(frozen=True)
class Price:
    """Unamplified cost of one sum."""

    order: float  # of the plan's filter; 1: `mechanisms.privacy_curves.GAUSSIAN_ORDER`
    cost: float  # there
    curve: tuple[tuple[float, float], ...]  # (order, cost) at `FURTHER_ORDERS`, where there is a bound


@lru_cache(maxsize=64)  # one for each number of survivors that occurs in a study
def price(plan: Plan, honest: int) -> Price:
    """The cost of one sum with this number of honest survivors for each of them.

    Raises ValueError: the plan covers no such sum.
    """
    at = plan.round_curve(honest)
    further = []
    for order in FURTHER_ORDERS:
        try:
            cost = float(at(np.array([order]))[0])
        except ValueError:  # no bound at this order
            continue
        if math.isfinite(cost):
            further.append((order, cost))
    return Price(float(plan.order), float(plan.round_cost(honest)), tuple(further))


@lru_cache(maxsize=1024)  # called when a round begins, and again before its charge
def epsilon(order: float, cost: float, delta: float, draws: int) -> float:
    """epsilon at delta of a composed cost at one order, the sampler's distance from its law included."""
    from mechanisms.privacy_curves import epsilon_with_sampler_error

    return epsilon_with_sampler_error(order, cost, delta, draws)


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One row's content. Raises InvalidRow: a field has another type or range than stated."""

    at: float  # seconds since 1970, of the machine that wrote it
    study: str
    study_sha256: str  # of the study document, 64 hexadecimal digits
    plan: str  # `Plan.identity`, 64 hexadecimal digits
    round: int
    attempt: int
    kind: str  # one of `KINDS`
    participants: tuple[int, ...] | None  # coordinator's row: u3 by roster position, ascending
    identity: str | None  # participant's row: Ed25519 public key, 64 hexadecimal digits
    data: str  # participant's row: name of its training data, 64 hexadecimal digits; coordinator's row: empty
    adjacency: str
    mechanism: str
    colluders: int  # A
    honest: int  # noise shares that count: |u3| - A, or h_min before u3 is known
    sampling: str  # how a round's participants were chosen
    rate: float  # q, in (0, 1]; matters for released models only: the cost here is unamplified
    order: float  # of the study's filter: a Renyi order, or 1 for exact Gaussian costs
    cost: float  # at it
    curve: tuple[tuple[float, float], ...]  # (order, cost), ascending
    epsilon: float  # the study's budget
    delta: float
    draws: int  # noise coordinates in the sum

    def __post_init__(self) -> None:
        for name, kind in _TYPES.items():
            value: Any = getattr(self, name)
            if type(value) is not kind:
                raise InvalidRow(f"{name} is not {_A[kind]}")
            if kind is float and not math.isfinite(value):
                raise InvalidRow(f"{name} is not finite")
            if kind is int and value < 0:
                raise InvalidRow(f"{name} is negative")
        if self.kind not in KINDS:
            raise InvalidRow(f"kind is none of {', '.join(KINDS)}")
        if not _is_hex(self.study_sha256) or not _is_hex(self.plan):
            raise InvalidRow("study_sha256 and plan must be 64 hexadecimal digits")
        if not 0 < self.rate <= 1 or not 0 < self.delta < 1 or not self.epsilon > 0 or not self.order >= 1:
            raise InvalidRow("0 < rate <= 1, 0 < delta < 1, epsilon > 0 and order >= 1 must hold")
        orders = [order for order, _ in self.curve]
        costs = [cost for _, cost in self.curve]
        if any(type(value) is not float for value in orders + costs) or orders != sorted(set(orders)):
            raise InvalidRow("curve must be pairs of numbers with ascending orders")
        spent = [*costs, self.cost]
        if not all(1 < order < math.inf for order in orders) or not all(0 <= cost < math.inf for cost in spent):
            raise InvalidRow("Renyi orders must be finite and above 1, costs finite and not negative")
        self._check_subject()

    def _check_subject(self) -> None:
        if (self.participants is None) == (self.identity is None):
            raise InvalidRow("either participants or an identity must be named")
        if self.identity is not None:
            if not _is_hex(self.identity):
                raise InvalidRow("identity must be 64 hexadecimal digits")
            if not _is_hex(self.data):
                raise InvalidRow("data must be 64 hexadecimal digits in a participant's row")
            return
        if self.data:
            raise InvalidRow("a coordinator's row names no data")
        who = self.participants or ()
        if type(who) is not tuple or any(type(one) is not int or one < 0 for one in who):
            raise InvalidRow("participants must be positions in the roster")
        if not who or list(who) != sorted(set(who)):
            raise InvalidRow("participants must be ascending, each once, and at least one")
        if self.kind != CHARGE:
            raise InvalidRow("a coordinator's charges are final")
        if self.honest != len(who) - self.colluders:
            raise InvalidRow("honest must be the number of participants less the colluders")

    def to_bytes(self) -> bytes:
        """Canonical JSON: sorted names, no blanks, floats in their shortest exact form. Equal rows have equal bytes."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LedgerEntry:
        """Inverse of `to_bytes`. Raises InvalidRow: any other bytes than `to_bytes` would give."""
        try:
            values = json.loads(data)
            if not isinstance(values, dict) or set(values) != {one.name for one in fields(cls)}:
                raise InvalidRow("it doesn't have the fields of this format")
            values["curve"] = tuple((order, cost) for order, cost in values["curve"])
            if values["participants"] is not None:
                values["participants"] = tuple(values["participants"])
            entry = cls(**values)
        except InvalidRow:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidRow("it is not a row of this format") from error
        if entry.to_bytes() != data:
            raise InvalidRow("its bytes are not the canonical ones")
        return entry


_TYPES: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("study", "study_sha256", "plan", "kind", "data", "adjacency", "mechanism", "sampling"), str),
    **dict.fromkeys(("round", "attempt", "colluders", "honest", "draws"), int),
    **dict.fromkeys(("at", "rate", "order", "cost", "epsilon", "delta"), float),
    "curve": tuple,
}
_A: Final[Mapping[type, str]] = {str: "a text", int: "a whole number", float: "a number", tuple: "a list"}


def _is_hex(text: object) -> bool:
    return isinstance(text, str) and len(text) == 64 and all(digit in "0123456789abcdef" for digit in text)


def make_entry(
    plan: Plan,
    *,
    study: str,
    study_sha256: bytes,
    round: int,
    attempt: int,
    kind: str = CHARGE,
    participants: Iterable[int] | None = None,
    identity: bytes | None = None,
    data: str = "",
    survivors: int | None = None,
    clock: Callable[[], float] = time.time,
) -> LedgerEntry:
    """Price one attempt.

    Args:
        participants: u3 by roster position, for a row of the coordinator.
        identity, data: of the participant, and the name of its training data, for its row.
        survivors: |u3|, for a participant's row; None while it is unknown: then the cost at h_min, the largest.

    Raises ValueError: the plan covers no such sum.
    """
    who = None if participants is None else tuple(sorted(participants))
    if who is not None:
        survivors = len(who)
    honest = plan.h_min if survivors is None else survivors - plan.colluders
    found = price(plan, honest)
    free = kind == EXCLUDED
    return LedgerEntry(
        at=float(clock()),
        study=study,
        study_sha256=study_sha256.hex(),
        plan=plan.identity,
        round=round,
        attempt=attempt,
        kind=kind,
        participants=who,
        identity=None if identity is None else identity.hex(),
        data=data,
        adjacency=plan.adjacency,
        mechanism=plan.mechanism,
        colluders=plan.colluders,
        honest=honest,
        sampling=plan.sampling,
        rate=float(plan.sampling_rate),
        order=found.order,
        cost=0.0 if free else found.cost,
        curve=tuple((order, 0.0) for order, _ in found.curve) if free else found.curve,
        epsilon=float(plan.epsilon),
        delta=float(plan.delta),
        draws=0 if free else (plan.clients if survivors is None else survivors) * plan.padded_dim,
    )
