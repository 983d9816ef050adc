"""Binomial noise: its law as fractions, the theorem against exact divergences, its plan and its encoder.

False alarms: the statistical tests use fixed keys, so they pass or fail for good; at a fresh key each would fail
with probability below 1e-5.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats

from mechanisms.baselines.binomial import BinomialEncoder, NotRenyi, renyi_curve
from mechanisms.baselines.binomial_noise import (
    EXACT_TRIALS,
    LARGEST_TRIALS,
    _theorem,
    binomial,
    binomial_epsilon,
    binomial_weights,
    sensitivities,
    smallest_variance,
)
from mechanisms.baselines.binomial_plan import BinomialPlan, plan_binomial
from mechanisms.lattice_noise import SAMPLER_DISTANCE, convolution_levels
from mechanisms.refusals import InfeasiblePlan
from mechanisms.rounding import RoundingFailed
from tests.mechanisms.conftest import DEMO, each, keyed, secure_sum
from tests.mechanisms.lattice_laws import FALSE_ALARM, LARGEST_Z, chi_square, law_of, probability, sample_of, z_scores

STATED: dict[str, Any] = {name: DEMO[name] for name in DEMO if name not in ("quorum", "max_dropout", "adversarial")}


@pytest.fixture(scope="module")
def plan() -> BinomialPlan:
    return plan_binomial(**STATED)


# The law.


@pytest.mark.parametrize("trials", [2, 4, 10, 100, EXACT_TRIALS])
def test_small_shares_have_the_binomial_law_exactly(trials: int) -> None:
    """Read off the tables: the cells of each lookup and what the last one leaves, as fractions."""
    (table,) = binomial(trials).tables
    exact = {int(y): Fraction(math.comb(trials, trials // 2 + int(y)), 2**trials) for y in table.values}
    assert law_of(table) == exact
    assert sum(exact.values()) == 1


@pytest.mark.parametrize("trials", [EXACT_TRIALS + 2, 20_000])
def test_larger_shares_are_within_the_stated_distance(trials: int) -> None:
    weights = binomial_weights(Fraction(trials, 4), 1)
    total = 2 * sum(weights) - weights[0]
    off, tail = 0, total << trials  # in units of 1 / (total 2^trials)
    truth = math.comb(trials, trials // 2)
    for y, weight in enumerate(weights):
        both = 1 if y == 0 else 2
        off += both * abs(truth * total - (weight << trials))
        tail -= both * truth * total
        truth = truth * (trials // 2 - y) // (trials // 2 + y + 1)
    assert 0 < Fraction(off + tail, 2 * total << trials) <= Fraction(SAMPLER_DISTANCE) / 16


@pytest.mark.parametrize("trials", [4 * 1200**2, 4 * 5000**2, LARGEST_TRIALS])
def test_convolved_shares_are_right_at_each_point(trials: int) -> None:
    """Pointwise and relative: two levels against the coefficient itself."""
    parts = [(binomial_weights(v, step), step) for v, step in convolution_levels(Fraction(trials, 4))]
    assert len(parts) == 2
    with mpmath.workprec(500):
        for x in (0, 1, 3 * math.isqrt(trials) // 2 + 1, 3 * math.isqrt(trials)):
            found = probability(parts, x)
            half = mpmath.mpf(trials // 2)
            truth = mpmath.exp(
                mpmath.loggamma(trials + 1)
                - mpmath.loggamma(half + x + 1)
                - mpmath.loggamma(half - x + 1)
                - trials * mpmath.log(2)
            )
            assert abs(mpmath.mpf(found.numerator) / found.denominator / truth - 1) < mpmath.mpf(2) ** -140


def test_double_precision_weights_are_not_exact() -> None:
    """Naive version: probabilities in floating point."""
    naive = [int(stats.binom.pmf(500 + y, 1000, 0.5) * 2**256) for y in range(200)]
    total = 2 * sum(naive) - naive[0]
    off = sum(abs(Fraction(w, total) - Fraction(math.comb(1000, 500 + y), 2**1000)) for y, w in enumerate(naive))
    assert off > SAMPLER_DISTANCE * 2**60


@pytest.mark.parametrize("trials", [2, 100, 3000, 4_000_000])
def test_samples_follow_the_law(trials: int) -> None:
    sample, half = sample_of(binomial(trials), 1 << 18, keyed(f"binomial {trials}")), trials // 2
    assert np.abs(sample).max() <= half
    law = stats.binom.pmf(half + np.arange(min(half, 8 * math.isqrt(trials)) + 1), trials, 0.5)
    assert chi_square(sample, law) > FALSE_ALARM
    if trials > 2:  # else nothing lies beyond three deviations
        assert max(map(abs, z_scores(sample, law))) < LARGEST_Z


def test_shares_add_up_to_the_binomial_of_all_trials() -> None:
    """The sum of h shares is Bin(h m): convolved exactly."""
    share = [math.comb(6, k) for k in range(7)]
    law = [1]
    for _ in range(5):
        law = [sum(law[i - j] * share[j] for j in range(7) if 0 <= i - j < len(law)) for i in range(len(law) + 6)]
    assert law == [math.comb(30, k) for k in range(31)]


# The theorem.


def one_coordinate(trials: int, shift: int, delta: float) -> float:
    return binomial_epsilon(trials=trials, dim=1, l1_bound=shift, l2_bound=shift, linf_bound=shift, delta=delta)


def formula(trials: int, shift: int, delta: float) -> float:
    """The theorem's formula whatever its conditions say: the naive version."""
    return _theorem(trials / 4, 1, shift, shift, shift, delta)


