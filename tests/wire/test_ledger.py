"""The ledger: every change is found, by name of the row; a crash at any moment leaves one that opens again; nothing is
written where something is wrong.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import wire.records.ledger
from runtime.durable import StorageError
from tests.wire.made_ledgers import OTHER, ROWS, STUDY, entry, fill, open_, own_row
from wire.records.ledger import (
    COORDINATOR,
    PARTICIPANT,
    About,
    ChangedLedger,
    Found,
    Head,
    Ledger,
    LedgerError,
    Row,
    head_file,
    read_ledger,
    row_hash,
)
from wire.records.ledger_rows import InvalidRow, LedgerEntry


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of five rows in a folder of its own."""
    place = tmp_path / "ledgers" / "ledger.sqlite"
    fill(place)
    return place


def everything(folder: Path) -> dict[str, bytes]:
    """All files of a folder but locks."""
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file() and one.suffix != ".lock"}


def test_rows_are_read_as_they_were_written(path: Path) -> None:
    rows: list[Row] = []
    about, head, totals = read_ledger(path, rows.append)
    assert (about.side, about.study, about.study_sha256) == (COORDINATOR, "seven", STUDY)
    assert [row.entry for row in rows] == [entry(round_) for round_ in range(1, ROWS + 1)]
    assert head == rows[-1].head
    study = totals.studies[STUDY]
    assert study.renyi(3) == 0.1 + 0.2 + 0.1 * 3 + 0.4 + 0.5
    assert study.renyi(2) == 0.0
    assert study.draws == ROWS * 5 * 1024
    assert json.loads(head_file(path).read_text()) == {"ledger": about.mark, "rows": ROWS, "head": head.hash.hex()}


def test_it_goes_on_where_it_ended(path: Path) -> None:
    ledger = open_(path, create=False)
    assert ledger.head.rows == ROWS
    assert ledger.append(entry(ROWS + 1)).result().number == ROWS + 1
    ledger.close()
    assert read_ledger(path)[1].rows == ROWS + 1


def left_in(path: Path) -> Found:
    ledger = open_(path, create=False)
    ledger.close()
    assert ledger.left is not None
    return ledger.left


@pytest.mark.parametrize("more", [0, 2])
def test_rows_that_were_read_before_are_not_read_again(path: Path, more: int) -> None:
    known, rows = left_in(path), list[Row]()
    fill(path, range(ROWS + 1, ROWS + 1 + more))
    ledger = Ledger(path, known[0], create=False, visit=rows.append, known=known)
    ledger.close()
    assert [row.number for row in rows] == [*range(ROWS + 1, ROWS + 1 + more)]
    about, head, totals = read_ledger(path)
    assert ledger.left is not None
    assert (*ledger.left[:2], ledger.left[2].studies) == (about, head, totals.studies)


def test_rows_that_were_read_before_have_to_be_there(path: Path) -> None:
    """Even an older copy of everything on the disk is found by a process that knows the end."""
    older = path.parent.parent / "older"
    shutil.copytree(path.parent, older)
    fill(path, range(ROWS + 1, ROWS + 3))
    known = left_in(path)
    for name in (path.name, head_file(path).name):
        shutil.copy(older / name, path.parent / name)
    assert left_in(path)[1].rows == ROWS
    with pytest.raises(ChangedLedger, match=f"row {ROWS + 2} isn't the one that was read here before"):
        Ledger(path, known[0], create=False, known=known)


def test_rows_of_many_callers_keep_their_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        ledger = open_(tmp_path / "ledger.sqlite")
        found = await asyncio.gather(*(asyncio.wrap_future(ledger.append(entry(r))) for r in range(1, 60)))
        assert [row.number for row in found] == list(range(1, 60))
        waiting = asyncio.ensure_future(asyncio.wrap_future(ledger.append(entry(60))))
        await asyncio.sleep(0)
        waiting.cancel()  # a stream that ends while its charge is being written: the charge stays
        assert (await asyncio.wrap_future(ledger.append(entry(61)))).number == 61
        ledger.close()

    asyncio.run(scenario())
    assert read_ledger(tmp_path / "ledger.sqlite")[1].rows == 61


