"""The load test's client processes: each storm comes by itself, however signals arrive; one roster is held."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

import server.journal
from client.study_terms import SharedRoster
from server.events import Event
from sordino.lab.loadtest import run
from sordino.lab.loadtest.client_process import ParticipantGroup
from sordino.lab.loadtest.disturbances import storms_come, strike
from sordino.lab.loadtest.faults import Storm
from sordino.lab.loadtest.options import LoadOptions
from sordino.lab.loadtest.summary import Outcomes
from tests.lab.test_loadtest import OPTIONS, all_right, attempt_events

THREE = (Storm(round=1), Storm(round=2, at="unmasking"), Storm(round=2, for_s=0.01))


def test_storms_due_together_come_one_by_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A round may begin and end between two looks at the journal; the coordinator isn't killed before all have come."""
    options = OPTIONS.changed(rounds=2, storms=(Storm(round=1), Storm(round=1, at="unmasking")), crashes=(1,))
    batches: list[list[Event]] = [attempt_events(1), [], [], attempt_events(2)]
    came: list[str] = []

    def read(path: Path, after: int = 0) -> list[Event]:
        came.append("look")
        return batches.pop(0)

    monkeypatch.setattr(server.journal, "read_events", read)
    monkeypatch.setattr(run, "strike", lambda *_: came.append("storm"))
    monkeypatch.setattr(run.LoadTest, "_crash", lambda test, _: came.append(f"crash {test._crashes.pop(0)}"))
    study: Any = SimpleNamespace(directory=tmp_path)
    coordinator: Any = SimpleNamespace(running=True, measure=lambda: None, cpu_s=0.0, below_cpu_s=0.0, peak_mb=0.0)
    test = run.LoadTest(options, study, lambda line: None, False)
    test.coordinator = coordinator
    test._follow(Outcomes(options, all_right))
    assert came == ["look", "storm", "look", "storm", "crash 1", "look", "look"]
    assert [one.what for one in test.recoveries] == ["storm", "storm"]


def group(study: Path) -> tuple[ParticipantGroup, Mock]:
    """Three participants behind one proxy, which only notes what is done to it."""
    (study / "roster.json").write_text(json.dumps({"participants": []}))
    settings: Any = SimpleNamespace(
        host=SimpleNamespace(journal=study / "hosts" / "host-01" / "journal.sqlite"),
        participants=(),
        coordinator=SimpleNamespace(address="localhost:1"),
    )
    nothing: Any = None
    made = ParticipantGroup(settings, nothing, nothing, LoadOptions(clients=3, storms=THREE))
    made._proxies = {0: (proxy := Mock(close=AsyncMock()))}
    return made, proxy


def done(proxy: Mock) -> list[str]:
    return [name for name, *_ in proxy.method_calls]


async def test_signals_that_came_as_one_bring_all_their_storms(tmp_path: Path) -> None:
    here, proxy = group(tmp_path)
    here._strike()  # of nobody's making
    assert done(proxy) == []
    strike(tmp_path, [])
    here._strike()
    assert done(proxy) == ["reset_all"]
    strike(tmp_path, [])
    strike(tmp_path, [])
    here._strike()
    assert done(proxy) == ["reset_all", "reset_all", "cut"]
    here._strike()
    await asyncio.sleep(0.1)
    assert done(proxy) == ["reset_all", "reset_all", "cut", "restore"]
    assert storms_come(tmp_path) == 3


async def test_a_storm_before_anyone_connects_is_over(tmp_path: Path) -> None:
    here, proxy = group(tmp_path)
    strike(tmp_path, [])  # its signal was let go
    await here.stay()
    strike(tmp_path, [])
    strike(tmp_path, [])
    proxy.reset_mock()
    signal.raise_signal(signal.SIGUSR1)
    async with asyncio.timeout(10):
        while "restore" not in done(proxy):
            await asyncio.sleep(0.01)
    assert done(proxy) == ["reset_all", "cut", "restore"]


def test_a_process_holds_one_roster_if_it_verifies_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each participant that fetches it gets another object, with the same digest."""
    made: list[Any] = []
    monkeypatch.setattr(SharedRoster, "of", lambda roster: made.append(roster) or roster)
    (here, _), fetched = group(tmp_path), [Mock(digest=lambda: bytes(32)) for _ in range(3)]
    kept = [here._keep_roster(one) for one in fetched]
    assert made == fetched[:1]
    assert all(one is fetched[0] for one in kept)
