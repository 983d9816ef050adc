"""What an attempt sends: serialised in the worker thread, and so few at a time that the event loop stays free."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

from server.sessions import Sessions

Content = TypeVar("Content")

# To hand a message to gRPC takes about 0.1 ms, and everything that is ready runs before the loop listens again.
AT_ONCE: Final = 16


class Outgoing:
    """Sends to those who are still in the attempt, and counts the bytes."""

    def __init__(self, sessions: Sessions, alive: set[int], compute: Callable[..., Awaitable[Any]]) -> None:
        """
        Args:
            alive: who is in the attempt; the caller keeps it up to date.
            compute: runs a function in the worker thread.
        """
        self._sessions, self._alive, self._compute = sessions, alive, compute
        self.bytes: Counter[int] = Counter()

    def tell(self, participant: int, message: bytes) -> None:
        """One serialised message to one participant, if it is still here."""
        session = self._sessions.get(participant)
        if session is not None and participant in self._alive:
            session.send(message)
            self.bytes[participant] += len(message)

    async def broadcast(self, participants: Iterable[int], message: bytes) -> None:
        """The same serialised message to many."""
        for count, who in enumerate(sorted(participants), 1):
            self.tell(who, message)
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)

    async def each(self, contents: dict[int, Content], write: Callable[[Content], bytes]) -> None:
        """To each participant its own: ``contents`` is emptied on the way, so that nothing is held twice.

        Args:
            write: serialises a whole message; called in the worker thread.
        """
        for who in list(contents):
            content = contents.pop(who)
            if who in self._alive:
                self.tell(who, await self._compute(write, content))
