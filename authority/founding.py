"""The beginning of an authority by itself, and the roster as files to carry by hand."""

from __future__ import annotations

import datetime
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from authority.folder import (
    AuthorityError,
    AuthorityFolder,
    AuthorityKeys,
    AuthorityTable,
    make_coordinator_files,
    open_folder,
    write_folder,
)
from authority.roster import begin
from authority.store import AuthorityStore, Version, locked
from runtime.durable import replace_durably
from runtime.failure import ExitCode, Failure
from runtime.settings_file import split_address
from wire.authority_statements import InvalidCard
from wire.study import LOTTERY_FILE

COORDINATOR_FOLDER: Final = "coordinator"
ROSTER_FILE: Final = "roster.json"
SESSION_PORT: Final = 8443


def session_address(coordinator: str, names: Sequence[str]) -> str:
    """HOST:PORT of the sessions where nothing else is said: `sordino init` puts enrolment on the port after them."""
    if coordinator:
        host, port = split_address(coordinator)
        port -= 1
    else:
        host, port = (names[0] if names else "localhost"), SESSION_PORT
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def found(
    directory: Path,
    settings: AuthorityTable,
    *,
    address: str,
    names: Sequence[str] = (),
    clock: Callable[[], float] = time.time,
) -> AuthorityFolder:
    """A new authority in a folder that is new or empty: keys, an empty roster, and ``coordinator/`` to be carried away.

    The folder appears whole or not at all.

    Args:
        address: HOST:PORT where participants open sessions.
        names: further host names and addresses by which the coordinator is reached.

    Raises:
        AuthorityError: the folder isn't empty, or a name or address can't be used.
        OSError: it can't be written.
    """
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        raise AuthorityError(f"{directory} is not a folder: name one that is new or empty")
    if directory.is_dir() and any(directory.iterdir()):
        raise AuthorityError(
            f"{directory} is not empty: name a folder that is new or empty; an authority is never overwritten"
        )
    now = clock()
    when = datetime.datetime.fromtimestamp(int(now), datetime.UTC)
    keys = AuthorityKeys.make(settings.study, when)
    reached = [split_address(settings.coordinator)[0]] if settings.coordinator else []
    try:
        files = make_coordinator_files(settings.study, keys, address, (*reached, *names), when)
    except (ValueError, InvalidCard) as error:
        raise AuthorityError(f"the coordinator's address or name can't be used: {error}") from error
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))  # mode 0700
    try:
        folder = write_folder(work, settings, keys)
        files.write(work / COORDINATOR_FOLDER)
        with locked(folder.state, 0) as store:
            write_roster(begin(folder, store, (), now), work / COORDINATOR_FOLDER)
        (work / ".gitignore").write_bytes(b"*\n")  # keys must never be committed
        os.replace(work, directory)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return open_folder(directory)


def write_roster(version: Version, folder: Path) -> list[Path]:
    """A signed roster, with its lottery's seeds where there are any, as files; the old or the new after any crash.

    Returns:
        The files. The lottery comes first: the coordinator takes up a roster when its file is replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    if version.lottery is not None:
        replace_durably(folder / LOTTERY_FILE, version.lottery)
        written.append(folder / LOTTERY_FILE)
    replace_durably(folder / ROSTER_FILE, version.roster)
    written.append(folder / ROSTER_FILE)
    # The seeds say who is drawn for the rounds to come: they stay 0600, for the coordinator alone.
    written[-1].chmod(0o644)
    return written


def newest(store: AuthorityStore) -> Version:
    """The last version that was signed.

    Raises:
        AuthorityError: there is none; the folder isn't whole.
    """
    version = store.newest()
    if version is None:
        raise AuthorityError(f"{store.path} has signed no roster: the folder isn't whole, restore it")
    return version


if TYPE_CHECKING:
    from secagg.roster import Roster
    from wire.authority_statements import Card

_PUBLIC: Final = ("authority.pub", "card.json", "tls/ca.pem", "tls/server.pem")
_SECRET: Final = ("transcript.key", "tls/server.key")
_ROSTER: Final = "roster.json"
_LOTTERY: Final = "lottery.json"


@dataclass(frozen=True)
class CarriedAuthority:
    """The folder ``coordinator`` that `sordino authority init` makes, checked."""

    folder: Path
    card: Card
    roster: Roster

    @classmethod
    def read(cls, folder: Path) -> CarriedAuthority:
        """Hold the files against each other.

        Raises:
            Failure: a file is missing, or not of one authority and study.
        """
        from runtime.key_files import KeyFileError, read_key_file
        from secagg.roster import InvalidRoster, verify_roster
        from wire.authority_statements import InvalidCard, verify_card
        from wire.join_code import fingerprint

        missing = [name for name in (*_PUBLIC, *_SECRET, _ROSTER) if not (folder / name).is_file()]
        if missing:
            raise Failure(
                ExitCode.INPUT,
                f"{folder} isn't what an authority gives to a coordinator: there is no {missing[0]}. Name the folder "
                "`coordinator` that `sordino authority init` made, whole.",
            )
        try:
            public = bytes.fromhex((folder / "authority.pub").read_text(encoding="ascii").strip())
            card = verify_card((folder / "card.json").read_bytes(), fingerprint(public))
            roster = verify_roster((folder / _ROSTER).read_bytes(), public)
            for name in _SECRET:
                read_key_file(folder / name)
        except (InvalidCard, InvalidRoster, KeyFileError, ValueError) as error:
            raise Failure(ExitCode.INPUT, f"{folder}: {error}. Carry the authority's files again, whole.") from None
        if roster.study != card.study:
            raise Failure(ExitCode.INPUT, f"{folder}: card.json and roster.json are of two studies. Carry both again.")
        return cls(folder, card, roster)

    def copy(self, study: Path) -> None:
        """Into a study's folder, each file where study.toml looks for it."""
        from runtime.durable import replace_durably

        for name in (*_PUBLIC, *_SECRET):
            target = study / "coordinator" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o600 if name in _SECRET else 0o644
            descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write((self.folder / name).read_bytes())
        (study / "tls").mkdir(exist_ok=True)
        shutil.copyfile(self.folder / "tls" / "ca.pem", study / "tls" / "ca.pem")
        shutil.copyfile(self.folder / _ROSTER, study / _ROSTER)
        if (self.folder / _LOTTERY).exists():
            replace_durably(study / _LOTTERY, (self.folder / _LOTTERY).read_bytes())
