"""The privacy ledger: append-only, hash-chained, one writer; coordinator and participants use the same code.

Every row holds the hash of the row before it. A chain alone doesn't show that its end is missing, so its head (number
of rows and last hash) is kept in three places: in a table of the ledger, in a small file beside it, and in the journal
of its writer. docs/ledger.md says what that shows and what it can't.

The file beside it is written before and after each append: first with the present head and the coming one, then with
the new head alone. After a crash at any moment, the ledger ends at a head that the file names.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime.durable import DAMAGED, DurableStore, Statement, StorageError, check_kind, open_to_read, replace_durably
from runtime.failure import ExitCode
from runtime.text import counted
from secagg.encoding import digest, number
from wire.records.ledger_rows import InvalidRow, LedgerEntry
from wire.records.ledger_totals import Totals

LEDGER_FILE: Final = "ledger.sqlite"
FORMAT: Final = 2
APPLICATION_ID: Final = 0x536F724C  # "SorL"
COORDINATOR, PARTICIPANT = "coordinator", "participant"
SCHEMA: Final = """
CREATE TABLE about (id INTEGER PRIMARY KEY CHECK (id = 1), body BLOB NOT NULL);
CREATE TABLE rows (number INTEGER PRIMARY KEY, previous BLOB NOT NULL, hash BLOB NOT NULL, body BLOB NOT NULL);
CREATE TABLE head (id INTEGER PRIMARY KEY CHECK (id = 1), rows INTEGER NOT NULL, hash BLOB NOT NULL);
CREATE TRIGGER rows_stay BEFORE UPDATE ON rows BEGIN SELECT RAISE(ABORT, 'a ledger is only appended to'); END;
CREATE TRIGGER rows_are_kept BEFORE DELETE ON rows BEGIN SELECT RAISE(ABORT, 'a ledger is only appended to'); END
"""
_ATTEMPTS_TO_READ: Final = 20


class LedgerError(StorageError):
    """The ledger can't be used: missing, no ledger, of another study or format. The message names file and reason."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


class ChangedLedger(LedgerError):
    """The ledger was changed after it was written; ``about["row"]``: the first wrong one, from 1; None if it isn't one
    row.
    """

    def __init__(self, path: Path, reason: str, row: int | None = None) -> None:
        super().__init__(path, reason)
        self.code, self.suggestion = ExitCode.LEDGER, ExitCode.LEDGER.remedy
        self.about = {"ok": False, "row": row}


@dataclass(frozen=True)
class Head:
    """The end of a chain: the number of rows and the hash of the last one (without rows: of the beginning)."""

    rows: int
    hash: bytes


@dataclass(frozen=True)
class Row:
    """A row as stored."""

    number: int  # from 1
    previous: bytes  # hash of the row before it, or of the beginning
    hash: bytes
    entry: LedgerEntry

    @property
    def head(self) -> Head:
        return Head(self.number, self.hash)


@dataclass(frozen=True)
class About:
    """What a ledger is for; its hash begins the chain.

    A coordinator's ledger has one study (name, and SHA-256 of its document, hexadecimal); in a participant's, which
    holds all studies over the same data, both are empty.
    """

    side: str  # `COORDINATOR` or `PARTICIPANT`
    study: str = ""
    study_sha256: str = ""
    mark: str = ""  # 32 random hexadecimal digits that distinguish ledgers of the same study

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, **vars(self)}, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> About:
        """Inverse of `to_bytes`; raises `ValueError`."""
        with contextlib.suppress(RecursionError, TypeError, KeyError):
            values = json.loads(data)
            about = cls(values["side"], values["study"], values["study_sha256"], values["mark"])
            texts = all(isinstance(value, str) for value in vars(about).values())
            if texts and about.to_bytes() == data and about.side in (COORDINATOR, PARTICIPANT):
                return about
        raise ValueError("not the beginning of a ledger")

    def check(self, entry: LedgerEntry) -> None:
        """Refuse a row of another study, or of the other side. Raises `InvalidRow`."""
        coordinator = self.side == COORDINATOR
        if coordinator and (entry.study, entry.study_sha256) != (self.study, self.study_sha256):
            raise InvalidRow("it belongs to another study than the ledger")
        if (entry.identity is None) != coordinator:
            raise InvalidRow(f"it is no row of a {self.side}")

    def beginning(self) -> Head:
        return Head(0, digest("sordino/v1/ledger", self.to_bytes()))


