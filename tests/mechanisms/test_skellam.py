"""What holds for Skellam noise only; the proofs that both laws share are in `test_lattice_noise`.

False alarms: below 1e-6 for each statistical test at a fresh key; the keys are fixed.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy import special

from mechanisms.discrete_gaussian import discrete_gaussian
from mechanisms.lattice_noise import FRACTION_BITS, LARGEST_VARIANCE, SAMPLER_DISTANCE, convolution_levels
from mechanisms.privacy_curves import rounded_l1_bound, skellam_rdp
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


# ---------------------------------------------------------------- the curve, against exact divergences

ORDERS = (2, 3, 5, 16, 64)
SHIFTS = (1, 2, 5, 30)
VARIANCES = tuple(map(Fraction, ("1/4", "1", "7/3", "9", "25", "100", "2500")))


@cache
def probabilities(variance: Fraction, reach: int) -> list[mpmath.mpf]:
    with mpmath.workprec(300):
        found = skellam_reference(variance, reach)
        norm = 2 * mpmath.fsum(found) - found[0]
        return [p / norm for p in found]


@cache
def exact_divergence(order: int, variance: Fraction, shift: int) -> float:
    """D_order(X + shift || X), X of Skellam's law: the sum over the integers, with 300 bits, all terms positive."""
    reach = max(round(20 * math.sqrt(variance)), 2 * order * shift) + 60
    with mpmath.workprec(300):
        p = probabilities(variance, reach)
        terms = [p[abs(x - shift)] ** order * p[abs(x)] ** (1 - order) for x in range(shift - reach, reach + 1)]
        # What is cut off falls from here on faster than a geometric series.
        assert max(terms[0], terms[-1]) < mpmath.mpf(2) ** -100 * max(terms)
        return float(mpmath.log(mpmath.fsum(terms)) / (order - 1))


def bound(order: float, variance: Fraction | float, vector: tuple[int, ...]) -> float:
    return float(
        skellam_rdp(
            order,
            l2_bound=math.sqrt(sum(v * v for v in vector)),
            l1_bound=float(sum(map(abs, vector))),
            central_variance=variance,
        )
    )


@pytest.mark.parametrize("variance", VARIANCES, ids=str)
@pytest.mark.long
def test_the_curve_bounds_the_exact_divergence(variance: Fraction) -> None:
    for order in ORDERS:
        for shift in SHIFTS:
            assert bound(order, variance, (shift,)) >= exact_divergence(order, variance, shift)
        for vector in ((1,) * 20, (3, 0, -2, 1), (5, -5, 30)):
            exact = sum(exact_divergence(order, variance, abs(v)) for v in vector if v)
            assert bound(order, variance, vector) >= exact


def test_the_bound_is_close_where_noise_is_wide() -> None:
    """So another variance than the right one, twice or half of it, cannot hide in the slack."""
    for order, variance, shift, factor in ((2, 100, 5, 1.013), (3, 100, 2, 1.015), (16, 2500, 5, 1.01)):
        exact = exact_divergence(order, Fraction(variance), shift)
        assert exact <= bound(order, Fraction(variance), (shift,)) <= factor * exact


def test_a_poisson_mean_taken_for_the_variance_is_unsound() -> None:
    """Noise of variance v is the difference of two Poisson variables of mean v / 2; accounted as if v were that mean,
    its variance would be 2 v, and the promise is broken. The other way round it costs double."""
    for order, variance, shift in ((2, 100, 5), (3, 25, 2), (16, 2500, 5)):
        exact = exact_divergence(order, Fraction(variance), shift)
        assert bound(order, 2 * variance, (shift,)) < exact <= bound(order, variance, (shift,))
        assert bound(order, Fraction(variance, 2), (shift,)) > 1.9 * exact


def test_shares_add_their_variances_and_nothing_else() -> None:
    """Ten shares of a quarter: the exact divergence of their sum is that of 5/2, and no tau is needed."""
    exact = exact_divergence(3, Fraction(5, 2), 2)
    assert exact <= bound(3, 10 * Fraction(1, 4), (2,))
    # Counting on ten where five arrive is unsound once the bound is close.
    fewer = exact_divergence(2, 5 * Fraction(20), 5)
    assert bound(2, 10 * Fraction(20), (5,)) < fewer <= bound(2, 5 * Fraction(20), (5,))


def test_an_l1_bound_in_data_units_is_no_bound() -> None:
    """min(sqrt d, c) c, seen in public code, drops the scale: |x| <= x^2 needs integers.

    Clip 1 at granularity 1/10 in 100 dimensions: a hundred coordinates of one grid step have L2 norm 10, the scaled
    clip, and L1 norm 100. The shortcut allows 1 data unit, 10 grid steps, and a smaller curve.
    """
    clip, scale, dim = 1.0, 10.0, 100
    vector = (1,) * dim
    assert math.sqrt(sum(v * v for v in vector)) <= clip * scale
    naive = min(math.sqrt(dim), clip) * clip * scale
    right = rounded_l1_bound(clip * scale, dim)
    assert naive < sum(vector) <= right

    def at(l1_bound: float) -> float:
        return float(skellam_rdp(2, l2_bound=clip * scale, l1_bound=l1_bound, central_variance=9.0))

    assert at(naive) < bound(2, Fraction(9), vector) <= at(right)


def test_the_formula() -> None:
    orders = np.array([2, 3, 17, 1024])
    for l2, l1, v in ((5.0, 5.0, 100.0), (5.0, 25.0, 1.0), (1500.0, 30_000.0, 1e6), (0.0, 0.0, 3.0)):
        fine, coarse = ((2 * orders - 1) * l2**2 + 6 * l1) / (4 * v**2), 3 * l1 / (2 * v)
        truth = orders * l2**2 / (2 * v) + np.minimum(fine, coarse)
        found = skellam_rdp(orders, l2_bound=l2, l1_bound=l1, central_variance=v)
        assert found.shape == orders.shape
        assert np.all((truth <= found) & (found <= truth * (1 + 1e-11)))
    # Both branches of the minimum are taken, and tiny variances don't become 0 / 0.
    assert bound(2, 1e6, (1,)) == pytest.approx(1e-6 + 9 / 4e12)
    assert bound(2, 1e-2, (1,)) == pytest.approx(100 + 150)
    assert bound(2, 1e-200, (0,)) == 0.0
    assert skellam_rdp(2, l2_bound=1e3, l1_bound=1e5, central_variance=Fraction(2**54)).shape == ()


@pytest.mark.parametrize("order", [1, 1.5, 2.5, 0, -2, math.nan, math.inf, [2, 3, 3.0000001]])
def test_other_orders_are_refused(order: float | list[float]) -> None:
    """The theorem is proved for integers from 2 on; a fraction interpolated between them would be a guess."""
    with pytest.raises(ValueError, match="integer"):
        skellam_rdp(np.asarray(order), l2_bound=1.0, l1_bound=1.0, central_variance=1.0)


def test_bad_input_is_refused() -> None:
    for variance in (0, -1.0, math.nan, math.inf, Fraction(0)):
        with pytest.raises(ValueError, match="variance"):
            skellam_rdp(2, l2_bound=1.0, l1_bound=1.0, central_variance=variance)
    for l2, l1 in ((-1.0, 1.0), (1.0, -1.0), (math.nan, 1.0), (1.0, math.nan), (math.inf, 1.0)):
        with pytest.raises(ValueError, match="norms"):
            skellam_rdp(2, l2_bound=l2, l1_bound=l1, central_variance=1.0)
