"""After a study: whoever was away when it ended hears of it on coming back, instead of trying again without an end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection

import structlog

from server.configuration import DeadlineTable
from server.membership import Membership
from server.sessions import Session, Sessions

log = structlog.get_logger()


class Farewell:
    """Says StudyEnd to each participant that can hear it. All methods are for the coordinator's event loop."""

    def __init__(self, sessions: Sessions, membership: Membership, deadlines: DeadlineTable) -> None:
        self._sessions, self._membership, self._deadlines = sessions, membership, deadlines
        self._message: bytes | None = None
        self._told: set[bytes] = set()  # identities
        self._said = asyncio.Event()
        self.seen_running = False
        """Whether the study still ran in this process: then those who took part are mostly connected at its end."""

    def say(self, message: bytes) -> None:
        """To all who are connected, and from now on to whoever comes. ``message``: a serialised StudyEnd."""
        self._message = message
        self._told |= {session.identity for session in self._sessions.all()}
        self._sessions.close_all(message)

    def answer(self, session: Session) -> bool:
        """A session is ready. Returns whether the study is over: then it was told so, and ends."""
        if self._message is None:
            return False
        session.send(self._message)
        session.close()
        self._told.add(session.identity)
        self._said.set()
        return True

    async def wait(self) -> None:
        """For those who haven't heard it: who lost their connection just before the end, for as long as such a
        connection keeps its place; where the study was over already, everybody, for as long as a round waits for them.
        """
        began = time.monotonic()
        resume_s, connect_s = self._deadlines.resume_s, self._deadlines.connect_s
        longest_s = resume_s if self.seen_running else connect_s

        def awaited() -> Collection[int]:
            return self._sessions.broken_since(began - resume_s) if self.seen_running else self._membership.members()

        announced = False
        entries = self._membership.roster.entries
        while left := sum(entries[place].identity not in self._told for place in awaited()):
            remaining_s = began + longest_s - time.monotonic()
            if remaining_s <= 0:
                log.info("not everybody heard that the study is over: serve it again and they can", away=left)
                return
            if not announced:
                announced = True
                log.info("the study is over: waiting for participants who haven't heard", away=left, for_s=longest_s)
            self._said.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining_s):
                    await self._said.wait()
