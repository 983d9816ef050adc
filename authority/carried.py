"""The files of an authority that lives elsewhere, as they were carried to the coordinator's machine."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from runtime.failure import ExitCode, Failure

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
