"""The one-run bound of [SNJ23]: exact binomials, published figures, and mechanisms whose privacy is known exactly."""

from __future__ import annotations

import math
from bisect import bisect_left
from fractions import Fraction

import numpy as np
import pytest

from sordino.lab.experiments.audit_bound import (
    best_of,
    epsilon_lower,
    expected_accuracy,
    expected_bound,
    guesses_of,
    p_value,
    registered_guesses,
)

LOG3 = math.log(3)  # randomised response tells the truth with a chance of exactly 3/4
ERROR = 1e-3


def _terms(trials: int) -> list[Fraction]:
    return [Fraction(math.comb(trials, k) * 3**k, 4**trials) for k in range(trials + 1)]


def _exact(canaries: int, guesses: int, right: int, delta: Fraction) -> Fraction:
    """The theorem word by word, in fractions."""
    terms = _terms(guesses)
    shares = [sum(terms[right - i : right], Fraction(0)) / i for i in range(1, right + 1)]
    return sum(terms[right:], Fraction(0)) + 2 * canaries * delta * max(shares, default=Fraction(0))


@pytest.mark.parametrize("delta", [Fraction(0), Fraction(1, 10**6), Fraction(1, 1000), Fraction(1, 20)])
@pytest.mark.parametrize("right", [0, 1, 15, 20, 29, 30, 33, 35, 40])
def test_delta_is_paid_as_the_theorem_says(right: int, delta: Fraction) -> None:
    """Without delta it is the binomial tail, which is never understated."""
    found = p_value(canaries=100, guesses=40, right=right, epsilon=LOG3, delta=float(delta))
    exact = min(1.0, float(_exact(100, 40, right, delta)))
    assert found == pytest.approx(exact, rel=1e-7)
    if delta == 0:
        assert exact <= found
    elif right > 30:
        assert found > p_value(canaries=100, guesses=40, right=right, epsilon=LOG3, delta=0)
        assert found < p_value(canaries=200, guesses=40, right=right, epsilon=LOG3, delta=float(delta)) or found == 1


@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "delta", "published"),
    [(1000, 100, 75, 1e-4, 0.673), (100_000, 1510, 1439, 1e-5, 2.675)],
)
def test_published_bounds(canaries: int, guesses: int, right: int, delta: float, published: float) -> None:
    """[SNJ23] appendix D and section 7, both at 95 %; one unit of the last digit printed."""
    found = epsilon_lower(canaries=canaries, guesses=guesses, right=right, delta=delta, error=0.05)
    assert found == pytest.approx(published, abs=1e-3)
    without = epsilon_lower(canaries=canaries, guesses=guesses, right=right, delta=0, error=0.05)
    assert without > published + 0.02  # dropping delta shows


def test_the_bound_is_where_the_p_value_crosses() -> None:
    for right in (280, 300, 330):
        known = {"canaries": 500, "guesses": 350, "right": right, "delta": 1e-5}
        bound = epsilon_lower(**known, error=ERROR)
        assert p_value(**known, epsilon=bound) < ERROR <= p_value(**known, epsilon=bound + 1e-5)
    assert epsilon_lower(canaries=500, guesses=350, right=180, delta=1e-5, error=ERROR) == 0
    assert epsilon_lower(canaries=500, guesses=0, right=0, delta=1e-5, error=ERROR) == 0


@pytest.mark.parametrize("canaries", [50, 1000, 20_000])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_randomised_response_is_accused_no_oftener_than_stated(canaries: int, epsilon: float) -> None:
    """Exactly: the chance, over its law, that the bound exceeds what randomised response has."""
    from scipy.stats import binom

    def accuses(right: int) -> bool:
        return epsilon_lower(canaries=canaries, guesses=canaries, right=right, delta=0, error=ERROR) > epsilon

    chance = 1 / (1 + math.exp(-epsilon))
    # Bounds grow with right guesses, so the accusing ones begin somewhere.
    first = bisect_left(range(canaries + 1), True, key=accuses)
    accused = float(binom.sf(first - 1, canaries, chance))
    assert accused <= ERROR
    assert accused > 0.3 * ERROR or canaries < 1000  # and hardly rarer: the bound is tight here


def test_audits_of_randomised_response() -> None:
    """300 runs of 10,000 coins (seeded): the auditor sees the answers, and comes within 8 % of epsilon."""
    draw, epsilon = np.random.default_rng(7), 1.0
    bounds = []
    for _ in range(300):
        coins = draw.integers(0, 2, 10_000) * 2 - 1
        answers = np.where(draw.random(10_000) < 1 / (1 + math.exp(-epsilon)), coins, -coins)
        bounds.append(best_of(answers.astype(np.float64), coins, [8000], 0.0, ERROR)["epsilon_lower"])
    assert max(bounds) <= epsilon
    assert float(np.median(bounds)) > 0.92 * epsilon


