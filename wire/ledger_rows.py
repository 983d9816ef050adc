"""What one row of a ledger says, in bytes that can be hashed, and what the rows add up to.

A row is a fact with its price: whose data, in which attempt, under which assumptions (adjacency, mechanism, A, honest
survivors, sampling), and what it costs as a Renyi curve. The price is what was charged at that time; nothing is
computed again from a newer formula without being noticed.

The coordinator's rows name participants by their position in the roster. A participant's rows name her own identity;
there a charge at h_min may be replaced, once, by the exact cost or by nothing, and the replacement is a row of its own.
It also names her data: what identities over the same data spend adds up, for it is the data that noise protects.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wire.ledger_pace import Pace

if TYPE_CHECKING:
    from mechanisms.plan import Plan

CHARGE: Final = "charge"
"""From here on the attempt costs this much, whatever comes of it."""
EXACT: Final = "exact"
"""Takes the place of the charge at h_min: a quorum has signed a u3 that holds this participant."""
EXCLUDED: Final = "excluded"
"""Takes the place of the charge at h_min: a quorum has signed a u3 without this participant, which costs nothing."""
KINDS: Final = (CHARGE, EXACT, EXCLUDED)

# Every row has the cost at these orders where its mechanism has a bound there, so that rows of studies whose filters
# have different orders can be composed. Skellam's bound holds for whole orders only.
FURTHER_ORDERS: Final = (
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0, 20.0, 24.0, 28.0, 32.0),
    *(40.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0, 1024.0),
)


class InvalidRow(ValueError):
    """A row that says nothing sensible, or can't follow those before it; one sentence."""


@dataclass(frozen=True)
class Price:
    """Unamplified Renyi cost of one sum."""

    order: float  # of the plan's filter
    cost: float  # there
    curve: tuple[tuple[float, float], ...]  # (order, cost) at `FURTHER_ORDERS`, where there is a bound


def price(plan: Plan, honest: int) -> Price:
    """What one sum with so many honest survivors costs each of them.

    Raises:
        ValueError: the plan covers no such sum.
    """
    return _price(plan, honest)


@lru_cache(maxsize=64)  # one for each number of survivors that a study sees
def _price(plan: Plan, honest: int) -> Price:
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


def epsilon(order: float, cost: float, delta: float, draws: int) -> float:
    """epsilon at delta of a Renyi cost at one order, the sampler's distance from its law included."""
    from mechanisms.privacy_curves import epsilon_with_sampler_error

    return epsilon_with_sampler_error(order, cost, delta, draws)


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One row's content.

    Raises:
        InvalidRow: a field has another type or range than stated.
    """

    at: float  # seconds since 1970, of the machine that wrote it
    study: str
    study_sha256: str  # of the study document, 64 hexadecimal digits
    plan: str  # `Plan.identity`, 64 hexadecimal digits
    round: int
    attempt: int
    kind: str  # one of `KINDS`
    participants: tuple[int, ...] | None  # the coordinator's: u3 by roster position, ascending
    identity: str | None  # a participant's: Ed25519 public key, 64 hexadecimal digits
    data: str  # a participant's: name of the data that she trains on, 64 hexadecimal digits; a coordinator's: empty
    adjacency: str
    mechanism: str
    colluders: int  # A
    honest: int  # noise shares that are counted on: |u3| - A, or h_min before u3 is known
    sampling: str  # how a round's participants were chosen
    rate: float  # q, in (0, 1]; for released models only: the cost here is unamplified
    order: float  # of the study's Renyi filter
    cost: float  # Renyi divergence at it
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
        if not 0 < self.rate <= 1 or not 0 < self.delta < 1 or not self.epsilon > 0 or not self.order > 1:
            raise InvalidRow("0 < rate <= 1, 0 < delta < 1, epsilon > 0 and order > 1 must hold")
        orders = [order for order, _ in self.curve]
        costs = [cost for _, cost in self.curve]
        if any(type(value) is not float for value in orders + costs) or orders != sorted(set(orders)):
            raise InvalidRow("curve must be pairs of numbers with ascending orders")
        if any(order <= 1 for order in orders) or any(not 0 <= cost < math.inf for cost in [*costs, self.cost]):
            raise InvalidRow("Renyi orders must be above 1, costs finite and not negative")
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
        """Canonical JSON: sorted names, no blanks, floats by their shortest exact form. Equal rows have equal bytes."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LedgerEntry:
        """Inverse of `to_bytes`.

        Raises:
            InvalidRow: any other bytes than `to_bytes` would give.
        """
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
        plan: that the vectors are encoded under.
        participants: u3 by roster position: a row of the coordinator.
        identity: a row of this participant.
        data: of a participant's row, the name of the data that she trains on.
        survivors: of a participant's row |u3|, or None while it isn't known: then at h_min, the most it can cost.

    Raises:
        ValueError: the plan covers no such sum.
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


