"""Events folded into a view, and told as lines."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.attempt.steps import REFUSALS
from server.events import (
    AttemptAborted,
    AttemptEvent,
    AttemptResumed,
    AttemptStarted,
    Event,
    ParticipantConnected,
    ParticipantDropped,
    ParticipantLost,
    Pausing,
    PhaseEnded,
    PhaseStarted,
    RosterAdopted,
    RoundCompleted,
    StudyFinished,
    StudyStarted,
    WaitingForAuthority,
    WaitingForEnrolment,
    WaitingForParticipants,
)
from server.study_view import StudyView, waiting
from sordino.reporting.study_text import REFUSED_BY_POLICY, PlainLines, closing_lines, dropout_groups, why_stopped
from tests.support.event_stream import make_events
from wire import coordinator_pb2 as pb
from wire.guarantee import guarantee

Events = list[Event]


def test_a_whole_study(events: Events) -> None:
    view = StudyView().apply_all(events)
    assert [done.round for done in view.rounds] == list(range(1, 16))
    assert (view.started.rounds, view.participants, view.started.delta) == (15, 100, 1e-5)
    assert view.accuracy == view.rounds[-1].accuracy
    assert view.epsilon_coordinator == view.rounds[-1].epsilon_coordinator
    assert len(view.dropouts) == 21
    assert [(end.round, end.phase) for end in view.aborted] == [(11, "ShareKeys")]
    assert view.rounds[10].attempt == 2
    assert waiting(view) == "Finished: 15 of 15 rounds"


def test_it_says_what_it_waits_for(events: Events) -> None:
    assert waiting(StudyView()) == "Waiting for the coordinator to start"
    assert waiting(StudyView().apply_all(events[:41])) == "Waiting for 60 of 100 participants to connect"
    view = StudyView().apply_all(make_events(until=5))
    assert waiting(view) == "Round 5, MaskedInputCollection: 41 of 80 answered, 70 needed, 60 s left, then it aborts"
    assert waiting(view, view.last_at + 10).endswith("50 s left, then it aborts")
    assert waiting(view, view.last_at + 1000).endswith(" 0 s left, then it aborts")


def test_a_statement_that_has_ended(events: Events) -> None:
    view = StudyView().apply_all(events[:80])
    view.apply(WaitingForAuthority(round=1, attempt=1, ended=1.0, at=view.last_at))
    told = waiting(view)
    assert "`sordino authority run`" in told
    assert "`sordino authority sign DIR --out F`, then copy F/* here" in told


def test_a_pause_between_rounds(events: Events) -> None:
    end = next(n for n, event in enumerate(events, 1) if isinstance(event, RoundCompleted) and event.round == 3)
    view = StudyView().apply_all(events[:end])
    event = Pausing(at=view.last_at, round=3, left_s=90.0)
    view.apply(event)
    assert waiting(view) == "Round 3 done, the next one in 90 s"
    assert waiting(view, view.last_at + 60) == "Round 3 done, the next one in 30 s"
    assert waiting(view, view.last_at + 91) == "Round 3 done, preparing the next"
    assert PlainLines(view).of(event) == ["the next round in 90 s"]


def connecting(received: int, needed: int = 7, expected: int = 9, **more: Any) -> WaitingForParticipants:
    return WaitingForParticipants(round=1, attempt=1, received=received, needed=needed, expected=expected, **more)


def test_gathering_before_a_round(events: Events) -> None:
    view = StudyView().apply_all(events[:80])
    view.apply(connecting(79, needed=75, expected=100, left_s=12.0, at=view.last_at))
    assert waiting(view) == "Round 1: 79 of 100 connected, 75 needed, 12 s left, then it begins without the others"


def test_plain_lines_report_a_wait_while_too_few_are_connected() -> None:
    lines, line = PlainLines(StudyView()), "waiting for participants: 5 connected, 7 needed"
    assert lines.of(connecting(5)) == [line]
    assert lines.of(connecting(5, left_s=59.9)) == [f"{line}; this attempt waits for 60 s"]
    assert lines.of(connecting(7)) == []


def test_states_of_participants_and_who_is_absent(events: Events) -> None:
    view = StudyView().apply_all(make_events(until=5))
    assert (len(view.connected), len(view.lost)) == (80, 20)
    lost = view.members("host-03") + view.members("host-07")
    assert {view.state_of(number) for number in lost} == {"lost"}
    assert view.state_of(view.members("host-01")[0]) == "connected"
    groups = dropout_groups(view)
    assert [(number, phase, len(members)) for number, phase, _, members in groups] == [(5, "MaskedInputCollection", 20)]
    absent = StudyView().apply_all(events).absent
    assert [absent[number] for number in (5, 6, 7, 8)] == [frozenset(), set(lost), set(lost), frozenset()]


def test_after_a_restart_no_participant_is_connected(events: Events) -> None:
    view = StudyView().apply_all([*events, replace(events[0], seq=9999)])
    assert (view.connected, len(view.rounds), view.finished) == (set(), 15, None)


def test_a_view_that_begins_in_the_middle_counts_rounds_by_their_number(events: Events) -> None:
    begin = next(index for index, event in enumerate(events) if isinstance(event, AttemptEvent) and event.round == 9)
    view = StudyView().apply_all([events[0], *events[begin:-1]])
    assert (len(view.rounds), view.completed) == (7, 15)
    view.apply(StudyFinished(reason="stopped", rounds_completed=15))
    assert waiting(view) == "Stopped after 15 of 15 rounds; the same command continues there"


def test_a_finished_study_served_again_says_so(events: Events) -> None:
    view = StudyView().apply_all([*events, events[0], events[-1]])
    assert view.lost == StudyView().apply_all(events).lost  # those connected at its end weren't lost
    assert waiting(view) == "Already finished: 15 of 15 rounds"
    assert waiting(StudyView().apply_all([events[0], events[-1]])) == "Already finished: 15 of 15 rounds"
    view = StudyView().apply_all(events)
    view.apply(ParticipantLost(participant=3, host="host-01", reason="closed"))
    assert view.lost == set()  # after the end there is nothing to lose


def test_after_an_abort_a_connected_participant_is_not_dropped(events: Events) -> None:
    view = StudyView().apply_all(events[:101])
    view.apply(AttemptStarted(round=1, attempt=1, cohort=100))
    view.apply(ParticipantDropped(round=1, attempt=1, phase="ShareKeys", participant=3))
    assert view.state_of(3) == "dropped"
    view.apply(AttemptAborted(round=1, attempt=1, phase="ShareKeys", reason="too few"))
    assert view.state_of(3) == "connected"


def told_of(events: Events) -> tuple[StudyView, list[str]]:
    view = StudyView()
    plain, lines = PlainLines(view), list[str]()
    for event in events:
        view.apply(event)
        lines += plain.of(event)
    return view, lines


def test_lines_for_a_log(events: Events) -> None:
    _, lines = told_of(events)
    assert len(lines) < 60
    lost = [line for line in lines if "dropped" in line]
    assert lost[0] == ("round 5, MaskedInputCollection: dropped 20 participants (host-03, host-07): connection closed")
    assert any("aborted: too few participants answered (61 answered, 75 needed)" in line for line in lines)
    assert lines[-1] == "finished: 15 of 15 rounds"


def test_an_epsilon_says_what_it_holds_for(events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A and adjacency follow from the plan's mechanism, in the first lines and in the last ones."""
    view, (first, second) = told_of(events[:1])
    assert "epsilon at most 8 at delta 1e-05" in first
    assert second == "ddgauss: zero-out, if at most 5 of 100 collude"
    monkeypatch.chdir(tmp_path)  # a path's own length is not what is measured
    lines = closing_lines(view.apply_all(events[1:]), Path("study"), Path("state.sqlite"))
    number = next(index for index, line in enumerate(lines) if line.startswith("epsilon_coordinator "))
    assert lines[number].endswith(", at delta 1e-05,")
    assert lines[number + 1] == " " * 20 + "zero-out, if at most 5 of 100 collude"
    assert max(map(len, lines)) <= 100


