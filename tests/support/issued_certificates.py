"""A study's TLS authority, and what a certificate of it names, read by the library alone."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509

from wire.certificates import CertificateAuthority


def tls_authority_of(folder: Path) -> CertificateAuthority:
    """Of a study that was made on one machine."""
    pem, key = ((folder / "authority" / name).read_bytes() for name in ("tls-ca.pem", "tls-ca.key"))
    return CertificateAuthority.load(pem, key)


def named_in(certificate: bytes, ca: bytes) -> list[str]:
    """All names in a leaf that this authority has issued (both PEM)."""
    leaf = x509.load_pem_x509_certificate(certificate)
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    return [str(name.value) for name in leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]
