"""Requests for a place or a certificate, kept on disk until the authority has seen them, and its answers.

Any caller can send requests, so the number that waits is bounded: in total, per address and per identity. A full queue
keeps its oldest requests: a flood keeps new ones out for a while, but removes none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runtime.durable import DurableStore, Statement
from wire.authority_statements import Answer
from wire.enrolment import SignedRequest

MOST_WAITING: Final = 1_000
MOST_OF_ONE_ADDRESS: Final = 100
MOST_ANSWERED: Final = 10_000

_APPLICATION: Final = 0x50E1_0001
_SCHEMA: Final = """
CREATE TABLE requests (
    id BLOB PRIMARY KEY,       -- SHA-256 of its bytes
    number INTEGER NOT NULL,   -- in the order of arrival; of an answer, in the order of answers
    identity BLOB NOT NULL,
    address TEXT NOT NULL,
    data BLOB NOT NULL,        -- empty once it is answered
    answer BLOB                -- NULL while it waits
) WITHOUT ROWID
"""

_ANSWER: Final = """
INSERT INTO requests VALUES (?, ?, x'', '', x'', ?)
ON CONFLICT (id) DO UPDATE SET number = excluded.number, data = x'', answer = excluded.answer
"""
_FORGET: Final = """
DELETE FROM requests WHERE answer IS NOT NULL
AND number <= (SELECT number FROM requests WHERE answer IS NOT NULL ORDER BY number DESC LIMIT 1 OFFSET ?)
"""


class QueueFull(Exception):
    """No further request is taken for now; one sentence."""


@dataclass(frozen=True)
class _Waiting:
    identity: bytes
    address: str
    data: bytes


class EnrolmentRequests:
    """The requests that wait, in memory and on disk, and the newest answers, on disk."""

    def __init__(self, path: Path) -> None:
        """Raises runtime.durable.StorageError: the file can't be used."""
        self._store = DurableStore(path, _SCHEMA, _APPLICATION)
        rows = self._store.read("SELECT id, identity, address, data FROM requests WHERE answer IS NULL ORDER BY number")
        self._waiting = {bytes(id_): _Waiting(bytes(who), where, bytes(data)) for id_, who, where, data in rows}
        [(last,)] = self._store.read("SELECT coalesce(max(number), 0) FROM requests")
        self._number = int(last)
        self._writes: dict[bytes, asyncio.Task[None]] = {}  # under way

    def __len__(self) -> int:
        return len(self._waiting)

    def waits(self, request_id: bytes) -> bool:
        """Whether this very request is here and unanswered."""
        return request_id in self._waiting

    async def written(self, request_id: bytes) -> None:
        """Return once a request that waits is durable: the same one may come again while its first call writes it.

        Raises runtime.durable.StorageError: it can't be written down; it isn't taken.
        """
        write = self._writes.get(request_id)
        if write is not None:
            await asyncio.shield(write)

    def waiting(self, most_bytes: int) -> list[bytes]:
        """The oldest ones, as many as fit."""
        found: list[bytes] = []
        for one in self._waiting.values():
            most_bytes -= len(one.data)
            if most_bytes < 0:
                break
            found.append(one.data)
        return found

    async def answer(self, request_id: bytes) -> bytes | None:
        """What the authority said to a request, where it has and it isn't too long ago.

        Raises runtime.durable.StorageError: the file can't be read.
        """
        rows = await asyncio.to_thread(self._store.read, "SELECT answer FROM requests WHERE id = ?", (request_id,))
        return bytes(rows[0][0]) if rows and rows[0][0] is not None else None

    async def add(self, signed: SignedRequest, address: str) -> None:
        """Take a request; one of the same identity that still waits gives way to it.

        Durable when this returns.

        Raises QueueFull: too many wait, in all or from this address; runtime.durable.StorageError: it can't be written
        down; it isn't taken.
        """
        identity, id_ = signed.request.identity, signed.id
        if id_ in self._waiting:
            await self.written(id_)
            return
        older = [other for other, one in self._waiting.items() if one.identity == identity]
        if not older:
            if len(self._waiting) >= MOST_WAITING:
                raise QueueFull(f"{MOST_WAITING} requests wait for the study's authority: try again later")
            if Counter(one.address for one in self._waiting.values())[address] >= MOST_OF_ONE_ADDRESS:
                raise QueueFull(f"{MOST_OF_ONE_ADDRESS} requests from your address wait: try again later")
        self._number += 1
        # Counted before it is durable, so that requests at the same moment can't pass the bounds together.
        replaced = {other: self._waiting.pop(other) for other in older}
        self._waiting[id_] = _Waiting(identity, address, signed.data)
        statements: list[Statement] = [("DELETE FROM requests WHERE id = ?", (other,)) for other in older]
        insert = "INSERT INTO requests VALUES (?, ?, ?, ?, ?, NULL) ON CONFLICT (id) DO NOTHING"
        statements.append((insert, (id_, self._number, identity, address, signed.data)))

        def settle(write: asyncio.Task[None]) -> None:
            if self._writes.get(id_) is write:
                del self._writes[id_]
            if write.cancelled() or write.exception() is not None:
                self._waiting.pop(id_, None)
                self._waiting.update(replaced)

        # A caller that hangs up cancels no write: what is reported as waiting must be on disk.
        write = asyncio.create_task(self._store.write(*statements))
        self._writes[id_] = write
        write.add_done_callback(settle)
        await asyncio.shield(write)

    async def answered(self, answers: Sequence[tuple[Answer, bytes]]) -> None:
        """Keep what the authority has signed, all or nothing; the same answers again are fine. Durable on return.

        Raises runtime.durable.StorageError: it can't be written down.
        """
        statements: list[Statement] = []
        for answer, data in answers:
            self._number += 1
            statements.append((_ANSWER, (answer.request_id, self._number, data)))
        await self._store.write(*statements, (_FORGET, (MOST_ANSWERED,)))
        for answer, _ in answers:
            self._waiting.pop(answer.request_id, None)

    def close(self) -> None:
        self._store.close()
