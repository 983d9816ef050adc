"""The signed statements of a study's authority: its card, answers to requests, and the package it publishes.

card     the coordinator shows it to all who want to join; signed by the authority that the join code names
answer   the authority's decision on one request, with a certificate if it is accepted
package  all that the authority publishes at once: roster, its history, that it is the newest, lottery, answers
standing whether an identity has a place, stated on the local enrolment socket for a fresh nonce
"""

from __future__ import annotations

import hmac
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from runtime.address import split_addresses
from secagg.encoding import encode, number
from secagg.signatures import PUBLIC_KEY_BYTES, verify_signature
from wire.certificates import UNREADABLE
from wire.join_code import fingerprint
from wire.json_fields import (
    FILE,
    HEX_32,
    HEX_64,
    TEXT,
    BadField,
    Kind,
    plain,
    read_fields,
    values_of,
    whole,
    write_fields,
)

HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LARGEST_CARD: Final = 32 << 10
LARGEST_ANSWER: Final = 32 << 10
LARGEST_PACKAGE: Final = 256 << 20
REQUEST_ID_BYTES: Final = 32

_PACKAGE_LABEL: Final = "sordino/v1/enrolment-package-2"
_LONGEST_REASON: Final = 500


class InvalidCard(ValueError):
    """Not a card, or not one of the authority that the join code names."""


class InvalidAnswer(ValueError):
    """Not an answer, or not signed by the authority."""


class InvalidPackage(ValueError):
    """Not a package of an authority, or cut short."""


class SignedForm:
    """How a signed statement stands in JSON: a format, and fields by name, among them the signature."""

    def __init__(self, format_: str, largest: int, error: type[ValueError], /, **fields: Kind) -> None:
        self._format, self._largest, self._error, self._fields = format_, largest, error, fields

    def write(self, /, **values: Any) -> dict[str, Any]:
        """The object to be written as JSON, of exactly these fields."""
        assert values.keys() == self._fields.keys()  # noqa: S101
        return {"format": self._format} | write_fields(self._fields, values)

    def read(self, data: bytes) -> dict[str, Any]:
        """The values of an object with exactly these fields, by name.

        Raises a ValueError of the form's class: it is another.
        """
        if len(data) > self._largest:
            raise self._error(f"more than {self._largest} bytes")
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as problem:
            raise self._error("not readable as JSON") from problem
        if type(found) is not dict or found.get("format") != self._format:
            raise self._error(f"not of the format {self._format}, which this version reads")
        if set(found) != {"format", *self._fields}:
            raise self._error("fields are missing, or there are unknown ones")
        try:
            return read_fields(self._fields, found)
        except BadField as problem:
            raise self._error(f"the field {problem}") from problem


def is_study(name: str) -> bool:
    """Whether a study may have this name; the rule is that of rosters."""
    return 0 < len(name) <= 64 and name.isascii() and name.isprintable()


@dataclass(frozen=True)
class Card:
    """What a participant must know of a study before it requests a place.

    Raises InvalidCard: a field of another form.
    """

    study: str
    authority_public: bytes  # Ed25519 key that signs rosters, 32 bytes
    tls_ca: bytes  # certificate of the study's TLS authority, PEM
    coordinator_public: bytes  # Ed25519 key that signs transcripts, 32 bytes
    address: str  # HOST:PORT of the sessions; of several gateways, with commas

    def __post_init__(self) -> None:
        if not is_study(self.study):
            raise InvalidCard("the card names no study")
        if len(self.authority_public) != PUBLIC_KEY_BYTES or len(self.coordinator_public) != PUBLIC_KEY_BYTES:
            raise InvalidCard("a key on the card hasn't 32 bytes")
        try:
            certificate = x509.load_pem_x509_certificate(self.tls_ca)
        except UNREADABLE as error:
            raise InvalidCard("the card holds no TLS certificate") from error
        if certificate.public_bytes(serialization.Encoding.PEM) != self.tls_ca:
            raise InvalidCard("the card must hold one TLS certificate and nothing beside it")
        try:
            split_addresses(self.address)
        except ValueError as error:
            raise InvalidCard("the card's address isn't HOST:PORT") from error
        if len(self.address) > 4000 or not (self.address.isascii() and self.address.isprintable()):
            raise InvalidCard("the card's address isn't HOST:PORT")

    def statement(self) -> bytes:
        """What the authority signs."""
        keys_and_ca = self.authority_public, self.tls_ca, self.coordinator_public
        return encode("sordino/v1/card", self.study.encode(), *keys_and_ca, self.address.encode())


