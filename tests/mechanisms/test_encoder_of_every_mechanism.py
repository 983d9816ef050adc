"""The pipeline under each mechanism: the law of what the decoder returns and states, and who adds which noise."""

from __future__ import annotations

import math
import os
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mechanisms.calibration import wrap_load
from mechanisms.clip_rule import ClipRule
from mechanisms.encoder import Encoder, mean_stddev, refinement, word_dtype
from mechanisms.mechanism import DESCRIPTIONS
from mechanisms.plan import VECTOR_MECHANISMS, InfeasiblePlan, Plan
from mechanisms.rotation import Rotation
from mechanisms.sketch import sketch_shape
from tests.mechanisms.conftest import filled, keyed, plan_for, secure_sum

SEED = bytes(range(32))
DIM = 4096


def plan_of(mechanism: str, **changes: Any) -> Plan:
    counts = {"colluders": 2, "min_survivors": 14, "quorum": 16, "max_dropout": 0.2, "adversarial": 0.05}
    wanted = {"dim": 2048, "bits": 24, "epsilon": 6.0, "delta": 1e-6, "rounds": 2} | counts
    return plan_for(changes.pop("clients", 20), mechanism=mechanism, **wanted | changes)


@pytest.mark.parametrize("mechanism", VECTOR_MECHANISMS)
@pytest.mark.long
def test_the_sum_has_the_planned_noise(mechanism: str) -> None:
    """15 of 20 survive; 2,048 errors: deviation within 4.9 standard errors (false alarm 1e-6), fixed key."""
    plan = plan_of(mechanism)
    updates = np.random.default_rng(3).normal(size=(15, 2048))
    updates *= 0.99 / np.linalg.norm(updates, axis=1, keepdims=True)
    total = secure_sum(Encoder(plan, SEED), updates, keyed(mechanism))
    decoded = Encoder(plan, SEED).decode(total, 15, keyed("coordinator") if mechanism == "gaussian" else None)
    error = (decoded.mean - updates.mean(axis=0)) * 15
    # The central Gaussian is sized for the sum itself: the same for all survivors.
    noise = plan.central_stddev if mechanism == "gaussian" else plan.local_stddev * math.sqrt(15)
    expected = math.sqrt(noise**2 + 15 * plan.granularity**2 / 6)
    assert float(error.std()) == pytest.approx(expected, rel=4.9 / math.sqrt(2 * error.size) + 0.01)
    assert abs(float(error.mean())) < 4.9 * expected / math.sqrt(error.size)
    assert decoded.below == ()
    assert decoded.wrapping.share < 1e-4  # planned with four standard deviations


def test_mechanisms_differ_in_whom_they_trust() -> None:
    """At one target: a trusted coordinator needs the least noise in a sum, no trust at all the most."""
    noise = {name: plan_of(name, noise_parts=0).full_stddev for name in VECTOR_MECHANISMS}
    assert noise["gaussian"] < noise["ddgauss"] <= noise["skellam"] * 1.001 < noise["local-gaussian"]
    # Two colluders and five dropouts of twenty: 20 / 12 of the noise that survival of all would need.
    assert noise["ddgauss"] / noise["gaussian"] == pytest.approx(math.sqrt(20 / 12), rel=0.01)
    # Of twenty survivors two collude: that much is left once the surplus is taken back.
    assert plan_of("skellam").full_stddev / noise["gaussian"] == pytest.approx(math.sqrt(20 / 18), rel=0.01)
    # Each report hides by itself what the others would hide together, and hides it from any other update.
    assert noise["local-gaussian"] / noise["gaussian"] == pytest.approx(2 * math.sqrt(20), rel=0.01)
    assert {DESCRIPTIONS[name].adjacency.split(":")[0] for name in VECTOR_MECHANISMS} == {"zero-out", "replace-one"}


def test_participants_of_the_central_mechanism_add_nothing() -> None:
    plan = plan_of("gaussian")
    total = secure_sum(Encoder(plan, SEED), np.zeros((15, 2048)), keyed("none"))
    assert not total.any()
    with pytest.raises(ValueError, match="randomness"):
        Encoder(plan, SEED).decode(total, 15)
    first, second = (Encoder(plan, SEED).decode_sum(total, 15, os.urandom) for _ in range(2))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("bits", [10, 24, 30])
