"""The bounds against exact divergences of small cases, and each shortcut that would be unsound."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mechanisms.lattice_noise import SAMPLER_DISTANCE
from mechanisms.plan import make_plan
from mechanisms.privacy_curves import (
    ddgauss_rdp,
    ddgauss_tau,
    epsilon_with_sampler_error,
    order_grid,
    rdp_to_epsilon,
    rounded_l1_bound,
    rounded_l2_bound,
)
from tests.mechanisms.conftest import DEMO

ORDERS = (1.1, 1.5, 2.0, 3.7, 8.0, 32.0)
VARIANCES = (Fraction(1, 4), Fraction(36, 100), Fraction(1, 2), Fraction(1), Fraction(4))


@cache
def log_pmf_of_sum(variance: Fraction, shares: int) -> tuple[int, np.ndarray]:
    """(reach, log pmf on -reach..reach) of a sum of discrete Gaussians, by convolution."""
    reach_one = int(math.sqrt(variance) * 26) + 6
    x = np.arange(-reach_one, reach_one + 1)
    one = np.exp(-(x**2) / (2 * float(variance)))
    one /= one.sum()
    total = one
    for _ in range(shares - 1):
        total = np.convolve(total, one)  # all terms positive: relative accuracy is kept far into the tails
    inside = np.flatnonzero(total > 1e-290)
    keep = total.size // 2 - inside[0]
    middle = total.size // 2
    return int(keep), np.log(total[middle - keep : middle + keep + 1])


@cache
def exact_divergence(order: float, variance: Fraction, shares: int, shift: int) -> float:
    """D_order(P + shift || P) for P a sum of ``shares`` discrete Gaussians, summed over the integers."""
    if shift == 0:
        return 0.0
    _, log_p = log_pmf_of_sum(variance, shares)
    moved, still = log_p[:-shift], log_p[shift:]
    terms = order * moved + (1 - order) * still
    top = terms.max()
    # The terms cut off lie in the far tails; they could only raise the exact value, by less than the edge
    # terms.
    assert terms[0] < top - 40
    assert terms[-1] < top - 40
    return float((top + math.log(np.sum(np.exp(terms - top)))) / (order - 1))


def bound(order: float, variance: Fraction, shares: int, vector: tuple[int, ...]) -> float:
    return float(
        ddgauss_rdp(
            order,
            l2_bound=math.sqrt(sum(v * v for v in vector)),
            l1_bound=float(sum(map(abs, vector))),
            dim=len(vector),
            local_variance=variance,
            shares=shares,
        )
    )


@pytest.mark.parametrize("vector", [(1,), (2,), (3,), (1, 0, 2), (1,) * 20, (3, 1, 1, 0, 0, 0, 0, 1)])
@pytest.mark.parametrize("variance", VARIANCES)
def test_the_curve_bounds_the_exact_divergence(variance: Fraction, vector: tuple[int, ...]) -> None:
    for shares in (1, 2, 5, 10):
        for order in ORDERS:
            try:
                exact = sum(exact_divergence(order, variance, shares, abs(v)) for v in vector)
            except AssertionError:
                continue  # order x shift reaches beyond what doubles can hold; other cases cover the order
            assert bound(order, variance, shares, vector) >= exact * (1 - 1e-9)


def test_enough_exact_cases_are_really_computed() -> None:
    computed = 0
    for variance in VARIANCES:
        for order in ORDERS:
            try:
                exact_divergence(order, variance, 10, 1)
            except AssertionError:
                continue
            computed += 1
    assert computed >= 25


def test_dropping_tau_is_unsound() -> None:
    """The Gaussian's formula alone is exceeded by the exact divergence: a sum is no discrete Gaussian."""
    without_tau = [
        exact_divergence(order, Fraction(1, 4), 10, 1) / (order / (2 * 10 * 0.25)) for order in (1.5, 2.0, 3.7)
    ]
    assert max(without_tau) > 1 + 1e-3


def test_sizing_noise_for_all_clients_is_unsound() -> None:
    """If 10 shares are promised and 5 arrive unknown, the promise is broken; counting the 5 keeps it."""
    exact = exact_divergence(2.0, Fraction(4), 5, 3)
    assert bound(2.0, Fraction(4), 10, (3,)) < exact <= bound(2.0, Fraction(4), 5, (3,))


