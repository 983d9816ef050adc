"""Certificates: whom they name, that neither side's serves the other side, and that only the authority issues any."""

from __future__ import annotations

import datetime
import json
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from client import credentials
from client.enrolment import EnrolmentRefused, _read_certificate, check_certificate
from secagg.keys import IdentityKey
from tests.support.issued_certificates import NO_REQUEST_VERSION, NO_VERSION, der_of, named_in, self_signed, with_inner
from wire.authority_statements import Card, InvalidCard
from wire.certificates import (
    CLOCK_SKEW,
    UNREADABLE,
    CertificateAuthority,
    CertificateError,
    host_uri,
    identity_uri,
    key_of_request,
    new_key,
    private_pem,
)
from wire.enrolment import EnrolmentRequest, InvalidRequest, make_csr, make_request, read_request

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
AUTHORITY = CertificateAuthority.make("clinics", NOW)
IDENTITY = bytes(range(32))


def handshake(folder: Path, server: tuple[bytes, bytes], client: tuple[bytes, bytes] | None, ca: bytes) -> str | None:
    """TLS in memory, each side with (certificate, key); None when both finish, else what went wrong."""

    def context(side: int, pair: tuple[bytes, bytes] | None) -> ssl.SSLContext:
        made = ssl.SSLContext(side)
        made.verify_mode = ssl.CERT_REQUIRED
        made.load_verify_locations(cadata=ca.decode())
        if pair is not None:
            (folder / "chain.pem").write_bytes(pair[0] + pair[1])
            made.load_cert_chain(folder / "chain.pem")
        return made

    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        context(ssl.PROTOCOL_TLS_CLIENT, client).wrap_bio(to_client, to_server, server_hostname="localhost"),
        context(ssl.PROTOCOL_TLS_SERVER, server).wrap_bio(to_server, to_client, server_side=True),
    ]
    done = [False, False]
    try:
        for _ in range(10):
            for index, side in enumerate(sides):
                try:
                    if not done[index]:
                        side.do_handshake()
                        done[index] = True
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLError as error:
        return str(error)
    return None if all(done) else "unfinished"


def server_pair(authority: CertificateAuthority = AUTHORITY) -> tuple[bytes, bytes]:
    key = new_key()
    return authority.issue_server(key.public_key(), ["clinic.example"], NOW), private_pem(key)


def client_pair(authority: CertificateAuthority = AUTHORITY) -> tuple[bytes, bytes]:
    key = new_key()
    return authority.issue_client(key.public_key(), identity_uri(IDENTITY), NOW), private_pem(key)


def test_each_side_has_its_own_kind(tmp_path: Path) -> None:
    """Without extended key usage a participant could play the coordinator to another participant."""
    ca = AUTHORITY.pem
    assert handshake(tmp_path, server_pair(), client_pair(), ca) is None
    assert "certificate" in (handshake(tmp_path, client_pair(), client_pair(), ca) or "")
    assert "certificate" in (handshake(tmp_path, server_pair(), server_pair(), ca) or "")
    assert "certificate" in (handshake(tmp_path, server_pair(), None, ca) or "")
    stranger = CertificateAuthority.make("clinics", NOW)
    assert "certificate" in (handshake(tmp_path, server_pair(), client_pair(stranger), ca) or "")
    assert "certificate" in (handshake(tmp_path, server_pair(stranger), client_pair(), ca) or "")


def test_a_participant_issues_nothing(tmp_path: Path) -> None:
    """A leaf that is taken for an authority would let each participant name any identity."""
    certificate, key = client_pair()
    leaf, own = x509.load_pem_x509_certificate(certificate), new_key()
    private = serialization.load_pem_private_key(key, None)
    forged = (
        x509.CertificateBuilder(leaf.subject, x509.Name([]), own.public_key(), 5, NOW - DAY, NOW + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(host_uri("host-01"))]), False)
        .sign(private, hashes.SHA256())  # type: ignore[arg-type]
        .public_bytes(serialization.Encoding.PEM)
    )
    assert "certificate" in (
        handshake(tmp_path, server_pair(), (forged + certificate, private_pem(own)), AUTHORITY.pem) or ""
    )
    with pytest.raises(EnrolmentRefused, match="isn't signed by the study's TLS authority"):
        check_certificate(forged, ca=AUTHORITY.pem, key=private_pem(own), names=(host_uri("host-01"),))
    constraints = AUTHORITY.certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)