def test_failing_with_chance_delta_is_paid_for() -> None:
    """Each coin is shown with a chance of delta, and answered by randomised response otherwise (seeded).

    An audit that forgets delta accuses most of them; this one none.
    """
    draw, epsilon, delta, canaries = np.random.default_rng(8), 1.0, 0.1, 5000
    naive = 0
    for _ in range(200):
        coins = draw.integers(0, 2, canaries) * 2 - 1
        truth = draw.random(canaries) < delta + (1 - delta) / (1 + math.exp(-epsilon))
        right = int(np.sum(guesses_of(np.where(truth, coins, -coins).astype(float), canaries) == coins))
        known = {"canaries": canaries, "guesses": canaries, "right": right, "error": ERROR}
        assert epsilon_lower(**known, delta=delta) <= epsilon
        naive += epsilon_lower(**known, delta=0) > epsilon
    assert naive > 120


@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.02])
def test_a_mechanism_that_shows_everything_with_chance_delta(delta: float) -> None:
    """Exactly: (epsilon, delta)-private, and at least v right with chance delta + (1 - delta) Pr[W >= v] for all v."""
    from scipy.stats import binom

    canaries, short = 200, 0
    for right in range(canaries + 1):
        tail = float(binom.sf(right - 1, canaries, 0.75))
        truth = delta + (1 - delta) * tail
        found = p_value(canaries=canaries, guesses=canaries, right=right, epsilon=LOG3, delta=delta)
        assert found >= truth * (1 - 1e-9)
        short += tail * (1 + 1e-6) < truth
    assert short > 10  # the tail alone would not do


def test_guesses_go_to_the_clearest_scores() -> None:
    scores = np.array([0.1, -3.0, 2.0, 5.0, -0.2, -9.0])
    assert guesses_of(scores, 4).tolist() == [0, -1, 1, 1, 0, -1]
    assert guesses_of(scores, 0).tolist() == [0] * 6
    for count, told in ((3, "even"), (8, "at most")):
        with pytest.raises(ValueError, match=told):
            guesses_of(scores, count)


def test_several_numbers_of_guesses_share_the_error() -> None:
    coins = np.ones(400, np.int64)
    coins[:200] = -1
    found = best_of(np.arange(400.0), coins, [100, 300], 0.0, ERROR)
    assert [one["right"] for one in found["tried"]] == [100, 300]
    alone = epsilon_lower(canaries=400, guesses=300, right=300, delta=0, error=ERROR / 2)
    assert found["epsilon_lower"] == alone == max(one["epsilon_lower"] for one in found["tried"])
    assert (found["guesses"], found["right"]) == (300, 300)


@pytest.mark.parametrize(("distance", "share"), [(0.4, 0.1), (1.6, 0.3), (4.0, 1.0)])
def test_expected_accuracy_is_that_of_normal_scores(distance: float, share: float) -> None:
    """100,000 scores (seeded): standard error at most half a percent of a guess."""
    draw = np.random.default_rng(3)
    coins = draw.integers(0, 2, 100_000) * 2 - 1
    scores = draw.standard_normal(100_000) + distance * coins / 2
    guesses = guesses_of(scores, round(100_000 * share))
    accuracy = np.sum(guesses == coins) / np.sum(guesses != 0)
    assert accuracy == pytest.approx(expected_accuracy(distance, share), abs=0.02)


def test_registered_guesses_are_the_best_of_their_candidates() -> None:
    known = {"canaries": 2000, "delta": 1e-6, "error": 5e-4}
    chosen = registered_guesses(1.6, **known)
    assert chosen % 2 == 0
    best = expected_bound(1.6, guesses=chosen, **known)
    assert all(expected_bound(1.6, guesses=other, **known) <= best + 0.1 for other in (10, 50, 200, 1000, 2000))
    assert 10 <= registered_guesses(1e-3, **known) <= 2000  # nothing can be shown: still a number
    with pytest.raises(ValueError, match="at least 10"):
        registered_guesses(1.0, canaries=9, delta=0, error=ERROR)


@pytest.mark.parametrize(
    "wrong", [{"right": 41}, {"guesses": 101}, {"epsilon": -1.0}, {"epsilon": math.nan}, {"delta": 2.0}, {"right": -1}]
)
def test_arguments_out_of_range(wrong: dict[str, float]) -> None:
    right: dict[str, float] = {"canaries": 100, "guesses": 40, "right": 30, "epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(ValueError, match="must"):
        p_value(**{**right, **wrong})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="error"):
        epsilon_lower(canaries=10, guesses=4, right=4, delta=0, error=0)
