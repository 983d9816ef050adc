"""Composition of equal (epsilon, delta) rounds, for mechanisms that have no Renyi curve.

Both theorems hold for rounds chosen adaptively, if each one's epsilon and delta were fixed in advance. They compose the
guarantees of the rounds, whatever the mechanism, so the adjacency is the rounds'.

- ``basic``: epsilons and deltas add up [DMNS06].

- ``advanced``: the optimal bound for equal rounds, never worse at the same deltas [KOV15]. T rounds of any (epsilon,
delta) mechanism are post-processing of T copies of one pair of laws: with chance delta the pair gives itself away, else
it is randomised response at epsilon. The divergence of T such copies is a sum over T + 1 counts; that sum is computed
here, so it bounds every total epsilon and not only the lattice of the theorem's display.

Results are rounded up by more than floating point can lose.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from mechanisms.privacy_curves import HAIR
from mechanisms.refusals import Rule, known

Composition = Literal["basic", "advanced"]

COMPOSITIONS: Final[tuple[Composition, ...]] = ("basic", "advanced")
MOST_ADVANCED_ROUNDS: Final = 1 << 17
"""The sum has one term a round; beyond this only ``basic`` is offered."""

_MARGIN: Final = 1e-9


def theorems(composition: Composition | None, rounds: int) -> tuple[Composition, ...]:
    """Those to try: the one that is stated, else all that take so many rounds."""
    if composition is not None:
        return (composition,)
    return COMPOSITIONS if rounds <= MOST_ADVANCED_ROUNDS else ("basic",)


def rules_of(plan: Any, hidden: str) -> list[Rule]:
    """What holds of every plan whose rounds compose by these theorems; ``hidden``: what honest participants add."""
    return [
        (2 <= plan.clients < 1 << 32, f"clients {plan.clients} is out of range", "use at least 2"),
        (0 < plan.delta < 1, "delta must lie strictly between 0 and 1", "use less than 1 / clients"),
        (1 <= plan.rounds < 1 << 40, f"rounds {plan.rounds} is out of range", "use at least 1"),
        (
            0 <= plan.colluders < plan.min_survivors <= plan.clients,
            f"0 <= colluders ({plan.colluders}) < min_survivors ({plan.min_survivors}) <= clients ({plan.clients}) "
            "does not hold",
            f"some honest {hidden} must always remain: raise min_survivors or state fewer colluders",
        ),
        known("composition", plan.composition, COMPOSITIONS),
        (
            plan.composition != "advanced" or plan.rounds <= MOST_ADVANCED_ROUNDS,
            f"advanced composition takes at most {MOST_ADVANCED_ROUNDS} rounds",
            "use basic",
        ),
    ]


def bisected(holds: Callable[[float], bool], low: float, high: float, steps: int = 100) -> tuple[float, float]:
    """Narrow [low, high] around the point where ``holds`` turns from true (at low) to false (at high).

    It stops at neighbouring doubles, or after ``steps`` halvings.
    """
    for _ in range(steps):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


@lru_cache(maxsize=2)
def _log_choices(rounds: int) -> NDArray[np.float64]:
    """ln C(rounds, l) for l = 0 .. rounds."""
    logs = np.array([math.lgamma(i + 1) for i in range(rounds + 1)])
    choices: NDArray[np.float64] = logs[-1] - logs - logs[::-1]
    choices.setflags(write=False)
    return choices


def _check(epsilon: float, delta: float, rounds: int, composition: str) -> None:
    if not 0 <= epsilon < math.inf or not 0 <= delta < 1 or rounds < 1:
        raise ValueError("epsilon >= 0, 0 <= delta < 1 and rounds >= 1 must hold")
    if composition not in COMPOSITIONS:
        raise ValueError(f"unknown composition {composition!r}: use one of {COMPOSITIONS}")
    if composition == "advanced" and rounds > MOST_ADVANCED_ROUNDS:
        raise ValueError(f"advanced composition takes at most {MOST_ADVANCED_ROUNDS} rounds; use basic")


def responses_delta(epsilon: float, rounds: int, total_epsilon: float) -> float:
    """Hockey-stick divergence at ``total_epsilon`` of ``rounds`` randomised responses, 0 against 1; rounded up.

    sum_l C(T, l) max(0, e^((T - l) eps) - e^(total + l eps)) / (1 + e^eps)^T. Source: [KOV15].
    """
    if epsilon <= 0 or total_epsilon >= rounds * epsilon:
        return 0.0
    wrong = np.arange(rounds + 1)
    loss = (rounds - 2 * wrong) * epsilon
    count = int(np.count_nonzero(loss > total_epsilon))
    normaliser = rounds * (epsilon + math.log1p(math.exp(-epsilon)))
    logs = _log_choices(rounds)[:count] + (rounds - wrong[:count]) * epsilon - normaliser
    terms = np.exp(logs) * -np.expm1(total_epsilon - loss[:count])
    # Each logarithm is a difference of numbers this large, each a few units in the last place off.
    scale = 3 * math.lgamma(rounds + 1) + rounds * epsilon + normaliser
    return min(1.0, float(terms.sum()) * math.exp(HAIR + 1e-14 * scale))


def composed_delta(epsilon: float, delta: float, rounds: int, total_epsilon: float, composition: Composition) -> float:
    """The total delta at ``total_epsilon`` of ``rounds`` rounds that are (epsilon, delta) each.

    1 - (1 - delta)^T (1 - `responses_delta`) for ``advanced``; T delta for ``basic``, which knows nothing below
    T epsilon (1.0 there).

    Raises ValueError: an argument outside its range.
    """
    _check(epsilon, delta, rounds, composition)
    if composition == "basic":
        return min(1.0, rounds * delta) if total_epsilon >= rounds * epsilon else 1.0
    guess = responses_delta(epsilon, rounds, total_epsilon)
    kept = rounds * math.log1p(-delta) + (math.log1p(-guess) if guess < 1 else -math.inf)
    return min(1.0, -math.expm1(kept) * (1 + HAIR))


def composed_epsilon(epsilon: float, delta: float, rounds: int, total_delta: float, composition: Composition) -> float:
    """The smallest total epsilon that the theorem gives at ``total_delta``; infinite if the deltas alone exceed it.

    ``epsilon``, ``delta``: what one of the T ``rounds`` guarantees.

    Raises ValueError: an argument outside its range.
    """
    _check(epsilon, delta, rounds, composition)
    if not 0 < total_delta < 1:
        raise ValueError("total_delta must lie strictly between 0 and 1")
    high = rounds * epsilon * (1 + HAIR)
    if composed_delta(epsilon, delta, rounds, high, composition) > total_delta:
        return math.inf
    if composition == "basic":
        return high
    if composed_delta(epsilon, delta, rounds, 0.0, composition) <= total_delta:
        return 0.0

    def too_small(total_epsilon: float) -> bool:
        return composed_delta(epsilon, delta, rounds, total_epsilon, composition) > total_delta

    return bisected(too_small, 0.0, high)[1]


def round_delta(total_delta: float, rounds: int, composition: Composition) -> float:
    """How delta is split: each round's part. The rest is composition's own.

    ``basic``: delta / T. ``advanced``: half of delta over the rounds, the other half for the composition; a
    single round needs none, and gets everything.
    """
    parts = rounds if composition == "basic" or rounds == 1 else 2 * rounds
    return total_delta / parts * (1 - 4 * HAIR)


def round_epsilon(total_epsilon: float, total_delta: float, rounds: int, composition: Composition) -> float:
    """The largest epsilon of one round, at `round_delta`, that composes to at most the totals.

    It stops a relative 1e-9 before them, so that another machine's logarithms still find that it does.

    Raises ValueError: an argument outside its range.
    """
    delta = round_delta(total_delta, rounds, composition)
    _check(total_epsilon, delta, rounds, composition)
    total_epsilon *= 1 - _MARGIN
    low, high = total_epsilon / rounds, total_epsilon
    if composition == "basic" or rounds == 1:
        return low

    def fits(epsilon: float) -> bool:
        return composed_delta(epsilon, delta, rounds, total_epsilon, composition) <= total_delta

    return bisected(fits, low, high)[0]
