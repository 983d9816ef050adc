"""The shuffle bound against exact divergences: of binary and ternary responses, and of the pair in its proof."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from mechanisms.baselines.shuffle import largest_local_epsilon, local_epsilon_for, shuffle_bound


def closed_form(local_epsilon: float, reports: int, delta: float) -> float:
    """The formula without its condition: what a naive version would return."""
    grown = math.exp(local_epsilon)
    inner = 8 * math.sqrt(grown * math.log(4 / delta) / reports) + 8 * grown / reports
    return math.log1p((grown - 1) / (grown + 1) * inner)


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(0.0, p - math.exp(epsilon) * q).sum())


def divergence(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    """Both directions."""
    return max(hockey_stick(p, q, epsilon), hockey_stick(q, p, epsilon))


def exact_epsilon(p: np.ndarray, q: np.ndarray, delta: float) -> float:
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if divergence(p, q, middle) <= delta else (middle, high)
    return high


def binary_histograms(local_epsilon: float, reports: int, ones: int) -> tuple[np.ndarray, np.ndarray]:
    """Laws of the number of ones among ``reports`` binary responses, one of 0 against of 1, ``ones`` of the others'
    values being 1. With two categories this *is* the shuffled multiset, exactly.
    """
    true = 1 / (1 + math.exp(-local_epsilon))
    others = np.convolve(
        stats.binom.pmf(np.arange(ones + 1), ones, true),
        stats.binom.pmf(np.arange(reports - ones), reports - 1 - ones, 1 - true),
    )
    return np.convolve(others, [true, 1 - true]), np.convolve(others, [1 - true, true])


def ternary_histograms(local_epsilon: float, reports: int) -> tuple[np.ndarray, np.ndarray]:
    """The same for three categories, the others all holding the third one: a grid over the counts of two."""
    keep = math.exp(local_epsilon) / (math.exp(local_epsilon) + 2)
    flip = (1 - keep) / 2
    first, second = np.meshgrid(np.arange(reports), np.arange(reports), indexing="ij")
    rest = reports - 1 - first - second
    others = np.where(
        rest >= 0,
        stats.multinomial.pmf(np.stack([first, second, np.maximum(rest, 0)], axis=-1), reports - 1, [flip, flip, keep]),
        0.0,
    )

    def with_hers(true: int) -> np.ndarray:
        total = np.zeros((reports + 1, reports + 1))
        chances = [keep if c == true else flip for c in range(3)]
        total[1:, :-1] += chances[0] * others
        total[:-1, 1:] += chances[1] * others
        total[:-1, :-1] += chances[2] * others
        return total

    return with_hers(0), with_hers(1)


def clone_pair(local_epsilon: float, reports: int) -> tuple[np.ndarray, np.ndarray]:
    """The pair that dominates every eps0-private randomiser in the proof: C ~ Bin(n - 1, e^-eps0) clones, A ~ Bin(C,
    1/2) of them on one side, the protected one on that side with chance e^eps0 / (1 + e^eps0) or 1 / (1 + e^eps0).
    """
    true = 1 / (1 + math.exp(-local_epsilon))
    clones = np.arange(reports)[:, None]
    sides = np.arange(reports)[None, :]
    others = stats.binom.pmf(clones, reports - 1, math.exp(-local_epsilon)) * stats.binom.pmf(sides, clones, 0.5)
    joint = np.zeros((2, reports, reports + 1))
    for law, chance in enumerate((true, 1 - true)):
        joint[law, :, 1:] += chance * others
        joint[law, :, :-1] += (1 - chance) * others
    return joint[0], joint[1]


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("local_epsilon", [0.1, 0.5, 1.0, 2.0])
def test_the_bound_covers_binary_responses_exactly(local_epsilon: float, delta: float) -> None:
    smallest = math.ceil(16 * math.log(2 / delta) * math.exp(local_epsilon) * (1 + 1e-9))
    for reports in (smallest, 4 * smallest):
        bound = shuffle_bound(local_epsilon, reports, delta)
        for ones in (0, (reports - 1) // 3, reports // 2, reports - 1):
            p, q = binary_histograms(local_epsilon, reports, ones)
            assert divergence(p, q, bound.epsilon) <= delta
            assert exact_epsilon(p, q, delta) <= bound.epsilon


def test_the_bound_covers_ternary_responses_exactly() -> None:
    delta, reports = 1e-2, 140
    bound = shuffle_bound(0.5, reports, delta)
    assert bound.bound == "amplified"
    assert divergence(*ternary_histograms(0.5, reports), bound.epsilon) <= delta


@pytest.mark.parametrize("delta", [1e-2, 1e-5])
@pytest.mark.parametrize("local_epsilon", [0.05, 0.7, 1.5])
def test_the_closed_form_covers_the_dominating_pair_at_its_edge(local_epsilon: float, delta: float) -> None:
    """Every randomiser at once, at the fewest reports the theorem allows."""
    reports = math.ceil(16 * math.log(2 / delta) * math.exp(local_epsilon) * (1 + 1e-9))
    assert local_epsilon <= largest_local_epsilon(reports, delta)
    p, q = clone_pair(local_epsilon, reports)
    assert p.sum() == pytest.approx(1.0)
    assert divergence(p, q, closed_form(local_epsilon, reports, delta)) <= delta


def test_without_the_condition_the_formula_is_wrong() -> None:
    """Naive version: the formula at any eps0. 100 reports at eps0 = 10 hide hardly anything."""
    p, q = binary_histograms(10.0, 100, 0)
    assert closed_form(10.0, 100, 1e-6) < exact_epsilon(p, q, 1e-6) - 1
    bound = shuffle_bound(10.0, 100, 1e-6)
    assert (bound.bound, bound.epsilon, bound.delta) == ("local", 10.0, 0.0)
    assert "too few" in bound.reason
    assert exact_epsilon(p, q, 1e-6) <= bound.epsilon


def test_reports_of_colluders_hide_nobody() -> None:
    """Naive version: n = all clients. Of 20,000 reports 19,500 are known to the adversary and subtracted."""
    everybody, honest, delta = 20_000, 500, 1e-6
    truth = exact_epsilon(*binary_histograms(0.5, honest, 0), delta)
    assert shuffle_bound(0.5, everybody, delta).epsilon < truth
    assert shuffle_bound(0.5, honest, delta).epsilon >= truth


def test_the_result_says_which_bound_holds() -> None:
    amplified = shuffle_bound(1.0, 1000, 1e-5)
    assert amplified.epsilon == pytest.approx(closed_form(1.0, 1000, 1e-5), rel=1e-11)
    assert amplified.epsilon >= closed_form(1.0, 1000, 1e-5)
    assert (amplified.bound, amplified.delta, amplified.honest) == ("amplified", 1e-5, 1000)
    assert "[FMT21]" in amplified.reason
    beyond = shuffle_bound(3.0, 1000, 1e-5)
    assert (beyond.bound, beyond.epsilon, beyond.delta) == ("local", 3.0, 0.0)
    assert "the theorem needs eps0 <=" in beyond.reason
    # The condition holds, but the formula gives more than eps0: the smaller one is taken.
    reports = math.ceil(16 * math.log(2 / 1e-9) * 1.02)
    assert largest_local_epsilon(reports, 1e-9) > 0.01
    assert closed_form(0.01, reports, 1e-9) > 0.01
    smaller = shuffle_bound(0.01, reports, 1e-9)
    assert (smaller.bound, smaller.epsilon) == ("local", 0.01)
    assert "no better" in smaller.reason


def test_the_condition_is_that_of_the_theorem() -> None:
    limit = math.log(1000 / (16 * math.log(2 / 1e-5)))
    assert largest_local_epsilon(1000, 1e-5) == pytest.approx(limit, abs=1e-11)
    assert shuffle_bound(limit - 1e-9, 1000, 1e-5).bound == "amplified"
    assert shuffle_bound(limit + 1e-9, 1000, 1e-5).bound == "local"


@pytest.mark.parametrize(
    ("epsilon", "honest", "delta"), [(1.0, 10_000, 1e-6), (0.1, 10_000, 1e-6), (1.0, 100, 1e-6), (0.5, 1000, 1e-5)]
)
def test_the_largest_local_epsilon_for_a_target(epsilon: float, honest: int, delta: float) -> None:
    local = local_epsilon_for(epsilon, honest, delta)
    assert local >= epsilon
    assert shuffle_bound(local, honest, delta).epsilon <= epsilon
    assert shuffle_bound(local * (1 + 1e-6), honest, delta).epsilon > epsilon


def test_bad_input_is_refused() -> None:
    for local_epsilon in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="local_epsilon"):
            shuffle_bound(local_epsilon, 100, 1e-6)
        with pytest.raises(ValueError, match="epsilon"):
            local_epsilon_for(local_epsilon, 100, 1e-6)
    for honest, delta in [(0, 1e-6), (100, 0.0), (100, 1.0), (100, math.nan)]:
        with pytest.raises(ValueError, match="honest >= 1"):
            shuffle_bound(1.0, honest, delta)
