"""A stream that is refused while it is written to: gRPC forgets why, and the reason is asked for once more."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import grpc
import pytest

import client.connection
from client.connection import HANDSHAKES, SERVICE, open_session
from secagg.keys import IdentityKey

REASON = "this identity was revoked"


async def _refuse(messages: Any, context: Any) -> None:
    async for _ in messages:  # a write that met the end by itself, on a busy machine, would be one failure too many
        break
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, REASON)


async def _told() -> tuple[grpc.StatusCode, str]:
    refusing = grpc.stream_stream_rpc_method_handler(_refuse)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE.strip("/"), {"Session": refusing}),)  # type: ignore[arg-type]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await open_session(channel, IdentityKey.generate(os.urandom), "seven")
            return refused.value.code(), str(refused.value.details())
    finally:
        await server.stop(None)


@pytest.fixture
def failing_writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many of the writes to come fail, as those do that meet the end of their stream."""
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
    assert asyncio.run(_told()) == (grpc.StatusCode.PERMISSION_DENIED, REASON)


def test_not_for_ever(failing_writes: list[int]) -> None:
    failing_writes[0] = 1000
    assert asyncio.run(_told())[0] is grpc.StatusCode.INTERNAL
    assert failing_writes[0] >= 1000 - 2 * HANDSHAKES
