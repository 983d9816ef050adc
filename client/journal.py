"""The durable state of a client process, written before the message that depends on it is sent.

One file serves all participants of the process: which attempts were joined (a restarted process skips them), which
survivor sets were signed, and which unmasking request was answered. Charges are in the ledger, which may serve several
studies over the same data; the journal notes the ledger's end, so that an older copy of it is detected.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from runtime.durable import DAMAGED, DurableStore, StorageError, check_kind, open_to_read
from secagg.roster import Roster, RosterHead
from wire.records.ledger import PARTICIPANT, About, ChangedLedger, Found, Head, Ledger, Row, find_ledger
from wire.records.ledger_rows import LedgerEntry
from wire.roster_history import NewestRoster, check_descent

APPLICATION_ID: Final = 0x536F7243  # "SorC"
FORMAT: Final = 4
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS studies (
    study TEXT PRIMARY KEY, document BLOB NOT NULL, roster_version INTEGER NOT NULL, roster BLOB NOT NULL,
    stated INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts (
    terms TEXT NOT NULL, identity BLOB NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL, joined REAL NOT NULL,
    signed BLOB, answered BLOB,
    PRIMARY KEY (terms, identity, round, attempt)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ledger (id INTEGER PRIMARY KEY CHECK (id = 1), rows INTEGER NOT NULL, hash BLOB NOT NULL);
"""


# Made at every start: a journal of an earlier release doesn't have it.
ENDED: Final = """
CREATE TABLE IF NOT EXISTS ended (
    terms TEXT PRIMARY KEY, study TEXT NOT NULL, reason TEXT NOT NULL, at REAL NOT NULL
) WITHOUT ROWID
"""


class AlreadyJoined(Exception):
    """This attempt, or a later one, was joined before: its keys are gone, so it is skipped."""

    def __init__(self, latest: tuple[int, int]) -> None:
        super().__init__()
        self.latest = latest  # round and attempt that were joined last


