"""The roster that a study runs under, later versions of it, and the authority's statement that it is the newest."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import structlog

from server.events import Event, ParticipantLost, RosterAdopted, WaitingForAuthority
from server.journal import Journal
from server.membership import Membership
from server.round_figures import hosts_of
from server.sessions import Sessions
from wire.records.roster_file import RosterFile

STATEMENT_LEFT_S: Final = 5.0  # of the validity of the authority's statement, when an attempt begins
AUTHORITY_INTERVAL_S: Final = 1.0

log = structlog.get_logger()


@dataclass(eq=False)
class RosterInUse:
    """Changes the roster between attempts, since positions change with it."""

    membership: Membership
    sessions: Sessions
    journal: Journal
    documents: dict[bytes, bytes] = field(repr=False)  # what may be fetched, by SHA-256; holds the roster in use
    emit: Callable[[Event], None]
    files: RosterFile  # read between attempts: an operator may have put a later roster there
    wants_statement: bool  # of the authority

    def stated(self) -> tuple[bytes, float]:
        """The statement that the roster in use is the newest, and when it ends."""
        return self.files.stated(self.membership.roster) if self.wants_statement else (b"", math.inf)

    async def wait_for_authority(self, round_: int, attempt: int) -> None:
        """Participants take part only while the authority's statement holds that the roster is the newest."""
        told = False
        while (until := self.stated()[1]) <= time.time() + STATEMENT_LEFT_S:
            if not told:
                told = True
                self.emit(WaitingForAuthority(round=round_, attempt=attempt, ended=until))
            await asyncio.sleep(AUTHORITY_INTERVAL_S)
            await self.use_offered()

    async def use_offered(self, *, only_removals: bool = False) -> bool:
        """Between attempts only. Returns whether positions changed; perhaps only if some participants are removed."""
        membership = self.membership
        if (found := await asyncio.to_thread(self.files.changed)) is not None:
            try:
                membership.offer(*found)
            except ValueError as error:
                log.warning("the roster file was replaced by one that isn't used", reason=str(error))
        offered = membership.offered
        if offered is None or (only_removals and membership.roster.positions.keys() <= offered.roster.positions.keys()):
            return False
        numbers = await self.journal.use_roster(offered.roster)
        self.documents.pop(membership.signed.sha256, None)
        self.documents[offered.sha256] = offered.file
        joined, left = membership.use(offered, numbers)
        for session in self.sessions.adopt(offered.roster):
            number = numbers[session.identity]
            self.emit(ParticipantLost(participant=number, host=session.host, reason="revoked"))
        version, counts = (
            offered.roster.version,
            {"participants": len(offered.roster), "hosts": hosts_of(offered.roster)},
        )
        self.emit(RosterAdopted(version=version, **counts, joined=tuple(joined), left=tuple(left)))
        log.info("a later roster is in use", version=version, joined=len(joined), left=len(left))
        return True
