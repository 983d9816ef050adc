"""Certificates and requests that no library of ours would write: one error for all that can't be read in them."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client.enrolment import EnrolmentRefused, _read_certificate, check_certificate
from secagg.keys import IdentityKey
from wire.authority_statements import Card, InvalidCard
from wire.certificates import UNREADABLE, private_pem
from wire.enrolment import EnrolmentRequest, InvalidRequest, make_csr, make_request, read_request

KEY = ec.derive_private_key(4, ec.SECP256R1())
CSR = make_csr(KEY)
PUBLIC = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key().public_bytes_raw()


def certificate() -> bytes:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    begins = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(name, name, KEY.public_key(), 7, begins, begins + datetime.timedelta(days=9))
    return builder.sign(KEY, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def der_of(pem: bytes) -> bytes:
    return base64.b64decode(b"".join(pem.splitlines()[1:-1]))


def changed(pem: bytes, old: bytes, new: bytes) -> bytes:
    """The same with one value in it replaced."""
    first, *_, last = pem.splitlines()
    der = der_of(pem)
    assert old in der
    return b"\n".join([first, base64.b64encode(der.replace(old, new, 1)), last, b""])


VERSION = b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07"  # X.509 version 3; no such version
CURVE = b"\x2a\x86\x48\xce\x3d\x03\x01\x07", b"\x2a\x86\x48\xce\x3d\x03\x05\x07"  # P-256; no such curve


@pytest.mark.parametrize("change", [VERSION, CURVE])
def test_parsers_raise_nothing_else(change: tuple[bytes, bytes]) -> None:
    with pytest.raises(UNREADABLE):
        x509.load_pem_x509_certificate(changed(certificate(), *change)).public_key()


def test_a_version_that_is_none_is_not_a_value_error() -> None:
    """So that catching ValueError alone, as these readers did, would let it through."""
    with pytest.raises(x509.InvalidVersion):
        x509.load_pem_x509_certificate(changed(certificate(), *VERSION))
    assert not issubclass(x509.InvalidVersion, ValueError)


def test_a_card_and_a_client_certificate_of_no_version() -> None:
    wrong = changed(certificate(), *VERSION)
    with pytest.raises(InvalidCard, match="no TLS certificate"):
        Card("clinics", PUBLIC, wrong, PUBLIC, "localhost:8443")
    with pytest.raises(EnrolmentRefused, match="isn't signed"):
        check_certificate(wrong, ca=wrong, key=b"", names=())
    with pytest.raises(EnrolmentRefused, match="can't be read"):
        _read_certificate(der_of(wrong), "localhost:1")


REQUEST_VERSION = b"\x02\x01\x00\x30\x00\x30\x59", b"\x02\x01\x07\x30\x00\x30\x59"


@pytest.mark.parametrize("change", [REQUEST_VERSION, CURVE])
def test_a_request_for_a_certificate(change: tuple[bytes, bytes]) -> None:
    """Any client that reaches the port for enrolment can send one: it gets a refusal, and there is no traceback."""
    identity = IdentityKey.generate(lambda count: bytes(range(count)))
    asked = EnrolmentRequest("renew", "clinics", identity.public, "pc", CSR, 1.0)
    fields = json.loads(make_request(asked, identity, None))
    fields["csr"] = changed(CSR, *change).decode()
    with pytest.raises(InvalidRequest, match="certificate signing request"):
        read_request(json.dumps(fields, separators=(",", ":")).encode())


def key_of_a_strange_kind(pem: bytes) -> bytes:
    return changed(pem, *CURVE)


@pytest.mark.parametrize("change", [key_of_a_strange_kind, lambda pem: changed(pem, b"\x3d\x02\x01", b"\x3d\x02\x7f")])
def test_a_client_key_of_a_strange_kind(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    from client.credentials import CertificateError as Refused
    from client.credentials import load_certificate

    key = private_pem(KEY)
    for one in (change(key) + certificate(), key + change(certificate()), key + changed(certificate(), *VERSION)):
        path = tmp_path / "client.pem"
        path.write_bytes(one)
        path.chmod(0o600)
        with pytest.raises(Refused):
            load_certificate(path, path)
