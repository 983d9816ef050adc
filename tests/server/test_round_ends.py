"""How rounds end where something cuts in: a stop, an event that can't be written, a budget that is spent elsewhere."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from runtime.durable import StorageError
from server.events import RESTING, RoundCompleted
from server.journal import Journal, read_events
from server.study_view import StudyView
from tests.support.study_in_process import PATIENCE_S, coordinator, make_folder, playing, refuses, until
from wire import coordinator_pb2 as pb
from wire.ending import ABORTED, BUDGET_REACHED, STOPPED


async def test_a_round_and_its_event_are_written_together(tmp_path: Path) -> None:
    """Where the event can't be written the round doesn't count: else no reader would ever see it."""
    state = tmp_path / "state.sqlite"
    journal = Journal(state)
    with closing(sqlite3.connect(state)) as database:
        database.execute("CREATE TRIGGER none BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'no event'); END")
    completed = RoundCompleted(round=1, attempt=1)
    with pytest.raises(StorageError, match="no event"):
        await journal.complete_round(completed, "round-1")
    assert journal.last_round() is None
    with closing(sqlite3.connect(state)) as database:
        database.execute("DROP TRIGGER none")
    await journal.complete_round(completed, "round-1")
    journal.close()
    assert StudyView().apply_all(read_events(state)).completed == 1


async def test_a_stop_waits_for_a_sum_that_is_open(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is paid for: the stop comes when its round is written down."""
    state, reached, released = tmp_path / "state.sqlite", threading.Event(), threading.Event()
    async with coordinator(study_folder, state) as where:
        save = where.study._model.save

        def held(round_: int) -> str:
            reached.set()
            assert released.wait(PATIENCE_S)
            return save(round_)

        monkeypatch.setattr(where.study._model, "save", held)
        async with playing(where.peers()):
            where.start()
            assert await asyncio.to_thread(reached.wait, PATIENCE_S)
            stopping = asyncio.create_task(where.stop())
            await asyncio.sleep(0)
            released.set()
            await stopping
            assert where.running is not None
            assert where.running.cancelled()
    [finished] = where.of("study_finished")
    assert not finished["failed"]
    assert (finished["reason"], finished["rounds_completed"]) == (STOPPED, 1)
    view = StudyView().apply_all(read_events(state))
    assert [done.round for done in view.rounds] == [1]
    async with coordinator(study_folder, state) as where:
        assert (await where.play()).rounds_completed == 2
    assert [event["round"] for event in where.of("round_completed")] == [2]


async def test_participants_whose_budget_is_spent_end_the_study(study_folder: Path, tmp_path: Path) -> None:
    """Their own ledgers may hold an attempt that the coordinator's doesn't: it isn't a round that failed."""
    spent: dict[str, Any] = {"advertise_keys": refuses(pb.REFUSAL_CODE_BUDGET)}
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        outcome = await where.play(where.peers(dict.fromkeys(range(5), spent)))
    assert (outcome.reason, outcome.rounds_completed) == (BUDGET_REACHED, 0)
    [first, second] = where.of("attempt_aborted")
    assert "have budget left" in second["reason"]
    assert (first["attempt"], second["attempt"]) == (1, 2)


async def test_cheats_that_say_so_end_a_round_and_not_the_study(tmp_path: Path) -> None:
    """Two of seven may lie, and six are needed: as when they stay away, the study can go on without them later."""
    folder, spent = make_folder(tmp_path / "study", quorum=6), refuses(pb.REFUSAL_CODE_BUDGET)
    async with coordinator(folder, tmp_path / "state.sqlite") as where:
        liars: dict[int, dict[str, Any]] = {who: {"advertise_keys": spent} for who in range(2)}
        outcome = await where.play(where.peers(liars))
    assert (outcome.reason, outcome.rounds_completed) == (ABORTED, 0)
    [_, second, third] = where.of("attempt_aborted")
    assert "have budget left" in second["reason"]
    assert "have budget left" not in third["reason"]  # they were asked again


async def test_who_was_sent_away_is_waited_for_after_a_restart(tmp_path: Path) -> None:
    """They rest until shortly before the pause is over, which the coordinator ends when it is started again."""
    folder, state = make_folder(tmp_path / "study"), tmp_path / "state.sqlite"
    async with coordinator(folder, state, study={"pause_s": 100.0}) as where:
        peers = where.peers()
        async with playing(peers):
            where.start()
            await where.wait_for("pausing")
            for peer in peers[:6]:
                await until(lambda one=peer: one.heard("rest"))  # type: ignore[misc]
                await peer.session.send(pb.ParticipantMessage(leaving=pb.Leaving(resting=True)))
            await until(lambda: len(where.of("participant_lost", reason=RESTING)) == 6)
            await where.stop()
    async with coordinator(folder, state) as where:
        sessions = where.study.sessions
        assert sessions.resting() == frozenset(range(6))
        assert 3600.0 < sessions.due(range(7)) - time.monotonic() < 4000.0
        assert (await where.play()).rounds_completed == 2
        assert sessions.resting() == frozenset()
