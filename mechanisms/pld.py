"""Sampled central Gaussian rounds by privacy loss distributions: dp-accounting's, on the coordinator only.

This is the one module of the core that uses dp-accounting. It imports it inside the functions, so a participant never
loads it.

Adjacency: content against zero, where the noise does not depend on the sample (a central Gaussian). A round without the
participant and one that holds a zero of it are then the same, so the pair of one round is (1 - q) N(0, z^2) + q N(1,
z^2) against N(0, z^2), in both orders: the same as dp-accounting's REPLACE_SPECIAL and ADD_OR_REMOVE_ONE. It dominates
updates of any dimension and length up to the clip, and dominating pairs compose ([ZDW22]). It does NOT hold where each
sampled participant adds a noise share, nor for cohorts of fixed size; and it is for schedules fixed in advance, with an
independent coin per participant and round: a *conditional* figure.
"""

from __future__ import annotations

import math
import warnings
from functools import lru_cache
from typing import Any, Final

import numpy as np

from mechanisms.amplification import check_rate
from mechanisms.gaussian_exact import check_delta, check_noise_multiplier, gaussian_multiplier

# The grid is refined until it no longer pays, or until it holds this many losses of one round, or of all rounds.
_FIRST_POINTS: Final = 500
_MOST_POINTS: Final = 32_000
_MOST_COMPOSED_POINTS: Final = 1 << 19
_ENOUGH: Final = 1e-4
# dp-accounting composes by Fourier transforms. Their rounding, some 2^-50 a round, is taken off delta.
_ROUNDING_PER_ROUND: Final = 2.0**-48
# Deviations of the noise that dp-accounting keeps: mass e^-50 is left out (and counted as lost).
_REACH: Final = 10.0
_WIDEST: Final = 500.0
# `poisson_gaussian_multiplier` stops this close (relative) below the epsilon that is asked for.
_TOLERANCE: Final = 1e-3
_MOST: Final = 1e9


@lru_cache(maxsize=256)
def poisson_gaussian_multiplier(epsilon: float, q: float, rounds: int, delta: float) -> float:
    """A noise multiplier whose `poisson_gaussian_epsilon` is at most ``epsilon``, by a thousandth of it below.

    Args and errors as there, with q and rounds > 0. Returns infinity if there is none. Where the figure leaps, to 0
    if delta is above q, it may be further below.
    """

    def excess(z: float) -> float:
        found = poisson_gaussian_epsilon(z, q, rounds, delta)
        return math.log(found / epsilon) if found > 0 else -math.inf

    # Many rounds are close to one Gaussian of this multiplier, by the central limit theorem: a place to begin at.
    once = rounds * (q * gaussian_multiplier(epsilon, delta)) ** 2
    low = high = 1 / math.sqrt(math.log1p(1 / once))
    over = under = excess(low)
    while over <= 0:  # ends: it is infinite where losses are too wide
        high, under = low, over
        low /= 1.2
        over = excess(low)
    while under > 0:
        if high > _MOST:
            return math.inf
        low, over = high, under
        high *= 1.2
        under = excess(high)
    step = 0
    while under < -_TOLERANCE and high > low * (1 + _TOLERANCE / 10):
        # ln epsilon is nearly linear in ln z; where it isn't, every third step halves.
        step += 1
        share = (under + _TOLERANCE / 2) / (under - over) if step % 3 and math.isfinite(under - over) else 0.5
        middle = high * (low / high) ** share
        if (found := excess(middle)) <= 0:
            high, under = middle, found
        else:
            low, over = middle, found
    return high


def poisson_gaussian_epsilon(noise_multiplier: float, q: float, rounds: int, delta: float) -> float:
    """epsilon of Poisson-sampled rounds of the central Gaussian mechanism, from above.

    Source: [DGK+22], as dp-accounting implements it, with losses rounded up (its pessimistic estimate).

    Args:
        noise_multiplier: standard deviation over sensitivity, > 0.
        q: rate of the independent coins, 0 to 1.
        rounds: how many, >= 0; fixed in advance.
        delta: in (0, 1).

    Returns an upper bound; infinite where floating point resolves nothing: delta below some 1e-14 a round, or a noise
    multiplier below about 0.05, where the losses of one round exceed 500; and without dp-accounting (it comes with the
    extra "server").

    Raises ValueError: an argument outside its range.
    """
    check_noise_multiplier(noise_multiplier)
    check_rate(q)
    if type(rounds) is not int or rounds < 0:
        raise ValueError(f"rounds must be a whole number from 0, not {rounds!r}")
    check_delta(delta)
    if q == 0 or rounds == 0:
        return 0.0
    # Rounded down, so that plans whose noise differs by rounding alone share the work.
    mantissa, exponent = math.frexp(noise_multiplier)
    return _epsilon(math.ldexp(math.floor(mantissa * 2**24), exponent - 24), q, rounds, delta)


@lru_cache(maxsize=4096)  # 0.1 to 1 s each
def _epsilon(noise_multiplier: float, q: float, rounds: int, delta: float) -> float:
    target = delta - rounds * _ROUNDING_PER_ROUND
    width = _loss_range(noise_multiplier, q)
    if target < delta / 2 or width > _WIDEST:
        return math.inf
    points, best = _FIRST_POINTS, math.inf
    while True:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # overflows of terms that it then takes as infinite
            try:
                once = _one_round(noise_multiplier, q, width / points)
            except ModuleNotFoundError:
                return math.inf
            found = float(once.self_compose(rounds).get_epsilon_for_delta(target))
        previous, best = best, min(best, max(found, 0.0))  # each grid gives an upper bound
        points *= 4
        composed = 4 * (min(best, rounds * width) + width) / width * points
        settled = previous - best <= _ENOUGH * best and previous < math.inf
        if settled or points > _MOST_POINTS or composed > _MOST_COMPOSED_POINTS:
            return best * (1 + 2**-40)


@lru_cache(maxsize=4)  # the grids of one noise multiplier, up to some 8 MB each
def _one_round(noise_multiplier: float, q: float, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution  # type: ignore[import-untyped]  # it has no stubs

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier,
        pessimistic_estimate=True,
        value_discretization_interval=interval,
        sampling_prob=q,
        neighboring_relation=privacy_loss_distribution.NeighborRel.REPLACE_SPECIAL,
    )


def _loss_range(z: float, q: float) -> float:
    """How far the losses of one round reach: ln(1 - q + q e^t) for t within reach of +-1 / (2 z^2)."""
    extreme = _REACH / z + 1 / (2 * z) / z
    top = math.log1p(q * math.expm1(extreme)) if extreme < 600 else math.log(q) + extreme
    bottom = math.log1p(q * math.expm1(-extreme)) if q < 1 else -extreme
    return top - bottom
