"""Who belongs to a study: the roster in use, the next one, and the excluded participants.

The protocol names a participant by its position in the roster, and positions change from version to version. Charges
and events name it by a number that the journal gave it for good.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mechanisms.plan import Plan
from runtime.failure import ExitCode, Failure
from secagg.lottery import Draws, Ticket
from secagg.parameters import FEWEST_COLLUDERS, assumed_colluders
from secagg.roster import InvalidRoster, Roster, verify_roster
from wire.study import check_roster_fits, read_draws, smallest_roster


@dataclass(frozen=True)
class SignedRoster:
    """One version with the bytes that the authority signed, and the draws where the plan draws cohorts."""

    roster: Roster
    file: bytes
    draws: Draws | None = field(default=None, repr=False)

    @cached_property
    def sha256(self) -> bytes:
        """Of the file, by which participants fetch it."""
        return hashlib.sha256(self.file).digest()


def as_few_as_explain(conflicts: Mapping[int, frozenset[int]], blamed: Collection[tuple[int, int]] = ()) -> set[int]:
    """A small set of participants that explains all conflicts; greedy, so not always the smallest.

    The cheats are such a set. A participant that accuses many is chosen before those it accuses. Of a pair the dealer
    is chosen, and if the same conflict ends another attempt, the holder.

    Args:
        conflicts: dealer -> holders that say it sealed rubbish for them.
        blamed: those of them, (dealer, holder), for which the dealer went before.
    """
    left = {(dealer, holder) for dealer, holders in conflicts.items() for holder in holders if holder != dealer}
    found: set[int] = set()
    while left:
        turns = Counter(pair[pair in blamed] for pair in left)
        counts = Counter(who for pair in left for who in pair)
        worst = max(sorted(counts), key=lambda who: (counts[who], turns[who]))
        found.add(worst)
        left = {pair for pair in left if worst not in pair}
    return found


def check_later_roster(plan: Plan, roster: Roster, *, one_machine: bool) -> None:
    """Raises `InvalidRoster`: it doesn't fit the plan, or one host would hold more participants than may collude."""
    check_roster_fits(plan, roster)
    largest = roster.largest_host()
    if largest > plan.colluders and not one_machine:
        raise InvalidRoster(
            f"one host would run {largest} participants, but only A = {plan.colluders} are assumed to collude"
        )


