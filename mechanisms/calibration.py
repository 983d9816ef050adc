"""From a privacy target to the grid and the noise: the smallest noise that keeps the target.

In grid units the published fixed point (granularity -> deviation -> granularity, [KLS21] section 4) has a
single unknown. Given the variance s^2 of one share, the wrap bound fixes the longest clip r = clip /
granularity that still fits B bits; both the larger s^2 and the shorter r then lower epsilon. So epsilon falls
monotonically in s^2, and the smallest s^2 on a lattice of rationals that meets the target is found by
bisection on an integer: always on the safe side, and exactly the number that the sampler draws with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

import numpy as np

from mechanisms.discrete_gaussian import LARGEST_VARIANCE
from mechanisms.privacy_curves import (
    SMALLEST_STDDEV,
    Floats,
    ddgauss_rdp,
    epsilon_with_sampler_error,
    order_grid,
    rounded_l1_bound,
    rounded_l2_bound,
)
from mechanisms.rounding import LARGEST_NORM
from mechanisms.statement import LARGEST_BITS, InfeasiblePlan, Statement

VARIANCE_DENOMINATOR: Final = 1 << 16
# Calibration stops this much (relative) before the target and the wrap bound, so that another machine's
# mathematical functions, a few units in the last place away, still find that they hold.
_MARGIN: Final = 1e-9


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """granularity: data units. local_variance: of one share, grid units squared. order: of the filter."""

    granularity: float
    local_variance: Fraction
    order: float


def wrap_load(stated: Statement, granularity: Fraction, local_variance: Fraction) -> Fraction:
    """k_stddevs deviations of one coordinate of the sum over half the modulus, squared; must be <= 1.

    2^B >= 2 k sqrt(r^2 n^2 / d + n / 4 + n s^2) with r = clip / granularity: after rotation, in the worst
    case that all n updates point the same way. Source: [KLS21] section 4 / Theorem 34, in grid units.
    """
    n = stated.clients
    spread = (
        (Fraction(stated.clip) / granularity) ** 2 * n * n / stated.padded_dim + Fraction(n, 4) + n * local_variance
    )
    k_squared = Fraction(stated.k_stddevs) * Fraction(stated.k_stddevs)
    return k_squared * spread / Fraction(2) ** (2 * stated.bits - 2)


def scaled_clip_squared(stated: Statement, local_variance: Fraction) -> Fraction:
    """The largest r^2 = (clip / granularity)^2 that the wrap bound allows; may be negative."""
    n = stated.clients
    room = Fraction(4**stated.bits, 4) / Fraction(stated.k_stddevs) ** 2 - Fraction(n, 4) - n * local_variance
    return room * stated.padded_dim / (n * n)


def sensitivity(stated: Statement, granularity: float) -> tuple[float, float]:
    """Rounded (L2, L1) bounds of one clipped update, grid units."""
    l2_bound = rounded_l2_bound(stated.clip / granularity, stated.padded_dim, stated.beta)
    return l2_bound, rounded_l1_bound(l2_bound, stated.padded_dim)


def round_rdp(stated: Statement, granularity: float, local_variance: Fraction, orders: Floats | float) -> Floats:
    """Renyi cost of one round at h_min, at each order."""
    l2_bound, l1_bound = sensitivity(stated, granularity)
    return ddgauss_rdp(
        orders,
        l2_bound=l2_bound,
        l1_bound=l1_bound,
        dim=stated.padded_dim,
        local_variance=local_variance,
        shares=stated.h_min,
    )


def planned_epsilon(stated: Statement, granularity: float, local_variance: Fraction, orders: Floats | float) -> float:
    """Epsilon of all planned rounds at h_min: the smallest over ``orders``, the sampler's error included."""
    rdp = stated.rounds * round_rdp(stated, granularity, local_variance, orders)
    return epsilon_with_sampler_error(orders, rdp, stated.delta, planned_draws(stated))


def planned_draws(stated: Statement) -> int:
    """Noise coordinates in all planned sums, if everybody survives."""
    return stated.rounds * stated.clients * stated.padded_dim


def _granularity(stated: Statement, local_variance: Fraction) -> float:
    return stated.clip / math.sqrt(scaled_clip_squared(stated, local_variance)) * (1 + _MARGIN)


