"""What one sum reveals: exact Gaussian costs, Renyi curves of the distributed mechanisms, (epsilon, delta) from them.

Two kinds of cost add up over rounds, and a study keeps to one of them. Renyi divergence at one order above 1; or, under
the name of order 1, mu^2 / 2 of a round that is mu-Gaussian differentially private (`gaussian_cost`), which at order 1
is the divergence of the two Gaussians. The second converts to epsilon without loss. docs/privacy.md has the proofs.

Adjacency throughout: one participant's update against zero, its noise share present; both directions (the
noise is symmetric). Everything is in grid units: integers, after scaling by 1 / granularity.

Every result is an upper bound and is rounded up by a hair, so that floating point cannot turn it into an
underestimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.gaussian_exact import gaussian_epsilon
from mechanisms.lattice_noise import SAMPLER_DISTANCE

Floats = NDArray[np.float64]
Curve = Callable[[Floats], Floats]
"""Orders (n,) -> costs (n,) of one round, each >= 0; infinite where nothing is known."""

GAUSSIAN_ORDER: Final = 1.0
"""Costs at this order are halved squares of Gaussian differential privacy's mu. No other order bounds them."""
SMALLEST_GAUSSIAN_PART: Final = 12
"""Variance of the smallest discrete Gaussian that a sum charged at `GAUSSIAN_ORDER` may contain, grid units squared."""
SMALLEST_GAUSSIAN_SUM: Final = 128
"""Least variance of the noise of such a sum, grid units squared."""
_SMOOTHING: Final = 6

SMALLEST_STDDEV: Final = Fraction(1, 2)
"""[KLS21] Theorem 1 asks for at least half a grid step of local deviation."""

# Relative allowance for floating point: each formula here is a few dozen operations of 2^-53.
HAIR: Final = 1e-12
_EXACT_TAU_TERMS: Final = 4096


def order_grid() -> Floats:
    """Renyi orders to choose from: alpha - 1 from 0.01 to 10^6 in steps of half a percent."""
    return 1.0 + np.geomspace(1e-2, 1e6, 3696)


def rounded_l2_bound(l2_norm: float, dim: int, beta: float) -> float:
    """Bound the L2 norm after conditional stochastic rounding.

    Source: [KLS21] Theorem 1 Eq. (2) and Prop. 22, with granularity 1.

    Args:
        l2_norm: bound before rounding, grid units, as is the result, which is never below it.
        dim: vector length after padding.
        beta: in [0, 1); 0 means the worst case over all roundings.

    Raises ValueError: an argument lies outside its range.
    """
    if not (0 <= l2_norm < math.inf) or dim < 1 or not 0 <= beta < 1:
        raise ValueError("l2_norm >= 0, dim >= 1 and 0 <= beta < 1 must hold")
    worst_case = l2_norm + math.sqrt(dim)
    if beta == 0:
        return worst_case * (1 + HAIR)
    spread = math.sqrt(2 * math.log(1 / beta)) * (l2_norm + math.sqrt(dim) / 2)
    return min(worst_case, math.sqrt(l2_norm * l2_norm + dim / 4 + spread)) * (1 + HAIR)


def rounded_l1_bound(l2_bound: float, dim: int) -> float:
    """Bound the L1 norm of an integer vector of length ``dim`` with L2 norm at most ``l2_bound``, grid units.

    min(sqrt(d) D2, D2^2): Cauchy-Schwarz, and |x| <= x^2 on integers (so it holds on the integer grid only).
    """
    return min(math.sqrt(dim) * l2_bound, l2_bound * l2_bound) * (1 + HAIR)


def gaussian_cost(l2_bound: float, variance: Fraction) -> float:
    """mu^2 / 2 of one noised sum: telling it from the sum without the participant is as hard as telling N(mu, 1) from
    N(0, 1).

    mu^2 = D2^2 / (v - 6). For sums of discrete Gaussians, each of variance 12 at least: their law lies within a
    total variation of 2^-167 for each one added, in each coordinate, of a discrete Gaussian, and that as close to a
    continuous one of variance v - 6 rounded at random, by a kernel that commutes with shifts by integers;
    `SAMPLER_DISTANCE` covers both. For Skellam noise without an error: 6 stands for 1.5. Proofs: docs/privacy.md,
    "Exact Gaussian cost".

    Args:
        l2_bound: norm of the rounded update, a vector of integers, grid units.
        variance: v, of the unknown noise in one coordinate of the sum, grid units squared.

    Returns the cost; infinite below `SMALLEST_GAUSSIAN_SUM`, where this isn't proved.
    """
    if variance < SMALLEST_GAUSSIAN_SUM:
        return math.inf
    return l2_bound * l2_bound / (2 * float(variance - _SMOOTHING)) * (1 + HAIR)


