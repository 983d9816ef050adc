"""Certificates and requests that no library of ours would write: one error for all that can't be read in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client.enrolment import EnrolmentRefused, _read_certificate, check_certificate
from secagg.keys import IdentityKey
from tests.support.issued_certificates import NO_REQUEST_VERSION, NO_VERSION, der_of, self_signed, with_inner
from wire.authority_statements import Card, InvalidCard
from wire.certificates import UNREADABLE, private_pem
from wire.enrolment import EnrolmentRequest, InvalidRequest, make_csr, make_request, read_request

KEY = ec.derive_private_key(4, ec.SECP256R1())
CSR, CERTIFICATE = make_csr(KEY), self_signed(KEY)
PUBLIC = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()


CURVE = b"\x2a\x86\x48\xce\x3d\x03\x01\x07", b"\x2a\x86\x48\xce\x3d\x03\x05\x07"  # P-256; no such curve


@pytest.mark.parametrize("change", [NO_VERSION, CURVE])
def test_parsers_raise_nothing_else(change: tuple[bytes, bytes]) -> None:
    with pytest.raises(UNREADABLE):
        x509.load_pem_x509_certificate(with_inner(CERTIFICATE, *change)).public_key()


def test_a_version_that_is_none_is_not_a_value_error() -> None:
    """So that catching ValueError alone, as these readers did, would let it through."""
    with pytest.raises(x509.InvalidVersion):
        x509.load_pem_x509_certificate(with_inner(CERTIFICATE, *NO_VERSION))
    assert not issubclass(x509.InvalidVersion, ValueError)


def test_a_card_and_a_client_certificate_of_no_version() -> None:
    wrong = with_inner(CERTIFICATE, *NO_VERSION)
    with pytest.raises(InvalidCard, match="no TLS certificate"):
        Card("clinics", PUBLIC, wrong, PUBLIC, "localhost:8443")
    with pytest.raises(EnrolmentRefused, match="isn't signed"):
        check_certificate(wrong, ca=wrong, key=b"", names=())
    with pytest.raises(EnrolmentRefused, match="can't be read"):
        _read_certificate(der_of(wrong), "localhost:1")


@pytest.mark.parametrize("change", [NO_REQUEST_VERSION, CURVE])
def test_a_request_for_a_certificate(change: tuple[bytes, bytes]) -> None:
    """Any client that reaches the port for enrolment can send one: it gets a refusal, and there is no traceback."""
    identity = IdentityKey.generate(lambda count: bytes(range(count)))
    asked = EnrolmentRequest("renew", "clinics", identity.public, "pc", CSR, 1.0)
    fields = json.loads(make_request(asked, identity, None))
    fields["csr"] = with_inner(CSR, *change).decode()
    with pytest.raises(InvalidRequest, match="certificate signing request"):
        read_request(json.dumps(fields, separators=(",", ":")).encode())


@pytest.mark.parametrize("change", [CURVE, (b"\x3d\x02\x01", b"\x3d\x02\x7f")])
def test_a_client_key_of_a_strange_kind(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    from client.credentials import CertificateError as Refused
    from client.credentials import load_certificate

    key = private_pem(KEY)
    changed = with_inner(key, *change) + CERTIFICATE, key + with_inner(CERTIFICATE, *change)
    for one in (*changed, key + with_inner(CERTIFICATE, *NO_VERSION)):
        path = tmp_path / "client.pem"
        path.write_bytes(one)
        path.chmod(0o600)
        with pytest.raises(Refused):
            load_certificate(path, path)
