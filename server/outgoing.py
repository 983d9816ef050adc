"""What an attempt sends: serialised in the worker thread, and so few at a time that the event loop stays free."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
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

    async def each(self, contents: Mapping[int, Content], write: Callable[[Content], bytes]) -> None:
        """To each participant its own, made and serialised in the worker thread.

        Args:
            contents: makes what a participant is to be told when it is asked for, so that nothing is held twice.
            write: serialises a whole message.
        """
        for who in contents:
            if who in self._alive:
                self.tell(who, await self._compute(lambda who=who: write(contents[who])))
