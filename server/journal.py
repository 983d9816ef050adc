"""The coordinator's memory: one SQLite file for events, attempts and results, and beside it the ledger of charges.

The order matters: an attempt is written before its first message is sent; u2, u3 and the masked sum before u3 is sent
to any participant; the charge, in the ledger, and then the unmasking request before the request is sent. After a
restart an attempt that was under way goes on, or is closed as aborted if it can't; a charge that was written stays.

The journal notes number and hash of each row of the ledger. So a ledger that was put back to an older copy, or written
anew with all its hashes, is found when the study is served again, and by `sordino budget verify`.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from runtime.durable import DAMAGED, DurableStore, Statement, StorageError, check_kind, open_to_read
from secagg.context import RoundConfig
from secagg.roster import Roster
from secagg.server_phases import ConsistencyCheck
from server.attempt.record import CLEAR, TABLE, AttemptRecord, Kept, beginning, frozen, read_kept
from server.events import Event, RoundCompleted, body_of, from_json
from wire.records.ledger import (
    COORDINATOR,
    LEDGER_FILE,
    About,
    ChangedLedger,
    Ledger,
    LedgerError,
    Row,
    collect,
    find_ledger,
    head_file,
    read_ledger,
)
from wire.records.ledger_rows import LedgerEntry

APPLICATION_ID: Final = 0x536F7264  # "Sord"
FORMAT: Final = 3
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS study (
    id INTEGER PRIMARY KEY CHECK (id = 1), name TEXT NOT NULL, document BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS rosters (version INTEGER PRIMARY KEY, sha256 BLOB NOT NULL, at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS members (number INTEGER PRIMARY KEY, identity BLOB NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS attempts (
    round INTEGER NOT NULL, attempt INTEGER NOT NULL, started REAL NOT NULL,
    outcome TEXT, u2 TEXT, u3 TEXT, masked_sum BLOB, unmasking_request BLOB,
    ledger_row INTEGER, ledger_hash BLOB,
    PRIMARY KEY (round, attempt)
);
CREATE TABLE IF NOT EXISTS excluded (participant INTEGER PRIMARY KEY, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS conflicts (
    dealer INTEGER NOT NULL, holder INTEGER NOT NULL, blamed INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (dealer, holder)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS rounds (
    round INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, figures TEXT NOT NULL, checkpoint TEXT NOT NULL
);
"""


