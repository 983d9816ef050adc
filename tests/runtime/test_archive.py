"""A folder in one file: of one moment while databases are written, whole or not there, and back without surprises."""

from __future__ import annotations

import contextlib
import hashlib
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import runtime.archive
from runtime.archive import MANIFEST, read_archive, write_archive
from runtime.durable import DurableStore, StorageError
from runtime.failure import InputFailure
from tests.support.archives import manifest_of, tar_of
from tests.support.databases import query
from tests.support.ends_and_full_disks import no_room

SCHEMA = "CREATE TABLE rows (number INTEGER PRIMARY KEY)"


def write(archive: Path, folder: Path) -> dict[str, Any]:
    return write_archive(archive, folder, {}, leave_out=lambda path: path.name == "other", beside=lambda copy: {})


def accept(manifest: dict[str, Any]) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "keys").mkdir(parents=True)
    (folder / "other").mkdir()
    for name in ("settings", "keys/one.key", "other/one.key", "state.sqlite.lock", "settings.new"):
        (folder / name).write_text(name)
    (folder / "keys/one.key").chmod(0o600)
    (folder / "settings").chmod(0o664)
    return folder


@contextlib.contextmanager
def two_writers(folder: Path) -> Iterator[None]:
    """Number n is written to the first database, and then to the second one, again and again."""
    stores = [DurableStore(folder / name, SCHEMA, 7) for name in ("z.sqlite", "a.sqlite")]
    stop = threading.Event()

    def write_on() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for store in stores:
                store.submit(("INSERT INTO rows VALUES (?)", (number,))).result()
            stop.wait(0.002)  # as between the messages of a round

    thread = threading.Thread(target=write_on)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        for store in stores:
            store.close()


def test_databases_are_of_one_moment(tmp_path: Path, folder: Path) -> None:
    ends = []
    with two_writers(folder):
        for number in range(8):
            manifest = write(tmp_path / f"{number}.tar", folder)
            read_archive(tmp_path / f"{number}.tar", tmp_path / f"{number}", accept)
            first, second = (
                query(tmp_path / f"{number}" / name, "SELECT count(*) FROM rows")[0][0]
                for name in ("z.sqlite", "a.sqlite")
            )
            assert first - second in (0, 1)
            assert manifest["tables"]["z.sqlite"] == {"rows": first}
            ends.append(first)
    assert ends == sorted(ends)
    assert ends[0] < ends[-1]  # it went on


def test_what_is_in_it(tmp_path: Path, folder: Path) -> None:
    archive = tmp_path / "copy.tar"
    DurableStore(folder / "state.sqlite", SCHEMA, 7).close()
    manifest = write(archive, folder)
    assert archive.stat().st_mode & 0o777 == 0o600
    assert manifest["files"].keys() == {"settings", "keys/one.key", "state.sqlite"}  # of no other party or process
    read_archive(archive, tmp_path / "again", accept)
    assert (tmp_path / "again" / "keys/one.key").read_text() == "keys/one.key"
    modes = {name: (tmp_path / "again" / name).stat().st_mode & 0o777 for name in ("", *manifest["files"])}
    assert modes == {"": 0o700, "settings": 0o644, "keys/one.key": 0o600, "state.sqlite": 0o600}
    with tarfile.open(archive) as tar:
        assert tar.getmember("state.sqlite").mode == 0o600
    with pytest.raises(InputFailure, match="exists, and a copy is never overwritten"):
        write(archive, folder)


def test_a_database_of_an_older_copy_is_for_its_owner_alone(tmp_path: Path) -> None:
    content = b"SQLite format 3\0" + bytes(2 << 20)
    files = {"state.sqlite": hashlib.sha256(content).hexdigest()}
    archive = tar_of(tmp_path / "a.tar", ("state.sqlite", content), manifest_of(files=files))
    read_archive(archive, tmp_path / "b", accept)
    assert (tmp_path / "b/state.sqlite").stat().st_mode & 0o777 == 0o600


def test_a_full_disk_leaves_nothing(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "copies" / "copy.tar"
    archive.parent.mkdir()
    with two_writers(folder):
        for where in ("fsync", "replace"):
            with monkeypatch.context() as patch:
                patch.setattr(runtime.archive.os, where, no_room)
                with pytest.raises(InputFailure, match=r"No space left on device. Nothing"):
                    write(archive, folder)
            assert list(archive.parent.iterdir()) == []
    write(archive, folder)
    monkeypatch.setattr(runtime.archive.os, "fsync", no_room)
    with pytest.raises(InputFailure, match=r"No space left on device. Nothing"):
        read_archive(archive, tmp_path / "again", accept)
    assert not (tmp_path / "again").exists()


def test_a_part_that_lies_elsewhere_is_not_forgotten(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "large").mkdir()
    (folder / "checkpoints").symlink_to(tmp_path / "large")
    with pytest.raises(InputFailure, match="checkpoints is a link to another folder"):
        write(tmp_path / "copy.tar", folder)
    assert not (tmp_path / "copy.tar").exists()


def test_a_database_that_is_none(tmp_path: Path, folder: Path) -> None:
    (folder / "state.sqlite").write_bytes(b"SQLite format 3\0" + bytes(100))
    with pytest.raises(StorageError, match="can't be read"):
        write(tmp_path / "copy.tar", folder)
    assert not (tmp_path / "copy.tar").exists()


def is_refused(archive: Path) -> None:
    """With a sentence, and nothing is left of it."""
    with pytest.raises(InputFailure, match=rf"{archive.name} is damaged, or no copy that `sordino backup` has made"):
        read_archive(archive, archive.with_name("again"), accept)
    assert [path.name for path in archive.parent.iterdir()] == [archive.name]


@pytest.mark.parametrize(
    "members",
    {
        "no manifest": [("a", b"1")],
        "another content": [("a", b"1"), manifest_of(files={"a": "00"})],
        "a file too few": [manifest_of(files={"a": "00"})],
        "a file too many": [("a", b"1"), manifest_of()],
        "after the manifest": [manifest_of(), ("a", b"1")],
        "outside": [("../a", b"1"), manifest_of()],
        "anywhere": [("/tmp/a", b"1"), manifest_of()],
        "no JSON": [(MANIFEST, b"{")],
    }.items(),
    ids=lambda one: one[0],
)
def test_what_isnt_a_copy_is_refused(tmp_path: Path, members: tuple[str, list[tuple[str, bytes]]]) -> None:
    is_refused(tar_of(tmp_path / "copy.tar", *members[1]))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_what_is_no_plain_file_is_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "copy.tar", "w") as tar:
        member = tarfile.TarInfo("a")
        member.type, member.linkname = kind, "/etc/passwd"
        tar.addfile(member)
    is_refused(tmp_path / "copy.tar")


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "copy.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("a\0é"))
    is_refused(tmp_path / "copy.tar")


def test_a_copy_that_was_cut_off_or_is_of_a_later_release(tmp_path: Path, folder: Path) -> None:
    archive = tmp_path / "copy.tar"
    write(archive, folder)
    whole = archive.read_bytes()
    for length in (0, 100, 700, 1500):
        archive.write_bytes(whole[:length])
        with pytest.raises(InputFailure, match="is damaged"):
            read_archive(archive, tmp_path / "again", accept)
    with pytest.raises(InputFailure, match="has format 2, this release reads 1"):
        read_archive(tar_of(archive, manifest_of(format=2)), tmp_path / "again", accept)
