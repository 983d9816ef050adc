"""What holds for the discrete Gaussian only; the proofs that both laws share are in `test_lattice_noise`.

False alarms: below 1e-6 for each statistical test at a fresh key; the keys are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from mechanisms.discrete_gaussian import SAMPLER_DISTANCE, DiscreteGaussian, gaussian_weights
from mechanisms.randomness import RandomBytes
from tests.mechanisms.lattice_laws import (
    FALSE_ALARM,
    LARGEST_Z,
    both_sides,
    chi_square,
    convolve,
    distance,
    gaussian_reference,
    sample_of,
    z_scores,
)


def pmf(variance: float) -> np.ndarray:
    p = np.exp(-(np.arange(int(12 * math.sqrt(variance)) + 12) ** 2) / (2 * variance))
    return np.asarray(p / (2 * p.sum() - 1))


def test_double_precision_weights_are_too_far_from_the_law() -> None:
    v = Fraction(7, 3)
    naive = [int(math.exp(-y * y / (2 * float(v))) * 2**256) for y in range(23)]
    assert distance(both_sides(naive), gaussian_reference, v) > SAMPLER_DISTANCE * 2**60


def test_a_rounded_normal_fails_the_statistics() -> None:
    sample = np.rint(np.random.default_rng(1).normal(size=1 << 21)).astype(np.int64)
    assert chi_square(sample, pmf(1.0)) < FALSE_ALARM
    assert max(map(abs, z_scores(sample, pmf(1.0)))) > LARGEST_Z


def test_variance_taken_for_deviation_fails(keyed: Callable[[str], RandomBytes]) -> None:
    sample = sample_of(DiscreteGaussian(Fraction(10)), 1 << 18, keyed("mix-up"))
    assert chi_square(sample, pmf(100.0)) < FALSE_ALARM


def test_a_sum_is_no_discrete_gaussian() -> None:
    """Why the accountant adds tau: two shares of half a grid step each are far from one of twice the variance."""
    v = Fraction(1, 4)
    share = both_sides(gaussian_weights(v, 1))
    assert distance(convolve(share, share), gaussian_reference, 2 * v) > 2**-10
