"""The coordinator's account of one study: what happened, and what it costs.

Events are immutable facts (whose vectors were in a sum that was about to be opened); costs are computed from them.
There are two epsilons. `epsilon_coordinator`, for readers who know the cohorts, is the largest over participants of the
cost of the rounds that held them. `epsilon_released`, for readers of the released models, charges every round at the
plan's sampling rate. A filter for each, at the order that the plan fixed, ends the study (Renyi: [FZ21] Theorem 4.3;
exact Gaussian costs: [ST22]; survivors and clips may be chosen adaptively): the guarantee to state is the
budget's (epsilon, delta). Where cohorts are drawn the coordinator's filter ends the part of each participant, and not
the study.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from mechanisms.plan import Plan
from mechanisms.privacy_curves import epsilon_with_sampler_error


class UnknownEvent(ValueError):
    """An event that this account cannot hold: another plan, a repetition, an impossible survivor set."""


@dataclass(frozen=True)
class RoundCharge:
    """u3 of one attempt was frozen: from here on its cost stays, whether the sum is opened or not."""

    round: int  # counted from 0 or 1 by the caller
    attempt: int  # likewise; each pair of both at most once
    survivors: frozenset[int]  # u3, participants by roster position
    plan_identity: str  # `Plan.identity` of the plan the vectors were encoded under


class Account:
    """The composed unamplified cost of the rounds of one study, per participant, at the plan's order.

    ``events``: charges already on record, for instance after a restart.
    """

    def __init__(self, plan: Plan, events: Iterable[RoundCharge] = ()) -> None:
        self.plan = plan
        self._events: dict[tuple[int, int], RoundCharge] = {}
        self._rdp: dict[int, float] = {}
        self._draws = 0
        self._costs: dict[int, float] = {}  # by |u3|
        self._worst_round = plan.round_cost(plan.h_min)
        for event in events:
            self.charge(event)

    @property
    def events(self) -> tuple[RoundCharge, ...]:
        """All charges, in the order they were made."""
        return tuple(self._events.values())

    def charge(self, event: RoundCharge) -> None:
        """Record a charge. A retry of a round is a new attempt and a new charge.

        Raises UnknownEvent: not a `RoundCharge`, made under another plan, already recorded, or its survivors are too
        few or too many for the plan, or no roster positions. The account does not change then.
        """
        if type(event) is not RoundCharge:
            raise UnknownEvent(f"no charge: {type(event).__name__}")
        if event.plan_identity != self.plan.identity:
            raise UnknownEvent("the charge belongs to another plan")
        if any(type(n) is not int or n < 0 for n in (event.round, event.attempt)):
            raise UnknownEvent("round and attempt must be whole numbers from 0")
        if (event.round, event.attempt) in self._events:
            raise UnknownEvent(f"round {event.round} attempt {event.attempt} is already charged")
        if type(event.survivors) is not frozenset or any(type(p) is not int or p < 0 for p in event.survivors):
            raise UnknownEvent("survivors must be a frozenset of roster positions")
        fewest, most = (0, self.plan.population) if self.plan.by_coins else (self.plan.min_survivors, self.plan.clients)
        if not fewest <= len(event.survivors) <= most:
            raise UnknownEvent(f"{len(event.survivors)} survivors: the plan covers {fewest} to {most}")
        cost = self.cost_of_round(len(event.survivors))
        self._events[event.round, event.attempt] = event
        # The trusted coordinator draws once for each value, which is less than what a full round of shares counts.
        drawn = self.plan.clients if self.plan.by_coins else len(event.survivors)
        self._draws += drawn * self.plan.padded_dim
        for participant in event.survivors:
            self._rdp[participant] = self._rdp.get(participant, 0.0) + cost

    def cost_of_round(self, survivors: int) -> float:
        """Cost, at the filter's order, of one sum over ``survivors`` vectors of which A are known."""
        if survivors not in self._costs:
            honest = self.plan.h_min if self.plan.by_coins else survivors - self.plan.colluders
            self._costs[survivors] = self.plan.round_cost(honest)
        return self._costs[survivors]

    def rdp_of(self, participant: int) -> float:
        """Composed cost at the filter's order, of one participant."""
        return self._rdp.get(participant, 0.0)

    def epsilon_of(self, participant: int) -> float:
        """epsilon of one participant at the plan's delta; 0 if no charged sum held them."""
        return self._epsilon(self.rdp_of(participant), self._draws) if participant in self._rdp else 0.0

    def epsilon_coordinator(self) -> float:
        """The largest `epsilon_of`: against the coordinator and every participant."""
        return self._epsilon(max(self._rdp.values()), self._draws) if self._rdp else 0.0

    def epsilon_released(self) -> float:
        """Against readers of released models who don't know the cohorts: every charge at the plan's sampling rate.

        Never more than `epsilon_coordinator`, and equal to it without sampling: the models alone show nothing that the
        coordinator doesn't see. Both are bounds, at orders fixed by the plan; after few rounds the amplified one may be
        the weaker.
        """
        if not self.plan.amplified or not self._events:
            return self.epsilon_coordinator()
        return min(self.epsilon_coordinator(), self._epsilon_released(len(self._events), self._draws))

    def would_exceed(self) -> bool:
        """The filter: might one more attempt exceed a budget? Ask before every attempt.

        The attempt is priced at h_min, the most it can cost, for the participant with the largest charges so far; where
        cohorts are drawn, for one without charges, since those in `spent` aren't invited.
        """
        plan = self.plan
        charged = 0.0 if plan.drawn else max(self._rdp.values(), default=0.0)
        draws = self._draws + plan.clients * plan.padded_dim
        coordinator = self._epsilon(charged + self._worst_round, draws)
        released = self._epsilon_released(len(self._events) + 1, draws) if plan.amplified else coordinator
        return not (coordinator <= plan.budget_coordinator and released <= plan.budget_released)

    def spent(self) -> frozenset[int]:
        """Participants whose budget another sum could exceed."""
        plan = self.plan
        draws = self._draws + plan.clients * plan.padded_dim
        costs = sorted(set(self._rdp.values()))
        room = bisect_left(  # epsilon grows with the cost
            costs, True, key=lambda rdp: self._epsilon(rdp + self._worst_round, draws) > plan.budget_coordinator
        )
        beyond = frozenset(costs[room:])
        return frozenset(who for who, rdp in self._rdp.items() if rdp in beyond)

    def _epsilon(self, rdp: float, draws: int) -> float:
        return epsilon_with_sampler_error(self.plan.order, rdp, self.plan.delta, draws)

    def _epsilon_released(self, charges: int, draws: int) -> float:
        rdp = charges * self.plan.released_cost
        return epsilon_with_sampler_error(self.plan.order_released, rdp, self.plan.delta, draws)
