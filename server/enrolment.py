"""The enrolment service: describes the study, keeps requests for the authority, takes what the authority publishes.

It listens on a separate port, where callers have no client certificate yet, so everything is bounded: the size of a
message before it is read, the calls of one address, the requests that wait. The coordinator is not trusted here:
requests and answers carry proofs that it can't make. What the authority publishes is checked completely before
anything is replaced.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc import StatusCode

from runtime.durable import StorageError
from runtime.settings_file import ConfigurationError
from runtime.text import minute
from secagg.roster import InvalidRoster, Roster
from secagg.signatures import verify_signature
from server.membership import check_later_roster
from server.study import Study
from server.study_file import StudyConfiguration
from wire import coordinator_pb2 as pb
from wire.authority_statements import (
    LARGEST_PACKAGE,
    Answer,
    InvalidAnswer,
    InvalidCard,
    InvalidPackage,
    Package,
    pending_statement,
    read_package,
    verify_answer,
    verify_card,
)
from wire.codec import PROTOCOL_VERSION
from wire.enrolment import LARGEST_REQUEST, InvalidRequest, read_request
from wire.join_code import fingerprint
from wire.open_calls import Caller, CallRefused, OpenCalls, PeerRates, address_of
from wire.process_limits import ENROLMENT_CONNECTIONS, connection_options
from wire.records.enrolment_requests import EnrolmentRequests, QueueFull
from wire.records.roster_file import ENROLMENT_FOLDER, RosterFile
from wire.roster_history import check_descent, read_history
from wire.study import read_draws
from wire.transport import LARGEST_FRAME, NONCE_METADATA, SIGNATURE_METADATA, TIME_METADATA, InvalidChunk, unframe

log = structlog.get_logger()

SERVICE: Final = "sordino.v1.Enrolment"

CALLS_PER_S, CALLS_AT_ONCE = 20.0, 200.0  # of one address
NEW_PER_S, NEW_AT_ONCE = 2.0, 60.0  # requests that weren't here before
NONCE_VALID_S: Final = 60.0
OPEN_CALLS: Final = 32  # of one address at the same time: each takes milliseconds
MOST_CALLS: Final = 2048  # of all: one address, or a few, can't hold them
PUBLISH_S: Final = 600.0
CLOCK_AHEAD_S: Final = 3600.0
_PENDING_BYTES: Final = 3 << 20  # of one answer to the authority, within what gRPC takes by default
_NONCE_TIME, _NONCE_RANDOM, _NONCE_MAC = 8, 8, 16
_OF_AUTHORITY: Final = frozenset(f"/{SERVICE}/{name}" for name in ("Challenge", "Pending", "Publish"))

OPTIONS: Final = [
    ("grpc.max_receive_message_length", LARGEST_FRAME + 1024),
    ("grpc.max_concurrent_streams", 8),
    ("grpc.max_connection_idle_ms", 30_000),
    # Whatever a caller does not take is let go of then; a package may be on its way until the grace is over.
    ("grpc.max_connection_age_ms", 600_000),
    ("grpc.max_connection_age_grace_ms", 660_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.so_reuseport", 0),
]


class Challenges:
    """Nonces that the authority signs: short-lived, valid once, and stored only after they were used."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._key, self._clock = os.urandom(32), clock
        self._used: dict[bytes, float] = {}  # only nonces with a valid signature: other callers can't fill it

    def issue(self) -> bytes:
        """A fresh nonce, 32 bytes: when, at random, and a MAC that tells it is one of ours."""
        head = int(self._clock() * 1000).to_bytes(_NONCE_TIME, "big") + secrets.token_bytes(_NONCE_RANDOM)
        return head + self._mac(head)

    def _mac(self, head: bytes) -> bytes:
        return hmac.digest(self._key, head, "sha256")[:_NONCE_MAC]

    def check(self, nonce: bytes, signature: bytes, study: str, authority_public: bytes) -> None:
        """Whether the authority signed this nonce just now, for the first time. Raises `CallRefused`: it didn't."""
        now, head = self._clock(), nonce[: _NONCE_TIME + _NONCE_RANDOM]
        age_s = now - int.from_bytes(head[:_NONCE_TIME], "big") / 1000
        if not hmac.compare_digest(nonce, head + self._mac(head)) or not -1 <= age_s <= NONCE_VALID_S:
            raise CallRefused(StatusCode.UNAUTHENTICATED, "the challenge is too old, or was not made here: ask again")
        if not verify_signature(authority_public, signature, pending_statement(study, nonce)):
            raise CallRefused(StatusCode.PERMISSION_DENIED, "only the study's authority may do this")
        self._used = {one: since for one, since in self._used.items() if now - since <= NONCE_VALID_S + 1}
        if nonce in self._used:
            raise CallRefused(StatusCode.UNAUTHENTICATED, "the challenge was used before: ask again")
        self._used[nonce] = now


