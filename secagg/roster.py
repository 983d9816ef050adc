"""The roster: the list of participants and the digest of the study's terms, signed by the study's authority.

Entries are sorted by identity. A participant is identified by its position, and the order of positions is the order of
identities everywhere in the protocol. Each change of the list or of the terms is signed as a new version; versions only
grow, and each names the digest of the one before. So a version stands for the whole history up to it: two rosters of
one study have a common history or show that the authority's key signed two.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.encoding import encode, number
from secagg.lottery import MAX_VERSIONS, Lottery
from secagg.signatures import verify_signature

FORMAT: Final = "sordino-roster-3"
LARGEST_ROSTER: Final = 1_000_000
NONE: Final = bytes(32)
"""In the place of a digest: of the terms before any are signed, and of the version before the first one."""


class InvalidRoster(ValueError):
    """The roster file is malformed, inconsistent or not signed by the authority."""


@dataclass(frozen=True)
class RosterEntry:
    """One participant: its Ed25519 public key (32 bytes) and the name of the process or machine that hosts it."""

    identity: bytes
    host: str


@dataclass(frozen=True)
class RosterHead:
    """What the authority signs of a version: all of it, with the list of participants as a digest.

    Raises InvalidRoster: a bad name, version or digest.
    """

    study: str
    version: int
    participants: bytes  # SHA-256 of the entries
    lottery: Lottery | None = None  # if cohorts are drawn
    terms: bytes = NONE  # SHA-256 of the study document in force
    previous: bytes = NONE  # digest of the head before

    def __post_init__(self) -> None:
        if not (0 < len(self.study) <= 64 and self.study.isascii() and self.study.isprintable()):
            raise InvalidRoster("the study's name must be 1 to 64 printable ASCII characters")
        if not 1 <= self.version <= MAX_VERSIONS:
            raise InvalidRoster(f"the roster's version must lie in 1..{MAX_VERSIONS}: begin a new study")
        if any(len(one) != 32 for one in (self.participants, self.terms, self.previous)):
            raise InvalidRoster("a digest of the roster is a SHA-256 of 32 bytes")

    def statement(self) -> bytes:
        drawn = (b"", b"") if self.lottery is None else (number(self.lottery.draws), self.lottery.root)
        fields = (self.study.encode(), number(self.version), self.participants, *drawn, self.terms, self.previous)
        return encode("sordino/v1/roster", *fields)

    def digest(self) -> bytes:
        """SHA-256 of the statement: 32 bytes that stand for this version and all before it."""
        return hashlib.sha256(self.statement()).digest()


@dataclass(frozen=True)
class Roster:
    """A closed version of the list of participants; the fields are those of its `RosterHead`.

    Raises InvalidRoster: entries not strictly sorted by identity, a bad name, version, digest or key length.
    """

    study: str
    version: int
    entries: tuple[RosterEntry, ...]
    lottery: Lottery | None = None
    terms: bytes = NONE
    previous: bytes = NONE

    def __post_init__(self) -> None:
        RosterHead(self.study, self.version, NONE, self.lottery, self.terms, self.previous)
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
        return {entry.identity: position for position, entry in enumerate(self.entries)}

    @cached_property
    def in_order(self) -> tuple[int, ...]:
        """All positions, ascending."""
        return tuple(range(len(self.entries)))

    @cached_property
    def everybody(self) -> frozenset[int]:
        return frozenset(range(len(self.entries)))

    @cached_property
    def identities(self) -> tuple[bytes, ...]:
        """Ed25519 public keys, ascending."""
        return tuple(entry.identity for entry in self.entries)

    def identity(self, participant: int) -> bytes:
        return self.identities[participant]

    def verify(self, participant: int, signature: bytes, message: bytes) -> bool:
        """Whether `signature` (64 bytes) is one of the participant's identity over `message`."""
        return verify_signature(self.identity(participant), signature, message)

    def largest_host(self) -> int:
        """Number of participants on the fullest host process: they fail together."""
        return max(Counter(entry.host for entry in self.entries).values(), default=0)

    @cached_property
    def head(self) -> RosterHead:
        """What is signed."""
        fields = b"".join(
            number(len(field)) + field for entry in self.entries for field in (entry.identity, entry.host.encode())
        )
        participants = hashlib.sha256(fields).digest()
        return RosterHead(self.study, self.version, participants, self.lottery, self.terms, self.previous)

    @cached_property
    def _digest(self) -> bytes:
        return self.head.digest()

    def digest(self) -> bytes:
        """SHA-256 of the signed content."""
        return self._digest


def lottery_json(lottery: Lottery | None) -> dict[str, Any] | None:
    """A lottery in a roster's file or a history."""
    return None if lottery is None else {"draws": lottery.draws, "root": lottery.root.hex()}


def read_lottery(drawn: Any) -> Lottery | None:
    """The inverse of `lottery_json`. Raises KeyError, TypeError, ValueError: it can't be one."""
    if drawn is None:
        return None
    if type(drawn["draws"]) is not int:
        raise InvalidRoster("the number of draws must be a whole number")
    return Lottery(drawn["draws"], bytes.fromhex(drawn["root"]))


def sign_roster(roster: Roster, authority: Ed25519PrivateKey) -> bytes:
    """The roster file: JSON with the authority's signature over the content (not over the JSON text)."""
    document = {
        "format": FORMAT,
        "study": roster.study,
        "version": roster.version,
        "lottery": lottery_json(roster.lottery),
        "terms": roster.terms.hex(),
        "previous": roster.previous.hex(),
        "participants": [{"identity": entry.identity.hex(), "host": entry.host} for entry in roster.entries],
        "signature": authority.sign(roster.head.statement()).hex(),
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
        digests = (bytes.fromhex(document["terms"]), bytes.fromhex(document["previous"]))
        roster = Roster(document["study"], document["version"], entries, read_lottery(document["lottery"]), *digests)
        signature = bytes.fromhex(document["signature"])
        signed = roster.head.statement()
    except InvalidRoster:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidRoster(f"not a roster file: {type(error).__name__}") from error
    if not verify_signature(authority_public, signature, signed):
        raise InvalidRoster("the roster is not signed by this study's authority")
    return roster