@dataclass
class Spent:
    """What one participant has spent in one study, or all identities over the same data."""

    charges: int = 0
    cost: float = 0.0  # Renyi, at the study's order, of the charges that can't be replaced any more
    draws: int = 0
    curve: dict[float, float] = field(default_factory=dict)  # of an identity; at the orders that all its rows have
    last: LedgerEntry | None = None  # of an identity: its latest charge, which may still be replaced
    replaced: bool = False
    data: str = ""  # of an identity: the name of its data

    @property
    def renyi(self) -> float:
        """Composed cost at the study's order."""
        return self.cost + (self.last.cost if self.last is not None else 0.0)

    @property
    def all_draws(self) -> int:
        """Noise coordinates in the sums that were charged."""
        return self.draws + (self.last.draws if self.last is not None else 0)

    def at_every_order(self) -> dict[float, float]:
        """Composed cost at the orders that all rows have."""
        return self.curve if self.last is None else _add(self.curve, self.last.curve, self.charges == 1)

    def settle(self) -> None:
        """The latest charge stays as it is."""
        if self.last is not None:
            self.curve = self.at_every_order()
            self.cost, self.draws, self.last = self.renyi, self.all_draws, None


def _sum(accounts: Sequence[Spent]) -> Spent:
    """Of identities over the same data: each sum that one of them was in holds a contribution of that data."""
    if len(accounts) == 1:
        return accounts[0]
    total = Spent()
    for one in accounts:
        if not one.charges:
            continue
        total.curve = _add(total.curve, one.at_every_order().items(), not total.charges)
        total.charges += one.charges
        total.cost, total.draws = total.cost + one.renyi, total.draws + one.all_draws
    return total


def renyi_at(curve: Mapping[float, float], order: float) -> float:
    """Cost at an order, or else at the next one above it that the curve has; infinite where there is none.

    Renyi divergence never falls as the order grows, so this is a bound at the order itself.
    """
    return next((curve[one] for one in sorted(curve) if one >= order), math.inf)


def stated_order(first: float, curve: Iterable[tuple[float, float]]) -> float:
    """At which a sum over studies is stated: that of the first row's curve nearest its own filter's order.

    The first row came before everything that could be chosen adaptively, so its order is fixed in advance.
    """
    return min((order for order, _ in curve), key=lambda order: abs(math.log(order / first)), default=first)


def _add(curve: dict[float, float], more: Iterable[tuple[float, float]], first: bool) -> dict[float, float]:
    if first:
        return dict(more)
    return {order: curve[order] + cost for order, cost in more if order in curve}


@dataclass
class StudyTotals:
    """One study's rows, added up."""

    first: LedgerEntry
    spent: dict[int | str, Spent] = field(default_factory=dict)  # by roster position or identity
    draws: int = 0  # of all the coordinator's rows: whoever was in one sum sees models that hold the others
    latest: dict[str, tuple[int, int]] = field(default_factory=dict)
    over: dict[str, list[Spent]] = field(default_factory=dict)  # a participant's: by data, one for each identity

    def of_data(self, data: str) -> Spent:
        """What was spent from one participant's data, whatever identities she took part with."""
        return _sum(self.over.get(data, ()))

    def by_data(self) -> list[Spent]:
        """`of_data` for all data of a participant's ledger."""
        return [_sum(accounts) for accounts in self.over.values()]

    def epsilon_of_data(self, data: str) -> float:
        """epsilon at the study's delta of all that was spent from this data; 0 where nothing was."""
        return self._epsilon(self.of_data(data)) if data in self.over else 0.0

    def _epsilon(self, spent: Spent) -> float:
        return epsilon(self.first.order, spent.renyi, self.first.delta, spent.all_draws)

    def renyi(self, who: int | str) -> float:
        """Composed Renyi cost of one participant at the study's order; 0 for one who was in no sum."""
        return self.spent[who].renyi if who in self.spent else 0.0

    def epsilon_of(self, who: int | str) -> float:
        """epsilon of one participant at the study's delta; 0 for one who was in no sum."""
        if who not in self.spent:
            return 0.0
        if self.first.identity is not None:
            return self._epsilon(self.spent[who])
        return epsilon(self.first.order, self.renyi(who), self.first.delta, self.draws)

    def renyi_at(self, order: float) -> float:
        """The largest composed cost of one data of a participant's ledger; see `wire.ledger_rows.renyi_at`."""
        return max((renyi_at(one.at_every_order(), order) for one in self.by_data()), default=0.0)

    def epsilon_coordinator(self) -> float:
        """The largest epsilon: of one participant, and in a participant's ledger of one data (`epsilon_of_data`)."""
        if not self.spent:
            return 0.0
        if self.first.identity is not None:
            return max(self._epsilon(one) for one in self.by_data())
        largest = max(one.renyi for one in self.spent.values())
        return epsilon(self.first.order, largest, self.first.delta, self.draws)