def test_a_reader_beside_the_writer_sees_whole_ledgers(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    ledger, seen, done = open_(path), [0], threading.Event()

    def write() -> None:
        for round_ in range(1, 41):
            ledger.append(entry(round_)).result()
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        seen.append(read_ledger(path)[1].rows)
    writer.join()
    ledger.close()
    assert seen == sorted(seen)
    assert read_ledger(path)[1].rows == 40


def test_reading_needs_no_write(path: Path) -> None:
    before = everything(path.parent)
    read_ledger(path)
    assert everything(path.parent) == before
    assert {one.name for one in path.parent.iterdir()} - {path.name + ".lock"} == set(before)


def test_sql_itself_refuses_to_change_rows(path: Path) -> None:
    for sql in ("UPDATE rows SET body = x'00'", "DELETE FROM rows"):
        with sqlite3.connect(path) as connection, pytest.raises(sqlite3.IntegrityError, match="only appended to"):
            connection.execute(sql)


def tamper(path: Path, *statements: tuple[str, tuple[Any, ...]] | str) -> None:
    """As an attacker with the file would."""
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER IF EXISTS rows_stay")
    connection.execute("DROP TRIGGER IF EXISTS rows_are_kept")
    for one in statements:
        connection.execute(*((one,) if isinstance(one, str) else one))
    connection.commit()
    connection.close()


def query(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def stored(path: Path) -> list[tuple[int, bytes, bytes, bytes]]:
    return query(path, "SELECT number, previous, hash, body FROM rows ORDER BY number")


def read_beginning(path: Path) -> Head:
    return About.from_bytes(query(path, "SELECT body FROM about")[0][0]).beginning()


def write_anew(path: Path, bodies: list[bytes]) -> Head:
    """All rows with these contents, every hash and the table of the head right."""
    head = read_beginning(path)
    statements: list[Any] = ["DELETE FROM rows"]
    for number, body in enumerate(bodies, 1):
        hash_ = row_hash(head.hash, number, body)
        statements.append(("INSERT INTO rows VALUES (?, ?, ?, ?)", (number, head.hash, hash_, body)))
        head = Head(number, hash_)
    tamper(path, *statements, ("UPDATE head SET rows = ?, hash = ?", (head.rows, head.hash)))
    return head


def cheaper(path: Path) -> bytes:
    """The third row, with half of its cost."""
    one = LedgerEntry.from_bytes(bodies(path)[2])
    return replace(one, cost=one.cost / 2).to_bytes()


def bodies(path: Path) -> list[bytes]:
    return [row[3] for row in stored(path)]


def renumbered(*pairs: tuple[int, int]) -> list[str]:
    return [f"UPDATE rows SET number = {new} WHERE number = {old}" for old, new in pairs]


def older_copy(path: Path) -> None:
    older = path.parent.parent / "older" / "ledger.sqlite"
    shutil.copytree(path.parent, older.parent)
    ledger = open_(path)
    ledger.append(entry(6)).result()
    ledger.close()
    shutil.copy(older, path)


def head_file_with(**values: Any) -> Callable[[Path], object]:
    return lambda path: head_file(path).write_text(json.dumps(json.loads(head_file(path).read_text()) | values))


BODY, HASHED = "UPDATE rows SET body = ? WHERE number = ?", "UPDATE rows SET body = ?, hash = ? WHERE number = 3"
INSERT = "INSERT INTO rows SELECT {}, previous, hash, body FROM rows WHERE number = {}"
DELETE = "DELETE FROM rows WHERE number = {}"


def sql(*statements: str | tuple[str, Callable[[Path], tuple[Any, ...]]]) -> Callable[[Path], object]:
    """These statements; parameters are made from what there is."""
    return lambda path: tamper(path, *(one if isinstance(one, str) else (one[0], one[1](path)) for one in statements))


def anew(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], object]:
    return lambda path: write_anew(path, change(bodies(path)))


def another_beginning(path: Path) -> tuple[bytes]:
    return (About(COORDINATOR, "seven", OTHER, "0" * 32).to_bytes(),)


NO_HEAD = "ledger.sqlite.head: isn't the head of a ledger"
# Change, the row that is named, and the sentence.
TAMPERINGS: dict[str, tuple[Callable[[Path], object], int | None, str]] = {
    "cost": (sql((BODY, lambda path: (cheaper(path), 3))), 3, "row 3 was changed"),
    "cost and its hash": (
        sql((HASHED, lambda path: (cheaper(path), row_hash(stored(path)[2][1], 3, cheaper(path))))),
        *(4, "row 4 doesn't follow row 3"),
    ),
    "cost and all hashes": (
        lambda path: write_anew(path, [*bodies(path)[:2], cheaper(path), *bodies(path)[3:]]),
        *(None, "ends with another row 5 than ledger.sqlite.head says"),
    ),
    "removed": (sql(DELETE.format(3)), 3, "row 3 is missing: the next one has number 4"),
    "removed and renumbered": (sql(DELETE.format(3), *renumbered((4, 3), (5, 4))), 3, "row 3 was changed"),
    "removed and all hashes": (
        anew(lambda rows: rows[:2] + rows[3:]),
        *(5, "row 5 is missing: ledger.sqlite.head says that there were 5"),
    ),
    "first removed": (sql(DELETE.format(1)), 1, "row 1 is missing"),
    "last removed": (sql(DELETE.format(5)), 5, "row 5 is missing: its table head says that there were 5"),
    "cut short": (
        anew(lambda rows: rows[:3]),
        *(4, "row 4 is missing and those behind it: ledger.sqlite.head says that there were 5"),
    ),
    "emptied": (anew(lambda _: []), 1, "row 1 is missing and those behind it"),
    "bodies swapped": (
        lambda path: tamper(path, (BODY, (bodies(path)[2], 2)), (BODY, (bodies(path)[1], 3))),
        *(2, "row 2 was changed"),
    ),
    "rows swapped": (sql(*renumbered((2, 99), (3, 2), (99, 3))), 2, "row 2 was changed"),
    "inserted": (sql(*renumbered((5, 6), (4, 5), (3, 4)), INSERT.format(3, 2)), 3, "row 3 was changed"),
    "inserted in front": (sql(INSERT.format(0, 1)), 1, "row 1 is missing: the next one has number 0"),
    "appended": (  # as the writer itself would, except for the file beside it
        anew(lambda rows: [*rows, entry(6).to_bytes()]),
        *(6, "row 6 was added: ledger.sqlite.head ends with row 5"),
    ),
    "older copy": (older_copy, 6, "row 6 is missing: ledger.sqlite.head says that there were 6"),
    "head table": (sql("UPDATE head SET rows = 4"), 5, "row 5 was added: its table head ends with row 4"),
    "beginning": (sql(("UPDATE about SET body = ?", another_beginning)), 1, "row 1 doesn't follow the beginning"),
    "beginning removed": (sql("DELETE FROM about"), None, "its beginning is missing"),
    # A naive reader would allocate this number of bytes.
    "beginning of another type": (sql("UPDATE about SET body = 1 << 40"), None, "its beginning was changed"),
    "head file removed": (lambda path: head_file(path).unlink(), None, "ledger.sqlite.head: is missing"),
    "head file garbage": (lambda path: head_file(path).write_bytes(b"{}"), None, NO_HEAD),
    "head file without end": (head_file_with(rows=float("inf")), None, NO_HEAD),
    "head file of another": (head_file_with(ledger="0" * 32), None, "belongs to another ledger"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_change_is_found_and_nothing_is_written(path: Path, name: str) -> None:
    change, row, told = TAMPERINGS[name]
    change(path)
    before = everything(path.parent)
    with pytest.raises(ChangedLedger, match=r"ledger\.sqlite") as error:
        read_ledger(path)
    assert told in str(error.value)
    assert error.value.about["row"] == row
    with pytest.raises(ChangedLedger) as error:
        open_(path)
    assert told in str(error.value)
    assert everything(path.parent) == before


def naive(path: Path) -> bool:
    """What a chain alone shows: each row has its hash and follows the one before it."""
    previous = read_beginning(path).hash
    for number, before, hash_, body in stored(path):
        if before != previous or row_hash(before, number, body) != hash_:
            return False
        previous = hash_
    return True


@pytest.mark.parametrize(
    ("name", "missed"),
    [
        *[(one, True) for one in ("cut short", "emptied", "older copy", "last removed", "cost and all hashes")],
        *[("appended", True), ("cost", False), ("rows swapped", False)],
    ],
)
def test_a_chain_without_its_head_finds_only_changes_in_the_middle(path: Path, name: str, missed: bool) -> None:
    """The naive verifier, which checks the chain and keeps no head elsewhere."""
    assert naive(path)
    TAMPERINGS[name][0](path)
    assert naive(path) == missed


def test_an_older_copy_with_the_file_beside_it_shows_nothing(path: Path) -> None:
    """Why the journals note the head as well, and why it is worth publishing."""
    older = path.parent.parent / "older"
    shutil.copytree(path.parent, older)
    fill(path, range(ROWS + 1, ROWS + 3))
    for name in (path.name, head_file(path).name):
        shutil.copy(older / name, path.parent / name)
    assert read_ledger(path)[1].rows == ROWS


@pytest.fixture(scope="module")
def three_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ledgers") / "ledger.sqlite"
    fill(place, range(1, 4))
    tamper(place)
    return place


@settings(max_examples=50, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=st.integers(1, 3), place=st.integers(0, 2**16), flip=st.integers(1, 255))
def test_any_changed_byte_of_a_row_is_found(three_rows: Path, row: int, place: int, flip: int) -> None:
    body = stored(three_rows)[row - 1][3]
    changed = bytearray(body)
    changed[place % len(body)] ^= flip
    update = "UPDATE rows SET body = ? WHERE number = ?"
    tamper(three_rows, (update, (bytes(changed), row)))
    try:
        with pytest.raises(ChangedLedger, match=f"row {row} was changed") as error:
            read_ledger(three_rows)
        assert error.value.about["row"] == row
    finally:
        tamper(three_rows, (update, (body, row)))
    assert read_ledger(three_rows)[1].rows == 3


def foreign(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")


def misspelt(path: Path) -> None:
    """Its schema, which SQLite quotes in its message, is no UTF-8 any more."""
    content = path.read_bytes()
    assert b"CREATE TABLE about" in content
    path.write_bytes(content.replace(b"CREATE TABLE about", b"CRE\xd4TE TABLE about"))


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a schema that is no text": (misspelt, "can't be read as a ledger"),
    "missing": (lambda path: path.unlink(), "is missing, although ledger.sqlite.head says that it had 5 rows"),
    "garbage": (lambda path: path.write_bytes(b"no database " * 100), "can't be read as a ledger"),
    "another kind": (foreign, "is a database of another kind"),
    "empty": (lambda path: path.write_bytes(b""), "its beginning is missing"),
    "cut in the middle": (lambda path: path.write_bytes(path.read_bytes()[:9000]), "ledger.sqlite"),
    "newer": (lambda path: tamper(path, "PRAGMA user_version = 3"), "has format 3, this release reads 2: a newer one"),
    "older": (lambda path: tamper(path, "PRAGMA user_version = 1"), "has format 1, this release reads 2: an older one"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "ledger.sqlite"),
}


@pytest.mark.parametrize("name", BAD)
def test_files_that_cannot_be_used(path: Path, name: str) -> None:
    damage, told = BAD[name]
    damage(path)
    before = everything(path.parent)
    for use in (read_ledger, open_):
        with pytest.raises(LedgerError, match=r"ledger\.sqlite") as error:
            use(path)
        assert told in str(error.value)
        assert "\n" not in str(error.value)
        assert error.value.code == (2 if name in ("another kind", "newer", "older", "a folder") else 41)
    assert everything(path.parent) == before


def test_a_missing_one_is_made_only_where_there_was_none(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with pytest.raises(LedgerError, match="there is no ledger here"):
        read_ledger(path)
    with pytest.raises(LedgerError, match="is missing"):
        open_(path, create=False)
    assert everything(tmp_path) == {}


@pytest.mark.parametrize(
    ("about", "told"),
    [
        (About(COORDINATOR, "eight", STUDY), "is the ledger of the study 'seven', not of 'eight'"),
        (About(COORDINATOR, "seven", OTHER), "with another plan or task"),
        (About(PARTICIPANT), "is a coordinator's ledger, not a participant's"),
    ],
)
def test_a_ledger_of_another_study(path: Path, about: About, told: str) -> None:
    before = everything(path.parent)
    with pytest.raises(LedgerError, match=told):
        open_(path, about)
    assert everything(path.parent) == before


def test_opened_twice(path: Path) -> None:
    first = open_(path)
    with pytest.raises(LedgerError, match="is in use by another process"):
        open_(path)
    first.append(entry(ROWS + 1)).result()
    first.close()
    with pytest.raises(StorageError, match="is closed"):
        first.append(entry(ROWS + 2)).result()
    open_(path).close()


@pytest.mark.parametrize(("call", "rows"), [(1, ROWS), (2, ROWS + 1)])
def test_a_crash_within_an_append(path: Path, monkeypatch: pytest.MonkeyPatch, call: int, rows: int) -> None:
    """Before the row is written, or after it and before the file beside it says so: the ledger opens again."""
    honest, calls = wire.records.ledger._write_head_file, [0]

    def dies(*arguments: Any) -> None:
        calls[0] += 1
        if calls[0] == call == 1:
            honest(*arguments)  # the file is written, and the row isn't
        if calls[0] >= call:
            raise OSError("the end")
        honest(*arguments)

    ledger = open_(path)
    with monkeypatch.context() as patch:
        patch.setattr(wire.records.ledger, "_write_head_file", dies)
        first = ledger.append(entry(ROWS + 1))
        if rows == ROWS:
            with pytest.raises(LedgerError, match="the end"):
                first.result()
        else:
            assert first.result().number == rows
        with pytest.raises(LedgerError, match="the end"):  # it is unknown what is on the disk: nothing more is written
            ledger.append(entry(ROWS + 2)).result()
    ledger.close()
    assert "next_head" in json.loads(head_file(path).read_text())
    assert read_ledger(path)[1].rows == rows
    again = open_(path)
    assert again.head.rows == rows
    again.append(entry(ROWS + 2)).result()
    again.close()
    assert read_ledger(path)[1].rows == rows + 1
    assert "next_head" not in json.loads(head_file(path).read_text())


@pytest.mark.parametrize("reached", ["the file beside it", "the file", "the tables"])
def test_a_crash_while_it_is_made(tmp_path: Path, reached: str) -> None:
    path = tmp_path / "ledger.sqlite"
    open_(path).close()
    if reached == "the file beside it":
        path.unlink()
    elif reached == "the file":
        path.write_bytes(b"")
    else:
        tamper(path, "DELETE FROM about", "DELETE FROM head")
    with pytest.raises(LedgerError, match="there is no ledger"):
        read_ledger(path)
    fill(path)
    assert read_ledger(path)[1].rows == ROWS


def test_a_disk_that_takes_no_more(path: Path) -> None:
    ledger = open_(path)
    ledger._store._connection.execute("PRAGMA query_only = 1")
    futures: list[Future[Row]] = [ledger.append(entry(ROWS + one)) for one in (1, 2, 3)]
    for future in futures:
        with pytest.raises(StorageError, match=r"ledger\.sqlite"):
            future.result()
    ledger.close()
    fill(path, range(ROWS + 1, ROWS + 2))
    assert read_ledger(path)[1].rows == ROWS + 1


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (entry(ROWS), "comes after"),
        (entry(ROWS - 1, 7), "comes after"),
        (entry(6, study_sha256=OTHER), "another study"),
        (entry(6, plan="dd" * 32), "its plan is not that"),
        (entry(6, order=7.5), "its order is not that"),
        (entry(6, delta=1e-6), "its delta is not that"),
        (entry(6, adjacency="replace-one"), "its adjacency is not that"),
        (entry(6, colluders=1, honest=4), "its colluders is not that"),
        (own_row(6), "no row of a coordinator"),
    ],
)
def test_rows_that_cannot_follow(path: Path, row: LedgerEntry, told: str) -> None:
    ledger = open_(path)
    with pytest.raises(InvalidRow, match=told):
        ledger.append(row)
    ledger.append(entry(6)).result()  # nothing was counted
    assert ledger.totals.studies[STUDY].spent[0].charges == ROWS + 1
    ledger.close()


def test_two_studies_share_a_participants_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    for study, digest in (("seven", STUDY), ("eight", OTHER)):
        ledger = open_(path, About(PARTICIPANT))
        ledger.append(own_row(1, study=study, study_sha256=digest)).result()
        with pytest.raises(InvalidRow, match="no row of a participant"):
            ledger.append(entry(2))
        ledger.close()
    assert set(read_ledger(path)[2].studies) == {STUDY, OTHER}
