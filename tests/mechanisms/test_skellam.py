"""What holds for Skellam noise only; the proofs that both laws share are in `test_lattice_noise`.

False alarms: below 1e-6 for each statistical test at a fresh key; the keys are fixed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy import special

from mechanisms.discrete_gaussian import discrete_gaussian
from mechanisms.lattice_noise import FRACTION_BITS, LARGEST_VARIANCE, SAMPLER_DISTANCE, convolution_levels
from mechanisms.skellam import skellam, skellam_weights
from tests.mechanisms.conftest import keyed
from tests.mechanisms.lattice_laws import (
    FALSE_ALARM,
    LARGEST_Z,
    both_sides,
    chi_square,
    convolve,
    distance,
    sample_of,
    skellam_reference,
    z_scores,
)

ONE = 1 << FRACTION_BITS


def pmf(variance: float) -> np.ndarray:
    return np.asarray(special.ive(np.arange(int(14 * math.sqrt(variance)) + 30), variance))


@pytest.mark.parametrize("variance", ["1/4", "7/3", "100", "10000"])
def test_the_reference_of_these_tests_is_the_bessel_function(variance: str) -> None:
    """Miller's recurrence against mpmath's own I_x(v), which sums another series."""
    v = Fraction(variance)
    stddev = math.sqrt(v)
    with mpmath.workprec(500):
        found = skellam_reference(v, 22 * math.ceil(stddev) + 60)
        norm = 2 * mpmath.fsum(found) - found[0]
        at = mpmath.mpf(v.numerator) / v.denominator
        for x in (0, 1, round(3 * stddev), round(10 * stddev)):
            truth = mpmath.besseli(x, at) * mpmath.exp(-at)
            assert abs(found[x] / norm / truth - 1) < mpmath.mpf(2) ** -300


@pytest.mark.parametrize("variance", ["1/4", "1", "314159/65536", "899/9", "7000/3", "262144"])
def test_weights_are_probabilities_and_their_variance_is_the_one_asked_for(variance: str) -> None:
    """Variance, not Poisson mean, which is half of it; as exact sums of the integers."""
    v = Fraction(variance)
    half = skellam_weights(v, 1)
    assert abs(2 * sum(half) - half[0] - ONE) < ONE >> 145
    second = 2 * sum(y * y * w for y, w in enumerate(half))
    assert abs(Fraction(second, ONE) / v - 1) < Fraction(1, 1 << 138)


def test_weights_fall_and_end_for_every_variance() -> None:
    """On both sides of each power of two of nodes: the sum that wraps around never comes back into view."""
    edges = [Fraction((2**k - 90) ** 2, 900) * factor for k in range(7, 11) for factor in (1, Fraction(1001, 1000))]
    for v in [Fraction(1, 1 << 160), Fraction(1, 100), *edges, Fraction(4000)]:
        half = skellam_weights(v, 1)
        assert all(a > b for a, b in pairwise(half))
        assert half[-1] << 150 >= half[0]
        assert len(half) - 1 <= 15 * math.sqrt(v) + 45


def test_the_largest_variance_keeps_its_digits() -> None:
    """Level by level at sd 2^27, where cosines of 2^-29 are raised to the power 2^54: against I_x(v) of mpmath."""
    for v, step in convolution_levels(Fraction(LARGEST_VARIANCE)):
        half = skellam_weights(v, step)
        with mpmath.workprec(400):
            at = mpmath.mpf(v.numerator) / v.denominator
            for y in (0, 1, len(half) // 3, len(half) // 2):
                truth = mpmath.besseli(step * y, at) * mpmath.exp(-at) * ONE
                assert abs(half[y] - truth) < half[0] * mpmath.mpf(2) ** -170


@pytest.mark.parametrize(("one", "other"), [("1/4", "1/4"), ("7/3", "7/3"), ("100", "1/2"), ("400", "400")])
def test_sums_are_skellam(one: str, other: str) -> None:
    """Exactly convolved, two laws are that of the summed variance: why no tau appears in the accounting."""
    a, b = Fraction(one), Fraction(other)
    total = convolve(both_sides(skellam_weights(a, 1)), both_sides(skellam_weights(b, 1)))
    assert distance(total, skellam_reference, a + b) <= 2 * SAMPLER_DISTANCE / 2**9


def test_a_cut_that_is_absolute_comes_too_early() -> None:
    """The naive cut at 2^-150 instead of 2^-150 of the peak: at sd 10^6 it leaves too much out."""
    variance, step = convolution_levels(Fraction(10**12))[-1]
    half = skellam_weights(variance, step)
    lost = sum(w for w in half if w < ONE >> 150)
    assert Fraction(2 * lost, 2 * sum(half) - half[0]) > SAMPLER_DISTANCE


def test_a_discrete_gaussian_fails_the_statistics() -> None:
    """Same variance, other law: at v = 4 the kurtosis differs by 1/4."""
    sample = sample_of(discrete_gaussian(Fraction(4)), 1 << 20, keyed("no Skellam"))
    assert chi_square(sample, pmf(4.0)) < FALSE_ALARM


def test_a_poisson_difference_passes_them() -> None:
    """The statistics know the law from numpy's Poisson sampler, too."""
    rng = np.random.default_rng(7)
    sample = rng.poisson(2.0, 1 << 20) - rng.poisson(2.0, 1 << 20)
    ours = sample_of(skellam(Fraction(4)), 1 << 20, keyed("beside Poisson"))
    for one in (sample, ours):
        assert chi_square(one, pmf(4.0)) > FALSE_ALARM
        assert max(map(abs, z_scores(one, pmf(4.0)))) < LARGEST_Z
