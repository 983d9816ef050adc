"""Formats of enrolment: slips in a code are told apart, and nothing that is signed or authenticated can be changed."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.keys import IdentityKey
from tests.support.issued_certificates import self_signed
from wire.authority_statements import (
    Answer,
    Card,
    InvalidAnswer,
    InvalidCard,
    InvalidPackage,
    Package,
    pending_statement,
    read_package,
    sign_answer,
    sign_card,
    verify_answer,
    verify_card,
    write_package,
)
from wire.enrolment import LARGEST_REQUEST, EnrolmentRequest, InvalidRequest, make_csr, make_request, read_request
from wire.join_code import (
    ExpiredCode,
    InvalidCode,
    JoinCode,
    MistypedCode,
    TruncatedCode,
    fingerprint,
    show_fingerprint,
)

NOW = 1_790_000_000
AUTHORITY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = AUTHORITY.public_key().public_bytes_raw()
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))
CODE = JoinCode.new(PUBLIC, bytes(32), NOW + 86_400, random.Random(1).randbytes)
ALICE = IdentityKey.generate(random.Random(2).randbytes)
MALLORY = IdentityKey.generate(random.Random(3).randbytes)
TLS_KEY = ec.derive_private_key(4, ec.SECP256R1())
CSR = make_csr(TLS_KEY)
REQUEST = EnrolmentRequest("join", "clinics", ALICE.public, "laptop", CSR, float(NOW), CODE.code_id)


CA = self_signed(TLS_KEY, (x509.BasicConstraints(ca=True, path_length=0), True))
CARD = Card("clinics", PUBLIC, CA, MALLORY.public, "coordinator.example:8443")
ANSWER = Answer(bytes(32), True, "", "laptop", CARD.tls_ca, 3, 11)


def test_a_code_survives_being_typed() -> None:
    text = CODE.to_text()
    assert len(text) == len("SORD2") + 16 * 6
    assert JoinCode.from_text(text) == CODE
    assert JoinCode.from_text(f"  {text.lower().replace('-', ' ')}\n") == CODE
    assert JoinCode.from_text(text.replace("-", "").replace("0", "o").replace("1", "l")) == CODE
    assert JoinCode.from_text(text.replace("1", "i").replace("0", "O")) == CODE


def test_codes_of_any_content_can_be_read_back() -> None:
    rng = random.Random(5)
    for _ in range(300):
        code = JoinCode(rng.randbytes(16), rng.randbytes(10), rng.randbytes(16), rng.randrange(2**32) * 60)
        assert JoinCode.from_text(code.to_text()) == code


def test_a_code_hides_its_secret() -> None:
    assert CODE.secret.hex() not in repr(CODE)
    assert repr(CODE.secret) not in repr(CODE)
    assert CODE.to_text()[6:] not in repr(CODE)
    assert CODE.code_id not in (CODE.secret, CODE.fingerprint)


def test_every_wrong_letter_and_every_swap_is_found() -> None:
    """A code without a checksum would name another authority or hold another secret, and fail far away."""
    text = CODE.to_text()
    for place in range(6, len(text)):
        if text[place] == "-":
            continue
        for letter in "0123456789ABCDEFGHJKMNPQRSTVWXYZ":
            if letter != text[place]:
                with pytest.raises(MistypedCode):
                    JoinCode.from_text(text[:place] + letter + text[place + 1 :])
    plain = text.replace("-", "")
    swaps = 0
    for place in range(5, len(plain) - 1):
        swapped = plain[:place] + plain[place + 1] + plain[place] + plain[place + 2 :]
        if swapped != plain:
            swaps += 1
            with pytest.raises(MistypedCode, match="swapped"):
                JoinCode.from_text(swapped)
    assert swaps > 50


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        (lambda text: text[:-1], TruncatedCode, "not complete: it has 79 letters after SORD2, not 80"),
        (lambda text: text[:20], TruncatedCode, "not complete"),
        (lambda text: "SORD2-", TruncatedCode, "it has 0 letters"),
        (lambda text: text + "A", TruncatedCode, "too long"),
        (lambda text: text[:7] + "U" + text[8:], MistypedCode, "the 2. letter of its 1. group"),
        (lambda text: text[:-1] + "é", MistypedCode, "the 5. letter of its 16. group"),
        (lambda text: "SORD1" + text[5:], InvalidCode, "another version"),
        (lambda text: text[6:], InvalidCode, "begins with SORD2-"),
        (lambda text: "", InvalidCode, "begins with SORD2-"),
        (lambda text: "hunter2", InvalidCode, "not a join code"),
    ],
)
def test_what_is_no_code(change: Callable[[str], str], kind: type[InvalidCode], told: str) -> None:
    with pytest.raises(kind, match=told) as caught:
        JoinCode.from_text(change(CODE.to_text()))
    assert type(caught.value) is kind
    assert CODE.to_text()[6:20] not in str(caught.value)


def test_expiry_is_distinguished_from_typing_errors() -> None:
    JoinCode.from_text(CODE.to_text()).check_time(CODE.expires - 1)
    with pytest.raises(ExpiredCode, match="has expired"):
        CODE.check_time(CODE.expires)
    with pytest.raises(ExpiredCode, match="set the clock"):
        CODE.check_time(0.0)
    assert JoinCode.new(PUBLIC, bytes(32), NOW + 0.5, random.Random(1).randbytes).expires % 60 == 0
    assert 0 <= JoinCode.new(PUBLIC, bytes(32), NOW + 0.5, random.Random(1).randbytes).expires - NOW - 0.5 < 60


def test_fingerprints() -> None:
    assert len(fingerprint(PUBLIC)) == 16
    assert fingerprint(PUBLIC) == CODE.fingerprint != fingerprint(bytes(32))
    assert show_fingerprint(bytes(range(16))) == "0001 0203 0405 0607 0809 0a0b 0c0d 0e0f"


def test_a_request_is_read_back() -> None:
    data = make_request(REQUEST, ALICE, CODE)
    signed = read_request(data)
    assert signed.request == REQUEST
    assert signed.mac_is(CODE.secret)
    assert not signed.mac_is(bytes(16))
    assert len(data) <= LARGEST_REQUEST
    renewal = read_request(make_request(dataclasses.replace(REQUEST, kind="renew", code_id=b""), ALICE, None))
    assert renewal.request.kind == "renew"
    assert renewal.mac == b""
    assert not renewal.mac_is(CODE.secret)
    assert CODE.secret.hex() not in data.decode() + repr(signed)


def compact(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"identity": MALLORY.public},
        {"host": "laptop2"},
        {"csr": make_csr(ec.derive_private_key(5, ec.SECP256R1()))},
        {"study": "clinic"},
        {"at": NOW + 1.0},
        {"code_id": bytes(16)},
    ],
    ids=lambda value: next(iter(value)),
)
def test_a_mac_is_good_for_one_request(changes: dict[str, object]) -> None:
    """A MAC over the code's id alone, or over the identity alone, would let the coordinator put itself in a request
    that it carries: with its own identity, or with its own TLS key.
    """
    honest = read_request(make_request(REQUEST, ALICE, CODE))
    signer = MALLORY if "identity" in changes else ALICE
    other_code = JoinCode.new(PUBLIC, bytes(32), NOW, random.Random(9).randbytes)
    forged = dataclasses.replace(REQUEST, **changes | ({"code_id": other_code.code_id} if "code_id" in changes else {}))
    data = json.loads(make_request(forged, signer, other_code if "code_id" in changes else CODE))
    data["mac"] = honest.mac.hex()
    assert not read_request(compact(data)).mac_is(CODE.secret)
    # And only the identity's owner can change a field and keep the signature.
    data["signature"] = honest.signature.hex()
    with pytest.raises(InvalidRequest, match="signed by its identity"):
        read_request(compact(data))


def test_a_request_has_one_encoding() -> None:
    """With blanks or capitals one request would have many ids, and the authority would judge it many times."""
    data = make_request(REQUEST, ALICE, CODE)
    fields = json.loads(data)
    variants = [
        json.dumps(fields).encode(),
        data + b"\n",
        compact(dict(reversed(fields.items()))),
        data.replace(ALICE.public.hex().encode(), ALICE.public.hex().upper().encode()),
        data.replace(b'"kind":"join"', b'"kind":"renew","kind":"join"'),
    ]
    for variant in variants:
        assert json.loads(variant)["identity"].lower() == ALICE.public.hex()
        with pytest.raises(InvalidRequest, match="written as requests are"):
            read_request(variant)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"format": "sordino-enrolment-request-2"}, "format"),
        ({"kind": "leave"}, "join or to renew"),
        ({"kind": "renew"}, "one to renew none"),
        ({"identity": "00"}, "length"),
        ({"identity": "zz"}, "hexadecimal"),
        ({"host": "a b"}, "host's name"),
        ({"host": ""}, "host's name"),
        ({"host": "a" * 65}, "host's name"),
        ({"at": NOW}, "time"),
        ({"at": float("nan")}, "time"),
        ({"at": float("inf")}, "time"),
        ({"at": "now"}, "type"),
        ({"csr": "none"}, "certificate signing request"),
        ({"csr": "-----BEGIN\ud800"}, "certificate signing request"),
        ({"study": "é"}, "no study"),
        ({"more": "x"}, "unknown"),
        ({"mac": ""}, "length"),
        ({"signature": "00" * 64}, "signed by its identity"),
        ({"study": 5}, "type"),
    ],
    ids=str,
)
def test_what_is_no_request(change: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        read_request(compact(json.loads(make_request(REQUEST, ALICE, CODE)) | change))


def test_only_keys_of_p256_are_certified() -> None:
    blank = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    for key in (ec.derive_private_key(7, ec.SECP384R1()), rsa.generate_private_key(65537, 1024)):
        csr = blank.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        with pytest.raises(InvalidRequest, match="P-256"):
            dataclasses.replace(REQUEST, csr=csr)
    with pytest.raises(InvalidRequest, match="P-256"):
        dataclasses.replace(REQUEST, csr=b"a word before\n" + CSR)
    der = bytearray(x509.load_pem_x509_csr(CSR).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1  # of its signature
    with pytest.raises(InvalidRequest):
        dataclasses.replace(REQUEST, csr=x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM))


def test_a_request_is_made_with_what_it_names() -> None:
    with pytest.raises(ValueError, match="identity and the code"):
        make_request(REQUEST, MALLORY, CODE)
    with pytest.raises(ValueError, match="identity and the code"):
        make_request(REQUEST, ALICE, None)


def test_a_card_is_believed_by_its_fingerprint() -> None:
    data = sign_card(CARD, AUTHORITY)
    assert verify_card(data, CODE.fingerprint) == CARD
    forged = sign_card(dataclasses.replace(CARD, authority_public=STRANGER.public_key().public_bytes_raw()), STRANGER)
    with pytest.raises(InvalidCard, match="another authority"):
        verify_card(forged, CODE.fingerprint)
    # The real authority's key with a stranger's signature: a check of the fingerprint alone would believe it.
    fields = json.loads(data) | {"signature": json.loads(forged)["signature"]}
    with pytest.raises(InvalidCard, match="isn't signed"):
        verify_card(json.dumps(fields).encode(), CODE.fingerprint)
    with pytest.raises(ValueError, match="the key that it names"):
        sign_card(CARD, STRANGER)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"study": "clinic"}, "isn't signed"),
        ({"coordinator": "11" * 32}, "isn't signed"),
        ({"address": "elsewhere.example:8443"}, "isn't signed"),
        ({"address": "nowhere"}, "HOST:PORT"),
        ({"address": "here:0"}, "HOST:PORT"),
        ({"tls_ca": "none"}, "no TLS certificate"),
        ({"format": "x"}, "format"),
    ],
    ids=str,
)
def test_a_changed_card(change: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidCard, match=told):
        verify_card(compact(json.loads(sign_card(CARD, AUTHORITY)) | change), CODE.fingerprint)


def test_an_answer_is_read_back() -> None:
    data = sign_answer(ANSWER, AUTHORITY)
    assert verify_answer(data, PUBLIC) == verify_answer(data, PUBLIC, bytes(32)) == ANSWER
    refused = Answer(bytes(32), False, "the join code has expired", "", b"", 3)
    assert verify_answer(sign_answer(refused, AUTHORITY), PUBLIC) == refused
    with pytest.raises(InvalidAnswer, match="another request"):
        verify_answer(data, PUBLIC, bytes(31) + b"\1")
    with pytest.raises(InvalidAnswer, match="isn't signed"):
        verify_answer(sign_answer(ANSWER, STRANGER), PUBLIC)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"request_id": "11" * 32}, "isn't signed"),
        ({"host": "other"}, "isn't signed"),
        ({"certificate": "-----BEGIN"}, "isn't signed"),
        ({"roster_version": 4}, "isn't signed"),
        ({"accepted": False}, "else none"),
        ({"accepted": False, "host": "", "certificate": "", "reason": "no"}, "a place if it accepts, and else none"),
        ({"accepted": False, "host": "", "certificate": "", "reason": "no", "place": 0}, "isn't signed"),
        ({"place": 12}, "isn't signed"),
        ({"place": 0}, "an answer has a place if it accepts"),
        ({"place": -1}, "whole number from 0"),
        ({"place": 11.0}, "whole number"),
        ({"roster_version": 3.0}, "whole number"),
        ({"roster_version": -1}, "whole number from 0"),
        ({"roster_version": 2**32}, "no roster"),
        ({"accepted": 1}, "type"),
    ],
    ids=str,
)
def test_a_changed_answer(change: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidAnswer, match=told):
        verify_answer(compact(json.loads(sign_answer(ANSWER, AUTHORITY)) | change), PUBLIC)


def test_packages() -> None:
    files = (b"roster", b"newest", b"history")
    for package in (
        Package(*files),
        Package(*files, b"", (b"one",)),
        Package(*files, b"seeds", (b"one", b"", b"three")),
    ):
        data = write_package(package)
        assert read_package(data) == package
    for length in range(len(data)):
        with pytest.raises(InvalidPackage):
            read_package(data[:length])
    with pytest.raises(InvalidPackage):
        read_package(data + b"\0")


def test_labels_keep_statements_apart() -> None:
    """The same fields under another label are another statement: a signature for one purpose serves no other."""
    nonce = bytes(32)
    statements = {REQUEST.statement(), pending_statement("clinics", nonce)}
    assert len(statements) == 2
    assert pending_statement("ab", nonce) != pending_statement("a", b"b" + nonce)
    signature = AUTHORITY.sign(pending_statement("clinics", nonce))
    fields = json.loads(sign_answer(ANSWER, AUTHORITY)) | {"signature": signature.hex()}
    with pytest.raises(InvalidAnswer, match="isn't signed"):
        verify_answer(json.dumps(fields).encode(), PUBLIC)
