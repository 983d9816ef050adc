"""After a study: whoever was away when it ended hears of it on coming back, instead of trying again without an end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection

import structlog

from server.membership import Membership
from server.sessions import Session, Sessions
from server.study_file import DeadlineTable

log = structlog.get_logger()


class Farewell:
    """Says StudyEnd to each participant that can hear it. All methods are for the coordinator's event loop.

    A connection that has died without a word is taken for one that hears: what was written to it can't be asked after.
    """

    def __init__(self, sessions: Sessions, membership: Membership, deadlines: DeadlineTable) -> None:
        """Args: deadlines say how long to wait: ``resume_s`` and ``connect_s``."""
        self._sessions, self._membership, self._deadlines = sessions, membership, deadlines
        self._message: bytes | None = None
        self._told: set[bytes] = set()  # identities
        self._one_more = asyncio.Event()  # was told
        self.rounds_were_left = False
        """Whether this process has tried a round: then those who take part were connected not long ago."""

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
        self._one_more.set()
        return True

    async def wait(self) -> None:
        """For those who weren't told: who lost their connection just before the end, for as long as such a connection
        keeps its place; where the study was over already, everybody, for as long as a round waits for them.
        """
        began = time.monotonic()
        resume_s, connect_s = self._deadlines.resume_s, self._deadlines.connect_s
        longest_s = resume_s if self.rounds_were_left else connect_s
        entries, announced = self._membership.roster.entries, False

        def awaited() -> Collection[int]:
            if self.rounds_were_left:
                return self._sessions.broken_since(began - resume_s)
            return self._membership.members()

        while untold := sum(entries[place].identity not in self._told for place in awaited()):
            remaining_s = began + longest_s - time.monotonic()
            if remaining_s <= 0:
                log.warning("not everybody heard that it ended: serve it again and they can", participants=untold)
                return
            if not announced:  # a warning, since a terminal shows nothing less: it would be a silence without a name
                announced = True
                log.warning("waiting for who hasn't heard that it ended", participants=untold, at_most_s=longest_s)
            self._one_more.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining_s):
                    await self._one_more.wait()