@dataclass(eq=False)
class Membership:
    """The roster in use. It changes between attempts only."""

    plan: Plan
    signed: SignedRoster  # the roster to begin with, checked; then the one in use
    authority_public: bytes  # the key that later versions must be signed with, 32 bytes
    terms: bytes  # SHA-256 of the study document that is served, with which later versions must be signed
    one_machine: bool  # a host may run more participants than are assumed to collude
    offered: SignedRoster | None = None
    excluded: dict[int, str] = field(default_factory=dict)  # number -> reason
    set_aside: set[int] = field(default_factory=set)  # numbers of participants that aren't invited for now
    blamed: set[tuple[int, int]] = field(default_factory=set)  # conflicts for which the dealer was set aside
    _conflicts: dict[int, set[int]] = field(default_factory=dict)  # number -> numbers, one of each two has cheated
    ahead: dict[bytes, tuple[int, int]] = field(default_factory=dict)  # identity -> a later attempt that it has joined
    numbers: list[int] = field(default_factory=list)  # by position

    @property
    def roster(self) -> Roster:
        return self.signed.roster

    def number(self, participant: int) -> int:
        return self.numbers[participant]

    def host(self, participant: int) -> str:
        return self.roster.entries[participant].host

    def members(self) -> frozenset[int]:
        """Positions of the participants that are neither excluded nor set aside."""
        out = self.excluded.keys() | self.set_aside
        return frozenset(who for who, number in enumerate(self.numbers) if number not in out)

    def positions(self, numbers: Collection[int]) -> frozenset[int]:
        return frozenset(who for who, number in enumerate(self.numbers) if number in numbers)

    def missing(self) -> int:
        """How many more must enrol before a round can begin.

        Where cohorts are drawn the plan refers to the whole roster: an excluded participant is still drawn, and absent.
        """
        here = len(self.roster) if self.plan.drawn else len(self.members())
        return max(0, smallest_roster(self.plan) - here)

    def exclusions(self, besides: Collection[int] = ()) -> dict[bytes, str]:
        """Identity -> reason, of those on the roster in use. ``besides``: positions that are left out."""
        known = zip(self.roster.entries, self.numbers, strict=True)
        some = {entry.identity: self.excluded[number] for entry, number in known if number in self.excluded}
        left_out = {self.roster.identity(who) for who in besides}
        return {identity: reason for identity, reason in some.items() if identity not in left_out}

    def note_conflicts(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Note by number that one of each two participants has cheated: a holder says that a dealer sealed rubbish."""
        self._conflicts = self._with(pairs)

    def _with(self, pairs: Iterable[tuple[int, int]]) -> dict[int, set[int]]:
        conflicts = {number: set(others) for number, others in self._conflicts.items()}
        for one, other in pairs:
            conflicts.setdefault(one, set()).add(other)
            conflicts.setdefault(other, set()).add(one)
        return conflicts

    def blamed_before(self, conflicts: Mapping[int, frozenset[int]]) -> set[tuple[int, int]]:
        """Those of these conflicts, by position, for which the dealer was set aside before."""
        pairs = [(dealer, holder) for dealer, holders in conflicts.items() for holder in holders]
        return {pair for pair in pairs if (self.number(pair[0]), self.number(pair[1])) in self.blamed}

    def readmit(self) -> bool:
        """Invite participants that were set aside again, where a round can't begin without them; False if none were."""
        had_any = bool(self.set_aside)
        self.set_aside.clear()
        return had_any

    @property
    def most_cheats(self) -> int:
        """How many of the roster may be cheats.

        Where cohorts are drawn that is more than A, the bound for one cohort: over many rounds an honest participant
        may meet all cheats of the roster.
        """
        everywhere = assumed_colluders(len(self.roster), self.plan.adversarial, self.plan.max_dropout)
        return max(self.plan.colluders, everywhere, FEWEST_COLLUDERS)

    def check_not_older(self, completed_rounds: int, further: Collection[int], number: tuple[int, int]) -> None:
        """Args: further participants of the attempt ``number`` that have heard more of it than it has said.

        Raises Failure: more participants than can be cheats have joined attempts that the journal doesn't know.

        It was restored from an older copy then, and its ledger lacks what those attempts cost.
        """
        # What was said of earlier attempts shows nothing any more: it must not add up over months.
        self.ahead = {identity: joined for identity, joined in self.ahead.items() if joined >= number}
        for who in further:
            self.ahead.setdefault(self.roster.identity(who), number)
        if len(self.ahead) > self.most_cheats:
            # At least one honest participant was there.
            round_, _ = sorted(self.ahead.values(), reverse=True)[self.most_cheats]
            raise Failure(
                ExitCode.LEDGER,
                f"participants have answered round {round_}, and this copy of the study ends with round "
                f"{completed_rounds}: what was spent since is missing in its ledger. Restore a newer copy",
                "docs/operations.md says what to do where there is none",
            )

    def in_too_many_conflicts(self, further: Iterable[tuple[int, int]] = ()) -> dict[int, str]:
        """Position -> reason. An honest participant has conflicts with cheats only, of which there are `most_cheats`.

        Participants that left the roster aren't counted, since others may cheat in their place.

        ``further``: conflicts that aren't noted yet, by number.
        """
        most, here, conflicts = self.most_cheats, set(self.numbers), self._with(further)
        counts = {who: len(conflicts.get(number, set()) & here) for who, number in enumerate(self.numbers)}
        return {
            who: f"{count} others say that it sealed rubbish, or are accused of that by it"
            for who, count in counts.items()
            if count > most and self.numbers[who] not in self.excluded
        }

    def ticket(self, round_: int) -> Ticket | None:
        """Of the round's draw; None where the whole roster is invited."""
        return None if self.signed.draws is None else self.signed.draws.ticket(round_, self.plan.epoch_rounds)

    def offer(self, roster_file: bytes, lottery_file: bytes | None) -> None:
        """Note a later version; `take` puts it to use.

        Raises InvalidRoster: it isn't signed by the authority, not later than what is here, doesn't fit the study's
        plan, or comes without the draws that its signature covers.
        """
        roster = verify_roster(roster_file, self.authority_public)
        newest = (self.offered or self.signed).roster
        if roster.study != newest.study:
            raise InvalidRoster(f"it is the roster of another study, {roster.study!r}")
        if roster.version <= newest.version:
            raise InvalidRoster(f"version {roster.version} isn't later than version {newest.version}, which is here")
        if roster.terms not in (newest.terms, self.terms):  # the first one, of a study without terms yet, has none
            raise InvalidRoster(f"version {roster.version} was signed with other terms than those of the study")
        check_later_roster(self.plan, roster, one_machine=self.one_machine)
        self.offered = SignedRoster(roster, roster_file, read_draws(roster, lottery_file, self.plan))

    def use(self, signed: SignedRoster, numbers: Mapping[bytes, int]) -> tuple[list[int], list[int]]:
        """Put a version to use, once the journal knows it and has numbered its participants.

        Returns numbers of the participants that it added and removed.
        """
        before, after = self.roster.positions.keys(), signed.roster.positions.keys()
        self.signed = signed
        self.numbers = [numbers[entry.identity] for entry in signed.roster.entries]
        if self.offered is not None and self.offered.roster.version <= signed.roster.version:
            self.offered = None
        joined, left = (sorted(numbers[one] for one in some) for some in (after - before, before - after))
        return joined, left
