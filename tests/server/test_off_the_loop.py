"""What takes long does not run on the event loop, and the protocol core is only touched by one thread."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import server.sessions
from secagg import server_phases
from server.attempt import outgoing
from server.attempt.outgoing import AT_ONCE, Outgoing
from tests.support.study_in_process import PARTICIPANTS, coordinator, refuses
from wire import codec

PHASES = ("AdvertiseKeys", "ShareKeys", "MaskedInputCollection", "ConsistencyCheck", "Unmasking")
CALLS = ("receive", "drop", "close", "check_offer")


def watch(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, seen: dict[str, set[str]], key: str) -> None:
    honest = getattr(owner, name)

    def watched(*arguments: Any, **named: Any) -> Any:
        seen.setdefault(key, set()).add(threading.current_thread().name.rsplit("_", 1)[0])
        return honest(*arguments, **named)

    monkeypatch.setattr(owner, name, watched)


async def test_the_core_has_one_thread(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one that leaves in each of the first phases, so that the core hears of it."""
    seen: dict[str, set[str]] = {}
    for phase in PHASES:
        kind = getattr(server_phases, phase)
        for name in ("__init__", *CALLS):
            if name in vars(kind) or name == "close":
                watch(monkeypatch, kind, name, seen, f"{phase}.{name}")
    watch(monkeypatch, server.sessions, "verify_signature", seen, "check_proof")
    watch(monkeypatch, codec.NeighbourSharesWriter, "write", seen, "neighbour_shares")
    watch(monkeypatch, codec.CohortKeysWriter, "write", seen, "cohort_keys")
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        peers = where.peers({0: {"advertise_keys": refuses()}, 1: {"share_keys": refuses()}})
        assert (await where.play(peers)).rounds_completed == 2
        assert [event["u3"] for event in where.of("round_completed")] == [PARTICIPANTS - 2, PARTICIPANTS]
    assert seen.pop("check_proof") == {"sessions"}
    assert {"AdvertiseKeys.drop", "ShareKeys.drop", "MaskedInputCollection.check_offer", "cohort_keys"} < set(seen)
    assert {"neighbour_shares", *(f"{phase}.close" for phase in PHASES)} < set(seen)
    assert set().union(*seen.values()) == {"protocol"}


class Recorder:
    """Stands for sessions: notes what is sent, and who the loop lets run between."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes]] = []

    def get(self, participant: int) -> Any:
        session = SimpleNamespace(far=None, send=lambda message: self.sent.append((participant, message)))
        return None if participant == 3 else session


async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def test_a_broadcast_lets_others_run() -> None:
    """Between any two turns of the loop no more than a few messages are queued; absent ones get none."""
    recorder, alive = Recorder(), set(range(200)) - {5}
    between: list[int] = []

    async def scenario() -> Outgoing:
        outgoing = Outgoing(recorder.get, alive, at_once)
        sending = asyncio.create_task(outgoing.broadcast(range(200), b"hello"))
        while not sending.done():
            between.append(len(recorder.sent))
            await asyncio.sleep(0)
        await sending
        return outgoing

    outgoing = asyncio.run(scenario())
    assert [who for who, _ in recorder.sent] == [who for who in range(200) if who not in (3, 5)]
    assert max(later - earlier for earlier, later in itertools.pairwise(between)) <= AT_ONCE
    assert outgoing.bytes == {who: 5 for who, _ in recorder.sent}


def test_own_messages_are_made_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none for a participant that has left: all at once could fill the memory."""
    monkeypatch.setattr(outgoing, "AT_ONCE", 2)
    recorder, alive = Recorder(), {0, 1, 2}
    made: list[tuple[int, int]] = []  # for whom, and how many were sent by then

    def make(who: int) -> bytes:
        made.append((who, len(recorder.sent)))
        return b"abcde"[who : who + 1]

    def write(content: bytes) -> bytes:
        if content == b"b":
            alive.discard(2)  # leaves while the others' messages are written
        return content * 2

    contents = server_phases.Messages((0, 1, 2, 4), make)
    asyncio.run(Outgoing(recorder.get, alive, at_once).each(contents, write))
    assert recorder.sent == [(0, b"aa"), (1, b"bb")]
    assert made == [(0, 0), (1, 0)]
