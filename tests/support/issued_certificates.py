"""A study's TLS authority, what a certificate names, and certificates that no authority has issued."""

from __future__ import annotations

import base64
import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from wire.certificates import CertificateAuthority

# Pieces of DER, and what stands there for a version that doesn't exist: in a certificate, in a request for one.
NO_VERSION: Final = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07"
NO_REQUEST_VERSION: Final = b"\x02\x01\x00\x30\x00\x30\x59", b"\x02\x01\x07\x30\x00\x30\x59"


def self_signed(key: ec.EllipticCurvePrivateKey, *extensions: tuple[x509.ExtensionType, bool]) -> bytes:
    """A certificate in PEM that signs itself, with these (extension, critical); always the same bytes."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fuzz")])
    begins = datetime.datetime.fromtimestamp(1_790_000_000, datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 7, begins, begins + datetime.timedelta(days=9))
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(key, hashes.SHA256(), ecdsa_deterministic=True).public_bytes(serialization.Encoding.PEM)


def der_of(pem: bytes) -> bytes:
    return base64.b64decode(b"".join(pem.splitlines()[1:-1]))


def with_inner(pem: bytes, old: bytes, new: bytes) -> bytes:
    """PEM text whose bytes hold something else in one place, such as a version that doesn't exist."""
    first, *_, last = pem.splitlines()
    assert old in der_of(pem)
    return b"\n".join([first, base64.b64encode(der_of(pem).replace(old, new, 1)), last, b""])


def tls_authority_of(folder: Path) -> CertificateAuthority:
    """Of a study that was made on one machine."""
    pem, key = ((folder / "authority" / name).read_bytes() for name in ("tls-ca.pem", "tls-ca.key"))
    return CertificateAuthority.load(pem, key)


def named_in(certificate: bytes, ca: bytes) -> list[str]:
    """All names in a leaf that this authority has issued (both PEM)."""
    leaf = x509.load_pem_x509_certificate(certificate)
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    return [str(name.value) for name in leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]
