"""Participants that aren't needed for a while leave, and are back for their round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import client.participant_host
import server.cohort_wait
import server.pace
from server.events import RESTING
from tests.client.test_epochs import EPOCHS, EVERYBODY
from tests.support.host_in_process import Play
from tests.support.study_in_process import PARTICIPANTS, PATIENCE_S, make_folder

ROUNDS = 6


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_who_is_in_a_later_round_leaves_and_is_back_for_it(tmp_path: Path, played: Play) -> None:
    epochs = EPOCHS | {"participants": 21, "population": 21, "rounds": ROUNDS}
    story = played(folder=make_folder(tmp_path / "epochs", **epochs))
    completed = story.of("round_completed")
    assert [one["round"] for one in completed] == list(range(1, ROUNDS + 1))
    cohorts = [frozenset(one["survivors"]) for one in completed]
    assert all(len(one) == len(EVERYBODY) // 2 for one in cohorts)  # nobody came too late
    resting = rests(story.events)
    assert {who for round_, who in resting if round_ == 2} == cohorts[0]  # those of the third round stay
    assert not [one for one in resting if one[0] and one[1] in cohorts[one[0] - 1]]
    assert story.ended == 0


def test_a_pause_is_not_spent_connected(study_folder: Path, played: Play) -> None:
    story = played(folder=study_folder, tables={"study": {"pause_s": 1.0}})
    assert len(story.of("round_completed")) == 2
    assert {who for _, who in rests(story.events)} == set(range(PARTICIPANTS))
    assert story.of("participant_dropped") == []


def test_a_coordinator_cannot_send_a_participant_away_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.participant_host.REST_MOST_S <= 3600.0
    waits = {client.participant_host._spread(100.0) for _ in range(50)}
    assert len(waits) > 10
    assert 90.0 <= min(waits) <= max(waits) <= 110.0


@pytest.mark.parametrize("seconds", [float("nan"), -1.0, 0.0, float("-inf")])
def test_a_coordinator_cannot_keep_a_participant_busy_by_rests_that_are_none(seconds: float) -> None:
    assert client.participant_host._within(seconds) == client.participant_host.REST_LEAST_S
    assert client.participant_host._within(float("inf")) == client.participant_host.REST_MOST_S