_CARD: Final = SignedForm(
    "sordino-card-1",
    LARGEST_CARD,
    InvalidCard,
    study=TEXT,
    authority=HEX_32,
    tls_ca=FILE,
    coordinator=HEX_32,
    address=TEXT,
    signature=HEX_64,
)


def sign_card(card: Card, authority: Ed25519PrivateKey) -> bytes:
    """The card file: JSON with the authority's signature over the content.

    Raises ValueError: the key isn't the one on the card.
    """
    if authority.public_key().public_bytes_raw() != card.authority_public:
        raise ValueError("a card is signed with the key that it names")
    content = _CARD.write(
        study=card.study,
        authority=card.authority_public,
        tls_ca=card.tls_ca,
        coordinator=card.coordinator_public,
        address=card.address,
        signature=authority.sign(card.statement()),
    )
    return (json.dumps(content, indent=1) + "\n").encode()


def verify_card(data: bytes, expected: bytes) -> Card:
    """Read a card and check that the authority with this fingerprint (16 bytes) signed it.

    Raises InvalidCard: unreadable, of another authority, or changed after it was signed.
    """
    found = _CARD.read(data)
    card = Card(found["study"], found["authority"], found["tls_ca"], found["coordinator"], found["address"])
    if not hmac.compare_digest(fingerprint(card.authority_public), expected):
        raise InvalidCard(
            "the coordinator shows another authority than the join code names: check the address, and compare the "
            "fingerprint with the person who gave you the code"
        )
    if not verify_signature(card.authority_public, found["signature"], card.statement()):
        raise InvalidCard("the study's card isn't signed by its authority: don't join")
    return card


@dataclass(frozen=True)
class Answer:
    """The authority's decision on one request.

    ``place``: from 1, in the order of admission, and never given to another participant; 0 if it isn't accepted.

    Raises InvalidAnswer: a field of another form.
    """

    request_id: bytes  # SHA-256 of the request's bytes; it names study, identity and code
    accepted: bool
    reason: str  # one sentence if it isn't accepted, else empty
    host: str  # the participant's name on the roster; empty if it isn't accepted
    certificate: bytes  # of its TLS key, PEM, leaf first; empty if it isn't accepted
    roster_version: int  # the first that lists it, or the newest one for a renewal
    place: int = 0

    def __post_init__(self) -> None:
        if len(self.request_id) != REQUEST_ID_BYTES or not 0 <= self.roster_version < 2**32:
            raise InvalidAnswer("the answer names no request or no roster")
        if not 0 <= self.place < 2**32 or bool(self.place) != self.accepted:
            raise InvalidAnswer("an answer has a place if it accepts, and else none")
        if self.accepted != bool(self.certificate) or self.accepted != bool(self.host):
            raise InvalidAnswer("an answer has a host and a certificate if it accepts, and else none")
        if self.accepted == bool(self.reason) or len(self.reason) > _LONGEST_REASON:
            raise InvalidAnswer("an answer has one sentence as its reason if it refuses, and else none")
        if self.accepted and not HOST_NAME.fullmatch(self.host):
            raise InvalidAnswer("the answer's host has no name of one")

    def statement(self) -> bytes:
        """What the authority signs."""
        return encode(
            "sordino/v1/enrolment-answer-2",
            self.request_id,
            b"accepted" if self.accepted else b"refused",
            self.reason.encode("utf-8", "surrogatepass"),
            self.host.encode(),
            self.certificate,
            number(self.roster_version),
            number(self.place),
        )


_ANSWER: Final = SignedForm(
    "sordino-enrolment-answer-2",
    LARGEST_ANSWER,
    InvalidAnswer,
    request_id=HEX_32,
    accepted=plain(bool),
    reason=TEXT,
    host=TEXT,
    certificate=FILE,
    roster_version=whole(),
    place=whole(),
    signature=HEX_64,
)


