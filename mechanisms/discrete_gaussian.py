"""The discrete Gaussian N_Z(0, v): P[X = x] proportional to exp(-x^2 / 2v) on the integers, for a rational v.

Its integer weights; sampling is `mechanisms.lattice_noise`. v is the parameter that the accountant analyses; the
law's variance is a little smaller where v is (0.215 at v = 1/4), and the same to 15 digits from v = 2 on.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from mechanisms.lattice_noise import FRACTION_BITS, TAIL_BITS, LatticeNoise, fixed_point_exp


def gaussian_weights(variance: Fraction, step: int) -> list[int]:
    """2^256 exp(-(step y)^2 / 2 variance) for y = 0, 1, ..., to the last one above 2^-150 of the first.

    By the recurrence w[y + 1] = w[y] q^(2 y + 1): two multiplications an entry, absolute error below y^2 units.
    """
    one = 1 << FRACTION_BITS
    factor = fixed_point_exp(Fraction(step * step) / (2 * variance))
    ratio = factor * factor >> FRACTION_BITS
    weights = [one]
    smallest = one >> TAIL_BITS
    while (weight := weights[-1] * factor >> FRACTION_BITS) >= smallest:
        weights.append(weight)
        factor = factor * ratio >> FRACTION_BITS
    return weights


@lru_cache(maxsize=16, typed=True)  # a share and its parts
def discrete_gaussian(variance: Fraction) -> LatticeNoise:
    """The sampler of N_Z(0, variance), built once per process (up to some 30 milliseconds, 0.5 to 2 MB).

    Not closed under sums: the accountant adds tau for that.
    """
    return LatticeNoise(variance, gaussian_weights)
