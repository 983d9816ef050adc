"""Phases adapt to the last rounds, and participants that aren't needed are told for how long."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

import server.pace
from secagg.messages import MASKED_INPUT, PHASES, UNMASKING
from server.events import RoundCompleted
from server.pace import EARLY, LAST_ROUNDS, REST_MOST_S, SLOWER, UNKNOWN_REST_S, UNKNOWN_ROUND_S, Pace
from server.study_tables import DeadlineTable


def completed(round_: int, seconds: float) -> RoundCompleted:
    return RoundCompleted(round=round_, attempt=1, phase_seconds=dict.fromkeys(PHASES, seconds))


def pace(*, adaptive: bool = False, pause_s: float = 0.0, roster: str = "", **plan: int) -> Pace:
    """Of a study whose plan says so and whose cohorts are drawn, if it has a roster."""
    draws = SimpleNamespace(ticket=lambda round_, epochs: None) if roster else None
    membership: Any = SimpleNamespace(roster=tuple(roster), signed=SimpleNamespace(draws=draws))
    drawn: Any = SimpleNamespace(**plan, epoch_rounds=1)
    return Pace(drawn, membership, DeadlineTable(adaptive=adaptive), pause_s)


def test_deadlines_follow_the_slowest_of_the_last_rounds() -> None:
    one = pace(adaptive=True)
    configured = one.deadlines_s(1)
    for round_ in range(1, LAST_ROUNDS):
        one.note(completed(round_, 4.0))
    assert one.deadlines_s(1) == configured  # too few rounds to tell
    one.note(completed(LAST_ROUNDS, 5.0))
    assert one.deadlines_s(1)[MASKED_INPUT] == SLOWER * 5.0
    assert one.deadlines_s(1)[UNMASKING] == min(SLOWER * 5.0, configured[UNMASKING])
    assert one.deadlines_s(2) == configured  # the round was too fast for some
    for round_ in range(LAST_ROUNDS):
        one.note(completed(LAST_ROUNDS + round_, 0.01))
    assert set(one.deadlines_s(1).values()) == {server.pace.LEAST_S}


def test_deadlines_stay_unless_they_are_to_adapt() -> None:
    one = pace()
    for round_ in range(2 * LAST_ROUNDS):
        one.note(completed(round_, 0.01))
    assert one.deadlines_s(1) == one.configured_s


def test_a_pause_is_for_everybody_and_a_short_one_for_nobody() -> None:
    assert pace().rest_s(0, 2, 100.0) == EARLY * 100.0
    assert pace().rest_s(0, 2, 10.0) == 0.0
    later = pace()
    later._rounds.append(1.0)
    assert later.rest_s(0, 2, 1e6) == REST_MOST_S


def test_who_is_drawn_later_rests_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds of two participants each, of six."""
    monkeypatch.setattr(server.pace, "winners", lambda _, round_, *more: frozenset({2 * round_ - 2, 2 * round_ - 1}))
    one = pace(roster="abcdef", clients=2, rounds=3)
    assert one.rest_s(4, 2) == 0.0  # before the cohorts are known
    one.look_ahead(1)
    assert one.rest_s(2, 2) == 0.0  # in the next round, which may begin at any moment
    assert one.rest_s(4, 2) == one.rest_s(0, 2) == 0.0  # nothing is known of the time that a round takes
    for seconds in (50.0, 40.0):
        one.note(RoundCompleted(round=1, attempt=1, seconds=seconds))
    assert one.rest_s(4, 2) == EARLY * 40.0
    assert one.rest_s(0, 2) == EARLY * 2 * 40.0  # in none any more: until the end
    assert one.rest_s(4, 2, 50.0) == EARLY * (50.0 + 40.0)
    assert one.rest_s(4, 9) == 0.0
    cast(Any, one._membership).roster = tuple("abcdefg")  # a later version draws other cohorts
    assert one.rest_s(4, 2) == 0.0


def test_before_the_first_round_is_over_rests_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of the time that a round takes: ten thousand that all stay would take gigabytes."""
    monkeypatch.setattr(server.pace, "winners", lambda _, round_, *more: frozenset({round_}))
    one = pace(roster="ab", clients=1, rounds=200, pause_s=5.0)
    one.look_ahead(1)
    assert one.rest_s(1, 1) == one.rest_s(5, 1) == 0.0
    assert one.rest_s(10, 1) == pytest.approx(EARLY * 9 * (UNKNOWN_ROUND_S + 5.0))
    assert one.rest_s(64, 1) == one.rest_s(100, 1) == UNKNOWN_REST_S
    one.note(RoundCompleted(round=1, attempt=1, seconds=20.0))
    assert one.rest_s(40, 2) == EARLY * 38 * (20.0 + 5.0)


async def test_the_loop_goes_on_while_thousands_are_told() -> None:
    """Each message handed over takes a moment, and nothing else runs in between."""
    between: list[int] = []
    told: list[int] = []
    sessions: Any = [
        SimpleNamespace(ready=True, participant=who, send=lambda message, who=who: told.append(who))
        for who in range(10 * server.pace.AT_ONCE)
    ]

    async def others() -> None:
        while True:
            between.append(len(told))
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await pace().let_rest(sessions, 2, 100.0)
    beside.cancel()
    assert len(told) == len(sessions)
    assert max(later - earlier for earlier, later in pairwise(between)) <= server.pace.AT_ONCE
