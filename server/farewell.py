"""After a study: a participant that was away at the end hears of it when it reconnects, and stops trying."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from runtime.durable import replace_durably
from server.membership import Membership
from server.sessions import Session, Sessions
from server.study_tables import DeadlineTable

log = structlog.get_logger()


@dataclass(eq=False)
class Farewell:
    """Says StudyEnd to each participant that can hear it. All methods are for the coordinator's event loop.

    A connection that died silently counts as one that received StudyEnd: delivery can't be checked.
    """

    sessions: Sessions
    membership: Membership
    deadlines: DeadlineTable  # ``resume_s`` and ``connect_s`` say how long to wait
    rounds_were_left: bool = False  # this process has tried a round: then the participants were connected recently
    _message: bytes | None = None
    _told: set[bytes] = field(default_factory=set)  # identities
    _one_more: asyncio.Event = field(default_factory=asyncio.Event)  # was told
    _file: Path | None = None
    _terms: str = ""

    def remember(self, file: Path, terms: str) -> None:
        """Keep there which participants have received the end of the study with these terms, and read what is there."""
        self._file, self._terms = file, terms
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):  # then all are told again
            kept = json.loads(file.read_bytes())
            if kept["terms"] == terms:
                self._told = {bytes.fromhex(one) for one in kept["told"]}

    def _keep(self) -> None:
        if self._file is None:
            return
        kept = {"terms": self._terms, "told": sorted(one.hex() for one in self._told)}
        try:
            replace_durably(self._file, json.dumps(kept).encode())
        except OSError as error:
            log.warning("which participants received the end of the study isn't kept", reason=str(error))

    def say(self, message: bytes) -> None:
        """To all connected participants, and to those that connect later. ``message``: a serialised StudyEnd."""
        self._message = message
        if self.rounds_were_left:  # an earlier end was none
            self._told = set()
        self._told |= {session.identity for session in self.sessions.all()}
        self.sessions.close_all(message)

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
        ``connect_s``. Where the study was over already when it was served: all that no earlier process has told, for
        ``connect_s``.
        """
        try:
            await self._wait()
        finally:
            self._keep()

    async def _wait(self) -> None:
        began = time.monotonic()
        resume_s, connect_s = self.deadlines.resume_s, self.deadlines.connect_s
        longest_s = resume_s if self.rounds_were_left and not self.sessions.resting() else connect_s
        entries, announced = self.membership.roster.entries, False

        def awaited() -> Collection[int]:
            if self.rounds_were_left:
                return self.sessions.broken_since(began - resume_s) | self.sessions.resting()
            return self.membership.members()

        while untold := sum(entries[place].identity not in self._told for place in awaited()):
            remaining_s = began + longest_s - time.monotonic()
            if remaining_s <= 0:
                log.warning(
                    "some participants haven't received the end of the study: serve it again, with a longer "
                    "deadlines.connect_s if they have been away for long: they try once an hour at least",
                    participants=untold,
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