class _TooManyBits(InfeasiblePlan):
    """The grid is finer than 64-bit norms can check: fewer bits help."""


def _solve(stated: Statement) -> Calibration:
    orders = order_grid()
    target = stated.epsilon * (1 - _MARGIN)
    unit = VARIANCE_DENOMINATOR
    low = math.ceil(SMALLEST_STDDEV**2 * unit)
    # The most noise that leaves room for one grid step of signal: r^2 = 1 and the margin below.
    room = scaled_clip_squared(stated, Fraction(0)) - Fraction(1001, 1000)
    high = math.floor(room * stated.clients / stated.padded_dim * unit)
    if high < low:
        raise InfeasiblePlan(
            f"{stated.bits} bits cannot hold a sum of {stated.clients} noised vectors of {stated.padded_dim} "
            f"values at {stated.k_stddevs:g} standard deviations",
            "",
        )
    if scaled_clip_squared(stated, Fraction(LARGEST_VARIANCE)) > LARGEST_NORM**2:
        raise _TooManyBits(f"{stated.bits} bits make a finer grid than the sampler and 64-bit norms take", "")
    high = min(high, LARGEST_VARIANCE * unit)

    def epsilon(numerator: int, at: Floats) -> float:
        variance = Fraction(numerator, unit)
        return planned_epsilon(stated, _granularity(stated, variance), variance, at)

    def smallest(at: Floats) -> int:
        """The smallest numerator that reaches the target with the orders ``at``."""
        if epsilon(high, at) > target:
            raise InfeasiblePlan(
                f"no noise that fits {stated.bits} bits reaches epsilon {stated.epsilon:g} "
                f"over {stated.rounds} rounds with {stated.h_min} honest survivors",
                "",
            )
        below, above = low, high
        while below < above:
            middle = (below + above) // 2
            if epsilon(middle, at) <= target:
                above = middle
            else:
                below = middle + 1
        return above

    variance = Fraction(smallest(orders), unit)
    # The order is fixed here, for the schedule that is planned; the filter of the study keeps it. The noise is then
    # found again for that order alone: near the largest targets the sampler's error is a part of delta that grows
    # with epsilon, and the best order of the bound isn't quite the one that the first search ended at.
    rdp = stated.rounds * round_rdp(stated, _granularity(stated, variance), variance, orders)
    converted = rdp + np.log1p(-1 / orders) - (math.log(stated.delta) + np.log(orders)) / (orders - 1)
    order = float(orders[np.argmin(converted)])
    variance = Fraction(smallest(np.array([order])), unit)
    granularity = _granularity(stated, variance)
    if stated.clip / granularity + math.sqrt(stated.padded_dim) >= LARGEST_NORM:
        raise _TooManyBits(
            f"with {stated.bits} bits the grid is so fine that squared integer norms leave 64 bits",
            "",
        )
    return Calibration(granularity=granularity, local_variance=variance, order=order)


def calibrate(stated: Statement) -> Calibration:
    """Find the smallest noise whose epsilon, over all planned rounds at h_min, is at most the target.

    Raises:
        InfeasiblePlan: no noise does; with the nearest number of bits, or the lowest epsilon, that works.
    """
    try:
        return _solve(stated)
    except InfeasiblePlan as problem:
        raise InfeasiblePlan(problem.reason, _suggest(stated, isinstance(problem, _TooManyBits))) from None


def _feasible(stated: Statement) -> bool:
    try:
        _solve(stated)
    except InfeasiblePlan:
        return False
    return True


def _suggest(stated: Statement, fewer_bits: bool) -> str:
    upward = range(stated.bits + 1, LARGEST_BITS + 1)
    others = range(stated.bits - 1, 0, -1) if fewer_bits else upward
    for bits in others:
        if _feasible(replace(stated, bits=bits)):
            return f"{bits} bits work"
    for step in range(1, 25):
        epsilon = float(f"{stated.epsilon * 1.25**step:.3g}")
        for bits in (stated.bits, *others[:8]):
            if _feasible(replace(stated, bits=bits, epsilon=epsilon)):
                return f"epsilon {epsilon:g} with {bits} bits works"
    return "use more clients, fewer rounds or a larger epsilon"
