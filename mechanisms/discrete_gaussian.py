"""The discrete Gaussian N_Z(0, v): P[X = x] proportional to exp(-x^2 / 2v) on the integers, for a rational v.

Law: exactly the integer weights of `gaussian_weights` (256 fractional bits), convolved over the levels of
`convolution_levels`; within total variation 2^-140 of the true law (`SAMPLER_DISTANCE`). The distance has
three parts, all far below: the tail cut where a weight falls under 2^-150 of the peak (2^-149 per level), the
weights' own error (below 2^-200), and for more than one level the smoothing error of the convolution
(2^-157). The tests read the law off the tables and compare it with references of 500 bits.

No floating point enters a probability, and no accept-reject loop runs over the vector, so the time does not
depend on the data and hardly on the noise.

Sources: exactness as a requirement [CKS20]; convolution of discrete Gaussians [Pei10] Theorem 3.1, [MW17];
condensed tables [MTW04] (`mechanisms.noise_table`).
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.noise_table import BLOCK, NoiseTable
from mechanisms.randomness import RandomBytes, fresh_keystream

SAMPLER_DISTANCE: Final = 2.0**-140
"""Total variation between one coordinate of the sampler's output and the true law, at most."""

LARGEST_VARIANCE: Final = 1 << 54
"""14.5 standard deviations of 2^27 still fit the 32-bit values of the tables."""

_FRACTION_BITS: Final = 256
_TAIL_BITS: Final = 150
_WIDEST_TABLE: Final = 512.0
# Smoothing: each lower level is this many times wider than the step of the level above it.
# exp(-2 pi^2 2.4^2) = 2^-164.
_SMOOTHING: Final = Fraction(12, 5)


def _fixed_point_exp(exponent: Fraction) -> int:
    """floor-ish exp(-exponent) 2^256, error below 2 units, for exponent >= 0."""
    context = Context(prec=110, Emin=-(10**17), Emax=10**17)
    value = context.exp(context.divide(Decimal(-exponent.numerator), Decimal(exponent.denominator)))
    return int(context.multiply(value, Decimal(1 << _FRACTION_BITS)))


def gaussian_weights(variance: Fraction, step: int) -> list[int]:
    """2^256 exp(-(step y)^2 / 2 variance) for y = 0, 1, ..., to the last one above 2^-150 of the first.

    By the recurrence w[y + 1] = w[y] q^(2 y + 1): two multiplications an entry, absolute error below y^2
    units.
    """
    one = 1 << _FRACTION_BITS
    factor = _fixed_point_exp(Fraction(step * step) / (2 * variance))
    ratio = factor * factor >> _FRACTION_BITS
    weights = [one]
    smallest = one >> _TAIL_BITS
    while (weight := weights[-1] * factor >> _FRACTION_BITS) >= smallest:
        weights.append(weight)
        factor = factor * ratio >> _FRACTION_BITS
    return weights


def convolution_levels(variance: Fraction, widest: float = _WIDEST_TABLE) -> list[tuple[Fraction, int]]:
    """Split a wide law into (variance, step) of laws with short tables, whose sum has it up to 2^-157.

    Level 0 lives on the integers, level j on multiples of step_j; the lower level is at least 2.4 steps wide,
    so the sum over the lattice of the upper one is smooth (Poisson summation). Floats choose how many levels
    and how wide, never a probability.
    """
    stddev = math.sqrt(variance)
    levels = 1
    while (stddev * 2.4 ** (levels - 1)) ** (1 / levels) > widest:
        levels += 1
    ratio = (stddev * 2.4 ** (levels - 1)) ** (1 / levels) / 2.4
    steps = [1] + [math.floor(ratio**level) for level in range(1, levels)]
    variances = [Fraction(math.ceil((_SMOOTHING * step) ** 2)) for step in steps[1:]]
    variances.append(variance - sum(variances))
    return list(zip(variances, steps, strict=True))


class DiscreteGaussian:
    """A sampler for one rational variance. Immutable once built; safe to share between threads.

    Args:
        variance: 0 < variance <= 2^54, of one coordinate, grid units squared. An exact `Fraction`, because
            the accountant analyses this very number.
    """

    def __init__(self, variance: Fraction) -> None:
        if not isinstance(variance, Fraction) or not 0 < variance <= LARGEST_VARIANCE:
            raise ValueError("the variance must be a Fraction in (0, 2^54]")
        self.variance = variance
        self.tables = [NoiseTable(gaussian_weights(v, step), step) for v, step in convolution_levels(variance)]

    @property
    def reach(self) -> int:
        """The largest magnitude a draw can have."""
        return sum(int(table.values[-1]) for table in self.tables)

    def add(self, x: NDArray[np.int64], random_bytes: RandomBytes) -> None:
        """Add an independent draw to each entry of ``x``, in place, under a fresh key.

        Args:
            x: (d,) contiguous writable int64; entries must leave `reach` of room.

        Raises:
            ValueError: another dtype or layout.
            RandomnessFailed: the source returned a wrong length.
        """
        if x.dtype != np.int64 or x.ndim != 1 or not x.flags.c_contiguous:
            raise ValueError("noise is added to a contiguous vector of int64")
        source = fresh_keystream(random_bytes)
        size = min(BLOCK, x.size)
        words, index = np.empty(size, np.uint16), np.empty(size, np.intp)
        for start in range(0, x.size, BLOCK):
            for table in self.tables:
                table.add(x[start : start + BLOCK], source, words, index)


@lru_cache(maxsize=4)
def discrete_gaussian(variance: Fraction) -> DiscreteGaussian:
    """The sampler for ``variance``, built once per process (a few milliseconds, about 1 MB)."""
    return DiscreteGaussian(variance)
