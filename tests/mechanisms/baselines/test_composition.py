"""Composition against dp-accounting's privacy loss distributions, against exact fractions, and against itself."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from dp_accounting.pld import common, privacy_loss_distribution

from mechanisms.baselines.composition import (
    MOST_ADVANCED_ROUNDS,
    composed_delta,
    composed_epsilon,
    responses_delta,
    round_delta,
    round_epsilon,
)


@pytest.mark.parametrize(
    ("epsilon", "delta", "rounds"),
    [(0.1, 1e-8, 100), (0.5, 1e-9, 10), (0.01, 1e-9, 2000), (1.0, 0.0, 3), (2.0, 1e-7, 1)],
)
def test_advanced_agrees_with_the_privacy_loss_distribution(epsilon: float, delta: float, rounds: int) -> None:
    parameters = common.DifferentialPrivacyParameters(epsilon, delta)
    loss = privacy_loss_distribution.from_privacy_parameters(parameters, value_discretization_interval=1e-4)
    expected = loss.self_compose(rounds).get_epsilon_for_delta(1e-5)
    assert composed_epsilon(epsilon, delta, rounds, 1e-5, "advanced") == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize(("epsilon", "rounds"), [(math.log(2), 7), (math.log(1.25), 40), (math.log(9), 3)])
def test_the_displayed_formula_of_the_theorem(epsilon: float, rounds: int) -> None:
    """As [KOV15] display it, at its lattice (T - 2 i) epsilon, in exact fractions; ours is above by a hair."""
    ratio = Fraction(round(math.exp(epsilon) * 4), 4)
    for i in range(rounds // 2 + 1):
        shown = (
            sum(
                math.comb(rounds, step) * (ratio ** (rounds - step) - ratio ** (rounds - 2 * i + step))
                for step in range(i)
            )
            / (1 + ratio) ** rounds
        )
        ours = responses_delta(epsilon, rounds, (rounds - 2 * i) * epsilon)
        assert ours == pytest.approx(float(shown), rel=1e-9, abs=1e-14)


def test_the_usual_closed_form_is_never_smaller() -> None:
    """[DR14]: epsilon sqrt(2 T ln(1 / delta')) + T epsilon (e^epsilon - 1) at T delta + delta'."""
    for epsilon, rounds in [(0.01, 1000), (0.1, 50), (0.3, 400)]:
        slack = 1e-6
        usual = epsilon * math.sqrt(2 * rounds * math.log(1 / slack)) + rounds * epsilon * math.expm1(epsilon)
        assert composed_epsilon(epsilon, 1e-10, rounds, rounds * 1e-10 + slack, "advanced") <= usual


def test_no_worse_than_adding_up() -> None:
    for rounds in (1, 2, 30):
        total = 1 - (1 - 1e-7) ** rounds + 1e-12
        advanced = composed_epsilon(0.2, 1e-7, rounds, total, "advanced")
        assert advanced <= composed_epsilon(0.2, 1e-7, rounds, rounds * 1e-7, "basic")
    assert composed_epsilon(0.2, 1e-7, 30, 3e-6 * (1 + 1e-9), "basic") == pytest.approx(6.0, rel=1e-9)


def test_deltas_alone_may_be_too_much() -> None:
    assert composed_epsilon(0.1, 1e-6, 100, 1e-5, "basic") == math.inf
    assert composed_epsilon(0.1, 1e-6, 100, 1e-5, "advanced") == math.inf
    assert composed_delta(0.1, 0.0, 10, 0.5, "basic") == 1.0


@pytest.mark.parametrize("composition", ["basic", "advanced"])
@pytest.mark.parametrize("rounds", [1, 2, 15, 1500])
def test_a_share_composes_to_the_totals(composition: str, rounds: int) -> None:
    epsilon, delta = round_epsilon(2.0, 1e-6, rounds, composition), round_delta(1e-6, rounds, composition)
    achieved = composed_epsilon(epsilon, delta, rounds, 1e-6, composition)
    assert 2.0 * (1 - 1e-6) <= achieved <= 2.0


def test_a_naive_split_breaks_the_total() -> None:
    """Naive version: each round gets delta itself, and sqrt(T) of the epsilon."""
    epsilon = 2.0 / math.sqrt(15)
    assert composed_epsilon(epsilon, 1e-6, 15, 1e-6, "advanced") > 2.0


def test_bad_input_is_refused() -> None:
    for arguments in [(-1.0, 0.0, 1), (1.0, 1.0, 1), (1.0, -1e-9, 1), (1.0, 0.0, 0), (math.nan, 0.0, 1)]:
        with pytest.raises(ValueError, match="must hold"):
            composed_epsilon(*arguments, 1e-5, "advanced")
    with pytest.raises(ValueError, match="total_delta"):
        composed_epsilon(1.0, 0.0, 1, 0.0, "basic")
    with pytest.raises(ValueError, match="unknown composition"):
        composed_epsilon(1.0, 0.0, 1, 1e-5, "magic")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="use basic"):
        composed_epsilon(1.0, 0.0, MOST_ADVANCED_ROUNDS + 1, 1e-5, "advanced")
