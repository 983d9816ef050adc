"""The roster file: signed content, strict order, one clear error for everything else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from secagg.roster import InvalidRoster, sign_roster, verify_roster
from secagg.signatures import verify_signature
from tests.support.attempts_in_memory import authority, identities, keyed_source, roster_of

ROSTER = roster_of(6)
DATA = sign_roster(ROSTER, authority())
PUBLIC = authority().public_key().public_bytes_raw()


def test_round_trip() -> None:
    read = verify_roster(DATA, PUBLIC)
    assert read == ROSTER
    assert read.digest() == ROSTER.digest()
    assert [read.positions[key.public] for key in identities(6)] == list(range(6))
    assert [read.identity(at) for at in range(6)] == [key.public for key in identities(6)]
    assert read.largest_host() == 2
    assert len(read) == 6


def changed(change: Callable[[dict[str, Any]], None]) -> bytes:
    document = json.loads(DATA)
    change(document)
    return json.dumps(document).encode()


def exchange(document: dict[str, Any]) -> None:
    people = document["participants"]
    people[0], people[1] = people[1], people[0]


TAMPERED: dict[str, Callable[[dict[str, Any]], None]] = {
    "study": lambda d: d.update(study="other"),
    "version": lambda d: d.update(version=2),
    "host": lambda d: d["participants"][0].update(host="elsewhere"),
    "participant removed": lambda d: d["participants"].pop(),
    "participant added": lambda d: d["participants"].append({"identity": "ff" * 32, "host": "h"}),
    "identity": lambda d: d["participants"][0].update(identity="00" * 32),
    "signature": lambda d: d.update(signature="00" * 64),
    "short signature": lambda d: d.update(signature="00"),
    "no signature": lambda d: d.pop("signature"),
    "signature is no hex": lambda d: d.update(signature="xyz"),
    "unsorted": exchange,
    "duplicate": lambda d: d["participants"].insert(0, d["participants"][0]),
    "empty": lambda d: d.update(participants=[]),
    "short identity": lambda d: d["participants"][0].update(identity="00"),
    "identity is a number": lambda d: d["participants"][0].update(identity=5),
    "version is text": lambda d: d.update(version="1"),
    "version is a truth value": lambda d: d.update(version=True),
    "version is zero": lambda d: d.update(version=0),
    "version is huge": lambda d: d.update(version=2**63),
    "study is a number": lambda d: d.update(study=1),
    "study is empty": lambda d: d.update(study=""),
    "study is long": lambda d: d.update(study="x" * 65),
    "study has a line break": lambda d: d.update(study="a\nb"),
    "study is not ASCII": lambda d: d.update(study="größe"),
    "host has half a surrogate pair": lambda d: d["participants"][0].update(host="\ud800"),
    "another format": lambda d: d.update(format="sordino-roster-1"),
    "version above the most that a lottery counts": lambda d: d.update(version=4097),
    "a lottery that wasn't signed": lambda d: d.update(lottery={"draws": 3, "root": "00" * 32}),
    "a lottery without a root": lambda d: d.update(lottery={"draws": 3}),
    "a lottery with half a draw": lambda d: d.update(lottery={"draws": 1.5, "root": "00" * 32}),
    "a lottery that is a number": lambda d: d.update(lottery=3),
    "no word about a lottery": lambda d: d.pop("lottery"),
    "terms": lambda d: d.update(terms="11" * 32),
    "short terms": lambda d: d.update(terms="11"),
    "no terms": lambda d: d.pop("terms"),
    "the version before": lambda d: d.update(previous="11" * 32),
    "no format": lambda d: d.pop("format"),
    "participants are a table": lambda d: d.update(participants={"a": 1}),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_tampered_files_are_refused(how: str) -> None:
    with pytest.raises(InvalidRoster):
        verify_roster(changed(TAMPERED[how]), PUBLIC)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"version": ' + b"9" * 5000 + b"}"]
)
def test_files_that_are_no_roster(data: bytes) -> None:
    with pytest.raises(InvalidRoster):
        verify_roster(data, PUBLIC)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.binary(max_size=60) | st.integers(0, len(DATA) - 1).map(lambda at: DATA[:at] + b"?" + DATA[at + 1 :]))
def test_nothing_but_one_kind_of_error(data: bytes) -> None:
    """Spaces between the parts aren't signed, so a change there may go unnoticed; nothing else may."""
    with contextlib.suppress(InvalidRoster):
        assert verify_roster(data, PUBLIC) == ROSTER


def test_the_signature_covers_the_content_and_not_the_text() -> None:
    assert verify_roster(json.dumps(json.loads(DATA), separators=(",", ":")).encode(), PUBLIC) == ROSTER


def test_another_authority() -> None:
    other = Ed25519PrivateKey.from_private_bytes(keyed_source("another authority")(32))
    with pytest.raises(InvalidRoster, match="not signed by this study's authority"):
        verify_roster(sign_roster(ROSTER, other), PUBLIC)
    with pytest.raises(InvalidRoster):
        verify_roster(DATA, b"short")


def test_a_key_for_which_one_signature_covers_every_message_is_refused() -> None:
    neutral = (1).to_bytes(32, "little")
    base_point = bytes.fromhex("58" + "66" * 31)
    signature = base_point + (1).to_bytes(32, "little")  # R = s B with s = 1
    for message in (b"one", b"another"):
        Ed25519PublicKey.from_public_bytes(neutral).verify(signature, message)  # OpenSSL accepts it
        assert not verify_signature(neutral, signature, message)


def test_parts_of_a_signature_cannot_move_into_the_message() -> None:
    key = identities(1)[0]
    signature = key.sign(b"message")
    for at in (-1, 1):
        joined = signature + b"message"
        assert not verify_signature(key.public, joined[: 64 + at], joined[64 + at :])


def test_verification_never_raises() -> None:
    message, key = b"message", identities(1)[0]
    signature = key.sign(message)
    assert verify_signature(key.public, signature, message)
    for public, one, text in (
        (key.public, signature, b"other"),
        (key.public, signature[:-1], message),
        (key.public, b"", message),
        (b"", signature, message),
        (b"\xff" * 32, signature, message),
        (next(one.public for one in identities(2) if one.public != key.public), signature, message),
    ):
        assert not verify_signature(public, one, text)
