"""What a round costs for each reader, and the account that adds it up under sampling."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mechanisms.accounting import Account, RoundCharge
from mechanisms.amplification import fixed_size_rdp, poisson_rdp, sampled_rdp
from mechanisms.plan import VECTOR_MECHANISMS, InfeasiblePlan, Plan, make_plan, verify_plan
from mechanisms.pld import poisson_gaussian_epsilon
from mechanisms.privacy_curves import GAUSSIAN_ORDER, rdp_to_epsilon
from mechanisms.round_cost import (
    Noise,
    best_order,
    conditional_epsilon,
    planned_epsilon,
    pld_epsilon,
    reader_curve,
    round_curve,
)
from tests.mechanisms.conftest import plan_for

WANTED: dict[str, Any] = {
    **{"clients": 50, "dim": 300, "bits": 18, "clip": 1.0, "epsilon": 4.0, "delta": 1e-6, "rounds": 100},
    **{"colluders": 5, "min_survivors": 35, "quorum": 40, "max_dropout": 0.2, "adversarial": 0.05},
    **{"sampling": "lottery", "population": 1000, "target": "released"},
}


@pytest.fixture(scope="module")
def sampled() -> Plan:
    return make_plan(**WANTED)


def test_a_lottery_amplifies_for_readers_only(sampled: Plan) -> None:
    assert 3.999 < sampled.epsilon_released <= 4.0
    assert sampled.epsilon_coordinator > 3 * sampled.epsilon_released
    assert sampled.epsilon_conditional < sampled.epsilon_released  # which is why it is no guarantee
    assert sampled.planned_epsilon == sampled.epsilon_released
    assert sampled.budget_coordinator == pytest.approx(sampled.epsilon_coordinator)
    base = sampled.round_curve(sampled.h_min)
    orders = np.array([sampled.order_released])
    assert sampled.released_cost == pytest.approx(float(sampled_rdp(orders, base, 0.05)[0]))


def test_released_rounds_cost_the_same_whoever_survives(sampled: Plan) -> None:
    """The number of survivors may depend on who was drawn: amplification takes the curve at h_min, always."""
    curves = [reader_curve(sampled, sampled.noise, "released", honest)(np.array([3.0])) for honest in (30, 45)]
    assert curves[0] == curves[1]
    assert sampled.round_cost(45) < sampled.round_cost(30)


def test_fixed_size_takes_the_smaller_bound_and_twice_the_sensitivity() -> None:
    plan = make_plan(**WANTED | {"sampling": "fixed"})
    orders = np.arange(2.0, 40.0)
    released = reader_curve(plan, plan.noise, "released", plan.h_min)(orders)
    once, twice = (round_curve(plan, plan.noise, plan.h_min, times=times) for times in (1, 2))
    fixed, any_ = fixed_size_rdp(orders, twice, 0.05), sampled_rdp(orders, once, 0.05)
    assert np.array_equal(released, np.minimum(fixed, any_))
    assert (fixed < any_).any()
    assert (twice(orders) > 3.9 * once(orders)).all()  # replaced, not removed: naive accounting takes `once` here
    lottery = make_plan(**WANTED)
    assert plan.noise_multiplier <= lottery.noise_multiplier * (1 + 1e-9)


def test_the_published_figure_is_conditional() -> None:
    plan = make_plan(**WANTED | {"sampling": "poisson", "target": "conditional"})
    assert 3.999 < plan.epsilon_conditional <= 4.0 < plan.epsilon_released
    orders = np.arange(2.0, 200.0)
    rdp = plan.rounds * poisson_rdp(orders, plan.round_curve(plan.h_min), 0.05)
    assert rdp_to_epsilon(orders, rdp, plan.delta) == pytest.approx(plan.epsilon_conditional, rel=1e-6)
    assert plan.budget_coordinator == plan.budget_released == 0.0  # it is never served


@pytest.mark.parametrize("mechanism", ["ddgauss", "skellam", "gaussian"])
def test_the_published_figure_never_asks_for_more_noise_than_the_proved_ones(mechanism: str) -> None:
    """Of 400 in 1,000 the theorem alone would: half as much again as what holds whoever decides who is drawn."""
    stated = {"mechanism": mechanism, "clients": 400, "population": 1000, "sampling": "poisson", "min_survivors": 400}
    if mechanism == "gaussian":
        stated["sampling"] = "lottery"  # else its losses are composed
    stated |= {"epsilon": 2.0, "delta": 1e-3, "rounds": 40, "quorum": 400, "max_dropout": 0.0, "adversarial": 0.0}
    stated |= {"colluders": 0, "bits": 20}
    published, released, coordinators = (
        make_plan(**WANTED | stated | {"target": target}) for target in ("conditional", "released", "coordinator")
    )
    assert published.noise_multiplier <= released.noise_multiplier * (1 + 1e-9)
    assert published.noise_multiplier <= coordinators.noise_multiplier * (1 + 1e-9)
    orders = np.arange(2.0, 200.0)
    theorem = published.rounds * poisson_rdp(orders, published.round_curve(published.h_min), 0.4)
    assert rdp_to_epsilon(orders, theorem, published.delta) > 1.4 * published.epsilon_conditional


def drawn(of: int, **changed: Any) -> Plan:
    """One round of a lottery in 1,000, in which nobody leaves or colludes."""
    stated = {"clients": of, "min_survivors": of, "quorum": of, "rounds": 1, "delta": 1e-5, "target": "conditional"}
    return make_plan(**WANTED | stated | {"colluders": 0, "max_dropout": 0.0, "adversarial": 0.0} | changed)


def test_where_nearly_all_are_drawn_no_amplification_is_best() -> None:
    plan = drawn(950)
    assert plan.order_conditional == GAUSSIAN_ORDER
    assert plan.epsilon_conditional == pytest.approx(plan.epsilon_coordinator)


def test_the_best_of_all_whole_orders_is_found() -> None:
    """Between 141 and 149 of those that are tried first, with fractions of them in between."""
    plan, orders = drawn(10, epsilon=0.0427), np.arange(100.0, 200.0)
    every = [planned_epsilon(plan, plan.noise, "conditional", one) for one in orders]
    assert best_order(plan, plan.noise, "conditional") == orders[np.argmin(every)] == 142


@pytest.mark.parametrize("mechanism", VECTOR_MECHANISMS)
def test_more_honest_noise_never_costs_more(mechanism: str) -> None:
    plan = make_plan(**WANTED | {"mechanism": mechanism, "sampling": "none", "population": 50, "target": "coordinator"})
    costs = [plan.round_cost(honest) for honest in range(plan.h_min, 46)]
    # Whoever survives, a round costs what is planned, but for the size of the parts of the noise.
    assert all(costs[0] / 1.041 <= cost <= costs[0] for cost in costs)
    plain = replace(plan, noise_parts=0, bits=plan.bits + 1)
    assert all(b <= a for a, b in pairwise([plain.round_cost(honest) for honest in range(plan.h_min, 46)]))
    if mechanism in ("gaussian", "local-gaussian"):
        assert len(set(costs)) == 1
    for honest in (plan.h_min - 1, 46, 0, -1):
        with pytest.raises(ValueError, match="honest"):
            plan.round_curve(honest)


def charges(plan: Plan, rounds: int, survivors: int = 50) -> list[RoundCharge]:
    return [
        RoundCharge(number, 1, frozenset((number * 50 + at) % 1000 for at in range(survivors)), plan.identity)
        for number in range(rounds)
    ]


def test_both_epsilons_run_and_either_budget_stops(sampled: Plan) -> None:
    account = Account(sampled, charges(sampled, 20))  # each of the 1,000 once
    assert account.epsilon_of(0) == account.epsilon_coordinator()
    once = Account(sampled, charges(sampled, 1))
    assert account.epsilon_coordinator() == pytest.approx(once.epsilon_coordinator())  # none took part twice
    assert once.epsilon_released() < Account(sampled, charges(sampled, 60)).epsilon_released() < 4.0
    same = [RoundCharge(number, 1, frozenset(range(35)), sampled.identity) for number in range(100)]
    released = Account(sampled, same)
    assert released.epsilon_released() == pytest.approx(sampled.epsilon_released, rel=1e-9)
    assert released.would_exceed()
    # The same participants drawn every time: the coordinator's budget, that of all rounds, ends with the rounds.
    assert not Account(sampled, same[:99]).would_exceed()
    tight = replace(sampled, budget_coordinator=sampled.epsilon_coordinator)
    again = [RoundCharge(number, 1, frozenset(range(35)), tight.identity) for number in range(100)]
    assert Account(tight, again).would_exceed()


def test_budgets_below_the_plan_are_refused(sampled: Plan) -> None:
    with pytest.raises(InfeasiblePlan, match="budget"):
        replace(sampled, budget_coordinator=sampled.epsilon_coordinator * 0.99)
    with pytest.raises(InfeasiblePlan, match="not the target"):
        replace(sampled, budget_released=5.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sampling": "none"}, "without sampling"),
        ({"population": 49}, "population"),
        ({"sampling": "none", "population": 50, "target": "conditional"}, "conditional"),
        ({"sampling": "often"}, "sampling"),
        ({"rounds": 10**9, "epsilon": 1e-3}, "no noise|bits"),
    ],
)
def test_infeasible_sampling_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InfeasiblePlan, match=reason) as caught:
        make_plan(**WANTED | change)
    assert caught.value.suggestion


def test_a_coordinators_epsilon_that_cannot_be_stated_is_refused() -> None:
    with pytest.raises(InfeasiblePlan, match="epsilon_coordinator"):
        make_plan(**WANTED | {"population": 10**7, "rounds": 10**5, "epsilon": 8.0})


def test_a_larger_population_needs_less_noise() -> None:
    noise = [make_plan(**WANTED | {"population": p}).noise_multiplier for p in (100, 300, 1000)]
    assert noise[0] > noise[1] > noise[2]
    assert all(math.isfinite(one) for one in noise)


# ------------------------------------------------------------------------------------------- the central baseline


def central(sampling: str, **changed: Any) -> Plan:
    """The small image setting's, 100 of 1,000 in each of 50 rounds, on a grid that doesn't count."""
    stated = {"mechanism": "gaussian", "dim": 500, "bits": 24, "epsilon": 2.0, "delta": 1e-3, "rounds": 50}
    return plan_for(100, **stated | {"population": 1000, "sampling": sampling, "target": "conditional"} | changed)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_conditional_central_gaussian_is_calibrated_by_its_losses(sampling: str) -> None:
    """The Renyi bound over whole orders asks for z = 1.94."""
    pld = pytest.importorskip("dp_accounting.pld.pld_privacy_accountant")
    event = pytest.importorskip("dp_accounting.dp_event")

    plan = central(sampling)
    z = plan.effective_noise_multiplier
    assert z < 1.4731
    rounds = event.SelfComposedDpEvent(event.PoissonSampledDpEvent(0.1, event.GaussianDpEvent(z)), 50)
    independent = pld.PLDAccountant(value_discretization_interval=1e-3).compose(rounds).get_epsilon(1e-3)
    assert independent == pytest.approx(plan.epsilon_conditional, rel=1e-3)
    assert 0.997 * 2 < plan.epsilon_conditional <= 2.0
    renyi = planned_epsilon(plan, plan.noise, "conditional", np.arange(2.0, 100))
    assert renyi > 2.5
    assert planned_epsilon(plan, plan.noise, "conditional", plan.order_conditional) == pytest.approx(renyi)
    verify_plan(plan)
    assert Plan.from_json(plan.to_json()) == plan
    less = Fraction(math.floor(plan.local_variance * 2**28 * 99 / 100), 2**28)
    with pytest.raises(InfeasiblePlan, match="exceeds the target 2"):
        replace(plan, local_variance=less)


def test_a_lotterys_figure_is_the_one_that_participants_find() -> None:
    """They have no dp-accounting."""
    plan = central("lottery")
    assert plan.effective_noise_multiplier == pytest.approx(1.9412, abs=1e-3)
    assert plan.epsilon_conditional == planned_epsilon(plan, plan.noise, "conditional", plan.order_conditional)


def test_what_the_lattice_adds_is_paid_out_of_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = central("poisson")
    z, q = plan.effective_noise_multiplier, plan.sampling_rate
    least, most = (poisson_gaussian_epsilon(z, q, 50, share * 1e-3) for share in (1, 0.99))
    assert least < plan.epsilon_conditional < most
    fine, coarse = (Noise(0.1, Fraction(variance, plan.h_min)) for variance in (128, 127))
    assert pld_epsilon(plan, fine, 50) < math.inf
    assert pld_epsilon(plan, coarse, 50) == math.inf  # no continuous Gaussian stands for it
    assert conditional_epsilon(plan, coarse, 2, 50) == planned_epsilon(plan, coarse, "conditional", 2)
    monkeypatch.setattr("mechanisms.round_cost.SAMPLER_DISTANCE", 2.0**-50)
    assert pld_epsilon(plan, plan.noise, 50) == math.inf


@pytest.mark.long
def test_between_checkpoints_the_figure_is_that_of_the_next() -> None:
    plan = central("fixed")
    shown = [conditional_epsilon(plan, plan.noise, plan.order_conditional, rounds) for rounds in range(1, 54)]
    assert all(before <= after for before, after in pairwise(shown))
    assert shown[49] == plan.epsilon_conditional
    assert all(pld_epsilon(plan, plan.noise, rounds) <= shown[rounds - 1] for rounds in (1, 10, 47, 52))
    assert len(set(shown)) <= 12


NO_ACCOUNTANT = """
import sys
sys.modules["dp_accounting"] = None
from tests.mechanisms.test_round_cost import central
assert 1.94 < central("fixed").effective_noise_multiplier < 1.943
"""
PARTICIPANT = """
import sys
from tests.mechanisms.test_round_cost import central
for sampling in ("lottery", "poisson"):
    plan = central(sampling, target="released", epsilon=20.0)
    assert type(plan).from_json(plan.to_json()).planned_epsilon <= 20
plan = central("lottery")
assert not {"dp_accounting", "scipy"} & set(sys.modules)
"""


@pytest.mark.parametrize("script", [NO_ACCOUNTANT, PARTICIPANT])
def test_without_dp_accounting_the_renyi_bound_stays_and_served_plans_never_load_it(script: str) -> None:
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, cwd=Path(__file__).parents[2])
