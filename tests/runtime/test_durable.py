"""The writer thread: what is reported as durable is there, a bad write spoils no other, no caller waits for ever."""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

import runtime.durable
from runtime.durable import DurableStore, StorageError, hold, is_in_use, replace_durably

SCHEMA = "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value INTEGER NOT NULL);"
APPLICATION = 0x536F7254
INSERT = "INSERT INTO facts VALUES (?, ?)"
SOON_S = 20.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DurableStore]:
    opened = DurableStore(tmp_path / "folder" / "facts.sqlite", SCHEMA, APPLICATION)
    yield opened
    opened.close()


def names(store: DurableStore) -> list[str]:
    return [name for (name,) in store.read("SELECT name FROM facts ORDER BY name")]


def test_what_was_written_is_read_and_survives(store: DurableStore) -> None:
    store.submit((INSERT, ("a", 1)), (INSERT, ("b", 2))).result(SOON_S)
    assert store.read("SELECT value FROM facts WHERE name = ?", ("b",)) == [(2,)]
    with sqlite3.connect(store.path) as other:
        assert other.execute("SELECT count(*) FROM facts").fetchone() == (2,)
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert other.execute("PRAGMA application_id").fetchone() == (APPLICATION,)
    store.close()
    again = DurableStore(store.path, SCHEMA, APPLICATION)
    assert names(again) == ["a", "b"]
    again.close()


def test_a_question_whether_it_is_in_use_keeps_nobody_out(store: DurableStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_in_use(store.path)
    with pytest.raises(StorageError, match="in use by another process"):
        DurableStore(store.path, SCHEMA, APPLICATION)
    store.close()
    assert not is_in_use(store.path)
    asking = hold(store.path.with_name("facts.sqlite.lock"), os.O_RDONLY, fcntl.LOCK_SH)
    assert asking is not None
    assert not is_in_use(store.path)
    monkeypatch.setattr(runtime.durable.time, "sleep", lambda _: os.close(asking))
    DurableStore(store.path, SCHEMA, APPLICATION).close()


def test_every_commit_reaches_the_disk(store: DurableStore) -> None:
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


class Held:
    """Keeps the writer busy, so that what is submitted meanwhile shares its next commit."""

    def __init__(self, store: DurableStore) -> None:
        self.store, self.go, self.busy = store, threading.Event(), threading.Event()
        store._connection.create_function("hold", 0, self._hold)

    def _hold(self) -> int:
        self.busy.set()
        assert self.go.wait(SOON_S)
        return 0

    def __enter__(self) -> None:
        self.first = self.store.submit((INSERT.replace("?, ?", "'held', hold()"), ()))
        assert self.busy.wait(SOON_S)

    def __exit__(self, *_: object) -> None:
        self.go.set()
        self.first.result(SOON_S)


def test_many_writes_share_a_commit(store: DurableStore) -> None:
    commits = []
    store._connection.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)
    with Held(store):
        futures = [store.submit((INSERT, (f"{i:03}", i))) for i in range(100)]
    for future in futures:
        future.result(SOON_S)
    store._connection.set_trace_callback(None)
    assert len(commits) == 2
    assert names(store)[:100] == [f"{i:03}" for i in range(100)]


BAD = [
    pytest.param((INSERT, ("taken", 1)), id="constraint"),
    pytest.param((INSERT, ("x", None)), id="null"),
    pytest.param(("INSERT INTO nowhere VALUES (1)", ()), id="no table"),
    pytest.param(("SELEKT", ()), id="syntax"),
    pytest.param((INSERT, ("x",)), id="too few values"),
    pytest.param((INSERT, ("x", 2**63)), id="too large for SQLite"),
    pytest.param((INSERT, ("x", object())), id="no such type"),
    pytest.param((INSERT, ("\ud800", 1)), id="no such text"),
]


@pytest.mark.parametrize("bad", BAD)
def test_one_bad_write_spoils_no_other(store: DurableStore, bad: tuple[str, tuple[object, ...]]) -> None:
    store.submit((INSERT, ("taken", 0))).result(SOON_S)
    with Held(store):
        before = store.submit((INSERT, ("before", 1)))
        wrong = store.submit((INSERT, ("half of it", 1)), bad)
        after = store.submit((INSERT, ("after", 1)))
    assert before.result(SOON_S) is None
    assert after.result(SOON_S) is None
    with pytest.raises(StorageError, match=r"facts\.sqlite"):
        wrong.result(SOON_S)
    assert names(store) == ["after", "before", "held", "taken"]
    store.submit((INSERT, ("later", 1))).result(SOON_S)


