"""After an attempt: who isn't invited again, because it did what nobody honest does, or can't be told from one who did.

Decision 0011 says who is excluded and who is set aside.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from server.journal import Journal
from server.membership import Membership, as_few_as_explain
from server.rounds import Attempt

log = structlog.get_logger()


class Exclusions:
    """Draws the consequences of what an attempt has shown."""

    def __init__(self, membership: Membership, journal: Journal, emit: Callable[..., None]) -> None:
        """Args: what earlier runs of this process found is taken from the journal, once the roster is in use."""
        self._membership, self._journal, self._emit = membership, journal, emit

    def restore(self) -> None:
        """After a start: exclusions and conflicts stay; who was set aside gets another chance."""
        self._membership.excluded = self._journal.excluded()
        for dealer, holder in self._journal.conflicts():
            self._membership.conflict(dealer, holder)

    async def after(self, attempt: Attempt) -> None:
        """Whoever sent what no honest participant sends, or dealt rotten shares, isn't invited again.

        Of a dealer and a holder that accuses it of rubbish one has cheated. Who is in more such conflicts than there
        are colluders is excluded. Where conflicts ended the attempt, as few as explain them are set aside.
        """
        membership = self._membership
        await self._note(attempt)
        if len(attempt.cheats) > membership.most_cheats:
            log.error(
                "more participants sent what nobody honest sends than can be cheats: nobody is excluded; look for what "
                "is wrong with this coordinator, its roster or its version",
                participants=len(attempt.cheats),
                round=attempt.config.round,
            )
            attempt.cheats = {}
        attempt.cheats = membership.in_too_many_conflicts() | attempt.cheats
        conflicts = {dealer: attempt.conflicts[dealer] - attempt.cheats.keys() for dealer in attempt.starved}
        aside = as_few_as_explain({dealer: conflicts[dealer] for dealer in conflicts.keys() - attempt.cheats.keys()})
        for participant in sorted(aside):
            number, host = membership.number(participant), membership.host(participant)
            membership.set_aside.add(number)
            reason = "either it sealed rubbish for somebody, or says so falsely, and so the attempt failed"
            self._emit("participant_set_aside", participant=number, host=host, reason=reason)
            log.warning("a participant is set aside", participant=number, host=host, reason=reason)
        for participant, reason in sorted(attempt.cheats.items()):
            number, host = membership.number(participant), membership.host(participant)
            await self._journal.exclude(number, reason)
            membership.excluded[number] = reason
            self._emit("participant_excluded", participant=number, host=host, reason=reason)
            log.warning("a participant is excluded from the study", participant=number, host=host, reason=reason)

    async def _note(self, attempt: Attempt) -> None:
        number = self._membership.number
        found = [
            (number(dealer), number(holder))
            for dealer, holders in attempt.conflicts.items()
            for holder in sorted(holders - {dealer})
        ]
        await self._journal.note_conflicts(found)
        for dealer, holder in found:
            self._membership.conflict(dealer, holder)
