"""Files with private keys: made readable by their owner only, and used only while they still are.

All roles read their keys here, so one rule holds for all: a regular file, owned by the user of this process or by root,
closed to other users, in a folder in which no other user can replace it. Symbolic links are followed; the rule holds
for the file at their end.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from runtime.durable import sync_folder
from runtime.failure import InputFailure

LARGEST_BYTES: Final = 64 * 1024  # a private key in PEM has a few hundred; a chain beside it a few thousand


class KeyFileError(InputFailure, ValueError):
    """A key file can't be used; the message names the file and what to change, never its content."""


def read_key_file(path: Path) -> bytes:
    """Read a file that only its owner may read.

    The check is of the opened file, so no other user can replace it between the check and the read.

    Raises KeyFileError: missing, no regular file, too large, of another user, open to others, or replaceable by others.
    """
    try:
        # O_NONBLOCK: opening a pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    try:
        _check_file(path, os.fstat(descriptor))
        _check_folder(path)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(content) > LARGEST_BYTES:
        del content  # so that a traceback that shows all locals doesn't hold it
        raise KeyFileError(f"{path} is larger than a key can be ({LARGEST_BYTES} bytes)")
    return content


def write_key_file(path: Path, content: bytes) -> None:
    """Make a new file, readable only by its owner from the first moment, and put it on the disk; folders likewise.

    Raises KeyFileError: the file exists (a key is never overwritten), or it can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # O_EXCL follows no symbolic link either.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise KeyFileError(f"{path} is there already, and a key is never overwritten: move it away first") from error
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)
    except OSError as error:
        path.unlink(missing_ok=True)  # half a key is of no use
        raise KeyFileError(f"{path}: {error.strerror}") from error


def _check_file(path: Path, about: os.stat_result) -> None:
    if stat.S_ISDIR(about.st_mode):
        raise KeyFileError(f"{path}: {os.strerror(errno.EISDIR)}")
    if not stat.S_ISREG(about.st_mode):
        raise KeyFileError(f"{path} is no regular file: name the file that holds the key")
    if about.st_uid not in _trusted():
        raise KeyFileError(
            f"{path} belongs to another user (number {about.st_uid}), who could read or change it: run chown on it, "
            "or run this command as that user"
        )
    if about.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyFileError(f"{path} can be read by others: run chmod 600 on it")


def _check_folder(path: Path) -> None:
    """A user who can write to a folder can replace its files, unless its sticky bit reserves that to their owners."""
    folder = path.resolve().parent
    about = folder.stat()
    if about.st_uid not in _trusted():
        raise KeyFileError(
            f"the folder {folder} belongs to another user (number {about.st_uid}), who could replace the key "
            f"{path.name} in it: run chown on it, or run this command as that user"
        )
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not about.st_mode & stat.S_ISVTX:
        raise KeyFileError(
            f"others can write to the folder {folder} and so replace the key {path.name} in it: run chmod go-w on it"
        )


def _trusted() -> set[int]:
    return {os.geteuid(), 0}
