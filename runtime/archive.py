"""A folder in one file, as it was at one moment, while another process goes on writing there; and back.

The file is a tar archive. Its last member names every other one with its SHA-256, so an archive that was cut off or
damaged is noticed. Databases are read in transactions that begin at the same moment. Every other file is replaced by
one rename where it changes, and what a database says of it was on the disk before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final

from runtime.durable import DAMAGED, StorageError, open_to_read, sync_folder, whole_folder
from runtime.failure import InputFailure

FORMAT: Final = 1
MANIFEST: Final = "sordino-backup.json"
_PASSING: Final = ("-wal", "-shm", "-journal", ".lock", ".new")  # of a process that runs, and of no use to another
_SQLITE: Final = b"SQLite format 3\0"
_VERSION: Final = "PRAGMA data_version"  # another one after each commit of another process
_LONGEST_S, _PAUSE_S = 10.0, 0.005
_LARGEST_MANIFEST: Final = 64 << 20
LeaveOut = Callable[[Path], object]
Beside = Callable[[Path], Mapping[str, bytes]]
Moment = Callable[[Mapping[Path, sqlite3.Connection]], bool] | None  # None: any will do


def write_archive(
    archive: Path, folder: Path, about: Mapping[str, Any], *, leave_out: LeaveOut, beside: Beside, now: Moment = None
) -> dict[str, Any]:
    """Write a folder into a new file, which only its owner can read; returns what its manifest says.

    Args:
        about: what else the manifest says.
        leave_out: whether a folder or a file in it stays out.
        beside: files that belong to a copied database, by name; they take the place of those in the folder.
        now: whether the moment at which these databases are seen will do; if not, a later one is tried.

    Raises InputFailure: the file exists or can't be written, and nothing of it is left; StorageError: a database can't
    be read.
    """
    if archive.exists():
        raise InputFailure(f"{archive} exists, and a copy is never overwritten: name another file")
    unfinished = archive.with_name(archive.name + ".new")
    try:
        unfinished.unlink(missing_ok=True)  # of one that was killed
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            manifest = _write(file, archive.parent, folder, about, leave_out, beside, now)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, archive)
        sync_folder(archive.parent)
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if not archive.parent.is_dir():
            reason = f"make the folder {archive.parent} first"
        raise InputFailure(f"{archive} can't be written: {reason}. Nothing of it is left") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)  # frees the space, in case the disk is full
    return manifest


def _write(
    file: BinaryIO, work: Path, folder: Path, about: Mapping[str, Any], leave_out: LeaveOut, beside: Beside, now: Moment
) -> dict[str, Any]:
    digests: dict[str, str] = {}
    tables: dict[str, dict[str, int]] = {}
    with (
        tarfile.open(fileobj=file, mode="w") as tar,
        tempfile.TemporaryDirectory(prefix="sordino-backup-", dir=work) as scratch,
    ):
        with _at_one_moment(databases(folder, leave_out), now) as opened:
            made = time.time()
            # Later than that moment: what the databases name is there.
            others = {path.relative_to(folder).as_posix(): path for path in files_in(folder, leave_out)}
            for path, connection in opened.items():
                name = path.relative_to(folder).as_posix()
                copy = Path(scratch) / path.name
                with contextlib.closing(sqlite3.connect(copy)) as target:
                    connection.backup(target)
                copy.chmod(0o600)
                tables[name] = counts(connection)
                digests[name] = _add(tar, name, copy)
                others.pop(name, None)
                for extra, content in beside(copy).items():
                    place = PurePosixPath(name).with_name(extra).as_posix()
                    digests[place] = _add(tar, place, content)
                    others.pop(place, None)
                copy.unlink()
        for name, path in sorted(others.items()):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile, so nothing needs it
                digests[name] = _add(tar, name, path)
        manifest = {"format": FORMAT, **about, "made": made, "tables": tables, "files": digests}
        _add(tar, MANIFEST, json.dumps(manifest, indent=1).encode())
    return manifest


def files_in(folder: Path, leave_out: LeaveOut) -> Iterator[Path]:
    """Every file in a folder, but those that only a running process needs.

    Raises InputFailure: a part of it is elsewhere, and would be missing in the copy.
    """
    for place, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".") and not leave_out(Path(place, one))]
        if linked := next((Path(place, one) for one in folders if Path(place, one).is_symlink()), None):
            raise InputFailure(f"{linked} is a link to another folder, which wouldn't be in the copy: mount it there")
        for name in sorted(names):
            path = Path(place, name)
            if not name.endswith(_PASSING) and path.is_file() and not leave_out(path):
                yield path


def databases(folder: Path, leave_out: LeaveOut) -> list[Path]:
    """The SQLite files in a folder."""

    def is_one(path: Path) -> bool:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE

    return [path for path in files_in(folder, leave_out) if is_one(path)]


@contextlib.contextmanager
def _at_one_moment(paths: list[Path], now: Moment) -> Iterator[dict[Path, sqlite3.Connection]]:
    """Databases in read transactions that see all of them as they were at one moment that ``now`` agrees to.

    Raises StorageError: one can't be read, or they are written to without a pause.
    """
    end = time.monotonic() + _LONGEST_S
    with contextlib.ExitStack() as stack:

        def opened(path: Path) -> sqlite3.Connection:
            return stack.enter_context(contextlib.closing(open_to_read(path)))

        def logs() -> list[Path]:
            return [path for path in paths if path.with_name(path.name + "-wal").exists()]

        def begin() -> bool:
            """Begin all transactions; False: something was written meanwhile, or the moment won't do."""
            nonlocal end
            before = [watcher.execute(_VERSION).fetchone() for watcher in watchers]
            for reader in readers.values():
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if before == [watcher.execute(_VERSION).fetchone() for watcher in watchers]:
                if now is None or now(readers):
                    return True
                end = time.monotonic() + _LONGEST_S  # it is the caller who waits
            for reader in readers.values():
                reader.execute("ROLLBACK")
            return False

        try:
            had = logs()
            readers, watchers = {path: opened(path) for path in paths}, [opened(path) for path in paths]
            while not begin():
                if time.monotonic() > end:
                    raise StorageError(f"{paths[0].parent} is written to without a pause: try again")
                time.sleep(_PAUSE_S)
        except DAMAGED as error:
            raise StorageError(f"a database in {paths[0].parent} can't be read: {error}") from error
        yield readers
        if any(path not in had for path in logs()):  # without a log it was read as if nobody could write
            raise StorageError(f"a process was started with {paths[0].parent} meanwhile: try again")


