"""TLS certificates of a study: the authority's P-256 key signs one for the coordinator and one for each client.

gRPC refuses Ed25519 leaves, so TLS uses P-256 and identities on the roster stay Ed25519. A client's certificate names
one identity, or one host of the roster, in its SAN; the coordinator's names the addresses by which it is reached. Each
is good for its own side of a connection only, and the authority's own certificate allows no authorities below it.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from runtime.failure import InputFailure
from runtime.key_files import KeyFileError, read_key_file

LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
IDENTITY_URI: Final = "urn:sordino:identity:"
HOST_URI: Final = "urn:sordino:host:"
CA_DAYS: Final = 3650
SERVER_DAYS: Final = 825  # the longest that common TLS clients accept for a leaf
CLIENT_DAYS: Final = 90  # for participants that renew by themselves; the others get as many as the coordinator
CLOCK_SKEW: Final = datetime.timedelta(hours=1)
"""A certificate is valid from this long before it was made, since clocks differ."""

UNREADABLE: Final = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
"""What parsers of foreign certificates, requests and keys raise.

`x509.InvalidVersion` is no ValueError, and an unknown curve or kind of key is reported only when the key is read.
"""


class CertificateError(InputFailure, ValueError):
    """A certificate or its key can't be used; one sentence, without key material."""


def read_ed25519_key(path: Path) -> Ed25519PrivateKey:
    """Raises KeyFileError unless the file is closed to others and holds an unencrypted Ed25519 private key in PEM."""
    try:
        key = serialization.load_pem_private_key(read_key_file(path), password=None)
    except KeyFileError:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Not chained, and the content in no local: a parser's message, or a report with all locals, may quote it.
        raise KeyFileError(f"{path} is not an unencrypted private key in PEM") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path} is not an Ed25519 key")
    return key


@dataclass(frozen=True)
class CertificateAuthority:
    """The TLS authority of a study: its certificate, and the key that only the study's authority holds."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def make(cls, study: str, now: datetime.datetime) -> CertificateAuthority:
        """A new one, named after the study in certificates; ``now`` has a time zone."""
        key = new_key()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{study} TLS"[:64])])
        builder = _builder(name, name, key.public_key(), now, now + datetime.timedelta(days=CA_DAYS))
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> CertificateAuthority:
        """From PEM. Raises CertificateError: not a certificate authority with its own unencrypted P-256 key."""
        try:
            parsed = x509.load_pem_x509_certificate(certificate)
            private = serialization.load_pem_private_key(key, None)
            is_ca = parsed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        except (*UNREADABLE, x509.ExtensionNotFound):
            # Not chained: a parser's message about a file that it can't read may quote the file.
            raise CertificateError("not a certificate authority's certificate and its unencrypted key in PEM") from None
        if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, ec.SECP256R1):
            raise CertificateError("the TLS authority's key must be one of P-256")
        if not is_ca or parsed.public_key() != private.public_key():
            raise CertificateError("the TLS authority's certificate and key don't belong together")
        return cls(parsed, private)

    @property
    def pem(self) -> bytes:
        """The certificate, which is public."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The private key: never to leave the authority."""
        return private_pem(self.key)

    def issue_server(self, key: ec.EllipticCurvePublicKey, names: Sequence[str], now: datetime.datetime) -> bytes:
        """The coordinator's certificate, PEM; ``names``: its host names and IP addresses besides `LOCAL_NAMES`.

        Raises ValueError: a name that no certificate can contain.
        """
        alternatives = _alternatives((*LOCAL_NAMES, *names))
        return self._issue(key, "sordino coordinator", ExtendedKeyUsageOID.SERVER_AUTH, alternatives, now, SERVER_DAYS)

    def issue_client(
        self, key: ec.EllipticCurvePublicKey, uri: str, now: datetime.datetime, days: float = CLIENT_DAYS
    ) -> bytes:
        """A certificate that can open the sessions of one identity, or of one host's participants, PEM; ``uri``: of
        `identity_uri` or `host_uri`.
        """
        alternatives = [x509.UniformResourceIdentifier(uri)]
        return self._issue(key, "sordino participant", ExtendedKeyUsageOID.CLIENT_AUTH, alternatives, now, days)

    def _issue(
        self,
        key: ec.EllipticCurvePublicKey,
        subject: str,
        usage: ObjectIdentifier,
        alternatives: Sequence[x509.GeneralName],
        now: datetime.datetime,
        days: float,
    ) -> bytes:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
        until = min(now + datetime.timedelta(days=days), self.certificate.not_valid_after_utc)
        if until <= now:
            raise CertificateError(
                f"the TLS authority's certificate expired on {self.certificate.not_valid_after_utc:%Y-%m-%d}, or this "
                "machine's clock is ahead: set the clock, or begin a new study"
            )
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        certificate = (
            _builder(name, self.certificate.subject, key, now, until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=True)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    """PKCS8 PEM, unencrypted, for a file that only its owner can read."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def identity_uri(identity: bytes) -> str:
    """The name of an identity (32 bytes) in a certificate."""
    return IDENTITY_URI + identity.hex()


def host_uri(host: str) -> str:
    """The name of a host of the roster in a certificate."""
    return HOST_URI + host


def key_of_request(csr: bytes) -> ec.EllipticCurvePublicKey:
    """The P-256 key in a certificate signing request (PEM) that was checked when it was read; the rest is ignored."""
    key = x509.load_pem_x509_csr(csr).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise CertificateError("the certificate signing request is for another kind of key than P-256")
    return key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(until)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        **dict.fromkeys((*unused, "encipher_only", "decipher_only"), False),
    )


def _alternatives(names: Sequence[str]) -> list[x509.GeneralName]:
    result: list[x509.GeneralName] = []
    for name in dict.fromkeys(names):
        try:
            result.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            if not name.isascii() or not name or any(mark in name for mark in " /:@"):
                raise ValueError(f"{name!r} is neither a host name nor an IP address") from None
            result.append(x509.DNSName(name))
    return result