def sign_answer(answer: Answer, authority: Ed25519PrivateKey) -> bytes:
    """The answer as it is published: JSON with the authority's signature over the content."""
    content = _ANSWER.write(**values_of(answer), signature=authority.sign(answer.statement()))
    return json.dumps(content, separators=(",", ":")).encode()


def verify_answer(data: bytes, authority_public: bytes, request_id: bytes | None = None) -> Answer:
    """Read an answer, to ``request_id`` if that is given, and check its signature.

    Raises InvalidAnswer: unreadable, not signed by this authority, or the answer to another request.
    """
    values = _ANSWER.read(data)
    signature = values.pop("signature")
    answer = Answer(**values)
    if not verify_signature(authority_public, signature, answer.statement()):
        raise InvalidAnswer("the answer isn't signed by the study's authority")
    if request_id is not None and not hmac.compare_digest(request_id, answer.request_id):
        raise InvalidAnswer("the answer is one to another request")
    return answer


@dataclass(frozen=True)
class Package:
    """What an authority publishes at once; each part but the history has its own signature."""

    roster_file: bytes  # the newest signed roster, which the coordinator may already have
    newest_file: bytes  # that it is the newest (`wire.roster_history`)
    history_file: bytes  # of all versions
    lottery_file: bytes | None = None  # the seeds of that version; None where no cohorts are drawn
    answers: tuple[bytes, ...] = ()  # of `sign_answer`


def write_package(package: Package) -> bytes:
    """Bytes for the coordinator, at most `LARGEST_PACKAGE`. Raises InvalidPackage: it would be larger."""
    drawn = (b"none", b"") if package.lottery_file is None else (b"lottery", package.lottery_file)
    files = (package.roster_file, package.newest_file, package.history_file)
    data = encode(_PACKAGE_LABEL, *files, *drawn, *package.answers)
    if len(data) > LARGEST_PACKAGE:
        raise InvalidPackage(f"a package has at most {LARGEST_PACKAGE} bytes: publish fewer answers at once")
    return data


def read_package(data: bytes) -> Package:
    """Split a package into its parts, which the caller must check.

    Raises InvalidPackage: unreadable, cut short or too large.
    """
    if len(data) > LARGEST_PACKAGE:
        raise InvalidPackage("the package is larger than any an authority makes")
    head = number(len(_PACKAGE_LABEL)) + _PACKAGE_LABEL.encode()
    if not data.startswith(head) or len(data) < len(head) + 8:
        raise InvalidPackage("not a package of an authority")
    count, at = int.from_bytes(data[len(head) : len(head) + 8], "little"), len(head) + 8
    fields: list[bytes] = []
    while at < len(data) and len(fields) < count:
        length = int.from_bytes(data[at : at + 8], "little")
        if at + 8 + length > len(data):
            raise InvalidPackage("the package is cut short")
        fields.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    if at != len(data) or len(fields) != count or count < 5 or fields[3] not in (b"none", b"lottery"):
        raise InvalidPackage("the package is cut short or holds more than it says")
    roster, newest, history, drawn, lottery, *answers = fields
    return Package(roster, newest, history, lottery if drawn == b"lottery" else None, tuple(answers))


def pending_statement(study: str, nonce: bytes) -> bytes:
    """What the authority signs to get the waiting requests."""
    return encode("sordino/v1/enrolment-pending", study.encode(), nonce)


STANDINGS: Final = ("member", "revoked", "unknown")
STANDING_NONCE_BYTES: Final = 32


def standing_statement(study: str, identity: bytes, standing: str, nonce: bytes) -> bytes:
    """What the authority signs to state whether an identity (32 bytes) has a place: one of `STANDINGS`. The question's
    nonce, 32 bytes, is fresh, so that an old statement can't be replayed.
    """
    if len(identity) != PUBLIC_KEY_BYTES or standing not in STANDINGS or len(nonce) != STANDING_NONCE_BYTES:
        raise ValueError("a standing has an identity and a nonce of 32 bytes each")
    return encode("sordino/v1/desk-standing", study.encode(), identity, standing.encode(), nonce)