class Enrolment:
    """The service's side of one study."""

    def __init__(self, configuration: StudyConfiguration, study: Study, files: RosterFile) -> None:
        """
        ``files``: where a published roster goes; must have been read.

        Raises ConfigurationError: the card can't be used; runtime.durable.StorageError: the folder for requests can't
        be used.
        """
        table = configuration.coordinator
        self._study, self._files, self._one_machine = study, files, table.one_machine
        self._authority_public = configuration.read_authority_public_key()
        self._card = _read_card(table.card, study.terms.study, self._authority_public)
        self._document = study.terms.to_bytes()
        self._requests = EnrolmentRequests(table.state.parent / ENROLMENT_FOLDER / "requests.sqlite")
        self._challenges = Challenges()
        self._calls = PeerRates(CALLS_PER_S, CALLS_AT_ONCE)
        self._new = PeerRates(NEW_PER_S, NEW_AT_ONCE)
        self._publishing = asyncio.Lock()

    def close(self) -> None:
        self._requests.close()

    @property
    def waiting(self) -> int:
        """Requests that the authority hasn't answered yet."""
        return len(self._requests)

    # ------------------------------------------------------------ for joiners

    async def describe(self, raw: bytes, address: str) -> pb.Description:
        """What a joiner reads before it sends anything.

        Raises CallRefused: too many calls, or another protocol version.
        """
        self._count(address)
        version = _parse(pb.DescribeRequest, raw).protocol_version
        if version != PROTOCOL_VERSION:
            raise CallRefused(
                StatusCode.FAILED_PRECONDITION,
                f"this coordinator speaks protocol version {PROTOCOL_VERSION}, you speak {version}: install the same "
                "version of sordino on both sides",
            )
        return pb.Description(card=self._card, study_document=self._document, newest=self._files.statement_file)

    async def enrol(self, raw: bytes, address: str) -> pb.EnrolAnswer:
        """Take a request, or say what became of it.

        Raises CallRefused: too many calls or requests, none at all, or nothing can be written down.
        """
        self._count(address)
        if len(raw) > LARGEST_REQUEST + 16:
            raise CallRefused(StatusCode.INVALID_ARGUMENT, f"a request has at most {LARGEST_REQUEST} bytes")
        data = _parse(pb.EnrolRequest, raw).request
        try:
            signed = await asyncio.to_thread(read_request, data)
        except InvalidRequest as error:
            raise CallRefused(StatusCode.INVALID_ARGUMENT, str(error)) from error
        request = signed.request
        if request.study != self._study.terms.study:
            raise CallRefused(StatusCode.FAILED_PRECONDITION, "this coordinator runs another study")
        try:
            if self._requests.waits(signed.id):
                await self._requests.written(signed.id)
                return pb.EnrolAnswer(status=pb.ENROL_STATUS_PENDING)
            answer = await self._requests.answer(signed.id)
            if answer is not None:
                return self._told(request.kind, request.identity, answer)
            if request.kind == "renew" and not self._study.has_identity(request.identity):
                return pb.EnrolAnswer(
                    status=pb.ENROL_STATUS_REFUSED, reason="this identity was revoked or never enrolled"
                )
            if request.at > time.time() + CLOCK_AHEAD_S:
                raise CallRefused(
                    StatusCode.FAILED_PRECONDITION,
                    f"the request is of {minute(request.at)}, the coordinator's clock says {minute(time.time())}: one "
                    "of the two clocks is wrong",
                )
            if not self._new.allow(address):
                raise CallRefused(StatusCode.RESOURCE_EXHAUSTED, "too many requests from your address: wait a while")
            await self._requests.add(signed, address)
        except QueueFull as error:
            raise CallRefused(StatusCode.RESOURCE_EXHAUSTED, str(error)) from error
        except StorageError as error:
            log.error("a request can't be written down", reason=str(error))
            raise CallRefused(
                StatusCode.RESOURCE_EXHAUSTED, "the coordinator can't write requests down now: try again later"
            ) from error
        log.info("a request waits for the authority", kind=request.kind, identity=request.identity.hex()[:12])
        return pb.EnrolAnswer(status=pb.ENROL_STATUS_PENDING)

    def _told(self, kind: str, identity: bytes, data: bytes) -> pb.EnrolAnswer:
        answer = verify_answer(data, self._authority_public)
        if not answer.accepted:
            return pb.EnrolAnswer(status=pb.ENROL_STATUS_REFUSED, reason=answer.reason, answer=data)
        if not self._study.has_identity(identity):
            if self._study.roster_version >= answer.roster_version:
                reason = "this identity was enrolled and has been revoked since"
                return pb.EnrolAnswer(status=pb.ENROL_STATUS_REFUSED, reason=reason)
            if kind == "join":  # its roster is used from the next attempt on
                return pb.EnrolAnswer(status=pb.ENROL_STATUS_PENDING)
        return pb.EnrolAnswer(status=pb.ENROL_STATUS_ACCEPTED, answer=data)

    def _count(self, address: str) -> None:
        if not self._calls.allow(address):
            raise CallRefused(StatusCode.RESOURCE_EXHAUSTED, "too many calls from your address: wait a moment")

    # ------------------------------------------------------------ for the authority

    async def challenge(self, raw: bytes, address: str) -> pb.AuthorityChallenge:
        """A nonce to sign. Raises `CallRefused`: too many calls."""
        self._count(address)
        return pb.AuthorityChallenge(nonce=self._challenges.issue())

    async def pending(self, raw: bytes, address: str) -> pb.PendingRequests:
        """The oldest requests that wait, as many as fit one message; more when these are answered.

        Raises CallRefused: not the authority.
        """
        self._count(address)
        message = _parse(pb.PendingRequest, raw)
        self._check_authority(message.nonce, message.signature)
        return pb.PendingRequests(
            requests=self._requests.waiting(_PENDING_BYTES),
            roster_version=self._files.newest.version,
            newest_until=0 if self._files.statement is None else self._files.statement.until,
        )

    def _check_authority(self, nonce: bytes, signature: bytes) -> None:
        self._challenges.check(nonce, signature, self._study.terms.study, self._authority_public)

    async def publish(
        self, chunks: AsyncIterator[bytes], nonce: bytes, signature: bytes, address: str
    ) -> pb.PublishReceipt:
        """Take a package of the authority: all of it or nothing. The same one again is fine.

        ``nonce``, ``signature``: as for `pending`, so that only the authority can make this process hold a package.

        Raises CallRefused: not the authority, a package that can't be used, or one that can't be written.
        """
        self._count(address)
        self._check_authority(nonce, signature)
        # One after the other, each read when it is its turn: the authority's commands run beside each other.
        async with self._publishing:
            data = bytearray()
            try:
                async with asyncio.timeout(PUBLISH_S):
                    async for chunk in chunks:
                        data += unframe(chunk)
                        if len(data) > LARGEST_PACKAGE:
                            raise CallRefused(StatusCode.INVALID_ARGUMENT, "the package is larger than any may be")
                package, roster, answers = await asyncio.to_thread(self._check_package, bytes(data))
            except TimeoutError as error:
                raise CallRefused(StatusCode.DEADLINE_EXCEEDED, "the package didn't come in time") from error
            except (InvalidChunk, InvalidPackage, InvalidRoster, InvalidAnswer) as error:
                raise CallRefused(StatusCode.INVALID_ARGUMENT, str(error)) from error
            try:
                # To its end even when the caller is cut off: files must not be left to two writers.
                await asyncio.shield(asyncio.to_thread(self._files.publish, roster, package))
                await self._requests.answered(answers)
            except (OSError, StorageError) as error:
                log.error("what the authority published can't be written", reason=str(error))
                raise CallRefused(
                    StatusCode.RESOURCE_EXHAUSTED,
                    "the coordinator can't write the package: make room on its disk, then publish it again",
                ) from error
            if roster.version > self._study.roster_version:
                try:
                    self._study.offer_roster(package.roster_file, package.lottery_file)
                except ValueError as error:  # the same one was offered before
                    log.warning("a published roster isn't used", reason=str(error))
            log.info("the authority has published", roster_version=roster.version, answers=len(answers))
            return pb.PublishReceipt(roster_version=roster.version)

    def _check_package(self, data: bytes) -> tuple[Package, Roster, list[tuple[Answer, bytes]]]:
        package = read_package(data)
        roster, newest = self._files.check(package.roster_file), self._files.newest
        plan = self._study.terms.plan
        check_later_roster(plan, roster, one_machine=self._one_machine)
        check_descent((newest.version, newest.digest()), roster, read_history(package.history_file))
        if roster.terms != self._study.terms.digest():
            raise InvalidRoster(
                "it was signed with other terms than study.toml has: sign these with `sordino authority terms DIR`"
            )
        if roster.version > newest.version or package.lottery_file is not None:  # it replaces the one that is here
            read_draws(roster, package.lottery_file, plan)
        answers = [(verify_answer(one, self._authority_public), one) for one in package.answers]
        if any(answer.roster_version > roster.version for answer, _ in answers):
            raise InvalidAnswer("an answer names a later roster than the one that is published with it")
        return package, roster, answers


