"""Calibration, refusals, and the strict JSON of plans."""

from __future__ import annotations

import json
import math
import os
from dataclasses import fields, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mechanisms.calibration import VARIANCE_DENOMINATOR
from mechanisms.clip_rule import ClipRule
from mechanisms.encoder import Encoder
from mechanisms.plan import InfeasiblePlan, Plan, assumed_colluders, make_plan, verify_plan
from mechanisms.privacy_curves import order_grid, rdp_to_epsilon
from tests.mechanisms.conftest import DEMO, each, filled, plan_for, secure_sum

Arguments = dict[str, Any]


def test_colluders_are_counted_as_written() -> None:
    assert assumed_colluders(0.05, 100) == 5
    assert assumed_colluders(0.29, 100) == 29  # 0.29 * 100 is 28.999999999999996 in doubles
    assert assumed_colluders(0.05, 5) == 0
    assert assumed_colluders(1 / 3, 10) == 3
    assert assumed_colluders(0.0, 7) == 0


def test_the_demonstrations_figures(demo_plan: Plan) -> None:
    plan = demo_plan
    assert plan.h_min == 65
    assert plan.padded_dim == 512
    assert plan.full_stddev / plan.clip == pytest.approx(2.386, abs=0.001)
    assert 7.999 < plan.planned_epsilon <= 8.0
    everybody = 15 * plan.round_cost(95)
    assert rdp_to_epsilon(plan.order, everybody, plan.delta) == pytest.approx(8.0, abs=0.001)
    assert rdp_to_epsilon(order_grid(), 15 * plan.round_curve(95)(order_grid()), plan.delta) > 8.5  # by Renyi bounds
    assert plan.full_stddev == pytest.approx(plan.central_stddev * math.sqrt(100 / 95), rel=1e-6)
    assert plan.central_stddev == pytest.approx(plan.local_stddev * math.sqrt(65))
    assert 1 < plan.inflated_clip / plan.clip < 1.001
    assert plan.effective_noise_multiplier < plan.noise_multiplier
    assert plan.warnings == ()
    assert "zero-out" in plan.adjacency
    assert math.sqrt(plan.squared_norm_limit) <= plan.l2_bound_grid


def test_the_variance_is_the_smallest_one_that_keeps_the_target(demo_plan: Plan) -> None:
    with pytest.raises(InfeasiblePlan, match="exceeds the target"):
        replace(demo_plan, local_variance=demo_plan.local_variance - Fraction(1, 2))
    assert demo_plan.local_variance.denominator <= VARIANCE_DENOMINATOR


