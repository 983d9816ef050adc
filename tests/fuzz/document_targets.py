"""Foreign documents: signed or hashed JSON, rows and models, typed codes.

Signed documents are read twice, as they are and with every signature accepted: there is code behind that check.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from types import ModuleType
from typing import Any, Final

import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import secagg.roster
import wire.authority_statements
import wire.enrolment
import wire.records.transcript_checks
from mechanisms.clip_rule import ClipRule
from runtime.address import split_address
from runtime.text import LONGEST, peer_text, printable
from secagg.keys import IdentityKey
from secagg.lottery import Draws
from secagg.roster import InvalidRoster, sign_roster, verify_roster
from tests.fuzz.mutations import canonical, change_bytes, change_encoded, compact, indented, json_mutation
from tests.fuzz.target import Target, must, trusting
from tests.support.attempts_in_memory import authority, keyed_source, roster_of
from tests.support.issued_certificates import NO_REQUEST_VERSION, NO_VERSION, self_signed, with_inner
from tests.support.rounds_on_record import drawn, plan as plan_of, play, whole
from wire.authority_statements import (
    Answer,
    Card,
    InvalidAnswer,
    InvalidCard,
    InvalidPackage,
    Package,
    read_package,
    sign_answer,
    sign_card,
    verify_answer,
    verify_card,
    write_package,
)
from wire.enrolment import EnrolmentRequest, InvalidRequest, make_request, read_request
from wire.join_code import InvalidCode, JoinCode, fingerprint
from wire.records.ledger import PARTICIPANT, About
from wire.records.ledger_rows import CHARGE, InvalidRow, LedgerEntry, make_entry
from wire.records.transcript import InvalidTranscript, read_transcript, write_transcript
from wire.records.transcript_checks import verify_transcript
from wire.round_model import apply_step, model_bytes, model_sha256, read_model, write_model
from wire.study import LARGEST_DOCUMENT, InvalidStudy, StudyDocument, read_draws, write_draws

AUTHORITY: Final = authority().public_key().public_bytes_raw()
_NOW: Final = 1_790_000_000


_drawn: Final = partial(drawn, 7, 9, epsilon=50.0)  # a setting with a lottery


def _believed(read: Callable[[], Any], error: type[Exception], *modules: ModuleType) -> Any:
    """The document read as it is, then with every signature taken for good; None where it is refused then."""
    with contextlib.suppress(error):
        read()
    with trusting(*modules), contextlib.suppress(error):
        return read()
    return None


# ---------------------------------------------------------------- transcript


def read_a_transcript(data: bytes) -> None:
    """Read: the bytes again. Checked, as it is and with all signatures: it holds, or `InvalidTranscript`."""
    try:
        found = read_transcript(data)
    except InvalidTranscript as error:
        must(error.check == "format", "the form is refused under another name")
        with contextlib.suppress(InvalidTranscript):
            verify_transcript(data, AUTHORITY)
            must(False, "what can't be read was found to hold")
        return
    must(found.data == data, "a transcript is written otherwise than it was read")
    for known in (AUTHORITY, fingerprint(AUTHORITY), None):
        with contextlib.suppress(InvalidTranscript):
            verify_transcript(data, known)
    everything = trusting(secagg.roster, wire.authority_statements, wire.records.transcript_checks)
    with everything, contextlib.suppress(InvalidTranscript):
        verify_transcript(data, AUTHORITY)


def transcript_seeds() -> Iterator[bytes]:
    for setting in (whole(7), _drawn()):
        bare = play(setting, 1).transcript(card=_card(setting.study))
        yield write_transcript(bare, authority(), sum_sha256=bytes(32), next_model_sha256=bytes(32), previous=None)


# ---------------------------------------------------------------- study


def read_study(data: bytes) -> None:
    """A document that is taken keeps its meaning when it is written again."""
    try:
        found = StudyDocument.from_bytes(data)
    except InvalidStudy:
        return
    must(len(data) <= LARGEST_DOCUMENT, "a document beyond the limit was read")
    again = StudyDocument.from_bytes(found.to_bytes())
    must(again.to_bytes() == found.to_bytes(), "a study document changes when it is written")


# ---------------------------------------------------------------- roster and lottery


def read_roster(data: bytes) -> None:
    """A roster that is taken is written and taken again; only the authority's is taken at all."""
    found = _believed(lambda: verify_roster(data, AUTHORITY), InvalidRoster, secagg.roster)
    if found is not None:
        must(verify_roster(sign_roster(found, authority()), AUTHORITY) == found, "a roster changes when it is written")
        must(len(found.digest()) == 32 and found.largest_host() >= 0, "a roster without a digest")


def read_lottery(data: bytes) -> None:
    """Draws that are taken are those that the roster was signed with."""
    roster = _drawn().roster
    with contextlib.suppress(InvalidRoster):
        found = read_draws(roster, data, _drawn().plan)
        must(found is not None and found.lottery == roster.lottery, "other draws than the roster's")


