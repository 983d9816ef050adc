"""What the rows of a ledger add up to: by participant, by data, by study and over all studies; and attempts per day.

A coordinator's rows add up by participant. A participant's rows add up by its data, over all identities with which it
took part, since noise protects the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from wire.records.ledger_rows import CHARGE, InvalidRow, LedgerEntry, epsilon


@dataclass
class Spent:
    """What one participant has spent in one study, or all identities over the same data."""

    charges: int = 0
    cost: float = 0.0  # at the study's order, of the charges that can no longer be replaced
    draws: int = 0
    curve: dict[float, float] = field(default_factory=dict)  # of an identity; at the orders that all its rows have
    last: LedgerEntry | None = None  # of an identity: its latest charge, which can still be replaced
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
        if self.last is not None:
            self.curve = self.at_every_order()
            self.cost, self.draws, self.last = self.renyi, self.all_draws, None


def _sum(accounts: Sequence[Spent]) -> Spent:
    """The total of identities over the same data: each sum with one of them has a contribution of that data."""
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
    """Cost at an order, or else at the next order above it in the curve; infinite if there is none.

    Renyi divergence never falls as the order grows, so this is a bound at the order itself; but none of exact Gaussian
    costs, which order 1 stands for.
    """
    if order == 1:
        return math.inf
    return next((curve[one] for one in sorted(curve) if one >= order), math.inf)


def _add(curve: dict[float, float], more: Iterable[tuple[float, float]], first: bool) -> dict[float, float]:
    if first:
        return dict(more)
    return {order: curve[order] + cost for order, cost in more if order in curve}


@dataclass
class StudyTotals:
    """One study's rows, added up."""

    first: LedgerEntry
    spent: dict[int | str, Spent] = field(default_factory=dict)  # by roster position or identity
    draws: int = 0  # of all the coordinator's rows: a participant of one sum sees models made from the others
    latest: dict[str, tuple[int, int]] = field(default_factory=dict)
    over: dict[str, list[Spent]] = field(default_factory=dict)  # a participant's: by data, one for each identity

    def of_data(self, data: str) -> Spent:
        """What was spent from one participant's data, by all its identities."""
        return _sum(self.over.get(data, ()))

    def by_data(self) -> list[Spent]:
        """`of_data` for all data of a participant's ledger."""
        return [_sum(accounts) for accounts in self.over.values()]

    def epsilon_of_data(self, data: str) -> float:
        """epsilon at the study's delta of all that was spent from this data; 0 if nothing was spent."""
        return self._epsilon(self.of_data(data)) if data in self.over else 0.0

    def _epsilon(self, spent: Spent) -> float:
        return epsilon(self.first.order, spent.renyi, self.first.delta, spent.all_draws)

    def renyi(self, who: int | str) -> float:
        """Composed Renyi cost of one participant at the study's order; 0 if it was in no sum."""
        return self.spent[who].renyi if who in self.spent else 0.0

    def epsilon_of(self, who: int | str) -> float:
        """epsilon of one participant at the study's delta; 0 if it was in no sum."""
        if who not in self.spent:
            return 0.0
        if self.first.identity is not None:
            return self._epsilon(self.spent[who])
        return epsilon(self.first.order, self.renyi(who), self.first.delta, self.draws)

    def renyi_at(self, order: float) -> float:
        """The largest composed cost of one data of a participant's ledger; see `wire.records.ledger_totals.renyi_at`.

        At the study's own order it is the filter's value, not a bound from the next order of the curves.
        """
        return max((self.cost_at(one, order) for one in self.by_data()), default=0.0)

    def cost_at(self, spent: Spent, order: float) -> float:
        """Composed cost of ``spent``, which is of this study, at an order."""
        return spent.renyi if order == self.first.order else renyi_at(spent.at_every_order(), order)

    def epsilon_coordinator(self) -> float:
        """The largest epsilon: of one participant, and in a participant's ledger of one data (`epsilon_of_data`)."""
        if not self.spent:
            return 0.0
        if self.first.identity is not None:
            return max(self._epsilon(one) for one in self.by_data())
        largest = max(one.renyi for one in self.spent.values())
        return epsilon(self.first.order, largest, self.first.delta, self.draws)


