"""The exact Gaussian against high precision."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from mechanisms.gaussian_exact import gaussian_delta, gaussian_epsilon
from mechanisms.privacy_curves import order_grid, rdp_to_epsilon
from tests.mechanisms.published_bounds import gaussian_delta as exact_delta

MULTIPLIERS = (1e-3, 0.01, 0.1, 0.5, 1.0, 1.9, 2.0, 2.1, 7.0, 100.0, 1e4, 1e6)
DELTAS = (0.9, 0.1, 1e-3, 1e-5, 1e-10, 1e-20, 1e-30)
DIGITS = 80


@pytest.mark.parametrize("z", MULTIPLIERS)
def test_epsilon_and_delta_are_exact_from_above(z: float) -> None:
    with mpmath.workdps(DIGITS):
        for delta in DELTAS:
            epsilon = gaussian_epsilon(z, delta)
            assert exact_delta(z, epsilon) <= delta
            if epsilon > 0:
                assert exact_delta(z, epsilon * (1 - 1e-9)) > delta
            at = gaussian_delta(z, epsilon)
            assert exact_delta(z, epsilon) <= at <= exact_delta(z, epsilon) * (1 + mpmath.mpf("1e-10"))
        for epsilon in (0.0, 1e-9 / z, 0.3 / z, 3.0 / z, 30.0 / z):
            at = gaussian_delta(z, epsilon)
            assert exact_delta(z, epsilon) <= at <= exact_delta(z, epsilon) * (1 + mpmath.mpf("1e-10"))


def test_the_textbook_sum_in_doubles_is_unsound() -> None:
    """Naive version: the theorem's two terms in floating point. Less than the truth, or no number at all."""

    def naive(z: float, epsilon: float) -> float:
        upper = math.erfc((epsilon * z - 1 / (2 * z)) / math.sqrt(2)) / 2
        return upper - math.exp(epsilon) * math.erfc((epsilon * z + 1 / (2 * z)) / math.sqrt(2)) / 2

    with mpmath.workdps(DIGITS):
        assert any(naive(1e6, k * 1e-6) < exact_delta(1e6, k * 1e-6) * (1 - mpmath.mpf("1e-9")) for k in range(12))
    with pytest.raises(OverflowError):
        naive(0.02, gaussian_epsilon(0.02, 1e-5))


def test_epsilon_falls_with_noise_and_with_delta() -> None:
    by_noise = [gaussian_epsilon(float(z), 1e-6) for z in np.geomspace(1e-3, 1e6, 80)]
    assert by_noise == sorted(by_noise, reverse=True)
    by_delta = [gaussian_epsilon(1.3, float(delta)) for delta in np.geomspace(1e-300, 0.9, 80)]
    assert by_delta == sorted(by_delta, reverse=True)
    # The steps between the ways of computing it leave no jump.
    for edge in (2.0, 1 / 0.5):
        low, high = gaussian_epsilon(edge * (1 - 1e-12), 1e-8), gaussian_epsilon(edge * (1 + 1e-12), 1e-8)
        assert low == pytest.approx(high, rel=1e-11)


def test_known_figures_and_composition() -> None:
    # rho = 0.025, that is z = sqrt(20), at 1e-6.
    assert gaussian_epsilon(math.sqrt(20), 1e-6) == pytest.approx(0.940516, abs=1e-6)
    # Rounds compose to z / sqrt(T): two rounds, integrated over the plane (u, v) of their outcomes.
    z, epsilon = 1.5, 0.7
    grid = np.linspace(-12, 13, 2501)
    moved, still = (np.exp(-((grid - m) ** 2) / (2 * z * z)) / (z * math.sqrt(2 * math.pi)) for m in (1.0, 0.0))
    both = np.multiply.outer(moved, moved) - math.exp(epsilon) * np.multiply.outer(still, still)
    assert np.maximum(both, 0).sum() * 1e-4 == pytest.approx(gaussian_delta(z / math.sqrt(2), epsilon), rel=1e-4)


def test_agreement_with_dp_accounting() -> None:
    accounting = pytest.importorskip("dp_accounting")
    for z in (0.3, 1.0, 5.0, 80.0):
        for delta in (1e-3, 1e-6, 1e-10):
            assert gaussian_epsilon(z, delta) == pytest.approx(accounting.get_epsilon_gaussian(z, delta), rel=1e-6)


def test_renyi_figures_lie_above_the_exact_ones_and_not_far() -> None:
    orders = order_grid()
    for z in (0.2, 1.0, 10.0):
        for delta in (1e-3, 1e-6, 1e-12):
            renyi = rdp_to_epsilon(orders, orders / (2 * z * z), delta)
            exact = gaussian_epsilon(z, delta)
            assert exact <= renyi <= 1.3 * exact


def test_the_conversion_is_no_worse_than_dp_accountings() -> None:
    """On the same orders, for straight and for bent curves; and never below the exact Gaussian."""
    oracle = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    orders = np.concatenate([np.geomspace(1.02, 60, 80), [128.0, 256.0, 1024.0]])
    for z in (0.3, 1.0, 6.0, 50.0):
        for delta in (1e-2, 1e-6, 1e-12):
            for curve in (orders / (2 * z * z), orders / (2 * z * z) + 0.01 * np.sqrt(orders)):
                ours = rdp_to_epsilon(orders, curve, delta)
                theirs, _ = oracle.compute_epsilon(orders, curve, delta)
                assert gaussian_epsilon(z, delta) <= ours <= theirs * (1 + 1e-9)


@pytest.mark.filterwarnings("error")
def test_extremes_stay_on_the_safe_side() -> None:
    tiny = math.nextafter(0.0, 1.0)
    assert gaussian_epsilon(1e-200, 1e-5) == math.inf
    assert gaussian_epsilon(1e200, 1e-5) == 0.0
    assert gaussian_delta(tiny, 0.0) == gaussian_delta(1e-200, 1e300) == 1.0
    assert gaussian_delta(1e200, 1e300) == gaussian_delta(1.0, 1e300) == tiny  # rounded up, never zero
    assert 0 < gaussian_delta(1e200, 0.0) < 1e-199
    assert gaussian_epsilon(1.0, 1e-300) < gaussian_epsilon(1.0, 5e-324) < 40


def test_bad_arguments_are_refused() -> None:
    for z in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="noise multiplier"):
            gaussian_epsilon(z, 1e-5)
        with pytest.raises(ValueError, match="noise multiplier"):
            gaussian_delta(z, 1.0)
    for delta in (0.0, 1.0, -1e-9, math.nan):
        with pytest.raises(ValueError, match="delta"):
            gaussian_epsilon(1.0, delta)
    for epsilon in (-1e-9, math.inf, math.nan):
        with pytest.raises(ValueError, match="epsilon"):
            gaussian_delta(1.0, epsilon)