def test_the_central_noise_lies_on_a_fine_grid(bits: int) -> None:
    """What makes it as good as a continuous Gaussian: a deviation of about 2^25 steps, within 64 bits."""
    plan = plan_of("gaussian", bits=bits, dim=16)
    halvings, variance = refinement(plan)
    assert math.sqrt(variance) < 2**27
    assert bits + halvings <= 62
    if bits < 30:
        assert math.sqrt(variance) >= 2**24


def test_blocks_cost_no_padding_and_keep_the_mean() -> None:
    plan = plan_of("ddgauss", dim=11_000, rotation="hadamard-blocks", epsilon=50.0)
    assert plan.padded_dim == 11_000
    assert plan_of("ddgauss", dim=11_000, rotation="hadamard", epsilon=50.0).padded_dim == 16_384
    updates = np.zeros((15, 11_000))
    updates[:, -1] = 0.9
    decoded = Encoder(plan, SEED).decode(secure_sum(Encoder(plan, SEED), updates, keyed("blocks")), 15)
    error = (decoded.mean - updates[0]) * 15
    noise = math.sqrt(15 * (plan.local_stddev**2 + plan.granularity**2 / 6))
    assert float(error.std()) == pytest.approx(noise, rel=4.9 / math.sqrt(2 * error.size) + 0.01)


def test_the_wrap_bound_uses_one_block() -> None:
    """The naive bound, with the whole length, would leave the worst case too little room."""
    blocks = plan_of("ddgauss", dim=(1 << 18) - 1, rotation="hadamard-blocks", bits=16, epsilon=60.0)
    assert blocks.block_dim == 1 << 17
    assert filled(blocks, blocks.shares_in_sum, blocks.block_dim) == pytest.approx(1, rel=1e-6)
    assert filled(blocks, blocks.shares_in_sum, blocks.padded_dim) < 0.99


def test_a_sketch_is_clipped_summed_and_decoded() -> None:
    """Compression by 4: what comes back is the mean plus the sketch's own error and the noise."""
    rows, width = 15, 4096 // 60
    rule = ClipRule.flat(rows * width, 0.4)
    plan = plan_of("ddgauss", dim=4096, clip=None, clipping=rule, sketch=(rows, width), epsilon=60.0)
    assert plan.coded_dim == rows * width
    assert plan.padded_dim <= 1024
    sparse = np.zeros(4096)
    sparse[17] = 1.0  # one heavy coordinate: what a sketch keeps
    decoded = Encoder(plan, SEED).decode_sum(
        secure_sum(Encoder(plan, SEED), np.tile(sparse, (15, 1)), keyed("sketch")), 15
    )
    assert int(np.argmax(decoded)) == 17
    assert decoded[17] == pytest.approx(1.0, abs=0.35)


def test_a_wrapped_sum_is_noticed() -> None:
    """The plan allows 1.5 standard deviations: 13 % of the coordinates wrap, and the monitor says about so."""
    plan = plan_of("ddgauss", k_stddevs=1.5, bits=12)
    total = secure_sum(Encoder(plan, SEED), np.zeros((20, 2048)), keyed("wrap"))
    decoded = Encoder(plan, SEED).decode(total, 20)
    assert 0.08 < decoded.wrapping.share < 0.2


# ---------------------------------------------------------------- the standard deviation that a decoded mean states


@pytest.mark.parametrize("survivors", [14, 20])
@pytest.mark.parametrize("mechanism", VECTOR_MECHANISMS)
def test_a_mean_of_zeros(mechanism: str, survivors: int) -> None:
    """4,096 values of a mean of zeros: the mean square over the stated variance is within 5.2 deviations, 11.5 %, of 1,
    below 1 by what rounding saves at most. Two values in 10^7 lie outside for each case."""
    stated, values = noised(survivors, mechanism=mechanism)
    ratio = np.mean(values**2) / stated**2
    assert 0.88 < ratio < 1.12


def test_rounding_is_counted_at_its_largest() -> None:
    """On a coarse grid, where a share's noise has variance 2.8 and rounding up to 0.25: never more than is stated."""
    update = np.full(DIM, 0.4 / 64)
    stated, values = noised(20, mechanism="skellam", bits=6, epsilon=300.0, delta=1e-3, k_stddevs=4.0, update=update)
    assert 0.8 < np.var(values) / stated**2 < 1.12


