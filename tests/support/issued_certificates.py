"""What a certificate of the study's TLS authority names, read by the library alone."""

from __future__ import annotations

from cryptography import x509


def named_in(certificate: bytes, ca: bytes) -> list[str]:
    """All names in a leaf that this authority has issued (both PEM)."""
    leaf = x509.load_pem_x509_certificate(certificate)
    leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    return [str(name.value) for name in leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]
