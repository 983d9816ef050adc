"""Sampled central Gaussian rounds by privacy loss distributions: dp-accounting's, on the coordinator only.

This is the one module of the core that uses dp-accounting, and it imports it inside the functions: what a
participant runs never loads it.

Adjacency: content against zero, where the noise is added whoever was sampled (a central Gaussian). A round that
leaves her out and one that holds a zero of hers are then the same, so the pair of one round is
(1 - q) N(0, z^2) + q N(1, z^2) against N(0, z^2), in both orders: the same as dp-accounting's REPLACE_SPECIAL and
ADD_OR_REMOVE_ONE. It dominates updates of any dimension and length up to the clip, and dominating pairs compose
([ZDW22]). It does NOT hold where each sampled participant brings a noise share, nor for cohorts of fixed size; and it
is for schedules fixed in advance, with an independent coin per participant and round: a *conditional* figure.
"""

from __future__ import annotations

import math
import warnings
from typing import Final, Literal

import numpy as np

from mechanisms.amplification import poisson_rdp
from mechanisms.gaussian_exact import gaussian_epsilon
from mechanisms.privacy_curves import rdp_to_epsilon

BoundName = Literal["exact", "renyi", "pld"]
"""exact: [BW18] of the unsampled rounds; renyi: [ZW19] Theorem 5; pld: privacy loss distributions."""

_ORDERS: Final = np.concatenate([np.arange(2.0, 129), np.arange(136.0, 513, 8)])
# The grid is refined until it no longer pays, or until it holds so many losses of one round, or of all.
_FIRST_POINTS: Final = 500
_MOST_POINTS: Final = 32_000
_MOST_COMPOSED_POINTS: Final = 1 << 19
_ENOUGH: Final = 1e-4
# dp-accounting composes by Fourier transforms. Their rounding, some 2^-50 a round, is taken off delta.
_ROUNDING_PER_ROUND: Final = 2.0**-48
# Deviations of the noise that dp-accounting keeps: mass e^-50 is left out (and counted as lost).
_REACH: Final = 10.0
_WIDEST: Final = 500.0


def poisson_gaussian_epsilon(noise_multiplier: float, q: float, rounds: int, delta: float) -> float:
    """epsilon of Poisson-sampled rounds of the central Gaussian mechanism, from above.

    Source: [DGK+22], as dp-accounting implements it, with losses rounded up (its pessimistic estimate).

    Args:
        noise_multiplier: standard deviation over sensitivity, > 0.
        q: rate of the independent coins, 0 to 1.
        rounds: how many, >= 0; fixed in advance.
        delta: in (0, 1).

    Returns:
        An upper bound; infinite where floating point resolves nothing: delta below some 1e-14 a round, or a noise
        multiplier below about 0.05, where the losses of one round exceed 500.

    Raises:
        ValueError: an argument outside its range.
        ModuleNotFoundError: dp-accounting is not installed (it comes with the extra "server").
    """
    _check(noise_multiplier, q, rounds, delta)
    if q == 0 or rounds == 0:
        return 0.0
    target = delta - rounds * _ROUNDING_PER_ROUND
    width = _loss_range(noise_multiplier, q)
    if target < delta / 2 or width > _WIDEST:
        return math.inf
    from dp_accounting.pld import privacy_loss_distribution  # type: ignore[import-untyped]  # it has no stubs

    points, best = _FIRST_POINTS, math.inf
    while True:
        interval = width / points
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # overflows of terms that it then takes as infinite
            once = privacy_loss_distribution.from_gaussian_mechanism(
                noise_multiplier,
                pessimistic_estimate=True,
                value_discretization_interval=interval,
                sampling_prob=q,
                neighboring_relation=privacy_loss_distribution.NeighborRel.REPLACE_SPECIAL,
            )
            found = float(once.self_compose(rounds).get_epsilon_for_delta(target))
        previous, best = best, min(best, max(found, 0.0))  # each grid gives an upper bound
        points *= 4
        composed = 4 * (min(best, rounds * width) + width) / width * points
        settled = previous - best <= _ENOUGH * best and previous < math.inf
        if settled or points > _MOST_POINTS or composed > _MOST_COMPOSED_POINTS:
            return best * (1 + 2**-40)


def best_gaussian_epsilon(noise_multiplier: float, q: float, rounds: int, delta: float) -> tuple[float, BoundName]:
    """The tightest of the valid bounds for sampled central Gaussian rounds, and its name.

    Without sampling (q = 1) the exact figure; otherwise the smallest of that figure (sampling never adds to
    it), the Renyi bound and the PLD bound. Arguments and errors as `poisson_gaussian_epsilon`, whose conditions
    hold for every name but "exact".
    """
    _check(noise_multiplier, q, rounds, delta)
    if q == 0 or rounds == 0:
        return 0.0, "exact"
    found: list[tuple[float, BoundName]] = [(gaussian_epsilon(noise_multiplier / math.sqrt(rounds), delta), "exact")]
    if q < 1:
        with np.errstate(over="ignore"):  # hardly any noise: infinite
            rdp = rounds * poisson_rdp(_ORDERS, lambda orders: orders / 2 / noise_multiplier / noise_multiplier, q)
        found.append((rdp_to_epsilon(_ORDERS, rdp, delta), "renyi"))
        found.append((poisson_gaussian_epsilon(noise_multiplier, q, rounds, delta), "pld"))
    return min(found, key=lambda bound: bound[0])


def _loss_range(z: float, q: float) -> float:
    """How far the losses of one round reach: ln(1 - q + q e^t) for t within reach of +-1 / (2 z^2)."""
    extreme = _REACH / z + 1 / (2 * z) / z
    top = math.log1p(q * math.expm1(extreme)) if extreme < 600 else math.log(q) + extreme
    bottom = math.log1p(q * math.expm1(-extreme)) if q < 1 else -extreme
    return top - bottom


def _check(noise_multiplier: float, q: float, rounds: int, delta: float) -> None:
    if not 0 < noise_multiplier < math.inf:
        raise ValueError(f"the noise multiplier must be finite and > 0, not {noise_multiplier!r}")
    if not 0 <= q <= 1:
        raise ValueError(f"the sampling rate q must lie in 0 to 1, not {q!r}")
    if type(rounds) is not int or rounds < 0:
        raise ValueError(f"rounds must be a whole number from 0, not {rounds!r}")
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie strictly between 0 and 1, not {delta!r}")
