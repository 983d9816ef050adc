"""The codec of events: what coordinators wrote before events had types is read, and the names in the JSON stay."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from server.events import KINDS, Event, RoundCompleted, StudyStarted, from_json, to_json
from server.journal import Journal, read_events
from server.study_view import FINISHED, StudyView

# One event of each kind, as coordinators wrote them when events were dictionaries; the plan is left out.
OLD = [
    json.loads(line)
    for line in """
{"kind": "participant_connected", "participant": 3, "host": "host-01"}
{"kind": "study_started", "address": "localhost:40013", "task": "softmax-regression", "study": "seven",\
 "participants": 7, "roster_version": 1, "members": [0, 1, 2, 3, 4, 5, 6], "hosts": 1, "rounds": 2, "delta": 0.1,\
 "epsilon_target": 1000.0, "plan": {"mechanism": "ddgauss"}, "threshold": 5, "partition": {"name": "dirichlet",\
 "alpha": 1.0, "shards": 2, "seed": 1}, "dataset": "fashion-mnist-subset", "planned_upload_bytes": 3022,\
 "one_machine": true}
{"kind": "waiting_for_enrolment", "round": 1, "attempt": 1, "received": 3, "needed": 4, "roster_version": 1,\
 "first": true}
{"kind": "waiting_for_participants", "round": 1, "attempt": 1, "received": 0, "needed": 5, "expected": 7,\
 "left_s": 30.0}
{"kind": "attempt_started", "round": 1, "attempt": 1, "cohort": 7, "absent": []}
{"kind": "phase_started", "round": 1, "attempt": 1, "phase": "AdvertiseKeys", "expected": 7, "needed": 5,\
 "deadline_s": 20.0}
{"kind": "phase_progress", "round": 1, "attempt": 1, "phase": "AdvertiseKeys", "received": 0, "expected": 7,\
 "needed": 5, "left_s": 20.0}
{"kind": "participant_lost", "participant": 2, "host": "host-01", "reason": "connection closed"}
{"kind": "participant_resumed", "round": 1, "attempt": 1, "phase": "AdvertiseKeys", "participant": 6}
{"kind": "participant_dropped", "round": 1, "attempt": 1, "phase": "Unmasking", "participant": 0, "host": "host-01",\
 "reason": "refused"}
{"kind": "phase_ended", "round": 1, "attempt": 1, "phase": "AdvertiseKeys", "received": 7, "seconds": 0.004}
{"kind": "attempt_aborted", "round": 1, "attempt": 1, "phase": "Unmasking", "reason": "4 participants, 5 needed",\
 "received": 4, "needed": 5, "loop_lag_ms": {"p50": 1.26, "p99": 2.69, "max": 2.69}}
{"kind": "participant_set_aside", "participant": 0, "host": "host-01", "reason": "either it sealed rubbish"}
{"kind": "participant_excluded", "participant": 1, "host": "host-01", "reason": "6 others say so"}
{"kind": "survivors_frozen", "round": 1, "attempt": 2, "u1": 7, "u2": 7, "u3": 7, "h": 5,\
 "epsilon_coordinator": 31.1, "epsilon_released": 31.1, "ledger_rows": 1, "ledger_head": "43cebecf"}
{"kind": "round_completed", "round": 1, "attempt": 2, "u1": 5, "u2": 5, "u3": 5, "u4": 5, "u5": 4, "dropouts": 0,\
 "key_to_sum_s": 0.029, "phase_seconds": {"AdvertiseKeys": 0.0025, "ShareKeys": 0.0032}, "upload_bytes": 2546,\
 "download_bytes": 2493, "vector_bytes": 1024, "accuracy": 0.0735, "loss": 2.3, "released": {},\
 "survivors": [2, 3, 4, 5, 6], "clips": [1.0], "below_clip": [], "sum_sha256": "a93ec262", "seconds": 0.033,\
 "epsilon_coordinator": 67.1, "epsilon_released": 67.1, "coordinator_rss_mb": 128.5, "next_clips": [1.0],\
 "wrapped_share": 7.4e-19, "loop_lag_ms": {"p50": 0.5, "p99": 1.32, "max": 1.32}, "ledger_rows": 2,\
 "ledger_head": "a1053a50"}
{"kind": "roster_adopted", "version": 2, "participants": 6, "hosts": 1, "joined": [], "left": [2]}
{"kind": "pausing", "round": 1, "left_s": 60.0}
{"kind": "study_finished", "reason": "budget reached", "rounds_completed": 1, "accuracy": 0.0735,\
 "epsilon_coordinator": 67.1, "epsilon_released": 67.1, "delta": 0.1, "wall_s": 0.1}