class Totals:
    """The totals of rows by study; refuses a row that can't follow those before it."""

    def __init__(self) -> None:
        self.studies: dict[str, StudyTotals] = {}  # by study_sha256
        self.pace = Pace()  # of a participant's rows

    def spent(self, study_sha256: bytes, data: str) -> Spent:
        """What all identities together have spent from one data in one study."""
        study = self.studies.get(study_sha256.hex())
        return Spent() if study is None else study.of_data(data)

    def spent_by(self, study_sha256: bytes, identity: bytes) -> Spent:
        """What one identity of a participant's ledger has spent in one study."""
        study = self.studies.get(study_sha256.hex())
        return Spent() if study is None else study.spent.get(identity.hex(), Spent())

    def check(self, entry: LedgerEntry) -> None:
        """Check that `add` would accept the row.

        Raises InvalidRow: another plan, order, delta, adjacency, mechanism or A than the study's earlier rows; other
        data than the identity's earlier rows; a round or attempt that isn't later; a replacement of nothing, or by a
        higher cost.
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
        """Add a row. Raises `InvalidRow`, and then changes nothing."""
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
        identity = entry.identity or ""
        if identity not in study.spent:
            study.spent[identity] = Spent(data=entry.data)
            study.over.setdefault(entry.data, []).append(study.spent[identity])
        one = study.spent[identity]
        if entry.kind == CHARGE:
            one.settle()
            one.charges += 1
        one.replaced = entry.kind != CHARGE
        one.last = entry

    def across_studies(self) -> list[Together]:
        """Composed cost over all studies of a participant's ledger, one for each kind of guarantee.

        In each study the data with the largest cost counts, over all its identities: an upper bound for all data of
        this ledger. Guarantees under another adjacency, or only for a trusted coordinator, are never added to the
        others.
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
        """The order at which the figure is stated: that of the first study's filter.

        The first row precedes everything that could be chosen adaptively, so its order is fixed in advance; and the
        figure of a ledger with one study is that study's own.
        """
        return self.studies[0].first.order

    @property
    def renyi(self) -> float:
        """Composed cost at `order`, in each study of the data with the largest; infinite where a row has no bound."""
        return sum(study.renyi_at(self.order) for study in self.studies)

    @property
    def draws(self) -> int:
        """Noise coordinates in the charged sums: in each study, as with `renyi`, the largest number of one data."""
        return sum(max((one.all_draws for one in study.by_data()), default=0) for study in self.studies)


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


DAY_S: Final = 86_400.0

Attempt = tuple[str, int, int]  # SHA-256 of the study document in hexadecimal digits, round, attempt


class Pace:
    """How many attempts a participant's ledger was charged for within a day, by a clock that never goes back.

    Only the rows decide, so a restart, another study or another coordinator changes nothing. A row counts at the latest
    time that it or an earlier row states, and so does the present: setting the clock back gives no free attempt.
    Several participants of a host that are charged for one attempt count as one: each of them sent one vector.
    """

    def __init__(self) -> None:
        self._charged: dict[Attempt, float] = {}  # ascending by time
        self.latest = -math.inf
        """The latest time of any row, in seconds since 1970."""

    def note(self, at: float, attempt: Attempt | None = None) -> None:
        """Note a row's time (seconds since 1970), and the attempt if the row is a charge."""
        self.latest = max(self.latest, at)
        if attempt is not None:
            self._charged.pop(attempt, None)
            self._charged[attempt] = self.latest
        while self._charged and next(iter(self._charged.values())) <= self.latest - DAY_S:
            self._charged.pop(next(iter(self._charged)))

    def within_a_day(self, now: float, besides: Attempt | None = None) -> int:
        """Attempts charged in the 24 hours before ``now``, without ``besides``."""
        return len(self._recent(now, besides))

    def free_again(self, now: float, most: int, besides: Attempt | None = None) -> float:
        """When fewer than ``most`` (at least 1) attempts lie within a day; ``now`` if that is already so."""
        times = self._recent(now, besides)
        return now if len(times) < most else times[-most] + DAY_S

    def _recent(self, now: float, besides: Attempt | None) -> list[float]:
        since = max(now, self.latest) - DAY_S
        return [at for attempt, at in self._charged.items() if at > since and attempt != besides]
