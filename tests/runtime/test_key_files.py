"""A key is read only from a file that no other user can read, change or replace, and written only to a new one."""

from __future__ import annotations

import os
import stat
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.key_files import LARGEST_BYTES, KeyFileError, read_key_file, write_key_file
from tests.support.ends_and_full_disks import no_room

SECRET = b"-----BEGIN PRIVATE KEY-----\nvery secret\n"
Damage = Callable[[Path], Path | None]  # returns the path to read where it isn't the key itself


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "keys" / "a.key"
    write_key_file(path, SECRET)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_written_is_read(key: Path) -> None:
    assert read_key_file(key) == SECRET
    assert (mode(key), mode(key.parent)) == (0o600, 0o700)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_the_file_is_never_open_to_others(tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even before its content is there: writing first and chmod afterwards fails this."""
    modes: list[int] = []
    fsync = os.fsync

    def look(descriptor: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    before = os.umask(umask)
    try:
        write_key_file(tmp_path / "keys" / "a.key", SECRET)
    finally:
        os.umask(before)
    assert modes == [0o600, 0o700]  # the file, its folder
    assert read_key_file(tmp_path / "keys" / "a.key") == SECRET


def test_a_key_is_never_overwritten(key: Path) -> None:
    with pytest.raises(KeyFileError, match="never overwritten"):
        write_key_file(key, b"another")
    assert read_key_file(key) == SECRET


def test_a_key_is_not_written_through_a_link(key: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.key"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KeyFileError, match="never overwritten"):
        write_key_file(link, SECRET)
    assert not (tmp_path / "elsewhere").exists()


def test_half_a_key_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(KeyFileError, match="No space left"):
        write_key_file(tmp_path / "a.key", SECRET)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- what is refused


def open_to(bits: int) -> Damage:
    return lambda key: key.chmod(0o600 | bits)


def folder_open_to(bits: int) -> Damage:
    return lambda key: key.parent.chmod(0o700 | bits)


def link_to_open_folder(key: Path) -> Path:
    """The link itself lies in a folder that is closed: what counts is where the file lies."""
    key.parent.chmod(0o777)
    closed = key.parent.parent / "closed"
    closed.mkdir(mode=0o700)
    (closed / "a.key").symlink_to(key)
    return closed / "a.key"


def pipe(key: Path) -> Path:
    os.mkfifo(key.with_name("pipe"), 0o600)
    return key.with_name("pipe")


REFUSED: dict[str, tuple[Damage, str]] = {
    "group may read": (open_to(0o040), "chmod 600"),
    "others may read": (open_to(0o004), "chmod 600"),
    "group may write": (open_to(0o020), "chmod 600"),
    "others may execute": (open_to(0o001), "chmod 600"),
    "group may write to the folder": (folder_open_to(0o020), "chmod go-w"),
    "others may write to the folder": (folder_open_to(0o007), "chmod go-w"),
    "a link to a folder that is open": (link_to_open_folder, "chmod go-w"),
    "a pipe": (pipe, "no regular file"),
    "a device": (lambda key: Path("/dev/zero"), "no regular file"),
    "a folder": (lambda key: key.parent, "Is a directory"),
    "missing": (lambda key: key.with_name("b.key"), "No such file"),
    "a link to nowhere": (lambda key: _link(key.with_name("b.key"), key.with_name("c.key")), "No such file"),
    "a link to itself": (lambda key: _link(key.with_name("b.key"), key.with_name("b.key")), "symbolic links"),
    "too large": (lambda key: key.write_bytes(SECRET * LARGEST_BYTES) and None, "larger than a key"),
}


def _link(link: Path, to: Path) -> Path:
    link.symlink_to(to)
    return link


@pytest.mark.parametrize("case", REFUSED)
def test_refused(key: Path, case: str) -> None:
    damage, told = REFUSED[case]
    path = damage(key) or key
    with pytest.raises(KeyFileError) as caught:
        read_key_file(path)
    message = str(caught.value)
    assert told in message
    assert str(path) in message or path.name in message
    assert len(message) < 400
    report = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    assert "very secret" not in "".join(report.format())


class Another:
    """os.fstat and Path.stat as if some files belonged to another user."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: set[str], uid: int) -> None:
        fstat, path_stat = os.fstat, Path.stat

        def owned(about: os.stat_result) -> os.stat_result:
            return os.stat_result([*about[:4], uid, *about[5:]])

        def stat_(path: Path, **options: bool) -> os.stat_result:
            about = path_stat(path, **options)
            return owned(about) if path.name in names else about

        monkeypatch.setattr(Path, "stat", stat_)
        monkeypatch.setattr(os, "fstat", lambda fd: owned(fstat(fd)) if "a.key" in names else fstat(fd))


@pytest.mark.parametrize("name", ["a.key", "keys"])
def test_another_users_file_or_folder(key: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may read all files, but must not take a key from any user either."""
    Another(monkeypatch, {name}, uid=os.geteuid() + 4711)
    with pytest.raises(KeyFileError, match=r"belongs to another user .* chown"):
        read_key_file(key)


def test_roots_file_is_taken(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As secrets are handed to containers: root owns them."""
    Another(monkeypatch, {"a.key", "keys"}, uid=0)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert read_key_file(key) == SECRET


def test_a_shared_folder_with_the_sticky_bit_is_taken(key: Path) -> None:
    key.parent.chmod(0o1777)
    assert read_key_file(key) == SECRET


def test_a_link_is_followed(key: Path, tmp_path: Path) -> None:
    (tmp_path / "link.key").symlink_to(key)
    assert read_key_file(tmp_path / "link.key") == SECRET


def test_the_file_that_was_looked_at_is_the_one_that_is_read(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking at the path and then opening it would take what was put there in between."""
    fstat = os.fstat

    def swap(descriptor: int) -> os.stat_result:
        about = fstat(descriptor)
        if key.exists():
            key.rename(key.with_name("before"))
            key.write_bytes(b"of another user")
            key.chmod(0o644)
        return about

    monkeypatch.setattr(os, "fstat", swap)
    assert read_key_file(key) == SECRET
