"""How fast a study goes, by its last rounds: when participants needn't be connected, and how long phases may take."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from mechanisms.plan import Plan
from secagg.context import winners
from secagg.messages import ADVERTISE_KEYS, CONSISTENCY_CHECK, MASKED_INPUT, SHARE_KEYS, UNMASKING
from secagg.roster import Roster
from server.attempt.outgoing import AT_ONCE
from server.events import RoundCompleted
from server.membership import Membership
from server.sessions import Session
from server.study_tables import DeadlineTable
from wire import codec, coordinator_pb2 as pb

REST_LEAST_S: Final = 20.0  # else a new session costs more than the connection
REST_MOST_S: Final = 3600.0
UNKNOWN_ROUND_S: Final = 1.0  # what a round takes at least, before one has shown it,
UNKNOWN_REST_S: Final = 60.0  # and the longest rest until then: a faster study waits as long for who is away
EARLY: Final = 0.6  # of the time that a participant has: rounds may get faster, and one that is too early is told again
LONGEST_REST: Final = 1.1  # times the rest: participants spread their returns
BACK_S: Final = 5.0  # to connect again
AHEAD: Final = 64  # rounds whose cohorts are looked at
LAST_ROUNDS: Final = 10
SLOWER: Final = 3.0  # a phase may take this many times as long as in any of the last rounds,
LEAST_S: Final = 2.0  # and at least this long


class Pace:
    """What the last rounds took."""

    def __init__(self, plan: Plan, membership: Membership, deadlines: DeadlineTable, pause_s: float) -> None:
        self._plan, self._membership, self.pause_s = plan, membership, pause_s
        self._adaptive = deadlines.adaptive
        self.configured_s = {
            ADVERTISE_KEYS: deadlines.advertise_keys_s,
            SHARE_KEYS: deadlines.share_keys_s,
            MASKED_INPUT: deadlines.masked_input_s,
            CONSISTENCY_CHECK: deadlines.consistency_check_s,
            UNMASKING: deadlines.unmasking_s,
        }
        self._rounds: deque[float] = deque(maxlen=LAST_ROUNDS)  # seconds of their attempts
        self._phases: deque[Mapping[str, float]] = deque(maxlen=LAST_ROUNDS)
        self._cohorts: tuple[Roster, dict[int, frozenset[int]]] = membership.roster, {}

    def note(self, event: RoundCompleted) -> None:
        """A round is over."""
        self._rounds.append(event.seconds)
        self._phases.append(event.phase_seconds)

    # ------------------------------------------------------------ phases

    def deadlines_s(self, attempt: int) -> dict[str, float]:
        """The longest wait of each phase of an attempt: as configured, or shorter where they adapt.

        A round that was too fast for some is repeated with the configured ones. A phase that waited for its deadline
        took as long as that, so the next deadline is longer again.
        """
        configured = self.configured_s
        if not self._adaptive or attempt > 1 or len(self._phases) < LAST_ROUNDS:
            return configured
        slowest = {name: max(one.get(name, configured[name]) for one in self._phases) for name in configured}
        return {name: min(most, max(LEAST_S, SLOWER * slowest[name])) for name, most in configured.items()}

    # ------------------------------------------------------------ participants

    def look_ahead(self, round_: int) -> None:
        """Draw the cohorts of the coming rounds, if the plan draws any. Computes: not for the event loop."""
        plan, membership = self._plan, self._membership
        roster, draws = membership.roster, membership.signed.draws
        known = self._cohorts[1] if self._cohorts[0] is roster else {}
        cohorts: dict[int, frozenset[int]] = {}
        if draws is not None and len(roster) >= plan.clients:
            for coming in range(round_, min(round_ + AHEAD, plan.rounds + 1)):
                ticket = draws.ticket(coming, plan.epoch_rounds)
                cohorts[coming] = known.get(coming) or winners(roster, coming, ticket, plan.clients, plan.epoch_rounds)
        self._cohorts = roster, cohorts

    def rest_s(self, participant: int, coming: int, pause_left_s: float = 0.0) -> float:
        """How long a participant needn't be connected; 0: it should stay.

        Args:
            participant: by its position, which isn't in an attempt under way.
            coming: the next round. After one that is under way it may begin at any moment.
            pause_left_s: in a pause, what is left of it.
        """
        roster, cohorts = self._cohorts
        rounds = 0
        if cohorts and roster is self._membership.roster:
            drawn = (one for one, cohort in cohorts.items() if one >= coming and participant in cohort)
            rounds = min(drawn, default=max(cohorts) + 1) - coming
        fastest, longest = min(self._rounds, default=UNKNOWN_ROUND_S), REST_MOST_S if self._rounds else UNKNOWN_REST_S
        rest = EARLY * (pause_left_s + max(rounds, 0) * (fastest + self.pause_s))
        return min(rest, max(longest, EARLY * pause_left_s), REST_MOST_S) if rest >= REST_LEAST_S else 0.0

    def let_one_rest(self, session: Session, coming: int, pause_left_s: float = 0.0) -> None:
        """Tell a ready participant for how long it isn't needed. Arguments as `rest_s`."""
        rest_s = self.rest_s(session.participant, coming, pause_left_s) if session.ready else 0.0
        if rest_s:
            session.rests_until = time.monotonic() + LONGEST_REST * rest_s + BACK_S
            session.send(codec.message(rest=pb.Rest(seconds=rest_s)))

    async def let_rest(self, sessions: Iterable[Session], coming: int, pause_left_s: float = 0.0) -> None:
        """Tell many, few at a time: ten thousand at once would stop the event loop for a second."""
        for count, session in enumerate(sessions, 1):
            self.let_one_rest(session, coming, pause_left_s)
            if count % AT_ONCE == 0:
                await asyncio.sleep(0)
