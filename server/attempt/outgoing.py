"""What an attempt sends: serialised in the worker thread, few at a time so that the event loop stays free."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from secagg.messages import Messages
from server.sessions import Far, Session

Content = TypeVar("Content")

# To hand a message to gRPC takes about 0.1 ms, and everything that is ready runs before the loop listens again.
AT_ONCE: Final = 16
FAR_AT_ONCE: Final = 32  # participants of which another process gets what their messages are made of


@dataclass
class AttemptTraffic:
    """Bytes by participant, protobuf framing included, TLS not."""

    said: Counter[int]  # messages
    told: Counter[int]  # messages and documents; a model fetched once for several of a process counts once
    vectors: Counter[int] = field(default_factory=Counter)

    def mean(self, participants: frozenset[int], cohort: int) -> tuple[int, int]:
        """Mean bytes that these participants sent, and that a cohort of this size received."""
        sent = sum(self.said[who] + self.vectors[who] for who in participants)
        return round(sent / max(len(participants), 1)), round(self.told.total() / max(cohort, 1))


@dataclass(frozen=True)
class Written:
    """Serialised messages of participants, made on demand, in any process."""

    write: Callable[[Any], bytes]
    make: Callable[[int], Any]

    def __call__(self, participant: int) -> bytes:
        return self.write(self.make(participant))


class Outgoing:
    """Sends to participants that are still in the attempt, and counts the bytes.

    Sent messages are not kept. A participant gets each message after it has answered the one before, so it can lack
    only the last one; until it answers, that message can be made again from its content.
    """

    def __init__(
        self,
        session_of: Callable[[int], Session | None],  # on which a participant is spoken to; None where it has none now
        alive: set[int],  # participants in the attempt; the caller keeps it up to date
        compute: Callable[..., Awaitable[Any]],  # runs a function in the worker thread
    ) -> None:
        self._session_of, self._alive, self._compute = session_of, alive, compute
        self.bytes: Counter[int] = Counter()  # sent to each participant; what is sent again counts again
        self.number: Counter[int] = Counter()  # of messages that each participant was sent
        self._owed: dict[int, Callable[[int], bytes]] = {}  # makes the last message of each again, in the worker

    def tell(self, participant: int, message: bytes) -> None:
        """One serialised message to one participant, if it is still here."""
        session = self._session_of(participant)
        if session is not None and participant in self._alive:
            session.send(message)
            self.bytes[participant] += len(message)

    async def broadcast(self, participants: Iterable[int], message: bytes) -> None:
        participants = frozenset(participants)
        self._next(participants, lambda _: message)
        for count, who in enumerate(sorted(participants), 1):
            self.tell(who, message)
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)

    async def each(self, contents: Messages[Content], write: Callable[[Content], bytes]) -> None:
        """To each participant its own, made and serialised in the worker thread.

        ``contents`` makes the content for a participant when it is read, so that nothing is held twice.
        """
        make = self._next(contents, lambda who: write(contents[who]))
        members = await self._far(contents, write)
        for at in range(0, len(members), AT_ONCE):
            few = [one for one in members[at : at + AT_ONCE] if one in self._alive]
            here = [one for one in few if self._session_of(one) is not None]  # the others when they are back
            for who, message in zip(here, await self._compute(lambda here: list(map(make, here)), here), strict=True):
                self.tell(who, message)

    async def _far(self, contents: Messages[Content], write: Callable[[Content], bytes]) -> list[int]:
        """Have messages made where their streams end; returns those participants whose streams end here."""
        here, far = [], dict[Far, list[Session]]()
        for who in contents:
            session = self._session_of(who)
            if session is None or session.far is None:
                here.append(who)
            elif who in self._alive:
                far.setdefault(session.far, []).append(session)

        def written(make: Callable[[int], Content]) -> bytes:
            return pickle.dumps(Written(write, make), pickle.HIGHEST_PROTOCOL)

        async def send_parts(process: Far, sessions: list[Session], only: Callable[[list[int]], Any]) -> None:
            for at in range(0, len(sessions), FAR_AT_ONCE):
                few = sessions[at : at + FAR_AT_ONCE]
                part = await self._compute(lambda few: written(only([one.participant for one in few])), few)
                await process.send_each(part, few)

        if (only := contents.only) is not None:
            await asyncio.gather(*(send_parts(process, sessions, only) for process, sessions in far.items()))
        elif far:
            whole = await self._compute(written, contents.make)
            await asyncio.gather(*(process.send_each(whole, sessions) for process, sessions in far.items()))
        return here

    async def again(self, participant: int) -> bool:
        """Send the last message again, the same bytes; False if the participant has shown that it has it."""
        make = self._owed.get(participant)
        if make is None:
            return False
        self.tell(participant, await self._compute(make, participant))
        return True

    def answered(self, participant: int) -> None:
        """It has the last message, or is out of the attempt."""
        self._owed.pop(participant, None)

    def _next(self, participants: Iterable[int], make: Callable[[int], bytes]) -> Callable[[int], bytes]:
        members = self._alive.intersection(participants)
        self.number.update(members)
        self._owed.update(dict.fromkeys(members, make))
        return make
