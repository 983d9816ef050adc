"""A participant's sessions as one: an attempt continues where a connection broke.

Each message of an attempt is made once. The coordinator advances phase by phase, so only the last message can be lost.
Its bytes are kept until the coordinator's next message shows that it arrived, and are sent again unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

import structlog

from client.behaviour import Number
from client.connection import DocumentUnavailable, Session, UploadRejected
from wire import coordinator_pb2 as pb

Result = TypeVar("Result")

COUNTED: Final = frozenset({"round_start", "cohort_keys", "neighbour_shares", "survivor_sets", "unmasking_request"})
"""Messages that the coordinator sends once per attempt; upload credits may repeat."""
BREAKS_S: Final = 0.5
"""A call can fail this long before the session's stream shows that the connection is broken."""

log = structlog.get_logger()


class ResumableSession:
    """Sends on the open session, and keeps what must outlive it.

    ``number``: the attempt under way, since its announcement was read.
    """

    def __init__(self) -> None:
        self.number: Number | None = None
        self._session: Session | None = None
        self._changed = asyncio.Event()  # a session was opened or closed, or the study is over
        self._over = False
        self._asked: Number | None = None  # attempt that this session asked to resume, until it is answered
        self._heard: set[str] = set()  # kinds of messages of the attempt that were read
        self._said: set[str] = set()  # kinds that were sent
        self._last = b""  # the last message sent
        self._refusal: pb.ParticipantMessage | None = None  # waits for the answer to resuming

    # ------------------------------------------------------------ sessions come and go

    def attach(self, session: Session) -> pb.Ready:
        """Use this session from now on; returns its first message."""
        self._session, self._asked, self._refusal = session, self.number, None
        self._changed.set()
        if self.number is None:
            return pb.Ready()
        return pb.Ready(resume=pb.Resume(round=self.number[0], attempt=self.number[1], received=len(self._heard)))

    def detach(self, session: Session) -> None:
        if self._session is session:
            self._session = None
            self._changed.set()

    def is_on(self, session: Session) -> bool:
        return self._session is session

    def end(self) -> None:
        """Note that no other session follows, and stop waiting for one."""
        self._over = True
        self._changed.set()

    def leave(self) -> None:
        """Forget the attempt: none of its messages is sent again."""
        self.number, self._last = None, b""
        self._heard, self._said = set(), set()

    async def heard(self, kind: str, content: Any) -> bool:
        """Note a message that was just read.

        Returns whether the caller must handle it: this handles a valid answer to a request to resume.
        """
        number = (getattr(content, "round", 0), getattr(content, "attempt", 0))
        if kind == "resumed":
            return not await self._resumed(number, content)
        if kind in ("round_start", "round_end") and number == self._asked:
            self._asked = None
        if kind == "round_start":
            self.leave()
            self.number, self._asked = number, None
        if number == self.number:
            if kind == "round_end":
                self.leave()
            elif kind in COUNTED:
                self._heard.add(kind)
        return True

    async def _resumed(self, number: Number, content: pb.Resumed) -> bool:
        """The coordinator kept the place, and states how many messages reached it. False: the number is impossible."""
        session, refusal, said = self._session, self._refusal, len(self._said)
        if session is None or number != self._asked:
            return False
        self._asked = None
        if refusal is not None:
            await session.send(refusal)
            return True
        if content.received not in (said - 1, said):
            return False
        if content.received < said:
            await session.send(pb.ParticipantMessage.FromString(self._last))
        log.debug("resumed", round=content.round, attempt=content.attempt)
        return True

    # ------------------------------------------------------------ as a session

    async def send(self, message: pb.ParticipantMessage) -> None:
        """Send now, or, for a message of the attempt, as soon as that is resumed."""
        kind = message.WhichOneof("message")
        if kind == "phase":
            if (message.phase.round, message.phase.attempt) == self.number:  # else that attempt is over
                self._said.add(str(message.phase.WhichOneof("message")))
                self._last = message.SerializeToString()
        elif kind == "refusal":
            if (message.refusal.round, message.refusal.attempt) == self.number:
                self.leave()
            if self._asked is not None:
                self._refusal = message
        if self._session is not None and self._asked is None:
            await self._session.send(message)

    async def upload(self, chunks: AsyncIterator[bytes]) -> bool:
        """Send framed chunks of a vector; returns whether the coordinator counted it, and raises UploadRejected.

        False if the connection broke: the coordinator asks for it again.
        """
        session = self._session
        if session is None or self._asked is not None:
            return False
        try:
            await session.upload(chunks)
        except UploadRejected:
            if await session.breaks(BREAKS_S):
                return False
            raise
        return True

    async def fetched(self, fetch: Callable[[Session], Awaitable[Result]]) -> Result:
        """The result of ``fetch`` on the open session, or on the next one if that breaks.

        Raises DocumentUnavailable if an intact session doesn't have it, or no session follows.
        """
        broken: Session | None = None
        while True:
            session = await self._other_than(broken)
            try:
                return await fetch(session)
            except DocumentUnavailable:
                if not await session.breaks(BREAKS_S):
                    raise
                broken = session

    async def _other_than(self, session: Session | None) -> Session:
        while self._session is None or self._session is session:
            if self._over:
                raise DocumentUnavailable("the study is over")
            self._changed.clear()
            await self._changed.wait()
        return self._session