def test_names_in_a_certificate() -> None:
    certificate, key = client_pair()
    assert named_in(certificate, AUTHORITY.pem) == [identity_uri(IDENTITY)]
    leaf = x509.load_pem_x509_certificate(certificate)
    assert leaf.not_valid_before_utc <= NOW - CLOCK_SKEW + datetime.timedelta(seconds=1)
    assert abs(leaf.not_valid_after_utc - NOW - 90 * DAY) < datetime.timedelta(seconds=2)
    public, names = serialization.load_pem_private_key(key, None).public_key(), (identity_uri(IDENTITY),)
    check_certificate(certificate, ca=AUTHORITY.pem, key=key, names=names)
    named = AUTHORITY.issue_client(public, host_uri("host-01"), NOW, 7)  # type: ignore[arg-type]  # a P-256 key
    assert named_in(named, AUTHORITY.pem) == [host_uri("host-01")]
    assert abs(x509.load_pem_x509_certificate(named).not_valid_after_utc - NOW - 7 * DAY).total_seconds() < 2
    stranger = CertificateAuthority.make("x", NOW).issue_client(public, names[0], NOW)  # type: ignore[arg-type]
    for refused in (AUTHORITY.issue_server(public, (), NOW), named, AUTHORITY.pem, b"none", stranger):  # type: ignore[arg-type]
        with pytest.raises(EnrolmentRefused):
            check_certificate(refused, ca=AUTHORITY.pem, key=key, names=names)


def test_only_the_key_of_a_request_counts() -> None:
    key = new_key()
    assert key_of_request(make_csr(key)) == key.public_key()


def test_nothing_outlives_the_authority() -> None:
    late = AUTHORITY.certificate.not_valid_after_utc - DAY
    certificate = AUTHORITY.issue_client(new_key().public_key(), host_uri("h"), late)
    leaf = x509.load_pem_x509_certificate(certificate)
    assert leaf.not_valid_after_utc == AUTHORITY.certificate.not_valid_after_utc
    with pytest.raises(CertificateError, match="expired"):
        AUTHORITY.issue_client(new_key().public_key(), host_uri("h"), late + 2 * DAY)


def test_an_authority_is_read_back_with_its_own_key() -> None:
    again = CertificateAuthority.load(AUTHORITY.pem, AUTHORITY.key_pem)
    assert again.certificate == AUTHORITY.certificate
    assert "PrivateKey" not in repr(again)
    other = CertificateAuthority.make("clinics", NOW)
    with pytest.raises(CertificateError, match="don't belong together"):
        CertificateAuthority.load(AUTHORITY.pem, other.key_pem)
    leaf, key = client_pair()
    with pytest.raises(CertificateError, match="don't belong together"):
        CertificateAuthority.load(leaf, key)
    with pytest.raises(CertificateError, match="in PEM"):
        CertificateAuthority.load(AUTHORITY.pem, b"-----BEGIN PRIVATE KEY-----\nsecret words\n")


# ---------------------------------------------------------------- what can't be read raises one kind of error


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
    key = private_pem(KEY)
    changed = with_inner(key, *change) + CERTIFICATE, key + with_inner(CERTIFICATE, *change)
    for one in (*changed, key + with_inner(CERTIFICATE, *NO_VERSION)):
        path = tmp_path / "client.pem"
        path.write_bytes(one)
        path.chmod(0o600)
        with pytest.raises(credentials.CertificateError):
            credentials.load_certificate(path, path)
