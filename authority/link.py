"""The authority's side of the enrolment service: it calls the coordinator, never the other way round.

TLS is pinned to the authority's own TLS certificate. Answers aren't trusted: the coordinator can withhold requests and
claim any version, but it can't forge a request that counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import grpc

from authority.folder import AuthorityFolder
from runtime.address import split_address
from runtime.failure import InputFailure, NetworkFailure
from runtime.text import peer_text
from wire import coordinator_pb2 as pb
from wire.authority_statements import pending_statement
from wire.codec import PROTOCOL_VERSION
from wire.transport import CALLER_OPTIONS, NONCE_BYTES, NONCE_METADATA, SIGNATURE_METADATA, frames

SERVICE: Final = "/sordino.v1.Enrolment/"
CALL_S: Final = 30.0
PUBLISH_S: Final = 600.0


class LinkError(NetworkFailure):
    """The coordinator can't be reached, or refuses; one sentence."""


class Link:
    """Calls to one coordinator."""

    def __init__(self, channel: grpc.Channel, folder: AuthorityFolder) -> None:
        self._channel, self._folder = channel, folder

    def pending(self) -> pb.PendingRequests:
        """The requests that wait for the authority, and what the coordinator claims to have.

        Raises LinkError: they can't be fetched.
        """
        nonce, signature = self._proof()
        found: pb.PendingRequests = self._unary(
            "Pending", pb.PendingRequest(nonce=nonce, signature=signature), pb.PendingRequests
        )
        return found

    def document(self) -> bytes:
        """The study document that the coordinator serves. Raises LinkError: it can't be fetched."""
        found = self._unary("Describe", pb.DescribeRequest(protocol_version=PROTOCOL_VERSION), pb.Description)
        return bytes(found.study_document)

    def publish(self, package: bytes) -> int:
        """Send a package; returns the roster version that the coordinator has afterwards.

        Raises LinkError: it wasn't accepted, or this is unknown: publish it again.
        """
        nonce, signature = self._proof()
        metadata = ((NONCE_METADATA, nonce), (SIGNATURE_METADATA, signature))
        call: grpc.StreamUnaryMultiCallable[bytes, pb.PublishReceipt] = self._channel.stream_unary(
            SERVICE + "Publish", request_serializer=None, response_deserializer=pb.PublishReceipt.FromString
        )
        with _explained(self._folder.settings.coordinator):
            receipt = call(iter(frames(package)), metadata=metadata, timeout=PUBLISH_S)
        return int(receipt.roster_version)

    def _proof(self) -> tuple[bytes, bytes]:
        nonce = self._unary("Challenge", pb.AuthorityHello(), pb.AuthorityChallenge).nonce
        if len(nonce) != NONCE_BYTES:
            raise LinkError("the coordinator asks for a signature over something that isn't a nonce")
        return nonce, self._folder.keys.signing.sign(pending_statement(self._folder.settings.study, nonce))

    def _unary(self, method: str, message: Any, answer: Any) -> Any:
        call = self._channel.unary_unary(
            SERVICE + method,
            request_serializer=type(message).SerializeToString,
            response_deserializer=answer.FromString,
        )
        with _explained(self._folder.settings.coordinator):
            return call(message, timeout=CALL_S)


@contextmanager
def open_link(folder: AuthorityFolder, without: str = "") -> Iterator[Link]:
    """A connection to the coordinator that authority.toml names. Raises InputFailure: it names none.

    ``without``: what can be done without one, after "or".
    """
    address = folder.settings.coordinator
    if not address:
        raise InputFailure(
            f'{folder.path / "authority.toml"} names no coordinator: set coordinator = "HOST:PORT", its port for '
            "enrolment" + (f", or {without}" if without else "")
        )
    credentials = grpc.ssl_channel_credentials(folder.keys.tls.pem)
    with grpc.secure_channel(address, credentials, options=CALLER_OPTIONS) as channel:
        yield Link(channel, folder)


@contextmanager
def _explained(address: str) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        code = error.code() if isinstance(error, grpc.Call) else None
        detail = peer_text(str(error.details() if isinstance(error, grpc.Call) else error))
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, None):
            wrong = "certificate" in detail.lower() or "ssl" in detail.lower()
            hint = (
                f"its TLS certificate isn't one of this authority for {split_address(address)[0]}"
                if wrong
                else "is it running, and is enrolment_listen set in its study.toml?"
            )
            raise LinkError(f"the coordinator at {address} can't be reached: {hint}") from error
        if code is grpc.StatusCode.UNIMPLEMENTED:
            raise LinkError(f"{address} isn't a coordinator's port for enrolment") from error
        name = code.name if code is not None else "?"
        raise LinkError(f"the coordinator at {address} refuses: {detail or name}") from error
