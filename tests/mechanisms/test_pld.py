"""PLD figures against exact ones, from above."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from mechanisms.gaussian_exact import gaussian_epsilon
from mechanisms.pld import poisson_gaussian_epsilon, poisson_gaussian_multiplier
from mechanisms.privacy_curves import rdp_to_epsilon

pytest.importorskip("dp_accounting")


def tail(x: float) -> float:
    return math.erfc(x / math.sqrt(2)) / 2


def one_round_delta(z: float, q: float, epsilon: float) -> float:
    """The exact delta of one Poisson-sampled round, the larger direction, in closed form.

    The likelihood ratio 1 - q + q e^((2x - 1) / 2 z^2) grows with x, so each direction's best event is a half-line.
    """
    found = 0.0
    for sign in (1, -1):
        level = (math.exp(sign * epsilon) - 1 + q) / q
        if level <= 0:
            continue  # the ratio never falls as low
        x = z * z * math.log(level) + 0.5
        if sign == 1:  # sampled against not
            sampled = (1 - q) * tail(x / z) + q * tail((x - 1) / z)
            found = max(found, sampled - math.exp(epsilon) * tail(x / z))
        else:
            sampled = (1 - q) * tail(-x / z) + q * tail((1 - x) / z)
            found = max(found, tail(-x / z) - math.exp(epsilon) * sampled)
    return found


@pytest.mark.parametrize(("z", "rounds"), [(0.3, 1), (1.0, 1), (1.0, 30), (5.0, 200), (60.0, 5000)])
def test_without_sampling_it_is_the_exact_figure_from_above(z: float, rounds: int) -> None:
    for delta in (1e-4, 1e-9):
        exact = gaussian_epsilon(z / math.sqrt(rounds), delta)
        bound = poisson_gaussian_epsilon(z, 1.0, rounds, delta)
        assert exact <= bound <= 1.002 * exact


@pytest.mark.parametrize(("z", "q"), [(0.4, 0.05), (1.0, 0.01), (1.0, 0.5), (3.0, 0.2)])
def test_one_sampled_round_is_the_exact_figure_from_above(z: float, q: float) -> None:
    for delta in (1e-3, 1e-7):
        bound = poisson_gaussian_epsilon(z, q, 1, delta)
        assert one_round_delta(z, q, bound) <= delta
        if bound > 0:
            assert one_round_delta(z, q, 0.998 * bound) > delta


def test_two_sampled_rounds_are_bounded() -> None:
    """Against the exact delta of both directions, integrated over the plane of outcomes."""
    z, q, delta = 0.9, 0.2, 1e-4
    epsilon = poisson_gaussian_epsilon(z, q, 2, delta)
    x, step = np.linspace(-9, 10, 1901, retstep=True)
    still, moved = (np.exp(-((x - m) ** 2) / (2 * z * z)) / (z * math.sqrt(2 * math.pi)) for m in (0.0, 1.0))
    mixed = (1 - q) * still + q * moved

    def exact(at: float) -> float:
        with_her, without = np.multiply.outer(mixed, mixed), np.multiply.outer(still, still)
        pairs = ((with_her, without), (without, with_her))
        return max(float(np.maximum(a - math.exp(at) * b, 0).sum()) * step * step for a, b in pairs)

    assert exact(epsilon) <= delta < exact(0.99 * epsilon)


def test_published_figures() -> None:
    """1,500 rounds of 100 among 3,400 at z = 0.5, delta = 1/3400: 36.7, where integer Renyi orders give twice that."""
    assert poisson_gaussian_epsilon(0.5, 100 / 3400, 1500, 1 / 3400) == pytest.approx(36.7, abs=0.05)
    assert poisson_gaussian_epsilon(0.8, 0.001, 5000, 1e-6) == pytest.approx(0.734, abs=2e-3)


@pytest.mark.parametrize(
    ("epsilon", "q", "rounds", "delta"),
    [(2.0, 0.1, 50, 1e-3), (0.1, 0.1, 50, 1e-3), (30.0, 0.01, 40, 1e-6), (1.0, 0.2, 1, 1e-5), (6.0, 0.03, 1500, 1e-4)],
)
@pytest.mark.long
def test_the_least_multiplier_keeps_epsilon_and_hardly_less_does_not(
    epsilon: float, q: float, rounds: int, delta: float
) -> None:
    z = poisson_gaussian_multiplier(epsilon, q, rounds, delta)
    assert 0.999 * epsilon <= poisson_gaussian_epsilon(z, q, rounds, delta) <= epsilon
    assert poisson_gaussian_epsilon(0.998 * z, q, rounds, delta) > epsilon


def test_no_multiplier_is_found_where_nothing_is_resolved() -> None:
    assert poisson_gaussian_multiplier(1.0, 0.1, 100, 1e-14) == math.inf
    z = poisson_gaussian_multiplier(0.01, 1e-5, 1, 1e-2)  # the coin alone keeps it
    assert poisson_gaussian_epsilon(z, 1e-5, 1, 1e-2) == 0


def test_it_is_below_the_other_bounds_where_it_resolves_anything() -> None:
    orders = np.arange(2.0, 100)
    for z, q, rounds in ((1.0, 0.01, 300), (0.6, 0.3, 10), (8.0, 0.9, 50)):
        epsilon = poisson_gaussian_epsilon(z, q, rounds, 1e-6)
        assert epsilon < gaussian_epsilon(z / math.sqrt(rounds), 1e-6)
        assert epsilon < rdp_to_epsilon(orders, rounds * orders / (2 * z * z), 1e-6)
    assert poisson_gaussian_epsilon(4.0, 0.01, 1000, 1e-14) == math.inf
    assert poisson_gaussian_epsilon(0.01, 0.5, 2, 1e-6) == math.inf


@pytest.mark.filterwarnings("error")
def test_nothing_sampled_costs_nothing_and_extremes_warn_of_nothing() -> None:
    assert poisson_gaussian_epsilon(1.0, 0.0, 10, 1e-5) == poisson_gaussian_epsilon(1.0, 0.5, 0, 1e-5) == 0.0
    assert 0 <= poisson_gaussian_epsilon(1e6, 0.5, 10, 1e-6) < 1e-6
    assert poisson_gaussian_epsilon(0.06, 0.5, 1, 1e-6) < gaussian_epsilon(0.06, 1e-6)
    assert poisson_gaussian_epsilon(1e-200, 0.5, 1, 1e-6) == math.inf


def test_bad_arguments_are_refused() -> None:
    good = (1.0, 0.1, 10, 1e-5)
    for position, name, values in (
        (0, "noise multiplier", (0.0, -1.0, math.inf, math.nan)),
        (1, "rate q", (-0.1, 1.1, math.nan)),
        (2, "rounds", (-1, 2.5, True)),
        (3, "delta", (0.0, 1.0, math.nan)),
    ):
        for value in values:
            arguments = (*good[:position], value, *good[position + 1 :])
            with pytest.raises(ValueError, match=name):
                poisson_gaussian_epsilon(*arguments)


def test_dp_accounting_is_loaded_only_when_it_is_needed() -> None:
    script = (
        "import sys, mechanisms.pld as pld; pld.poisson_gaussian_epsilon(1.0, 0.0, 5, 1e-5); "
        "assert not {'dp_accounting', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