def _read_card(path: Path, study: str, authority_public: bytes) -> bytes:
    try:
        data = path.read_bytes()
        card = verify_card(data, fingerprint(authority_public))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}. The authority makes the card.") from error
    except InvalidCard as error:
        raise ConfigurationError(f"{path}: {error}. Copy the card from the authority again.") from error
    if card.study != study:
        raise ConfigurationError(f"{path} is the card of the study {card.study!r}, this is {study!r}.")
    return data


def _parse(kind: Any, raw: bytes) -> Any:
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise CallRefused(StatusCode.INVALID_ARGUMENT, "not a message of this protocol") from error


# ---------------------------------------------------------------- gRPC


def handlers(enrolment: Enrolment) -> grpc.GenericRpcHandler:
    """The five methods of the service. All take raw bytes: a message is looked at before it is parsed."""

    def unary(method: Callable[[bytes, str], Awaitable[Any]]) -> Any:
        async def call(raw: bytes, context: Any) -> bytes:
            try:
                answer = await method(raw, address_of(context.peer()))
            except CallRefused as error:
                await context.abort(error.status, str(error))
            if method == enrolment.describe:
                context.set_trailing_metadata(((TIME_METADATA, str(int(time.time()))),))
            return bytes(answer.SerializeToString())

        return grpc.unary_unary_rpc_method_handler(call)

    async def publish(chunks: Any, context: Any) -> bytes:
        given = {key: bytes(value) for key, value in context.invocation_metadata() or () if key.endswith("-bin")}
        proof = given.get(NONCE_METADATA, b""), given.get(SIGNATURE_METADATA, b"")
        try:
            receipt = await enrolment.publish(chunks, *proof, address_of(context.peer()))
        except CallRefused as error:
            await context.abort(error.status, str(error))
        return bytes(receipt.SerializeToString())

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Describe": unary(enrolment.describe),
            "Enrol": unary(enrolment.enrol),
            "Challenge": unary(enrolment.challenge),
            "Pending": unary(enrolment.pending),
            "Publish": grpc.stream_unary_rpc_method_handler(publish),
        },
    )


def _admit(context: Any, method: str) -> Caller:
    # Of its own for the authority: joiners at its address, behind one NAT, don't keep it out.
    return Caller((address_of(context.peer()), method in _OF_AUTHORITY), OPEN_CALLS)


def make_server(enrolment: Enrolment, connections: int = ENROLMENT_CONNECTIONS) -> grpc.aio.Server:
    """A separate gRPC server, because its limits are those of strangers. ``connections``: at the same time."""
    server = grpc.aio.server(
        options=[*OPTIONS, *connection_options(connections)],
        maximum_concurrent_rpcs=MOST_CALLS,
        interceptors=(OpenCalls(_admit),),
    )
    server.add_generic_rpc_handlers((handlers(enrolment),))
    return server
