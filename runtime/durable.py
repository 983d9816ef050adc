"""SQLite behind one writer thread, with which every role makes a fact durable before it acts on it.

WAL with synchronous=FULL: when `write` returns, the rows survive a crash of the process and of the machine.
Statements that arrive during a commit share the next one, so a hundred participants that join at the same time cost a
few disk flushes instead of a hundred.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import queue
import shutil
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from runtime.failure import InputFailure

Statement = tuple[str, Sequence[Any]]


class StorageError(InputFailure):
    """The database can't be opened or written; names the file and the reason."""


DAMAGED: Final = (sqlite3.Error, UnicodeDecodeError)
"""What reading a database may raise; the second where SQLite's own message quotes bytes of a damaged file."""


LEAST_FREE_MB: Final = 100


def free_mb(folder: Path) -> float:
    """Room on the disk of a folder that may be yet to be made, in 10^6 bytes.

    Raises StorageError: less than `LEAST_FREE_MB`.
    """
    found = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    free = shutil.disk_usage(found).free / 1e6
    if free < LEAST_FREE_MB:
        raise StorageError(f"{free:,.0f} MB are free on the disk of {folder}: make room, {LEAST_FREE_MB} MB at least.")
    return free


_TRIES, _BETWEEN_TRIES_S = 3, 0.02
"""Of taking a lock: `is_in_use` in another process may have it at that instant."""