class Journal:
    """What the coordinator writes down, and reads again after a restart."""

    def __init__(self, path: Path) -> None:
        """The ledger is ``ledger.sqlite`` beside the file.

        Raises runtime.durable.StorageError: one of the two can't be used; nothing is written then.
        """
        self.path = path
        self.ledger_path = path.with_name(LEDGER_FILE)
        self._ledger: Ledger | None = None
        self._store = DurableStore(path, SCHEMA, APPLICATION_ID, FORMAT, lambda: check_ledger(path), TABLE)

    @property
    def ledger(self) -> Ledger:
        """The charges, once `open_study` has bound the files to a study."""
        if self._ledger is None:
            raise LedgerError(self.ledger_path, "is not open yet")
        return self._ledger

    @property
    def failure(self) -> StorageError | None:
        """Why the last thing that was to be written wasn't; None when it was."""
        return self._store.failure

    # -- events: ordered, durable soon; nothing waits for them

    def emit(self, event: Event) -> Event:
        """Append an event and return it as a reader will see it, less its number."""
        event = replace(event, at=time.time())
        self._store.submit(_add(event))
        return event

    # -- facts: durable when the call returns

    async def open_study(self, name: str, document: bytes) -> None:
        """Bind both files to a study on first use; open the ledger.

        Raises StorageError: the file belongs to a study with another name or document; wire.records.ledger.LedgerError:
        the ledger is another study's, can't be used, or doesn't fit the journal.
        """
        rows = self._store.read("SELECT name, document FROM study")
        if rows:
            if rows[0][0] != name:
                raise StorageError(f"{self.path} belongs to the study {rows[0][0]!r}: name one in another folder")
            if rows[0][1] != document:
                raise StorageError(
                    f"{self.path} was begun with another plan or task: restore study.toml, or name a state file in "
                    "another folder"
                )
        about = About(COORDINATOR, name, hashlib.sha256(document).hexdigest())
        self._ledger = await asyncio.to_thread(Ledger, self.ledger_path, about, create=not rows)
        if not rows:
            await self._store.write(("INSERT INTO study VALUES (1, ?, ?)", (name, document)))

    async def use_roster(self, roster: Roster) -> dict[bytes, int]:
        """Record a version of the roster before it is used, and number its new participants.

        Positions change from version to version. Charges and events name a participant by this number, which is given
        once, in the order of first appearance.

        Returns identity -> number, of every participant that was ever on a roster of this study.

        Raises StorageError: a later version was in use before, or this one with other content.
        """
        seen = self._store.read("SELECT version, sha256 FROM rosters ORDER BY version DESC LIMIT 1")
        if seen and roster.version < seen[0][0]:
            raise StorageError(
                f"the roster is version {roster.version}, but version {seen[0][0]} was in use before: restore that "
                "one, or let the authority sign a new one"
            )
        if seen and roster.version == seen[0][0] and bytes(seen[0][1]) != roster.digest():
            raise StorageError(
                f"another version {roster.version} of the roster was in use before: there may be only one; restore it, "
                "or let the authority sign a new version"
            )
        members = self._store.read("SELECT number, identity FROM members")
        numbers = {bytes(identity): number for number, identity in members}
        new = [entry.identity for entry in roster.entries if entry.identity not in numbers]
        added = dict(zip(new, range(len(numbers), len(numbers) + len(new)), strict=True))
        await self._store.write(
            ("INSERT OR IGNORE INTO rosters VALUES (?, ?, ?)", (roster.version, roster.digest(), time.time())),
            *(("INSERT INTO members VALUES (?, ?)", (number, identity)) for identity, number in added.items()),
        )
        return numbers | added

    def new_record(self) -> AttemptRecord:
        """Of the messages of an attempt that is about to begin."""
        return AttemptRecord(self._store)

    async def begin_attempt(self, config: RoundConfig, cohort: frozenset[int], *, kept: bool = False) -> None:
        """Before the attempt's first message. ``kept``: its messages are."""
        sql = "INSERT INTO attempts (round, attempt, started) VALUES (?, ?, ?)"
        begun = [beginning(config, cohort)] if kept else []
        await self._store.write(CLEAR, (sql, (*config.number, time.time())), *begun)

    async def freeze_survivors(self, round_: int, attempt: int, check: ConsistencyCheck) -> None:
        """Before u3 is sent to any participant. The sum is not copied: it must not change until this returns."""
        u2, u3, masked_sum = check.frozen
        sql = "UPDATE attempts SET u2 = ?, u3 = ?, masked_sum = ? WHERE round = ? AND attempt = ?"
        sets = json.dumps(sorted(u2)), json.dumps(sorted(u3))
        await self._store.write((sql, (*sets, masked_sum.data, round_, attempt)), frozen(check.uploads))

    async def charge(self, entry: LedgerEntry, unmasking_request: bytes, row: Row | None = None) -> Row:
        """Before the first unmasking request is sent: the cost, and then the signatures over the sets it is sent for.

        A crash between the two leaves a charge for a request that was never sent; it stays. ``row``: the charge, where
        that happened and the attempt goes on.
        """
        if row is None:
            row = await asyncio.wrap_future(self.ledger.append(entry))
        sql = "UPDATE attempts SET unmasking_request = ? WHERE round = ? AND attempt = ?"
        await self._store.write(_note(row), (sql, (unmasking_request, entry.round, entry.attempt)))
        return row

    async def end_attempt(self, round_: int, attempt: int, outcome: str) -> None:
        """The masked sum and the messages are no longer needed; the sets stay."""
        await self._store.write(_end(round_, attempt, outcome), CLEAR)

    async def complete_round(self, completed: RoundCompleted, checkpoint: str) -> RoundCompleted:
        """After the checkpoint is on disk: the round counts from here on. Returns its event, as `emit`.

        The event is written with the round: after a crash in between, no reader would ever see it.
        """
        completed, number = replace(completed, at=time.time()), (completed.round, completed.attempt)
        await self._store.write(
            ("INSERT INTO rounds VALUES (?, ?, ?, ?)", (*number, json.dumps(body_of(completed)), checkpoint)),
            _end(*number, "completed"),
            _add(completed),
            CLEAR,
        )
        return completed

    async def exclude(self, participant: int, reason: str) -> None:
        """A participant that provably broke an attempt is not invited again."""
        await self._store.write(("INSERT OR IGNORE INTO excluded VALUES (?, ?)", (participant, reason)))

    async def note_conflicts(self, conflicts: list[tuple[int, int]]) -> None:
        """Pairs (dealer, holder), one of which has cheated: over several attempts they may show which."""
        await self._of_each(conflicts, "INSERT OR IGNORE INTO conflicts (dealer, holder) VALUES (?, ?)")

    async def note_blamed(self, conflicts: list[tuple[int, int]]) -> None:
        """The dealer was set aside for these."""
        await self._of_each(conflicts, "UPDATE conflicts SET blamed = 1 WHERE dealer = ? AND holder = ?")

    async def _of_each(self, conflicts: list[tuple[int, int]], sql: str) -> None:
        if conflicts:
            await self._store.write(*((sql, pair) for pair in conflicts))

    def conflicts(self) -> dict[tuple[int, int], bool]:
        """All of them, and whether the dealer was set aside for it."""
        rows = self._store.read("SELECT dealer, holder, blamed FROM conflicts")
        return {(dealer, holder): bool(blamed) for dealer, holder, blamed in rows}

    def excluded(self) -> dict[int, str]:
        """Who is not invited any more, and why."""
        return dict(self._store.read("SELECT participant, reason FROM excluded"))

    # -- after a restart

    def kept_attempt(self) -> tuple[Kept, AttemptRecord] | None:
        """The attempt that the last stop cut off, and the record that continues its own; None if it can't go on."""
        try:
            kept = read_kept(self._store)
        except (LookupError, ValueError):  # damaged
            return None
        return None if kept is None else (kept, AttemptRecord(self._store, kept))

    async def close_open_attempts(self) -> list[tuple[int, int]]:
        """Mark attempts that were cut off and don't go on; their charges, if any, stay, and are noted if need be."""
        await self._store.write(*(_note(row) for row in self.charges()[-1:]), CLEAR)
        open_: list[tuple[int, int]] = self._store.read("SELECT round, attempt FROM attempts WHERE outcome IS NULL")
        for number in open_:
            await self._store.write(_end(*number, "the coordinator stopped during the attempt"))
        return open_

    def charges(self) -> list[Row]:
        rows: list[Row] = []
        read_ledger(self.ledger_path, collect(rows))
        return rows

    def last_round(self) -> tuple[RoundCompleted, str] | None:
        """The last completed round, and the name of its checkpoint; None before the first.

        Raises StorageError: the record of the round is damaged.
        """
        rows = self._store.read("SELECT checkpoint, figures FROM rounds ORDER BY round DESC LIMIT 1")
        if not rows:
            return None
        events = self._store.read("SELECT at FROM events WHERE kind = 'round_completed' ORDER BY seq DESC LIMIT 1")
        at = float(events[0][0]) if events else 0.0
        try:
            completed = from_json({**json.loads(rows[0][1]), "kind": RoundCompleted.kind, "at": at})
        except ValueError as error:
            raise StorageError(f"{self.path}: the record of the last round is damaged") from error
        assert isinstance(completed, RoundCompleted)  # noqa: S101  # by its kind
        return completed, str(rows[0][0])

    def last_attempt(self, round_: int) -> int:
        """Highest attempt of a round that was begun; 0 if none."""
        rows = self._store.read("SELECT max(attempt) FROM attempts WHERE round = ?", (round_,))
        return rows[0][0] or 0

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
        self._store.close()


