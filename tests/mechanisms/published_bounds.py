"""Bounds of the papers as they stand there, in high precision: independent of the code under test."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath

Number = mpmath.mpf


def gaussian_delta(z: Number, epsilon: Number) -> Number:
    """[BW18] Theorem 8 at noise multiplier z. To be called with many digits: its two terms all but cancel."""
    z, epsilon = mpmath.mpf(z), mpmath.mpf(epsilon)
    return mpmath.ncdf(1 / (2 * z) - epsilon * z) - mpmath.exp(epsilon) * mpmath.ncdf(-1 / (2 * z) - epsilon * z)


def gaussian_epsilon(z: Number, delta: float) -> Number:
    """The same, solved for epsilon by bisection."""
    low, high = mpmath.mpf(0), 1 / (2 * mpmath.mpf(z) ** 2) + 12 / mpmath.mpf(z)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(z, middle) <= delta else (middle, high)
    return high


def fixed_size(order: int, cost: Sequence[Number], q: Number) -> Number:
    """[WBK19] Theorem 9. ``cost``: of unsampled rounds, replace-one, at orders 2, 3, ..."""
    total = 1 + math.comb(order, 2) * q**2 * min(4 * mpmath.expm1(cost[0]), 2 * mpmath.exp(cost[0]))
    for j in range(3, order + 1):
        total += 2 * math.comb(order, j) * q**j * mpmath.exp((j - 1) * cost[j - 2])
    return mpmath.log(total) / (order - 1)


def poisson(order: int, cost: Sequence[Number], q: Number) -> Number:
    """[ZW19] Theorem 5. ``cost``: of unsampled rounds, content against zero, at orders 2, 3, ..."""
    total = (1 - q) ** (order - 1) * (order * q - q + 1)
    total += math.comb(order, 2) * q**2 * (1 - q) ** (order - 2) * mpmath.exp(cost[0])
    for j in range(3, order + 1):
        total += 3 * math.comb(order, j) * q**j * (1 - q) ** (order - j) * mpmath.exp((j - 1) * cost[j - 2])
    return mpmath.log(total) / (order - 1)