def ddgauss_tau(local_variance: Fraction, shares: int) -> float:
    """How far a sum of ``shares`` discrete Gaussians may be from one discrete Gaussian, per coordinate.

    10 sum_{k=1}^{shares-1} exp(-2 pi^2 s^2 k / (k + 1)); s^2 is the variance of ONE share on the integer
    grid. Source: [KLS21] Theorem 1. Terms beyond the 4,096th are bounded by the first of them (they
    decrease).
    """
    if shares < 1 or local_variance <= 0:
        raise ValueError("shares >= 1 and a positive variance must hold")
    exponent = -2 * math.pi**2 * float(local_variance)
    k = np.arange(1, min(shares - 1, _EXACT_TAU_TERMS) + 1, dtype=np.float64)
    total = float(np.sum(np.exp(exponent * k / (k + 1))))
    beyond = shares - 1 - k.size
    if beyond > 0:
        total += beyond * math.exp(exponent * (_EXACT_TAU_TERMS + 1) / (_EXACT_TAU_TERMS + 2))
    return 10 * total * (1 + HAIR)


def ddgauss_rdp(
    orders: Floats | float, *, l2_bound: float, l1_bound: float, dim: int, local_variance: Fraction, shares: int
) -> Floats:
    """Renyi divergence of one noised sum, for every order > 1 (fractions included).

    Source: [KLS21] Theorem 1 / Prop. 14 Eq. (17): the smallest of its three bounds. No sampling, no
    amplification.

    Args:
        orders: scalar or array, each > 1; the result has its shape.
        l2_bound, l1_bound: norms of the rounded update, grid units.
        dim: padded dimension.
        local_variance: of one share, grid units squared. A share in parts of variance 12 and more counts as one: its
            distance from one is at most 2^-167 a part and coordinate, which the allowance for floating point covers.
        shares: how many honest noise shares the sum carries, >= 1.

    Raises ValueError: an order <= 1, or less local deviation than half a grid step (the theorem does not hold there).
    """
    alpha = np.asarray(orders, dtype=np.float64)
    if not (alpha > 1).all():
        raise ValueError("Renyi orders must exceed 1")
    if local_variance < SMALLEST_STDDEV**2:
        raise ValueError("the bound needs at least half a grid step of local deviation")
    tau = ddgauss_tau(local_variance, shares)
    # Rounded once: where less noise of more shares adds up to the same, so does the cost, to the last digit.
    central = math.sqrt(float(shares * local_variance))
    s2, s1 = l2_bound / central, l1_bound / central
    per_coordinate = alpha * s2**2 / 2 + tau * dim
    slope = min((s2**2 + 2 * s1 * tau + tau**2 * dim), (s2 + math.sqrt(dim) * tau) ** 2) / 2
    return np.minimum(per_coordinate, alpha * slope) * (1 + HAIR)


def skellam_rdp(
    orders: Floats | float, *, l2_bound: float, l1_bound: float, central_variance: Fraction | float
) -> Floats:
    """Renyi divergence of one sum with Skellam noise, for integer orders >= 2.

    alpha D2^2 / (2 v) + min(((2 alpha - 1) D2^2 + 6 D1) / (4 v^2), 3 D1 / (2 v)), v the variance of the sum.
    Source: [AKL21], the main theorem, summed over the coordinates (each of the two bounds is additive). Skellam
    is closed under sums, so v is all that matters: the shares' variances add, and there is no tau.

    Args:
        orders: scalar or array of integers >= 2, the theorem covers no others; the result has its shape.
        l2_bound, l1_bound: norms of the rounded update, grid units; `rounded_l1_bound` gives the second. The
            update must be a vector of integers.
        central_variance: of the unknown noise in one coordinate of the sum, grid units squared: h times that of
            one share. The variance, not the mean of the two Poisson variables behind it, which is half of it.

    Raises ValueError: an order that is no integer or below 2, a variance that is not positive, a negative norm.
    """
    alpha = np.asarray(orders, dtype=np.float64)
    if not ((alpha >= 2) & (alpha < math.inf) & (alpha == np.floor(alpha))).all():
        raise ValueError("the Skellam bound is proved for integer Renyi orders >= 2 only")
    variance, squared = float(central_variance), l2_bound * l2_bound
    if not 0 < variance < math.inf:
        raise ValueError("the noise needs a positive variance")
    if not (0 <= l2_bound < math.inf and 0 <= l1_bound < math.inf):
        raise ValueError("the norms of an update are finite and not negative")
    # Divided twice: the square of a small variance may not be a double.
    gaussian = alpha * squared / (2 * variance)
    fine = ((2 * alpha - 1) * squared + 6 * l1_bound) / (4 * variance) / variance
    return (gaussian + np.minimum(fine, 3 * l1_bound / (2 * variance))) * (1 + HAIR)


