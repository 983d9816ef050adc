"""Check that the noise in the outputs has the planned size: a narrower test than the bound on epsilon, with more power.

Too little noise breaks the claim. Too much is no breach by itself, but a sign of one: n equal shares add up to sqrt(n)
of the planned deviation, and each participant then knows the others' noise.

The auditor draws the coins, so it knows the contributions and thus the noise: outputs less contributions. Its size has
a known law, so a deficit of an eighth shows at once, where a lower bound on epsilon needs a factor of several. But the
check trusts that noise of the right size protects, which the plan's proof says and an audit doesn't.

Chances of a false alarm hold for noise that is exactly the plan's; rounding adds at most a quarter of a squared grid
step per update, which the upper bound allows for. Sums of squares of thousands of independent values are taken as
chi-squared, inner products as normal.
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
    """Check whether noise is smaller or larger than planned, and whether two rounds share it.

    Args:
        squared: for each round the sum of squares of its noise, in planned variances.
        values: for each round the number of values in that sum.
        fingerprints: for each round the same many values of its noise in the frame it was drawn in, any unit.
        rounding: most that rounding adds to the variance of a value in any round, in planned variances, >= 0.

    Returns:
        JSON names ``noise_found``: deviation over the planned one; ``noise_least`` and ``noise_most``: a right
        mechanism lies below, or above, with a chance of at most `FALSE_ALARM` each; ``noise_short``;
        ``noise_excess``; ``noise_correlation``: the largest between two rounds, 0 with a single one;
        ``noise_most_correlation``; ``noise_shared``.
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
