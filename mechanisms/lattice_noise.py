"""Noise on the integers, of any width, from integer weights: the common part of all noise laws.

A law supplies its weights as integers (`discrete_gaussian`, `skellam`); here they become tables, and wide laws sums of
scaled narrow ones. Law of a draw: *exactly* the integer weights, convolved over the levels of `convolution_levels`;
within total variation 2^-140 of the true law (`SAMPLER_DISTANCE`). The distance has three parts, all far below: the
tail cut where a weight falls under 2^-150 of the peak (at most 2^-149 a level), the weights' own error (below 2^-170),
and for more than one level the smoothing error of the convolution (2^-157). The tests read the law off the tables and
compare it with references of 500 bits.

No floating point enters a probability, and no accept-reject loop runs over the vector, so the time does not depend on
the data and hardly on the noise.

Sources: exactness as a requirement [CKS20]; convolution of discrete Gaussians [Pei10] Theorem 3.1, [MW17]; condensed
tables [MTW04] (`mechanisms.noise_table`). For Skellam the convolution is argued in `convolution_levels`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.noise_table import BLOCK, NoiseTable, Scratch
from mechanisms.randomness import RandomBytes, fresh_keystream

SAMPLER_DISTANCE: Final = 2.0**-140
"""Total variation between one coordinate of either sampler's output and the true law, at most."""

LARGEST_VARIANCE: Final = 1 << 54
"""The reach of a sampler, about 14.6 standard deviations, still fits 32 bits with a sign at 2^27."""

FRACTION_BITS: Final = 256
"""Weights are integers in units of 2^-256."""

TAIL_BITS: Final = 150
"""A law is cut where its weight falls under 2^-150 of that at 0: relative to the peak, however low that is."""

_WIDEST_TABLE: Final = 1024.0
# Smoothing: each lower level is this many times wider than the step of the level above it.
# exp(-2 pi^2 2.4^2) = 2^-164.
_SMOOTHING: Final = Fraction(12, 5)
_SMOOTHING_FACTOR: Final = Decimal("2.4")


def fixed_point_exp(exponent: Fraction) -> int:
    """floor-ish exp(-exponent) 2^256, error below 2 units, for exponent >= 0."""
    context = Context(prec=110, Emin=-(10**17), Emax=10**17)
    value = context.exp(context.divide(Decimal(-exponent.numerator), Decimal(exponent.denominator)))
    return int(context.multiply(value, Decimal(1 << FRACTION_BITS)))


def convolution_levels(variance: Fraction, widest: float = _WIDEST_TABLE) -> list[tuple[Fraction, int]]:
    """Split a wide law into (variance, step) of laws with short tables, whose sum has it up to 2^-157.

    Level 0 lives on the integers; level j is the same family's law of its variance, read at the multiples of
    step_j only; the levels below it are at least 2.4 steps wide. `decimal` chooses how many levels and how wide: both
    sides of a study must make equal draws from equal keys, on any machine (`mechanisms.noise_parts`).

    Why the sum has the law: let the levels below have it with variance v, and the next one read it for w at the
    multiples of k. Reading at multiples adds to the characteristic function phi_w(t) its copies
    phi_w(t + 2 pi l / k), l = 1..k-1. In the sum the l = 0 term is phi_v(t) phi_w(t) = phi_{v+w}(t) for Skellam,
    closed under sums, and up to the same error for the discrete Gaussian. The others are small, since v is
    smooth at the scale of k: with a = 2 pi l / k, v (1 - cos t) + w (1 - cos(t + a)) is at least
    v w / (v + w) (1 - cos a) (Skellam), v t^2 / 2 + w (t + a)^2 / 2 at least v w / (v + w) a^2 / 2 (Gaussian,
    after Poisson summation). Both are near 2 pi^2 2.4^2, the logarithm of 2^164.
    """
    context, levels = Context(prec=40), 1
    stddev = context.sqrt(context.divide(Decimal(variance.numerator), Decimal(variance.denominator)))

    def root(levels: int) -> Decimal:
        """Of the deviation with all smoothing, over the levels."""
        logarithm = context.ln(stddev) + (levels - 1) * context.ln(_SMOOTHING_FACTOR)
        return context.exp(context.divide(logarithm, Decimal(levels)))

    while root(levels) > Decimal(widest):
        levels += 1
    ratio = context.divide(root(levels), _SMOOTHING_FACTOR)
    steps = [1] + [math.floor(context.power(ratio, level)) for level in range(1, levels)]
    variances = [Fraction(math.ceil((_SMOOTHING * step) ** 2)) for step in steps[1:]]
    variances.append(variance - sum(variances))
    return list(zip(variances, steps, strict=True))


Weights = Callable[[Fraction, int], list[int]]
"""(variance, step) -> integers proportional to P[X = step y], y = 0, 1, ..., to the last above 2^-150 of the first."""


class LatticeNoise:
    """A sampler of one symmetric law for one rational variance. Immutable once built; safe to share between
    threads.

    Args:
        variance: 0 < variance <= 2^54, of one coordinate, grid units squared. An exact `Fraction`, because the
            accountant analyses this very number.
        weights: of the law.

    Attributes:
        reach: the largest magnitude a draw can have.
        tables: one for each level; a draw is the sum of one draw from each.

    Raises ValueError: another type, or outside the range.
    """

    def __init__(self, variance: Fraction, weights: Weights) -> None:
        if not isinstance(variance, Fraction) or not 0 < variance <= LARGEST_VARIANCE:
            raise ValueError("the variance must be a Fraction in (0, 2^54]")
        self.variance, self.weights = variance, weights
        laws = [(weights(v, step), step) for v, step in convolution_levels(variance)]
        self.reach = sum((len(half) - 1) * step for half, step in laws)
        # The levels are added up in the narrowest words that hold their sum; 2^31 always does, see the constant above.
        self._dtype: type[np.signedinteger] = np.int16 if self.reach < 1 << 15 else np.int32
        self.tables = [NoiseTable(half, step, self._dtype) for half, step in laws]

    def add(self, x: NDArray[np.int64], random_bytes: RandomBytes) -> None:
        """Add an independent draw to each entry of ``x``, in place, under a fresh key.

        ``x``: (d,) contiguous writable int64; entries must leave `reach` of room.

        Raises ValueError: another dtype or layout; RandomnessFailed: the source returned a wrong length.
        """
        if x.dtype != np.int64 or x.ndim != 1 or not x.flags.c_contiguous:
            raise ValueError("noise is added to a contiguous vector of int64")
        source = fresh_keystream(random_bytes)
        size = min(BLOCK, x.size)
        scratch = Scratch(size)
        total, part = np.empty(size, self._dtype), np.empty(size, self._dtype)
        first, *others = self.tables
        for start in range(0, x.size, BLOCK):
            block = x[start : start + BLOCK]
            noise, more = total[: block.size], part[: block.size]
            first.draw(noise, source, scratch)
            for table in others:
                table.draw(more, source, scratch)
                noise += more
            block += noise