def hold(path: Path, flags: int = os.O_RDWR | os.O_CREAT, kind: int = fcntl.LOCK_EX) -> int | None:
    """A lock, as a file descriptor; held until it is closed or the process ends in any way. None if another has it."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_in_use(path: Path) -> bool:
    """Whether a process has a database open to write: only the database's lock says so, which is tried for an instant.

    Raises OSError: the lock can't be read.
    """
    with contextlib.suppress(FileNotFoundError):
        lock = hold(path.with_name(path.name + ".lock"), os.O_RDONLY, fcntl.LOCK_SH)
        if lock is None:
            return True
        os.close(lock)
    return False


def check_kind(connection: sqlite3.Connection, path: Path, application: int, version: int) -> bool:
    """Whether a database already has content; writes nothing.

    Raises StorageError: it is a database of another kind, or of another version of this kind.
    """
    found = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if found != application and (found or tables):
        raise StorageError(f"{path} is a database of another kind: name another file")
    format_ = connection.execute("PRAGMA user_version").fetchone()[0]
    if tables and format_ > version:
        raise StorageError(
            f"{path} has format {format_}, this release reads {version}: a newer one wrote it, use that one"
        )
    if tables and format_ < version:
        raise StorageError(
            f"{path} has format {format_}, this release reads {version}: an older one wrote it and keeps its charges "
            "there; finish the study with that one, or begin a new study in another folder"
        )
    return bool(tables)


def open_to_read(path: Path) -> sqlite3.Connection:
    """A read-only connection, which works beside a running writer and on a read-only medium."""
    with_log = path.with_name(path.name + "-wal").exists()
    # Without a log there is no writer, and SQLite needs no further files beside this one.
    mode = "mode=ro" if with_log else "mode=ro&immutable=1"
    return sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=10, isolation_level=None)


def replace_durably(path: Path, data: bytes, *, at_once: bool = True, mode: int | None = 0o600) -> None:
    """Replace the content of a small file; after a crash at any moment the file is whole, either old or new.

    ``mode`` None keeps that of the old file, which must exist. ``at_once`` makes sure that the new content survives
    every later crash; else the old one may come back. Raises OSError: the folder can't be written.
    """
    temporary = path.with_name(path.name + ".new")
    mode = stat.S_IMODE(path.stat().st_mode) if mode is None else mode
    temporary.unlink(missing_ok=True)  # a crash may have left one
    # O_EXCL: a link of that name isn't followed; fchmod: the umask would take bits away.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, mode)
        rest = memoryview(data)
        while rest:  # a disk that fills up takes a part first, and fails only at the next write
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except BaseException:
        temporary.unlink(missing_ok=True)  # frees the space, in case the disk is full
        raise
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    if at_once:
        sync_folder(path.parent)


@contextlib.contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, of mode 0700, which takes its place at the end of the block; after an error there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        yield work
        os.replace(work, path)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def taken(path: Path) -> str:
    """Why no new folder can be made there, such as ``not empty``; empty where it can."""
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        return "not a folder"
    return "not empty" if path.is_dir() and any(path.iterdir()) else ""


def sync_folder(folder: Path) -> None:
    """Put a folder's entries, such as a renamed or a new file, on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_private(path: Path) -> None:
    """SQLite would use the umask for the file's mode; its log and index take the mode of the file."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _tighten(path: Path) -> None:
    """Close files to other users: those of an earlier release, or restored from a copy, may be open to them."""
    for name in ("", "-wal", "-shm", ".lock"):
        file = path.with_name(path.name + name)
        with contextlib.suppress(FileNotFoundError):
            about = file.stat()
            if about.st_mode & 0o077 and about.st_uid == os.geteuid():
                file.chmod(about.st_mode & 0o700)


def _open(path: Path, schema: str, application: int, version: int, added: str) -> sqlite3.Connection:
    connection: sqlite3.Connection | None = None
    try:
        _make_private(path)
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        filled = check_kind(connection, path, application, version)
        _tighten(path)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        if not filled:
            # The version comes with the tables: a crash leaves both or neither.
            connection.execute(f"PRAGMA application_id={application}")
            connection.executescript(f"BEGIN; {schema}; PRAGMA user_version={version}; COMMIT;")
        connection.executescript(added)
    except (*DAMAGED, OSError, StorageError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{path} can't be used as a database: {error}") from error
    return connection


class DurableStore:
    """One SQLite file with one writer. Any thread or process may read it.

    A second writer, in this or another process, is refused: the roles keep facts in memory that hold only while there
    is no other writer. The lock is on a separate file, since closing any handle on the database drops SQLite's lock.
    """

    def __init__(
        self,
        path: Path,
        schema: str,
        application: int,
        version: int = 0,
        check: Callable[[], object] | None = None,
        added: str = "",
    ) -> None:
        """
        Args:
            path: the file; its folder is made if need be. Only the owner can use them (modes 0600, 0700); the mode
                of an existing folder stays, that of an existing file is tightened.
            schema: SQL statements that make the tables of a new file.
            application: SQLite application_id that distinguishes this kind of file from others.
            version: of the tables; a file with another one is refused and not changed.
            check: called under the lock, before the file is made or changed; may raise.
            added: SQL that adds, where they are missing, tables that earlier releases with this version neither have
                nor miss.

        Raises StorageError: not a database, one of another kind or version, not writable, or in use by another process.
        """
        self.path = path
        self._queue: queue.SimpleQueue[tuple[list[Statement], Future[None]] | None] = queue.SimpleQueue()
        self._closing, self._closed = threading.Lock(), False
        self.failure: StorageError | None = None
        """Why the last transaction was not written; None if it was."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            for _ in range(_TRIES):
                lock = hold(path.with_name(path.name + ".lock"))
                if lock is not None:
                    break
                time.sleep(_BETWEEN_TRIES_S)
        except OSError as error:
            raise StorageError(f"{path} can't be used as a database: {error}") from error
        if lock is None:
            raise StorageError(f"{path} is in use by another process: stop that one, or use another folder")
        self._lock = lock
        try:
            if check is not None:
                check()
            self._connection = _open(path, schema, application, version, added)
        except BaseException:
            os.close(self._lock)
            raise
        self._thread: threading.Thread | None = None  # from the first statement on
        self._reader: sqlite3.Connection | None = None  # from the first query on
        self._reading = threading.Lock()

    def submit(self, *statements: Statement) -> Future[None]:
        """Queue statements as one transaction, in the order of calls; the future resolves when they are durable.

        A future that is cancelled before its turn writes nothing; afterwards it can't be cancelled.
        """
        future: Future[None] = Future()
        with self._closing:
            if self._closed:  # the thread that resolves futures is gone
                future.set_exception(StorageError(f"{self.path} is closed"))
            else:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=f"writer {self.path.name}", daemon=True)
                    self._thread.start()
                self._queue.put((list(statements), future))
        return future

    async def write(self, *statements: Statement) -> None:
        """Make statements durable, as one transaction.

        Raises StorageError: the write failed; nothing of it is stored.
        """
        await asyncio.wrap_future(self.submit(*statements))

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a query on a separate connection; sees everything that is durable.

        Raises StorageError: the file is damaged.
        """
        with self._reading:
            try:
                if self._reader is None:
                    self._reader = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
                return self._reader.execute(sql, parameters).fetchall()
            except DAMAGED as error:
                raise StorageError(f"{self.path}: {error}") from error
            finally:
                if self._closed:
                    self._end_reading()

    def close(self) -> None:
        """Write everything in the queue and close the file."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
        with self._reading:
            self._end_reading()
        self._connection.close()
        os.close(self._lock)

    def _end_reading(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None

    def _run(self) -> None:
        running = True
        while running:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            running = batch[-1] is not None  # nothing is queued after what `close` puts there
            self._commit([item for item in batch if item is not None])

    def _commit(self, batch: list[tuple[list[Statement], Future[None]]]) -> None:
        # From here on a caller can't cancel, so resolving the futures can't fail and end this thread.
        batch = [item for item in batch if item[1].set_running_or_notify_cancel()]
        if not batch:
            return
        results: list[Callable[[], None]] = []
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for statements, future in batch:
                results.append(self._apply(statements, future))
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self.failure = failure = StorageError(f"{self.path}: {error}")
            for _, future in batch:
                future.set_exception(failure)
            return
        self.failure = None
        for resolve in results:
            resolve()

    def _apply(self, statements: list[Statement], future: Future[None]) -> Callable[[], None]:
        """One transaction of the batch; its failure must not make the others fail."""
        self._connection.execute("SAVEPOINT one")
        try:
            for sql, parameters in statements:
                self._connection.execute(sql, parameters)
        except Exception as error:  # values without a SQLite type, or too large for it, raise other types of errors
            self._connection.execute("ROLLBACK TO one")
            self._connection.execute("RELEASE one")
            failure = StorageError(f"{self.path}: {error}")
            return lambda: future.set_exception(failure)
        self._connection.execute("RELEASE one")
        return lambda: future.set_result(None)
