"""How much a local report is hidden among the others where the order of reports is lost.

A secure sum of one-hot reports is their histogram, which is all that a shuffler would show. [FMT21] bounds the gain for
*any* local randomiser.

Adjacency: replace-one, every participant reports in both cases. Trusts: for the amplified figure the secure sum (the
coordinator sees only the total) and the honest participants, which did randomise their reports (colluders' reports hide
no other); for the local figure no party.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

from mechanisms.baselines.composition import bisected
from mechanisms.privacy_curves import HAIR


@dataclass(frozen=True, kw_only=True)
class ShuffleBound:
    """(epsilon, delta) of shuffled local reports, and where it comes from."""

    epsilon: float  # replace-one; never above ``local_epsilon``
    delta: float  # 0.0 where the local bound holds: it needs none
    local_epsilon: float  # eps0 of each report
    honest: int  # reports, the protected one included, that the adversary doesn't know
    bound: Literal["amplified", "local"]  # [FMT21] Theorem 3.1, or eps0: shuffling is post-processing
    reason: str  # why this one, a sentence


def largest_local_epsilon(honest: int, delta: float) -> float:
    """The largest eps0 at which the theorem holds: ln(n / (16 ln(2 / delta))); negative if n is too small.

    Source: the condition of [FMT21] Theorem 3.1. A hair is taken off.

    Raises ValueError: honest < 1, or delta outside (0, 1).
    """
    if honest < 1 or not 0 < delta < 1:
        raise ValueError("honest >= 1 and 0 < delta < 1 must hold")
    return math.log(honest / (16 * math.log(2 / delta))) - HAIR


def shuffle_bound(local_epsilon: float, honest: int, delta: float) -> ShuffleBound:
    """The privacy of ``honest`` shuffled reports of an eps0-differentially private local randomiser.

    eps <= ln(1 + (e^eps0 - 1) / (e^eps0 + 1) (8 sqrt(e^eps0 ln(4 / delta) / n) + 8 e^eps0 / n)), provided that eps0 <=
    ln(n / (16 ln(2 / delta))). Source: [FMT21] Theorem 3.1. Outside the condition, and where it is smaller, eps0 itself
    is the answer, by name. n = ``honest``, the fewest honest reports in the sum with the protected one, and never the
    number of participants: the adversary knows the colluders' reports and subtracts them. Adjacency and trust: see the
    module.

    Raises ValueError: an argument outside its range.
    """
    if not 0 < local_epsilon < math.inf:
        raise ValueError("local_epsilon must be positive and finite")
    limit = largest_local_epsilon(honest, delta)
    bound = partial(ShuffleBound, local_epsilon=local_epsilon, honest=honest)
    local = partial(bound, epsilon=local_epsilon, delta=0.0, bound="local")
    if local_epsilon > limit:
        condition = (
            f"the theorem needs eps0 <= {limit:.6g} for {honest} honest reports at delta {delta:g}"
            if limit > 0
            else f"{honest} honest reports are too few for the theorem at delta {delta:g}"
        )
        return local(reason=f"{condition}; eps0 {local_epsilon:g} stays")
    grown = math.exp(local_epsilon)
    clones = 8 * math.sqrt(grown * math.log(4 / delta) / honest) + 8 * grown / honest
    epsilon = math.log1p(math.tanh(local_epsilon / 2) * clones) * (1 + HAIR)
    if epsilon >= local_epsilon:
        return local(reason=f"the theorem gives {epsilon:.6g}, no better than eps0")
    reason = f"[FMT21] Theorem 3.1, closed form, {honest} honest reports"
    return bound(epsilon=epsilon, delta=delta, bound="amplified", reason=reason)


def local_epsilon_for(epsilon: float, honest: int, delta: float) -> float:
    """The largest eps0 whose `shuffle_bound` is at most ``epsilon``; at least ``epsilon`` itself.

    The closed form grows with eps0, so bisection finds where it meets the target; where the theorem doesn't
    reach, the reports themselves have to be that private.

    Raises ValueError: an argument outside its range.
    """
    if not 0 < epsilon < math.inf:
        raise ValueError("epsilon must be positive and finite")
    low, high = epsilon, largest_local_epsilon(honest, delta)
    if high <= low or shuffle_bound(high, honest, delta).epsilon <= epsilon:
        return max(low, high)
    return bisected(lambda eps0: shuffle_bound(eps0, honest, delta).epsilon <= epsilon, low, high, steps=200)[0]