def row_hash(previous: bytes, row: int, body: bytes) -> bytes:
    """32 bytes that bind a row's number, its content and everything before it."""
    return digest("sordino/v1/ledger-row", previous, number(row), body)


def head_file(path: Path) -> Path:
    return path.with_name(path.name + ".head")


def is_begun(path: Path) -> bool:
    """Whether there is a ledger, or what is left of one."""
    return path.exists() or head_file(path).exists()


# ---------------------------------------------------------------- reading


Visit = Callable[[Row], None]
Found = tuple[About, Head, Totals]


def collect(rows: list[Row]) -> Visit:
    """Keeps the rows of one reading in ``rows``, also when it has to begin anew."""

    def visit(row: Row) -> None:
        del rows[row.number - 1 :]
        rows.append(row)

    return visit


def read_ledger(path: Path, visit: Visit | None = None) -> tuple[About, Head, Totals]:
    """Check a whole ledger: rows, chain, order, head, and the file beside it. Writes nothing.

    May be called while a writer appends. ``visit`` is called with each row in order, and again from the first row if
    the writer has appended meanwhile.

    Raises LedgerError: there is no such ledger, or the file isn't one; ChangedLedger: something in it was changed.
    """
    found = find_ledger(path, visit)
    if found is None:
        raise LedgerError(path, "there is no ledger here: name its file, or restore it")
    return found


def find_ledger(path: Path, visit: Visit | None = None) -> Found | None:
    """Like `read_ledger`; None if there was never one, or a crash interrupted its making before the first row."""
    for _ in range(_ATTEMPTS_TO_READ):
        beside = _read_head_file(path)
        try:
            return _read(path, beside, visit)
        except ChangedLedger:
            if _read_head_file(path) == beside:
                raise  # else the writer appended meanwhile
    raise LedgerError(path, "is written too often to be read: try again")


@dataclass(frozen=True)
class _HeadFile:
    """The content of the file beside a ledger."""

    mark: str
    heads: tuple[Head, ...]  # the present one, and perhaps the one that an append was about to make