# ---------------------------------------------------------------- enrolment


@cache
def tls_key() -> ec.EllipticCurvePrivateKey:
    return ec.derive_private_key(4, ec.SECP256R1())


@cache
def _joiner() -> tuple[IdentityKey, JoinCode]:
    source = keyed_source("joiner")
    return IdentityKey.generate(source), JoinCode.new(AUTHORITY, bytes(32), _NOW + 86_400, source)


def read_card(data: bytes) -> None:
    """A card that is taken is written and taken again."""
    found = _believed(lambda: verify_card(data, fingerprint(AUTHORITY)), InvalidCard, wire.authority_statements)
    if found is not None:
        split_address(found.address)
        again = verify_card(sign_card(found, authority()), fingerprint(AUTHORITY))
        must(again == found, "a card changes when written")


def card_seeds() -> Iterator[bytes]:
    yield _card("clinics")
    fields = json.loads(_card("clinics"))
    yield indented({**fields, "tls_ca": with_inner(client_certificate(), *NO_VERSION).decode()})


@cache
def _card(study: str) -> bytes:
    return sign_card(Card(study, AUTHORITY, client_certificate(), AUTHORITY, "coordinator.example:8443"), authority())


def read_enrolment_request(data: bytes) -> None:
    """A request has one encoding: whatever is taken is these very bytes."""
    with contextlib.suppress(InvalidRequest):
        must(read_request(data).data == data, "a request is kept in other bytes")
    with trusting(wire.enrolment), contextlib.suppress(InvalidRequest):
        signed = read_request(data)
        again = wire.enrolment._request_bytes(signed.request, signed.signature, signed.mac)
        must(again == data, "a request has two encodings")
        signed.mac_is(bytes(16))


def request_seeds() -> Iterator[bytes]:
    identity, code = _joiner()
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    csr = builder.sign(tls_key(), hashes.SHA256(), ecdsa_deterministic=True).public_bytes(serialization.Encoding.PEM)
    asked = EnrolmentRequest("join", "clinics", identity.public, "laptop", csr, float(_NOW), code.code_id)
    yield make_request(asked, identity, code)
    renewal = make_request(EnrolmentRequest("renew", "clinics", identity.public, "pc", csr, 0.5), identity, None)
    yield renewal
    fields = json.loads(renewal)
    yield compact({**fields, "csr": with_inner(csr, *NO_REQUEST_VERSION).decode()})


def read_answer(data: bytes) -> None:
    """An answer that is taken is written and taken again."""
    with contextlib.suppress(InvalidAnswer):
        verify_answer(data, AUTHORITY, bytes(32))
    found = _believed(lambda: verify_answer(data, AUTHORITY), InvalidAnswer, wire.authority_statements)
    if found is None:
        return
    if found.certificate.isascii() and (found.place or not found.accepted):  # one of the first format is written anew
        must(verify_answer(sign_answer(found, authority()), AUTHORITY) == found, "an answer changes when written")


@cache
def client_certificate() -> bytes:
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("urn:sordino:host:laptop")])
    usage = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CLIENT_AUTH])
    return self_signed(tls_key(), (names, False), (usage, False))


def read_a_package(data: bytes) -> None:
    """A package that is taken is written in the same bytes, but for a lottery that says it isn't there."""
    try:
        found = read_package(data)
    except InvalidPackage:
        return
    written = write_package(found)
    must(read_package(written) == found, "a package changes when it is written")
    must(written == data or found.lottery_file is None, "a package has two encodings")


def read_join_code(data: bytes) -> None:
    """A code that is taken is, but for what people may type otherwise, the text that we write."""
    text = data.decode("utf-8", "replace")
    try:
        found = JoinCode.from_text(text)
    except InvalidCode as error:
        must(text.strip() not in str(error) or len(text.strip()) < 12, "an error repeats the code")
        return
    must(JoinCode.from_text(found.to_text()) == found, "a join code changes when it is written")
    said = "".join(text.split()).replace("-", "").upper().replace("O", "0").replace("I", "1").replace("L", "1")
    must(said == found.to_text().replace("-", "").replace("O", "0"), "another code was read than was typed")


def _join_codes() -> tuple[str, str]:
    return _joiner()[1].to_text(), JoinCode(bytes(16), bytes(10), b"\xff" * 16, 0).to_text().lower().replace("-", " ")


# ---------------------------------------------------------------- rows, models, texts


def read_row(data: bytes) -> None:
    """A row that is taken is these very bytes."""
    with contextlib.suppress(InvalidRow):
        must(LedgerEntry.from_bytes(data).to_bytes() == data, "a row has two encodings")
    with contextlib.suppress(ValueError):
        must(About.from_bytes(data).to_bytes() == data, "the beginning of a ledger has two encodings")


