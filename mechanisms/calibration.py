"""From a privacy target to the grid and the noise: the smallest noise that keeps the target.

In grid units the published fixed point (granularity -> deviation -> granularity, [KLS21] section 4) has one unknown.
Given the variance s^2 of one share, the wrap bound fixes the longest clip r = clip / granularity that fits B bits; the
larger s^2 and the shorter r both lower epsilon. So epsilon falls monotonically in s^2, and bisection on an integer
finds the smallest s^2 on a lattice of rationals that meets the target: on the safe side, and exactly the number that
the sampler draws with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from mechanisms.lattice_noise import LARGEST_VARIANCE
from mechanisms.privacy_curves import SMALLEST_STDDEV, Floats
from mechanisms.refusals import InfeasiblePlan, nearest
from mechanisms.round_cost import (
    Noise,
    best_order,
    coarse_orders,
    has_losses,
    least_loss_multiplier,
    loss_multiplier,
    planned_epsilon,
    pld_epsilon,
)
from mechanisms.rounding import LARGEST_PLANNED_NORM
from mechanisms.statement import CONDITIONAL, COORDINATOR, DDGAUSS, GAUSSIAN, LARGEST_BITS, LOCAL, RELEASED, Statement

VARIANCE_DENOMINATOR: Final = 1 << 28
# Calibration stops this much (relative) before the target and the wrap bound, so that another machine's
# mathematical functions, a few units in the last place away, still find that they hold.
_MARGIN: Final = 1e-9
_SEARCHES: Final = 6


class Calibration(NamedTuple):
    """The noise that was found, and by reader the order at which all planned rounds cost least."""

    noise: Noise
    orders: Mapping[str, float]


def smallest_variance(mechanism: str) -> Fraction:
    """The least variance of one share, grid units squared."""
    # [KLS21] Theorem 1 needs half a grid step of local deviation. Skellam and Gaussian noise have no such bound of
    # their own; a deviation of 2^-10 grid steps is no setting anybody means.
    return SMALLEST_STDDEV**2 if mechanism == DDGAUSS else Fraction(1, 1 << 20)


def wrap_load(stated: Statement, granularity: Fraction, local_variance: Fraction) -> Fraction:
    """k_stddevs deviations of one coordinate of the sum over half the modulus, squared; must be <= 1.

    2^B >= 2 k sqrt(r^2 n^2 / b + n / 4 + n s^2) with r = clip / granularity and b the block length of the rotation,
    which spreads the worst case: all n updates point the same way and lie in one block. Source: [KLS21] section 4 /
    Theorem 34, in grid units; there b = d. Noise that survivors take back isn't counted: before it is subtracted the
    sum may wrap, and after that it has come back. A coordinator's noise counts: it is added modulo 2^B, else a sum that
    wraps would reveal more than a sum with noise.
    """
    n = stated.clients
    spread = (
        (Fraction(stated.encoder_clip) / granularity) ** 2 * n * n / stated.block_dim
        + Fraction(n, 4)
        + _noise_in_sum(stated, local_variance)
    )
    k_squared = Fraction(stated.k_stddevs) * Fraction(stated.k_stddevs)
    return k_squared * spread / Fraction(2) ** (2 * stated.bits - 2)


def _noise_in_sum(stated: Statement, local_variance: Fraction) -> Fraction:
    """What stays in a sum whose survivors all take back what they can."""
    return (stated.h_min if stated.mechanism == GAUSSIAN else stated.shares_in_sum) * local_variance


def scaled_clip_squared(stated: Statement, local_variance: Fraction) -> Fraction:
    """The largest r^2 = (clip / granularity)^2 that the wrap bound allows; may be negative."""
    n = stated.clients
    room = Fraction(4**stated.bits, 4) / Fraction(stated.k_stddevs) ** 2 - Fraction(n, 4)
    return (room - _noise_in_sum(stated, local_variance)) * stated.block_dim / (n * n)


def noise_of(stated: Statement, local_variance: Fraction) -> Noise:
    """The noise of one share with the finest grid on which it fits."""
    granularity = stated.encoder_clip / math.sqrt(scaled_clip_squared(stated, local_variance)) * (1 + _MARGIN)
    return Noise(granularity, local_variance)


class _TooManyBits(InfeasiblePlan):
    """The grid is finer than 64-bit norms can check: fewer bits help."""


def _room_for_noise(stated: Statement) -> tuple[int, int]:
    """Least and largest numerator of the variance over `VARIANCE_DENOMINATOR` that can be tried."""
    unit = VARIANCE_DENOMINATOR
    low = math.ceil(smallest_variance(stated.mechanism) * unit)
    # The most noise that leaves room for one grid step of signal: r^2 = 1 and the margin below.
    room = scaled_clip_squared(stated, Fraction(0)) - Fraction(1001, 1000)
    shares = _noise_in_sum(stated, Fraction(1))
    high = math.floor(room * stated.clients**2 / (stated.block_dim * shares) * unit)
    if stated.mechanism == GAUSSIAN:
        high = min(high, LARGEST_VARIANCE * unit // stated.h_min)
    if room < 0 or high < low:
        raise InfeasiblePlan(
            f"{stated.bits} bits cannot hold a sum of {stated.clients} noised vectors of {stated.padded_dim} "
            f"values at {stated.k_stddevs:g} standard deviations",
            "",
        )
    if scaled_clip_squared(stated, min(Fraction(high, unit), Fraction(LARGEST_VARIANCE))) > LARGEST_PLANNED_NORM**2:
        raise _TooManyBits(f"{stated.bits} bits make a finer grid than the sampler and 64-bit norms take", "")
    return low, min(high, LARGEST_VARIANCE * unit)


def _solve(stated: Statement) -> Calibration:
    target, reader = stated.epsilon * (1 - _MARGIN), stated.target
    low, high = _room_for_noise(stated)

    def noise(numerator: int) -> Noise:
        return noise_of(stated, Fraction(numerator, VARIANCE_DENOMINATOR))

    def smallest(orders: Floats | float, tolerance: float) -> int:
        """A numerator that reaches the target with these orders, above the smallest one by ``tolerance`` at most."""

        if not _reaches(stated, noise(high), orders, target):
            shared = "" if stated.mechanism in (LOCAL, GAUSSIAN) else f" with {stated.h_min} honest survivors"
            raise InfeasiblePlan(
                f"no noise that fits {stated.bits} bits reaches epsilon {stated.epsilon:g} "
                f"over {stated.rounds} {'round' if stated.rounds == 1 else 'rounds'}{shared}",
                "",
            )
        return _bisect(
            lambda numerator: planned_epsilon(stated, noise(numerator), reader, orders) <= target, low, high, tolerance
        )

    # The order is fixed here, for the schedule that is planned; the filter of the study keeps it. The noise is then
    # found again for that order alone, and the order for that noise, until they agree.
    variance = smallest(coarse_orders(stated, reader), 1e-3)
    tried: dict[float, int] = {}
    order = best_order(stated, noise(variance), reader)
    while order not in tried and len(tried) < _SEARCHES:
        tried[order] = smallest(order, 0)
        order = best_order(stated, noise(tried[order]), reader)
    order, variance = min(tried.items(), key=lambda item: item[1])
    if reader == CONDITIONAL and has_losses(stated):
        variance = _least_by_losses(stated, noise, low, variance, target)
        order = best_order(stated, noise(variance), reader)
    found = noise(variance)
    if stated.encoder_clip / found.granularity + math.sqrt(stated.padded_dim) >= LARGEST_PLANNED_NORM:
        raise _TooManyBits(f"with {stated.bits} bits the grid is so fine that squared integer norms leave 64 bits", "")
    orders = {reader: order}
    for other in (COORDINATOR, RELEASED, CONDITIONAL):
        if other not in orders:
            orders[other] = best_order(stated, found, other) if stated.amplified else order
    return Calibration(found, MappingProxyType(orders))  # shared by all who ask again


def _bisect(reached: Callable[[int], bool], below: int, above: int, tolerance: float) -> int:
    """A number that is ``reached``, above the smallest one from ``below`` on by ``tolerance`` (relative) at most;
    ``above`` if none is.
    """
    while below < above and above > below * (1 + tolerance):
        # Halfway in orders of magnitude while they differ: the answer is far below the most that fits.
        middle = math.isqrt(below * above) if above > 4 * below else (below + above) // 2
        if reached(middle):
            above = middle
        else:
            below = middle + 1
    return above


def _least_by_losses(stated: Statement, noise: Callable[[int], Noise], low: int, above: int, target: float) -> int:
    """As much noise as `pld_epsilon` asks for; ``above``, which the Renyi bound asks for, where that is no less."""
    needed = least_loss_multiplier(stated, target)
    found = _bisect(lambda numerator: loss_multiplier(stated, noise(numerator)) >= needed, low, above, 0)
    return found if pld_epsilon(stated, noise(found), stated.rounds) <= target else above


@lru_cache(maxsize=32)  # a study's plan is made again whenever its file is read
def calibrate(stated: Statement) -> Calibration:
    """Find the smallest noise whose epsilon, over all planned rounds at h_min, is at most the target.

    Raises InfeasiblePlan: no noise does; with the nearest number of bits, or the lowest epsilon, that works.
    """
    try:
        return _solve(stated)
    except InfeasiblePlan as problem:
        upward = range(stated.bits + 1, LARGEST_BITS + 1)
        others = range(stated.bits - 1, 0, -1) if isinstance(problem, _TooManyBits) else upward

        def works(bits: int, epsilon: float) -> bool:
            return _works(replace(stated, bits=bits, epsilon=epsilon))

        raise InfeasiblePlan(problem.reason, *nearest(stated.bits, others, stated.epsilon, works)) from None


def _reaches(stated: Statement, noise: Noise, orders: Floats | float, target: float) -> bool:
    if planned_epsilon(stated, noise, stated.target, orders) <= target:
        return True
    return stated.target == CONDITIONAL and pld_epsilon(stated, noise, stated.rounds) <= target


def _feasible(stated: Statement) -> bool:
    """Whether the most noise that fits, with the finest grid beside it, reaches the target."""
    try:
        _, high = _room_for_noise(stated)
    except InfeasiblePlan:
        return False
    noise = noise_of(stated, Fraction(high, VARIANCE_DENOMINATOR))
    orders = coarse_orders(stated, stated.target)
    return _reaches(stated, noise, orders, stated.epsilon * (1 - 2 * _MARGIN))


def _works(stated: Statement) -> bool:
    """Whether it can be calibrated: looked at first with little work, then done."""
    if not _feasible(stated):
        return False
    try:
        _solve(stated)
    except InfeasiblePlan:
        return False
    return True
