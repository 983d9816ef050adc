"""The participant's side of the wire: one TLS channel per process, with sessions, documents and uploads over it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc

from client.credentials import ClientCertificate
from runtime.address import split_addresses
from secagg.keys import IdentityKey, session_statement
from wire import coordinator_pb2 as pb
from wire.codec import PROTOCOL_VERSION
from wire.roster_history import LARGEST_HISTORY
from wire.transport import (
    CALLER_OPTIONS,
    HEARTBEAT_ANSWER_S,
    HEARTBEAT_S,
    NONCE_BYTES,
    PARTICIPANT_OPTIONS,
    TOKEN_METADATA,
    InvalidChunk,
    unframe,
)

SERVICE = "/sordino.v1.Coordinator/"
HANDSHAKE_S = 30.0
TURN_S = 2.0  # for a connection, where the coordinator has addresses that were not tried yet
HANDSHAKES = 3  # attempts, where a stream ends without a reason
AHEAD = 8  # messages that are read before they are handled
FAREWELL_S = 0.5  # for the coordinator to note that a participant stops
TRANSFER_S = 600.0  # longest time for one vector or document, independent of the coordinator's deadlines
CHANNEL_OPTIONS = [*CALLER_OPTIONS, *PARTICIPANT_OPTIONS]


class UploadRejected(Exception):
    """The coordinator doesn't take the vector, or no longer."""


class DocumentUnavailable(Exception):
    """The coordinator doesn't hand out the document, or no longer."""


class DocumentMismatch(Exception):
    """The coordinator sent bytes that don't have the announced digest, or too many."""


def open_channel(address: str, ca: bytes, certificate: ClientCertificate | None = None) -> grpc.aio.Channel:
    """A TLS channel that trusts only these certificate authorities (PEM); a session needs a client certificate."""
    pair = (None, None) if certificate is None else (certificate.key, certificate.chain)
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca, *pair), options=CHANNEL_OPTIONS)


class Channels:
    """The TLS channels of a process, one for each address of the coordinator that is used.

    Participants begin at an address each, by a hash of the study and the identity, and go on to the next one when
    theirs is away. After the process's certificate was renewed there are new channels from the next session on.
    """

    def __init__(self, addresses: str, ca: bytes, certificate: ClientCertificate) -> None:
        """Args: addresses: HOST:PORT; several with commas."""
        self._addresses, self._ca, self._certificate = split_addresses(addresses), ca, certificate
        self._current: dict[str, grpc.aio.Channel] = {}
        self._opened: list[grpc.aio.Channel] = []

    @staticmethod
    def first_turn(study: str, identity: bytes) -> int:
        """The turn that a participant begins with."""
        return int.from_bytes(hashlib.sha256(study.encode() + identity).digest()[:4], "little")

    def patience_s(self, failures: int) -> float:
        """How long to try an address: another one may answer at once, but a slow network needs the whole time."""
        return TURN_S if failures < len(self._addresses) > 1 else HANDSHAKE_S

    def address(self, turn: int = 0) -> str:
        return self._addresses[turn % len(self._addresses)]

    def current(self, turn: int = 0) -> grpc.aio.Channel:
        address = self.address(turn)
        if address not in self._current:
            self._current[address] = open_channel(address, self._ca, self._certificate)
            self._opened.append(self._current[address])
        return self._current[address]

    def renew(self, certificate: ClientCertificate) -> None:
        """Use this certificate from the next session on; open sessions stay."""
        self._certificate, self._current = certificate, {}

    async def close(self, grace: float | None = None) -> None:
        """Close the connections and all calls on them, after `grace` seconds."""
        await asyncio.gather(*(channel.close(grace) for channel in self._opened))

    async def cut(self) -> None:
        """Close the connections at once; the next session gets a new one."""
        # Replaced first: another participant may ask for the current one while these are being closed.
        opened, self._opened, self._current = self._opened, [], {}
        await asyncio.gather(*(channel.close() for channel in opened))


