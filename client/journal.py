"""What a participant must not forget, written before the message that depends on it is sent.

One file serves all participants of a client process. It answers: which attempts were joined (a restarted process sits
those out), what was charged, which survivor sets were signed, which unmasking request was answered.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from wire.durable import DurableStore

APPLICATION_ID: Final = 0x536F7243  # "SorC"
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS studies (
    study TEXT PRIMARY KEY, document BLOB NOT NULL, roster_version INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS attempts (
    study TEXT NOT NULL, identity BLOB NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL, joined REAL NOT NULL,
    charged_renyi REAL, charged_order REAL, signed BLOB, answered BLOB,
    PRIMARY KEY (study, identity, round, attempt)
) WITHOUT ROWID;
"""


class AlreadyJoined(Exception):
    """This attempt, or a later one, was joined before: its keys are gone, so it is sat out."""


class ClientJournal:
    """The client process's durable memory."""

    def __init__(self, path: Path) -> None:
        """Raises `wire.durable.StorageError`: the file can't be used."""
        self._store = DurableStore(path, SCHEMA, APPLICATION_ID)
        self._last: dict[tuple[str, bytes], tuple[int, int]] = {}
        self._charged: dict[tuple[str, bytes], tuple[float, int]] = {}
        self._open: dict[tuple[str, bytes, int, int], float] = {}  # charges of this process at h_min
        rows = self._store.read("SELECT study, identity, round, attempt, charged_renyi FROM attempts")
        for study, identity, round_, attempt, renyi in rows:
            key = (study, bytes(identity))
            self._last[key] = max(self._last.get(key, (0, 0)), (round_, attempt))
            if renyi is not None:
                self._add_charge(key, renyi)

    async def accept_study(self, study: str, document_sha256: bytes, roster_version: int) -> None:
        """Pin a study's document, and remember its newest roster version.

        Charges are summed at the order that the document fixes, so it must stay the same for the whole study.

        Raises:
            ValueError: another document than the one accepted first, or an older roster than one seen before.
        """
        rows = self._store.read("SELECT document, roster_version FROM studies WHERE study = ?", (study,))
        if rows and bytes(rows[0][0]) != document_sha256:
            raise ValueError(
                f"the plan or task of the study {study!r} differs from the one this host accepted first: "
                "a changed study needs a name of its own"
            )
        if rows and roster_version < rows[0][1]:
            raise ValueError(
                f"the coordinator shows roster version {roster_version}, but version {rows[0][1]} was seen before"
            )
        await self._store.write(
            (
                "INSERT INTO studies VALUES (?, ?, ?) "
                "ON CONFLICT (study) DO UPDATE SET roster_version = excluded.roster_version",
                (study, document_sha256, roster_version),
            )
        )

    async def join(self, study: str, identity: bytes, round_: int, attempt: int) -> None:
        """Before keys are advertised.

        Raises:
            AlreadyJoined: round numbers only grow, and attempts within a round.
        """
        key = (study, identity)
        if (round_, attempt) <= self._last.get(key, (0, 0)):
            raise AlreadyJoined
        self._last[key] = (round_, attempt)
        await self._store.write(
            (
                "INSERT INTO attempts (study, identity, round, attempt, joined) VALUES (?, ?, ?, ?, ?)",
                (study, identity, round_, attempt, time.time()),
            )
        )

    def charged(self, study: str, identity: bytes) -> tuple[float, int]:
        """Renyi cost charged so far in this study, at the order the study fixes, and the number of charges."""
        return self._charged.get((study, identity), (0.0, 0))

    def _add_charge(self, key: tuple[str, bytes], renyi: float) -> None:
        total, count = self._charged.get(key, (0.0, 0))
        self._charged[key] = (total + renyi, count + 1)

    async def charge(
        self, study: str, identity: bytes, round_: int, attempt: int, order: float, renyi: float
    ) -> None:
        """Before the first byte of an upload: the unamplified cost at h_min."""
        self._add_charge((study, identity), renyi)
        self._open[study, identity, round_, attempt] = renyi
        await self._update(
            "charged_renyi = ?, charged_order = ?", (renyi, order), study, identity, round_, attempt
        )

    async def sign(self, study: str, identity: bytes, round_: int, attempt: int, statement: bytes) -> None:
        """Before a signature over survivor sets is sent."""
        await self._update("signed = ?", (statement,), study, identity, round_, attempt)

    async def answer(
        self, study: str, identity: bytes, round_: int, attempt: int, request: bytes, renyi: float
    ) -> None:
        """Before an unmasking request is answered: its digest, and the cost at the u3 that a quorum signed.

        That cost takes the place of the one at h_min, of which it is at most equal.
        """
        await self._update("answered = ?, charged_renyi = ?", (request, renyi), study, identity, round_, attempt)
        total, count = self.charged(study, identity)
        before = self._open.pop((study, identity, round_, attempt), renyi)
        self._charged[study, identity] = (total - before + renyi, count)

    async def _update(
        self,
        columns: str,
        values: tuple[bytes | float, ...],
        study: str,
        identity: bytes,
        round_: int,
        attempt: int,
    ) -> None:
        await self._store.write(
            (
                f"UPDATE attempts SET {columns} WHERE study = ? AND identity = ? AND round = ? AND attempt = ?",
                (*values, study, identity, round_, attempt),
            )
        )

    def close(self) -> None:
        """Flush and close."""
        self._store.close()