class ClientJournal:
    """The client process's durable memory."""

    def __init__(self, path: Path, ledger: Path, known: Found | None = None) -> None:
        """
        Args:
            path: of the journal.
            ledger: of the participants' charges; both are created if neither exists.
            known: `wire.records.ledger.Ledger.left` of it, from an earlier opening in this process.

        Raises runtime.durable.StorageError: one of the two can't be used; nothing is written then.
        """
        self._last: dict[tuple[str, bytes], tuple[int, int]] = {}

        def open_ledger() -> None:
            end = _NotedEnd(path, ledger)
            if known is not None:
                end.begin(known[1])
            create = end.head is None
            opened.append(
                Ledger(ledger, About(PARTICIPANT), create=create, visit=end.meet, check=end.check, known=known)
            )
            noted.append(end.head)

        opened: list[Ledger] = []
        noted: list[Head | None] = []
        try:
            self._store = DurableStore(path, SCHEMA, APPLICATION_ID, FORMAT, open_ledger, ENDED)
        except BaseException:
            for ledger_ in opened:
                ledger_.close()
            raise
        [self.ledger] = opened
        try:
            for terms, identity, round_, attempt in self._store.read(
                "SELECT terms, identity, max(round), max(attempt) FROM attempts GROUP BY terms, identity, round"
            ):
                key = (terms, bytes(identity))
                self._last[key] = max(self._last.get(key, (0, 0)), (round_, attempt))
            self._check_not_older(path)
            if noted != [self.ledger.head]:
                self._note(self.ledger.head)
        except BaseException:
            self.close()
            raise

    def _check_not_older(self, path: Path) -> None:
        """Attempts are joined before they are charged. Raises StorageError: this journal lacks one that was charged."""
        for terms, charged in self.ledger.totals.studies.items():
            for identity, latest in charged.latest.items():
                joined = self._last.get((terms, bytes.fromhex(identity)))
                if joined is not None and joined < latest:
                    study = charged.first.study
                    raise StorageError(
                        f"{path} is an older copy: it ends with round {joined[0]} of {study!r}, and its ledger has "
                        f"round {latest[0]}. It would take an older roster again: restore both from the newest copy"
                    )

    def seen(self, study: str) -> tuple[int, bytes]:
        """The newest roster of a study that was accepted: version and digest; version 0 if there is none."""
        rows = self._store.read("SELECT roster_version, roster FROM studies WHERE study = ?", (study,))
        return (int(rows[0][0]), bytes(rows[0][1])) if rows else (0, b"")

    def stated(self, study: str) -> int:
        """When the latest statement of the authority that was accepted was signed: it is later than that now."""
        rows = self._store.read("SELECT stated FROM studies WHERE study = ?", (study,))
        return int(rows[0][0]) if rows else 0

    async def accept_study(
        self, document_sha256: bytes, roster: Roster, heads: Sequence[RosterHead] = (), *, agreed: bool = False
    ) -> None:
        """Pin a study's document, and note its newest roster version.

        Charges are summed at the order that the document fixes, so a study keeps its document, unless the participant
        ``agreed`` to this one, which the authority has signed in a later roster. ``heads``: of the versions since the
        one seen before.

        Raises ValueError: another document; InvalidRoster: as `wire.roster_history.check_descent`.
        """
        study = roster.study
        noted = (document_sha256, roster.version, roster.digest())
        rows = self._store.read("SELECT document, roster_version, roster FROM studies WHERE study = ?", (study,))
        if rows and bytes(rows[0][0]) != document_sha256 and not agreed:
            raise ValueError(
                f"the terms of the study {study!r} differ from the ones this host accepted first: look at them, and "
                "accept them with `sordino join --accept`"
            )
        # The ledger holds it too, in case the journal was lost.
        for charged in self.ledger.totals.studies.values():
            if charged.first.study == study and charged.first.study_sha256 != document_sha256.hex() and not agreed:
                raise ValueError(
                    f"the ledger holds charges of the study {study!r} under other terms: look at them, and accept them "
                    "with `sordino join --accept`"
                )
        check_descent(self.seen(study), roster, heads)
        if rows == [noted]:
            return
        await self._store.write(
            (
                "INSERT INTO studies VALUES (?, ?, ?, ?, 0) ON CONFLICT (study) DO UPDATE SET "
                "document = excluded.document, roster_version = excluded.roster_version, roster = excluded.roster",
                (study, *noted),
            )
        )

    async def note_statement(self, newest: NewestRoster) -> None:
        """Note when a statement of the authority was signed, if none that was signed later is noted."""
        if newest.signed > self.stated(newest.study):
            await self._store.write(("UPDATE studies SET stated = ? WHERE study = ?", (newest.signed, newest.study)))

    async def end_study(self, document_sha256: bytes, study: str, reason: str) -> None:
        """Note that the coordinator ended a study with these terms, for a reason of `wire.ending.OVER`."""
        row = (document_sha256.hex(), study, reason, time.time())
        await self._store.write(("INSERT OR REPLACE INTO ended VALUES (?, ?, ?, ?)", row))

    async def join(self, terms: str, identity: bytes, round_: int, attempt: int) -> None:
        """Note an attempt before keys are advertised; raises AlreadyJoined unless its numbers are higher than all.

        ``terms``: the study document's SHA-256, in hexadecimal digits: under other terms rounds are counted anew, and
        nothing of the two has a key or a signature in common, since round_context binds the document.
        """
        key = (terms, identity)
        if (round_, attempt) <= self._last.get(key, (0, 0)):
            raise AlreadyJoined(self._last[key])
        self._last[key] = (round_, attempt)
        await self._store.write(
            (
                "INSERT INTO attempts (terms, identity, round, attempt, joined) VALUES (?, ?, ?, ?, ?)",
                (terms, identity, round_, attempt, time.time()),
            )
        )

    async def charge(self, entry: LedgerEntry) -> Row:
        """Write a ledger row: the unamplified cost at h_min, before the first byte of an upload.

        Or its withdrawal (`EXCLUDED`), after a quorum has signed a u3 without this participant. Raises
        `wire.records.ledger_rows.InvalidRow` if the attempt or a later one was charged before; or, for a withdrawal, if
        it isn't the last charge or its exact cost is known.
        """
        row = await asyncio.wrap_future(self.ledger.append(entry))
        self._note(row.head)  # nothing waits for it: an older note is still a row of the same chain
        return row

    def _note(self, head: Head) -> None:
        self._store.submit(
            (
                "INSERT INTO ledger VALUES (1, ?, ?) ON CONFLICT (id) DO UPDATE "
                "SET rows = excluded.rows, hash = excluded.hash WHERE excluded.rows > rows",
                (head.rows, head.hash),
            )
        )

    async def sign(self, terms: str, identity: bytes, round_: int, attempt: int, statement: bytes) -> None:
        """Note the statement before a signature over survivor sets is sent."""
        await self._update("signed", statement, terms, identity, round_, attempt)

    async def answer(
        self, terms: str, identity: bytes, round_: int, attempt: int, request: bytes, exact: LedgerEntry
    ) -> None:
        """Note an unmasking request before it is answered: its digest, and the cost at the u3 that a quorum signed.

        That cost replaces the one at h_min, which is at least as high. If only one of the two reaches the disk, the
        participant has been charged what the sum cost, or more.
        """
        await asyncio.gather(self._update("answered", request, terms, identity, round_, attempt), self.charge(exact))

    async def _update(self, column: str, value: bytes, terms: str, identity: bytes, round_: int, attempt: int) -> None:
        await self._store.write(
            (
                f"UPDATE attempts SET {column} = ? WHERE terms = ? AND identity = ? AND round = ? AND attempt = ?",
                (value, terms, identity, round_, attempt),
            )
        )

    def close(self) -> None:
        self.ledger.close()
        self._store.close()


