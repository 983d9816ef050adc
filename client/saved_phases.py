"""Attempts that live from message to message in bytes which others keep, such as the state of another framework.

At any time one sealed state of a participant can be opened, once. Each state is encrypted under a key of its own. The
key is kept in a file of the participant, and deleted there before the state is used. A state that was copied, replayed
or rolled back therefore answers nothing. No attempt is begun twice either: its numbers only grow.
"""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from runtime.durable import DurableStore
from secagg.client_phases import AdvertiseKeys, ShareKeys
from secagg.context import RoundConfig
from secagg.keys import KEY_BYTES, IdentityKey
from secagg.messages import Advertisement
from secagg.saved_phases import InvalidState, Phase, open_phase, seal_phase

STATES_FILE: Final = "states.sqlite"  # `sordino backup` leaves it out
APPLICATION_ID: Final = 0x536F7253  # "SorS"
SCHEMA: Final = """
CREATE TABLE states (
    terms BLOB NOT NULL, identity BLOB NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL, key BLOB,
    PRIMARY KEY (terms, identity)
) WITHOUT ROWID
"""


class SpentState(InvalidState):
    """This attempt was begun before, or this state was used, or a newer one was saved: it answers nothing any more."""


class SavedPhases(AbstractContextManager["SavedPhases"]):
    """The file of a participant that holds the key of its one living state; a context manager.

    If the file is restored from an older copy, the state of that time can be opened again: keep it out of backups.
    The disk may hold deleted keys for some time.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """``path``: made if need be. Raises runtime.durable.StorageError: another process has it, or it isn't one."""
        self._store, self._turn = DurableStore(Path(path), SCHEMA, APPLICATION_ID), threading.Lock()

    def begin(self, config: RoundConfig, identity: IdentityKey) -> tuple[ShareKeys, Advertisement]:
        """The first message of an attempt, and the phase to `save`.

        Raises SpentState: this attempt or a later one was begun; CoordinatorMisbehaved as AdvertiseKeys.
        """
        first = AdvertiseKeys(config, identity, os.urandom)
        with self._turn:
            if (config.round, config.attempt) <= self._at(config, identity)[:2]:
                numbers = f"round {config.round}, attempt {config.attempt}"
                raise SpentState(f"{numbers} or a later one was begun before: wait for the next one")
            self._write(config, identity, None)
        return first.advertise()

    def save(self, phase: Phase, config: RoundConfig, identity: IdentityKey) -> bytes:
        """A sealed state, whose key is durable; the phase itself answers nothing any more. Send its message afterwards.

        Raises SpentState: another attempt was begun since.
        """
        key = os.urandom(KEY_BYTES)
        with self._turn:
            if (config.round, config.attempt) != self._at(config, identity)[:2]:
                raise SpentState("another attempt was begun since: this one is over")
            sealed = seal_phase(phase, config, identity, key)
            self._write(config, identity, key)
        return sealed

    def resume(self, sealed: bytes, config: RoundConfig, identity: IdentityKey) -> Any:
        """The phase of a sealed state, whose key is erased. What it answers next is to be saved again.

        Raises SpentState: it isn't the latest state, or it was resumed before.
        """
        with self._turn:
            *at, key = self._at(config, identity)
            if key is None or (config.round, config.attempt) != tuple(at):
                raise SpentState("this state was used, or belongs to an attempt that is over")
            try:
                phase = open_phase(sealed, config, identity, key, os.urandom)
            except InvalidState as error:
                raise SpentState("this state is not the latest one of this attempt") from error
            self._write(config, identity, None)
        return phase

    def close(self) -> None:
        self._store.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _at(self, config: RoundConfig, identity: IdentityKey) -> tuple[int, int, bytes | None]:
        rows = self._store.read(
            "SELECT round, attempt, key FROM states WHERE terms = ? AND identity = ?",
            (config.study_digest, identity.public),
        )
        return rows[0] if rows else (0, 0, None)

    def _write(self, config: RoundConfig, identity: IdentityKey, key: bytes | None) -> None:
        row = (config.study_digest, identity.public, config.round, config.attempt, key)
        self._store.submit(("INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?, ?)", row)).result()
