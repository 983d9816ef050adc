"""How much sampling reduces a round's Renyi cost, for a reader who does not learn who was sampled.

Three bounds, from the most general to the most conditional. The coordinator and every participant know who was sampled
and pay the unamplified cost. Always, ``curve`` is the cost of one round in which the participant is surely sampled, at
the fewest honest shares that the plan allows.

`sampled_rdp` needs only that the participant's content has no influence on whether it is sampled; docs/privacy.md has
the proof. The bound grows with q, so an upper bound on the rate is enough. Over several rounds the costs add up if the
participant is sampled at rate at most q whatever happened before: draw each round anew.

The other two are quadratic in q, because they need more: the sum without the participant must be one that a
neighbouring data set could have given too. They take integer orders only. At each order the smaller of `sampled_rdp`
and one of them may be taken where the latter's conditions hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from mechanisms.privacy_curves import HAIR, Curve, Floats

# Allowance for the exponent of one term, relative to the sum of its parts' magnitudes.
_ULPS: Final = 2.0**-50
# exp of this, times any rate, is still a double.
_LARGE_EXPONENT: Final = 600.0
_BLOCK: Final = 1 << 18


def sampled_rdp(orders: Floats | float, curve: Curve, q: float) -> Floats:
    """Renyi cost of a sampled round: ln(1 - q + q e^((a-1) eps(a))) / (a-1), for any order a > 1.

    Content against zero, both directions; for every sampling that holds the participant with probability at most ``q``
    whatever its content. Source: joint convexity; docs/privacy.md has the proof.

    Args:
        orders: scalar or array, each > 1; the result has its shape and is never above the curve.
        curve: cost of a round that surely holds the participant, same adjacency.
        q: its sampling rate, 0 to 1.

    Raises ValueError: an order <= 1, a rate outside [0, 1], or a curve with negative or missing values.
    """
    alpha = np.asarray(orders, dtype=np.float64)
    if not np.all(alpha > 1):
        raise ValueError("Renyi orders must exceed 1")
    check_rate(q)
    flat = alpha.reshape(-1)
    unsampled = _values(curve, flat)
    if q == 0:
        return np.zeros(alpha.shape)
    with np.errstate(over="ignore"):
        exponent = (flat - 1) * unsampled
    small = np.log1p(q * np.expm1(np.minimum(exponent, _LARGE_EXPONENT)))
    # 1 + q e^x for 1 - q + q e^x: at most e^-600 too much.
    log_mean = np.where(exponent <= _LARGE_EXPONENT, small, np.logaddexp(0.0, math.log(q) + exponent))
    return np.minimum(unsampled, log_mean * (1 + HAIR) / (flat - 1)).reshape(alpha.shape)


def fixed_size_rdp(orders: Floats | float, curve: Curve, q: float) -> Floats:
    """Renyi cost of a round over a cohort of fixed size, drawn uniformly without replacement.

    (1/(a-1)) ln(1 + C(a,2) q^2 min{4 (e^eps(2) - 1), 2 e^eps(2)} + sum_{j=3}^a 2 C(a,j) q^j e^((j-1) eps(j))), or the
    curve itself where that is less. Source: [WBK19] Theorem 9, for curves that are unbounded in the order (eps(inf) =
    infinity, which makes each of its inner minima 2).

    The theorem exchanges the sampled participant for another one with any update. So ``curve`` is the cost of replacing
    one update by another, at TWICE the sensitivity of content against zero (the result then covers both adjacencies).
    It holds only if the exchange changes nothing else: dropout is independent of identity, and the number of noise
    shares does not depend on who is sampled.

    Args:
        orders: scalar or array of integers >= 2; the result has its shape and is never above the curve.
        curve: cost of a round, replace-one, at twice the sensitivity; called once, with 2..max(orders).
        q: cohort over roster, 0 to 1.

    Raises ValueError: no integer order >= 2, a rate outside [0, 1], or a curve with negative or missing values.
    """

    def log_weights(j: Floats, cost: Floats) -> Floats:
        weights = math.log(2) + (j - 1) * cost
        weights[0] = min(math.log(4) + _log_expm1(cost[0]), weights[0])
        return weights

    return _binomial_bound(orders, curve, q, log_weights, keeps=0.0)


def poisson_rdp(orders: Floats | float, curve: Curve, q: float) -> Floats:
    """Renyi cost of a round over a Poisson sample; a *conditional* figure, for comparison.

    (1/(a-1)) ln((1-q)^(a-1) (a q - q + 1) + C(a,2) q^2 (1-q)^(a-2) e^eps(2) + 3 sum_{l=3}^a C(a,l) q^l (1-q)^(a-l)
    e^((l-1) eps(l))), or the curve itself where that is less. Source: [ZW19] Theorem 5.

    Two conditions. Each participant must be sampled by an independent coin, which no outsider can verify. And leaving a
    participant out must give the same law as zero in its place: true for noise that does not depend on the sample,
    false where each sampled participant adds a share.

    Args, returns and errors as `fixed_size_rdp`, with ``curve`` the cost, content against zero, of a round that surely
    holds the participant, and ``q`` its sampling rate.
    """

    def log_weights(j: Floats, cost: Floats) -> Floats:
        # The binomial weights add up to 1. Taking that 1 out of the sum, so that a tiny cost is not lost beside
        # it, leaves e^eps(2) - 1 and 3 e^((l-1) eps(l)) - 1.
        exponent = (j - 1) * cost
        weights: Floats = exponent + np.log(3 - np.exp(-exponent))
        weights[0] = _log_expm1(cost[0])
        return weights

    return _binomial_bound(orders, curve, q, log_weights, keeps=math.log1p(-q) if 0 <= q < 1 else -math.inf)


def _binomial_bound(
    orders: Floats | float, curve: Curve, q: float, log_weights: Callable[[Floats, Floats], Floats], keeps: float
) -> Floats:
    """min(curve(a), ln(1 + sum_{j=2}^a C(a,j) q^j e^(keeps (a-j) + log_weights_j)) / (a-1)), rounded up."""
    alpha = np.asarray(orders, dtype=np.float64)
    if not np.all((alpha >= 2) & (alpha == np.floor(alpha)) & (alpha < 2**31)):
        raise ValueError("this bound holds for integer Renyi orders >= 2 only")
    check_rate(q)
    if alpha.size == 0:
        return np.zeros(alpha.shape)
    flat = alpha.reshape(-1).astype(np.int64)
    top_order = int(flat.max())
    j = np.arange(2, top_order + 1)
    cost = _values(curve, j.astype(np.float64))
    unsampled = cost[flat - 2]
    if q == 0:
        return np.zeros(alpha.shape)
    if q == 1:
        return unsampled.reshape(alpha.shape)

    log_factorial = np.array([math.lgamma(n + 1) for n in range(top_order + 1)])
    with np.errstate(over="ignore", divide="ignore"):
        weights = log_weights(j.astype(np.float64), cost)
    # Every exponent is raised by what rounding may have cost it, so each term is at least the true one.
    magnitude = j * abs(math.log(q)) + log_factorial[2:] + np.abs(np.where(weights == -np.inf, 0.0, weights)) + 1
    column = weights + (j * math.log(q) - log_factorial[2:]) + _ULPS * magnitude
    bound = np.empty(flat.size)
    rows = max(1, _BLOCK // j.size)
    for start in range(0, flat.size, rows):
        block = flat[start : start + rows]
        left = block[:, None] - j[None, :]
        exponents = column[None, :] - log_factorial[np.maximum(left, 0)]
        if keeps:
            exponents += keeps * (1 - 2 * _ULPS) * left
        exponents += log_factorial[block][:, None] * (1 + 4 * _ULPS)
        exponents[left < 0] = -np.inf  # no term beyond j = a
        largest = exponents.max(axis=1)
        shift = np.where(np.isfinite(largest), largest, 0.0)
        with np.errstate(over="ignore", divide="ignore"):
            log_sum = shift + np.log(np.exp(exponents - shift[:, None]).sum(axis=1))
        bound[start : start + rows] = np.logaddexp(0.0, log_sum)
    return np.minimum(unsampled, bound * (1 + HAIR) / (flat - 1)).reshape(alpha.shape)


def _log_expm1(x: float) -> float:
    """ln(e^x - 1) for x >= 0; -infinity at 0."""
    if x == 0:
        return -math.inf
    return math.log(math.expm1(x)) if x < 1 else x + math.log1p(-math.exp(-x))


def _values(curve: Curve, orders: Floats) -> Floats:
    values = np.asarray(curve(orders), dtype=np.float64)
    if values.shape != orders.shape or not np.all(values >= 0):
        raise ValueError("the curve must give one Renyi cost >= 0 per order")
    return values


def check_rate(q: float) -> None:
    if not 0 <= q <= 1:
        raise ValueError(f"the sampling rate q must lie in 0 to 1, not {q!r}")
