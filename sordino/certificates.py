"""TLS certificates of a study: a P-256 authority, the coordinator's certificate, and one for each host.

gRPC refuses Ed25519 leaves, so TLS uses P-256 and identities on the roster stay Ed25519.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
_VALID_DAYS = 825  # the longest that common TLS clients accept for a leaf
_CLOCK_SKEW = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class ServerCertificate:
    """PEM texts; both keys are secret."""

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    ca_key: bytes = field(repr=False)


def make_server_certificate(study: str, names: Sequence[str], now: datetime.datetime) -> ServerCertificate:
    """Make a certificate authority and one server certificate signed by it.

    Args:
        study: goes into the subjects, for whoever reads them.
        names: host names and IP addresses besides ``LOCAL_NAMES`` under which the coordinator is reached.
        now: the time from which it is valid, with a time zone.

    Raises:
        ValueError: a name that can stand in no certificate.
    """
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{study} TLS"[:64])])
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sordino coordinator")])
    leaf = (
        _builder(subject, ca_name, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(_alternatives((*LOCAL_NAMES, *names))), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return ServerCertificate(
        ca=ca.public_bytes(pem), certificate=leaf.public_bytes(pem), key=_private(key), ca_key=_private(ca_key)
    )


def make_client_certificate(ca: bytes, ca_key: bytes, uri: str, now: datetime.datetime) -> tuple[bytes, bytes]:
    """A key and a client certificate that names one identity or one host.

    Args:
        ca, ca_key: the certificate authority's certificate and private key, PEM.
        uri: ``urn:sordino:identity:<64 hex>`` or ``urn:sordino:host:<name>``; all that the coordinator looks at.
        now: the time from which it is valid, with a time zone.

    Returns:
        The certificate and its private key, PEM.
    """
    issuer = x509.load_pem_x509_certificate(ca)
    issuer_key = serialization.load_pem_private_key(ca_key, None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)  # noqa: S101  # as made above
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sordino participant")])
    leaf = (
        _builder(subject, issuer.subject, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return leaf.public_bytes(serialization.Encoding.PEM), _private(key)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
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
