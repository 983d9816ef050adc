"""How long an upload may hold its credit: not one byte now and then for as long as a whole vector may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from server.attempt.uploads import MOST_STREAMS, BrokenUpload, Uploads
from wire.transport import frame, frames

SIZE = 1 << 20
PATIENCE_S = 30.0  # at the slowest rate that is taken, a vector of this size may take 64 s


class Bench:
    """Two participants, one credit."""

    def __init__(self, stall_s: float) -> None:
        self.granted: list[int] = []
        self.uploads = Uploads(SIZE, 1, self.granted.append, lambda who, why: None, stall_s)
        for participant in (0, 1):
            self.uploads.offer(participant, bytes(32), bytes(64))

    async def upload(self, participant: int, chunks: AsyncIterator[bytes]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            try:
                await self.uploads.stage(participant, chunks)
            finally:
                self.uploads.forget(participant)


@pytest.mark.parametrize("sends", [b"", b"a"])
async def test_coming_back_again_and_again_gives_the_credit_back(sends: bytes) -> None:
    """Each time a new stream, with a byte or without one: one clock counts for them all."""

    async def broken() -> AsyncIterator[bytes]:
        if sends:
            yield frame(sends)

    bench = Bench(stall_s=0.2)
    bench.uploads.expired = lambda who, why: bench.uploads.forget(who)
    async with asyncio.timeout(PATIENCE_S):
        while bench.uploads.again(0) is not None:
            if sends and bench.uploads._offers[0].streams < MOST_STREAMS:
                with pytest.raises(BrokenUpload):
                    await bench.uploads.stage(0, broken())
            await asyncio.sleep(0.1)
    assert bench.granted == [0, 1]


async def test_a_credit_is_not_kept_for_as_long_as_a_place() -> None:
    """Its upload broke off, and it stays away."""

    async def broken() -> AsyncIterator[bytes]:
        yield frame(b"a")

    bench = Bench(stall_s=0.1)
    gone = asyncio.Event()
    bench.uploads.expired = lambda who, why: (bench.uploads.forget(who), gone.set())
    with pytest.raises(BrokenUpload):
        await bench.uploads.stage(0, broken())
    await asyncio.wait_for(gone.wait(), PATIENCE_S)
    assert bench.granted == [0, 1]


async def test_a_vector_in_time_counts() -> None:
    async def whole() -> AsyncIterator[bytes]:
        for one in frames(bytes(SIZE)):
            yield one

    bench = Bench(stall_s=PATIENCE_S)
    await bench.upload(0, whole())
    await bench.upload(1, whole())
    assert bench.granted == [0, 1]
