"""What the account charges, what it refuses, and when the filter stops the study."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mechanisms.accounting import Account, RoundCharge, UnknownEvent
from mechanisms.plan import Plan, make_plan
from mechanisms.privacy_curves import rdp_to_epsilon
from tests.mechanisms.conftest import DEMO, plan_for

EVERYBODY = frozenset(range(100))
FEWEST = frozenset(range(70))


def charge(plan: Plan, number: int, survivors: frozenset[int], attempt: int = 0) -> RoundCharge:
    return RoundCharge(number, attempt, survivors, plan.identity)


def test_an_empty_account_is_free(demo_plan: Plan) -> None:
    account = Account(demo_plan)
    assert account.epsilon_coordinator() == account.epsilon_of(3) == 0.0
    assert not account.would_exceed()


def test_full_participation_of_the_demonstration(demo_plan: Plan) -> None:
    account = Account(demo_plan, [charge(demo_plan, r, EVERYBODY) for r in range(15)])
    # The noise of 95 honest shares is taken back to what 65 would have needed, but for the size of the parts.
    assert account.epsilon_coordinator() == pytest.approx(8.0, abs=0.001)
    all_noise_stays = make_plan(**DEMO, noise_parts=0)
    account = Account(all_noise_stays, [charge(all_noise_stays, r, EVERYBODY) for r in range(15)])
    assert account.epsilon_coordinator() == pytest.approx(6.374, abs=0.002)
    assert account.epsilon_released() == account.epsilon_coordinator()
    assert len(account.events) == 15


def test_the_filter_allows_exactly_the_planned_rounds_at_the_minimum(demo_plan: Plan) -> None:
    account = Account(demo_plan)
    for r in range(15):
        assert not account.would_exceed()
        account.charge(charge(demo_plan, r, FEWEST))
        assert account.epsilon_coordinator() <= demo_plan.epsilon
    assert account.epsilon_coordinator() > 7.99
    assert account.would_exceed()
    # A truthful event is recorded even past the target: it happened.
    account.charge(charge(demo_plan, 15, FEWEST))
    assert account.epsilon_coordinator() > demo_plan.epsilon


def test_the_filter_prices_the_next_round_at_the_minimum() -> None:
    """Where all noise stays, full rounds leave room for more than 15; each is only started if its worst case fits."""
    plan = make_plan(**DEMO, noise_parts=0)
    account, done = Account(plan), 0
    while not account.would_exceed():
        account.charge(charge(plan, done, EVERYBODY))
        done += 1
        assert account.epsilon_coordinator() <= plan.epsilon
    assert 15 < done <= 22


def test_each_participant_pays_for_the_sums_that_held_them(demo_plan: Plan) -> None:
    account = Account(demo_plan)
    account.charge(charge(demo_plan, 0, EVERYBODY))
    account.charge(charge(demo_plan, 1, frozenset(range(75))))
    account.charge(charge(demo_plan, 2, frozenset(range(25, 100))))
    order = demo_plan.order
    cost = {n: demo_plan.round_cost(n - 5, order) for n in (75, 100)}
    assert cost[75] != cost[100]
    assert account.rdp_of(0) == pytest.approx(cost[100] + cost[75])
    assert account.rdp_of(50) == pytest.approx(cost[100] + 2 * cost[75])
    assert account.rdp_of(99) == pytest.approx(cost[100] + cost[75])
    assert account.epsilon_of(50) == account.epsilon_coordinator() > account.epsilon_of(0) > 0
    assert account.epsilon_of(500) == 0.0


def test_counting_all_survivors_as_honest_would_undercount(demo_plan: Plan) -> None:
    """A of the surviving shares are known: the naive accountant divides by |u3| instead of |u3| - A."""
    account = Account(demo_plan, [charge(demo_plan, 0, EVERYBODY)])
    assert account.cost_of_round(70) == demo_plan.round_cost(65)
    naive = demo_plan.round_cost(70)
    assert naive < account.cost_of_round(70)
    assert account.cost_of_round(75) == naive


def test_a_retry_is_a_new_charge(demo_plan: Plan) -> None:
    account = Account(demo_plan, [charge(demo_plan, 0, EVERYBODY)])
    once = account.rdp_of(0)
    account.charge(charge(demo_plan, 0, EVERYBODY, attempt=1))
    assert account.rdp_of(0) == pytest.approx(2 * once)


def test_a_restart_gives_the_same_account(demo_plan: Plan) -> None:
    account = Account(demo_plan, [charge(demo_plan, r, frozenset(range(r, 80 + r))) for r in range(6)])
    again = Account(demo_plan, account.events)
    assert again.epsilon_coordinator() == account.epsilon_coordinator()
    assert again.events == account.events


def test_unknown_events_are_refused_and_change_nothing(demo_plan: Plan) -> None:
    account = Account(demo_plan, [charge(demo_plan, 0, EVERYBODY)])
    before = account.epsilon_coordinator(), account.events
    other = replace(demo_plan, epsilon=9.0, budget_coordinator=9.0, budget_released=9.0)
    bad = [
        charge(demo_plan, 0, EVERYBODY),
        charge(demo_plan, 0, FEWEST),
        charge(other, 1, EVERYBODY),
        charge(demo_plan, 1, frozenset(range(69))),
        charge(demo_plan, 1, frozenset(range(101))),
        charge(demo_plan, 1, frozenset(range(-1, 80))),
        charge(demo_plan, 1, frozenset(map(str, range(80)))),  # type: ignore[arg-type]
        charge(demo_plan, 1, list(range(80))),  # type: ignore[arg-type]
        charge(demo_plan, -1, EVERYBODY),
        charge(demo_plan, 1.0, EVERYBODY),  # type: ignore[arg-type]
        RoundCharge(1, 0, EVERYBODY, ""),
        "round 1",
        None,
    ]
    for event in bad:
        with pytest.raises(UnknownEvent):
            account.charge(event)  # type: ignore[arg-type]
        assert (account.epsilon_coordinator(), account.events) == before
    with pytest.raises(AttributeError):
        account.events[0].round = 5  # type: ignore[misc]


def test_the_running_figure_is_that_of_the_fixed_order() -> None:
    """Survivors are chosen adaptively: on a grid too coarse for exact costs, the best order in hindsight isn't used."""
    coarse = plan_for(20, dim=64, bits=8, epsilon=10.0, rounds=3, min_survivors=12, quorum=12, max_dropout=0.2)
    account = Account(coarse, [charge(coarse, 0, frozenset(range(20)))])
    at_order = rdp_to_epsilon(coarse.order, coarse.round_cost(20), coarse.delta)
    assert account.epsilon_coordinator() == pytest.approx(at_order, rel=1e-9)
    in_hindsight = rdp_to_epsilon(6.0, coarse.round_cost(20, 6.0), coarse.delta)
    assert in_hindsight < account.epsilon_coordinator()


