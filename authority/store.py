"""An authority's decisions in one SQLite file: invitations, requests, members, terms, signed rosters.

Every decision is durable before it is sent, so a crash can lose a message but never a decision: the same request gets
the same answer, and no version of the roster is ever signed twice with different content. Nothing is kept in memory,
and only one process at a time uses the file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from authority.folder import AuthorityError, AuthorityFolder
from runtime.durable import DurableStore, Statement, hold

APPLICATION_ID: Final = 0x534F4155  # "SOAU"
FORMAT: Final = 4
AT_ONCE: Final = 5_000
WAIT_S: Final = 15.0  # how long a command waits until another one has left the folder

_SCHEMA = """
CREATE TABLE invitations (
    code_id BLOB PRIMARY KEY, secret BLOB NOT NULL, name TEXT NOT NULL, made REAL NOT NULL, expires INTEGER NOT NULL,
    identity BLOB, withdrawn REAL, from_desk INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE members (
    identity BLOB PRIMARY KEY, host TEXT NOT NULL, by_code INTEGER NOT NULL, joined REAL NOT NULL, revoked REAL,
    place INTEGER NOT NULL UNIQUE
) WITHOUT ROWID;
CREATE TABLE requests (
    id BLOB PRIMARY KEY, kind TEXT NOT NULL, identity BLOB NOT NULL, csr BLOB NOT NULL, judged REAL NOT NULL,
    answer BLOB, published INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE TABLE versions (
    version INTEGER PRIMARY KEY, signed REAL NOT NULL, participants INTEGER NOT NULL, roster BLOB NOT NULL,
    head BLOB NOT NULL, lottery BLOB, published INTEGER NOT NULL DEFAULT 0, stated REAL NOT NULL DEFAULT 0
);
CREATE TABLE terms (sha256 BLOB PRIMARY KEY, document BLOB NOT NULL, accepted REAL NOT NULL) WITHOUT ROWID
"""
_OPEN: Final = "WHERE identity IS NULL AND withdrawn IS NULL AND expires > ?"  # invitations that can still be used


@dataclass(frozen=True)
class Invitation:
    """A join code as the authority keeps it; times in seconds since 1970."""

    code_id: bytes
    secret: bytes = field(repr=False)
    name: str  # of the host, as the authority wants it; empty: the participant chooses
    made: float
    expires: int
    identity: bytes | None  # that used it
    withdrawn: float | None
    from_desk: bool = False  # through the local enrolment socket, not by hand


@dataclass(frozen=True)
class Member:
    """An identity that has or had a place."""

    identity: bytes
    host: str
    by_code: bool  # not made with the study
    joined: float
    revoked: float | None
    place: int  # from 1, in the order of admission; never given again


@dataclass(frozen=True)
class Judged:
    """A request that was accepted; ``answer`` is None until the roster that lists it is signed."""

    id: bytes
    kind: str
    identity: bytes
    csr: bytes
    judged: float
    answer: bytes | None


@dataclass(frozen=True)
class Version:
    """A signed roster; the lottery's seeds are kept for the newest one only."""

    version: int
    signed: float
    participants: int
    roster: bytes = field(repr=False)
    head: bytes = field(repr=False)  # what is signed of it, as a history of one version
    lottery: bytes | None = field(repr=False)
    published: bool
    stated: float  # when it was last stated to be the newest; 0: never


class AuthorityStore:
    """The open file of a folder. Reads see every decision; `write` returns when it is durable."""

    def __init__(self, folder: AuthorityFolder) -> None:
        """Raises runtime.durable.StorageError: not an authority's store, or not writable."""
        self.folder = folder
        self._store = DurableStore(folder.state, _SCHEMA, APPLICATION_ID, FORMAT)

    def close(self) -> None:
        """Write what is queued and release the file."""
        self._store.close()

    def write(self, *statements: Statement) -> None:
        """One transaction. Raises runtime.durable.StorageError: nothing of it is stored."""
        self._store.submit(*statements).result()

    def _all(self, kind: Any, table: str, rest: str, *parameters: object) -> list[Any]:
        """Rows of a table as objects of a dataclass, whose fields are columns; SQLite keeps a bool as a number."""
        named = fields(kind)
        rows = self._store.read(f"SELECT {', '.join(one.name for one in named)} FROM {table} {rest}", parameters)
        return [
            kind(*(bool(it) if one.type == "bool" else it for one, it in zip(named, row, strict=True))) for row in rows
        ]

    def _number(self, query: str, *parameters: object) -> int:
        return int(self._store.read(query, parameters)[0][0])

    def invitations(self) -> list[Invitation]:
        """All, the newest last."""
        return self._all(Invitation, "invitations", "ORDER BY made, code_id")

    def invitation(self, code_id: bytes) -> Invitation | None:
        return next(iter(self._all(Invitation, "invitations", "WHERE code_id = ?", code_id)), None)

    def open_invitations(self, now: float) -> list[Invitation]:
        """Those that can still be used, the newest last."""
        return self._all(Invitation, "invitations", f"{_OPEN} ORDER BY made, code_id", now)

    def open_codes(self, now: float) -> tuple[int, int]:
        """How many invitations are open, and how many of these are from the local enrolment socket."""
        found = f"SELECT count(*), coalesce(sum(from_desk), 0) FROM invitations {_OPEN}"
        [(every, of_desk)] = self._store.read(found, (now,))
        return int(every), int(of_desk)

    def members(self) -> list[Member]:
        """Everybody who ever was one, in ascending order of identity."""
        return self._all(Member, "members", "ORDER BY identity")

    def member(self, identity: bytes) -> Member | None:
        return next(iter(self._all(Member, "members", "WHERE identity = ?", identity)), None)

    def present(self) -> int:
        """How many members there are now."""
        return self._number("SELECT count(*) FROM members WHERE revoked IS NULL")

    def present_by_desk(self) -> int:
        """How many of them joined with a code from the local enrolment socket."""
        return self._number(
            "SELECT count(*) FROM members WHERE revoked IS NULL AND identity IN "
            "(SELECT identity FROM invitations WHERE from_desk AND identity IS NOT NULL)"
        )

    def hosts(self) -> list[str]:
        """Host names of all members ever."""
        return [row[0] for row in self._store.read("SELECT host FROM members")]

    def judged(self, request_id: bytes) -> Judged | None:
        return next(iter(self._all(Judged, "requests", "WHERE id = ?", request_id)), None)

    def waiting(self) -> list[Judged]:
        """Accepted requests to join that wait for the next version."""
        return self._all(Judged, "requests", "WHERE answer IS NULL ORDER BY id")

    def judged_since(self, identity: bytes, since: float) -> int:
        """How many requests of an identity were accepted after a time."""
        return self._number("SELECT count(*) FROM requests WHERE identity = ? AND judged > ?", identity, since)

    def unpublished(self) -> list[tuple[bytes, bytes]]:
        """(request id, answer) that no coordinator has confirmed yet; at most as many as fit one package."""
        found = "SELECT id, answer FROM requests WHERE answer IS NOT NULL AND NOT published ORDER BY id LIMIT ?"
        return [(request_id, answer) for request_id, answer in self._store.read(found, (AT_ONCE,))]

    def versions(self) -> list[tuple[int, float, int, bool]]:
        """(version, signed, participants, published) of each, in ascending order."""
        rows = self._store.read("SELECT version, signed, participants, published FROM versions ORDER BY version")
        return [(version, signed, participants, bool(published)) for version, signed, participants, published in rows]

    def newest(self) -> Version | None:
        return next(iter(self._all(Version, "versions", "ORDER BY version DESC LIMIT 1")), None)

    def heads(self) -> list[bytes]:
        """What was signed of each version, ascending, each as a history of one version (`wire.roster_history`)."""
        return [row[0] for row in self._store.read("SELECT head FROM versions ORDER BY version")]

    def terms(self, sha256: bytes | None = None) -> bytes | None:
        """A study document that was accepted; default: the one accepted last."""
        condition, given = ("", ()) if sha256 is None else ("WHERE sha256 = ?", (sha256,))
        rows = self._store.read(f"SELECT document FROM terms {condition} ORDER BY accepted DESC LIMIT 1", given)
        return bytes(rows[0][0]) if rows else None

    def last_written(self) -> float:
        """The time of the last decision, by the clock of its machine; 0 if there is none."""
        [(last,)] = self._store.read(
            "SELECT max(at) FROM (SELECT 0 AS at UNION ALL SELECT max(made) FROM invitations UNION ALL SELECT "
            "max(judged) FROM requests UNION ALL SELECT max(max(signed, stated)) FROM versions UNION ALL SELECT "
            "max(revoked) FROM members UNION ALL SELECT max(accepted) FROM terms)"
        )
        return float(last)


def admitted(identity: bytes, host: str, by_code: bool, joined: float) -> Statement:
    """Make an identity a member, with the next place; an existing member stays unchanged."""
    return (
        "INSERT INTO members (identity, host, by_code, joined, place) "
        "VALUES (?, ?, ?, ?, (SELECT coalesce(max(place), 0) + 1 FROM members)) ON CONFLICT (identity) DO NOTHING",
        (identity, host, by_code, joined),
    )


def desk_codes_forgotten(now: float, expired_before: float) -> Statement:
    """Delete unused codes from the local enrolment socket: withdrawn ones, and those that expired before a time.

    A code that was made later than now stays: it may be what shows that the clock has gone back (`last_written`).
    """
    return (
        "DELETE FROM invitations WHERE from_desk AND identity IS NULL AND made <= ? "
        "AND (withdrawn IS NOT NULL OR expires < ?)",
        (now, expired_before),
    )


@contextlib.contextmanager
def locked(folder: AuthorityFolder, wait_s: float = WAIT_S) -> Iterator[AuthorityStore]:
    """The store of an authority, for exclusive use, after at most ``wait_s``.

    Raises AuthorityError: another process still uses it; StorageError: as `AuthorityStore`.
    """
    with exclusive(folder.path / "authority.lock", wait_s):
        store = AuthorityStore(folder)
        try:
            yield store
        finally:
            store.close()


@contextlib.contextmanager
def exclusive(path: Path, wait_s: float) -> Iterator[None]:
    """A lock that is released when the process ends, in any way. Raises AuthorityError: another process holds it."""
    until = time.monotonic() + wait_s
    while (descriptor := hold(path)) is None:
        if time.monotonic() >= until:
            raise AuthorityError(f"another process is using {path.parent}: wait for it, or stop it")
        time.sleep(0.05)
    try:
        yield
    finally:
        os.close(descriptor)
