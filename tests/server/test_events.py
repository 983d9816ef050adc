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
OLD = [json.loads(line) for line in Path(__file__).with_name("old_events.jsonl").read_text().splitlines()]
LATER: dict[str, dict[str, Any]] = {
    "study_started": {"http_address": ""},
    "study_finished": {"failed": False},
    "round_completed": {
        "figures": {},
        "reported": {},
        "coordinator_files": 0,
        "coordinator_tasks": 0,
        "phase_cpu_s": {},
    },
}
"""Fields that were added since."""


@pytest.mark.parametrize("old", OLD, ids=lambda old: str(old["kind"]))
def test_names_in_the_json_are_stable(old: dict[str, Any]) -> None:
    event = from_json(old | {"at": 5.5, "seq": 3})
    assert type(event) is KINDS[old["kind"]]
    assert event is not None
    assert json.loads(json.dumps(to_json(event))) == old | LATER.get(event.kind, {}) | {"at": 5.5, "seq": 3}


def test_every_kind_is_among_the_old_ones() -> None:
    assert sorted(one["kind"] for one in OLD) == sorted(KINDS.keys() - {"waiting_for_authority", "attempt_resumed"})


def test_an_old_journal_is_read_and_served_again(tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    Journal(state).close()
    with contextlib.closing(sqlite3.connect(state)) as connection, connection:
        for number, old in enumerate(OLD):
            body = {name: value for name, value in old.items() if name != "kind"}
            row = 100.0 + number, old["kind"], json.dumps(body)
            connection.execute("INSERT INTO events (at, kind, body) VALUES (?, ?, ?)", row)
            if old["kind"] == "round_completed":
                record = 1, 2, json.dumps(body), "round-000001.safetensors"
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
    assert last == (replace(completed, seq=0), "round-000001.safetensors")


@pytest.mark.parametrize("name", ["a study", "100%25", "what?", "#1"])
async def test_a_journal_in_a_folder_of_any_name_is_read(tmp_path: Path, name: str) -> None:
    state = tmp_path / name / "state.sqlite"
    state.parent.mkdir()
    journal = Journal(state)
    await journal.complete_round(RoundCompleted(round=1, attempt=1), "round-1")
    journal.close()
    assert [to_json(event)["kind"] for event in read_events(state)] == ["round_completed"]
    assert [path.name for path in tmp_path.iterdir()] == [name]


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


@pytest.mark.parametrize(
    ("bound", "page"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080/"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080/"),
        ("[::]:8080", "http://[::1]:8080/"),
        ("10.0.0.0:80", "http://10.0.0.0:80/"),
        ("", ""),
    ],
)
def test_the_address_of_the_page_can_be_opened(bound: str, page: str) -> None:
    assert KINDS["study_started"](http_address=bound).page == page  # type: ignore[call-arg, attr-defined]
