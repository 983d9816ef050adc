"""What arrives for an attempt, in one queue: no more of one participant than an attempt can need."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from secagg.parameters import RoundParameters
from secagg.server_cohort import Uploaded
from server.attempt.steps import MOST_MESSAGES, Said, most_control_bytes
from server.attempt.uploads import Staged
from server.sessions import Session


@dataclass(frozen=True)
class Left:
    """A participant is out."""

    reason: str


@dataclass(frozen=True)
class PartialSum:
    """The sum of several whole vectors, added up by a gateway; stands in the inbox under one of their participants."""

    uploads: Uploaded = field(repr=False)
    total: NDArray[Any] = field(repr=False)  # (dim,) words
    settle: Callable[[Collection[int]], None]  # called with those of its participants that can be in the sum


@dataclass(frozen=True)
class Back:
    """A participant opened a new session; ``received``: how many messages of the attempt have reached it."""

    session: Session
    received: int


Arrival = Left | Said | Staged | PartialSum | Back


class Inbox:
    """Arrivals of one attempt by participant."""

    def __init__(self, parameters: RoundParameters) -> None:
        self.messages: Counter[int] = Counter()  # how many each participant sent
        self.bytes: Counter[int] = Counter()  # of these messages, vectors aside
        self._most_bytes = most_control_bytes(parameters)
        self._overran: set[int] = set()
        self._queue: deque[tuple[int, Arrival]] = deque()
        self._filled = asyncio.Event()

    def takes(self, participant: int) -> bool:
        return participant not in self._overran

    def put(self, participant: int, arrival: Arrival) -> None:
        """Queue what isn't a message."""
        self._queue.append((participant, arrival))
        self._filled.set()

    def put_message(self, participant: int, arrival: Arrival, size: int) -> None:
        """Queue a message of ``size`` bytes; one beyond the limits removes its participant."""
        self.messages[participant] += 1
        self.bytes[participant] += size
        if self.messages[participant] > MOST_MESSAGES:
            arrival = self._overrun(participant, "messages")
        if self.bytes[participant] > self._most_bytes:
            arrival = self._overrun(participant, "bytes")
        self.put(participant, arrival)

    def _overrun(self, participant: int, what: str) -> Left:
        self._overran.add(participant)
        return Left(f"sent more {what} than an attempt has")

    async def get(self) -> tuple[int, Arrival]:
        """The next one, when there is one."""
        while not self._queue:
            self._filled.clear()
            await self._filled.wait()
        return self._queue.popleft()

    def with_others_behind(self, who: int, said: Said, senders: Container[int], most: int) -> dict[int, Said]:
        """A message and the next ones, as long as they are of its phase and each from another of these senders."""
        several = {who: said}
        while self._queue and len(several) < most:
            who, item = self._queue[0]
            if not isinstance(item, Said) or item.phase != said.phase or who not in senders or who in several:
                break
            several[who] = item
            self._queue.popleft()
        return several

    def close(self) -> None:
        """The attempt is over: vectors that are still queued don't count."""
        while self._queue:
            _, arrival = self._queue.popleft()
            if isinstance(arrival, Staged):
                arrival.settle(False)
            elif isinstance(arrival, PartialSum):
                arrival.settle(())
