"""From guesses to a lower bound on epsilon: one run, many canaries ([SNJ23]).

m fair and independent coins decide what m canaries contribute. From the outputs alone an auditor names r of them and
guesses their coins; v guesses are right. If the run is (epsilon, delta)-private in each coin, then

    Pr[at least v right] <= beta + 2 m delta alpha,
    beta = Pr[W >= v],  alpha = max over i = 1, 2, ... of Pr[v > W >= v - i] / i,

with W binomial, r trials of chance q = e^epsilon / (1 + e^epsilon): the chance that randomised response, the worst
mechanism for delta = 0, tells the truth. The right-hand side is a p-value of the hypothesis "(epsilon, delta)-private".
A hypothesis with a smaller epsilon implies each with a larger one, so the largest refuted epsilon is a lower confidence
bound.

r must not depend on which guesses are right. For delta = 0 it may depend on the outputs; with delta > 0 it is fixed
before the run, by a rule that knows only the plan (`registered_guesses`).

Only numpy is used: sums of at most a few ten thousand positive terms, rounded against the accusation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Logarithms of factorials up to 10^6 are right to 1e-9 absolutely, and so the terms relatively.
_HAIR: Final = 1e-8
MOST_CANARIES: Final = 1_000_000
_MOST_EPSILON: Final = 60.0
_CANDIDATES: Final = 40


@lru_cache(maxsize=4)
def _log_factorials(last: int) -> Floats:
    table = np.zeros(last + 1)
    np.cumsum(np.log(np.arange(1, last + 1, dtype=np.float64)), out=table[1:])
    table.setflags(write=False)
    return table


def _binomial_terms(trials: int, epsilon: float) -> Floats:
    """Pr[W = k] for k = 0 .. trials, W binomial with chance 1 / (1 + e^-epsilon)."""
    logs = _log_factorials(trials)
    right = np.arange(trials + 1, dtype=np.float64)
    log_right, log_wrong = -math.log1p(math.exp(-epsilon)), -epsilon - math.log1p(math.exp(-epsilon))
    terms: Floats = np.exp(logs[-1] - logs - logs[::-1] + right * log_right + (trials - right) * log_wrong)
    return terms


def p_value(*, canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return the largest chance of at least ``right`` right guesses under (epsilon, delta)-differential privacy.

    Source: [SNJ23] Theorem 5.2 and Corollary 5.4; for delta = 0 the binomial tail alone.

    Args:
        canaries: m, 1 to 10^6, each with a fair and independent coin.
        guesses: r, number of guessed coins, fixed before the run; at most m.
        right: v, number of right guesses; at most r.
        epsilon: 0 to 60.
        delta: in [0, 1].

    Returns a number in (0, 1], never below the theorem's.

    Raises ValueError: an argument lies outside its range.
    """
    if not 1 <= canaries <= MOST_CANARIES or not 0 <= right <= guesses <= canaries:
        raise ValueError(f"0 <= right <= guesses <= canaries <= {MOST_CANARIES} must hold, with at least one canary")
    if not 0 <= epsilon <= _MOST_EPSILON or not 0 <= delta <= 1:
        raise ValueError(f"epsilon must lie in 0 to {_MOST_EPSILON:g} and delta in 0 to 1")
    terms = _binomial_terms(guesses, epsilon)
    beta = float(np.sum(terms[right:]))
    alpha = 0.0
    if delta > 0 and right > 0:
        below = np.cumsum(terms[right - 1 :: -1])  # Pr[v > W >= v - i] for i = 1 .. v
        alpha = float(np.max(below / np.arange(1, right + 1)))
    return min(1.0, (beta + 2 * canaries * delta * alpha) * (1 + _HAIR))


