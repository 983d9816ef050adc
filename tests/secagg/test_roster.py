"""The roster file: signed content, strict order, one clear error for everything else."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given, settings, strategies as st

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


HEX = {size: "00" * size for size in (1, 32, 64)}
# Other values of a field: each is unsigned, or can't be one.
TAMPERED: dict[str, list[Any]] = {
    "study": ["other", 1, "", "x" * 65, "a\nb", "größe"],
    "version": [2, "1", True, 0, 2**63, 4097],  # a lottery counts at most 4,096
    "signature": [HEX[64], HEX[1], "xyz"],
    "format": ["sordino-roster-1"],
    "participants": [[], {"a": 1}],
    "lottery": [{"draws": 3, "root": HEX[32]}, {"draws": 3}, {"draws": 1.5, "root": HEX[32]}, 3],
    "terms": ["11" * 32, "11"],
    "previous": ["11" * 32],
}
OF_THE_FIRST: dict[str, list[Any]] = {"host": ["elsewhere", "\ud800"], "identity": [HEX[32], HEX[1], 5]}
CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "participant removed": lambda d: d["participants"].pop(),
    "participant added": lambda d: d["participants"].append({"identity": "ff" * 32, "host": "h"}),
    "unsorted": exchange,
    "duplicate": lambda d: d["participants"].insert(0, d["participants"][0]),
    **{f"no {one}": lambda d, one=one: d.pop(one) for one in ("signature", "lottery", "terms", "format")},
    **{f"{one}: {v!r}": lambda d, one=one, v=v: d.update({one: v}) for one, values in TAMPERED.items() for v in values},
    **{
        f"{one}: {v!r}": lambda d, one=one, v=v: d["participants"][0].update({one: v})
        for one, values in OF_THE_FIRST.items()
        for v in values
    },
}


@pytest.mark.parametrize("how", CHANGES)
def test_tampered_files_are_refused(how: str) -> None:
    with pytest.raises(InvalidRoster):
        verify_roster(changed(CHANGES[how]), PUBLIC)


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