def test_ignoring_the_rounding_is_unsound() -> None:
    """1.5 grid steps may be rounded to 2: more than the bound at the clip, less than at the rounded bound."""

    def at(norm: float) -> float:
        one = Fraction(1)
        return float(ddgauss_rdp(2.0, l2_bound=norm, l1_bound=norm * norm, dim=1, local_variance=one, shares=3))

    exact = exact_divergence(2.0, Fraction(1), 3, 2)
    assert at(1.5) < exact <= at(rounded_l2_bound(1.5, 1, 0.6))


def test_taking_the_variance_of_the_sum_for_that_of_a_share_is_unsound() -> None:
    """Tau belongs to the local deviation; with the central one it all but vanishes."""
    assert ddgauss_tau(Fraction(1, 4), 10) > 1e6 * ddgauss_tau(Fraction(10, 4), 10)


def test_tau_equals_its_formula() -> None:
    for variance, shares in ((Fraction(1, 4), 10), (Fraction(1), 10), (Fraction(4), 65), (Fraction(1), 1)):
        truth = 10 * mpmath.fsum(
            mpmath.exp(-2 * mpmath.pi**2 * variance.numerator / variance.denominator * k / (k + 1))
            for k in range(1, shares)
        )
        assert float(truth) <= ddgauss_tau(variance, shares) <= float(truth) * (1 + 1e-10)
    # The published figures for 10 clients.
    assert ddgauss_tau(Fraction(1, 4), 10) == pytest.approx(2.35, rel=1e-2)
    assert ddgauss_tau(Fraction(1), 10) == pytest.approx(5.4e-4, rel=2e-2)
    # The cheap tail for many shares is an upper bound, and a close one.
    k = np.arange(1, 100_000)
    slow = float(10 * np.sum(np.exp(-2 * np.pi**2 * k / (k + 1))))
    assert slow <= ddgauss_tau(Fraction(1), 100_000) <= slow * 1.01


def test_outside_the_theorem_nothing_is_promised() -> None:
    given_ = {"l2_bound": 1.0, "l1_bound": 1.0, "dim": 1, "shares": 3}
    with pytest.raises(ValueError, match="half a grid step"):
        ddgauss_rdp(2.0, local_variance=Fraction(249, 1000), **given_)
    for order in (1.0, 0.5, math.nan):
        with pytest.raises(ValueError, match="orders"):
            ddgauss_rdp(order, local_variance=Fraction(1), **given_)
    with pytest.raises(ValueError):
        ddgauss_tau(Fraction(1), 0)


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=12), st.randoms(use_true_random=False))
@settings(max_examples=300, deadline=None)
def test_rounded_norms_stay_below_the_worst_case_bound(values: list[float], random) -> None:
    norm = math.sqrt(math.fsum(v * v for v in values))
    rounded = [random.choice((math.floor(v), math.ceil(v))) for v in values]
    l2 = rounded_l2_bound(norm, len(values), 0.0)
    assert math.sqrt(sum(v * v for v in rounded)) <= l2
    assert sum(map(abs, rounded)) <= rounded_l1_bound(l2, len(values))


def test_rounded_bounds_are_the_formulas() -> None:
    r, d, beta = 1523.25, 512, math.exp(-0.5)
    formula = math.sqrt(r * r + d / 4 + math.sqrt(2 * math.log(1 / beta)) * (r + math.sqrt(d) / 2))
    assert rounded_l2_bound(r, d, beta) == pytest.approx(formula, rel=1e-11)
    assert rounded_l2_bound(r, d, beta) >= formula
    assert rounded_l2_bound(0.1, 1, 1e-300) == pytest.approx(1.1)  # the worst case is the smaller here
    assert rounded_l1_bound(3.0, 16) == pytest.approx(9.0)
    assert rounded_l1_bound(30.0, 16) == pytest.approx(120.0)
    for bad in ((-1.0, 4, 0.5), (math.inf, 4, 0.5), (math.nan, 4, 0.5), (1.0, 0, 0.5), (1.0, 4, 1.0), (1.0, 4, -0.1)):
        with pytest.raises(ValueError):
            rounded_l2_bound(*bad)