""".strip().splitlines()
]
LATER = {"study_started": {"http_address": ""}}
"""Fields that were added since."""


@pytest.mark.parametrize("old", OLD, ids=lambda old: str(old["kind"]))
def test_names_in_the_json_are_stable(old: dict[str, Any]) -> None:
    event = from_json(old | {"at": 5.5, "seq": 3})
    assert type(event) is KINDS[old["kind"]]
    assert event is not None
    assert json.loads(json.dumps(to_json(event))) == old | LATER.get(event.kind, {}) | {"at": 5.5, "seq": 3}


def test_every_kind_is_among_the_old_ones() -> None:
    assert sorted(one["kind"] for one in OLD) == sorted(KINDS.keys() - {"waiting_for_authority"})


def test_an_old_journal_is_read_and_served_again(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    Journal(state).close()
    with contextlib.closing(sqlite3.connect(state)) as connection, connection:
        for number, old in enumerate(OLD):
            body = {name: value for name, value in old.items() if name != "kind"}
            row = 100.0 + number, old["kind"], json.dumps(body)
            connection.execute("INSERT INTO events (at, kind, body) VALUES (?, ?, ?)", row)
            if old["kind"] == "round_completed":
                record = 1, 2, json.dumps(body), "round-000001.npz"
                connection.execute("INSERT INTO rounds VALUES (?, ?, ?, ?)", record)
        connection.execute("INSERT INTO events (at, kind, body) VALUES (500.0, 'of_a_later_version', '{}')")
    events = read_events(state)
    assert [to_json(event)["kind"] for event in events] == [old["kind"] for old in OLD]
    assert [event.seq for event in read_events(state, 5)] == list(range(6, len(OLD) + 1))
    view = StudyView().apply_all(events)
    assert (view.state, view.completed, view.epsilon_coordinator) == (FINISHED, 1, 67.1)
    assert (view.excluded, view.set_aside) == ({1: "6 others say so"}, {0: 1})
    assert [one.reason for one in view.dropouts] == ["refused"]
    journal = Journal(state)
    try:
        last = journal.last_round()
    finally:
        journal.close()
    completed = next(event for event in events if isinstance(event, RoundCompleted))
    assert last == (replace(completed, seq=0), "round-000001.npz")


def test_what_a_reader_does_not_know_or_what_lacks_something() -> None:
    assert from_json({"seq": 1, "at": 1.0, "kind": "something_new"}) is None
    assert from_json({"seq": 2}) is None
    for damaged in (
        {"kind": "round_completed", "round": 1},
        {"kind": "study_finished", "epsilon_coordinator": None},
        {"kind": "participant_lost", "participant": True},
        {"kind": "participant_lost", "participant": "1"},
    ):
        with pytest.raises(ValueError, match="validation error"):
            from_json(damaged)
    assert from_json({"kind": "study_started", "at": 2.0, "new": [1]}) == StudyStarted(at=2.0)
    sparse = from_json({"kind": "round_completed", "round": 1, "attempt": 1})
    assert isinstance(sparse, RoundCompleted)
    assert sparse.accuracy is None
    assert sparse.next_clips == ()


def test_a_view_without_history_keeps_the_round_under_way(events: list[Event]) -> None:
    whole, short = StudyView(), StudyView(history=False)
    for event in events:
        whole.apply(event)
        short.apply(event)
        assert len(short.rounds) <= 2
        assert {one.round for one in (*short.dropouts, *short.aborted)} <= {short.round}
        for name in ("state", "wait", "round", "attempt", "current", "completed", "connected", "lost"):
            assert getattr(short, name) == getattr(whole, name)
