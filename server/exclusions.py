"""After an attempt: which participants aren't invited again, because they cheated, or one of two did.

Decision 0011 gives the rules for exclusion and for setting aside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from server.attempt.attempt import Attempt
from server.events import Event, ParticipantExcluded, ParticipantSetAside
from server.journal import Journal
from server.membership import Membership, as_few_as_explain

log = structlog.get_logger()


def restore_exclusions(membership: Membership, journal: Journal) -> None:
    """After a start: exclusions and conflicts stay; participants that were set aside are invited again."""
    membership.excluded = journal.excluded()
    conflicts = journal.conflicts()
    membership.note_conflicts(conflicts)
    membership.blamed.update(pair for pair, blamed in conflicts.items() if blamed)


async def draw_consequences(
    attempt: Attempt, membership: Membership, journal: Journal, emit: Callable[[Event], None]
) -> None:
    """Exclude participants that sent what no honest one sends, or dealt inconsistent shares.

    If a holder accuses a dealer of rubbish, one of the two has cheated. A participant in more such conflicts than
    there are colluders is excluded. Where conflicts ended the attempt, as few as explain them are set aside.
    """

    def pairs(conflicts: Mapping[int, frozenset[int]]) -> list[tuple[int, int]]:
        """Dealer and holder, by number; a dealer that accuses itself is left out."""
        number = membership.number
        each = ((dealer, holder) for dealer, holders in conflicts.items() for holder in sorted(holders - {dealer}))
        return [(number(dealer), number(holder)) for dealer, holder in each]

    found = pairs(attempt.conflicts)
    named = membership.in_too_many_conflicts(found) | attempt.cheats
    if len(named) > membership.most_cheats:
        log.error(
            "more participants did what nobody honest does than can be cheats: nobody is excluded; look for what "
            "is wrong with this coordinator, its roster or its version",
            participants=len(named),
            round=attempt.config.round,
        )
        attempt.cheats = {}
        return
    await journal.note_conflicts(found)
    membership.note_conflicts(found)
    attempt.cheats = named
    conflicts = {dealer: attempt.conflicts[dealer] - named.keys() for dealer in attempt.starved}
    starving = {dealer: conflicts[dealer] for dealer in conflicts.keys() - named.keys()}
    aside = as_few_as_explain(starving, membership.blamed_before(starving))
    # The next time that one of these conflicts ends an attempt it is the holder's turn.
    blamed = pairs({dealer: starving[dealer] for dealer in starving if dealer in aside})
    await journal.note_blamed(blamed)
    membership.blamed.update(blamed)
    for participant in sorted(aside):
        number, host = membership.number(participant), membership.host(participant)
        membership.set_aside.add(number)
        reason = "either it sealed rubbish for somebody, or says so falsely, and so the attempt failed"
        emit(ParticipantSetAside(participant=number, host=host, reason=reason))
        log.warning("a participant is set aside", participant=number, host=host, reason=reason)
    for participant, reason in sorted(attempt.cheats.items()):
        number, host = membership.number(participant), membership.host(participant)
        await journal.exclude(number, reason)
        membership.excluded[number] = reason
        emit(ParticipantExcluded(participant=number, host=host, reason=reason))
        log.warning("a participant is excluded from the study", participant=number, host=host, reason=reason)
