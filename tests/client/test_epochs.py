"""Cohorts dealt by epochs: nobody is in two rounds of one, nobody is charged beyond its budget, and those that aren't
needed for a while leave and are back for their round.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import client.participant_host
import server.cohort_wait
import server.pace
from mechanisms.accounting import RoundCharge
from secagg.lottery import Draws
from secagg.roster import RosterEntry
from server.events import RESTING, RoundCompleted
from tests.support.card_of_a_study import authority_of
from tests.support.host_in_process import Play, Story
from tests.support.signed_rosters import published
from tests.support.study_in_process import PARTICIPANTS, PATIENCE_S, Coordinator, identities, make_folder, roster_of
from wire.records.ledger_rows import CHARGE
from wire.study import write_draws

COHORT, ROUNDS = 7, 4
EVERYBODY = frozenset(range(2 * COHORT))
EPOCHS: dict[str, Any] = {
    "participants": len(EVERYBODY),
    "population": len(EVERYBODY),
    "cohort": COHORT,
    "sampling": "epochs",
    "rounds": ROUNDS,
    "adversarial": 0.0,
    "epsilon": 60.0,  # far above it no epsilon can be stated
    "max_dropout": 0.0,
}


@pytest.fixture(scope="module")
def dealt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen on the roster, seven a round: two epochs of two rounds."""
    return make_folder(tmp_path_factory.mktemp("studies") / "dealt", **EPOCHS)


def cohorts(story: Story) -> list[frozenset[int]]:
    return [frozenset(one["survivors"]) for one in story.of("round_completed")]


def charges(story: Story) -> Counter[str | None]:
    return Counter(row.identity for row in story.rows() if row.kind == CHARGE)


