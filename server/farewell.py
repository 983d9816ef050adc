"""After a study: a participant that was away at the end hears of it when it reconnects, and stops trying."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection

import structlog

from server.membership import Membership
from server.sessions import Session, Sessions
from server.study_tables import DeadlineTable

log = structlog.get_logger()


class Farewell:
    """Says StudyEnd to each participant that can hear it. All methods are for the coordinator's event loop.

    A connection that died silently counts as one that received StudyEnd: delivery can't be checked.
    """

    def __init__(self, sessions: Sessions, membership: Membership, deadlines: DeadlineTable) -> None:
        """Args: deadlines say how long to wait: ``resume_s`` and ``connect_s``."""
        self._sessions, self._membership, self._deadlines = sessions, membership, deadlines
        self._message: bytes | None = None
        self._told: set[bytes] = set()  # identities
        self._one_more = asyncio.Event()  # was told
        self.rounds_were_left = False
        """Whether this process has tried a round: then the participants were connected recently."""

    def say(self, message: bytes) -> None:
        """To all connected participants, and to those that connect later. ``message``: a serialised StudyEnd."""
        self._message = message
        self._told |= {session.identity for session in self._sessions.all()}
        self._sessions.close_all(message)

    def answer(self, session: Session) -> bool:
        """A session is ready. Returns whether the study is over; then StudyEnd was sent and the session ends."""
        if self._message is None:
            return False
        session.send(self._message)
        session.close()
        self._told.add(session.identity)
        self._one_more.set()
        return True

    async def wait(self) -> None:
        """Wait for participants that haven't received StudyEnd.

        After rounds: those that lost their connection just before the end, for ``resume_s``, and those that rest, for
        ``connect_s``. Where the study was over already when it was served: all of them, for ``connect_s``.
        """
        began = time.monotonic()
        resume_s, connect_s = self._deadlines.resume_s, self._deadlines.connect_s
        longest_s = resume_s if self.rounds_were_left and not self._sessions.resting() else connect_s
        entries, announced = self._membership.roster.entries, False

        def awaited() -> Collection[int]:
            if self.rounds_were_left:
                return self._sessions.broken_since(began - resume_s) | self._sessions.resting()
            return self._membership.members()

        while untold := sum(entries[place].identity not in self._told for place in awaited()):
            remaining_s = began + longest_s - time.monotonic()
            if remaining_s <= 0:
                log.warning(
                    "some participants haven't received the end of the study: serve it again", participants=untold
                )
                return
            if not announced:  # a warning, since a terminal shows no lower level and the wait would look like a hang
                announced = True
                log.warning(
                    "waiting for participants that haven't received the end of the study",
                    participants=untold,
                    at_most_s=longest_s,
                )
            self._one_more.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining_s):
                    await self._one_more.wait()
