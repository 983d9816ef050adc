"""Requests for a place in a study, or for a new certificate, at the coordinator's enrolment port.

The coordinator isn't trusted. Its TLS certificate is accepted unchecked only to read the study's card. The authority
whose fingerprint is in the join code signs the card, and the card names the only certificate authority that is trusted
from then on. The authority also signs the answer to a request, which must hold a certificate for the requested key and
identity.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Any, Final

import grpc
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID
from google.protobuf.message import DecodeError

from client.connection import open_channel
from client.credentials import check_validity
from client.unreachable import trouble_of
from runtime.address import split_address
from runtime.failure import InputFailure, NetworkFailure
from runtime.text import minute, peer_text
from secagg.roster import InvalidRoster
from wire import coordinator_pb2 as pb
from wire.authority_statements import LARGEST_CARD, Answer, Card, InvalidAnswer, InvalidCard, verify_answer, verify_card
from wire.certificates import UNREADABLE
from wire.codec import PROTOCOL_VERSION
from wire.roster_history import LARGEST_NEWEST, NewestRoster, verify_newest
from wire.study import LARGEST_DOCUMENT, InvalidStudy, StudyDocument
from wire.transport import TIME_METADATA

SERVICE: Final = "/sordino.v1.Enrolment/"
CALL_S: Final = 20.0
CLOCK_NOTED_S, CLOCK_REFUSED_S = 120.0, 3600.0


class EnrolmentUnavailable(NetworkFailure):
    """The coordinator can't be reached, or can't take the request now. Trying again may help."""


class NobodyListens(EnrolmentUnavailable):
    """The machine answers, but nothing listens on that port, perhaps not yet."""


class EnrolmentRefused(InputFailure):
    """A check failed, and trying again changes nothing; the sentence names what to change."""


@dataclass(frozen=True)
class Look:
    """What is known about a study before it is joined; nothing about the participant has been sent.

    ``clock_difference_s``: by how much the coordinator's clock is ahead of this machine's; None if it didn't say.
    """

    card: Card
    document: StudyDocument
    study_sha256: bytes
    newest: NewestRoster
    clock_difference_s: float | None


async def reach(address: str) -> None:
    """Check that a TLS server listens there; only the handshake is sent. Raises as `look`."""
    await asyncio.to_thread(_fetch_certificate, address)


async def look(address: str, fingerprint: bytes, terms: bytes = b"") -> Look:
    """Fetch a study's card and document at HOST:PORT, and check them against the authority's fingerprint (16 bytes).

    The authority must have signed the document as the study's newest terms, and its digest must begin with ``terms``.

    Raises EnrolmentUnavailable: there is no answer; NobodyListens if the port is closed; EnrolmentRefused: another
    authority, an invalid card or document, terms that it hasn't signed or not lately, or a wrong clock; of the last
    also CertificateError.
    """
    der = await asyncio.to_thread(_fetch_certificate, address)
    certificate = _read_certificate(der, address)
    # Trusted for this one call, whose answer is checked by the authority's signature.
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    async with open_channel(address, pem) as channel:
        call = _method(channel, "Describe", pb.Description)(
            pb.DescribeRequest(protocol_version=PROTOCOL_VERSION).SerializeToString(), timeout=CALL_S
        )
        description: pb.Description = await _answer(call, address)
        difference = _difference(await call.trailing_metadata())
    try:
        card = verify_card(description.card, fingerprint)
        document = StudyDocument.from_bytes(description.study_document)
    except InvalidCard as error:
        raise EnrolmentRefused(f"{address}: {error}") from error
    except InvalidStudy as error:
        raise EnrolmentRefused(f"{address}: {error}: don't join") from error
    if document.study != card.study:
        raise EnrolmentRefused(
            f"{address}: the card is that of the study {card.study!r}, the document that of {document.study!r}"
        )
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(card.tls_ca))
    except (*UNREADABLE, InvalidSignature) as error:
        raise EnrolmentRefused(
            f"{address}: the certificate shown there isn't signed by the study's authority: another machine may be "
            "intercepting this connection"
        ) from error
    if difference is not None and abs(difference) > CLOCK_REFUSED_S:
        raise EnrolmentRefused(clock_sentence(difference))
    sha256 = hashlib.sha256(description.study_document).digest()
    newest = _check_terms(address, card, document, sha256, description.newest)
    if not sha256.startswith(terms):
        raise EnrolmentRefused(
            f"{address}: other-terms: the study's terms ({sha256.hex()[: 2 * len(terms)]}) aren't those that the join "
            f"code invites to ({terms.hex()}): ask the study's authority what has changed, and for a new code"
        )
    return Look(card, document, sha256, newest, difference)


def _check_terms(address: str, card: Card, document: StudyDocument, sha256: bytes, signed: bytes) -> NewestRoster:
    """The authority's statement about the newest terms. Raises EnrolmentRefused: these aren't the ones."""
    try:
        newest = verify_newest(signed, card.authority_public)
    except InvalidRoster as error:
        raise EnrolmentRefused(f"{address}: unsigned-terms: {error}") from error
    if newest.study != card.study or newest.terms != sha256:
        raise EnrolmentRefused(
            f"{address}: unsigned-terms: the study's authority has not signed these terms ({sha256.hex()}) as the "
            "newest: don't join"
        )
    try:
        newest.check_clock(time.time())
    except InvalidRoster as error:
        raise EnrolmentRefused(f"{address}: old-terms: {error}") from error
    if document.roster_valid_s and time.time() >= newest.until:
        raise EnrolmentRefused(
            f"{address}: old-terms: the authority's statement that these terms are the newest ended on "
            f"{minute(newest.until)}: ask the study's authority to sign again, unless this machine's clock is wrong"
        )
    return newest


def clock_sentence(difference_s: float) -> str:
    """One of the clocks is wrong; with both times."""
    now = time.time()
    return (
        f"this machine's clock says {minute(now)}, the coordinator's {minute(now + difference_s)}: one of the two is "
        "wrong; set this machine's if it is that one"
    )


async def ask(channel: grpc.aio.Channel, address: str, request: bytes) -> pb.EnrolAnswer:
    """Send a request, or ask for its answer: the same bytes are the same request. ``channel``: of `open_channel`.

    Raises EnrolmentUnavailable: not reachable, or too busy now; EnrolmentRefused: the coordinator doesn't accept such a
    request.
    """
    call = _method(channel, "Enrol", pb.EnrolAnswer)(
        pb.EnrolRequest(request=request).SerializeToString(), timeout=CALL_S
    )
    answer: pb.EnrolAnswer = await _answer(call, address)
    answer.reason = peer_text(answer.reason)
    return answer


def check_answer(
    data: bytes, *, authority_public: bytes, request: bytes, ca: bytes, key: bytes, names: tuple[str, ...]
) -> Answer:
    """Read an answer, and check that its certificate is the requested one; raises EnrolmentRefused.

    Args:
        ca, key: the study's certificate authority, and the private key of the request, PEM.
        names: URIs; the certificate must name exactly one of them, and nothing else.
    """
    try:
        answer = verify_answer(data, authority_public, hashlib.sha256(request).digest())
    except InvalidAnswer as error:
        raise EnrolmentRefused(str(error)) from error
    if answer.accepted:
        check_certificate(answer.certificate, ca=ca, key=key, names=names)
    return answer


def check_certificate(chain: bytes, *, ca: bytes, key: bytes, names: tuple[str, ...]) -> None:
    """Check that a client certificate is of this study and for this key and name. As `check_answer`."""
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    try:
        leaf = x509.load_pem_x509_certificates(chain)[0]
        leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
        usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        public = leaf.public_key().public_bytes(*form)
    except (*UNREADABLE, InvalidSignature, x509.ExtensionNotFound) as error:
        raise EnrolmentRefused("the certificate in the answer isn't signed by the study's TLS authority") from error
    private = serialization.load_pem_private_key(key, password=None)
    if not hmac.compare_digest(public, private.public_key().public_bytes(*form)):
        raise EnrolmentRefused("the certificate in the answer is for another key than this one's")
    found = alternatives.get_values_for_type(x509.UniformResourceIdentifier)
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usage or len(found) != 1 or found[0] not in names:
        raise EnrolmentRefused("the certificate in the answer is that of another identity")


# ---------------------------------------------------------------- the wire


def _method(channel: grpc.aio.Channel, name: str, answer: Any) -> Any:
    def read(raw: bytes) -> Any:
        if len(raw) > LARGEST_CARD + LARGEST_DOCUMENT + LARGEST_NEWEST + 1024:
            raise DecodeError("too long")
        return answer.FromString(raw)

    return channel.unary_unary(SERVICE + name, request_serializer=None, response_deserializer=read)


async def _answer(call: Any, address: str) -> Any:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        code, details = error.code(), peer_text(error.details() or error.code().name)
        if code == grpc.StatusCode.UNIMPLEMENTED:
            raise EnrolmentRefused(f"{address} is not an enrolment port: ask for the right one") from error
        if code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION):
            raise EnrolmentRefused(f"{address}: {details}") from error
        if "is not in peer certificate" in details or "Hostname Verification" in details:
            raise EnrolmentRefused(
                f"the coordinator's certificate isn't for the name in {address}: use the name or address that the "
                "study's owner gave you"
            ) from error
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise EnrolmentUnavailable(f"{address}: {details}") from error
        if "Socket closed" in details or "Connection reset" in details:
            details = "it closed the connection; this may be the session port, not the enrolment port"
        elif (known := trouble_of(details, ca="ca.pem", certificate="its certificate")).tells == 1:
            details = known.words  # gRPC's name another of its addresses each time
        raise EnrolmentUnavailable(f"{address} can't be reached: {details}") from error


def _fetch_certificate(address: str) -> bytes:
    """The certificate that the other side shows, unchecked, DER; only the handshake is sent."""
    host, port = split_address(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), timeout=CALL_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            found = secured.getpeercert(binary_form=True)
    except ssl.SSLError as error:
        raise EnrolmentRefused(f"{address} doesn't speak TLS: is it the coordinator's enrolment port?") from error
    except ConnectionRefusedError as error:
        raise NobodyListens(
            f"{address} can't be reached: nothing listens there; check the address, and that the coordinator runs"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise EnrolmentUnavailable(f"{address} can't be reached: {reason}; check the address") from error
    if not found:
        raise EnrolmentRefused(f"{address} shows no certificate: is it the coordinator's enrolment port?")
    return found


def _read_certificate(der: bytes, address: str) -> x509.Certificate:
    """Also checks its times, by this machine's clock."""
    try:
        certificate = x509.load_der_x509_certificate(der)
    except UNREADABLE as error:
        raise EnrolmentRefused(f"{address} shows a certificate that can't be read: it is no coordinator") from error
    begins, ends = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    check_validity(f"of {address}", begins, ends, time.time(), "ask the study's owner for a new one")
    return certificate


def _difference(metadata: Any) -> float | None:
    told = dict(metadata or ()).get(TIME_METADATA)
    try:
        return None if told is None else int(told) + 0.5 - time.time()
    except ValueError:
        return None
