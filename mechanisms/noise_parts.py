"""Noise that is added and taken back: the parts of a share, and which of them survivors give up.

A share of variance s^2 has to suffice where only m = min_survivors remain, of which A are known. If k survive, a share
of s^2 (m - A) / (k - A) leaves the same unknown noise in the sum; the rest is surplus. A share is therefore a base and
L parts of variance w, 2 w, 4 w, ..., each made from a seed of its own. Once a quorum has signed the survivors, each
survivor reveals the seeds of the parts that sum to r(k) w, and the coordinator subtracts them:

    w    = s^2 (n - m) / ((n - A) (2^L - 1)),  n the cohort
    r(k) = floor((2^L - 1) (k - m) (n - A) / ((k - A) (n - m)))

So s^2 - r(k) w stays of each share: at least s^2 (m - A) / (k - A), and less than w more. Powers of two instead of a
part for each number of survivors: few seeds, few draws (decision 0017). The idea is that of [JWC24].
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Final

MOST_EXCESS: Final = Fraction(4, 100)
"""Of the unknown noise over what is needed, for any number of survivors, where the grid is fine enough."""
MOST_PARTS: Final = 8
LARGEST_COHORT: Final = 1 << 16
UNIT_DENOMINATOR: Final = 1 << 28


def released(survivors: int, *, clients: int, min_survivors: int, colluders: int, parts: int) -> int:
    """r(k): bit j says that the seed of the part of variance 2^j w is revealed if ``survivors`` remain."""
    if not parts:
        return 0
    n, m, k = clients - colluders, min_survivors - colluders, survivors - colluders
    return ((1 << parts) - 1) * (k - m) * n // (k * (n - m))


def unit(local_variance: Fraction, *, clients: int, min_survivors: int, colluders: int, parts: int) -> Fraction:
    """w, rounded down to a multiple of 2^-28, grid units squared; 0 without parts."""
    if not parts:
        return Fraction(0)
    exact = local_variance * (clients - min_survivors) / ((clients - colluders) * ((1 << parts) - 1))
    return Fraction(exact * UNIT_DENOMINATOR // 1, UNIT_DENOMINATOR)


@lru_cache(maxsize=64)
def largest_sum(clients: int, min_survivors: int, colluders: int, parts: int) -> tuple[Fraction, Fraction]:
    """The most noise that stays in a sum if all survivors answer, and the most that is unknown, for any survivors.

    In shares before anything is taken back, and over s^2 (m - A).
    """
    if not parts:
        return Fraction(clients), Fraction(clients - colluders, min_survivors - colluders)
    n, m, levels = clients - colluders, min_survivors - colluders, (1 << parts) - 1
    most = unknown = 0  # in units of 1 / (n levels)
    for survivors in range(min_survivors, clients + 1):
        bits = released(survivors, clients=clients, min_survivors=min_survivors, colluders=colluders, parts=parts)
        stays = n * levels - bits * (clients - min_survivors)
        most, unknown = max(most, survivors * stays), max(unknown, (survivors - colluders) * stays)
    return Fraction(most, n * levels), Fraction(unknown, n * levels * m)


def parts_needed(clients: int, min_survivors: int, colluders: int) -> int:
    """The fewest parts that keep the excess within `MOST_EXCESS`; 0 if all must survive, or for huge cohorts."""
    if min_survivors == clients or clients > LARGEST_COHORT:
        return 0
    for parts in range(1, MOST_PARTS):
        if largest_sum(clients, min_survivors, colluders, parts)[1] <= 1 + MOST_EXCESS:
            return parts
    return MOST_PARTS