def counts(connection: sqlite3.Connection) -> dict[str, int]:
    """The number of rows of each table."""
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {name: connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}


class _Digesting:
    """A file that is read once, with the digest of what was read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.digest.update(data)
        return data


def _add(tar: tarfile.TarFile, name: str, content: Path | bytes) -> str:
    """Add a member; returns its SHA-256."""
    member = tarfile.TarInfo(name)
    member.mode, member.mtime = 0o600, int(time.time())
    with BytesIO(content) if isinstance(content, bytes) else content.open("rb") as file:
        if isinstance(content, bytes):
            member.size = len(content)
        else:
            about = os.fstat(file.fileno())
            member.size, member.mode, member.mtime = about.st_size, about.st_mode & 0o755, int(about.st_mtime)
        reader = _Digesting(file)
        tar.addfile(member, reader)
    return reader.digest.hexdigest()


# ---------------------------------------------------------------- back


def read_archive(archive: Path, folder: Path, check: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Write what an archive holds into a new folder; returns what its manifest says.

    ``check`` is given the manifest before the folder takes its place, and may raise.

    Raises InputFailure: the archive is damaged or none, or the folder can't be written; there is no folder then.
    """
    try:
        with whole_folder(folder) as work:
            manifest = _unpack(archive, work)
            try:
                check(manifest)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                if isinstance(error, InputFailure):
                    raise
                raise tarfile.TarError("its manifest lacks something") from error
        sync_folder(folder.parent)
    except (tarfile.TarError, EOFError) as error:
        raise InputFailure(
            f"{archive} is damaged, or no copy that `sordino backup` has made: use another one"
        ) from error
    except OSError as error:
        name = error.filename or folder
        raise InputFailure(f"{name}: {error.strerror or error}. Nothing was restored") from error
    return manifest


def _unpack(archive: Path, work: Path) -> dict[str, Any]:
    found: dict[str, str] = {}
    manifest: dict[str, Any] | None = None
    with tarfile.open(archive, mode="r:") as tar:
        for member in tar:
            name, place = member.name, PurePosixPath(member.name)
            plain = member.isreg() and not member.issparse() and "\0" not in name
            content = tar.extractfile(member) if plain else None
            if manifest is not None or content is None or place.is_absolute() or ".." in place.parts or name in found:
                raise tarfile.TarError(name)
            if name == MANIFEST:
                manifest = _manifest(content.read(_LARGEST_MANIFEST))
                continue
            found[name] = _extract(content, work / name, member.mode & 0o755)
    if manifest is None or manifest["files"] != found:
        raise tarfile.TarError("its files aren't those of its manifest")
    return manifest


def _manifest(content: bytes) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(content)
        format_, _ = int(manifest["format"]), [manifest[key] for key in ("files", "tables", "made")]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise tarfile.TarError("its manifest can't be read") from error
    if format_ != FORMAT:
        raise InputFailure(f"the copy has format {format_}, this release reads {FORMAT}: use the release that made it")
    return manifest


def _extract(content: Any, path: Path, mode: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest, block = hashlib.sha256(), content.read(1 << 20)
    if block.startswith(_SQLITE):  # earlier releases gave databases the mode that the umask allowed
        mode &= 0o600
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        while block:
            digest.update(block)
            file.write(block)
            block = content.read(1 << 20)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()