def test_the_noisiest_layer_and_a_sketch() -> None:
    rule = ClipRule(layers=(96, 4000), clips=(0.1, 1.0), scaling="proportional")
    stated, values = noised(20, clipping=rule, clip=None)
    assert 0.88 < np.mean(values[96:] ** 2) / stated**2 < 1.12
    assert np.mean(values[:96] ** 2) < stated**2 / 50
    rows = 4
    width = sketch_shape(DIM, rows, 2.0)
    stated, values = noised(20, sketch=(rows, width), clipping=ClipRule.flat(rows * width, 1.0), clip=None)
    assert 0.75 < np.mean(values**2) / stated**2 < 1.25  # values that share a bucket share its noise: fewer are free


def noised(survivors: int, *, update: Any = None, **changes: Any) -> tuple[float, Any]:
    """What is stated, and the error of the mean of one update that all survivors send."""
    plan = plan_of(**{"mechanism": "ddgauss", "dim": DIM, "quorum": 14} | changes)
    encoder = Encoder(plan, os.urandom(32), survivors=survivors)
    sent = np.zeros(DIM) if update is None else update
    decoded = encoder.decode(secure_sum(encoder, [sent] * survivors, os.urandom), survivors, os.urandom)
    assert decoded.stddev == mean_stddev(plan, survivors, encoder.clips)
    return decoded.stddev, decoded.mean - sent


# ---------------------------------------------------------------- a trusted coordinator's noise

# It is added modulo 2^B, like the sum: what is released is a function of both. The naive decoder reduces the sum alone
# and adds noise to that: then one update that carries a coordinate of the sum across half the modulus moves it by all
# of 2^B, many times the noise. If all updates are equal, one of 100 participants does that in some 0.5 % of the rounds
# (512 values, k = 4 standard deviations), and delta was 0.001 %.

SMALL = 64  # values


@pytest.fixture(scope="module")
def plan() -> Plan:
    return central_plan()


def central_plan(bits: int = 14, epsilon: float = 4.0) -> Plan:
    return plan_for(20, mechanism="gaussian", dim=SMALL, bits=bits, epsilon=epsilon)


def noised_sum(plan: Plan, total: NDArray[np.int64], name: str) -> NDArray[np.float64]:
    """Grid units, before the rotation is undone; the same name gives the same noise."""
    words = (total & ((1 << plan.bits) - 1)).astype(word_dtype(plan.bits))
    mean = Encoder(plan, SEED).decode_sum(words, plan.clients, keyed(name))
    return Rotation(SEED, SMALL, plan.rotation).forward(mean) * (plan.clients / plan.granularity)


@pytest.mark.parametrize("name", [f"noise {number}" for number in range(20)])
def test_a_sum_that_wraps_tells_no_more_than_the_sum_with_noise(plan: Plan, name: str) -> None:
    modulus = 1 << plan.bits
    without = np.full(SMALL, modulus // 2 - 3)
    content = np.zeros(SMALL, np.int64)
    content[: SMALL // 2] = 6  # carries half of the coordinates across
    apart = noised_sum(plan, without + content, name) - noised_sum(plan, without, name) - content
    # The two outputs are the same function of (sum + noise) modulo 2^B: apart by the content, modulo 2^B.
    assert np.abs(apart - modulus * np.round(apart / modulus)).max() < 1e-6
    # And which side a coordinate comes out on is decided by the noise, not by the content.
    sides = noised_sum(plan, without, name) > 0
    assert 0 < sides[: SMALL // 2].sum() < SMALL // 2
    assert np.abs(noised_sum(plan, without, name)).max() <= modulus / 2 + 1e-6


def test_the_wrap_bound_counts_the_coordinators_noise(plan: Plan) -> None:
    assert filled(plan, plan.h_min, plan.block_dim) == pytest.approx(1, rel=1e-6)
    assert wrap_load(plan, Fraction(plan.granularity), plan.local_variance) <= 1
    with pytest.raises(InfeasiblePlan, match=r"cannot hold|no noise"):
        central_plan(bits=5, epsilon=0.1)
