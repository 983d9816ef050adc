"""Requests for a place on the roster. Nothing here relies on an honest coordinator.

A request is signed by the participant's identity and, to join, authenticated under its join code (`wire.join_code`);
`wire.authority_statements` has the answers.

Each signed or authenticated statement begins with its own label, and its fields carry their lengths. A request has only
one encoding: other bytes are another request, which only the identity's owner can have made.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import struct
from dataclasses import dataclass, field
from typing import Final, Literal

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from secagg.encoding import encode
from secagg.keys import IdentityKey
from secagg.signatures import PUBLIC_KEY_BYTES, verify_signature
from wire.authority_statements import HOST_NAME, SignedForm, is_study
from wire.certificates import UNREADABLE
from wire.join_code import CODE_ID_BYTES, MAC_BYTES, JoinCode, code_mac
from wire.json_fields import FILE, HEX_32, HEX_64, TEXT, hexadecimal, plain, values_of

LARGEST_REQUEST: Final = 8192


class InvalidRequest(ValueError):
    """Not a request, or not signed by its identity; one sentence."""


@dataclass(frozen=True)
class EnrolmentRequest:
    """What a participant requests of the authority.

    ``kind``: ``join``: a place on the roster and a certificate. ``renew``: a certificate for a place that it has.

    Raises InvalidRequest: a field of another form.
    """

    kind: Literal["join", "renew"]
    study: str
    identity: bytes  # Ed25519 public key, 32 bytes
    host: str  # the requested name of its process; the authority gives it this or another name
    csr: bytes  # certificate signing request of a P-256 key, PEM; only its key is used
    at: float  # seconds since 1970 by its clock
    code_id: bytes = b""  # of its join code, 16 bytes; empty for ``renew``

    def __post_init__(self) -> None:
        if self.kind not in ("join", "renew"):
            raise InvalidRequest("a request is one to join or to renew")
        if not is_study(self.study) or len(self.identity) != PUBLIC_KEY_BYTES:
            raise InvalidRequest("the request names no study or no identity")
        if not HOST_NAME.fullmatch(self.host):
            raise InvalidRequest("a host's name has 1 to 64 letters, digits, dots, dashes and underscores")
        if not (isinstance(self.at, float) and math.isfinite(self.at) and 0 <= self.at < 2**40):
            raise InvalidRequest("the request has no valid time")
        if len(self.code_id) != (CODE_ID_BYTES if self.kind == "join" else 0):
            raise InvalidRequest("a request to join names its code, one to renew none")
        _check_csr(self.csr)

    def statement(self) -> bytes:
        """What the identity signs."""
        return encode(
            "sordino/v1/enrolment-request",
            self.kind.encode(),
            self.study.encode(),
            self.identity,
            self.host.encode(),
            self.csr,
            struct.pack("<d", self.at),
            self.code_id,
        )


_REQUEST: Final = SignedForm(
    "sordino-enrolment-request-1",
    LARGEST_REQUEST,
    InvalidRequest,
    kind=TEXT,
    study=TEXT,
    identity=HEX_32,
    host=TEXT,
    csr=FILE,
    at=plain(float, int),
    code_id=hexadecimal(),
    signature=HEX_64,
    mac=hexadecimal(),
)


@dataclass(frozen=True)
class SignedRequest:
    """A request that its identity and its TLS key have signed. `mac_is` shows the authority if it knew the code."""

    request: EnrolmentRequest
    data: bytes = field(repr=False)
    signature: bytes = field(repr=False)
    mac: bytes = field(repr=False)  # empty for ``renew``

    @property
    def id(self) -> bytes:
        """SHA-256 of its bytes, which its answer names."""
        return hashlib.sha256(self.data).digest()

    def mac_is(self, code_secret: bytes) -> bool:
        """Whether the sender of exactly this request knew the secret of the join code (16 bytes)."""
        expected = code_mac(code_secret, _mac_statement(self.request, self.signature))
        return hmac.compare_digest(self.mac, expected)


def make_csr(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A certificate signing request for a P-256 key, PEM; it has no name, since only its key is used."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def make_request(request: EnrolmentRequest, identity_key: IdentityKey, code: JoinCode | None) -> bytes:
    """The bytes of a request, with a code to join, without one to renew; sending them again asks for the answer.

    Raises ValueError: the request names another key or code; InvalidRequest: more than `LARGEST_REQUEST` bytes.
    """
    if identity_key.public != request.identity or (b"" if code is None else code.code_id) != request.code_id:
        raise ValueError("a request is made with the identity and the code that it names")
    signature = identity_key.sign(request.statement())
    data = _request_bytes(request, signature, b"" if code is None else code.mac(_mac_statement(request, signature)))
    if len(data) > LARGEST_REQUEST:
        raise InvalidRequest(f"a request has at most {LARGEST_REQUEST} bytes")
    return data


def read_request(data: bytes) -> SignedRequest:
    """Read a request and check the signatures of its identity and of its key.

    Raises InvalidRequest: unreadable, too large, or not signed by its identity.
    """
    values = _REQUEST.read(data)
    signature, mac = values.pop("signature"), values.pop("mac")
    request = EnrolmentRequest(**values)
    if len(mac) != (MAC_BYTES if request.kind == "join" else 0):
        raise InvalidRequest("the field mac is of another length")
    if _request_bytes(request, signature, mac) != data:
        raise InvalidRequest("the request isn't written as requests are")
    if not verify_signature(request.identity, signature, request.statement()):
        raise InvalidRequest("the request isn't signed by its identity")
    return SignedRequest(request, data, signature, mac)


def _request_bytes(request: EnrolmentRequest, signature: bytes, mac: bytes) -> bytes:
    content = _REQUEST.write(**values_of(request), signature=signature, mac=mac)
    return json.dumps(content, separators=(",", ":")).encode()


def _mac_statement(request: EnrolmentRequest, signature: bytes) -> bytes:
    return encode("sordino/v1/enrolment-mac", request.statement(), signature)


def _check_csr(csr: bytes) -> None:
    try:
        parsed = x509.load_pem_x509_csr(csr)
        key = parsed.public_key()
        good = isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)
        good = good and isinstance(parsed.signature_hash_algorithm, hashes.SHA256) and parsed.is_signature_valid
        good = good and parsed.public_bytes(serialization.Encoding.PEM) == csr
    except UNREADABLE as error:
        raise InvalidRequest("the request holds no certificate signing request") from error
    if not good:
        raise InvalidRequest("the certificate signing request must be one of a P-256 key, signed with it")