ENTRY: Final[dict[str, Any]] = {
    **{"study": "s", "study_sha256": bytes(32), "round": 1, "attempt": 1},
    "clock": lambda: 1.5,
}


def row_seeds() -> Iterator[bytes]:
    yield make_entry(whole(7).plan, participants=range(7), **ENTRY).to_bytes()
    yield make_entry(whole(7).plan, identity=bytes(32), data="0" * 64, kind=CHARGE, **ENTRY).to_bytes()
    yield About(PARTICIPANT, mark="0" * 32).to_bytes()


_RULES: Final = (
    ClipRule(layers=(3,), clips=(1.0,)),
    ClipRule(layers=(2, 1), clips=(0.5, 0.5), update="geometric", quantile=0.5, rate=0.3, bit_weight=0.3),
)


def read_round_model(data: bytes) -> None:
    """A model that is taken is written in the same bytes; the first byte says whether clips adapt."""
    rule, body = _RULES[data[:1] == b"\x01"], data[1:]
    before = write_model(np.arange(3, dtype=np.float32), rule.clips, rule)
    with contextlib.suppress(ValueError):
        must(len(apply_step(before, body, 3, rule)) == len(before), "a step makes a model of another length")
    try:
        found = read_model(body, 3, rule)
    except ValueError:
        return
    must(len(body) == model_bytes(3, rule), "a model of another length was read")
    must(found.vector.shape == (3,) and found.vector.dtype == np.float32, "a model of another shape")
    must(write_model(found.vector, found.clips, rule) == body, "a model changes when it is written")
    must(model_sha256(found.vector, found.clips, rule) == hashlib.sha256(body).digest(), "a digest of another model")


def model_seeds() -> Iterator[bytes]:
    for at, rule in enumerate(_RULES):
        yield bytes([at]) + write_model(np.arange(3, dtype=np.float32), rule.clips, rule)


def show_text(data: bytes) -> None:
    """What is shown has no control characters and an end; an address is a host and a port or `ValueError`."""
    text = data.decode("utf-8", "surrogateescape")
    line = peer_text(text)
    must(len(line) <= LONGEST and line.isprintable(), "a peer's line steers the terminal")
    must(all(one.isprintable() for one in printable(text).split("\n")), "a peer's text steers the terminal")
    try:
        host, port = split_address(text)
    except ValueError:
        return
    must(bool(host) and 0 <= port <= 65535, "an address without host or port")


# ---------------------------------------------------------------- all of them


_TEXTS: Final = (b"localhost:8443", b"[::1]:8443", b"\x1b[2J two\nlines", "bidi \u202e text".encode())
_JSON: Final = (b'"', b"{", b"}", b"[", b"]", b":", b",", b"null", b"true", b"1e999", b"\\ud800", b"-0.0", b"NaN")


def _document(
    name: str,
    run: Callable[[bytes], None],
    seeds: Callable[[], Iterable[bytes]],
    write: Callable[[Any], bytes] = compact,
    end: bytes = b"",
    largest: int = 16 << 10,
) -> Target:
    return Target(name, run, seeds, json_mutation(write, end), largest, _JSON)


TARGETS: Final = (
    _document("transcript", read_a_transcript, transcript_seeds, canonical, b"\n", 32 << 10),
    _document(
        "study_document",
        read_study,
        lambda: [whole(7).document, _drawn().document, whole(7, plan=plan_of(7, "skellam")).document],
        canonical,
    ),
    _document("roster", read_roster, lambda: [sign_roster(roster_of(3), authority()), _drawn().roster_file], indented),
    _document(
        "lottery",
        read_lottery,
        lambda: [write_draws(one) for one in (_drawn().draws, Draws.draw("other", 2, 3, keyed_source("fuzz"))) if one],
        indented,
    ),
    _document("card", read_card, card_seeds, indented),
    _document("enrolment_request", read_enrolment_request, request_seeds),
    _document(
        "enrolment_answer",
        read_answer,
        lambda: [
            sign_answer(Answer(bytes(32), True, "", "laptop", client_certificate(), 3, 11), authority()),
            sign_answer(Answer(bytes(32), False, "no place is left", "", b"", 0), authority()),
        ],
    ),
    _document("ledger_row", read_row, row_seeds, canonical),
    Target(
        "package",
        read_a_package,
        lambda: [
            write_package(Package(b"roster", b"newest", b"history", *more))
            for more in ((), (b"lottery", (b"one", b"", b"three")))
        ],
        change_bytes,
        1024,
    ),
    Target("join_code", read_join_code, lambda: [one.encode() for one in _join_codes()], change_encoded, 256),
    Target("round_model", read_round_model, model_seeds, None, 64),
    Target("peer_text", show_text, lambda: _TEXTS, None, 2048),
)
