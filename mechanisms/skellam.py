"""Skellam noise Sk(0, v): the difference of two independent Poisson variables of mean v / 2 each, for a rational v.

P[X = x] = e^-v I_|x|(v); its variance is v, and sums of independent ones are Skellam again, with the sum of their
variances: what distributed noise wants ([AKL21]). Its integer weights; sampling is `mechanisms.lattice_noise`.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

from mechanisms.lattice_noise import FRACTION_BITS, TAIL_BITS, LatticeNoise, fixed_point_exp

_ONE: Final = 1 << FRACTION_BITS
# Terms of the trapezoid rule below 2^-240 of the first are left out: the last weights, 2^-150 of the peak, are still
# right to 80 bits.
_SMALLEST_TERM: Final = _ONE >> (TAIL_BITS + 90)


def _first_cosine(nodes: int) -> int:
    """cos(2 pi / nodes) for a power of two, by half angles from cos(pi) = -1: no pi needed, error below 2 units."""
    cosine = -_ONE
    for _ in range(nodes.bit_length() - 2):
        cosine = math.isqrt((cosine + _ONE) * _ONE >> 1)
    return cosine


def _multiple(cosine: int, factor: int) -> int:
    """cos(factor t) from cos(t): Chebyshev's T_factor by doubling, error below 2 factor^2 units."""
    low, high = _ONE, cosine  # T_n and T_{n + 1} for n the leading bits of factor
    for bit in bin(factor)[2:]:
        middle = (2 * low * high >> FRACTION_BITS) - cosine
        if bit == "1":
            low, high = middle, (2 * high * high >> FRACTION_BITS) - _ONE
        else:
            low, high = (2 * low * low >> FRACTION_BITS) - _ONE, middle
    return low


def skellam_weights(variance: Fraction, step: int) -> list[int]:
    """2^256 P[Sk(0, variance) = step y] for y = 0, 1, ..., to the last one above 2^-150 of the first."""
    return _every_weight(variance) if step == 1 else _weights_at_multiples(variance, step)


def _every_weight(variance: Fraction) -> list[int]:
    """The weights on all integers, by the recurrence of their Bessel functions: P[x - 1] = P[x + 1] + 2 x / v P[x].

    Downwards it is stable, from any start (Miller's algorithm): begun where P is below 2^-240 of the peak (Bernstein's
    inequality), the start shows in the last weight, 2^-150 of the peak, by 2^-180 of it, and less in the others. The
    probabilities add up to 1, which gives the scale. Integers of 256 bits and more, so that rounding shows less still.
    """
    last = 19 * (math.isqrt(math.ceil(variance)) + 1) + 120
    above, here = 0, _ONE
    downwards = [here]
    for twice in range(2 * last * variance.denominator, 0, -2 * variance.denominator):
        above, here = here, above + twice * here // variance.numerator
        downwards.append(here)
    total = 2 * sum(downwards) - here
    weights = [(weight << FRACTION_BITS) // total for weight in reversed(downwards)]
    return [weight for weight in weights if weight << TAIL_BITS >= weights[0]]


def _weights_at_multiples(variance: Fraction, step: int) -> list[int]:
    """The weights on the multiples of a step.

    The characteristic function is exp(v (cos t - 1)), so P[x] is its mean times cos(x t) over N equidistant nodes
    t_m = 2 pi m / N, plus the probabilities of x + N, x - N, x + 2 N, ...: the trapezoid rule is exact but for this
    wrap-around, which for N / 2 > 15 standard deviations lies below the cut. Only 60 to 150 nodes have terms above
    2^-240, whatever the variance. Cosines by recurrence in integers of 256 fractional bits, the exponentials by
    `decimal`, one Clenshaw sum a weight: absolute error below 2^-180 of the peak up to the largest variance, 2^54.
    """
    nodes = 1 << (30 * math.isqrt(math.ceil(variance)) + 120).bit_length()
    cosine = _first_cosine(nodes)
    terms: list[int] = []
    here, following = _ONE, cosine  # cos t_m and cos t_{m + 1}
    while len(terms) <= nodes // 2:
        term = fixed_point_exp(Fraction(_ONE - here, _ONE) * variance)
        if term < _SMALLEST_TERM:
            break
        # Nodes m and N - m count together; the first and the middle one have no partner.
        terms.append(term if len(terms) in (0, nodes // 2) else 2 * term)
        here, following = following, (2 * cosine * following >> FRACTION_BITS) - here
    first, *others = terms
    others.reverse()

    turn = _multiple(cosine, step)
    here, following = _ONE, turn  # the cosine at step y, and at step (y + 1)
    weights: list[int] = []
    while not weights or weights[-1] << TAIL_BITS >= weights[0]:
        twice, last, before = 2 * here, 0, 0
        for term in others:
            last, before = term + (twice * last >> FRACTION_BITS) - before, last
        weights.append((first + (here * last >> FRACTION_BITS) - before) // nodes)
        here, following = following, (2 * turn * following >> FRACTION_BITS) - here
    return weights[:-1]


@lru_cache(maxsize=16, typed=True)  # a share and its parts
def skellam(variance: Fraction) -> LatticeNoise:
    """The sampler of Sk(0, variance), built once per process (up to a few tenths of a second, 0.5 to 2 MB)."""
    return LatticeNoise(variance, skellam_weights)
