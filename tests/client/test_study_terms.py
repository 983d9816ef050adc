"""A roster shared by participants of one process: each signature is verified once, and only a valid one is believed."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import secagg.roster
from client.study_terms import SharedRoster
from secagg.roster import Roster, RosterEntry

KEYS = sorted(
    (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(1, 4)),
    key=lambda key: key.public_key().public_bytes_raw(),
)
PLAIN = Roster("study", 1, tuple(RosterEntry(key.public_key().public_bytes_raw(), "host-01") for key in KEYS))


@pytest.fixture
def verifications(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Messages whose signatures were really verified."""
    done: list[bytes] = []
    verifies = secagg.roster.verify_signature

    def counted(public_key: bytes, signature: bytes, message: bytes) -> bool:
        done.append(message)
        return verifies(public_key, signature, message)

    monkeypatch.setattr(secagg.roster, "verify_signature", counted)
    return done


def test_it_is_the_same_roster_and_verifies_a_valid_signature_once(verifications: list[bytes]) -> None:
    shared = SharedRoster.of(PLAIN)
    assert (shared.digest(), shared.positions, len(shared)) == (PLAIN.digest(), PLAIN.positions, 3)
    signature = KEYS[1].sign(b"message")
    assert [shared.verify(1, signature, b"message") for _ in range(5)] == [True] * 5
    assert verifications == [b"message"]
    assert [shared.verify(0, bytes(64), b"message") for _ in range(3)] == [False] * 3
    assert len(verifications) == 4  # an invalid one is verified each time


def test_nothing_else_passes_for_a_signature_that_was_valid(verifications: list[bytes]) -> None:
    shared = SharedRoster.of(PLAIN)
    signature = KEYS[1].sign(b"message")
    assert shared.verify(1, signature, b"message")
    assert not shared.verify(0, signature, b"message")
    assert not shared.verify(1, signature, b"massage")
    assert not shared.verify(1, signature[:-1] + bytes([signature[-1] ^ 1]), b"message")
    assert not shared.verify(1, signature[:-1], signature[-1:] + b"message")  # the same bytes, cut elsewhere
    assert not shared.verify(1, signature + b"m", b"essage")
    assert len(verifications) == 6


def test_the_memory_is_bounded_and_forgets_the_oldest(verifications: list[bytes]) -> None:
    shared = SharedRoster.of(PLAIN)
    messages = [bytes([number]) for number in range(40)]
    signatures = [KEYS[0].sign(message) for message in messages]
    for signature, message in zip(signatures, messages, strict=True):
        assert shared.verify(0, signature, message)
    assert len(shared._valid) == 2 * 3 * 3
    verifications.clear()
    assert shared.verify(0, signatures[-1], messages[-1])
    assert verifications == []
    assert shared.verify(0, signatures[0], messages[0])
    assert verifications == [messages[0]]
