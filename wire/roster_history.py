"""Which roster is the newest, and what came before it: two files that the authority makes beside each roster.

newest    a signed statement, valid for a limited time, that one version of the roster is the newest. A coordinator can
          withhold a later roster, or later terms, only until it ends.
history   what the authority signed of every version, each with the digest of the one before. It needs no signature of
          its own: the newest roster's signature covers it. A participant that has seen one version takes a later one
          only if the history leads from the first to the second. So an authority's key that signs two rosters of one
          version is noticed, and so is a folder restored from an older copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.encoding import encode, number
from secagg.lottery import Lottery
from secagg.roster import InvalidRoster, Roster, RosterHead
from secagg.signatures import verify_signature
from wire.authority_statements import SignedForm, is_study
from wire.json_fields import (
    HEX_32,
    HEX_64,
    TEXT,
    Kind,
    instance,
    listed,
    optional,
    read_fields,
    values_of,
    whole,
    write_fields,
)

NEWEST_FILE: Final = "newest.json"
HISTORY_FILE: Final = "history.json"
LARGEST_NEWEST: Final = 2048
LARGEST_HISTORY: Final = 4 << 20
MOST_AHEAD_S: Final = 3600.0
"""How far the authority's clock may be ahead of a participant's."""
_HISTORY: Final = "sordino-roster-history-1"


class StaleRoster(InvalidRoster):
    """The authority's statement that the roster is the newest has ended, or is another roster's."""


@dataclass(frozen=True)
class NewestRoster:
    """The authority's statement that this version, with the terms in it, is the newest from one time until another.

    Raises InvalidRoster: a field of another form.
    """

    study: str
    version: int
    roster: bytes  # digest of its head, 32 bytes
    terms: bytes  # SHA-256 of the study document, 32 bytes
    signed: int  # seconds since 1970
    until: int

    def __post_init__(self) -> None:
        if not is_study(self.study) or len(self.roster) != 32 or len(self.terms) != 32:
            raise InvalidRoster("the statement of the newest roster names no roster")
        if not 1 <= self.version < 2**40:
            raise InvalidRoster("the statement of the newest roster names no version")
        if not 0 <= self.signed <= self.until < 2**40:
            raise InvalidRoster("the statement of the newest roster has no valid times")

    def statement(self) -> bytes:
        """The bytes that the authority signs."""
        numbers = number(self.version), number(self.signed), number(self.until)
        return encode("sordino/v1/newest-roster", self.study.encode(), self.roster, self.terms, *numbers)

    def check(self, roster: Roster, valid_s: int, clock: float, stated: float = 0) -> None:
        """Whether this roster is the newest now, in a study whose terms allow statements valid for ``valid_s``.

        Args:
            clock: this machine's.
            stated: when the latest statement that was accepted was signed; it is later than that.

        Raises StaleRoster: it isn't.
        """
        self.check_clock(clock)
        now = max(clock, stated)
        if (self.version, self.roster) != (roster.version, roster.digest()):
            raise StaleRoster(
                f"the authority's statement is that version {self.version} of the roster is the newest, and the "
                f"coordinator shows version {roster.version}"
            )
        if self.until - self.signed > valid_s:
            raise StaleRoster("the authority's statement of the newest roster is valid for longer than the terms allow")
        if now >= self.until:
            raise StaleRoster(
                "the authority's statement that this roster is the newest has ended: the authority must sign again "
                "(`sordino authority run` or `sign`), or this machine's clock is ahead"
            )

    def check_clock(self, clock: float) -> None:
        """Raises StaleRoster: it was signed later than now, and would hold for longer than the terms allow."""
        if self.signed > clock + MOST_AHEAD_S:
            raise StaleRoster(
                f"the authority's statement of the newest roster is dated {self.signed - clock:.0f} s from now: the "
                "authority's clock was ahead when it signed, or this machine's is behind"
            )


_NEWEST: Final = SignedForm(
    "sordino-newest-roster-1",
    LARGEST_NEWEST,
    InvalidRoster,
    study=TEXT,
    version=whole(1),
    roster=HEX_32,
    terms=HEX_32,
    signed=whole(),
    until=whole(),
    signature=HEX_64,
)


def sign_newest(newest: NewestRoster, authority: Ed25519PrivateKey) -> bytes:
    """The statement's file: JSON with the authority's signature over the content."""
    content = _NEWEST.write(**values_of(newest), signature=authority.sign(newest.statement()))
    return json.dumps(content, separators=(",", ":")).encode()


def verify_newest(data: bytes, authority_public: bytes) -> NewestRoster:
    """Read a statement and check its signature; `NewestRoster.check` compares it with a roster and a time.

    Raises InvalidRoster: unreadable, or not signed by this authority.
    """
    values = _NEWEST.read(data)
    signature = values.pop("signature")
    newest = NewestRoster(**values)
    if not verify_signature(authority_public, signature, newest.statement()):
        raise InvalidRoster("the statement of the newest roster is not signed by this study's authority")
    return newest


_VERSION: Final = {
    "version": whole(1),
    "participants": HEX_32,
    "lottery": optional(instance(Lottery, draws=whole(1), root=HEX_32)),
    "terms": HEX_32,
    "previous": HEX_32,
}
_VERSIONS: Final = listed(
    Kind(lambda head: write_fields(_VERSION, values_of(head)), lambda found: read_fields(_VERSION, found))
)


def write_history(heads: Iterable[RosterHead]) -> bytes:
    """The heads of a study's versions, ascending, as JSON."""
    listed_heads = list(heads)
    study = listed_heads[0].study if listed_heads else ""
    body = {"format": _HISTORY, "study": study, "versions": _VERSIONS.write(listed_heads)}
    return json.dumps(body, separators=(",", ":")).encode()


