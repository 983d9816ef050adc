"""What a ledger's rows may say, and what they add up to; attempts within a day, by the rows alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tests.wire.made_ledgers import OTHER, STUDY, entry, own_row
from wire.records.ledger import PARTICIPANT, About, Ledger, read_ledger
from wire.records.ledger_rows import CHARGE, EXACT, EXCLUDED, InvalidRow, LedgerEntry, epsilon
from wire.records.ledger_totals import DAY_S, Pace, Spent, Totals

NAN, INFINITY = float("nan"), float("inf")
IMPOSSIBLE: dict[str, list[Any]] = {
    "cost": [NAN, INFINITY, -0.1, 1],
    "round": [-1, True],
    "rate": [0.0],
    "delta": [1.0],
    "order": [0.5],
    "kind": ["refund", EXACT],
    "participants": [None, (3, 1, 0, 4, 6), (0, 0, 1, 3, 4), ()],
    "identity": ["11" * 32],
    "honest": [4],
    "curve": [((4.0, 0.1), (2.0, 0.1)), *(((order, 0.1),) for order in (1.0, INFINITY, NAN, 2))],
    "study_sha256": ["AA" * 32],
    "plan": ["cc"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in IMPOSSIBLE.items() for value in values])
def test_rows_that_say_nothing_sensible(name: str, value: Any) -> None:
    with pytest.raises(InvalidRow):
        entry(1, **{name: value})


def test_a_beginning_of_lists_within_lists() -> None:
    with pytest.raises(ValueError, match="not the beginning"):
        About.from_bytes(b"[" * 100_000)


def test_one_row_has_one_encoding() -> None:
    for row in (entry(1), own_row(1), own_row(1, kind=EXCLUDED, cost=0.0), entry(3, cost=5e-324, at=1e300)):
        data = row.to_bytes()
        assert LedgerEntry.from_bytes(data) == row
        blank, digit = data.replace(b'"at":', b'"at": ', 1), data.replace(b"8.0", b"8.00", 1)
        for other in (data + b" ", blank, digit, b"[]", b"{}"):
            with pytest.raises(InvalidRow):
                LedgerEntry.from_bytes(other)


def test_a_participants_charges_are_replaced_by_further_rows() -> None:
    totals = Totals()
    me, other = "11" * 32, "22" * 32

    def spent(who: str = me) -> Spent:
        return totals.studies[STUDY].spent[who]

    totals.add(own_row(1, cost=1.0))
    totals.add(own_row(1, kind=EXACT, cost=0.5, curve=((2.0, 0.02), (4.0, 0.03)), draws=4096))
    totals.add(own_row(1, other, cost=1.0))
    assert (spent().renyi, spent().all_draws, spent().charges) == (0.5, 4096, 1)
    totals.add(own_row(2, cost=1.0))
    totals.add(own_row(2, kind=EXCLUDED, cost=0.0, curve=((2.0, 0.0), (4.0, 0.0)), draws=0))
    assert (spent().renyi, spent().all_draws) == (0.5, 4096)
    totals.add(own_row(3, cost=1.0))  # nothing more is heard of it: it stays at its worst
    totals.add(own_row(4, cost=1.0))
    assert (spent().renyi, spent().charges) == (2.5, 4)
    assert spent().at_every_order() == {2.0: 0.02 + 0.0 + 0.03 + 0.03, 4.0: 0.03 + 0.0 + 0.1 / 3 + 0.1 / 3}
    assert spent(other).renyi == 1.0
    for bad in (
        own_row(4, kind=EXACT, cost=1.5),  # dearer than the worst
        own_row(4, kind=EXACT, cost=0.5, curve=((3.0, 0.01),)),  # at an order the charge says nothing of
        own_row(3, kind=EXACT, cost=0.5),  # not the latest
        own_row(1, other, kind=EXACT, cost=0.5, attempt=2),
        own_row(1, "33" * 32, kind=EXACT, cost=0.5),  # never charged
        own_row(4, cost=1.0),
    ):
        with pytest.raises(InvalidRow):
            totals.check(bad)
    totals.add(own_row(4, kind=EXACT, cost=0.5))
    with pytest.raises(InvalidRow, match="can be replaced"):
        totals.check(own_row(4, kind=EXCLUDED, cost=0.0))


def test_studies_of_one_participant_compose_at_the_orders_that_all_have() -> None:
    totals = Totals()
    totals.add(own_row(1, curve=((2.0, 0.25), (4.0, 0.5))))
    totals.add(own_row(1, "22" * 32, curve=((2.0, 0.5), (4.0, 0.25))))
    totals.add(own_row(1, study="eight", study_sha256=OTHER, order=3.0, curve=((2.0, 1.0), (3.0, 2.0))))
    # Of the first study the larger of the two; order 4 isn't in every row.
    [together] = totals.across_studies()
    assert together.curve == {2.0: 1.5}
    # Fixed by the first row; since the other study has no bound there or above, no figure is stated.
    assert (together.order, together.renyi) == (7.25, float("inf"))


def test_identities_over_the_same_data_add_up() -> None:
    """The largest of them alone would let one data set be charged its limit once for each identity."""
    me, again, other, data = "11" * 32, "22" * 32, "33" * 32, "dd" * 32
    totals = Totals()
    totals.add(own_row(1, me, data=data, cost=1.0, curve=((2.0, 0.25), (4.0, 0.5)), draws=100))
    totals.add(own_row(1, again, data=data, cost=1.0, curve=((2.0, 0.25), (4.0, 0.5)), draws=100))  # in the same sum
    totals.add(own_row(1, other, data="ee" * 32, cost=1.5, curve=((2.0, 0.375), (4.0, 0.75)), draws=100))
    totals.add(own_row(1, again, data=data, kind=EXACT, cost=0.5, curve=((2.0, 0.125),), draws=50))
    study = totals.studies[STUDY]
    both = totals.spent(bytes.fromhex(STUDY), data)
    assert (both.charges, both.renyi, both.all_draws, both.at_every_order()) == (2, 1.5, 150, {2.0: 0.375})
    assert (study.spent[me].renyi, study.spent[again].renyi) == (1.0, 0.5)
    assert totals.spent(bytes.fromhex(STUDY), "ff" * 32).charges == 0
    totals.add(own_row(2, me, data=data, cost=1.0, curve=((2.0, 0.25), (4.0, 0.5)), draws=100))
    both = totals.spent(bytes.fromhex(STUDY), data)
    assert (both.charges, both.renyi, both.all_draws) == (3, 2.5, 250)
    # Those over other data don't: no example is in both.
    assert study.renyi_at(2.0) == 0.625
    assert study.epsilon_of_data(data) == epsilon(7.25, 2.5, 1e-5, 250) == study.epsilon_coordinator()
    [together] = totals.across_studies()
    assert together.curve == {2.0: 0.625}
    totals.add(own_row(2, again, data=data, kind=CHARGE, cost=1.0))
    totals.add(own_row(2, again, data=data, kind=EXCLUDED, cost=0.0, curve=((2.0, 0.0),), draws=0))
    assert totals.spent(bytes.fromhex(STUDY), data).renyi == 2.5  # an identity takes back only its own charge
    with pytest.raises(InvalidRow, match="its data is not that of the identity's other rows"):
        totals.add(own_row(3, me, data="ee" * 32))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (lambda: own_row(1, data=""), "data must be 64 hexadecimal digits"),
        (lambda: own_row(1, data="DD" * 32), "data must be 64 hexadecimal digits"),
        (lambda: entry(1, data="dd" * 32), "a coordinator's row names no data"),
    ],
)
def test_whose_row_names_data(row: Callable[[], LedgerEntry], told: str) -> None:
    with pytest.raises(InvalidRow, match=told):
        row()


def test_guarantees_of_different_kinds_are_never_added() -> None:
    """Against another adjacency, or a coordinator that must be trusted, the sum of all would be no bound."""
    totals = Totals()
    totals.add(own_row(1))
    totals.add(own_row(1, study="eight", study_sha256=OTHER, adjacency="replace-one: another"))
    totals.add(own_row(1, study="nine", study_sha256="33" * 32, mechanism="gaussian"))
    kinds = totals.across_studies()
    assert [(kind.coordinator_trusted, len(kind.studies)) for kind in kinds] == [(False, 1), (False, 1), (True, 1)]
    assert len({kind.adjacency for kind in kinds}) == 2


# ---------------------------------------------------------------- attempts within a day


NOON = 1_800_000_000.0


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    for study, digest in (("seven", STUDY), ("eight", OTHER)):
        ledger = Ledger(path, About(PARTICIPANT), create=True)
        ledger.append(own_row(1, at=NOON, study=study, study_sha256=digest)).result()
        ledger.append(own_row(1, at=NOON + 5, study=study, study_sha256=digest, kind=EXACT)).result()
        ledger.append(own_row(1, "22" * 32, at=NOON + 6, study=study, study_sha256=digest)).result()
        ledger.close()
    pace = read_ledger(path)[2].pace
    # Two studies, two identities each: two attempts; a row that replaces a charge is none.
    assert pace.within_a_day(NOON + 10) == 2
    assert pace.within_a_day(NOON + 10, besides=(STUDY, 1, 1)) == 1
    assert pace.latest == NOON + 6
    assert pace.within_a_day(NOON + 6 + DAY_S) == 0


def test_when_the_next_is_free() -> None:
    pace = Pace()
    for n in range(3):
        pace.note(NOON + n * 100, (STUDY, n, 1))
    assert pace.free_again(NOON + 300, 4) == NOON + 300
    assert pace.free_again(NOON + 300, 3) == NOON + DAY_S
    assert pace.free_again(NOON + 300, 1) == NOON + 200 + DAY_S
    for most in (1, 2, 3):
        then = pace.free_again(NOON + 300, most)
        assert pace.within_a_day(then) < most
        assert pace.within_a_day(then - 1) >= most


@given(clock=st.lists(st.floats(-3 * DAY_S, 3 * DAY_S), min_size=1, max_size=60), most=st.integers(1, 5))
def test_no_clock_gives_more_than_the_limit_within_a_day_of_the_latest_time(clock: list[float], most: int) -> None:
    """Whatever the clock says, between two attempts that are `most` apart the latest time has moved by a whole day."""
    pace, latest, taken = Pace(), -float("inf"), []
    for n, step in enumerate(clock):
        now = NOON + step
        if pace.within_a_day(now) < most:
            pace.note(now, (STUDY, n, 1))
            latest = max(latest, now)
            taken.append(latest)
    for earlier, later in zip(taken, taken[most:], strict=False):
        assert later - earlier >= DAY_S * (1 - 1e-9)


@pytest.mark.parametrize("count", [10_000])
def test_only_a_day_is_kept(count: int) -> None:
    totals = Totals()
    for n in range(1, count):
        totals.add(own_row(n, at=NOON + 60.0 * n, cost=0.1))
    assert len(totals.pace._charged) == DAY_S // 60