def test_the_conversion_agrees_with_dp_accounting() -> None:
    oracle = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    orders = np.array([1.05, 1.3, 2, 3.5, 8, 20, 63, 128, 500.5, 4096])
    for rho in (1e-7, 1e-5, 1e-3, 0.025, 0.3, 2.0, 10.0):
        for delta in (1e-3, 1e-5, 1e-10):
            theirs, _ = oracle.compute_epsilon(orders, rho * orders, delta)
            assert rdp_to_epsilon(orders, rho * orders, delta) == pytest.approx(theirs, rel=1e-9, abs=1e-11)
            for order in orders:
                theirs, _ = oracle.compute_epsilon([order], [rho * order], delta)
                ours = rdp_to_epsilon(order, rho * order, delta)
                assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-11)


def test_known_figure_of_the_conversion() -> None:
    orders = order_grid()
    # zCDP with rho = 0.025 at 1e-6, continuous orders: 1.014074.
    assert rdp_to_epsilon(orders, 0.025 * orders, 1e-6) == pytest.approx(1.014074, abs=2e-6)


def test_bad_conversions_are_refused() -> None:
    for bad in ((2.0, 1.0, 0.0), (2.0, 1.0, 1.0), (0.5, 1.0, 0.1), (2.0, -1.0, 0.1), (2.0, math.nan, 0.1)):
        with pytest.raises(ValueError):
            rdp_to_epsilon(*bad)
    with pytest.raises(ValueError):
        epsilon_with_sampler_error(2.0, 1.0, 1e-5, -1)


def test_the_samplers_distance_is_paid_for() -> None:
    plain = rdp_to_epsilon(4.0, 2.0, 1e-5)
    assert epsilon_with_sampler_error(4.0, 2.0, 1e-5, 0) == pytest.approx(plain, rel=1e-12)
    # So many draws that the correction takes a visible part of delta.
    draws = int(2e-6 / (SAMPLER_DISTANCE * (1 + math.exp(plain))))
    paid = epsilon_with_sampler_error(4.0, 2.0, 1e-5, draws)
    assert paid > plain * 1.0001
    # Sound: at the stated epsilon, the ideal mechanism's delta and the correction together stay within delta.
    ideal = math.exp(3.0 * (2.0 - paid)) * (1 - 1 / 4.0) ** 4.0 / 3.0
    assert ideal + (1 + math.exp(paid)) * draws * SAMPLER_DISTANCE <= 1e-5
    naive = math.exp(3.0 * (2.0 - plain)) * (1 - 1 / 4.0) ** 4.0 / 3.0
    assert naive + (1 + math.exp(plain)) * draws * SAMPLER_DISTANCE > 1e-5
    assert epsilon_with_sampler_error(4.0, 2.0, 1e-5, 10 * draws) == math.inf
    assert epsilon_with_sampler_error(4.0, 1e4, 1e-5, 1) == math.inf


@pytest.mark.parametrize(
    "orders", [1.0, 1.01, 4.0, 1e5, np.append(order_grid()[::99], 1.0)], ids=["1", "low", "4", "high", "grid"]
)
def test_the_samplers_distance_is_left_out_only_where_no_double_shows_it(orders: Any) -> None:
    """The same to the last bit as what is always converted twice, for any number of draws."""

    def twice(rdp: Any, delta: float, draws: int) -> float:
        loose = rdp_to_epsilon(orders, rdp, delta / 2)
        cost = (1 + math.exp(min(loose, 600))) * draws * SAMPLER_DISTANCE * (1 + 1e-12)
        return rdp_to_epsilon(orders, rdp, delta - cost) if loose <= 600 and cost <= delta / 2 else math.inf

    draws = [0, *(10**power for power in range(0, 40, 3))]
    cases = [
        (rdp * orders, delta, count)
        for rdp in (1e-6, 0.1, 3.0, 60.0)
        for delta in (1e-12, 1e-5, 0.9)
        for count in draws
    ]
    found = [epsilon_with_sampler_error(orders, *case) for case in cases]
    assert found == [twice(*case) for case in cases]
    free = [rdp_to_epsilon(orders, rdp, delta) for rdp, delta, _ in cases]
    assert 0 < sum(paid != plain for paid, plain in zip(found, free, strict=True)) < len(cases)


def test_where_all_noise_stays_more_survivors_cost_less() -> None:
    plain = make_plan(**DEMO, noise_parts=0)
    at_least, all_there = plain.round_cost(65), plain.round_cost(95)
    assert all_there == pytest.approx(at_least * 65 / 95, rel=1e-6)
