"""The coordinator's ledger beside its journal: every crash leaves charges that stay, and a ledger that is missing, put
back, or written anew is refused before anything is written.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import server.journal
from mechanisms.accounting import Account, RoundCharge
from runtime.durable import StorageError
from runtime.failure import Failure
from secagg.roster import RosterEntry
from server.events import Event, RoundCompleted
from server.journal import Journal, check_ledger, read_members
from tests.support.card_of_a_study import authority_of
from tests.support.databases import execute
from tests.support.signed_rosters import put
from tests.support.study_in_process import coordinator, make_folder, roster_of
from wire.ending import BUDGET_REACHED
from wire.records.ledger import (
    COORDINATOR,
    PARTICIPANT,
    About,
    ChangedLedger,
    Head,
    Ledger,
    LedgerError,
    head_file,
    read_ledger,
    row_hash,
)
from wire.records.ledger_rows import LedgerEntry


@pytest.fixture(scope="module")
def finished(study_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """The state of a study of two rounds after its end, and its events."""
    state = tmp_path_factory.mktemp("finished") / "state.sqlite"
    return state, asyncio.run(serve(study_folder, state))


@pytest.fixture
def state(finished: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> Path:
    """A copy of it to be damaged."""
    shutil.copytree(finished[0].parent, tmp_path / "state")
    return tmp_path / "state" / "state.sqlite"


async def serve(folder: Path, state: Path, **tables: Any) -> list[dict[str, Any]]:
    """The rounds that are left, with everybody in them; the events."""
    async with coordinator(folder, state, **tables) as where:
        outcome = await where.play()
        return [*where.events, {"kind": "outcome", "reason": outcome.reason}]


async def restore(folder: Path, state: Path) -> Any:
    """What a start says before its first round."""
    async with coordinator(folder, state) as where:
        return where.study.charges.account, where.journal.ledger.head.rows


def everything(folder: Path) -> dict[str, Any]:
    """All that is stored: files but locks; of databases their content."""
    found: dict[str, Any] = {}
    for one in folder.iterdir():
        if one.suffix == ".sqlite" and one.read_bytes()[:6] == b"SQLite":
            with sqlite3.connect(one) as connection:
                found[one.name] = list(connection.iterdump())
        elif one.is_file() and one.suffix != ".lock" and not one.name.endswith(("-wal", "-shm")):
            found[one.name] = one.read_bytes()
    return found


async def test_rows_rebuild_the_account(finished: tuple[Path, list[dict[str, Any]]], study_folder: Path) -> None:
    state, events = finished
    rows = check_ledger(state)
    assert [(row.entry.round, row.entry.attempt) for row in rows] == [(1, 1), (2, 1)]
    account, number = await restore(study_folder, state)
    plan = account.plan
    _, _, totals = read_ledger(state.with_name("ledger.sqlite"))
    [study] = totals.studies.values()
    fresh = Account(plan)
    for row in rows:
        entry = row.entry
        assert (entry.adjacency, entry.mechanism, entry.colluders) == (plan.adjacency, plan.mechanism, plan.colluders)
        assert (entry.honest, entry.order, entry.delta) == (7 - plan.colluders, plan.order, plan.delta)
        assert entry.draws == 7 * plan.padded_dim
        assert entry.cost == fresh.cost_of_round(7)
        orders = [order for order, _ in entry.curve]
        assert {2.0, 8.0, 32.0, 256.0} <= set(orders)
        fresh.charge(RoundCharge(entry.round, entry.attempt, frozenset(entry.participants or ()), entry.plan))
    assert number == 2
    assert account.events == fresh.events
    assert study.epsilon_coordinator() == account.epsilon_coordinator() == fresh.epsilon_coordinator() > 0
    assert [study.epsilon_of(who) for who in range(7)] == [account.epsilon_of(who) for who in range(7)]
    # The head is in the event log as well.
    for kind in ("survivors_frozen", "round_completed"):
        told = [(event["ledger_rows"], event["ledger_head"]) for event in events if event["kind"] == kind]
        assert told == [(row.number, row.hash.hex()) for row in rows]


# ---------------------------------------------------------------- crashes


async def dies_after_its_first_charge(folder: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dies(self: Journal, entry: LedgerEntry, *_: Any) -> Any:
        await asyncio.wrap_future(self.ledger.append(entry))
        raise StorageError("the end")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "charge", dies)
        with pytest.raises(StorageError, match="the end"):
            await serve(folder, state)


async def test_a_crash_after_the_charge(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is in the ledger, the journal knows nothing of it: the charge stays, and the next start notes it."""
    state = tmp_path / "state.sqlite"
    await dies_after_its_first_charge(study_folder, state, monkeypatch)
    assert len(check_ledger(state)) == 1
    account, rows = await restore(study_folder, state)
    assert (rows, len(account.events)) == (1, 1)
    events = await serve(study_folder, state)
    charged = [(row.entry.round, row.entry.attempt) for row in check_ledger(state)]
    assert charged[:2] == [(1, 1), (1, 2)]
    # A charge too many, and everybody in both sums: whether the budget lasts for the second round is the plan's affair.
    reason = events[-1]["reason"]
    assert (charged[2:], reason) in (([(2, 1)], "rounds done"), ([], BUDGET_REACHED))