def test_each_participant_is_in_one_round_of_each_epoch(dealt: Path, played: Play) -> None:
    story = played(folder=dealt)
    one, two, three, four = cohorts(story)
    assert one | two == three | four == EVERYBODY
    assert set(charges(story).values()) == {ROUNDS // 2}
    last = story.of("round_completed")[-1]
    assert last["epsilon_coordinator"] == last["epsilon_released"] <= 1000.0


def after_the_first_round(act: Callable[[Coordinator], None]) -> Callable[[Coordinator], None]:
    def prepare(where: Coordinator) -> None:
        where.tell_first(lambda event: act(where) if isinstance(event, RoundCompleted) and event.round == 1 else None)

    return prepare


def changed(folder: Path, change: Callable[[list[RosterEntry]], None]) -> Callable[[Coordinator], None]:
    """The authority publishes a second version."""

    def act(where: Coordinator) -> None:
        roster, key = roster_of(folder), authority_of(folder)
        entries = list(roster.entries)
        change(entries)
        draws = Draws.draw(roster.study, 2, ROUNDS // 2, os.urandom)
        later = replace(roster, version=2, entries=tuple(entries), lottery=draws.lottery, previous=roster.digest())
        package = published(later, key, [roster.head], lottery=write_draws(draws))
        files = where.study.roster_files
        files.check_beside(files.check(package.roster_file), package.newest_file, package.history_file)
        where.study.offer_roster(package.roster_file, package.lottery_file)

    return act


def adopted_before(story: Story) -> int:
    """The round before which a version came to use."""
    at = next(at for at, event in enumerate(story.events) if event["kind"] == "roster_adopted")
    return 1 + sum(event["kind"] == "round_completed" for event in story.events[:at])


def test_who_joins_waits_for_the_next_epoch(dealt: Path, played: Play) -> None:
    """In a new draw some would be in two rounds of this one."""
    newcomer = RosterEntry(b"\xff" * 32, "late")
    story = played(folder=dealt, prepare=after_the_first_round(changed(dealt, lambda some: some.append(newcomer))))
    assert adopted_before(story) == 3
    one, two, *_ = cohorts(story)
    assert one | two == EVERYBODY


def test_a_revocation_does_not_wait(tmp_path: Path, played: Play) -> None:
    """The roster is dealt anew. Some are in both rounds of the epoch, and their ledgers count that."""
    folder = make_folder(tmp_path / "larger", **EPOCHS | {"participants": len(EVERYBODY) + 1})
    story = played(folder=folder, prepare=after_the_first_round(changed(folder, lambda some: some.pop())))
    assert adopted_before(story) == 2
    assert len(cohorts(story)) >= 2  # later cohorts may hold too many whose budget is spent
    assert max(charges(story).values()) <= ROUNDS // 2


def test_a_cohort_without_budget_ends_the_study_and_says_so(dealt: Path, played: Play) -> None:
    """Else the attempts fail one after the other for a reason that no participant can mend."""

    def spend(where: Coordinator) -> None:
        account = where.study.charges.account
        for attempt in range(100, 104):
            account.charge(RoundCharge(1, attempt, frozenset(range(7)), account.plan.identity))
            account.charge(RoundCharge(2, attempt, frozenset(range(7, 14)), account.plan.identity))

    story = played(folder=dealt, prepare=spend, attempts=3)
    assert cohorts(story) == []
    [aborted] = story.of("attempt_aborted")
    assert aborted["reason"] == "0 of the cohort have budget left, 5 needed"
    assert story.of("study_finished")[0]["reason"] == "budget reached"


def test_who_has_spent_its_budget_is_not_invited(dealt: Path, played: Play) -> None:
    """The round goes on without it, and the study does not end for it."""
    spent = 3

    def spend(where: Coordinator) -> None:
        account = where.study.charges.account
        for attempt in range(100, 104):
            cheapest = frozenset({spent, *range(20, 20 + account.plan.min_survivors - 1)})
            account.charge(RoundCharge(1, attempt, cheapest, account.plan.identity))
        assert spent in where.study.charges.spent()

    story = played(folder=dealt, prepare=spend)
    assert [len(one) for one in cohorts(story)].count(COHORT - 1) == 2
    assert frozenset.union(*cohorts(story)) == EVERYBODY - {spent}
    assert roster_of(dealt).identities[spent].hex() not in charges(story)
    assert len(identities(dealt)) == len(EVERYBODY)


# ---------------------------------------------------------------- participants that aren't needed now


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.pace, "REST_LEAST_S", 0.01)
    monkeypatch.setattr(server.pace, "UNKNOWN_ROUND_S", 0.0)  # these rounds are faster than any outside tests
    # A busy machine may stop this process for longer than a participant has to connect.
    monkeypatch.setattr(server.pace, "BACK_S", PATIENCE_S)
    monkeypatch.setattr(server.cohort_wait, "ARRIVAL_S", PATIENCE_S)


def rests(events: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """(round under way or before, participant) of each that left to rest."""
    found, round_ = [], 0
    for event in events:
        round_ = event["round"] if event["kind"] == "attempt_started" else round_
        if event["kind"] == "participant_lost" and event["reason"] == RESTING:
            found.append((round_, event["participant"]))
    return found


@pytest.mark.usefixtures("quick")
def test_who_is_in_a_later_round_leaves_and_is_back_for_it(tmp_path: Path, played: Play) -> None:
    rounds = 6
    epochs = EPOCHS | {"participants": 21, "population": 21, "rounds": rounds}
    story = played(folder=make_folder(tmp_path / "epochs", **epochs))
    completed = story.of("round_completed")
    assert [one["round"] for one in completed] == list(range(1, rounds + 1))
    cohorts = [frozenset(one["survivors"]) for one in completed]
    late = story.of("participant_dropped") + story.of("participant_lost")
    assert all(len(one) == len(EVERYBODY) // 2 for one in cohorts), late  # nobody came too late
    resting = rests(story.events)
    assert {who for round_, who in resting if round_ == 2} == cohorts[0]  # those of the third round stay
    assert not [one for one in resting if one[0] and one[1] in cohorts[one[0] - 1]]
    assert story.ended == 0


@pytest.mark.usefixtures("quick")
def test_a_pause_is_not_spent_connected(study_folder: Path, played: Play) -> None:
    story = played(folder=study_folder, tables={"study": {"pause_s": 1.0}})
    assert len(story.of("round_completed")) == 2
    assert {who for _, who in rests(story.events)} == set(range(PARTICIPANTS))
    assert story.of("participant_dropped") == []


def test_a_coordinator_cannot_send_a_participant_away_for_ever() -> None:
    assert client.participant_host.REST_MOST_S <= 3600.0
    waits = {client.participant_host._spread(100.0) for _ in range(50)}
    assert len(waits) > 10
    assert 90.0 <= min(waits) <= max(waits) <= 110.0


@pytest.mark.parametrize("seconds", [float("nan"), -1.0, 0.0, float("-inf")])
def test_a_coordinator_cannot_keep_a_participant_busy_by_rests_that_are_none(seconds: float) -> None:
    assert client.participant_host._within(seconds) == client.participant_host.REST_LEAST_S
    assert client.participant_host._within(float("inf")) == client.participant_host.REST_MOST_S
