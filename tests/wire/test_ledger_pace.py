"""Attempts within a day, by the rows alone: across restarts, studies and clocks that are put back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.made_ledgers import OTHER, STUDY, own_row
from wire.records.ledger import PARTICIPANT, About, Ledger, read_ledger
from wire.records.ledger_rows import EXACT
from wire.records.ledger_totals import DAY_S, Pace, Totals

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