class _NotedEnd:
    """The end of a ledger that the journal noted, to be found again in the ledger.

    Attributes: head: None if there is none.
    """

    def __init__(self, journal: Path, ledger: Path) -> None:
        self._journal, self._ledger = journal, ledger
        rows = _read(journal, "SELECT rows, hash FROM ledger")
        self.head = Head(*rows[0]) if rows else None
        self._met: Head | None = None

    def begin(self, known: Head) -> None:
        """Rows up to there were read before; an end before it was one of them."""
        if self.head is not None and self.head.rows <= known.rows:
            self._met = known if self.head.rows == known.rows else self.head

    def meet(self, row: Row) -> None:
        """A row of the ledger, in order."""
        if self.head is not None and row.number == self.head.rows:
            self._met = row.head

    def check(self, found: Found | None) -> None:
        """After all rows. Raises ChangedLedger."""
        noted = self.head
        if noted is None:
            return
        if found is None:
            missing = f"is missing, although {self._journal.name} knows of {noted.rows} rows in it"
            raise ChangedLedger(self._ledger, missing)
        about, head, _ = found
        if head.rows < noted.rows:
            row = head.rows + 1
            reason = f"row {row} is missing: {self._journal.name} knows of row {noted.rows}"
            raise ChangedLedger(self._ledger, reason, row)
        if (self._met or about.beginning()) != noted:
            reason = f"row {noted.rows} isn't the one that {self._journal.name} knows: rows were written anew"
            raise ChangedLedger(self._ledger, reason, noted.rows or None)


def check_ledger(journal: Path, ledger: Path) -> Head | None:
    """Compare a ledger with the end that the journal noted, which is returned (None: none); writes nothing.

    Raises runtime.durable.StorageError: a file can't be read; for the ledger `wire.records.ledger.LedgerError`, or
    `wire.records.ledger.ChangedLedger` if it isn't what the participants wrote.
    """
    noted = _NotedEnd(journal, ledger)
    noted.check(find_ledger(ledger, noted.meet))
    return noted.head


def newest_seen(journal: Path, study: str) -> tuple[int, int]:
    """Of a journal, if there is one: the newest roster version, and when the latest statement was signed; else zeros.

    Raises runtime.durable.StorageError: it can't be read.
    """
    rows = _read(journal, "SELECT roster_version, stated FROM studies WHERE study = ?", (study,))
    return (int(rows[0][0]), int(rows[0][1])) if rows else (0, 0)


@dataclass(frozen=True)
class EndedStudy:
    """A study that was over, by its coordinator's word at ``at``; ``terms`` as in `ClientJournal.join`."""

    terms: str
    study: str
    reason: str
    at: float


def ended_studies(journal: Path) -> list[EndedStudy]:
    """Of a journal, if there is one. Raises as `newest_seen`."""
    if not _read(journal, "SELECT 1 FROM sqlite_master WHERE name = 'ended'"):
        return []
    return [EndedStudy(*row) for row in _read(journal, "SELECT terms, study, reason, at FROM ended ORDER BY at")]


@dataclass(frozen=True)
class NotedAttempt:
    """An attempt as the journal has it: the statement that was signed, the digest of the request that was answered."""

    terms: str
    identity: bytes
    round: int
    attempt: int
    joined: float
    signed: bytes | None
    answered: bytes | None


def noted_attempts(journal: Path) -> list[NotedAttempt]:
    """Of a journal, if there is one. Raises as `newest_seen`."""
    columns = ", ".join(one.name for one in fields(NotedAttempt))
    return [NotedAttempt(*row) for row in _read(journal, f"SELECT {columns} FROM attempts")]


def accepted_terms(journal: Path, study: str) -> str:
    """The SHA-256 of the study document that was accepted last, in hexadecimal digits; empty if none was."""
    rows = _read(journal, "SELECT document FROM studies WHERE study = ?", (study,))
    return bytes(rows[0][0]).hex() if rows else ""


def _read(journal: Path, query: str, given: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
    if not journal.exists():
        return []
    try:
        with contextlib.closing(open_to_read(journal)) as connection:
            if not check_kind(connection, journal, APPLICATION_ID, FORMAT):
                return []
            return connection.execute(query, given).fetchall()
    except DAMAGED as error:
        raise StorageError(f"{journal} can't be used as a database: {error}") from error