@given(
    clients=st.integers(2, 2000),
    dim=st.integers(1, 1 << 20),
    bits=st.integers(6, 40),
    epsilon=st.floats(0.05, 30),
    delta=st.sampled_from([1e-3, 1e-5, 1e-9]),
    rounds=st.integers(1, 2000),
    share=st.floats(0.1, 1),
    beta=st.sampled_from([0.0, 0.1, math.exp(-0.5), 0.9]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
@pytest.mark.long
def test_the_target_is_never_exceeded(
    clients: int, dim: int, bits: int, epsilon: float, delta: float, rounds: int, share: float, beta: float
) -> None:
    survivors = max(1, math.floor(clients * share))
    try:
        plan = plan_for(
            clients,
            **{"dim": dim, "bits": bits, "clip": 0.3, "epsilon": epsilon, "delta": delta, "rounds": rounds},
            **{"colluders": survivors // 10, "min_survivors": survivors, "max_dropout": 0.1, "beta": beta},
        )
    except InfeasiblePlan as problem:
        if not problem.reason or not problem.suggestion:
            raise AssertionError("a refusal must say why and what works") from problem
        return
    # The target holds at the filter's order, recomputed here from the curve alone.
    assert rdp_to_epsilon(plan.order, rounds * plan.round_cost(plan.h_min), delta) <= epsilon
    verify_plan(plan)
    assert Plan.from_json(plan.to_bytes()) == plan


def test_noise_sized_for_all_clients_is_refused() -> None:
    """The naive plan: all are assumed to survive and none to collude, then the minimum is lowered."""
    naive = make_plan(**DEMO | {"colluders": 0, "adversarial": 0.0, "min_survivors": 100, "quorum": 100})
    assert naive.planned_epsilon <= 8
    with pytest.raises(InfeasiblePlan, match="exceeds the target"):
        replace(naive, min_survivors=70, quorum=75)
    with pytest.raises(InfeasiblePlan, match="exceeds the target"):
        replace(naive, colluders=5)


def test_the_wrap_bound_uses_all_clients(demo_plan: Plan) -> None:
    assert 1 - 1e-6 < filled(demo_plan, demo_plan.shares_in_sum, demo_plan.padded_dim) <= 1
    with pytest.raises(InfeasiblePlan, match="wrap"):
        replace(demo_plan, clients=110, population=110)
    with pytest.raises(InfeasiblePlan, match="wrap"):
        replace(demo_plan, granularity=demo_plan.granularity * 0.99, epsilon=100.0)


OUT_OF_RANGE: list[Arguments] = [
    *each("bits", 0, 63),
    *each("clients", 1),
    *each("dim", 0),
    *each("rounds", 0),
    *each("clip", 0.0, -1.0),
    *each("epsilon", 0.0),
    *each("delta", 0.0, 1.0),
    *each("colluders", 70, -1),
    *each("min_survivors", 76),
    *each("quorum", 101),
    *each("max_dropout", 1.0),
    *each("adversarial", -0.1),
    *each("beta", 1.0, 0.95),
    *each("k_stddevs", 0.5),
    *each("mechanism", "laplace"),
]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bits": 3}, "cannot hold"),
        ({"bits": 8}, "no noise"),
        ({"bits": 40}, "finer grid"),
        ({"bits": 62, "dim": 1}, "finer grid|64 bits"),
        ({"epsilon": 1e-3, "bits": 12}, "no noise"),
        ({"clip": math.nan}, "not a number"),
        ({"epsilon": math.inf}, "infinite"),
        ({"colluders": 4}, "fewer than"),
        *((change, next(iter(change))) for change in OUT_OF_RANGE),
    ],
)
def test_infeasible_plans_are_refused_with_a_way_out(change: Arguments, reason: str) -> None:
    with pytest.raises(InfeasiblePlan, match=reason) as caught:
        make_plan(**DEMO | change)
    assert caught.value.reason
    assert caught.value.suggestion


def test_the_suggested_bits_work() -> None:
    for bits in (8, 40):
        with pytest.raises(InfeasiblePlan) as caught:
            make_plan(**DEMO | {"bits": bits})
        make_plan(**DEMO | {"bits": int(caught.value.suggestion.split()[0])})


def test_wrong_types_are_refused() -> None:
    for change in ({"clients": 100.0}, {"bits": "16"}, {"rounds": True}, {"mechanism": 1}):
        with pytest.raises((TypeError, ValueError)):
            make_plan(**DEMO | change)


def test_warnings_name_what_costs_accuracy() -> None:
    assert any("wrap" in w for w in make_plan(**DEMO | {"k_stddevs": 2.0}).warnings)
    assert any("inflates" in w for w in make_plan(**DEMO | {"bits": 9}).warnings)


def test_json_round_trips_exactly(demo_plan: Plan) -> None:
    text = json.dumps(demo_plan.to_json())
    for source in (demo_plan.to_json(), json.loads(text), text, text.encode(), demo_plan.to_bytes()):
        again = Plan.from_json(source)
        assert again == demo_plan
        assert again.to_bytes() == demo_plan.to_bytes()
        assert again.identity == demo_plan.identity
    assert set(demo_plan.to_json()) == {field.name for field in fields(Plan)} - {"evaluation"}


TAMPERED: list[Arguments] = [
    *each("granularity", 0.0001, 2.0, 0.0, -0.001, math.inf),
    *each("local_variance", "1/5", "100000/1", "0/1", "-100/1", "100/0", "200/2", "250000.5", 250000, "250000"),
    *each("local_variance", " 250000/1", "٣/1", "340282366920938463463374607431768211457/1", "250000000001/1000003"),
    *({"rounds": 16}, {"min_survivors": 60}, {"colluders": 10}, {"bits": 15}, {"delta": 1e-6}, {"beta": 0.0001}),
    *each("clients", 200, 100.0, True),
    *each("epsilon", 7.9, 8, None, math.nan),
    *each("order", 0.5, 1.5, 500.0, math.nan),
    *({"dim": 513}, {"padded_dim": 1024}, {"mechanism": "none"}, {"target": "conditional"}, {"rotation": "dft"}),
    *each("order_conditional", 0.5, 2.0**21, math.nan),
    *({"sampling": "unknown"}, {"population": 1000}, {"population": 99}),
    *({"sketch_rows": 15}, {"clipping": None}, {"clipping": {"layers": [500], "clips": [2.0]}}),
    *({"budget_coordinator": 7.9}, {"budget_released": 7.9}, {"surprise": 1}),
    *each("graph", "", None, "h\u00e4rary"),
    *each("adversary", "m" * 33, 1),
]


@pytest.mark.parametrize("change", TAMPERED, ids=str)
def test_tampered_json_is_refused(demo_plan: Plan, change: Arguments) -> None:
    with pytest.raises(ValueError):
        Plan.from_json(demo_plan.to_json() | change)
    with pytest.raises(ValueError):
        Plan.from_json(json.dumps(demo_plan.to_json() | change))


def test_malformed_json_is_refused(demo_plan: Plan) -> None:
    whole = demo_plan.to_json()
    for name in whole.keys() - {"noise_parts"}:  # older plans have none
        with pytest.raises(ValueError, match="missing"):
            Plan.from_json({k: v for k, v in whole.items() if k != name})
    twice = json.dumps(whole)[:-1] + ', "bits": 16}'
    for source in (twice, "", "[]", "3", b"\xff", "{", '{"bits": NaN}'):
        with pytest.raises(ValueError):
            Plan.from_json(source)


@pytest.mark.parametrize(
    "coding",
    [{"clip": 2.0}, {"clipping": ClipRule(layers=(400, 100), clips=(1.0, 0.5), scaling="proportional")}],
    ids=["flat", "by layer"],
)
def test_the_noise_norm_is_that_of_the_mean(coding: dict[str, Any]) -> None:
    """Forty participants send zeros; the norm of 500 values varies by 3 %, and rounding adds little."""
    stated = {key: value for key, value in DEMO.items() if key != "clip"}
    plan = make_plan(**stated | {"bits": 22} | coding)
    encoder = Encoder(plan, bytes(32), survivors=plan.clients)
    norms = []
    for _ in range(4):
        total = secure_sum(encoder, [np.zeros(plan.dim)] * plan.clients, os.urandom)
        mean = encoder.decode_sum(total, plan.clients)
        norms.append(np.linalg.norm(mean) / math.hypot(*plan.clipping.clips))
    assert np.mean(norms) == pytest.approx(plan.noise_norm, rel=0.08)
    if "clipping" in coding:  # the unit of the clips doesn't matter
        rule = replace(plan.clipping, clips=(10.0, 5.0))
        assert make_plan(**stated | {"bits": 22, "clipping": rule}).noise_norm == pytest.approx(plan.noise_norm)


def test_with_epochs_there_is_one_budget() -> None:
    """The filter of each participant knows one; a smaller one for the other reader would bind nobody."""
    stated = DEMO | {"sampling": "epochs", "population": 1000, "target": "released"}
    assert make_plan(**stated).budget_coordinator == DEMO["epsilon"]
    with pytest.raises(InfeasiblePlan, match="leave budgets out"):
        make_plan(**stated | {"budget_coordinator": 30.0})


def test_plans_are_frozen(demo_plan: Plan) -> None:
    with pytest.raises(AttributeError):
        demo_plan.epsilon = 100.0  # type: ignore[misc]


def test_every_number_enters_the_identity(demo_plan: Plan) -> None:
    assert replace(demo_plan, epsilon=9.0, budget_coordinator=9.0, budget_released=9.0).identity != demo_plan.identity
    assert replace(demo_plan, graph="harary").identity != demo_plan.identity
    assert replace(demo_plan, adversary="curious").identity != demo_plan.identity
    assert replace(demo_plan, quorum=80).identity != demo_plan.identity


@pytest.mark.parametrize("epsilon", [58.0, 64.0, 70.0, 100.0])
def test_targets_where_the_samplers_error_grows_with_epsilon(epsilon: float) -> None:
    """The order that is best for the bound alone isn't best here; a plan must still hold what it promises."""
    plan = make_plan(**{**DEMO, "epsilon": epsilon, "dim": 100_180, "rounds": 4})
    assert plan.planned_epsilon <= epsilon
