"""Two tasks of one session may send at the same time: the participant's work, and its heartbeat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from client.connection import Session
from wire import coordinator_pb2 as pb


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
