"""Both laws, proved alike: integer weights against 500 bits, exact convolutions, tables, statistics. What holds for
Skellam noise only is in `test_skellam`.

False alarms: every statistical test uses a fixed key, so it passes or fails for good; at a fresh key each would
fail with probability below 5e-6 (one p-value and four z-scores, 1e-6 each).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from mechanisms.discrete_gaussian import discrete_gaussian, gaussian_weights
from mechanisms.lattice_noise import LARGEST_VARIANCE, SAMPLER_DISTANCE, LatticeNoise, Weights, convolution_levels
from mechanisms.randomness import RandomnessFailed
from mechanisms.skellam import skellam, skellam_weights
from tests.mechanisms.conftest import keyed
from tests.mechanisms.lattice_laws import (
    FALSE_ALARM,
    LARGEST_Z,
    Reference,
    both_sides,
    chi_square,
    convolve,
    distance,
    exact_law,
    gaussian_reference,
    law_of,
    probability,
    sample_of,
    skellam_reference,
    z_scores,
)


@dataclass(frozen=True)
class Case:
    build: Callable[[Fraction], LatticeNoise]
    weights: Weights
    reference: Reference

    def sampler(self, variance: Fraction) -> LatticeNoise:
        """One that isn't kept."""
        return LatticeNoise(variance, self.weights)

    def wide_probability(self, x: int, variance: int) -> mpmath.mpf:
        """P[X = x] for a wide law, at the current precision."""
        v = mpmath.mpf(variance)
        if self.weights is skellam_weights:
            return mpmath.besseli(x, v) * mpmath.exp(-v)
        # Poisson summation: the normalising sum is sqrt(2 pi v) up to exp(-2 pi^2 v), nothing at this width.
        return mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * v)) / mpmath.sqrt(2 * mpmath.pi * v)

    def floats(self, variance: float) -> np.ndarray:
        """P[X = x] for x = 0, 1, ... as doubles, for statistics."""
        from scipy import special

        x = np.arange(int(14 * math.sqrt(variance)) + 30)
        if self.weights is skellam_weights:
            return np.asarray(special.ive(x, variance))
        p = np.exp(-(x**2) / (2 * variance))
        return np.asarray(p / (2 * p.sum() - 1))


GAUSSIAN = Case(discrete_gaussian, gaussian_weights, gaussian_reference)
CASES = [
    pytest.param(GAUSSIAN, id="gaussian"),
    pytest.param(Case(skellam, skellam_weights, skellam_reference), id="skellam"),
]
both_laws = pytest.mark.parametrize("law", CASES)


@both_laws
@pytest.mark.parametrize("variance", ["1/1000000", "1/4", "1", "7/3", "314159/65536", "100", "10000", "1048576"])
def test_weights_are_within_the_stated_distance(law: Case, variance: str) -> None:
    v = Fraction(variance)
    assert distance(both_sides(law.weights(v, 1)), law.reference, v) <= SAMPLER_DISTANCE / 2**10


@both_laws
@pytest.mark.parametrize("variance", ["1/4", "7/3", "10000", "1440000"])
def test_the_law_read_off_a_samplers_tables_is_that_of_the_weights(law: Case, variance: str) -> None:
    """As fractions, equal: nothing is lost between the weights and a draw."""
    v = Fraction(variance)
    sampler, parts = law.sampler(v), convolution_levels(v)
    assert len(sampler.tables) == len(parts) == (2 if v > 1024**2 else 1)
    for table, (part, step) in zip(sampler.tables, parts, strict=True):
        assert law_of(table) == exact_law(law.weights(part, step), step)


@both_laws
@pytest.mark.parametrize(("stddev", "widest", "levels"), [(100, 30.0, 2), (150, 20.0, 2), (250, 15.0, 3)])
@pytest.mark.long
def test_forced_convolutions_are_within_the_stated_distance(law: Case, stddev: int, widest: float, levels: int) -> None:
    variance = Fraction(stddev**2)
    parts = convolution_levels(variance, widest)
    assert len(parts) == levels
    total = {0: 1}
    for v, step in parts:
        total = convolve(total, both_sides(law.weights(v, step), step))
    assert distance(total, law.reference, variance) <= SAMPLER_DISTANCE


def test_levels_that_are_too_narrow_fail_the_same_check() -> None:
    """The lower level 1.2 instead of 2.4 steps wide."""
    variance, step = Fraction(100**2), 12
    for weights, reference in ((gaussian_weights, gaussian_reference), (skellam_weights, skellam_reference)):
        lower = Fraction(math.ceil((Fraction(6, 5) * step) ** 2))
        parts = [(lower, 1), (variance - lower, step)]
        total = {0: 1}
        for v, k in parts:
            total = convolve(total, both_sides(weights(v, k), k))
        assert distance(total, reference, variance) > SAMPLER_DISTANCE * 2**60


def test_every_split_is_smooth_enough() -> None:
    """The exponents of `convolution_levels`, for deviations up to the largest: 2 e^-E, at most three times."""
    for stddev in np.geomspace(1024.01, 2.0**27, 500):
        variance = Fraction(min(float(stddev) ** 2, LARGEST_VARIANCE))
        parts = convolution_levels(variance)
        assert sum(v for v, _ in parts) == variance
        assert 2 <= len(parts) <= 4
        for j in range(1, len(parts)):
            below, (upper, step) = float(sum(v for v, _ in parts[:j])), parts[j]
            width, turn = below * float(upper) / (below + float(upper)), 2 * math.pi / step
            for exponent in (width * turn**2 / 2, width * (1 - math.cos(turn))):
                assert 3 * 2 * math.exp(-exponent) <= 2**-157


