"""Binomial noise on the integer grid: the law of one share, exactly drawn, and the theorem about their sum.

A share is Bin(m, 1/2) - m / 2 with even m; the sum of h independent shares is Bin(N, 1/2) - N / 2 with N = h m.
Source of the privacy bound: [ASY+18] Theorem 1 at p = 1/2, which gives (epsilon, delta) and nothing else.

Deviation: the theorem's text has no upper limit on epsilon, but its first term is the classical calibration of
Gaussian noise, which fails for large ones: with N = 4,000,000 and a shift of 4,000 the theorem says 22.0 at delta
1e-6, where the exact divergence leaves delta = 1e-4. We use it up to epsilon 1 a round, where that calibration is
proved ([DR14] appendix A), and refuse above.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

from mechanisms.lattice_noise import FRACTION_BITS, TAIL_BITS, LatticeNoise
from mechanisms.privacy_curves import HAIR, rounded_l1_bound, rounded_l2_bound

LARGEST_ROUND_EPSILON: Final = 1.0
LARGEST_TRIALS: Final = 1 << 34
"""Of one share: a deviation of 2^16 grid steps. Finer grids gain nothing."""
EXACT_TRIALS: Final = 1 << 10
"""Shares up to here are drawn from the binomial coefficients themselves."""


def binomial_weights(variance: Fraction, step: int) -> list[int]:
    """Proportional to P[Bin(m, 1/2) - m / 2 = step y], m = 4 variance, for y = 0, 1, ...: never negative.

    Up to `EXACT_TRIALS` and on all integers they are C(m, m/2 + y), the law exactly. Else 2^256 C(m, m/2 + x) /
    C(m, m/2) by the recurrence over x = 1, 2, ..., rounded down at each (x units of error at most), up to the last
    one above 2^-150 of the first. `mechanisms.lattice_noise` convolves the levels of wide laws: the characteristic
    function is cos(t/2)^m, closed under sums like Skellam's, and |cos u| <= exp(-u^2 / 2) up to pi / 2, so the
    copies that reading at multiples adds are bounded like the Gaussian's.

    Raises ValueError: 4 variance is no positive even integer.
    """
    half = 2 * variance
    if half.denominator != 1 or half < 1:
        raise ValueError("a share needs a positive even number of trials")
    top = half.numerator
    if step == 1 and 2 * top <= EXACT_TRIALS:
        return [math.comb(2 * top, top + y) for y in range(top + 1)]
    weight = 1 << FRACTION_BITS
    smallest = weight >> TAIL_BITS
    weights = [weight]
    for x in range(1, top + 1):
        weight = weight * (top - x + 1) // (top + x)
        if x % step == 0:
            if weight < smallest:
                break
            weights.append(weight)
    return weights


@lru_cache(maxsize=4)
def binomial(trials: int) -> LatticeNoise:
    """The sampler of Bin(m, 1/2) - m / 2, m = ``trials`` (even, 2 to 2^34), built once per process (at most a second).

    Within `SAMPLER_DISTANCE`; exact up to `EXACT_TRIALS`.

    Raises ValueError: ``trials`` odd or out of range.
    """
    if not 2 <= trials <= LARGEST_TRIALS or trials % 2:
        raise ValueError(f"a share needs an even number of trials, 2 to {LARGEST_TRIALS}")
    return LatticeNoise(Fraction(trials, 4), binomial_weights)


def smallest_variance(dim: int, delta: float, linf_bound: float) -> float:
    """The condition of [ASY+18] Theorem 1: N p (1 - p) >= max{23 ln(10 d / delta), 2 Delta_inf / s}, grid units."""
    return max(23 * math.log(10 * dim / delta), 2 * linf_bound) * (1 + HAIR)


def binomial_epsilon(
    *, trials: int, dim: int, l1_bound: float, l2_bound: float, linf_bound: float, delta: float
) -> float:
    """Epsilon at ``delta`` of an integer vector under Bin(trials, 1/2) noise in each coordinate.

    Source: [ASY+18] Theorem 1 with p = 1/2 and s = 1 (grid units): b_p = 1/3, c_p = 7 sqrt(2) / 4, d_p = 2/3.
    Adjacency: whatever moves the vector by at most the three bounds.

    Args:
        trials: N, of all honest shares together.
        dim: coordinates, after padding.
        l1_bound, l2_bound, linf_bound: sensitivities, grid units.
        delta: in (0, 1).

    Raises ValueError: an argument outside its range, the theorem's condition does not hold, or the result exceeds 1,
    where its first term is not proved (see the module).
    """
    if trials < 1 or dim < 1 or not 0 < delta < 1 or not 0 <= linf_bound <= l2_bound * (1 + HAIR) < math.inf:
        raise ValueError("trials >= 1, dim >= 1, 0 < delta < 1 and 0 <= linf_bound <= l2_bound must hold")
    if not l2_bound <= l1_bound * (1 + HAIR) < math.inf:
        raise ValueError("l1_bound must be finite and at least l2_bound")
    needed = smallest_variance(dim, delta, linf_bound)
    if trials / 4 < needed:
        raise ValueError(f"the theorem needs {math.ceil(4 * needed)} trials in the sum, there are {trials}")
    epsilon = _theorem(trials / 4, dim, l1_bound, l2_bound, linf_bound, delta)
    if epsilon > LARGEST_ROUND_EPSILON:
        raise ValueError(f"the theorem would give epsilon {epsilon:.4g} and is used up to 1 only: add trials")
    return epsilon


def _theorem(variance: float, dim: int, l1: float, l2: float, linf: float, delta: float) -> float:
    """The formula alone, whatever its conditions say."""
    wide = l2 * math.sqrt(2 * math.log(1.25 / delta) / variance)
    narrow = l2 * 7 * math.sqrt(2) / 4 * math.sqrt(math.log(10 / delta)) + l1 / 3
    largest = linf * 2 / 3 * (math.log(1.25 / delta) + math.log(20 * dim / delta) * math.log(10 / delta))
    return (wide + narrow / (variance * (1 - delta / 10)) + largest / variance) * (1 + HAIR)


def sensitivities(clip_grid: float, dim: int, beta: float) -> tuple[float, float, int]:
    """(L1, L2, largest coordinate) bounds of a clipped, rotated, rounded vector, grid units.

    L2 and L1 as for the other mechanisms ([KLS21] Prop. 22). No rotated coordinate exceeds the clip, so none rounds
    beyond the next integer; nor can an integer exceed the L2 norm. The encoder checks both, exactly.
    """
    l2_bound = rounded_l2_bound(clip_grid, dim, beta)
    largest = min(math.isqrt(math.floor(Fraction(l2_bound) ** 2)), math.ceil(clip_grid))
    return max(rounded_l1_bound(l2_bound, dim), l2_bound), l2_bound, largest