def epsilon_lower(*, canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """Return a lower bound on epsilon that exceeds the truth with a chance of at most ``error``.

    Source: [SNJ23] Lemma 4.7 (p-values to confidence bounds) on `p_value`, which gives the other arguments.

    ``error``: one minus the confidence, in (0, 1); 1e-3 for 99.9 %.

    Returns the largest epsilon that was refuted, or 0 if none was: then nothing is shown.

    Raises ValueError: an argument lies outside its range.
    """
    if not 0 < error < 1:
        raise ValueError("error must lie strictly between 0 and 1")

    def refuted(epsilon: float) -> bool:
        return p_value(canaries=canaries, guesses=guesses, right=right, epsilon=epsilon, delta=delta) < error

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < _MOST_EPSILON and refuted(high):
        low, high = high, min(2 * high, _MOST_EPSILON)
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _upper_tail(x: float) -> float:
    return 0.5 * math.erfc(x / math.sqrt(2))


def expected_accuracy(distance: float, share: float) -> float:
    """Return the accuracy of guesses if scores are normal and the ``share`` with the clearest scores is guessed.

    Scores of the two kinds of canaries have deviation 1 and means ``distance`` >= 0 apart; half of the guesses go to
    the highest scores and half to the lowest: to those above t, with Pr[N > t - distance] + Pr[N > t] = ``share``, in
    (0, 1].
    """
    low, high = -40.0, 40.0 + distance
    while high - low > 1e-9:
        middle = (low + high) / 2
        above = _upper_tail(middle - distance) + _upper_tail(middle)
        low, high = (middle, high) if above > share else (low, middle)
    included, excluded = _upper_tail(low - distance), _upper_tail(low)
    return included / (included + excluded) if included > 0 else 1.0


def expected_bound(distance: float, *, canaries: int, guesses: int, delta: float, error: float) -> float:
    """Return `epsilon_lower` if the number of right guesses is that of `expected_accuracy`, rounded down."""
    right = math.floor(guesses * expected_accuracy(distance, guesses / canaries) + 1e-9)
    return epsilon_lower(canaries=canaries, guesses=guesses, right=right, delta=delta, error=error)


@lru_cache(maxsize=64)
def registered_guesses(distance: float, *, canaries: int, delta: float, error: float) -> int:
    """Return the even number of guesses whose `expected_bound` is largest, from public numbers alone.

    Few guesses are nearly all right but prove little; many include coins that can't be told apart. Candidates are about
    forty numbers from 10 to all canaries in equal ratios, so the answer doesn't depend on rounding errors of a sum.

    Args:
        distance: between the means of the two kinds of scores, in their deviations.
        canaries: at least 10, else a ValueError.
        delta, error: as in `epsilon_lower`.
    """
    if canaries < 10:
        raise ValueError("an audit needs at least 10 canaries")
    candidates: list[int] = sorted(
        {2 * round(float(x) / 2) for x in np.geomspace(10, canaries - canaries % 2, _CANDIDATES)}
    )

    def bound(guesses: int) -> tuple[float, float]:
        found = expected_bound(distance, canaries=canaries, guesses=guesses, delta=delta, error=error)
        # Where nothing can be shown, the least p-value of epsilon 0.
        right = math.floor(guesses * expected_accuracy(distance, guesses / canaries))
        return found, -p_value(canaries=canaries, guesses=guesses, right=right, epsilon=0.0, delta=delta)

    return max(candidates, key=bound)


def guesses_of(scores: Floats, guesses: int) -> NDArray[np.int64]:
    """Guess +1 for the ``guesses`` / 2 highest scores, -1 for as many lowest, 0 (no guess) for the others.

    Source: [SNJ23] Algorithm 1. Ties are broken by position, which is independent of the coins.

    Args:
        scores: (m,) float64, the higher the likelier that the coin is +1.
        guesses: even, 0 to m, else a ValueError.
    """
    if guesses % 2 or not 0 <= guesses <= len(scores):
        raise ValueError("guesses must be even and at most the number of canaries")
    order = np.argsort(scores, kind="stable")
    found = np.zeros(len(scores), np.int64)
    found[order[: guesses // 2]] = -1
    found[order[len(scores) - guesses // 2 :]] = 1
    return found


def best_of(
    scores: Floats, coins: NDArray[np.int64], registered: Sequence[int], delta: float, error: float
) -> dict[str, Any]:
    """Return the largest of the bounds of several numbers of guesses, each at ``error`` / their number (union bound).

    Args:
        scores, coins: (m,) float64, and (m,) of +1 and -1.
        registered: even numbers of guesses, fixed before the run.
        delta, error: as in `epsilon_lower`; ``error`` is that of the answer.

    Returns JSON names ``epsilon_lower``, ``guesses``, ``right`` of the best one, and ``tried``: the same of all.
    """
    tried = []
    for guesses in registered:
        right = int(np.sum(guesses_of(scores, guesses) == coins))
        bound = epsilon_lower(
            canaries=len(coins), guesses=guesses, right=right, delta=delta, error=error / len(registered)
        )
        tried.append({"epsilon_lower": bound, "guesses": guesses, "right": right})
    return {**max(tried, key=lambda one: one["epsilon_lower"]), "tried": tried}
