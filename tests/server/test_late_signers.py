"""Participants that are slow to sign the survivor sets or to answer, or never do: the others don't wait for them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.study_in_process import (
    PARTICIPANTS,
    PATIENCE_S,
    Coordinator,
    Peer,
    coordinator,
    identities,
    playing,
    until,
)
from wire import codec, coordinator_pb2 as pb

SLOW = 2


@dataclass
class Waits(Peer):
    """In round 1 it answers what it is named for only once that event is set."""

    signs: asyncio.Event | None = None
    reveals: asyncio.Event | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)  # for its shares
    revealed: asyncio.Event = field(default_factory=asyncio.Event)

    async def on_survivor_sets(self, message: pb.SurvivorSets) -> None:
        await self._until(self.signs)
        await super().on_survivor_sets(message)

    async def on_unmasking_request(self, message: pb.UnmaskingRequest) -> None:
        self.asked.set()
        await self._until(self.reveals)
        self.phase, answer = self.phase.receive(codec.read_unmasking_request(message))
        await self.say("unmasking", codec.write_unmasking_reply(answer))
        self.revealed.set()

    async def _until(self, event: asyncio.Event | None) -> None:
        if event is not None and self.number[0] == 1:
            await asyncio.wait_for(event.wait(), PATIENCE_S)


def others_of(where: Coordinator, reveals: asyncio.Event) -> list[Waits]:
    """All but the slow one; they reveal their shares after this event."""
    return [Waits(where, key, reveals=reveals) for at, key in enumerate(identities(where.folder)) if at != SLOW]


async def all_asked(peers: list[Waits]) -> None:
    for peer in peers:
        await peer.asked.wait()


async def test_who_signs_late_is_asked_then(study_folder: Path, tmp_path: Path) -> None:
    """The others hold their shares back until its are there."""
    async with coordinator(study_folder, tmp_path / "s.sqlite") as where:
        keys = identities(study_folder)
        slow = Waits(where, keys[SLOW], reveals=asyncio.Event())
        others = others_of(where, slow.revealed)
        slow.signs = others[0].asked
        async with playing([slow, *others]):
            where.start()
            await asyncio.wait_for(all_asked(others), PATIENCE_S)
            assert slow.reveals is not None
            slow.reveals.set()
            assert (await where.finish()).rounds_completed == 2
        first, second = where.of("round_completed")
        assert (first["u3"], first["u4"], first["dropouts"]) == (PARTICIPANTS, PARTICIPANTS, 0)
        assert slow.revealed.is_set()
        [signed] = where.of("phase_ended", round=1, phase="ConsistencyCheck")
        assert 5 <= signed["received"] < PARTICIPANTS
        assert (second["u3"], second["dropouts"]) == (PARTICIPANTS, 0)


async def test_who_answers_late_takes_its_noise_back(study_folder: Path, tmp_path: Path) -> None:
    """It is waited for as long again as the others took, although the sum could open without its shares."""
    async with coordinator(study_folder, tmp_path / "s.sqlite") as where:
        keys, now, then = identities(study_folder), asyncio.Event(), asyncio.Event()
        slow, others = Waits(where, keys[SLOW], reveals=then), others_of(where, now)
        async with playing([slow, *others]):
            where.start()
            await asyncio.wait_for(all_asked([slow, *others]), PATIENCE_S)
            attempt: Any = where.study._attempt
            await asyncio.sleep(1.0)
            now.set()
            await until(lambda: len(attempt._answered) >= len(others) or where.of("phase_ended", phase="Unmasking"))
            then.set()
            assert (await where.finish()).rounds_completed == 2
        phase, *_ = where.of("phase_ended", round=1, phase="Unmasking")
        assert phase["received"] == PARTICIPANTS


async def test_nobody_waits_for_who_never_signs(study_folder: Path, tmp_path: Path) -> None:
    """It stays in the round, whose sum holds its input, and in the next one. The deadline is far away."""
    deadlines = {"consistency_check_s": 10 * PATIENCE_S, "unmasking_s": 10 * PATIENCE_S}
    async with coordinator(study_folder, tmp_path / "s.sqlite", deadlines=deadlines) as where:
        peers = where.peers({SLOW: {"consistency": lambda *_: None}})
        assert (await where.play(peers)).rounds_completed == 2
        first, second = where.of("round_completed")
        assert (first["u3"], first["u4"]) == (PARTICIPANTS, PARTICIPANTS - 1)
        assert second["u3"] == PARTICIPANTS
        assert where.of("participant_dropped") == []
        end, *_ = peers[SLOW].heard("round_end")
        assert (end.round, end.completed) == (1, True)


async def test_nobody_has_less_time_because_others_were_quick(study_folder: Path, tmp_path: Path) -> None:
    """Unmasking lasts at least until ConsistencyCheck's deadline, and its own from the last late signature on."""
    deadlines = {"consistency_check_s": PATIENCE_S, "unmasking_s": 0.5}
    async with coordinator(study_folder, tmp_path / "s.sqlite", deadlines=deadlines) as where:
        keys, now = identities(study_folder), asyncio.Event()
        slow = Waits(where, keys[SLOW], signs=asyncio.Event(), reveals=now)
        others = others_of(where, now)
        async with playing([slow, *others]):
            where.start()
            await asyncio.wait_for(others[0].asked.wait(), PATIENCE_S)
            attempt: Any = where.study._attempt
            await asyncio.sleep(0.7)
            attempt._deadlines_s = {**attempt._deadlines_s, "Unmasking": 2 * PATIENCE_S}
            before = attempt._deadline
            assert slow.signs is not None
            slow.signs.set()
            signed_at = time.monotonic()
            await asyncio.wait_for(all_asked([slow, *others]), PATIENCE_S)
            await asyncio.sleep(0.2)
            assert attempt._deadline >= signed_at + 2 * PATIENCE_S > before
            now.set()
            assert (await where.finish()).rounds_completed == 2
        first, _ = where.of("round_completed")
        assert (first["attempt"], first["u4"], first["dropouts"]) == (1, PARTICIPANTS, 0)
        [phase] = where.of("phase_ended", round=1, phase="Unmasking")
        assert phase["seconds"] > 0.7
