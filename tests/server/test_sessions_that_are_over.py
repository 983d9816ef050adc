"""A session that is over, because its participant was revoked or has connected anew, says nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from server import service
from server.sessions import Session, SessionRefused, Traffic
from tests.support.study_in_process import until
from wire import coordinator_pb2 as pb

REFUSAL = pb.ParticipantMessage(refusal=pb.Refusal(round=1, attempt=1, code=pb.REFUSAL_CODE_POLICY))


def study_of(heard: list[Any]) -> Any:
    """Notes what reaches it."""
    sessions = SimpleNamespace(
        lost=lambda session, reason: heard.append(("lost", reason)), most_message_bytes=None, traffic=Traffic()
    )
    return SimpleNamespace(
        sessions=sessions,
        refusal=lambda session, message, size: heard.append(("refusal", session.participant)),
        phase_message=lambda session, message, size: heard.append(("phase", session.participant)),
    )


@pytest.mark.parametrize("message", [REFUSAL, pb.ParticipantMessage(phase=pb.PhaseMessage(round=1, attempt=1))])
async def test_nothing_it_says_counts(message: pb.ParticipantMessage) -> None:
    """Its position may belong to another participant by now, which would be dropped in its place."""
    heard: list[Any] = []
    session = Session(b"i" * 32, 3, "host", b"t" * 32)
    service._receive(study_of(heard), session, message.SerializeToString())
    assert heard[-1][1] == 3
    session.close()
    with pytest.raises(SessionRefused, match="the session is over"):
        service._receive(study_of(heard), session, message.SerializeToString())
    assert len(heard) == 1


async def test_it_is_over_although_its_peer_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place is lost after a moment. The call stays, among those that its certificate may have open, until the
    connection ends: for so long gRPC holds the message that isn't read, whatever becomes of the call."""
    monkeypatch.setattr(service, "FAREWELL_S", 0.1)
    session, heard = Session(b"i" * 32, 3, "host", b"t" * 32), list[Any]()

    async def handshake(*_: Any) -> Session:
        return session

    connection_ended = asyncio.Event()

    async def never(_: bytes) -> None:
        await connection_ended.wait()
        raise ConnectionError

    async def requests() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    monkeypatch.setattr(service, "_handshake", handshake)
    context: Any = SimpleNamespace(write=never, peer=lambda: "ipv4:127.0.0.1:1")
    task = asyncio.create_task(service._session(study_of(heard), requests(), context))
    await asyncio.sleep(0)
    session.send(b"the last word")
    await asyncio.sleep(0.01)
    session.close()
    await until(lambda: heard)
    assert heard == [("lost", "connection closed")]
    assert not task.done()
    connection_ended.set()
    await asyncio.wait_for(task, 30)
