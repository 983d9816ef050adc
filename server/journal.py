"""The coordinator's memory: one SQLite file for events, attempts, charges and results.

Order is the point: an attempt is written before its first message is sent; u2, u3 and the masked sum before u3 is
told to anyone; the charge and the unmasking request before the request is sent. After a restart an attempt that was
under way is closed as aborted, and a charge that was written stays.
"""

from __future__ import annotations

import json
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from wire.durable import DurableStore, Statement

APPLICATION_ID: Final = 0x536F7264  # "Sord"
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS study (
    id INTEGER PRIMARY KEY CHECK (id = 1), name TEXT NOT NULL, document BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS attempts (
    round INTEGER NOT NULL, attempt INTEGER NOT NULL, started REAL NOT NULL,
    outcome TEXT, u2 TEXT, u3 TEXT, masked_sum BLOB, unmasking_request BLOB,
    PRIMARY KEY (round, attempt)
);
CREATE TABLE IF NOT EXISTS charges (
    round INTEGER NOT NULL, attempt INTEGER NOT NULL, survivors TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (round, attempt)
);
CREATE TABLE IF NOT EXISTS excluded (participant INTEGER PRIMARY KEY, reason TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS rounds (
    round INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, figures TEXT NOT NULL, checkpoint TEXT NOT NULL
);
"""


@dataclass(frozen=True)
class Charge:
    """u3 of an attempt that went on to unmasking."""

    round: int
    attempt: int
    survivors: frozenset[int]


class Journal:
    """What the coordinator writes down, and reads again after a restart."""

    def __init__(self, path: Path) -> None:
        """Raises `wire.durable.StorageError`: the file can't be used."""
        self._store = DurableStore(path, SCHEMA, APPLICATION_ID)
        self.path = path

    # -- events: ordered, durable soon; nothing waits for them

    def emit(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        """Append an event and return it as a reader will see it, less its number."""
        at = time.time()
        self._store.submit(
            ("INSERT INTO events (at, kind, body) VALUES (?, ?, ?)", (at, kind, json.dumps(body)))
        )
        return {"at": at, "kind": kind, **body}

    # -- facts: durable when the call returns

    async def open_study(self, name: str, document: bytes) -> None:
        """Bind the file to a study on first use.

        Raises:
            ValueError: the file belongs to a study with another name or document.
        """
        rows = self._store.read("SELECT name, document FROM study")
        if rows:
            if rows[0][0] != name:
                raise ValueError(f"{self.path} belongs to the study {rows[0][0]!r}: name another state file")
            if rows[0][1] != document:
                raise ValueError(
                    f"{self.path} was begun with another plan or task: restore study.toml, or name another state file"
                )
            return
        await self._store.write(("INSERT INTO study VALUES (1, ?, ?)", (name, document)))

    async def begin_attempt(self, round_: int, attempt: int) -> None:
        """Before the attempt's first message."""
        await self._store.write(
            ("INSERT INTO attempts (round, attempt, started) VALUES (?, ?, ?)", (round_, attempt, time.time()))
        )

    async def freeze_survivors(
        self, round_: int, attempt: int, u2: frozenset[int], u3: frozenset[int], masked_sum: NDArray[Any]
    ) -> None:
        """Before u3 is told to anyone. The sum is not copied: it must stay as it is until this returns."""
        await self._store.write(
            (
                "UPDATE attempts SET u2 = ?, u3 = ?, masked_sum = ? WHERE round = ? AND attempt = ?",
                (json.dumps(sorted(u2)), json.dumps(sorted(u3)), memoryview(masked_sum), round_, attempt),
            )
        )

    async def charge(self, charge: Charge, unmasking_request: bytes) -> None:
        """Before the first unmasking request is sent: the cost, and the request that alone may be sent."""
        await self._store.write(
            (
                "INSERT INTO charges VALUES (?, ?, ?, ?)",
                (charge.round, charge.attempt, json.dumps(sorted(charge.survivors)), time.time()),
            ),
            (
                "UPDATE attempts SET unmasking_request = ? WHERE round = ? AND attempt = ?",
                (unmasking_request, charge.round, charge.attempt),
            ),
        )

    async def end_attempt(self, round_: int, attempt: int, outcome: str) -> None:
        """The masked sum is no longer needed; the sets stay."""
        await self._store.write(_end(round_, attempt, outcome))

    async def complete_round(
        self, round_: int, attempt: int, figures: dict[str, Any], checkpoint: str
    ) -> None:
        """After the checkpoint is on disk: the round counts from here on."""
        await self._store.write(
            ("INSERT INTO rounds VALUES (?, ?, ?, ?)", (round_, attempt, json.dumps(figures), checkpoint)),
            _end(round_, attempt, "completed"),
        )

    async def exclude(self, participant: int, reason: str) -> None:
        """A participant that provably broke an attempt is not invited again."""
        await self._store.write(("INSERT OR IGNORE INTO excluded VALUES (?, ?)", (participant, reason)))

    def excluded(self) -> dict[int, str]:
        """Who is not invited any more, and why."""
        return dict(self._store.read("SELECT participant, reason FROM excluded"))

    # -- after a restart

    async def close_open_attempts(self) -> list[tuple[int, int]]:
        """Mark attempts that a crash cut off; their charges, if any, stay."""
        rows = self._store.read("SELECT round, attempt FROM attempts WHERE outcome IS NULL")
        for round_, attempt in rows:
            await self._store.write(_end(round_, attempt, "the coordinator stopped during the attempt"))
        return [(round_, attempt) for round_, attempt in rows]

    def charges(self) -> list[Charge]:
        """All charges in order."""
        rows = self._store.read("SELECT round, attempt, survivors FROM charges ORDER BY round, attempt")
        return [Charge(round_, attempt, frozenset(json.loads(survivors))) for round_, attempt, survivors in rows]

    def last_round(self) -> tuple[int, str, dict[str, Any]] | None:
        """Number, checkpoint and figures of the last completed round."""
        rows = self._store.read("SELECT round, checkpoint, figures FROM rounds ORDER BY round DESC LIMIT 1")
        return (rows[0][0], rows[0][1], json.loads(rows[0][2])) if rows else None

    def last_attempt(self, round_: int) -> int:
        """Highest attempt of a round that was begun; 0 if none."""
        rows = self._store.read("SELECT max(attempt) FROM attempts WHERE round = ?", (round_,))
        return rows[0][0] or 0

    def close(self) -> None:
        """Flush and close."""
        self._store.close()


def _end(round_: int, attempt: int, outcome: str) -> Statement:
    return (
        "UPDATE attempts SET outcome = ?, masked_sum = NULL WHERE round = ? AND attempt = ?",
        (outcome, round_, attempt),
    )


def read_events(path: Path, after: int = 0) -> list[dict[str, Any]]:
    """Events behind number ``after``, oldest first, each ``{seq, at, kind, **body}``; for panels and reports.

    Opens the file read-only, so it may be called while a coordinator writes; an absent file has no events.
    """
    if not path.exists():
        return []
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)
    try:
        rows = connection.execute(
            "SELECT seq, at, kind, body FROM events WHERE seq > ? ORDER BY seq", (after,)
        ).fetchall()
    except sqlite3.OperationalError:  # the coordinator is just creating its tables
        return []
    finally:
        connection.close()
    return [{"seq": seq, "at": at, "kind": kind, **json.loads(body)} for seq, at, kind, body in rows]
