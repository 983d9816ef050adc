"""Of a dealer and a holder that says it got rubbish one has cheated: when that is enough to know who."""

from __future__ import annotations

import pytest

from mechanisms.plan import Plan
from secagg.parameters import assumed_colluders
from secagg.roster import Roster, RosterEntry
from server.membership import Membership, SignedRoster
from wire.study import plan_study


def membership(plan: Plan, people: int) -> Membership:
    entries = tuple(RosterEntry(n.to_bytes(32, "big"), f"host-{n}") for n in range(1, people + 1))
    found = Membership(plan, SignedRoster(Roster("s", 1, entries), b""), bytes(32), one_machine=False)
    found.numbers = [100 + who for who in range(people)]  # never positions
    return found


def planned(clients: int, **others: object) -> Plan:
    chosen = {"dim": 8, "bits": 16, "clip": 1.0, "epsilon": 100.0, "delta": 1e-3, "rounds": 5, "max_dropout": 0.2}
    return plan_study(clients=clients, **(chosen | others))  # type: ignore[arg-type]


@pytest.mark.parametrize(("clients", "adversarial", "most"), [(7, 0.1, 2), (100, 0.05, 5)])
def test_more_than_can_collude(clients: int, adversarial: float, most: int) -> None:
    found = membership(planned(clients, adversarial=adversarial), clients)
    for other in range(1, most + 1):
        found.conflict(0, other)
        found.conflict(other, 0)  # the two of them once, however often they accuse each other
    assert found.in_too_many_conflicts() == {}
    found.conflict(most + 1, 0)
    [(who, reason)] = found.in_too_many_conflicts().items()
    assert who == 0
    assert reason == f"{most + 1} others say that it sealed rubbish, or are accused of that by it"
    found.excluded[found.numbers[0]] = reason
    assert found.in_too_many_conflicts() == {}
    assert 0 not in found.members()


def test_over_many_draws_somebody_honest_may_meet_all_colluders_of_the_roster() -> None:
    """The naive bound is A, which is of one cohort: with it she is excluded for what others did to her."""
    plan = planned(50, adversarial=0.1, sampling="lottery", population=400)
    everywhere = assumed_colluders(400, plan.adversarial, plan.max_dropout)
    assert plan.colluders < everywhere == 40
    found = membership(plan, 400)
    for colluder in range(1, everywhere + 1):
        found.conflict(colluder, 0)
    assert len(found._conflicts[found.numbers[0]]) > plan.colluders
    assert found.in_too_many_conflicts() == {}
    found.conflict(everywhere + 1, 0)
    assert found.in_too_many_conflicts().keys() == {0}


def test_whoever_left_is_not_counted() -> None:
    """Others may collude in the place of those who were revoked."""
    found = membership(planned(7, adversarial=0.1), 7)
    for other in (1, 2, 3):
        found.conflict(0, other)
    assert found.in_too_many_conflicts().keys() == {0}
    found.numbers[3] = 999  # somebody else stands there now
    assert found.in_too_many_conflicts() == {}
