"""A trusted coordinator's noise is added modulo 2^B, like the sum: what is released is a function of sum plus noise.

The naive decoder reduces the sum alone and adds noise to that: then one update that carries a coordinate of the sum
across half the modulus moves it by all of 2^B, many times the noise. If all updates are equal, one of 100
participants does that in some 0.5 % of the rounds (512 values, k = 4 standard deviations), and delta was 0.001 %.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from mechanisms.calibration import wrap_load
from mechanisms.encoder import Encoder, word_dtype
from mechanisms.plan import InfeasiblePlan, Plan
from mechanisms.rotation import Rotation
from tests.mechanisms.conftest import filled, keyed, plan_for

DIM, SEED = 64, bytes(32)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return central_plan()


def central_plan(bits: int = 14, epsilon: float = 4.0) -> Plan:
    return plan_for(20, mechanism="gaussian", dim=DIM, bits=bits, epsilon=epsilon)


def noised_sum(plan: Plan, total: NDArray[np.int64], name: str) -> NDArray[np.float64]:
    """Grid units, before the rotation is undone; the same name gives the same noise."""
    words = (total & ((1 << plan.bits) - 1)).astype(word_dtype(plan.bits))
    mean = Encoder(plan, SEED).decode_sum(words, plan.clients, keyed(name))
    return Rotation(SEED, DIM, plan.rotation).forward(mean) * (plan.clients / plan.granularity)


@pytest.mark.parametrize("name", [f"noise {number}" for number in range(20)])
def test_a_sum_that_wraps_tells_no_more_than_the_sum_with_noise(plan: Plan, name: str) -> None:
    modulus = 1 << plan.bits
    without = np.full(DIM, modulus // 2 - 3)
    content = np.zeros(DIM, np.int64)
    content[: DIM // 2] = 6  # carries half of the coordinates across
    apart = noised_sum(plan, without + content, name) - noised_sum(plan, without, name) - content
    # The two outputs are the same function of (sum + noise) modulo 2^B: apart by the content, modulo 2^B.
    assert np.abs(apart - modulus * np.round(apart / modulus)).max() < 1e-6
    # And which side a coordinate comes out on is decided by the noise, not by the content.
    sides = noised_sum(plan, without, name) > 0
    assert 0 < sides[: DIM // 2].sum() < DIM // 2
    assert np.abs(noised_sum(plan, without, name)).max() <= modulus / 2 + 1e-6


def test_the_wrap_bound_counts_the_coordinators_noise(plan: Plan) -> None:
    assert filled(plan, plan.h_min, plan.block_dim) == pytest.approx(1, rel=1e-6)
    assert wrap_load(plan, Fraction(plan.granularity), plan.local_variance) <= 1
    with pytest.raises(InfeasiblePlan, match=r"cannot hold|no noise"):
        central_plan(bits=5, epsilon=0.1)