class Totals:
    """What rows add up to, by study; refuses a row that can't follow those before it."""

    def __init__(self) -> None:
        self.studies: dict[str, StudyTotals] = {}  # by study_sha256
        self.pace = Pace()  # of a participant's rows

    def spent(self, study_sha256: bytes, data: str) -> Spent:
        """From one data in one study, by all identities together."""
        study = self.studies.get(study_sha256.hex())
        return Spent() if study is None else study.of_data(data)

    def check(self, entry: LedgerEntry) -> None:
        """Whether `add` would take the row.

        Raises:
            InvalidRow: another plan, order, delta, adjacency, mechanism or A than the study's rows before it; other
                data than the identity's rows before it; a round or attempt that isn't later; a replacement of
                nothing, or by a higher cost.
        """
        study = self.studies.get(entry.study_sha256)
        if study is None:
            if entry.kind != CHARGE:
                raise InvalidRow(f"round {entry.round} attempt {entry.attempt} was never charged")
            return
        for name in _SAME_IN_A_STUDY:
            if getattr(entry, name) != getattr(study.first, name):
                raise InvalidRow(f"its {name} is not that of the study's other rows")
        spent = study.spent.get(entry.identity or "")
        if spent is not None and spent.data != entry.data:
            raise InvalidRow("its data is not that of the identity's other rows in the study")
        number, latest = (entry.round, entry.attempt), study.latest.get(entry.identity or "")
        if entry.kind == CHARGE:
            if latest is not None and number <= latest:
                raise InvalidRow(
                    f"round {number[0]} attempt {number[1]} comes after round {latest[0]} attempt {latest[1]}: "
                    "each may be charged once, in order"
                )
            return
        if spent is None or spent.last is None or number != latest or spent.replaced:
            raise InvalidRow(f"round {number[0]} attempt {number[1]} is not a charge that can be replaced")
        before = dict(spent.last.curve)
        if entry.cost > spent.last.cost or any(cost > before.get(order, -1.0) for order, cost in entry.curve):
            raise InvalidRow("it replaces a charge by a higher one")

    def add(self, entry: LedgerEntry) -> None:
        """Count a row in. Raises `InvalidRow`, with nothing counted."""
        self.check(entry)
        study = self.studies.setdefault(entry.study_sha256, StudyTotals(entry))
        study.latest[entry.identity or ""] = (entry.round, entry.attempt)
        if entry.participants is not None:
            study.draws += entry.draws
            for who in entry.participants:
                one = study.spent.setdefault(who, Spent())
                one.charges += 1
                one.cost += entry.cost
            return
        charged = (entry.study_sha256, entry.round, entry.attempt) if entry.kind == CHARGE else None
        self.pace.note(entry.at, charged)
        one = study.spent.get(entry.identity or "")
        if one is None:
            one = study.spent[entry.identity or ""] = Spent(data=entry.data)
            study.over.setdefault(entry.data, []).append(one)
        if entry.kind == CHARGE:
            one.settle()
            one.charges += 1
        one.replaced = entry.kind != CHARGE
        one.last = entry

    def across_studies(self) -> list[Together]:
        """Composed cost over all studies of a participant's ledger, one for each kind of guarantee.

        Of each study the data from which most was spent counts, by all its identities: an upper bound for all data of
        this ledger. What holds under another adjacency, or only if a coordinator is trusted, is never added to the
        rest.
        """
        kinds: dict[tuple[str, bool], list[StudyTotals]] = {}
        for study in self.studies.values():
            kinds.setdefault((study.first.adjacency, study.first.mechanism == "gaussian"), []).append(study)
        return [
            Together(adjacency, trusted, tuple(studies), _composed(studies))
            for (adjacency, trusted), studies in kinds.items()
        ]


@dataclass(frozen=True)
class Together:
    """Studies under one kind of guarantee, composed."""

    adjacency: str
    coordinator_trusted: bool
    studies: tuple[StudyTotals, ...]  # in the order of their first rows
    curve: Mapping[float, float]  # order -> cost, where all rows have the order

    @property
    def order(self) -> float:
        """At which the figure is stated; see `stated_order`."""
        return stated_order(self.studies[0].first.order, self.studies[0].first.curve)

    @property
    def renyi(self) -> float:
        """Composed cost at `order`: of each study the data that spent most. Infinite where a row has no bound."""
        return sum(study.renyi_at(self.order) for study in self.studies)

    @property
    def draws(self) -> int:
        """Noise coordinates in all sums that were charged."""
        return sum(spent.all_draws for study in self.studies for spent in study.spent.values())


def _composed(studies: Iterable[StudyTotals]) -> dict[float, float]:
    total: dict[float, float] | None = None
    for study in studies:
        curves = [one.at_every_order() for one in study.by_data()]
        shared = set.intersection(*(set(curve) for curve in curves)) if curves else set()
        largest = [(order, max(curve[order] for curve in curves)) for order in sorted(shared)]
        total = _add(total or {}, largest, total is None)
    return total or {}


_SAME_IN_A_STUDY: Final = (
    *("study", "plan", "adjacency", "mechanism", "colluders", "sampling", "rate", "order", "epsilon", "delta"),
)