def _add(event: Event) -> Statement:
    values = event.at, event.kind, json.dumps(body_of(event))
    return "INSERT INTO events (at, kind, body) VALUES (?, ?, ?)", values


def _note(row: Row) -> Statement:
    sql = "UPDATE attempts SET ledger_row = ?, ledger_hash = ? WHERE round = ? AND attempt = ?"
    return sql, (row.number, row.hash, row.entry.round, row.entry.attempt)


def _end(round_: int, attempt: int, outcome: str) -> Statement:
    sql = "UPDATE attempts SET outcome = ?, masked_sum = NULL WHERE round = ? AND attempt = ?"
    return sql, (outcome, round_, attempt)


@contextlib.contextmanager
def _reading(state: Path) -> Iterator[sqlite3.Connection]:
    """A state file opened to be read; raises `StorageError` where it is damaged."""
    try:
        with contextlib.closing(open_to_read(state)) as connection:
            yield connection
    except DAMAGED as error:
        raise StorageError(f"{state} can't be used as a database: {error}") from error


def read_study(state: Path) -> bytes | None:
    """The study document that a state file is bound to; None before the first study."""
    with _reading(state) as connection:
        row = connection.execute("SELECT document FROM study").fetchone()
    return None if row is None else bytes(row[0])


def read_members(state: Path) -> dict[int, bytes]:
    """Number -> identity, of every participant that was ever on a roster of a state file's study."""
    with _reading(state) as connection:
        rows = connection.execute("SELECT number, identity FROM members ORDER BY number").fetchall()
    return {number: bytes(identity) for number, identity in rows}


