"""A new authority without a study, and the files that people carry between authority and coordinator."""

from __future__ import annotations

import datetime
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from authority.folder import (
    AuthorityError,
    AuthorityFolder,
    AuthorityKeys,
    AuthorityTable,
    CoordinatorFiles,
    make_coordinator_files,
    open_folder,
    write_folder,
)
from authority.roster import begin, package_of
from authority.store import AuthorityStore, locked
from runtime.address import join_address, split_address
from runtime.durable import replace_durably, taken, whole_folder
from runtime.failure import InputFailure
from runtime.key_files import read_key_file
from secagg.roster import Roster, verify_roster
from wire.authority_statements import Card, InvalidCard, verify_card
from wire.join_code import fingerprint
from wire.roster_history import HISTORY_FILE, NEWEST_FILE
from wire.study import LOTTERY_FILE

COORDINATOR_FOLDER: Final = "coordinator"
ROSTER_FILE: Final = "roster.json"
SESSION_PORT: Final = 8443
_PUBLIC: Final = ("authority.pub", "card.json", "tls/ca.pem", "tls/server.pem")
_SECRET: Final = ("transcript.key", "tls/server.key")
_ROSTER: Final = (ROSTER_FILE, NEWEST_FILE, HISTORY_FILE)


def session_address(coordinator: str, names: Sequence[str]) -> str:
    """The default HOST:PORT of the sessions: `sordino init` puts enrolment on the next port."""
    if coordinator:
        host, port = split_address(coordinator)
        port -= 1
    else:
        host, port = (names[0] if names else "localhost"), SESSION_PORT
    return join_address(host, port)


def found(directory: Path, settings: AuthorityTable, *, address: str, names: Sequence[str] = ()) -> AuthorityFolder:
    """Make an authority in a new or empty folder: keys, an empty roster, and ``coordinator/`` to be carried away. The
    folder appears whole or not at all.

    Args:
        address: HOST:PORT where participants open sessions.
        names: further host names and addresses of the coordinator.

    Raises AuthorityError: the folder isn't empty, or a name or address can't be used; OSError: it can't be written.
    """
    if why := taken(directory):
        raise AuthorityError(
            f"{directory} is {why}: name a folder that is new or empty; an authority is never overwritten"
        )
    now = time.time()
    when = datetime.datetime.fromtimestamp(int(now), datetime.UTC)
    keys = AuthorityKeys.make(settings.study, when)
    reached = [split_address(settings.coordinator)[0]] if settings.coordinator else []
    try:
        files = make_coordinator_files(settings.study, keys, address, (*reached, *names), when)
    except (ValueError, InvalidCard) as error:
        raise AuthorityError(f"the coordinator's address or name can't be used: {error}") from error
    with whole_folder(directory) as work:
        folder = write_folder(work, settings, keys)
        files.write(work / COORDINATOR_FOLDER)
        with locked(folder, 0) as store:
            begin(store, (), now)
            write_roster(store, work / COORDINATOR_FOLDER, now)
        (work / ".gitignore").write_bytes(b"*\n")  # keys must never be committed
    return open_folder(directory)


def write_roster(store: AuthorityStore, place: Path, now: float) -> list[Path]:
    """Write the newest roster and what belongs to it into a folder; after a crash each file is old or new.

    Returns the files: the lottery's seeds if there are any, the history, that it is the newest, and the roster, which
    comes last, since the coordinator uses a roster as soon as its file is replaced.

    Raises AuthorityError: there is no roster, so the authority's folder isn't whole.
    """
    made = package_of(store, now)
    if made is None:
        raise AuthorityError(f"{store.folder.state} has signed no roster: the folder isn't whole, restore it")
    package = made[0]
    place.mkdir(parents=True, exist_ok=True)
    files = {HISTORY_FILE: package.history_file, NEWEST_FILE: package.newest_file, ROSTER_FILE: package.roster_file}
    if package.lottery_file is not None:
        files = {LOTTERY_FILE: package.lottery_file, **files}
    for name, content in files.items():
        # The seeds reveal who is drawn for the coming rounds: they are for the coordinator only.
        replace_durably(place / name, content, mode=0o600 if name == LOTTERY_FILE else 0o644)
    return [place / name for name in files]


@dataclass(frozen=True)
class CarriedAuthority:
    """The folder ``coordinator`` that `sordino authority init` makes, checked."""

    folder: Path
    card: Card
    roster: Roster

    @classmethod
    def read(cls, folder: Path) -> CarriedAuthority:
        """Check that the files belong together.

        Raises Failure: a file is missing, or the files aren't of one authority and study.
        """
        missing = [name for name in (*_PUBLIC, *_SECRET, *_ROSTER) if not (folder / name).is_file()]
        if missing:
            raise InputFailure(
                f"{folder} isn't what an authority gives to a coordinator: there is no {missing[0]}. Name the whole "
                f"folder `{COORDINATOR_FOLDER}` that `sordino authority init` made."
            )
        try:
            public = bytes.fromhex((folder / "authority.pub").read_text(encoding="ascii").strip())
            card = verify_card((folder / "card.json").read_bytes(), fingerprint(public))
            roster = verify_roster((folder / ROSTER_FILE).read_bytes(), public)
            for name in _SECRET:
                read_key_file(folder / name)
        except ValueError as error:  # InvalidCard, InvalidRoster and KeyFileError too
            raise InputFailure(f"{folder}: {error}. Copy all of the authority's files again.") from None
        if roster.study != card.study:
            raise InputFailure(f"{folder}: card.json and roster.json are of two studies. Copy both again.")
        return cls(folder, card, roster)

    def copy(self, study: Path) -> None:
        """Into a study's folder, each file to its place in study.toml."""
        public, keys = ({name: (self.folder / name).read_bytes() for name in names} for names in (_PUBLIC, _SECRET))
        CoordinatorFiles(public, keys).write(study / COORDINATOR_FOLDER)
        (study / COORDINATOR_FOLDER).chmod(0o755)
        (study / "tls").mkdir(exist_ok=True)
        shutil.copyfile(self.folder / "tls" / "ca.pem", study / "tls" / "ca.pem")
        for name in _ROSTER:
            shutil.copyfile(self.folder / name, study / name)
        if (self.folder / LOTTERY_FILE).exists():
            replace_durably(study / LOTTERY_FILE, (self.folder / LOTTERY_FILE).read_bytes())
