"""The roster: the list of participants, signed by the study's authority.

Entries are sorted by identity. A participant is identified by its position, and the order of positions is the order of
identities everywhere in the protocol. Each change of the list is signed as a new version; versions only grow.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.lottery import MAX_VERSIONS, Lottery
from secagg.signatures import verify_signature

FORMAT = "sordino-roster-2"
LARGEST_ROSTER = 1_000_000


class InvalidRoster(ValueError):
    """The roster file is malformed, inconsistent or not signed by the authority."""


@dataclass(frozen=True)
class RosterEntry:
    """One participant: its Ed25519 public key (32 bytes) and the name of the process or machine that hosts it."""

    identity: bytes
    host: str


@dataclass(frozen=True)
class Roster:
    """A closed version of the list of participants.

    Raises InvalidRoster: entries not strictly sorted by identity, a bad name, version or key length.
    """

    study: str
    version: int
    entries: tuple[RosterEntry, ...]
    lottery: Lottery | None = None  # if cohorts are drawn

    def __post_init__(self) -> None:
        if not (0 < len(self.study) <= 64 and self.study.isascii() and self.study.isprintable()):
            raise InvalidRoster("the study's name must be 1 to 64 printable ASCII characters")
        if not 1 <= self.version <= MAX_VERSIONS:
            raise InvalidRoster(f"the roster's version must lie in 1..{MAX_VERSIONS}: begin a new study")
        if len(self.entries) > LARGEST_ROSTER:
            raise InvalidRoster(f"a roster has at most {LARGEST_ROSTER} participants")
        if any(len(entry.identity) != 32 for entry in self.entries):
            raise InvalidRoster("an identity is an Ed25519 public key of 32 bytes")
        if any(a >= b for a, b in pairwise(self.identities)):
            raise InvalidRoster("participants must be sorted by identity, each listed once")

    def __len__(self) -> int:
        return len(self.entries)

    @cached_property
    def positions(self) -> dict[bytes, int]:
        """Identity -> position."""
        return {entry.identity: position for position, entry in enumerate(self.entries)}

    @cached_property
    def in_order(self) -> tuple[int, ...]:
        """All positions, ascending."""
        return tuple(range(len(self.entries)))

    @cached_property
    def everybody(self) -> frozenset[int]:
        """All positions."""
        return frozenset(range(len(self.entries)))

    @cached_property
    def identities(self) -> tuple[bytes, ...]:
        """Ed25519 public keys, ascending."""
        return tuple(entry.identity for entry in self.entries)

    def identity(self, participant: int) -> bytes:
        """The Ed25519 public key at a position."""
        return self.identities[participant]

    def verify(self, participant: int, signature: bytes, message: bytes) -> bool:
        """Whether `signature` (64 bytes) is one of the participant's identity over `message`."""
        return verify_signature(self.identity(participant), signature, message)

    def largest_host(self) -> int:
        """Number of participants on the fullest host process: they fail together."""
        return max(Counter(entry.host for entry in self.entries).values(), default=0)

    @cached_property
    def _digest(self) -> bytes:
        return hashlib.sha256(_signed_bytes(self)).digest()

    def digest(self) -> bytes:
        """SHA-256 of the signed content."""
        return self._digest


def _signed_bytes(roster: Roster) -> bytes:
    """Length-prefixed fields: different rosters give different bytes."""
    parts = [b"sordino/v1/roster" if roster.lottery is None else b"sordino/v1/lottery-roster"]
    fields = [roster.study.encode(), roster.version.to_bytes(8, "little")]
    if roster.lottery is not None:
        fields += (roster.lottery.draws.to_bytes(8, "little"), roster.lottery.root)
    for entry in roster.entries:
        fields += (entry.identity, entry.host.encode())
    for field in fields:
        parts += (len(field).to_bytes(8, "little"), field)
    return b"".join(parts)


def sign_roster(roster: Roster, authority: Ed25519PrivateKey) -> bytes:
    """The roster file: JSON with the authority's signature over the content (not over the JSON text)."""
    document = {
        "format": FORMAT,
        "study": roster.study,
        "version": roster.version,
        "lottery": roster.lottery and {"draws": roster.lottery.draws, "root": roster.lottery.root.hex()},
        "participants": [{"identity": entry.identity.hex(), "host": entry.host} for entry in roster.entries],
        "signature": authority.sign(_signed_bytes(roster)).hex(),
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def verify_roster(data: bytes, authority_public: bytes) -> Roster:
    """Read a roster file and check its signature by the authority (Ed25519 public key, known in advance).

    Raises InvalidRoster: unreadable, inconsistent, or not signed by this authority.
    """
    try:
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise InvalidRoster(f"unknown roster format {document['format']!r}; this version reads {FORMAT}")
        entries = tuple(
            RosterEntry(bytes.fromhex(entry["identity"]), str(entry["host"])) for entry in document["participants"]
        )
        if type(document["version"]) is not int or type(document["study"]) is not str:
            raise InvalidRoster("the roster's study must be a string and its version a whole number")
        drawn = document["lottery"]
        if drawn is not None and type(drawn["draws"]) is not int:
            raise InvalidRoster("the number of draws must be a whole number")
        lottery = None if drawn is None else Lottery(drawn["draws"], bytes.fromhex(drawn["root"]))
        roster = Roster(document["study"], document["version"], entries, lottery)
        signature = bytes.fromhex(document["signature"])
        signed = _signed_bytes(roster)
    except InvalidRoster:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidRoster(f"not a roster file: {type(error).__name__}") from error
    if not verify_signature(authority_public, signature, signed):
        raise InvalidRoster("the roster is not signed by this study's authority")
    return roster
