"""The gRPC service: decodes, hands on, encodes. No protocol rule lives here.

Vectors and documents travel as hand-framed chunks through raw-bytes handlers (`wire.transport`); control messages are
protobuf on one stream per participant.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import lru_cache, partial
from typing import Any, NoReturn, Protocol, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError

from secagg import errors
from server.attempt.uploads import BrokenUpload, MalformedUpload, UnexpectedUpload, UploadRefused
from server.events import RESTING
from server.peer_certificate import check_certificate
from server.sessions import CLOSED, RESUMABLE, STOPPED, Session, SessionRefused, Sessions, TooManySessions
from wire import codec, coordinator_pb2 as pb
from wire.process_limits import PortBounds
from wire.transport import TOKEN_METADATA, frames

log = structlog.get_logger()

SERVICE = "sordino.v1.Coordinator"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
HANDSHAKE_S = 10.0
FAREWELL_S = 5.0  # for the last messages of a session that is over
_CUT_ONCE = 4_000_000  # bytes of a document whose chunks are held, beside it
HEARTBEAT = codec.message(heartbeat=pb.Heartbeat())

# From an error to the status for the peer, which gets a bland sentence; the log has the detail.
STATUS: dict[type[Exception], grpc.StatusCode] = {
    errors.InvalidMessage: grpc.StatusCode.INVALID_ARGUMENT,  # this participant is dropped
    errors.UnexpectedMessage: grpc.StatusCode.FAILED_PRECONDITION,  # retrying won't help
    UploadRefused: grpc.StatusCode.INVALID_ARGUMENT,  # this participant is dropped
    BrokenUpload: grpc.StatusCode.INVALID_ARGUMENT,  # and unless it goes on soon, its participant is dropped
    MalformedUpload: grpc.StatusCode.INVALID_ARGUMENT,  # and excluded
    UnexpectedUpload: grpc.StatusCode.FAILED_PRECONDITION,  # late, or a second one: discarded
    errors.TooFewClients: grpc.StatusCode.ABORTED,  # join the next attempt
    errors.ReconstructionFailed: grpc.StatusCode.ABORTED,
    errors.CoordinatorMisbehaved: grpc.StatusCode.ABORTED,
    errors.InvalidKey: grpc.StatusCode.INVALID_ARGUMENT,
    SessionRefused: grpc.StatusCode.PERMISSION_DENIED,
    TooManySessions: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.ProtocolError: grpc.StatusCode.INTERNAL,
}


class Front(Protocol):
    """What the service serves: a study in this process, or a gateway of one."""

    sessions: Sessions

    @property
    def bounds(self) -> PortBounds: ...

    def opened(self, session: Session) -> None: ...

    def phase_message(self, session: Session, message: pb.PhaseMessage, size: int) -> None: ...

    def refusal(self, session: Session, message: pb.Refusal, size: int) -> None: ...

    def session_ready(self, session: Session, message: pb.Ready) -> None: ...

    async def upload(self, session: Session, chunks: AsyncIterator[bytes]) -> bytes: ...

    async def requested(self, session: Session, request: pb.DocumentRequest) -> bytes | None: ...

    async def room(self) -> None: ...  # until more messages can be taken

    def downloaded(self, session: Session, size: int) -> None: ...


def handlers(front: Front) -> grpc.GenericRpcHandler:
    """The three methods of the service."""
    # Partial coroutine functions: gRPC takes a lambda for a blocking handler. Where it gets no codec, bytes are read
    # here, where their length counts as traffic, or were serialised before they were queued, or are framed chunks.
    upload, download = partial(_upload, front), partial(_download, front)
    methods = {
        "Session": grpc.stream_stream_rpc_method_handler(partial(_session, front)),
        "Upload": grpc.stream_unary_rpc_method_handler(upload, None, pb.UploadReceipt.SerializeToString),
        "Download": grpc.unary_stream_rpc_method_handler(download, pb.DocumentRequest.FromString),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


async def _refuse(front: Front, context: Context, code: grpc.StatusCode, reason: str) -> NoReturn:
    front.sessions.refused_calls.note()
    await context.abort(code, reason)
    raise AssertionError("abort raises")


async def _session(front: Front, requests: AsyncIterator[bytes], context: Context) -> None:
    iterator = aiter(requests)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            session = await _handshake(front, iterator, context)
    except SessionRefused as error:
        log.info("session refused", peer=context.peer(), reason=str(error))
        await _refuse(front, context, STATUS[SessionRefused], str(error))
    except TooManySessions as error:
        await _refuse(front, context, STATUS[TooManySessions], str(error))
    except (TimeoutError, StopAsyncIteration):
        await _refuse(front, context, grpc.StatusCode.DEADLINE_EXCEEDED, "the session was not opened in time")
    except DecodeError:
        await _refuse(front, context, grpc.StatusCode.INVALID_ARGUMENT, "not a message of this protocol")
    writer = asyncio.create_task(_write(front, session, context))
    reader = asyncio.create_task(_read(front, session, context))
    over = asyncio.create_task(session.over.wait())
    reason = CLOSED
    try:
        await asyncio.wait({writer, reader, over}, return_when=asyncio.FIRST_COMPLETED)
        if over.done() and not session.cut:
            await asyncio.wait({writer}, timeout=FAREWELL_S)  # a peer that reads nothing is not waited for
        if session.leaving:  # whatever it says after that
            reason = session.leaving
        elif reader.done() and not reader.cancelled() and isinstance(reader.exception(), SessionRefused):
            reason = str(reader.exception())
        front.sessions.lost(session, reason)
        if session.writing and reason in RESUMABLE:
            # gRPC keeps a message that isn't read until the connection ends, even if the call ends before. So this one
            # stays for as long, among those that its certificate may have open, and its participant's place knows of
            # it (`server.attempt.reconnection_slots`): else each return would add one more message held.
            session.cut_off()
            await asyncio.wait({writer})
    finally:
        front.sessions.lost(session, reason)
        tasks = (reader, writer, over)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _handshake(front: Front, iterator: AsyncIterator[bytes], context: Context) -> Session:
    first = pb.ParticipantMessage.FromString(await anext(iterator))
    if first.WhichOneof("message") != "open":
        raise SessionRefused("a session begins with Open")
    identity, nonce, statement = front.sessions.challenge(first.open)
    check_certificate(context.auth_context(), identity, front.sessions.host(identity))
    await context.write(codec.message(challenge=pb.Challenge(nonce=nonce)))
    second = pb.ParticipantMessage.FromString(await anext(iterator))
    if second.WhichOneof("message") != "proof":
        raise SessionRefused("the challenge must be answered with Proof")
    await front.sessions.check_proof(identity, statement, second.proof.signature)
    session = front.sessions.open(identity)
    front.opened(session)
    return session


async def _write(front: Front, session: Session, context: Context) -> None:
    while (message := await session.outbox.get()) is not None:
        session.writing = True
        try:
            await context.write(message)
        finally:
            session.writing = False
        front.sessions.traffic.control_sent += len(message)
        del message  # as below


async def _read(front: Front, session: Session, context: Context) -> None:
    # Not through gRPC's iterator, which holds what it gave last until the next message comes: with a thousand sessions
    # that is a whole phase's.
    while (raw := await context.read()) is not grpc.aio.EOF:
        receive(front, session, raw)
        del raw  # likewise
        await front.room()


def receive(front: Front, session: Session, raw: bytes) -> None:
    """Hand on a message of an open session. Raises SessionRefused: no honest participant sends it."""
    front.sessions.traffic.control_received += len(raw)
    if session.closed:  # its position may belong to another participant by now
        raise SessionRefused("the session is over")
    largest = front.sessions.most_message_bytes
    if largest is not None and len(raw) > largest:  # before it is parsed
        raise SessionRefused("a message is larger than all of an attempt")
    try:
        message = pb.ParticipantMessage.FromString(raw)
    except DecodeError as error:
        raise SessionRefused("not a message of this protocol") from error
    match message.WhichOneof("message"):
        case "phase":
            front.phase_message(session, message.phase, len(raw))
        case "refusal":
            front.refusal(session, message.refusal, len(raw))
        case "ready":
            front.session_ready(session, message.ready)
        case "leaving":
            session.leaving = RESTING if message.leaving.resting and session.rests_until else STOPPED
            session.close()
        case "heartbeat":
            # No answer is owed while others wait to be read: a peer that never reads costs no memory.
            if session.outbox.empty():
                session.send(HEARTBEAT)
        case _:
            raise SessionRefused("a message that an open session doesn't take")


async def _token_session(front: Front, context: Context) -> Session:
    given = next((value for key, value in context.invocation_metadata() or () if key == TOKEN_METADATA), None)
    session = front.sessions.by_token(given) if isinstance(given, bytes) else None
    if session is None:
        await _refuse(front, context, grpc.StatusCode.UNAUTHENTICATED, "no open session has this token")
    return session


async def _upload(front: Front, requests: AsyncIterator[bytes], context: Context) -> pb.UploadReceipt:
    session = await _token_session(front, context)
    try:
        return pb.UploadReceipt(sha256=await front.upload(session, front.sessions.traffic.of_upload(requests)))
    except UploadRefused as error:
        await _refuse(front, context, STATUS[type(error)], str(error))


@lru_cache(maxsize=4)
def _cut(document: bytes) -> tuple[bytes, ...]:
    """Once for all that fetch it: 400 kB take 0.4 ms each time, most of it for fresh pages."""
    return tuple(frames(document))


async def _download(front: Front, request: pb.DocumentRequest, context: Context) -> AsyncIterator[bytes]:
    session = await _token_session(front, context)
    document = await front.requested(session, request)
    if document is None:
        await _refuse(front, context, grpc.StatusCode.NOT_FOUND, "no document of this study has this digest")
    front.downloaded(session, len(document))
    for frame in _cut(document) if len(document) <= _CUT_ONCE else frames(document):
        yield frame
        front.sessions.traffic.documents_sent += len(frame)