async def test_the_ledger_is_written_first(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledger first: the other order, with a crash between, would leave a request that was sent and never charged."""
    order: list[str] = []
    append, write = Ledger.append, server.journal.DurableStore.write

    def appends(self: Ledger, entry: LedgerEntry) -> Any:
        future = append(self, entry)
        future.add_done_callback(lambda _: order.append("ledger"))
        return future

    async def writes(self: Any, *statements: Any) -> None:
        if any("unmasking_request" in sql for sql, _ in statements):
            order.append("journal")
        await write(self, *statements)

    monkeypatch.setattr(Ledger, "append", appends)
    monkeypatch.setattr(server.journal.DurableStore, "write", writes)
    await serve(study_folder, tmp_path / "state.sqlite")
    assert order == ["ledger", "journal"] * 2


@pytest.mark.parametrize("reached", ["head file", "tables", "ledger"])
async def test_a_crash_while_the_files_are_made(study_folder: Path, tmp_path: Path, reached: str) -> None:
    """Before the first round there is nothing to lose: the next start finishes what was begun."""
    state = tmp_path / "state.sqlite"
    await restore(study_folder, state)
    state.unlink()  # the ledger is made before the study is written down
    if reached == "head file":
        ledger_of(state).unlink()
    elif reached == "tables":
        execute(ledger_of(state), "DELETE FROM about", "DELETE FROM head")
    assert check_ledger(state) == []
    account, rows = await restore(study_folder, state)
    assert (rows, account.events) == (0, ())
    await serve(study_folder, state)
    assert len(check_ledger(state)) == 2


async def test_at_the_budget_no_further_attempt_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Charges of attempts that came to nothing count: the round that they leave nothing for is refused."""
    folder = make_folder(tmp_path / "one", rounds=1, epsilon=50.0, delta=1e-5)
    where = tmp_path / "one-state" / "state.sqlite"
    await dies_after_its_first_charge(folder, where, monkeypatch)
    events = await serve(folder, where)
    assert events[-1] == {"kind": "outcome", "reason": BUDGET_REACHED}
    assert [event for event in events if event["kind"] == "attempt_started"] == []
    assert len(check_ledger(where)) == 1


# ---------------------------------------------------------------- damage


def ledger_of(state: Path) -> Path:
    return state.with_name("ledger.sqlite")


def missing_with_its_head(state: Path) -> None:
    ledger_of(state).unlink()
    head_file(ledger_of(state)).unlink()


Damage = Callable[[Path], None]  # of a state file or of what lies beside it


def rewritten(change: Callable[[list[LedgerEntry]], Iterable[LedgerEntry]]) -> Damage:
    """As an attacker that knows this code: all hashes are new, and the file beside the ledger too."""
    return lambda state: rewrite(state, change)


def rewrite(state: Path, change: Callable[[list[LedgerEntry]], Iterable[LedgerEntry]]) -> None:
    path = ledger_of(state)
    entries = [row.entry for row in check_ledger(state)]
    about, _, _ = read_ledger(path)
    head, statements = about.beginning(), list[Any](["DROP TRIGGER rows_are_kept", "DELETE FROM rows"])
    for number, entry in enumerate(change(entries), 1):
        body = entry.to_bytes()
        hash_ = row_hash(head.hash, number, body)
        statements.append(("INSERT INTO rows VALUES (?, ?, ?, ?)", (number, head.hash, hash_, body)))
        head = Head(number, hash_)
    execute(path, *statements, ("UPDATE head SET rows = ?, hash = ?", (head.rows, head.hash)))
    head_file(path).write_text(f'{{"ledger": "{about.mark}", "rows": {head.rows}, "head": "{head.hash.hex()}"}}')
    read_ledger(path)  # the ledger alone shows nothing


def replaced_by(about: About) -> Damage:
    def replace_it(state: Path) -> None:
        missing_with_its_head(state)
        Ledger(ledger_of(state), about, create=True).close()

    return replace_it


cheaper = rewritten(lambda rows: [replace(rows[0], cost=rows[0].cost / 2), *rows[1:]])
DAMAGES: dict[str, tuple[Damage, str]] = {
    "missing with its head": (
        missing_with_its_head,
        "ledger.sqlite: is missing, although state.sqlite knows of 2 charges",
    ),
    "cheaper": (cheaper, "row 1 isn't the one that state.sqlite knows: rows were written anew"),
    "cut short": (rewritten(lambda rows: rows[:1]), "row 2 is missing: state.sqlite knows of row 2"),
    "emptied": (rewritten(lambda rows: []), "row 1 is missing: state.sqlite knows of row 1"),
    "added": (
        rewritten(lambda rows: [*rows, replace(rows[-1], round=3)]),
        "row 3 was added: state.sqlite knows nothing of it",
    ),
    "other survivors": (
        rewritten(lambda rows: [rows[0], replace(rows[1], participants=(0, 1, 2, 3, 4, 5, 8))]),
        "row 2 isn't the one that state.sqlite knows",
    ),
    "older state": (
        lambda state: execute(state, "PRAGMA user_version = 0"),
        "state.sqlite has format 0, this release reads 3: an older one wrote it and keeps its charges there",
    ),
    "state gone": (Path.unlink, "has 2 charges of which state.sqlite knows nothing"),
    "a participant's": (replaced_by(About(PARTICIPANT)), "is a participant's ledger, not that of state.sqlite"),
    "another study's": (
        replaced_by(About(COORDINATOR, "eight", "aa" * 32)),
        "is the ledger of the study 'eight', state.sqlite belongs to 'seven'",
    ),
    "another plan's": (
        replaced_by(About(COORDINATOR, "seven", "aa" * 32)),
        "is the ledger of a study with another plan or task than state.sqlite",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
async def test_a_ledger_that_does_not_fit_its_journal(study_folder: Path, state: Path, name: str) -> None:
    damage, told = DAMAGES[name]
    damage(state)
    before = everything(state.parent)
    with pytest.raises(Failure) as error:
        await restore(study_folder, state)
    assert told in str(error.value)
    assert error.value.code == (41 if isinstance(error.value, ChangedLedger) else 2)
    assert everything(state.parent) == before


async def test_an_older_copy_of_the_ledger_with_all_its_files(study_folder: Path, tmp_path: Path) -> None:
    """Ledger and head file are copied after the first round and put back after the second."""
    state, kept = tmp_path / "state.sqlite", tmp_path / "kept"

    def keep(event: Event) -> None:
        if isinstance(event, RoundCompleted) and event.round == 1:
            kept.mkdir()
            source = sqlite3.connect(ledger_of(state))
            copy = sqlite3.connect(kept / "ledger.sqlite")
            source.backup(copy)
            source.close()
            copy.close()
            shutil.copy(head_file(ledger_of(state)), kept)

    async with coordinator(study_folder, state) as where:
        where.tell_first(keep)
        await where.play()
    for one in kept.iterdir():
        if not one.name.endswith(("-wal", "-shm")):
            shutil.copy(one, tmp_path / one.name)
    read_ledger(ledger_of(state))  # alone it is in order
    with pytest.raises(LedgerError, match="row 2 is missing"):
        check_ledger(state)
    with pytest.raises(Failure, match="row 2 is missing"):
        await restore(study_folder, state)


async def test_a_price_below_the_plans(study_folder: Path, state: Path) -> None:
    """Ledger, head file and journal written anew together: the account asks what such a sum costs."""
    cheaper(state)
    rows: list[Any] = []
    read_ledger(ledger_of(state), rows.append)
    execute(
        state, *(("UPDATE attempts SET ledger_hash = ? WHERE ledger_row = ?", (row.hash, row.number)) for row in rows)
    )
    check_ledger(state)
    before = everything(state.parent)
    with pytest.raises(LedgerError, match=r"row 1 charges .* the plan asks for"):
        await restore(study_folder, state)
    assert everything(state.parent) == before


async def test_two_coordinators_on_one_ledger(study_folder: Path, state: Path) -> None:
    async with coordinator(study_folder, state):
        with pytest.raises(Failure, match=r"state\.sqlite is in use by another process") as refused:
            await restore(study_folder, state)
        assert refused.value.code == 2


async def test_other_participants_under_the_same_positions(study_folder: Path, state: Path, tmp_path: Path) -> None:
    """By position one person's charges would be split over two, and too much spent: everybody has a number for good."""
    folder = tmp_path / "study"
    shutil.copytree(study_folder, folder)
    key, roster = authority_of(folder), roster_of(folder)
    renamed = tuple(replace(entry, host="elsewhere") for entry in roster.entries)  # the same people
    put(folder, replace(roster, version=2, entries=renamed, previous=roster.digest()), key)
    await restore(folder, state)
    newcomer = RosterEntry(Ed25519PrivateKey.generate().public_key().public_bytes_raw(), roster.entries[0].host)
    entries = tuple(sorted([newcomer, *roster.entries[1:]], key=lambda entry: entry.identity))
    put(folder, replace(roster, version=2, entries=entries, previous=roster.digest()), key)
    with pytest.raises(StorageError, match="another version 2 of the roster was in use before"):
        await restore(folder, state)
    numbers = read_members(state)
    assert numbers == dict(enumerate(entry.identity for entry in roster.entries))
    put(folder, replace(roster, version=3, entries=entries, previous=roster.digest()), key)
    await restore(folder, state)
    assert read_members(state) == numbers | {len(roster): newcomer.identity}
    put(folder, roster, key)
    with pytest.raises(StorageError, match="the roster is version 1, but version 3 was in use before"):
        await restore(folder, state)
