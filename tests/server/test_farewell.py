"""A participant that was away when a study ended hears of it when it reconnects."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import server.cohort_wait
import server.study
from client.connection import open_session
from tests.support.study_in_process import PARTICIPANTS, PATIENCE_S, Peer, coordinator, make_folder, playing, refuses
from wire import coordinator_pb2 as pb
from wire.ending import ABORTED, ROUNDS_DONE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("farewell") / "study", rounds=1)


async def played(folder: Path, state: Path, away: int) -> None:
    """The whole study, with all but the last ``away`` participants."""
    async with (
        coordinator(folder, state, deadlines={"connect_s": 1.0}) as where,
        playing(where.peers()[: PARTICIPANTS - away]) as tasks,
    ):
        where.start()
        assert (await where.finish()).reason == ROUNDS_DONE
        assert await asyncio.gather(*tasks) == [ROUNDS_DONE] * len(tasks)
        await where.study.farewell.wait()  # no connection broke: there is no wait


async def heard(peer: Peer) -> str | None:
    async with asyncio.timeout(PATIENCE_S):
        await peer.connect()
        reason = await peer.play()
    await peer.close()
    return reason


async def test_a_study_that_is_over_and_served_again_tells_who_was_away(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    await played(folder, state, away=1)
    async with coordinator(folder, state) as where:
        where.start()
        assert (await where.finish()).reason == ROUNDS_DONE
        waiting = asyncio.create_task(where.study.farewell.wait())
        *others, away = where.peers()
        assert await heard(away) == ROUNDS_DONE
        assert not waiting.done()  # the others may come as well: this process can't know which ones have heard
        assert await heard(away) == ROUNDS_DONE  # a second time too
        assert await asyncio.gather(*map(heard, others)) == [ROUNDS_DONE] * len(others)
        async with asyncio.timeout(PATIENCE_S):
            await waiting
        assert not where.of("participant_connected")  # the study's events have ended


async def test_who_never_comes_is_waited_for_only_so_long(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    await played(folder, state, away=0)
    async with coordinator(folder, state, deadlines={"connect_s": 0.5}) as where:
        where.start()
        await where.finish()
        began = asyncio.get_running_loop().time()
        await where.study.farewell.wait()
        assert asyncio.get_running_loop().time() - began >= 0.5


async def test_who_was_told_is_remembered(folder: Path, tmp_path: Path) -> None:
    """Each process keeps whom it told; with other terms, or a file that can't be read, all are told again."""
    state, file = tmp_path / "state.sqlite", tmp_path / "told.json"

    async def served(heard_by: slice, terms: str = "ab", connect_s: float = PATIENCE_S) -> float:
        """Serve it, until the farewell is over; returns how long that took once those who come had heard."""
        async with coordinator(folder, state, deadlines={"connect_s": connect_s}) as where:
            where.study.farewell.remember(file, terms)
            where.start()
            await where.finish()
            for peer in where.peers()[heard_by]:
                assert await heard(peer) == ROUNDS_DONE
            began = asyncio.get_running_loop().time()
            async with asyncio.timeout(PATIENCE_S):
                await where.study.farewell.wait()
            return asyncio.get_running_loop().time() - began

    await played(folder, state, away=0)
    await served(slice(0, 3), connect_s=0.5)
    assert len(json.loads(file.read_bytes())["told"]) == 3
    await served(slice(3, None))
    assert await served(slice(0, 0)) < PATIENCE_S / 2  # at once
    assert await served(slice(0, 0), terms="cd", connect_s=0.5) >= 0.5
    file.write_text("no JSON")
    assert await served(slice(0, 0), connect_s=0.5) >= 0.5


async def test_a_connection_that_breaks_at_the_end_is_waited_for(folder: Path, tmp_path: Path) -> None:
    async with coordinator(
        folder, tmp_path / "state.sqlite", deadlines={"connect_s": 1.0, "resume_s": PATIENCE_S}
    ) as where:
        *peers, late = where.peers()
        await late.connect()
        async with playing(peers) as tasks:
            await late.close()
            await where.wait_for("participant_lost")
            late.session = late.channel = None
            where.start()
            assert (await where.finish()).reason == ROUNDS_DONE
            waiting = asyncio.create_task(where.study.farewell.wait())
            assert await asyncio.gather(*tasks) == [ROUNDS_DONE] * len(peers)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert await heard(late) == ROUNDS_DONE
        async with asyncio.timeout(PATIENCE_S):
            await waiting


async def test_a_study_that_nobody_came_to_is_not_one_that_was_over(folder: Path, tmp_path: Path) -> None:
    """Served again it tries its rounds again: there is no wait at the end."""
    async with coordinator(folder, tmp_path / "state.sqlite", deadlines={"connect_s": 0.1}) as where:
        where.start()
        assert (await where.finish()).reason == ABORTED
        where.study.farewell.deadlines = where.study.farewell.deadlines.model_copy(update={"connect_s": 3600.0})
        async with asyncio.timeout(PATIENCE_S):
            await where.study.farewell.wait()


async def test_who_comes_back_while_an_abort_is_told_hears_of_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its turn in the broadcast may have passed, and the attempt doesn't answer any more."""
    monkeypatch.setattr(server.cohort_wait, "ARRIVAL_S", 0.0)  # two of seven never come
    async with coordinator(folder, tmp_path / "state.sqlite", deadlines={"resume_s": 3600.0}) as where:
        peers = where.peers()[:5]
        telling, told = asyncio.Event(), asyncio.Event()

        async def held(*_: object) -> None:
            telling.set()
            await told.wait()

        monkeypatch.setattr(server.study, "draw_consequences", held)
        for peer in peers[:3]:
            peer.twists["share_keys"] = refuses(pb.REFUSAL_CODE_LOCAL_FAILURE)
        async with playing(peers) as tasks, asyncio.timeout(PATIENCE_S):
            where.start()
            await telling.wait()
            late = peers[4]
            tasks[4].cancel()
            late.session = await open_session(late.channel, late.identity, "seven")
            resume = pb.Resume(round=late.number[0], attempt=late.number[1], received=2)
            await late.session.send(pb.ParticipantMessage(ready=pb.Ready(resume=resume)))
            async for message in late.session.messages():
                if message.WhichOneof("message") == "round_end":
                    break
            assert (message.round_end.round, message.round_end.completed) == (1, False)
            told.set()