def test_a_cancelled_write_neither_happens_nor_ends_the_thread(store: DurableStore) -> None:
    with Held(store):
        kept = store.submit((INSERT, ("kept", 1)))
        cancelled = store.submit((INSERT, ("cancelled", 1)))
        assert cancelled.cancel()
    kept.result(SOON_S)
    with pytest.raises(CancelledError):
        cancelled.result(SOON_S)
    store.submit((INSERT, ("later", 1))).result(SOON_S)
    assert names(store) == ["held", "kept", "later"]


def test_waiting_on_the_event_loop(store: DurableStore) -> None:
    async def run() -> None:
        await asyncio.gather(*(store.write((INSERT, (f"{i}", i))) for i in range(5)))
        with pytest.raises(StorageError):
            await store.write((INSERT, ("0", 0)))
        waiting = asyncio.create_task(store.write((INSERT, ("maybe", 1))))
        await asyncio.sleep(0)
        waiting.cancel()  # a stream that ends while its participant's fact is being written
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(store.write((INSERT, ("later", 1))), SOON_S)

    asyncio.run(run())
    assert "later" in names(store)


def test_what_was_queued_is_written_before_the_file_is_closed_which_then_refuses(tmp_path: Path) -> None:
    store = DurableStore(tmp_path / "facts.sqlite", SCHEMA, APPLICATION)
    futures = [store.submit((INSERT, (f"{i:02}", i))) for i in range(50)]
    store.close()
    assert all(future.done() and future.exception() is None for future in futures)
    assert len(names(store)) == 50
    with pytest.raises(StorageError, match="closed"):
        store.submit((INSERT, ("late", 1))).result(SOON_S)
    store.close()


def test_files_of_another_kind_are_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_bytes(b"these are notes and not a database " * 100)
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as other:
        other.execute("CREATE TABLE theirs (x)")
    ours = tmp_path / "ours.sqlite"
    DurableStore(ours, SCHEMA, APPLICATION).close()
    for path, application in ((text, APPLICATION), (foreign, APPLICATION), (ours, APPLICATION + 1)):
        before = path.read_bytes()
        with pytest.raises(StorageError, match=path.name):
            DurableStore(path, SCHEMA, application)
        assert path.read_bytes() == before


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "below.sqlite"):
        with pytest.raises(StorageError, match="can't be used"):
            DurableStore(path, SCHEMA, APPLICATION)


def test_an_empty_file_may_become_a_store(tmp_path: Path) -> None:
    path = tmp_path / "new.sqlite"
    path.touch()
    store = DurableStore(path, SCHEMA, APPLICATION)
    store.submit((INSERT, ("a", 1))).result(SOON_S)
    assert names(store) == ["a"]
    store.close()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_files_are_their_owners_alone_from_the_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any umask: SQLite by itself makes files that all users can read."""
    seen: list[int] = []
    connect = sqlite3.connect

    def watched(path: Path, **options: Any) -> Any:
        seen.append(mode(Path(path)))
        return connect(path, **options)

    monkeypatch.setattr(sqlite3, "connect", watched)
    before = os.umask(0)
    try:
        store = DurableStore(tmp_path / "folder" / "facts.sqlite", SCHEMA, APPLICATION)
        store.submit((INSERT, ("a", 1))).result(SOON_S)
        files = {path.name: mode(path) for path in store.path.parent.iterdir()}
        store.close()
    finally:
        os.umask(before)
    assert seen == [0o600]
    assert files == {f"facts.sqlite{end}": 0o600 for end in ("", "-wal", "-shm", ".lock")}
    assert mode(tmp_path / "folder") == 0o700


def test_files_of_an_earlier_release_are_tightened_unless_they_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "facts.sqlite"
    DurableStore(path, SCHEMA, APPLICATION).close()
    for file in tmp_path.iterdir():
        file.chmod(0o644)
    with pytest.raises(StorageError, match="another kind"):
        DurableStore(path, SCHEMA, APPLICATION + 1)
    assert mode(path) == 0o644
    store = DurableStore(path, SCHEMA, APPLICATION)
    store.submit((INSERT, ("a", 1))).result(SOON_S)
    assert {mode(file) for file in tmp_path.iterdir()} == {0o600}
    store.close()


def test_a_replaced_file_is_private_or_keeps_its_mode_where_that_is_asked(tmp_path: Path) -> None:
    (tmp_path / "head.new").write_bytes(b"of a crash")
    (tmp_path / "head.new").chmod(0o644)
    replace_durably(tmp_path / "head", b"content")
    assert mode(tmp_path / "head") == 0o600
    file = tmp_path / "rows"
    file.write_bytes(b"old")
    file.chmod(0o640)
    replace_durably(file, b"new", mode=None)
    assert (file.read_bytes(), mode(file)) == (b"new", 0o640)
    replace_durably(file, b"newer", mode=0o604)
    assert mode(file) == 0o604
