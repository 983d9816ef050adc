"""Calls of a session: what an upload ends with, two tasks that send at once, and a refusal whose reason gRPC loses."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import grpc
import pytest

import client.connection
from client.connection import HANDSHAKES, SERVICE, Channels, Session, UploadRejected, open_session
from secagg.keys import IdentityKey
from wire import coordinator_pb2 as pb


class NoChunk(Exception):
    pass


async def _take_all(messages: AsyncIterator[bytes], _: Any) -> bytes:
    async for _message in messages:
        pass
    return b""


@contextlib.asynccontextmanager
async def _serving(method: str, handler: Any) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a server with this one method."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE.strip("/"), {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(None)


def _session(channel: Any) -> Session:
    """A session whose stream has ended."""
    stream = mock.Mock(read=mock.AsyncMock(return_value=grpc.aio.EOF))
    return Session(stream, channel, mock.Mock(session_token=b"token"))


async def _upload(chunks: AsyncIterator[bytes]) -> bytes:
    async with _serving("Upload", grpc.stream_unary_rpc_method_handler(_take_all)) as channel:
        return await _session(channel).upload(chunks)


async def _two_chunks(error: Exception | None) -> AsyncIterator[bytes]:
    yield b"one"
    if error is not None:
        raise error
    yield b"two"


async def test_the_error_of_a_chunk_is_the_uploads() -> None:
    assert await _upload(_two_chunks(None)) == b""
    with pytest.raises(NoChunk, match="nothing to send"):
        await _upload(_two_chunks(NoChunk("nothing to send")))


async def test_a_cancelled_task_ends() -> None:
    begun = asyncio.Event()

    async def waits() -> AsyncIterator[bytes]:
        begun.set()
        await asyncio.Event().wait()
        yield b""

    task = asyncio.create_task(_upload(waits()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_call_that_grpc_gives_up_is_an_upload_that_was_not_taken() -> None:
    """gRPC cancels a call whose end it can't write; that must not end the process."""
    call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    call.cancel()
    channel = mock.Mock()
    channel.stream_unary.return_value.return_value = call
    with pytest.raises(UploadRejected):
        await _session(channel).upload(_two_chunks(None))


async def test_a_task_that_is_cancelled_while_its_chunks_fail_ends() -> None:
    async def call(chunks: AsyncIterator[bytes], **_: Any) -> None:
        with contextlib.suppress(NoChunk):
            async for _chunk in chunks:
                pass
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    channel = mock.Mock()
    channel.stream_unary.return_value = call
    uploading = asyncio.create_task(_session(channel).upload(_two_chunks(NoChunk())))
    with pytest.raises(asyncio.CancelledError):
        await uploading


async def _count(requests: AsyncIterator[pb.ParticipantMessage], _: Any) -> AsyncIterator[pb.CoordinatorMessage]:
    async for _message in requests:
        yield pb.CoordinatorMessage(heartbeat=pb.Heartbeat())


async def test_a_heartbeat_in_the_middle_of_a_message_ends_nothing() -> None:
    """gRPC gives up a call that is written to twice at once, and the session with it."""
    handler = grpc.stream_stream_rpc_method_handler(
        _count, pb.ParticipantMessage.FromString, pb.CoordinatorMessage.SerializeToString
    )
    dealing = pb.SealedShares(leaves=[bytes(32)] * 4000)
    large = pb.ParticipantMessage(phase=pb.PhaseMessage(round=1, share_keys=dealing))
    beat = pb.ParticipantMessage(heartbeat=pb.Heartbeat())
    async with _serving("Session", handler) as channel:
        for _ in range(10):
            call = channel.stream_stream(
                SERVICE + "Session", pb.ParticipantMessage.SerializeToString, pb.CoordinatorMessage.FromString
            )()
            session = Session(call, channel, pb.Welcome())
            await session.send(beat)
            heard = session.messages()
            await anext(heard)
            await asyncio.gather(session.send(large), session.send(beat), session.send(large))
            for _ in range(3):
                await asyncio.wait_for(anext(heard), 10)
            session.close()


# ---------------------------------------------------------------- a stream that is refused while it is written to

REASON = "this identity was revoked"


async def _refuse(messages: Any, context: Any) -> None:
    async for _ in messages:  # another failing write, on a busy machine, would be one too many
        break
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, REASON)


async def _refusal() -> tuple[grpc.StatusCode, str]:
    async with _serving("Session", grpc.stream_stream_rpc_method_handler(_refuse)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await open_session(channel, IdentityKey.generate(os.urandom), "seven")
        return refused.value.code(), str(refused.value.details())


@pytest.fixture
def failing_writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of coming writes that fail like writes to an ended stream."""
    left, write = [0], client.connection._write

    async def failing(call: Any, message: Any) -> None:
        if left[0] > 0:
            left[0] -= 1
            call._cython_call.set_internal_error("a write that failed")
        else:
            await write(call, message)

    monkeypatch.setattr(client.connection, "_write", failing)
    return left


@pytest.mark.parametrize("failing", range(HANDSHAKES))
def test_the_reason_arrives_all_the_same(failing_writes: list[int], failing: int) -> None:
    failing_writes[0] = failing
    assert asyncio.run(_refusal()) == (grpc.StatusCode.PERMISSION_DENIED, REASON)


def test_not_for_ever(failing_writes: list[int]) -> None:
    failing_writes[0] = 1000
    assert asyncio.run(_refusal())[0] is grpc.StatusCode.INTERNAL
    assert failing_writes[0] >= 1000 - 2 * HANDSHAKES


async def test_a_channel_that_is_being_closed_is_nobodys_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    closing = asyncio.Event()
    first, second = mock.Mock(), mock.Mock(close=mock.AsyncMock())
    first.close = mock.Mock(side_effect=closing.wait)
    monkeypatch.setattr(client.connection, "open_channel", mock.Mock(side_effect=[first, second]))
    channels = Channels("localhost:1", b"", mock.Mock())
    assert channels.current() is first
    cutting = asyncio.create_task(channels.cut())
    await asyncio.sleep(0)
    assert channels.current() is second
    assert not cutting.done()
    closing.set()
    await cutting
    second.close.assert_not_called()
