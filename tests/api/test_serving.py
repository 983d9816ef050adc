"""A study served and joined from Python: in one event loop, cancelled, interrupted by a real signal, and again."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

import pytest

import sordino
from runtime.processes import free_port
from server.events import Event, PhaseStarted
from tests.support.running_study import RunningStudy, line, running_study
from tests.support.study_in_process import make_folder

ROUNDS = 4  # with everybody in each sum the budget of four lasts for a fifth charge


@pytest.fixture
def study(tmp_path: Path) -> Path:
    kept = {"epsilon": 50.0, "delta": 1e-5, "noise_parts": 0}  # room for an attempt that is stopped
    return make_folder(tmp_path / "study", listen=f"127.0.0.1:{free_port()}", rounds=ROUNDS, **kept)


def taking_part(study: Path) -> asyncio.Task[None]:
    return asyncio.create_task(sordino.Participant(study / "hosts" / "host-01").run())


async def test_a_study_in_one_event_loop(study: Path) -> None:
    async with sordino.Coordinator(study) as coordinator:
        host = taking_part(study)
        rounds = [done.round async for done in coordinator.rounds()]
        result = await coordinator.finished()
        await host
    assert rounds == [1, 2, 3, 4]
    assert (result.outcome, result.accuracy) == ("rounds done", result.view.rounds[-1].accuracy)
    assert result.model is not None
    assert (result.model.study, result.model.round) == ("seven", ROUNDS)
    assert [(row.entry.round, row.entry.attempt) for row in result.ledger().rows] == [(one, 1) for one in rounds]
    assert sordino.ServedStudy.read(study).accuracy == result.accuracy


async def test_a_cancelled_coordinator_and_the_next_one_goes_on_with_its_attempt(study: Path) -> None:
    serving: asyncio.Task[None]

    def cancel(event: Event) -> None:
        if isinstance(event, PhaseStarted) and (event.round, event.phase) == (2, "ConsistencyCheck"):
            serving.cancel()

    async def serve() -> None:
        async with sordino.Coordinator(study, on_event=cancel) as coordinator:
            await coordinator.finished()

    host = taking_part(study)
    serving = asyncio.create_task(serve())
    with pytest.raises(asyncio.CancelledError):
        await serving
    stopped = sordino.ServedStudy.read(study)
    assert (stopped.outcome, stopped.view.completed) == ("stopped", 1)
    assert len(stopped.ledger().rows) == 1
    async with sordino.Coordinator(study) as coordinator:
        assert [done.round async for done in coordinator.rounds()] == [2, 3, 4]
        result = await coordinator.finished()
        await host
    once = [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert [(done.round, done.attempt) for done in result.view.rounds] == once
    assert [(row.entry.round, row.entry.attempt) for row in result.ledger().rows] == once


async def test_a_cancelled_participant_leaves_and_comes_back(study: Path) -> None:
    async with sordino.Coordinator(study) as coordinator:
        host = taking_part(study)
        async for done in coordinator.rounds():
            if done.round == 1:
                host.cancel()
                await asyncio.gather(host, return_exceptions=True)
                host = taking_part(study)
        await host
    assert (await coordinator.finished()).outcome == "rounds done"


async def test_what_cannot_be_is_one_sentence(study: Path, tmp_path: Path) -> None:
    with pytest.raises(sordino.Failure, match=r"a notebook: use `async with sordino\.Coordinator"):
        sordino.serve(study)
    with pytest.raises(sordino.Failure, match=r"use `await sordino\.Participant"):
        sordino.join(study / "hosts" / "host-01")
    with pytest.raises(sordino.Failure, match=r"folder of a study's host\. Run sordino join --home"):
        sordino.Coordinator(study / "hosts" / "host-01")
    with pytest.raises(sordino.Failure, match="is a study's folder; its hosts are under"):
        await sordino.Participant(study).run()
    with pytest.raises(sordino.Failure, match="are for joining"):
        await sordino.Participant(study / "hosts" / "host-01", name="laptop").run()
    with pytest.raises(TypeError, match="no option adress"):
        sordino.Participant(study, adress="localhost:1")  # type: ignore[call-arg]
    with pytest.raises(sordino.Failure, match="isn't open"):
        await sordino.Coordinator(study).finished()
    async with sordino.Coordinator(study):
        with pytest.raises(sordino.Failure, match=r"another process|in use") as error:
            async with sordino.Coordinator(study):
                pass
    assert "\n" not in str(error.value)


SERVE = """
import signal, sys, sordino
signal.signal(signal.SIGINT, signal.default_int_handler)  # what starts the tests may ignore it
try:
    print(sordino.serve(sys.argv[1]).outcome)
except KeyboardInterrupt:
    print("interrupted" if signal.getsignal(signal.SIGINT) is signal.default_int_handler else "Ctrl-C is lost")
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_script_is_interrupted_by_a_real_signal_and_run_again(tmp_path: Path) -> None:
    def serve(study: RunningStudy, name: str):  # type: ignore[no-untyped-def]
        return study._start([sys.executable, "-c", SERVE, str(study.folder)], name, {})

    with running_study(tmp_path / "study", rounds=ROUNDS) as study:
        gate = tmp_path / "go"
        first = serve(study, "first")
        hosts = study.start_host(list(range(7)), [line(2, "before consistency", "hold", gate)])
        study.wait_for("phase_started", round=2, phase="ConsistencyCheck")
        first.send_signal(signal.SIGINT)
        assert study.code_of(first) == 0
        said = study.logs("first")
        assert said.splitlines()[-1] == "interrupted"
        assert said.count("stopping: served again, the study goes on from here") == 1
        assert "Traceback" not in said
        gate.touch()
        second = serve(study, "second")
        assert study.code_of(second) == 0, study.story()
        assert study.logs("second").splitlines()[-1] == "rounds done"
        assert study.code_of(hosts) == 0
        # Participants held their keys: the attempt went on, and nothing was charged twice.
        assert [(row.round, row.attempt) for row in study.charges()] == [(1, 1), (2, 1), (3, 1), (4, 1)]
