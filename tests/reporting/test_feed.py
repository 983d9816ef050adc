"""The feed of a study: its values are the events', it names nobody, and it stays small."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace

import pytest

from server.events import (
    RESTING,
    Event,
    ParticipantConnected,
    ParticipantDropped,
    ParticipantExcluded,
    ParticipantLost,
    PhaseEnded,
    RoundCompleted,
    StudyStarted,
    SurvivorsFrozen,
)
from server.reasons import WORDS, class_of_dropout
from server.study_view import StudyView, waiting
from sordino.reporting.feed import MOST_ROUNDS, RoundPoint, StudyFeed, status_lines
from sordino.reporting.study_text import PlainLines
from tests.support.commands import says
from tests.support.event_stream import WITHOUT_NOISE, fed, make_events

Events = list[Event]
HOSTILE = "<img src=x onerror=alert(1)> \x1b[2J \u202e"


def test_its_values_are_those_of_the_events(events: Events) -> None:
    feed, view = fed(events), StudyView().apply_all(events)
    feed.compare(WITHOUT_NOISE)
    shown = feed.snapshot(view.last_at)
    curves = shown["curves"]
    for name, field in {"u3": "u3", "left": "dropouts", "upload": "upload_bytes", "download": "download_bytes"}.items():
        assert curves[name] == [getattr(done, field) for done in view.rounds]
    for name in ("round", "seconds", "accuracy", "loss", "epsilon_coordinator", "epsilon_released"):
        assert curves[name] == [getattr(done, name) for done in view.rounds]
    assert curves["without_noise"] == WITHOUT_NOISE
    privacy = shown["privacy"]
    assert privacy["epsilon_coordinator"] == view.epsilon_coordinator
    assert (privacy["budget_coordinator"], privacy["delta"]) == (view.started.epsilon_target, view.started.delta)
    left = Counter((one.phase, WORDS[class_of_dropout(one.reason)]) for one in view.dropouts)
    assert {(one["phase"], one["reason"]): one["count"] for one in shown["dropouts"]["by_phase_and_reason"]} == left
    assert (shown["dropouts"]["total"], shown["dropouts"]["aborted"]) == (21, 1)
    assert shown["now"]["waiting"] == waiting(view)
    assert [one["outcome"] for one in shown["attempts"]].count("aborted in ShareKeys") == 1
    assert shown["attempts"][-1]["phase_seconds"] == view.rounds[-1].phase_seconds
    assert shown["participants"]["connected"] == len(view.connected) == 100
    lines = status_lines(shown, True)
    says(
        "\n".join(lines),
        "accuracy            0.714, 0.744 without noise",
        "epsilon_released    6.79 of 8, at delta 1e-05",
    )


def test_it_says_what_a_round_waits_for_and_when_the_rounds_end() -> None:
    events = make_events(until=5)
    shown = fed(events).snapshot(events[-1].at + 10)
    now = shown["now"]
    assert now["waiting"] == "Round 5, MaskedInputCollection: 41 of 80 answered, 70 needed, 50 s left, then it aborts"
    assert (now["received"], now["needed"], now["expected"], now["left_s"]) == (41, 70, 80, 50)
    assert [phase["now"] for phase in now["phases"]] == [False, False, True, False, False]
    assert [phase["seconds"] is None for phase in now["phases"]] == [False, False, True, True, True]
    assert shown["participants"] == {
        **{
            "roster": 100,
            "connected": 80,
            "attempt": 80,
            "dropped": 0,
            "waited_for": 39,
            "away": 20,
            "unseen": 0,
            "resting": 0,
        },
        **{"excluded": 0, "set_aside": 0},
    }
    assert shown["privacy"]["projected"].startswith("11 rounds left, about 22 s at 2.0 s a round; epsilon_coordinator ")
    assert status_lines(shown, False)[1].startswith(
        "now                 The coordinator ended at 2025-10-09 08:53 UTC, in round 5"
    )


def test_it_names_nobody_unless_told_so(events: Events) -> None:
    last = events[-1].at
    one = {"at": last, "participant": 4711, "host": "ward-7"}
    attempt = {"round": 15, "attempt": 1, "phase": "ShareKeys"}
    more = [
        ParticipantConnected(**one),
        ParticipantExcluded(**one, reason="the commitment of 4711 is wrong"),
        ParticipantDropped(**one, **attempt, reason=f"refused: {HOSTILE}"),
        PhaseEnded(at=last, **attempt, received=1, seconds=1.0),
        ParticipantLost(**one, reason="connection reset by 10.1.2.3"),
    ]
    found = [json.dumps(fed(events[:-1] + more, names=names).snapshot(last)) for names in (False, True)]
    for word in ("host-0", "ward-7", "4711", "10.1.2.3", "onerror", "participant 4"):
        assert word not in found[0]
    says(found[1], "host-03", "ward-7", "excluded for good: participant 4711 (ward-7): the commitment of 4711 is wrong")
    assert "\\u001b" not in found[1]
    assert "\\u202e" not in found[1]
    shown = [fed(events, names=names).snapshot(last)["participants"].keys() for names in (False, True)]
    assert shown[1] - shown[0] == {"hosts"}


def test_every_number_has_a_word_in_json(events: Events) -> None:
    done = next(event for event in events if isinstance(event, RoundCompleted))
    bad = replace(done, accuracy=math.nan, loss=math.inf, wrapped_share=None)
    shown = fed([events[0], bad]).snapshot(bad.at)
    json.dumps(shown, allow_nan=False)
    assert shown["curves"]["accuracy"] == shown["curves"]["loss"] == [None]
    json.dumps(StudyFeed().snapshot(0.0), allow_nan=False)
    assert status_lines(StudyFeed().snapshot(0.0), None) == ["Waiting for the coordinator to start"]


def test_it_stays_small_however_long_the_study_runs(events: Events) -> None:
    done = next(event for event in events if isinstance(event, RoundCompleted))
    feed = fed(events[:1])
    for number in range(1, 3001):
        feed.apply(replace(done, round=number, at=done.at + number))
    shown = feed.snapshot(done.at + 3000)
    rounds = shown["curves"]["round"]
    assert MOST_ROUNDS / 2 < len(rounds) <= MOST_ROUNDS
    assert rounds == sorted(set(rounds))
    assert (rounds[0], rounds[-1]) == (1, 3000)
    assert rounds[-64:] == list(range(2937, 3001))
    assert len(json.dumps(shown)) < 64_000
    assert set(shown["curves"]) == set(RoundPoint._fields)
    assert {len(column) for column in shown["curves"].values()} == {len(rounds)}


@pytest.mark.parametrize("share", [0.0, 0.3, 0.51, 0.76, 0.91, 0.96])
def test_the_budget_is_told_once_at_each_share(share: float) -> None:
    started = StudyStarted(study="s", participants=3, rounds=9, epsilon_target=10.0)
    view = StudyView().apply_all([started])
    lines = PlainLines(view)
    sets = {"u1": 3, "u2": 3, "u3": 3, "h": 2, "epsilon_released": 1.0}
    frozen = SurvivorsFrozen(round=1, attempt=1, **sets, epsilon_coordinator=10 * share)
    view.apply(frozen)
    told = [f"budget: {100 * share:.0f} % is spent, epsilon_coordinator {10 * share:.2f} of 10"] if share > 0.5 else []
    assert lines.of(frozen, serious=True) == told
    assert lines.of(frozen) == []


def test_lost_sessions_are_one_line_and_serious() -> None:
    view = StudyView()
    lines = PlainLines(view)
    lost = [ParticipantLost(participant=number, host="host-03", reason="closed") for number in range(3)]
    for event in lost:
        view.apply(event)
        assert lines.of(event, serious=True) == []
    resting = ParticipantLost(participant=9, host="host-04", reason=RESTING)
    assert lines.of(resting, serious=True) == []
    again = ParticipantConnected(participant=1, host="host-03")
    assert lines.of(again, serious=True) == ["connection lost: 3 participants (host-03): closed"]
    assert lines.of(again, serious=True) == []


def test_a_page_elsewhere_cannot_control_the_terminal(events: Events) -> None:
    shown = fed(events).snapshot(0.0)
    shown["study"] |= {"name": HOSTILE, "guarantee": "one\nepsilon_coordinator 0.00"}
    shown["now"] |= {"waiting": HOSTILE}
    lines = status_lines(shown, True)
    assert not [line for line in lines if not line.isprintable()]
    shown["study"] |= {"name": ""}
    assert status_lines(shown, True)[0].isprintable()
