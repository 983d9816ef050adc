"""A client's files as a kill leaves them at every instant between two writes: a client opens each again.

The files are copied before and after every SQLite statement, every flush and every rename, in any thread. A kill leaves
the files as they are at such an instant, since what was written stays in the system's memory when a process dies;
tests/wire tests that commits reach the disk. From each copy a client must start without help, hold everything that had
been reported as durable, and continue.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import wire.records.ledger
from authority.new_study import new_study
from client.journal import AlreadyJoined, ClientJournal, check_ledger
from mechanisms.plan import Plan
from runtime.durable import StorageError
from secagg.roster import Roster, RosterEntry
from wire.records.ledger_rows import CHARGE, EXACT, EXCLUDED, LedgerEntry, make_entry

STUDY, DOCUMENT, ME, OTHER = "kills", bytes(range(32)), b"\x01" * 32, b"\x02" * 32
STATEMENT, REQUEST = b"a statement", b"\x03" * 32
ROSTER = Roster(STUDY, 1, [RosterEntry(ME, "one"), RosterEntry(OTHER, "two")], terms=DOCUMENT)
Number = tuple[int, int]


@pytest.fixture(scope="module")
def plan() -> Plan:
    return new_study(
        participants=7,
        hosts=7,
        task="synthetic",
        task_options={"dim": 10},
        rounds=10,
        min_survivors=5,
        quorum=5,
        bits=20,
    ).study.plan()


def entry(plan: Plan, number: Number, identity: bytes = ME, **more: Any) -> LedgerEntry:
    return make_entry(
        plan,
        study=STUDY,
        study_sha256=DOCUMENT,
        round=number[0],
        attempt=number[1],
        identity=identity,
        data=identity.hex(),
        **more,
    )


@dataclass
class Promised:
    """What has been reported as durable."""

    joined: set[Number] = field(default_factory=set)
    signed: set[Number] = field(default_factory=set)
    answered: set[Number] = field(default_factory=set)
    charged: set[Number] = field(default_factory=set)
    exact: set[Number] = field(default_factory=set)
    accepted: bool = False


class Instants:
    """Copies of a folder, one for each state that its files were seen in."""

    def __init__(self, folder: Path, copies: Path) -> None:
        self._folder, self._copies = folder, copies
        self.writing = threading.RLock()  # one write at a time, so that each copy shows one instant
        self.promised = Promised()
        self.found: dict[bytes, tuple[Path, Promised]] = {}

    @contextmanager
    def around(self) -> Iterator[None]:
        """Copy before and after a write."""
        with self.writing:
            self.take()
            yield
            self.take()

    def take(self) -> None:
        """Copy the files, unless files and promises are the same as in an earlier copy."""
        state = hashlib.sha256(repr(self.promised).encode())
        for path in sorted(self._folder.iterdir()) if self._folder.exists() else ():
            if not path.name.endswith("-shm"):  # an index of the log, which the first reader makes again
                state.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
        if state.digest() in self.found:
            return
        copy = self._copies / f"{len(self.found):04d}"
        shutil.copytree(self._folder, copy) if self._folder.exists() else copy.mkdir()
        self.found[state.digest()] = copy, deepcopy(self.promised)


@contextmanager
def watched(instants: Instants) -> Iterator[None]:
    """Copy around every write of this process."""

    class Connection(sqlite3.Connection):
        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            with instants.around():
                return super().execute(*arguments)

        def executescript(self, script: str) -> sqlite3.Cursor:
            with instants.around():
                for statement in statements(script):
                    super().execute(statement)
                    instants.take()
                return self.cursor()

        def close(self) -> None:
            with instants.around():
                super().close()

    honest = {name: getattr(os, name) for name in ("fsync", "replace", "write")}
    connect = sqlite3.connect

    def around(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            with instants.around():
                return function(*arguments, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **({"factory": Connection} | k)))
        for name, function in honest.items():
            patch.setattr(os, name, around(function))
        yield


def statements(script: str) -> Iterator[str]:
    """Split a script into statements as SQLite does."""
    part = ""
    for piece in script.split(";"):
        part += piece + ";"
        if part.strip(" \n;") and sqlite3.complete_statement(part):
            yield part
            part = ""


async def a_life(journal: ClientJournal, plan: Plan, instants: Instants, rounds: range) -> None:
    """Write what a participant writes in these rounds, in order; another one shares its files."""
    promised = instants.promised
    await journal.accept_study(DOCUMENT, ROSTER)
    promised.accepted = True
    for round_ in rounds:
        number = (round_, 1)
        for identity in (ME, OTHER):
            await journal.join(STUDY, identity, *number)
        promised.joined.add(number)
        await asyncio.gather(*(journal.charge(entry(plan, number, who)) for who in (ME, OTHER)))
        promised.charged.add(number)
        await journal.sign(STUDY, ME, *number, STATEMENT)
        promised.signed.add(number)
        await journal.answer(STUDY, ME, *number, REQUEST, entry(plan, number, kind=EXACT, survivors=7))
        promised.answered.add(number)
        promised.exact.add(number)
        await journal.charge(entry(plan, number, OTHER, kind=EXCLUDED))


def record(folder: Path, copies: Path, plan: Plan) -> Instants:
    """Record two lives: the first starts with no files, the second continues with them."""
    instants = Instants(folder, copies)
    copies.mkdir()
    with watched(instants):
        for rounds in (range(1, 3), range(3, 4)):
            journal = ClientJournal(folder / "journal.sqlite", folder / "ledger.sqlite")
            asyncio.run(a_life(journal, plan, instants, rounds))
            journal.close()
    return instants


def goes_on(copy: Path, promised: Promised, plan: Plan) -> None:
    """Start a client from these files: it remembers what was promised and takes part in a later round."""
    paths = copy / "journal.sqlite", copy / "ledger.sqlite"
    check_ledger(*paths)
    journal = ClientJournal(*paths)
    try:
        charged = rows(journal, CHARGE)
        assert promised.charged <= charged
        assert promised.exact <= rows(journal, EXACT)
        for column, numbers in (("1", promised.joined), ("signed", promised.signed), ("answered", promised.answered)):
            kept = journal._store.read(
                f"SELECT round, attempt FROM attempts WHERE identity = ? AND {column} IS NOT NULL", (ME,)
            )
            assert numbers <= set(kept)
        studies = journal._store.read("SELECT study FROM studies")
        assert studies or not promised.accepted

        async def next_round() -> None:
            for number in promised.joined:
                with pytest.raises(AlreadyJoined):
                    await journal.join(STUDY, ME, *number)
            await journal.accept_study(DOCUMENT, ROSTER)
            await journal.join(STUDY, ME, 9, 1)
            await journal.charge(entry(plan, (9, 1)))

        asyncio.run(next_round())
        assert rows(journal, CHARGE) == charged | {(9, 1)}
    finally:
        journal.close()
    assert check_ledger(*paths) is not None


def rows(journal: ClientJournal, kind: str) -> set[Number]:
    found: set[Number] = set()

    def visit(row: wire.records.ledger.Row) -> None:
        if row.entry.kind == kind and row.entry.identity == ME.hex():
            found.add((row.entry.round, row.entry.attempt))

    wire.records.ledger.read_ledger(journal.ledger.path, visit)
    return found


def refusals(instants: Instants, plan: Plan) -> list[str]:
    """Return, for each instant, why a client doesn't start again or can't read its ledger."""
    reasons = []
    for copy, promised in instants.found.values():
        try:
            goes_on(copy, promised, plan)
        except StorageError as error:
            reasons.append(f"{copy.name}: {error}")
    return reasons


@pytest.mark.long
def test_from_every_instant_a_client_continues(tmp_path: Path, plan: Plan) -> None:
    instants = record(tmp_path / "host", tmp_path / "copies", plan)
    assert len(instants.found) > 60
    assert refusals(instants, plan) == []


HONEST = wire.records.ledger._write_head_file


def late(path: Path, about: Any, head: Any, coming: Any = None) -> None:
    """The row, then the file beside it. A kill between them looks like an added row."""
    if coming is None:
        HONEST(path, about, head)


def in_place(path: Path, data: bytes, *, at_once: bool = True) -> None:
    """The naive way to replace a small file: a kill can leave it empty, and the ledger unreadable."""
    with path.open("wb") as file:
        os.fsync(file.fileno())
        file.write(data)


@pytest.mark.parametrize(
    ("name", "naive", "told"), [("_write_head_file", late, "was added"), ("replace_durably", in_place, "restore it")]
)
@pytest.mark.long
def test_a_head_in_a_naive_order_or_place(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, name: str, naive: Callable[..., None], told: str
) -> None:
    monkeypatch.setattr(wire.records.ledger, name, naive)
    instants = record(tmp_path / "host", tmp_path / "copies", plan)
    monkeypatch.undo()
    reasons = refusals(instants, plan)
    assert any(told in reason for reason in reasons), reasons
