"""Uploads: how long one may hold its credit, that it goes on where it broke off, and that it isn't begun for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from server.attempt.attempt import Attempt
from server.attempt.inbox import Inbox
from server.attempt.reconnection_slots import ReconnectionSlots
from server.attempt.uploads import MOST_STREAMS, BrokenUpload, UnexpectedUpload, UploadRefused, Uploads
from server.sessions import Session
from tests.support.attempts_in_memory import make_config
from wire import coordinator_pb2 as pb
from wire.transport import frame, frames

SIZE = 1000
LARGE = 1 << 20  # at the slowest rate that is taken, a vector of this size may take 64 s
PATIENCE_S = 30.0


def uploads(size: int = SIZE, stall_s: float = PATIENCE_S, participants: int = 1) -> tuple[Uploads, list[int]]:
    """With one credit; and who has been granted it."""
    granted: list[int] = []
    made = Uploads(size, 1, granted.append, lambda who, why: made.forget(who), stall_s)
    for participant in range(participants):
        made.offer(participant, bytes(32), bytes(64))
    return made, granted


async def chunks(data: bytes, then: Callable[[], Awaitable[Any]] | None = None) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 100):
        yield frame(data[at : at + 100])
    if then is not None:
        await then()


# ---------------------------------------------------------------- how long a credit is held: one byte now and then
# would hold it for as long as a whole vector may take


@pytest.mark.parametrize("sends", [b"", b"a"])
async def test_coming_back_again_and_again_gives_the_credit_back(sends: bytes) -> None:
    """Each time a new stream, with a byte or without one: one clock counts for them all."""
    made, granted = uploads(LARGE, stall_s=0.2, participants=2)
    async with asyncio.timeout(PATIENCE_S):
        while made.again(0) is not None:
            if sends and made._offers[0].streams < MOST_STREAMS:
                with pytest.raises(BrokenUpload):
                    await made.stage(0, chunks(sends))
            await asyncio.sleep(0.1)
    assert granted == [0, 1]


async def test_a_credit_is_not_kept_for_as_long_as_a_place() -> None:
    """Its upload broke off, and it stays away."""
    made, granted = uploads(LARGE, stall_s=0.1, participants=2)
    with pytest.raises(BrokenUpload):
        await made.stage(0, chunks(b"a"))
    async with asyncio.timeout(PATIENCE_S):
        while granted != [0, 1]:
            await asyncio.sleep(0.01)


async def test_a_vector_in_time_counts() -> None:
    async def whole() -> AsyncIterator[bytes]:
        for one in frames(bytes(LARGE)):
            yield one

    made, granted = uploads(LARGE, participants=2)
    async with asyncio.timeout(PATIENCE_S):
        for participant in (0, 1):
            await made.stage(participant, whole())
            made.forget(participant)
    assert granted == [0, 1]


# ---------------------------------------------------------------- uploads that break off


async def test_an_upload_goes_on_where_it_broke_off() -> None:
    vector = bytes(range(250)) * 4
    made, granted = uploads()
    with pytest.raises(BrokenUpload):
        await made.stage(0, chunks(vector[:300]))
    assert made.broken(0)
    assert made.again(0) == 300
    assert not made.broken(0)
    # A stream of the connection before, which this end still takes for alive, is overtaken and adds nothing.
    old = asyncio.create_task(made.stage(0, chunks(vector[300:500], asyncio.Event().wait)))
    await asyncio.sleep(0.01)
    assert made.again(0) == 500
    _, staged = await made.stage(0, chunks(vector[500:]))
    assert staged == vector
    with pytest.raises(UnexpectedUpload):
        await old
    assert not made.broken(0)
    assert made.complete(0)
    assert made.again(0) is None
    assert granted == [0]


async def waiting(chunks: asyncio.Queue[bytes]) -> AsyncIterator[bytes]:
    while True:
        yield frame(await chunks.get())


@pytest.mark.parametrize("end", ["a chunk that was here already", "a call that gRPC cancels"])
async def test_a_stream_that_ends_before_it_is_hurried_leaves_nothing_behind(end: str) -> None:
    """Else a second return, or a leave, would end the coordinator: the stream's clock has stopped by then."""
    made, _ = uploads()
    arriving = asyncio.Queue[bytes]()
    old = asyncio.create_task(made.stage(0, waiting(arriving)))
    arriving.put_nowait(bytes(100))
    await asyncio.sleep(0.01)
    if end == "a call that gRPC cancels":
        old.cancel()
    else:
        arriving.put_nowait(bytes(100))
    assert made.again(0) == 100
    await asyncio.gather(old, return_exceptions=True)
    assert made.again(0) == 100
    made.forget(0)
    made.close()


async def test_who_left_is_read_no_further() -> None:
    """Its credit is another's by now, and credits are what bounds the memory for vectors."""
    made, granted = uploads()
    made.offer(1, bytes(32), bytes(64))
    arriving = asyncio.Queue[bytes]()
    reading = asyncio.create_task(made.stage(0, waiting(arriving)))
    arriving.put_nowait(bytes(100))
    await asyncio.sleep(0.01)
    arriving.put_nowait(bytes(100))  # it is here before the hurry
    made.forget(0)
    assert granted == [0, 1]
    with pytest.raises(UploadRefused, match="left the attempt"):
        await reading


async def test_an_upload_is_not_begun_for_ever() -> None:
    made, _ = uploads()
    for _ in range(MOST_STREAMS):
        with pytest.raises(BrokenUpload):
            await made.stage(0, chunks(b"a"))
        assert made.again(0) is not None
    with pytest.raises(UploadRefused, match="begun more than"):
        await made.stage(0, chunks(b"a"))
    made.forget(0)
    assert made._offers[0].staged == b""  # nothing is held without a credit


async def test_back_before_the_old_upload_is_known_to_have_ended() -> None:
    """The end of its old stream is noticed while its turn is yet to come, and its place isn't up for it."""
    attempt: Any = object.__new__(Attempt)  # without the study around it
    attempt._inbox, attempt._alive = Inbox(make_config(3).parameters), {1}
    (old, new), never = (Session(bytes(32), 1, "host", bytes(32)) for _ in range(2)), asyncio.Event()
    attempt._slots = places = ReconnectionSlots({1: old}, 0.05, attempt.lost)
    attempt._uploads = made = Uploads(SIZE, 1, lambda _: None, attempt.upload_failed)
    made.offer(1, bytes(32), bytes(64))
    first = asyncio.create_task(attempt.upload(old, chunks(b"a" * 500, never.wait)))
    await asyncio.sleep(0.01)
    attempt.away(old, "replaced by a newer connection", keep=True)
    assert attempt.returned(new, pb.Resume(round=1, attempt=1, received=3))
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    _, back = await attempt._inbox.get()
    assert places.back(back.session)
    assert made.again(1) == 500
    second = asyncio.create_task(attempt.upload(new, chunks(b"a" * 400, never.wait)))
    await asyncio.sleep(0.2)
    assert not attempt._inbox._queue  # it wasn't reported as lost
    second.cancel()  # this one does break
    await asyncio.gather(second, return_exceptions=True)
    assert (await attempt._inbox.get())[1].reason == "upload failed: connection closed"