def test_the_last_model_is_found_by_its_round(events: Events, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for number, age in ((9, 3.0), (15, 1.0), (14, 2.0)):  # the newest round has the oldest file, as after a copy
        (folder / f"round-{number:06d}.safetensors").touch()
        os.utime(folder / f"round-{number:06d}.safetensors", (age, age))
    (folder / "round-000016.safetensors.tmp").touch()
    lines = closing_lines(StudyView().apply_all(events), Path("study"), tmp_path / "state.sqlite")
    newest = folder / "round-000015.safetensors"
    assert [line for line in lines if line.startswith("model ")] == [f"model               {newest}"]


REFUSED = REFUSALS[pb.REFUSAL_CODE_POLICY]


def refused_attempts(attempts: int = 3) -> Events:
    """One participant refuses every attempt of a round, as the coordinator records it."""
    said: Events = [
        StudyStarted(study="s", task="t", participants=2, rounds=4, epsilon_target=8.0),
        *(ParticipantConnected(participant=one, host=f"host-0{one}") for one in (4, 5)),
    ]
    for attempt in range(1, attempts + 1):
        number: dict[str, Any] = {"round": 3, "attempt": attempt}
        about = number | {"phase": "AdvertiseKeys"}
        said += [
            AttemptStarted(**number, cohort=2),
            PhaseStarted(**about, expected=2, needed=2, deadline_s=9.0),
            ParticipantDropped(**about, participant=4, host="host-04", reason=REFUSED),
            PhaseEnded(**about, received=0, seconds=0.1),
            AttemptAborted(**about, reason="1 participants, 2 needed", received=1, needed=2),
        ]
    return [replace(event, seq=number, at=float(number)) for number, event in enumerate(said, 1)]


def test_a_refusal_is_reported_per_attempt_and_counted_per_round() -> None:
    view, lines = told_of(refused_attempts())
    assert lines.count(f"round 3, AdvertiseKeys: dropped participant 4 (host-04): {REFUSED}") == 3
    assert lines[-1] == "round 3, AdvertiseKeys: attempt 3 aborted: 1 participants, 2 needed"  # counts said once
    assert len(view.dropouts) == 3
    assert view.left_by_round() == [(3, 4)]
    view.apply(RoundCompleted(round=3, attempt=4, at=99.0))
    [line] = [one for one in closing_lines(view, Path("s"), Path("s.sqlite")) if one.startswith("dropouts ")]
    assert line == "dropouts            1 participant in 1 round, 3 attempts aborted"


def test_participants_that_refused_are_named_when_the_study_stops() -> None:
    assert REFUSED_BY_POLICY == REFUSED
    view = StudyView(history=False)
    assert why_stopped(view).startswith("the study stopped: a round failed as often as it may. Start what is missing")
    view.apply_all(refused_attempts())
    assert why_stopped(view) == (
        "the study stopped: round 3, AdvertiseKeys: 1 participants, 2 needed. Participant 4 (host-04) refused by its "
        "policy or budget in all 3 attempts. The reason is in its own log. If it is a budget, serving again won't "
        "help; otherwise let more join, or serve again later."
    )
    about: dict[str, Any] = {"round": 3, "attempt": 3, "phase": "AdvertiseKeys"}
    view.apply(ParticipantDropped(**about, participant=9, host="host-09", reason=REFUSED, at=40.0))
    some = "Participants 4 (host-04), 9 (host-09) refused by their policy or budget in some of 3 attempts"
    assert some in why_stopped(view)
    # What was refused in an earlier round isn't why a later one failed.
    view.apply(AttemptAborted(round=4, attempt=1, phase="ShareKeys", reason="too few", at=50.0))
    assert why_stopped(view).startswith("the study stopped: round 4, ShareKeys: too few. Start what is missing")
    # Nor is what happened before the coordinator was started again.
    view.apply(StudyStarted(at=60.0))
    assert "a round failed as often as it may" in why_stopped(view)


def test_no_colluders_are_named_where_they_make_no_difference() -> None:
    plan = {"colluders": 2, "clients": 12}
    assert guarantee(plan | {"mechanism": "gaussian"}) == "zero-out, if the coordinator is trusted"
    assert guarantee(plan | {"mechanism": "local-gaussian"}) == "replace-one, even if all others collude"
    assert guarantee(plan | {"mechanism": "skellam"}) == "zero-out, if at most 2 of 12 collude"
    sampled = plan | {"mechanism": "skellam", "sampling": "lottery"}
    assert guarantee(sampled) == "zero-out, if at most 2 of the 12 in a round collude"
    assert guarantee(plan | {"mechanism": "of a newer version"}) == guarantee({}) == ""


def test_a_roster_that_grows_and_shrinks() -> None:
    """A revoked participant is neither connected nor away; one that joined later has a new number."""
    view = StudyView().apply_all([StudyStarted(at=1.0, participants=3, members=(0, 1, 4), rounds=9)])
    too_few = WaitingForEnrolment(at=2.0, round=1, attempt=1, received=3, needed=4, first=True)
    view.apply(too_few)
    assert waiting(view) == "Round 1: 3 on the roster, 4 needed; waiting for enrolment"
    assert PlainLines(view).of(too_few) == [waiting(view)]
    for number in (0, 1, 4):
        view.apply(ParticipantConnected(at=3.0, participant=number, host=f"h-{number}"))
    adopted = RosterAdopted(at=4.0, version=2, participants=4, joined=(5, 6), left=(1,))
    view.apply(ParticipantLost(at=4.0, participant=1, host="h-1", reason="revoked"))
    view.apply(adopted)
    assert PlainLines(view).of(adopted) == ["version 2 of the roster: 4 participants, 2 joined, 1 left"]
    assert view.roster == {0, 4, 5, 6}
    assert view.connected | view.lost == {0, 4}
    view.apply(AttemptStarted(at=5.0, round=1, attempt=1, cohort=2))
    assert view.absent[1] == {5, 6}
    view.apply(AttemptStarted(at=6.0, round=2, attempt=1, cohort=2, absent=(6,)))  # 5 wasn't drawn
    assert view.absent[2] == {6}
    resumed = AttemptResumed(at=6.5, round=2, attempt=1)
    assert PlainLines(view).of(resumed) == ["round 2: attempt 1 goes on where it was cut off"]
    # What was revoked while no coordinator ran is neither away nor on a host.
    view.apply(StudyStarted(at=7.0, participants=2, members=(4, 6), rounds=9))
    assert (view.lost, view.hosts) == ({4}, {4: "h-4"})
    for failed, told in ((True, "by a fault, which"), (False, "; the same command")):
        view.apply(StudyFinished(at=8.0, reason="stopped", failed=failed))
        assert waiting(view).startswith(f"Stopped after 0 of 9 rounds {told}".replace(" ;", ";"))
