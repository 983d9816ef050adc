"""Before an attempt: who is invited to it, and waiting until they are connected."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import structlog

from mechanisms.plan import Plan
from runtime.loop_lag import LoopLag
from secagg.context import RoundConfig
from server.attempt.attempt import PROGRESS_INTERVAL_S
from server.attempt.wait_reports import WaitReports
from server.events import CONNECTING, AttemptAborted, Event, Pausing, WaitingForEnrolment, WaitingForParticipants
from server.membership import Membership
from server.sessions import Sessions
from wire.records.charges import Charges
from wire.study import smallest_roster

log = structlog.get_logger()

ENROLMENT_INTERVAL_S: Final = 2.0
ARRIVAL_S: Final = 10.0  # longest wait for stragglers when the quorum is there, before the first round
RETURN_S: Final = 2.0  # and after an attempt that was aborted


@dataclass
class CohortWait:
    """Waits for participants, for as long as the study's settings say.

    Attributes:
        connect_s: longest wait for the cohort to connect.
        pause_s: between the end of a round and the next one.
        resume_s: longest wait for participants whose connections broke, all together.
        enrolment_open: participants can still enrol; then the wait for a large enough roster has no end.
        configure: async (round, attempt) -> the attempt's configuration under the roster in use.
        use_offered: async: adopts a later roster if there is one; returns whether it did.
    """

    plan: Plan
    membership: Membership
    sessions: Sessions
    loop_lag: LoopLag
    connect_s: float
    pause_s: float
    resume_s: float
    enrolment_open: bool
    emit: Callable[[Event], None]
    configure: Callable[[int, int], Awaitable[RoundConfig]]
    use_offered: Callable[[], Awaitable[bool]]
    charges: Charges
    _first: bool = True
    _cohort_spent: bool = False

    @property
    def exhausted(self) -> bool:
        """Whether no further attempt can begin under the budget."""
        return self.charges.exhausted or self._cohort_spent

    def _invitable(self) -> frozenset[int]:
        return self.membership.members() - self.membership.positions(self.charges.spent())

    async def pause(self, round_: int) -> None:
        """Pause after a round. Sessions stay, no deadline runs, and a request to stop takes effect at once."""
        if self.pause_s > 0:
            self.emit(Pausing(round=round_, left_s=self.pause_s))
            await asyncio.sleep(self.pause_s)

    async def enrolment(self, round_: int, attempt: int) -> None:
        """While participants can still enrol, wait without a deadline until the roster is large enough for a round."""
        reports, first = WaitReports(), True
        while self.enrolment_open and (missing := self.membership.missing()):
            self.sessions.changed.clear()  # what changes from here on ends the next wait
            here = len(self.membership.members())
            if reports.due((here, missing), ENROLMENT_INTERVAL_S, time.monotonic()):
                self.emit(
                    WaitingForEnrolment(
                        round=round_,
                        attempt=attempt,
                        received=here,
                        needed=here + missing,
                        roster_version=self.membership.roster.version,
                        first=first,
                    )
                )
                first = False
            await self._changed(ENROLMENT_INTERVAL_S)
            await self.use_offered()

    async def gather(self, round_: int, attempt: int) -> tuple[RoundConfig, frozenset[int]] | None:
        """Wait for the whole cohort, at most `connect_s`, then go on with the quorum; for a quorum also until those of
        the cohort that were sent away are due back.

        Absent participants of a drawn cohort are dropouts, as are those whose budget is spent: no others are invited in
        their place.

        Returns the configuration, and the positions of the connected participants; None without a quorum.
        """
        deadline = time.monotonic() + self.connect_s
        if self.membership.missing():
            self._too_few(round_, attempt, len(self.membership.members()), smallest_roster(self.plan))
            return None
        config, quorum = await self.configure(round_, attempt), self.plan.quorum
        # After a later roster others are drawn than those that were to stay.
        deadline = max(deadline, self.sessions.due(config.invited))
        left = len(self._invitable() & config.invited)
        if left < quorum <= len(self.membership.members() & config.invited):
            # Cheats must not end the study for good by saying that their budget is spent.
            said = self.membership.members() & self.membership.positions(self.charges.only_said()) & config.invited
            self._cohort_spent = left + min(len(said), self.membership.most_cheats) < quorum
            self._too_few(round_, attempt, left, quorum, "of the cohort have budget left")
            if not self._cohort_spent:
                self.charges.refused.clear()  # all are asked again
            return None
        # With a quorum, wait longer only before the first round, when participants arrive or reconnect after a restart
        # of this process, and for a moment after an aborted attempt, which may have cut some off.
        patience_s = ARRIVAL_S if self._first else RETURN_S if attempt > 1 else 0.0
        self._first = False
        quorum_since: float | None = None
        returning_until: float | None = None  # set once: participants that come and go in turn would extend it for ever
        reports = WaitReports()
        self.loop_lag.restart()
        while True:
            self.sessions.changed.clear()  # as above
            invited = self._invitable() & config.invited
            ready = self.sessions.ready() & invited
            now = time.monotonic()
            if len(ready) >= len(invited):
                return config, ready
            if len(ready) >= quorum:
                quorum_since = quorum_since or now
                returning_until = returning_until or now + self.resume_s
                away = self.sessions.broken_since(now - self.resume_s) | self.sessions.resting()
                returning = now < returning_until and away & invited
                if (now - quorum_since >= patience_s and not returning) or now >= deadline:
                    return config, ready
            else:
                quorum_since = None
            if now >= deadline:
                self._too_few(round_, attempt, len(ready), quorum)
                return None
            # A newly accepted participant may complete the quorum; a drawn cohort stays the same for its round.
            if len(ready) < quorum and not self.plan.drawn and await self.use_offered():
                config = await self.configure(round_, attempt)
                continue
            if reports.due((len(ready), len(invited)), PROGRESS_INTERVAL_S, now):
                self.emit(
                    WaitingForParticipants(
                        round=round_,
                        attempt=attempt,
                        received=len(ready),
                        needed=quorum,
                        expected=len(invited),
                        left_s=round(deadline - now, 1),
                    )
                )
            await self._changed(min(0.5, max(deadline - now, 0.01)))

    async def _changed(self, longest_s: float) -> None:
        """Until a session or the roster changes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s):
                await self.sessions.changed.wait()

    def _too_few(
        self, round_: int, attempt: int, received: int, needed: int, what: str = "participants are connected"
    ) -> None:
        # Else cheats could have honest participants set aside, and then stay away.
        if self.membership.readmit():
            log.warning("participants that were set aside are invited again: there are too few others", round=round_)
        reason, left = f"{received} {what}, {needed} needed", len(self.sessions.left_early)
        if left:  # for example because of their policies; the reason is in their own logs
            who = "they were ready: look at what they print" if left > 1 else "it was ready: look at what it prints"
            reason += f"; {left} came and left before {who}"
        self.emit(
            AttemptAborted(
                round=round_,
                attempt=attempt,
                phase=CONNECTING,
                reason=reason,
                received=received,
                needed=needed,
                loop_lag_ms=self.loop_lag.figures(),
            )
        )
