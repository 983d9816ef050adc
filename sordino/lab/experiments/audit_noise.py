"""Is the noise in the outputs the plan's? A sharper question than epsilon's, and a narrower one.

Too little is a claim that isn't kept. Too much is no breach by itself, but a sign of one: n shares that are the same
draw add up to sqrt(n) of the planned deviation, and whoever knows her own knows all of them.

Whoever tosses the coins knows what was contributed, and so the noise itself: outputs less contributions. Its size has a
known law, so an eighth less is seen at once, where a lower bound on epsilon needs it to be several times less. But it
trusts that noise of the right size protects, which is what the plan's proof says and an audit doesn't.

Chances of a false alarm are stated for noise that is exactly the plan's; rounding errors only add to it, at most a
quarter of a grid step squared for each update, which the upper bound allows for. Sums of
squares of thousands of independent values are taken as chi-squared, inner products as normal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FALSE_ALARM: Final = 1e-6
"""Chance that a right mechanism fails one of the three checks, each."""


def chi_squared_quantile(chance: float, degrees: int) -> float:
    """Wilson and Hilferty's approximation: within 1 % for 100 degrees of freedom or more down to a chance of 1e-6.

    Source: [WH31], the cube root.
    """
    spread = 2 / (9 * degrees)
    return degrees * (1 - spread + NormalDist().inv_cdf(chance) * math.sqrt(spread)) ** 3


def noise_check(
    squared: Sequence[float], values: Sequence[int], fingerprints: Sequence[Floats], rounding: float = 0.0
) -> dict[str, Any]:
    """Whether noise is smaller or larger than planned, and whether two rounds share it.

    Args:
        squared: for each round the sum of squares of its noise, in planned variances.
        values: for each round how many values that sum has.
        fingerprints: for each round the same many values of its noise in the frame it was drawn in, any unit.
        rounding: most that rounding adds to the variance of a value in any round, in planned variances, >= 0.

    Returns:
        JSON names ``noise_found``: deviation over the planned one; ``noise_least``: below which a right mechanism lies
        with a chance of `FALSE_ALARM`; ``noise_short``; ``noise_most``: above which it lies with the same chance at
        most; ``noise_excess``; ``noise_correlation``: the largest between two rounds, 0 with a
        single one; ``noise_most_correlation``; ``noise_shared``.
    """
    degrees = sum(values)
    pairs = list(combinations(range(len(fingerprints)), 2))
    largest, most = 0.0, 0.0
    if pairs:
        lengths = [float(np.linalg.norm(one)) for one in fingerprints]
        largest = max(
            abs(float(np.vdot(fingerprints[a], fingerprints[b]))) / max(lengths[a] * lengths[b], 1e-300)
            for a, b in pairs
        )
        most = NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * len(pairs))) / math.sqrt(fingerprints[0].size)
    found = math.sqrt(sum(squared) / degrees)
    least = math.sqrt(chi_squared_quantile(FALSE_ALARM, degrees) / degrees)
    largest_size = math.sqrt(chi_squared_quantile(1 - FALSE_ALARM, degrees) / degrees * (1 + rounding))
    return {
        "noise_found": found,
        "noise_least": least,
        "noise_short": found < least,
        "noise_most": largest_size,
        "noise_excess": found > largest_size,
        "noise_correlation": largest,
        "noise_most_correlation": most,
        "noise_shared": largest > most,
    }