def rdp_to_epsilon(orders: Floats | float, rdp: Floats | float, delta: float) -> float:
    """The smallest epsilon that composed costs give at ``delta``.

    Source: [CKS20] Prop. 12, solved for epsilon, at each order above 1, and [BW18] Theorem 8 at `GAUSSIAN_ORDER`; the
    smallest is taken (only allowed for schedules fixed in advance: give a single order otherwise). Zero if the total
    variation, at most sqrt(1 - e^-R) by [BH79], is already below delta.

    Raises ValueError: delta outside (0, 1), an order < 1, or a negative cost.
    """
    alpha, bound = np.atleast_1d(orders).astype(np.float64), np.atleast_1d(rdp).astype(np.float64)
    if not 0 < delta < 1 or not (alpha >= 1).all() or not (bound >= 0).all() or alpha.shape != bound.shape:
        raise ValueError("0 < delta < 1, orders >= 1 and costs >= 0 of the same shape must hold")
    exact = math.inf
    if (gaussian := alpha == GAUSSIAN_ORDER).any():
        cost = float(bound[gaussian].min())
        if cost == 0:
            return 0.0
        if cost < math.inf:
            exact = gaussian_epsilon(1 / math.sqrt(2 * cost * (1 + HAIR)), delta)
        alpha, bound = alpha[~gaussian], bound[~gaussian]
        if not alpha.size:
            return exact
    if (-np.expm1(-bound) * (1 + HAIR) < delta * delta).any():
        return 0.0
    gain = np.log1p(-1 / alpha)
    price = -(math.log(delta) + np.log(alpha)) / (alpha - 1)
    slack = HAIR * (bound + np.abs(gain) + np.abs(price))
    return min(exact, max(0.0, float(np.min(bound + gain + price + slack))))


def epsilon_with_sampler_error(orders: Floats | float, rdp: Floats | float, delta: float, draws: int) -> float:
    """Like `rdp_to_epsilon`, when ``draws`` noise coordinates came from the sampler instead of the exact law.

    Each draw is within `SAMPLER_DISTANCE` in total variation; the hybrid argument over all of them costs
    (1 + e^epsilon) draws SAMPLER_DISTANCE in delta. Infinite if that does not leave half of delta.
    """
    if draws < 0:
        raise ValueError("draws must not be negative")
    found = rdp_to_epsilon(orders, rdp, delta)
    if delta - _sampler_error(_no_less(orders, rdp, delta / 2), draws) == delta:
        return found  # as nearly always: no double shows what the sampler costs
    loose = rdp_to_epsilon(orders, rdp, delta / 2)  # at least the answer, so its e^epsilon is enough
    cost = _sampler_error(loose, draws)
    return rdp_to_epsilon(orders, rdp, delta - cost) if cost <= delta / 2 else math.inf


def _sampler_error(epsilon: float, draws: int) -> float:
    return (1 + math.exp(epsilon)) * draws * SAMPLER_DISTANCE * (1 + HAIR) if epsilon <= 600 else math.inf


def _no_less(orders: Floats | float, rdp: Floats | float, delta: float) -> float:
    """Quickly, no less than `rdp_to_epsilon`: R + ln(1 / delta) / (alpha - 1) by [CKS20] Prop. 12; at `GAUSSIAN_ORDER`,
    where delta is at most e^(-(epsilon / mu - mu / 2)^2 / 2), R + 2 sqrt(R ln(1 / delta)).
    """
    alpha, bound = np.asarray(orders, dtype=np.float64), np.asarray(rdp, dtype=np.float64)
    price, exact = -math.log(delta) / np.maximum(alpha - 1, 2**-60), 2 * np.sqrt(-math.log(delta) * bound)
    return float((bound + np.where(alpha == GAUSSIAN_ORDER, exact, price)).min()) * (1 + 2**-20)