def _read_head_file(path: Path) -> _HeadFile | None:
    """None if there is no such file."""
    place = head_file(path)
    try:
        values = json.loads(place.read_bytes())
        heads = [(values["rows"], values["head"])]
        if "next_head" in values:
            heads.append((values["next_rows"], values["next_head"]))
        mark, listed = str(values["ledger"]), tuple(Head(int(rows), bytes.fromhex(head)) for rows, head in heads)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LedgerError(place, f"can't be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ChangedLedger(place, "isn't the head of a ledger: restore it together with the ledger") from error
    return _HeadFile(mark, listed)


def _head_bytes(about: About, head: Head, coming: Head | None = None) -> bytes:
    values: dict[str, Any] = {"ledger": about.mark, "rows": head.rows, "head": head.hash.hex()}
    if coming is not None:
        values |= {"next_rows": coming.rows, "next_head": coming.hash.hex()}
    return json.dumps(values).encode() + b"\n"


def _write_head_file(path: Path, about: About, head: Head, coming: Head | None = None) -> None:
    # A crash may bring back the file with both heads; that is harmless, since the ledger ends at one of them.
    replace_durably(head_file(path), _head_bytes(about, head, coming), at_once=coming is not None or not head.rows)


def beside_copy(path: Path) -> dict[str, bytes]:
    """The file beside a ledger, by its name, for a copy that was taken while its writer went on; of another database
    there is none.

    Raises ChangedLedger: the copy's rows don't hold.
    """
    with contextlib.closing(open_to_read(path)) as connection:
        if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            return {}
        check_kind(connection, path, APPLICATION_ID, FORMAT)
        beginning = connection.execute("SELECT body FROM about").fetchall()
        if not beginning:  # its making was interrupted
            return {}
        about, head, _ = _read_rows(connection, path, beginning[0][0], None)
    return {head_file(path).name: _head_bytes(about, head)}


def _read(path: Path, beside: _HeadFile | None, visit: Visit | None, known: Found | None = None) -> Found | None:
    """None if there is no ledger, or one whose making a crash interrupted."""
    began = beside is None or beside.heads[0].rows == 0 == beside.heads[-1].rows
    if not path.exists():
        if beside is not None and not began:
            had = counted(beside.heads[-1].rows, "row")
            raise ChangedLedger(path, f"is missing, although {head_file(path).name} says that it had {had}")
        return None
    try:
        connection = open_to_read(path)
        with contextlib.closing(connection):
            connection.execute("BEGIN")
            filled = check_kind(connection, path, APPLICATION_ID, FORMAT)
            about_rows = connection.execute("SELECT body FROM about").fetchall() if filled else []
            if not about_rows:
                if not began or (filled and connection.execute("SELECT count(*) FROM rows").fetchone()[0]):
                    raise ChangedLedger(path, "its beginning is missing")
                return None
            about, head, totals = _read_rows(connection, path, about_rows[0][0], visit, known)
    except DAMAGED as error:
        if path.is_dir():
            raise LedgerError(path, "is a folder: name a ledger's file") from error
        kind = LedgerError if began else ChangedLedger  # with a file beside it that counts rows it was a ledger
        raise kind(path, f"can't be read as a ledger: {error}") from error
    except LedgerError:
        raise
    except StorageError as error:
        raise LedgerError(path, str(error).removeprefix(f"{path} ")) from error
    _compare(path, about, head, beside)
    return about, head, totals


def _read_rows(
    connection: sqlite3.Connection, path: Path, beginning: object, visit: Visit | None, known: Found | None = None
) -> Found:
    try:
        if not isinstance(beginning, bytes):  # SQLite keeps any type in any column
            raise TypeError
        about = About.from_bytes(beginning)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ChangedLedger(path, "its beginning was changed") from error
    head, totals = about.beginning(), Totals()
    if known is not None and known[1].rows:
        head, totals = known[1], copy.deepcopy(known[2])  # rows are added to it before all is checked
        same = connection.execute("SELECT hash FROM rows WHERE number = ?", (head.rows,)).fetchall() == [(head.hash,)]
        if known[0] != about or not same:
            raise ChangedLedger(path, f"row {head.rows} isn't the one that was read here before", head.rows)
    for row in _checked(connection, path, head):
        try:
            about.check(row.entry)
            totals.add(row.entry)
        except InvalidRow as error:
            raise ChangedLedger(path, f"row {row.number} can't stand there: {error}", row.number) from error
        head = row.head
        if visit is not None:
            visit(row)
    stored = connection.execute("SELECT rows, hash FROM head").fetchall()
    if len(stored) != 1 or not isinstance(stored[0][0], int) or not isinstance(stored[0][1], bytes):
        raise ChangedLedger(path, "its table head was changed")
    _same_head(path, head, Head(*stored[0]), "its table head")
    return about, head, totals


def _checked(connection: sqlite3.Connection, path: Path, head: Head) -> Iterator[Row]:
    """All rows, or those after one that was read before; checks that each follows the one before it."""
    after = "WHERE number > ?" if head.rows else ""  # else also those that have no place before the first
    for row, previous, hash_, body in connection.execute(
        f"SELECT number, previous, hash, body FROM rows {after} ORDER BY number", (head.rows,) if after else ()
    ):
        expected = head.rows + 1
        if row != expected:
            raise ChangedLedger(path, f"row {expected} is missing: the next one has number {row}", expected)
        if not all(isinstance(field, bytes) for field in (previous, hash_, body)):
            raise ChangedLedger(path, f"row {row} was changed: it doesn't hold bytes", row)
        if row_hash(previous, row, body) != hash_:
            raise ChangedLedger(path, f"row {row} was changed: its content doesn't have its hash", row)
        if previous != head.hash:
            after = f"row {row - 1}" if row > 1 else "the beginning"
            raise ChangedLedger(
                path, f"row {row} doesn't follow {after}: one was changed, removed, inserted or moved", row
            )
        try:
            entry = LedgerEntry.from_bytes(body)
        except InvalidRow as error:
            raise ChangedLedger(path, f"row {row} was changed: {error}", row) from error
        head = Head(row, hash_)
        yield Row(row, previous, hash_, entry)


def _compare(path: Path, about: About, head: Head, beside: _HeadFile | None) -> None:
    place = head_file(path)
    if beside is None:
        raise ChangedLedger(place, "is missing: it belongs to the ledger and is copied with it")
    if beside.mark != about.mark:
        raise ChangedLedger(place, f"belongs to another ledger than {path.name}: restore both from one copy")
    if head not in beside.heads:
        _same_head(path, head, beside.heads[0], place.name)


def _same_head(path: Path, found: Head, stated: Head, where: str) -> None:
    if found == stated:
        return
    if found.rows < stated.rows:
        missing = f"row {found.rows + 1} is missing" + (" and those behind it" if stated.rows > found.rows + 1 else "")
        raise ChangedLedger(path, f"{missing}: {where} says that there were {stated.rows}", found.rows + 1)
    if found.rows > stated.rows:
        added = stated.rows + 1
        raise ChangedLedger(path, f"row {added} was added: {where} ends with row {stated.rows}", added)
    raise ChangedLedger(path, f"it ends with another row {found.rows} than {where} says: rows were written anew")


class Ledger:
    """A ledger that is open for appending; the file can't be opened again, in any process, at the same time."""

    def __init__(
        self,
        path: Path,
        about: About,
        *,
        create: bool,
        visit: Visit | None = None,
        check: Callable[[Found | None], None] = lambda found: None,
        known: Found | None = None,
    ) -> None:
        """Check the whole ledger, and open it or make a new one.

        Args:
            about: what the ledger must be for; its mark is ignored.
            create: whether to make a new one where there is no ledger and no sign of one.
            visit: called with each row in order.
            check: called with what was found (None: no ledger) before anything is written; may raise LedgerError.
            known: what this process ``left`` of it before: rows after it alone are read, and ``visit`` sees only those.

        Raises LedgerError: it can't be used, was changed, is missing, or in use; nothing was written.
        """
        self.path = path
        self._found: Found | None = None
        self._turn, self._pending = threading.Lock(), list[tuple[Row, bytes, Future[Row]]]()
        self._broken: StorageError | None = None
        self.left: Found | None = None
        """What stands in it, once it is closed; None before, and where a row could not be written."""

        def check_all() -> None:
            beside = _read_head_file(path)
            self._found = _read(path, beside, visit, known)
            if self._found is None and known is not None and known[1].rows:
                raise ChangedLedger(path, f"is gone: {counted(known[1].rows, 'row')} were read here before")
            check(self._found)
            if self._found is None:
                if not create:
                    raise LedgerError(path, "is missing: restore it from a copy")
                begun = About(about.side, about.study, about.study_sha256, os.urandom(16).hex())
                _write_head_file(path, begun, begun.beginning())  # first: a ledger never exists without it
                self._found = (begun, begun.beginning(), Totals())
                fresh.append(begun)
            else:
                _check_purpose(path, self._found[0], about)

        fresh: list[About] = []
        try:
            self._store = DurableStore(path, SCHEMA, APPLICATION_ID, FORMAT, check_all)
        except LedgerError:
            raise
        except StorageError as error:
            raise LedgerError(path, str(error).removeprefix(f"{path} ")) from error
        except OSError as error:
            raise LedgerError(path, f"can't be written: {error}") from error
        assert self._found is not None  # noqa: S101  # `check_all` has run
        self.about: About
        self.head: Head
        self.totals: Totals
        self.about, self.head, self.totals = self._found
        self._ending: Head = self.head  # of all rows handed in, durable or not
        try:
            self._begin(bool(fresh))
        except OSError as error:
            self._store.close()
            raise LedgerError(path, f"can't be written: {error}") from error
        except BaseException:
            self._store.close()
            raise
        self._writer: ThreadPoolExecutor = ThreadPoolExecutor(1, thread_name_prefix=f"ledger {path.name}")

    def _begin(self, fresh: bool) -> None:
        if fresh:
            self._store.submit(
                ("INSERT INTO about VALUES (1, ?)", (self.about.to_bytes(),)),
                ("INSERT INTO head VALUES (1, 0, ?)", (self.head.hash,)),
            ).result()
        else:
            beside = _read_head_file(self.path)
            if beside is None or beside.heads != (self.head,):  # the last process ended within an append
                _write_head_file(self.path, self.about, self.head)

    def append(self, entry: LedgerEntry) -> Future[Row]:
        """Add a row; the future resolves when it is durable. Rows keep the order of calls.

        The future raises `StorageError` if the row isn't written; then no row can be until the ledger is opened again.

        Raises InvalidRow: the row can't follow those before it; nothing is written.
        """
        future: Future[Row] = Future()
        with self._turn:
            if self._broken is not None:
                future.set_exception(self._broken)
                return future
            self.about.check(entry)
            self.totals.add(entry)
            body, before = entry.to_bytes(), self._ending
            row = Row(before.rows + 1, before.hash, row_hash(before.hash, before.rows + 1, body), entry)
            self._ending = row.head
            future.set_running_or_notify_cancel()  # cancelling a caller doesn't take its row back
            self._pending.append((row, body, future))
            self._writer.submit(self._write)
        return future

    def close(self) -> None:
        """Write all rows that were appended and close the file."""
        self._writer.shutdown()
        with self._turn:
            self.left = None if self._broken else (self.about, self.head, self.totals)
            self._broken = self._broken or LedgerError(self.path, "is closed")
        self._store.close()

    def _write(self) -> None:
        """Write everything appended so far, at once."""
        with self._turn:
            batch, self._pending = self._pending, []
            broken = self._broken
        if not batch:
            return
        try:
            if broken is not None:
                raise broken
            last = batch[-1][0].head
            statements: list[Statement] = [
                ("INSERT INTO rows VALUES (?, ?, ?, ?)", (row.number, row.previous, row.hash, body))
                for row, body, _ in batch
            ]
            _write_head_file(self.path, self.about, self.head, last)
            self._store.submit(*statements, ("UPDATE head SET rows = ?, hash = ?", (last.rows, last.hash))).result()
        except (StorageError, OSError) as error:
            failure = self._give_up(error)
            for _, _, future in batch:
                future.set_exception(failure)
            return
        self.head = last
        for row, _, future in batch:
            future.set_result(row)
        try:
            _write_head_file(self.path, self.about, last)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: StorageError | OSError) -> StorageError:
        """From now on memory is ahead of the files: only opening them again can show what was written."""
        failure = error if isinstance(error, StorageError) else LedgerError(self.path, f"can't be written: {error}")
        with self._turn:
            self._broken = failure
        return failure


def _check_purpose(path: Path, found: About, wanted: About) -> None:
    if found.side != wanted.side:
        raise LedgerError(path, f"is a {found.side}'s ledger, not a {wanted.side}'s: name another file")
    if found.study != wanted.study:
        raise LedgerError(path, f"is the ledger of the study {found.study!r}, not of {wanted.study!r}: name the latter")
    if found.study_sha256 != wanted.study_sha256:
        raise LedgerError(
            path, f"is the ledger of a study {found.study!r} with another plan or task: restore the one of this study"
        )
