"""Calls of a session: an upload whose chunks fail ends in that error, and two tasks may send at the same time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import grpc
import pytest

from client.connection import SERVICE, Session, UploadRejected
from wire import coordinator_pb2 as pb


class NoChunk(Exception):
    pass


async def _take_all(messages: AsyncIterator[bytes], _: Any) -> bytes:
    async for _message in messages:
        pass
    return b""


async def _upload(chunks: AsyncIterator[bytes]) -> bytes:
    taken = grpc.stream_unary_rpc_method_handler(_take_all)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE.strip("/"), {"Upload": taken}),)  # type: ignore[arg-type]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stream = mock.Mock(read=mock.AsyncMock(return_value=grpc.aio.EOF))
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            return await Session(stream, channel, mock.Mock(session_token=b"token")).upload(chunks)
    finally:
        await server.stop(None)


async def _two_chunks(error: Exception | None) -> AsyncIterator[bytes]:
    yield b"one"
    if error is not None:
        raise error
    yield b"two"


def test_chunks_that_can_be_made_are_sent() -> None:
    assert asyncio.run(_upload(_two_chunks(None))) == b""


def test_the_error_of_a_chunk_is_the_uploads() -> None:
    with pytest.raises(NoChunk, match="nothing to send"):
        asyncio.run(_upload(_two_chunks(NoChunk("nothing to send"))))


def test_a_task_that_is_told_to_end_ends() -> None:
    async def play() -> None:
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

    asyncio.run(play())


def test_a_call_that_grpc_gives_up_is_an_upload_that_was_not_taken() -> None:
    """It cancels the call by itself where it can't write the end of it; the process must not end of that."""

    async def play() -> None:
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call.cancel()
        channel = mock.Mock()
        channel.stream_unary.return_value.return_value = call
        stream = mock.Mock(read=mock.AsyncMock(return_value=grpc.aio.EOF))
        await Session(stream, channel, mock.Mock(session_token=b"token")).upload(_two_chunks(None))

    with pytest.raises(UploadRejected):
        asyncio.run(play())


def test_a_task_that_is_told_to_end_while_its_chunks_fail_ends() -> None:
    async def call(chunks: AsyncIterator[bytes], **_: Any) -> None:
        with contextlib.suppress(NoChunk):
            async for _chunk in chunks:
                pass
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def play() -> None:
        channel = mock.Mock()
        channel.stream_unary.return_value = call
        stream = mock.Mock(read=mock.AsyncMock(return_value=grpc.aio.EOF))
        await Session(stream, channel, mock.Mock(session_token=b"token")).upload(_two_chunks(NoChunk()))

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(play())


async def _count(requests: AsyncIterator[pb.ParticipantMessage], _: Any) -> AsyncIterator[pb.CoordinatorMessage]:
    async for _message in requests:
        yield pb.CoordinatorMessage(heartbeat=pb.Heartbeat())


def test_a_heartbeat_in_the_middle_of_a_message_ends_nothing() -> None:
    """gRPC gives up a call that is written to twice at once, and the session with it."""

    async def check() -> None:
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(
            _count, pb.ParticipantMessage.FromString, pb.CoordinatorMessage.SerializeToString
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Session": handler}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        dealing = pb.SealedShares(leaves=[bytes(32)] * 4000)
        large = pb.ParticipantMessage(phase=pb.PhaseMessage(round=1, share_keys=dealing))
        beat = pb.ParticipantMessage(heartbeat=pb.Heartbeat())
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for _ in range(10):
                call = channel.stream_stream(
                    "/test/Session", pb.ParticipantMessage.SerializeToString, pb.CoordinatorMessage.FromString
                )()
                session = Session(call, channel, pb.Welcome())
                await session.send(beat)
                heard = session.messages()
                await anext(heard)
                await asyncio.gather(session.send(large), session.send(beat), session.send(large))
                for _ in range(3):
                    await asyncio.wait_for(anext(heard), 10)
                session.close()
        await server.stop(None)

    asyncio.run(check())
