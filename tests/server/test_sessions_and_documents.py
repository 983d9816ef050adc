"""The service at its edges: who may open a session, what a token is good for, what floods cost, and that nothing a
stranger sends shows as a fault of ours. A session that is over, because its participant was revoked or has connected
anew, says nothing any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

import secagg.errors
import server.service
from client.connection import SERVICE, DocumentUnavailable, open_session
from secagg.keys import IdentityKey, session_statement
from secagg.roster import Roster, RosterEntry
from server.attempt.uploads import UnexpectedUpload, UploadRefused
from server.service import STATUS
from server.sessions import (
    MOST_STRAYS,
    MOST_WAITING,
    SESSIONS_AT_ONCE,
    Session,
    SessionRefused,
    Sessions,
    TooManySessions,
    Traffic,
)
from server.study import Study
from tests.support.study_in_process import PARTICIPANTS, Peer, coordinator, faults, identities, until
from wire import coordinator_pb2 as pb
from wire.transport import TOKEN_METADATA, frames, unframe, varint

# What gRPC makes of a call that is refused while it is still written to; the answer is lost then.
LOST = (grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED)


def raw_session(channel: grpc.aio.Channel) -> Any:
    """A control stream that takes and gives bytes."""
    return channel.stream_stream(SERVICE + "Session", request_serializer=None, response_deserializer=None)()


def opening(key: IdentityKey, **changes: Any) -> pb.Open:
    fields = {"protocol_version": 1, "identity": key.public, "study": "seven", "nonce": bytes(32)}
    return pb.Open(**(fields | changes))


def unknown_field(size: int) -> bytes:
    """An unknown field of ``size`` bytes in all."""
    content = size - 4  # two bytes of tag, two of length
    return varint(1000 << 3 | 2) + varint(content) + bytes(content)


def test_a_session_does_not_hold_what_it_has_read(study_folder: Path, tmp_path: Path) -> None:
    """A phase's message of each of a thousand participants would be held until the next one."""
    size = 60_000

    async def scenario() -> int:
        async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
            sessions = where.study.sessions
            sessions.most_message_bytes = None  # a large one, before any round: a stray
            async with where.channel() as channel:
                session = await open_session(channel, identities(study_folder)[0], "seven")
                phase = pb.PhaseMessage(round=1, attempt=1, share_keys=pb.SealedShares(seed_commitment=bytes(size)))
                tracemalloc.start()
                await session.send(pb.ParticipantMessage(phase=phase))
                del phase
                await until(lambda: sessions.traffic.control_received >= size)
                await asyncio.sleep(0.05)
                large = [trace.size for trace in tracemalloc.take_snapshot().traces if trace.size >= size]
                tracemalloc.stop()
                session.close()
                return len(large)

    assert asyncio.run(scenario()) == 0


async def ending(call: Any) -> tuple[grpc.StatusCode, str]:
    """Read a stream to its end."""
    async with asyncio.timeout(20):
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError:
            pass
        return await call.code(), (await call.details()) or ""