class Session:
    """One participant's control stream after its handshake."""

    def __init__(self, call: Any, channel: grpc.aio.Channel, welcome: pb.Welcome) -> None:
        self._call, self._channel, self.welcome = call, channel, welcome
        self._sending = asyncio.Lock()
        self._incoming: asyncio.Queue[pb.CoordinatorMessage | Exception | None] = asyncio.Queue(AHEAD)
        self._ended = asyncio.Event()
        self._read_so_far = asyncio.Event()  # something was read since this was cleared
        self._reader = asyncio.create_task(self._read())

    async def send(self, message: pb.ParticipantMessage) -> None:
        """Write one message; on a stream that has ended it is lost, and the next read shows that."""
        async with self._sending:  # a heartbeat in the middle of another message would end the call (INTERNAL)
            await _write(self._call, message)

    async def messages(self) -> AsyncIterator[pb.CoordinatorMessage]:
        """Messages until the coordinator ends the stream; `grpc.aio.AioRpcError` when it breaks."""
        while (message := await self._incoming.get()) is not None:
            if isinstance(message, Exception):
                raise message
            yield message

    async def _read(self) -> None:
        """Read ahead: a write to a stream that the coordinator has ended loses unread messages, StudyEnd included."""
        end: Exception | None = None
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._read_so_far.set()
                await self._incoming.put(message)
        except grpc.aio.AioRpcError as error:
            end = error
        self._ended.set()
        self._read_so_far.set()
        await self._incoming.put(end)

    async def breaks(self, within_s: float) -> bool:
        """Whether the stream has ended or ends within this time, which explains a call that failed just before."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._ended.wait()
        return self._ended.is_set()

    async def beat(self) -> None:
        """Send heartbeats; raises TimeoutError if the coordinator is silent although the connection seems intact."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if self._ended.is_set():  # `messages` raises the reason, perhaps only after a long training
                await asyncio.Event().wait()
            self._read_so_far.clear()
            await self.send(pb.ParticipantMessage(heartbeat=pb.Heartbeat()))
            try:
                async with asyncio.timeout(HEARTBEAT_ANSWER_S):
                    await self._read_so_far.wait()
            except TimeoutError:
                if not self._incoming.full():  # else the answer waits behind unhandled messages
                    raise

    async def leave(self, *, resting: bool = False) -> None:
        """Tell the coordinator that this participant stops, or rests as told, so that it doesn't wait for it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self.send(pb.ParticipantMessage(leaving=pb.Leaving(resting=resting)))
                await self._ended.wait()

    async def upload(self, chunks: AsyncIterator[bytes]) -> bytes:
        """Send framed chunks, made on demand; returns the digest that the coordinator counted.

        Raises UploadRejected: it wasn't taken, or came too late. Only the session's stream shows whether the session
        goes on: a call that the coordinator ends during a write can end in any status; Exception: any error of
        `chunks`.
        """
        broken: list[Exception] = []

        async def watched() -> AsyncIterator[bytes]:
            try:
                async for chunk in chunks:
                    yield chunk
            except Exception as error:
                broken.append(error)
                raise

        call: Any = self._channel.stream_unary(
            SERVICE + "Upload", request_serializer=None, response_deserializer=pb.UploadReceipt.FromString
        )(cast(Any, watched()), metadata=self._metadata(), timeout=TRANSFER_S)
        try:
            receipt: pb.UploadReceipt = await call
        except asyncio.CancelledError:
            # gRPC also cancels a call whose chunks fail, or whose end it can't write. Re-raised if the task ends.
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            if broken:
                raise broken[0] from None
            raise UploadRejected("the call ended while it was written to") from None
        except grpc.aio.AioRpcError as error:
            raise UploadRejected(error.details() or error.code().name) from error
        return receipt.sha256

    async def download(self, sha256: bytes, largest: int) -> bytes:
        """Fetch a document by its digest.

        Raises DocumentMismatch (more than ``largest`` bytes, or another digest) or DocumentUnavailable (it isn't there,
        or the session or the connection has ended).
        """
        document = await self._download(pb.DocumentRequest(sha256=sha256), largest)
        if hashlib.sha256(document).digest() != sha256:
            raise DocumentMismatch("a document doesn't have the digest that was announced")
        return document

    async def model(self, sha256: bytes, largest: int, held: bytes) -> bytes:
        """Fetch a model, or the shorter step from one with the digest ``held``: unchecked. Raises as `download`."""
        return await self._download(pb.DocumentRequest(sha256=sha256, held=held), largest)

    async def history(self, after: int) -> bytes:
        """Fetch the history of the roster after a version, unchecked. Raises as `download`."""
        return await self._download(pb.DocumentRequest(history_after=after), LARGEST_HISTORY)

    async def _download(self, request: pb.DocumentRequest, largest: int) -> bytes:
        """Raises as `download`."""
        call: Any = self._channel.unary_stream(
            SERVICE + "Download", request_serializer=pb.DocumentRequest.SerializeToString, response_deserializer=None
        )(request, metadata=self._metadata(), timeout=TRANSFER_S)
        document = bytearray()
        try:
            async for frame in call:
                document += unframe(frame)
                if len(document) > largest:
                    raise DocumentMismatch(f"a document is longer than {largest} bytes")
        except InvalidChunk as error:
            raise DocumentMismatch(f"a document comes in pieces that are no chunks: {error}") from error
        except grpc.aio.AioRpcError as error:
            raise DocumentUnavailable(error.details() or error.code().name) from error
        finally:
            call.cancel()
        return bytes(document)

    def _metadata(self) -> tuple[tuple[str, bytes], ...]:
        return ((TOKEN_METADATA, self.welcome.session_token),)

    def close(self) -> None:
        self._ended.set()
        self._reader.cancel()
        self._call.cancel()


async def open_session(channel: grpc.aio.Channel, identity: IdentityKey, study: str) -> Session:
    """Open the control stream and prove the identity.

    Raises `grpc.aio.AioRpcError` if it is unreachable or refused (PERMISSION_DENIED with the reason), TimeoutError if
    the other side stays silent.
    """
    for _ in range(HANDSHAKES - 1):
        try:
            return await _open_session(channel, identity, study)
        except grpc.aio.AioRpcError as error:
            # gRPC's code for a write to a stream that was refused just before; the reason is lost.
            if error.code() is not grpc.StatusCode.INTERNAL:
                raise
    return await _open_session(channel, identity, study)


async def _open_session(channel: grpc.aio.Channel, identity: IdentityKey, study: str) -> Session:
    call = channel.stream_stream(
        SERVICE + "Session",
        request_serializer=pb.ParticipantMessage.SerializeToString,
        response_deserializer=pb.CoordinatorMessage.FromString,
    )()
    nonce = os.urandom(NONCE_BYTES)
    opening = pb.Open(protocol_version=PROTOCOL_VERSION, identity=identity.public, study=study, nonce=nonce)
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            await _write(call, pb.ParticipantMessage(open=opening))
            challenge = await _expect(call, "challenge")
            statement = session_statement(study, identity.public, nonce, challenge.nonce)
            await _write(call, pb.ParticipantMessage(proof=pb.Proof(signature=identity.sign(statement))))
            return Session(call, channel, await _expect(call, "welcome"))
    except BaseException:
        call.cancel()
        raise


async def _write(call: Any, message: pb.ParticipantMessage) -> None:
    with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):  # the stream has ended
        await call.write(message)


async def _expect(call: Any, kind: str) -> Any:
    message = await call.read()
    if message is grpc.aio.EOF:
        # When the stream was refused, its status says why: raise that instead of a guess.
        code = await call.code()
        if code != grpc.StatusCode.OK:
            raise grpc.aio.AioRpcError(
                code, await call.initial_metadata(), await call.trailing_metadata(), details=await call.details()
            )
    elif message.WhichOneof("message") == kind:
        return getattr(message, kind)
    raise DocumentMismatch(f"the coordinator didn't answer with {kind}")
