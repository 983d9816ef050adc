"""What a host's owner said about taking part: paused, or left. And whether anything is left to take part in.

The word is a small file beside the journal, because the journal has one writer, the running process. That process looks
at the file, so a command of the owner reaches it without a restart.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Final

from client.journal import accepted_terms, ended_studies
from runtime.durable import replace_durably
from runtime.failure import InputFailure
from runtime.text import minute

if TYPE_CHECKING:
    from client.conditions import Gate
    from client.settings import HostSettings

WORD_FILE: Final = "participation.json"
LOOK_S: Final = 1.0
PAUSED, RESUMED, LEFT = "paused", "taking part", "left"
_SENTENCES: Final = {
    PAUSED: "its owner paused it on {}: `sordino join --resume` ends that",
    RESUMED: "",
    LEFT: "this host left the study on {}",
}


@dataclass(frozen=True)
class Word:
    """``state``: `PAUSED`, `RESUMED` or `LEFT`, since ``at``."""

    state: str
    at: float

    @property
    def why_not(self) -> str:
        """Why the host takes no part; empty: it does."""
        return _SENTENCES[self.state].format(minute(self.at))


def read_word(folder: Path) -> Word:
    """The owner's word, by default `RESUMED` since 1970. Raises InputFailure: the file can't be used."""
    file = folder / WORD_FILE
    try:
        fields = json.loads(file.read_bytes())
        word = Word(str(fields["state"]), float(fields["at"]))
        if word.state not in _SENTENCES:
            raise ValueError
    except FileNotFoundError:
        return Word(RESUMED, 0.0)
    except (OSError, ValueError, LookupError, TypeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise InputFailure(
            f"{file} can't be used ({reason}), so this host doesn't take part: run `sordino join` with --pause, "
            "--resume or --leave again"
        ) from None
    return word


def write_word(folder: Path, state: str) -> None:
    """Replace the owner's word.

    Raises InputFailure: the file can't be written, or the owner has left, which isn't taken back.
    """
    try:
        before = read_word(folder)
    except InputFailure:
        before = Word(RESUMED, 0.0)  # it is replaced
    if before.state == LEFT:
        raise InputFailure(
            f"{before.why_not}. To take part again, join anew with a join code, and with --ledger the ledger here"
        )
    try:
        word = json.dumps({"state": state, "at": time()}) + "\n"
        # World-readable: a service has a user of its own, and its owner may be root.
        replace_durably(folder / WORD_FILE, word.encode(), mode=0o644)
    except OSError as error:
        raise InputFailure(f"{folder / WORD_FILE} can't be written: {error.strerror or error}") from error


def hear_owner(folder: Path, gate: Gate) -> None:
    """Tell the gate the word as it is now."""
    try:
        word = read_word(folder)
    except InputFailure as error:  # in doubt the host doesn't take part
        gate.owner_says({"owner": str(error)}, left=False)
    else:
        gate.owner_says({"owner": word.why_not} if word.why_not else {}, left=word.state == LEFT)


async def watch_owner(folder: Path, gate: Gate) -> None:
    """Look again and again, without end."""
    while True:
        await asyncio.sleep(LOOK_S)
        hear_owner(folder, gate)


def nothing_left(settings: HostSettings) -> str:
    """Why a host's process has nothing to do: a sentence; empty: it takes part.

    A study that ended may go on: under new terms, which are accepted, or after all, which only `RESUMED` can tell.

    Raises runtime.durable.StorageError: the journal can't be read.
    """
    journal, study = settings.host.journal, settings.study
    try:
        word = read_word(journal.parent)
    except InputFailure:
        word = Word(RESUMED, 0.0)  # the process itself says so, and waits
    if word.state == LEFT:
        return f"{word.why_not}: nothing is left to do here"
    terms = study.sha256 or accepted_terms(journal, study.name)
    for ended in ended_studies(journal):
        if ended.terms == terms and ended.at > word.at:
            return (
                f"the study {ended.study} ended ({ended.reason}) on {minute(ended.at)}: nothing is left to do here. "
                f"Should it go on after all, `sordino join --home {journal.parent} --resume` forgets that"
            )
    return ""