def test_every_error_of_the_core_has_a_status() -> None:
    kinds = [
        kind
        for kind in vars(secagg.errors).values()
        if isinstance(kind, type) and issubclass(kind, secagg.errors.ProtocolError)
    ]
    assert len(kinds) >= 7
    assert set(kinds) <= set(STATUS)
    assert {SessionRefused, UploadRefused, UnexpectedUpload} <= set(STATUS)
    assert grpc.StatusCode.OK not in STATUS.values()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"identity": IdentityKey.generate(lambda n: b"s" * n).public}, "on version 1 of the study's roster"),
        ({"identity": b""}, "on version 1 of the study's roster"),
        ({"study": "eight"}, "another study"),
        ({"protocol_version": 2}, "protocol version 1, the participant 2"),
        ({"protocol_version": 0}, "same version of sordino"),
        ({"nonce": b"short"}, "32 bytes"),
    ],
)
async def test_open_refused(study_folder: Path, tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    async with coordinator(study_folder, tmp_path / "s.sqlite") as where, where.channel() as channel:
        call = raw_session(channel)
        message = pb.ParticipantMessage(open=opening(identities(study_folder)[0], **changes))
        await call.write(message.SerializeToString())
        code, details = await ending(call)
        assert code == grpc.StatusCode.PERMISSION_DENIED
        assert told in details
        assert where.of("participant_connected") == []


@pytest.mark.parametrize("who", ["a stranger", "a neighbour", "a replay"])
async def test_proof_refused(study_folder: Path, tmp_path: Path, who: str) -> None:
    mine, other = identities(study_folder)[:2]
    async with coordinator(study_folder, tmp_path / "s.sqlite") as where, where.channel() as channel:
        call = raw_session(channel)
        await call.write(pb.ParticipantMessage(open=opening(mine)).SerializeToString())
        challenge = pb.CoordinatorMessage.FromString(await call.read()).challenge
        signer = {"a stranger": IdentityKey.generate(os.urandom), "a neighbour": other, "a replay": mine}[who]
        nonce = bytes(32) if who == "a replay" else challenge.nonce
        signature = signer.sign(session_statement("seven", mine.public, bytes(32), nonce))
        await call.write(pb.ParticipantMessage(proof=pb.Proof(signature=signature)).SerializeToString())
        code, details = await ending(call)
        assert code == grpc.StatusCode.PERMISSION_DENIED
        assert "proof of identity" in details
        assert where.study.sessions.get(0) is None


FIRST_BYTES = {
    "garbage": b"\xff\xfe\xfd",
    "no message": b"",
    "another message first": pb.ParticipantMessage(ready=pb.Ready()).SerializeToString(),
    "a phase message first": pb.ParticipantMessage(phase=pb.PhaseMessage(round=1)).SerializeToString(),
    "oversize": pb.ParticipantMessage(open=pb.Open(study="s" * (5 << 20))).SerializeToString(),
    "end of stream": None,
}


@pytest.mark.parametrize("first", FIRST_BYTES)
async def test_wrong_openings(study_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, first: str) -> None:
    async with coordinator(study_folder, tmp_path / "s.sqlite") as where, where.channel() as channel:
        call = raw_session(channel)
        content = FIRST_BYTES[first]
        if content is None:
            await call.done_writing()
        else:
            with contextlib.suppress(grpc.aio.AioRpcError):  # it may be refused before it is written
                await call.write(content)
        code, _ = await ending(call)
        assert code != grpc.StatusCode.OK
        # The coordinator is as it was: an honest participant opens its session.
        session = await open_session(channel, identities(study_folder)[0], "seven")
        assert len(session.welcome.session_token) == 32
        session.close()
    assert faults(caplog) == []


@pytest.mark.parametrize("size", [0, 1])
async def test_a_message_larger_than_an_attempt_is_not_parsed(study_folder: Path, tmp_path: Path, size: int) -> None:
    async with coordinator(study_folder, tmp_path / "s.sqlite") as where, where.channel() as channel:
        largest = where.study.sessions.most_message_bytes
        assert largest == 256 * 7 + 1024 + 40 * 3  # six neighbours, three noise seeds
        session = await open_session(channel, identities(study_folder)[0], "seven")
        inside = where.study.sessions.get(0)
        assert inside is not None
        heartbeat = pb.ParticipantMessage(heartbeat=pb.Heartbeat())
        await session.send(heartbeat.FromString(heartbeat.SerializeToString() + unknown_field(largest - 2 + size)))
        await session.send(pb.ParticipantMessage(ready=pb.Ready()))
        await until(lambda: inside.ready or inside.closed)
        assert (inside.ready, inside.closed) == (size == 0, size == 1)
        session.close()


def test_whoever_reads_nothing_ends_and_whoever_comes_too_often_waits() -> None:
    roster = Roster("s", 1, (RosterEntry(bytes(32), "host"),))
    sessions = Sessions("s", roster, lambda *_: None)
    session = sessions.open(bytes(32))
    for _ in range(MOST_WAITING):
        session.send(b"message")
    assert not session.closed
    session.send(b"one more")
    assert session.closed
    assert session.outbox.qsize() == MOST_WAITING + 1  # the end
    for _ in range(SESSIONS_AT_ONCE - 1):
        sessions.open(bytes(32))
    with pytest.raises(TooManySessions):
        sessions.open(bytes(32))


def test_a_token_ends_with_its_session() -> None:
    """Replaced by a newer one, or of a participant that a later roster doesn't list."""
    roster = Roster("s", 1, (RosterEntry(bytes(32), "host"),))
    sessions = Sessions("s", roster, lambda *_: None)
    old, new = sessions.open(bytes(32)), sessions.open(bytes(32))
    assert sessions.by_token(old.token) is None
    assert sessions.by_token(new.token) is new
    assert sessions.adopt(Roster("s", 2, (RosterEntry(b"x" * 32, "host"),))) == [new]
    assert sessions.by_token(new.token) is None


def test_an_identity_that_is_revoked_between_its_challenge_and_its_proof() -> None:
    key = IdentityKey.generate(os.urandom)
    sessions = Sessions("seven", Roster("seven", 1, (RosterEntry(key.public, "host"),)), lambda *_: None)
    identity, *_ = sessions.challenge(opening(key))
    sessions.adopt(Roster("seven", 2, (RosterEntry(bytes(32), "host"),)))
    with pytest.raises(SessionRefused, match="on version 2"):
        sessions.open(identity)


async def test_a_session_that_is_never_proved_ends(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.service, "HANDSHAKE_S", 0.3)
    async with coordinator(study_folder, tmp_path / "s.sqlite") as where, where.channel() as channel:
        call = raw_session(channel)
        await call.write(pb.ParticipantMessage(open=opening(identities(study_folder)[0])).SerializeToString())
        await call.read()  # the challenge
        assert (await ending(call))[0] == grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("token", [None, b"", bytes(32), b"x" * 5000])
async def test_documents_and_uploads_need_a_token(study_folder: Path, tmp_path: Path, token: bytes | None) -> None:
    async with coordinator(study_folder, tmp_path / "s.sqlite") as where, where.channel() as channel:
        session = await open_session(channel, identities(study_folder)[0], "seven")
        metadata = () if token is None else ((TOKEN_METADATA, token),)
        request = pb.DocumentRequest(sha256=session.welcome.study_sha256)
        download = channel.unary_stream(SERVICE + "Download", request_serializer=pb.DocumentRequest.SerializeToString)(
            request, metadata=metadata
        )
        assert (await ending(download))[0] == grpc.StatusCode.UNAUTHENTICATED
        code, tries = LOST[0], 0
        while code in LOST and tries < 4:
            tries += 1
            code = await channel.stream_unary(SERVICE + "Upload")(frames(b"vector"), metadata=metadata).code()
        assert code == grpc.StatusCode.UNAUTHENTICATED
        session.close()


async def test_documents(study_folder: Path, tmp_path: Path) -> None:
    async with coordinator(study_folder, tmp_path / "s.sqlite") as where:
        peer = Peer(where, identities(study_folder)[0])
        await peer.connect()
        assert peer.session is not None
        study_bytes = await peer.download(peer.session.welcome.study_sha256)
        assert hashlib.sha256(study_bytes).digest() == peer.session.welcome.study_sha256
        for unknown in (b"", bytes(32), b"x" * 1000, hashlib.sha256(b"the key").digest()):
            with pytest.raises(DocumentUnavailable, match="no document of this study has this digest"):
                await peer.download(unknown)
        await peer.close()


async def test_credits_bound_what_is_staged(study_folder: Path, tmp_path: Path) -> None:
    """Two credits, seven uploads: a third participant gets a credit when one of the first two is done."""
    at_once: list[int] = []
    sending: set[int] = set()

    async def watched(peer: Peer, packed: bytes) -> None:
        sending.add(peer.position)
        at_once.append(len(sending))

        async def chunks() -> Any:
            for message in frames(packed):
                await asyncio.sleep(0.02)  # long enough that others would overlap
                yield message
            # The credit goes on when the vector is added, which is before the receipt is read here.
            sending.discard(peer.position)

        await peer.upload(chunks())

    async with coordinator(study_folder, tmp_path / "s.sqlite", coordinator={"upload_credits": 2}) as where:
        peers = [Peer(where, key, uploader=watched, misbehaves=frozenset({1, 2})) for key in identities(study_folder)]
        await where.play(peers)
        assert [round_["u3"] for round_ in where.of("round_completed")] == [PARTICIPANTS, PARTICIPANTS]
    assert max(at_once) == 2
    assert len(at_once) == 2 * PARTICIPANTS


async def test_chunks_of_a_large_document(study_folder: Path, tmp_path: Path) -> None:
    """More than one chunk, none above 256 KiB."""
    async with coordinator(study_folder, tmp_path / "s.sqlite") as where:
        large = os.urandom(600_000)
        where.study._documents[hashlib.sha256(large).digest()] = large
        peer = Peer(where, identities(study_folder)[0])
        await peer.connect()
        assert peer.session is not None
        assert peer.channel is not None
        call = peer.channel.unary_stream(SERVICE + "Download", request_serializer=pb.DocumentRequest.SerializeToString)(
            pb.DocumentRequest(sha256=hashlib.sha256(large).digest()),
            metadata=((TOKEN_METADATA, peer.session.welcome.session_token),),
        )
        sizes = [len(unframe(frame)) async for frame in call]
        assert sizes == [262_144, 262_144, 600_000 - 2 * 262_144]
        await peer.close()


# ---------------------------------------------------------------- sessions that are over


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
    server.service.receive(study_of(heard), session, message.SerializeToString())
    assert heard[-1][1] == 3
    session.close()
    with pytest.raises(SessionRefused, match="the session is over"):
        server.service.receive(study_of(heard), session, message.SerializeToString())
    assert len(heard) == 1


async def test_it_is_over_although_its_peer_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place is lost after a moment. The call stays, among those that its certificate may have open, until the
    connection ends: for so long gRPC holds the message that isn't read, whatever becomes of the call."""
    monkeypatch.setattr(server.service, "FAREWELL_S", 0.1)
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

    monkeypatch.setattr(server.service, "_handshake", handshake)
    context: Any = SimpleNamespace(write=never, peer=lambda: "ipv4:127.0.0.1:1")
    task = asyncio.create_task(server.service._session(study_of(heard), requests(), context))
    await asyncio.sleep(0)
    session.send(b"the last word")
    await asyncio.sleep(0.01)
    session.close()
    await until(lambda: heard)
    assert heard == [("lost", "connection closed")]
    assert not task.done()
    connection_ended.set()
    await asyncio.wait_for(task, 30)


async def test_a_session_that_says_ever_again_that_it_is_ready_ends() -> None:
    session = Session(b"identity", 0, "host", b"token", ready=True, strays=MOST_STRAYS - 1)
    Study.session_ready(cast(Study, None), session, pb.Ready())
    with pytest.raises(SessionRefused):
        Study.session_ready(cast(Study, None), session, pb.Ready())