def test_a_reader_of_models_is_never_told_to_know_more_than_the_coordinator() -> None:
    """After one of many rounds the bound that amplifies, at an order fixed for all of them, is the weaker one."""
    drawn = make_plan(
        mechanism="ddgauss",
        **{"clients": 20, "dim": 500, "bits": 16, "clip": 1.0, "epsilon": 8.0, "delta": 1e-5, "rounds": 4},
        **{"colluders": 2, "min_survivors": 12, "quorum": 12, "max_dropout": 0.3, "adversarial": 0.05},
        **{"sampling": "lottery", "population": 40},
    )
    account = Account(drawn)
    for round_ in range(1, 5):
        who = frozenset(range(round_, round_ + 20))
        account.charge(RoundCharge(round_, 1, who, drawn.identity))
        assert 0 < account.epsilon_released() <= account.epsilon_coordinator()
    naive = account._epsilon_released(1, 20 * drawn.padded_dim)
    assert naive > Account(drawn, [RoundCharge(1, 1, frozenset(range(20)), drawn.identity)]).epsilon_coordinator()


def test_of_rounds_by_coins_any_number_is_charged_alike() -> None:
    """The trusted coordinator's noise doesn't depend on how many were drawn; a lottery's plan knows the most and the
    fewest."""
    drawn = {"mechanism": "gaussian", "population": 1000}
    coins, lottery = (make_plan(**DEMO | drawn | {"sampling": one}) for one in ("poisson", "lottery"))
    account = Account(coins, [charge(coins, 0, frozenset()), charge(coins, 1, frozenset(range(131)))])
    assert account.rdp_of(130) == coins.round_cost(coins.h_min) > account.rdp_of(131) == 0
    assert account._draws == 2 * 100 * coins.padded_dim
    assert account.epsilon_released() > 0
    for number in (0, 131):
        with pytest.raises(UnknownEvent, match="the plan covers 70 to 100"):
            Account(lottery).charge(charge(lottery, 0, frozenset(range(number))))


def test_where_cohorts_are_drawn_each_has_a_budget_of_its_own(demo_plan: Plan) -> None:
    """Somebody that has spent it ends nobody else's part: by epochs it is that of five rounds, not of fifty."""
    stated = {field: getattr(demo_plan, field) for field in ("clients", "dim", "bits", "epsilon", "delta", "rounds")}
    plan = make_plan(
        **stated | {"rounds": 50},
        **{"clip": 1.0, "sampling": "epochs", "population": 1000, "colluders": 0, "adversarial": 0.0},
        **{"min_survivors": 70, "quorum": 70, "max_dropout": 0.3},
    )
    assert plan.participations == 5
    account = Account(plan)
    for r in range(5):
        assert not account.spent()
        account.charge(charge(plan, r, FEWEST))
    assert account.spent() == FEWEST
    assert account.epsilon_coordinator() <= plan.epsilon
    assert not account.would_exceed()
    account.charge(charge(plan, 5, EVERYBODY - FEWEST | frozenset(range(200, 260))))
    assert account.spent() == FEWEST
    assert account.epsilon_released() == account.epsilon_coordinator()