def check_ledger(state: Path) -> list[Row]:
    """Check the ledger beside a state file against what the journal there noted; writes nothing.

    Returns all charges.

    Raises runtime.durable.StorageError: a file can't be read. For the ledger: `wire.records.ledger.LedgerError`, and
    `wire.records.ledger.ChangedLedger` where it differs from what the coordinator wrote.
    """
    path = state.with_name(LEDGER_FILE)
    while True:
        noted = _noted(state)
        rows: list[Row] = []
        try:
            _compare(state, path, noted, rows)
        except ChangedLedger:
            if _noted(state) == noted:
                raise
            continue  # a coordinator that runs has moved on between the two files
        return rows


def _compare(state: Path, path: Path, noted: _Noted | None, rows: list[Row]) -> None:
    """Fill ``rows`` from the ledger and hold them against what the journal noted."""
    found = find_ledger(path, collect(rows))
    if noted is not None and found is None:
        count = sum(number is not None for number, *_ in noted.attempts)
        raise LedgerError(
            path, f"is missing, although {state.name} knows of {count} charges: restore it with {head_file(path).name}"
        )
    if noted is None or found is None:
        if rows:
            raise ChangedLedger(path, f"has {len(rows)} charges of which {state.name} knows nothing")
        return
    about = found[0]
    if about.side != COORDINATOR:
        raise LedgerError(path, f"is a participant's ledger, not that of {state.name}: name a folder of its own")
    if about.study != noted.study:
        raise LedgerError(path, f"is the ledger of the study {about.study!r}, {state.name} belongs to {noted.study!r}")
    if about.study_sha256 != noted.document_sha256:
        raise LedgerError(path, f"is the ledger of a study with another plan or task than {state.name}")
    for number, hash_, _, _, _ in noted.attempts:
        if number is None:
            continue
        if number > len(rows):
            missing = len(rows) + 1
            raise ChangedLedger(path, f"row {missing} is missing: {state.name} knows of row {number}", missing)
        if rows[number - 1].hash != hash_:
            reason = f"row {number} isn't the one that {state.name} knows: rows were written anew"
            raise ChangedLedger(path, reason, number)
    known = {number for number, *_ in noted.attempts}
    frozen = {(round_, attempt): u3 for number, _, round_, attempt, u3 in noted.attempts if number is None}
    for row in rows:
        if row.number in known:
            continue
        # Written, and then the coordinator stopped before it noted the row: its last one, for sets it had frozen.
        u3 = frozen.get((row.entry.round, row.entry.attempt))
        if row.number < len(rows) or u3 is None or json.loads(u3) != list(row.entry.participants or ()):
            raise ChangedLedger(path, f"row {row.number} was added: {state.name} knows nothing of it", row.number)


@dataclass(frozen=True)
class _Noted:
    """What a journal knows of its ledger."""

    study: str
    document_sha256: str
    attempts: list[tuple[Any, ...]]  # row or None, its hash, round, attempt, u3


def _noted(state: Path) -> _Noted | None:
    """None before the first study."""
    if not state.exists():
        return None
    with _reading(state) as connection:
        connection.execute("BEGIN")
        if not check_kind(connection, state, APPLICATION_ID, FORMAT):
            return None
        study = connection.execute("SELECT name, document FROM study").fetchone()
        sql = "SELECT ledger_row, ledger_hash, round, attempt, u3 FROM attempts ORDER BY round, attempt"
        attempts = connection.execute(sql).fetchall()
    return None if study is None else _Noted(study[0], hashlib.sha256(study[1]).hexdigest(), attempts)


def read_events(path: Path, after: int = 0) -> list[Event]:
    """Events after number ``after``, oldest first, less those that this version doesn't know; for panels and reports.

    Opens the file read-only, so it may be called while a coordinator writes; an absent file has no events.
    Raises StorageError: the file, or an event, can't be read.
    """
    if not path.exists():
        return []
    sql = "SELECT seq, at, kind, body FROM events WHERE seq > ? ORDER BY seq"
    with _reading(path) as connection:
        try:
            rows = connection.execute(sql, (after,)).fetchall()
        except sqlite3.OperationalError:  # the coordinator is just creating its tables
            return []
    try:
        read = [from_json({"seq": seq, "at": at, "kind": kind, **json.loads(body)}) for seq, at, kind, body in rows]
    except ValueError as error:
        raise StorageError(f"{path}: one of its events is damaged, or of an older release: {error}") from error
    return [event for event in read if event is not None]


@dataclass
class NewEvents:
    """The events of a journal as they come."""

    path: Path
    _seen: int = 0

    def read(self) -> list[Event]:
        """Those since the last call. Ask before it whether the coordinator runs, so that no last event is missed."""
        found = read_events(self.path, self._seen)
        self._seen = found[-1].seq if found else self._seen
        return found
