"""Paired differences over seeds: an exact test, its correction for many comparisons, and the size it would have found.

The test flips signs: if two settings don't differ, each seed's difference is as likely with the other sign, and p is
the share of all patterns of signs whose sum is as far from zero ([Fis35] section 21). It assumes no law of accuracies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

LEVEL: Final = 0.05
"""Chance of one or more false findings among the comparisons of one family."""
POWER: Final = 0.8
_EXACT: Final = 12  # pairs; beyond them patterns are drawn
_DRAWN: Final = 4096
_SIMULATED: Final = 2000
_ROUNDING: Final = 1e-12

Floats: TypeAlias = NDArray[np.float64]


@lru_cache(maxsize=8)
def _signs(pairs: int) -> Floats:
    """Patterns of signs, shape (patterns, pairs), the observed one first; a pattern and its opposite count once."""
    if pairs <= _EXACT:
        flipped = np.arange(1 << (pairs - 1))[:, None] >> np.arange(pairs) & 1
        return (1 - 2 * flipped).astype(np.float64)
    drawn = np.random.default_rng(pairs).choice([-1.0, 1.0], (_DRAWN, pairs))
    drawn[0] = 1
    return drawn


def _p_values(sums: Floats, slack: Any) -> Any:
    """``sums``: of every pattern, shape (..., patterns), the observed one first."""
    distances = np.abs(sums)
    return np.mean(distances >= distances[..., :1] - slack, axis=-1)


def p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p value of paired differences, one or more: exact up to 12, else of 4,096 drawn patterns."""
    given = np.asarray(differences, dtype=np.float64)
    return float(_p_values(_signs(given.size) @ given, _ROUNDING * np.abs(given).sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number: none is below `LEVEL` by chance but with that chance ([Hol79])."""
    found, least = [1.0] * len(p_values), 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[at]))
        found[at] = least
    return found


@lru_cache(maxsize=256)
def detectable(pairs: int, level: float) -> float:
    """Return the mean difference that the test finds at a level with chance `POWER`, in deviations of one difference.

    By simulation of normal differences, to about 2 %. Infinite if even equal signs don't reach the level.
    """
    signs = _signs(pairs)
    if 1 / len(signs) > level:
        return math.inf
    chance = np.random.default_rng(pairs).standard_normal((_SIMULATED, pairs)) @ signs.T

    def power(size: float) -> float:
        return float(np.mean(_p_values(chance + size * signs.sum(1), _ROUNDING) <= level))

    low, high = 0.0, 1.0
    while power(high) < POWER:
        low, high = high, 2 * high
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high