def exact_delta(trials: int, shift: int, epsilon: float) -> Fraction | float:
    """Hockey-stick divergence of Bin(trials) and Bin(trials) + shift; symmetric, so both directions.

    The ratio of the two falls along the line, so the best event is a half-line, found exactly; sums of big integers up
    to 4,000 trials, floating point tails (relative error below 1e-9) above.
    """
    if trials > 4000:
        return tail_delta(trials, shift, epsilon)
    grown = Fraction(math.exp(epsilon) * (1 - 1e-15))  # from below: the divergence comes out no smaller
    row = [1]
    for k in range(trials):
        row.append(row[-1] * (trials - k) // (k + 1))
    total = 0
    for x, weight in enumerate(row):
        other = row[x - shift] if x >= shift else 0
        gained = weight * grown.denominator - other * grown.numerator
        if gained <= 0:
            break
        total += gained
    return Fraction(total, grown.denominator << trials)


def tail_delta(trials: int, shift: int, epsilon: float) -> float:
    """P[X <= t] - e^epsilon P[X + shift <= t] at the t where the log-ratio of the two laws crosses epsilon."""

    def log_ratio(x: int) -> float:
        return sum(sign * (math.lgamma(y + 1) + math.lgamma(trials - y + 1)) for sign, y in ((1, x - shift), (-1, x)))

    low, high = shift, trials
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if log_ratio(middle) > epsilon else (low, middle)
    near, far = stats.binom.cdf([low, low - shift], trials, 0.5)
    return float(near - math.exp(epsilon) * far)


def test_figures_of_public_code() -> None:
    """delta 1e-6, d = s = 1: the condition asks for 1483 trials; 2000 give 0.6375 (checked there to 1e-4)."""
    assert math.ceil(4 * smallest_variance(1, 1e-6, 1)) == 1483
    assert one_coordinate(1483, 1, 1e-6) < 1
    with pytest.raises(ValueError, match="needs 1483 trials in the sum, there are 1482"):
        one_coordinate(1482, 1, 1e-6)
    assert one_coordinate(2000, 1, 1e-6) == pytest.approx(0.637513, abs=1e-6)


@pytest.mark.parametrize("delta", [1e-2, 1e-4, 1e-6, 1e-9, 1e-12])
def test_the_theorem_covers_the_exact_divergence(delta: float) -> None:
    checked = 0
    for trials in (700, 1500, 2500, 4000, 20_000, 10**5, 10**6, 10**8):
        shift = 1
        while 8 * shift <= trials:
            try:
                epsilon = one_coordinate(trials, shift, delta)
            except ValueError:
                break
            assert exact_delta(trials, shift, epsilon) <= delta
            checked += 1
            shift = max(shift + 1, shift * 5 // 3)
    assert checked >= 12


def test_where_shift_exceeds_the_condition_the_formula_is_wrong() -> None:
    """Naive version: no condition. 100 trials, shift 60: the supports hardly overlap, no epsilon is enough."""
    assert exact_delta(100, 60, formula(100, 60, 0.01)) > 0.5
    with pytest.raises(ValueError, match="the theorem needs"):
        one_coordinate(100, 60, 0.01)


def test_where_the_trials_are_too_few_the_formula_is_wrong() -> None:
    """Naive version: only 2 Delta_inf <= N / 4 is checked. Eight trials end with chance 2^-8, far above delta."""
    trials, shift, delta = 8, 1, 1e-6
    assert 2 * shift <= trials / 4
    assert exact_delta(trials, shift, formula(trials, shift, delta)) > delta
    with pytest.raises(ValueError, match="the theorem needs"):
        one_coordinate(trials, shift, delta)


def test_beyond_epsilon_one_the_formula_can_be_wrong_within_its_conditions() -> None:
    """Naive version: the theorem at any epsilon, as it is printed. Both conditions hold with room to spare."""
    trials, shift, delta = 4_000_000, 4_000, 1e-6
    assert trials / 4 > 100 * smallest_variance(1, delta, shift)
    claimed = formula(trials, shift, delta)
    assert claimed == pytest.approx(22.0, abs=0.05)
    assert exact_delta(trials, shift, claimed) > 100 * delta
    with pytest.raises(ValueError, match="used up to 1 only"):
        one_coordinate(trials, shift, delta)


def test_noise_of_colluders_does_not_count() -> None:
    """Naive version: N counts all 100 clients' shares where 80 collude; their noise is subtracted."""
    share, everybody, honest, shift, delta = 1_000_000, 100, 20, 900, 1e-6
    assert one_coordinate(everybody * share, shift, delta) < 1
    assert exact_delta(honest * share, shift, one_coordinate(everybody * share, shift, delta)) > delta
    assert exact_delta(honest * share, shift, formula(honest * share, shift, delta)) <= delta


def test_two_coordinates_are_covered() -> None:
    """A product law on the plane, by exact probabilities in floating point; the shift is (2, 2)."""
    trials, delta = 4000, 1e-5
    epsilon = binomial_epsilon(trials=trials, dim=2, l1_bound=4.0, l2_bound=math.sqrt(8), linf_bound=2.0, delta=delta)
    x = np.arange(1500, 2501)  # 15 deviations each way
    near = np.outer(stats.binom.pmf(x, trials, 0.5), stats.binom.pmf(x, trials, 0.5))
    far = np.outer(stats.binom.pmf(x - 2, trials, 0.5), stats.binom.pmf(x - 2, trials, 0.5))
    assert float(np.maximum(0.0, near - math.exp(epsilon) * far).sum()) <= delta


def test_sensitivities_of_the_rounded_update() -> None:
    l1, l2, largest = sensitivities(10.0, 64, 0.5)
    assert l2 <= l1 <= 8 * l2 * (1 + 1e-9)
    assert largest == 10
    assert sensitivities(1.5, 4, 0.0)[2] == 2
    assert sensitivities(0.5, 1, 0.0)[2] == 1


def test_bad_arguments_are_refused() -> None:
    good = {"trials": 4000, "dim": 2, "l1_bound": 3.0, "l2_bound": 2.0, "linf_bound": 1.0, "delta": 1e-5}
    assert binomial_epsilon(**good) > 0
    bounds = [{"l1_bound": 1.0}, *each("l2_bound", math.inf, math.nan), *each("linf_bound", 2.5, -1.0)]
    for change in [{"trials": 0}, {"dim": 0}, *each("delta", 0.0, 1.0, math.nan), *bounds]:
        with pytest.raises(ValueError, match=r"must hold|l1_bound must"):
            binomial_epsilon(**good | change)
    for trials in (0, 1, 3, LARGEST_TRIALS + 2):
        with pytest.raises(ValueError, match="even number of trials"):
            binomial(trials)
    with pytest.raises(ValueError, match="even number of trials"):
        binomial_weights(Fraction(3, 4), 1)


# The plan.


def test_the_plan_meets_its_target(plan: BinomialPlan) -> None:
    assert plan.h_min == 65
    assert 0.999 * 8 <= plan.planned_epsilon <= 8
    assert plan.wrap_load <= 1
    assert plan.adjacency.startswith("zero-out: ")
    assert plan.trials_per_share % 2 == 0
    assert plan.central_stddev == pytest.approx(10.17, abs=0.01)
    epsilon, delta = plan.round_cost(65)
    assert (epsilon, delta) == (pytest.approx(8 / 15, rel=1e-4), pytest.approx(1e-5 / 15, rel=1e-9))
    assert plan.round_cost(95)[0] < epsilon
    for honest in (64, 96):
        with pytest.raises(ValueError, match="covers 65 to 95"):
            plan.round_cost(honest)


@pytest.mark.parametrize(
    "change",
    [
        *each("bits", 12, 24, 40),
        {"rounds": 1, "epsilon": 0.5},
        {"rounds": 1500},
        {"dim": 1_000_000, "bits": 18},
        {"clip": 1e-3},
        {"composition": "basic", "rounds": 40},
        {"composition": "advanced", "rounds": 40},
        {"rotation": "hadamard-blocks"},
    ],
)
def test_plans_never_exceed_the_target(change: dict[str, Any]) -> None:
    found = plan_binomial(**STATED | change)
    assert 0.98 * found.epsilon <= found.planned_epsilon <= found.epsilon
    with pytest.raises(InfeasiblePlan):
        replace(found, trials_per_share=found.trials_per_share * 9 // 20 * 2)
    with pytest.raises(InfeasiblePlan):
        replace(found, colluders=found.colluders + 20)


def test_one_round_stays_within_what_is_proved() -> None:
    found = plan_binomial(**STATED | {"rounds": 1})
    assert 0.999 <= found.planned_epsilon <= 1.0


def test_the_better_composition_is_chosen() -> None:
    for rounds in (2, 15, 200):
        both = [plan_binomial(**STATED | {"rounds": rounds, "composition": kind}) for kind in ("basic", "advanced")]
        best = plan_binomial(**STATED | {"rounds": rounds})
        assert best in both
        assert best.central_stddev == min(one.central_stddev for one in both)


def test_more_bits_never_need_more_noise() -> None:
    noise = [plan_binomial(**STATED | {"bits": bits}).central_stddev for bits in (11, 12, 14, 16, 20, 30, 50)]
    assert all(more <= fewer * 1.001 for fewer, more in pairwise(noise))


def test_there_is_no_renyi_curve(plan: BinomialPlan) -> None:
    with pytest.raises(NotRenyi, match=r"\(epsilon, delta\) only.*basic or advanced composition"):
        renyi_curve(plan, plan.h_min)


def test_infeasible_plans_say_what_works() -> None:
    with pytest.raises(InfeasiblePlan, match="8 bits") as refused:
        plan_binomial(**STATED | {"bits": 8})
    assert refused.value.suggestion == "11 bits work"
    assert plan_binomial(**STATED | {"bits": 11}).planned_epsilon <= 8
    with pytest.raises(InfeasiblePlan, match="over 1500 rounds") as refused:
        plan_binomial(**STATED | {"epsilon": 0.01, "rounds": 1500})
    assert refused.value.suggestion == "epsilon 0.0156 with 23 bits works"
    assert plan_binomial(**STATED | {"epsilon": 0.0156, "bits": 23, "rounds": 1500}).planned_epsilon <= 0.0156


def test_impossible_plans_are_refused(plan: BinomialPlan) -> None:
    for message, changes in {
        **{"clients 1": each("clients", 1), "dim 0": each("dim", 0), "bits 63": each("bits", 63)},
        **{"rounds 0": each("rounds", 0), "clip": each("clip", 0.0, math.nan), "epsilon": each("epsilon", 0.0, 101.0)},
        **{"delta": each("delta", 1.0), "sampler": each("delta", 1e-40), "beta": each("beta", 1.0)},
        **{"does not hold": [{"colluders": 70}, {"min_survivors": 101}], "k_stddevs": each("k_stddevs", math.nan)},
        **{"unknown rotation": each("rotation", "fourier"), "unknown composition": each("composition", "magic")},
    }.items():
        for change in changes:
            with pytest.raises(InfeasiblePlan, match=message):
                plan_binomial(**STATED | change)
            with pytest.raises(InfeasiblePlan, match=message):
                replace(plan, **change)
    for message, changes in {
        **{"granularity": each("granularity", 0.0, math.nan, 2.0), "norms": each("granularity", 1e-12)},
        **{"wrap": each("granularity", plan.granularity / 2), "even": each("trials_per_share", 2391081, 0)},
        "the theorem": each("trials_per_share", 100),
    }.items():
        for change in changes:
            with pytest.raises(InfeasiblePlan, match=message):
                replace(plan, **change)
    with pytest.raises(TypeError, match="dim must be int"):
        plan_binomial(**STATED | {"dim": 500.0})
    with pytest.raises(TypeError, match="granularity must be float"):
        replace(plan, granularity=1)


# The encoder.


def test_the_mean_comes_back_with_the_planned_noise() -> None:
    """Unbiased, and the error's spread that of the shares and the rounding: 8,192 coordinates, 4.9 deviations."""
    found = plan_binomial(**STATED | {"dim": 8192, "bits": 18})
    encoder = BinomialEncoder(found, bytes(range(32)))
    rng = np.random.default_rng(5)
    updates = rng.normal(size=(100, 8192))
    updates *= 0.9 / np.linalg.norm(updates, axis=1, keepdims=True)
    updates[::7] *= 3  # clipped
    clipped = updates / np.maximum(1.0, np.linalg.norm(updates, axis=1, keepdims=True))
    mean = encoder.decode_sum(secure_sum(encoder, updates, keyed("mean")), 100)
    error = (mean - clipped.mean(axis=0)) / found.granularity * math.sqrt(100)
    variance = found.trials_per_share / 4 + 1 / 6
    assert abs(float(np.mean(error**2)) / variance - 1) < 4.9 * math.sqrt(2 / 8192) + 0.25 / variance
    assert abs(float(error.mean())) < 4.9 * math.sqrt(variance / 8192)
    # Naive version: every share sized as if it were the whole sum's noise, h_min times the variance.
    assert float(np.mean(error**2)) * found.granularity**2 < 2 * found.central_stddev**2 / found.h_min


def test_words_are_reduced_and_never_repeat(plan: BinomialPlan) -> None:
    encoder, source = BinomialEncoder(plan, bytes(32)), keyed("words")
    first, second = (encoder.encode(np.zeros(500, np.float32), source) for _ in range(2))
    assert first.dtype == np.dtype("<u2")
    assert first.shape == (plan.padded_dim,) == (512,)
    assert not np.array_equal(first, second)


def test_the_norm_bounds_are_checked_exactly(plan: BinomialPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive version: an encoder that trusts its clipping. With clipping broken nothing is sent."""
    encoder = BinomialEncoder(plan, bytes(32))
    monkeypatch.setattr("mechanisms.baselines.binomial.clip_l2", lambda vector, clip: vector)
    with pytest.raises(RoundingFailed):
        encoder.encode(np.full(500, 1.0), keyed("broken"))
    encoder._largest = 3
    with pytest.raises(RoundingFailed, match="coordinate"):
        encoder.encode(np.full(500, 0.04), keyed("broken"))


def test_bad_input_is_refused(plan: BinomialPlan) -> None:
    encoder = BinomialEncoder(plan, bytes(32))
    for update in (np.zeros(499), np.zeros(500, int), [0.0] * 500, np.full(500, math.nan), np.full(500, math.inf)):
        with pytest.raises(ValueError, match="update"):
            encoder.encode(update, keyed("bad"))  # type: ignore[arg-type]
    total = np.zeros(512, np.uint64)
    assert encoder.decode_sum(total, 70).shape == (500,)
    wrong = (total[:500], total.astype(np.int64), total + 65536)
    for bad, survivors in [(total, 69), (total, 101), *((one, 70) for one in wrong)]:
        with pytest.raises(ValueError, match=r"survivors|a sum"):
            encoder.decode_sum(bad, survivors)
    with pytest.raises(ValueError, match="seed"):
        BinomialEncoder(plan, b"")