def read_history(data: bytes) -> tuple[RosterHead, ...]:
    """Read a history and check that each version names the one before, if that is in it.

    Whether it is the authority's shows only beside a signed roster (`check_descent`).

    Raises InvalidRoster: unreadable, or two versions that don't follow each other.
    """
    if len(data) > LARGEST_HISTORY:
        raise InvalidRoster("the roster's history is too long")
    try:
        body = read_fields({"format": TEXT, "study": TEXT, "versions": _VERSIONS}, json.loads(data))
        if body["format"] != _HISTORY:
            raise InvalidRoster(f"unknown format of the roster's history; this version reads {_HISTORY}")
        heads = tuple(RosterHead(body["study"], **one) for one in body["versions"])
    except InvalidRoster:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidRoster(f"not a history of the roster: {error}") from error
    for before, after in pairwise(heads):
        if after.version <= before.version or after.previous != before.digest():
            raise InvalidRoster(f"version {after.version} of the roster doesn't follow version {before.version}")
    return heads


def check_descent(seen: tuple[int, bytes], roster: Roster, heads: Sequence[RosterHead] = ()) -> None:
    """Check that a roster's history goes through a version that was seen before.

    Args:
        seen: version and digest; version 0 if none was.
        roster: of the same version or a later one, signed.
        heads: of the versions between the two (`read_history`); may hold others.

    Raises InvalidRoster: it goes back, its history is another one, or ``heads`` doesn't reach the version seen.
    """
    version, last = seen
    if version == 0:
        return
    if roster.version < version:
        raise InvalidRoster(
            f"version {roster.version} of the roster is older than version {version}, which was seen before"
        )
    if roster.version == version:
        if roster.digest() != last:
            raise InvalidRoster(
                f"this is another version {version} of the roster than was seen before: the authority signed two, or "
                "its folder was restored from an older copy"
            )
        return
    for head in (*(one for one in heads if version < one.version < roster.version), roster.head):
        if head.previous != last:
            raise InvalidRoster(
                f"the history of roster version {roster.version} doesn't lead back to version {version} that was seen "
                "before: the authority signed two, its folder was restored from an older copy, or the coordinator "
                "withholds a version"
            )
        last = head.digest()