@both_laws
@pytest.mark.parametrize("stddev", [1024, 10**4, 10**5, 10**6])
def test_wide_laws_are_right_at_each_point(law: Case, stddev: int) -> None:
    """Pointwise, relative to the true probability: a cut that is absolute instead of relative shows here."""
    variance = stddev**2
    parts = [(law.weights(v, step), step) for v, step in convolution_levels(Fraction(variance))]
    with mpmath.workprec(500):
        for x, bits in ((0, 140), (1, 140), (3 * stddev + 1, 140), (6 * stddev, 140), (9 * stddev, 130)):
            found = probability(parts, x)
            truth = law.wide_probability(x, variance)
            assert abs(mpmath.mpf(found.numerator) / found.denominator / truth - 1) < mpmath.mpf(2) ** -bits


@both_laws
@pytest.mark.parametrize("variance", ["1", "314159/65536", "100", "40000", "1440000"])
def test_samples_follow_the_law(law: Case, variance: str) -> None:
    v = Fraction(variance)
    sample = sample_of(law.build(v), 1 << 20, keyed(f"law {variance}"))
    assert chi_square(sample, law.floats(float(v))) > FALSE_ALARM
    assert max(map(abs, z_scores(sample, law.floats(float(v))))) < LARGEST_Z


@both_laws
@pytest.mark.parametrize("factor", ["0.99", "1.01"])
def test_a_deviation_one_percent_off_fails(law: Case, factor: str) -> None:
    sample = sample_of(law.sampler(100 * Fraction(factor) ** 2), 1 << 20, keyed(f"off {factor}"))
    assert chi_square(sample, law.floats(100.0)) < FALSE_ALARM
    assert max(map(abs, z_scores(sample, law.floats(100.0)))) > LARGEST_Z


@both_laws
def test_noise_is_added_and_never_repeats(law: Case) -> None:
    for variance in (10**4, 10**7):  # one level of 16-bit words, two of 32
        sampler = law.build(Fraction(variance))
        source = keyed("repeat")
        start = np.arange(70_000, dtype=np.int64) * 1000 - (1 << 60)
        first, second = start.copy(), start.copy()
        sampler.add(first, source)
        sampler.add(second, source)
        assert not np.array_equal(first, second)
        assert np.max(np.abs(first - start)) <= sampler.reach
        again = start.copy()
        sampler.add(again, keyed("repeat"))
        assert np.array_equal(first, again)
        # Blocks draw on one stream: the second block does not repeat the first.
        noise = first - start
        assert not np.array_equal(noise[:4464], noise[65536:70_000])


@both_laws
def test_the_support_fits_its_words(law: Case) -> None:
    for variance in (Fraction(2000**2), Fraction(2400**2), Fraction(LARGEST_VARIANCE)):
        sampler = law.sampler(variance)
        assert 14 * math.sqrt(variance) < sampler.reach <= 15.2 * math.sqrt(variance)
        for table in sampler.tables:
            assert sampler.reach <= np.iinfo(table.values.dtype).max  # so the sum of all levels fits, too
            assert table.values.dtype == (np.int16 if variance == 2000**2 else np.int32)


@both_laws
def test_bad_input_is_refused(law: Case) -> None:
    for variance in (Fraction(0), Fraction(-1), Fraction(LARGEST_VARIANCE + 1), 1.0, 4, "4", math.nan, True):
        with pytest.raises(ValueError, match="variance"):
            law.sampler(variance)  # type: ignore[arg-type]
    sampler = law.build(Fraction(1))
    for x in (np.zeros(4), np.zeros(4, np.int32), np.zeros((2, 2), np.int64), np.zeros(8, np.int64)[::2]):
        with pytest.raises(ValueError, match="int64"):
            sampler.add(x, keyed("bad"))  # type: ignore[arg-type]
    with pytest.raises(RandomnessFailed):
        sampler.add(np.zeros(4, np.int64), lambda n: b"")
    sampler.add(np.zeros(0, np.int64), keyed("empty"))


@both_laws
def test_a_sampler_is_built_once_per_variance(law: Case) -> None:
    assert law.build(Fraction(5)) is law.build(Fraction(10, 2))
    assert law.build(Fraction(5)) is not law.build(Fraction(6))


# ---------------------------------------------------------------- what is no discrete Gaussian


def test_double_precision_weights_are_too_far_from_the_law() -> None:
    v = Fraction(7, 3)
    naive = [int(math.exp(-y * y / (2 * float(v))) * 2**256) for y in range(23)]
    assert distance(both_sides(naive), gaussian_reference, v) > SAMPLER_DISTANCE * 2**60


def test_a_rounded_normal_fails_the_statistics() -> None:
    sample, law = np.rint(np.random.default_rng(1).normal(size=1 << 21)).astype(np.int64), GAUSSIAN.floats(1.0)
    assert chi_square(sample, law) < FALSE_ALARM
    assert max(map(abs, z_scores(sample, law))) > LARGEST_Z


def test_a_sum_is_no_discrete_gaussian() -> None:
    """Why the accountant adds tau: two shares of half a grid step each are far from one of twice the variance."""
    v = Fraction(1, 4)
    share = both_sides(gaussian_weights(v, 1))
    assert distance(convolve(share, share), gaussian_reference, 2 * v) > 2**-10
