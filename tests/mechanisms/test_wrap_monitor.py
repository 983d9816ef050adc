"""The monitor recovers the deviation before the wrap; the sample deviation of what is seen does not.

Seeds are fixed: no test can fail by chance. The rates stated are those of fresh seeds.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechanisms.wrap_monitor import WrapEstimate, estimate_wrapping

DIM = 1 << 18


def unwrapped(stddev: float, dim: int = DIM, mean: float = 0.0) -> np.ndarray:
    return np.rint(np.random.default_rng(dim).normal(mean, stddev, dim)).astype(np.int64)


def wrap(values: np.ndarray, bits: int) -> np.ndarray:
    half = np.int64(1 << (bits - 1))
    return ((values + half) & np.int64((1 << bits) - 1)) - half


def standard_error(fraction: float, dim: int) -> float:
    """Relative, of the estimate for a deviation of ``fraction`` moduli: delta method on R, whose variance is
    (1 - rho^2)^2 / 2 d for rho = E cos."""
    s = math.tau * fraction
    rho = math.exp(-s * s / 2)
    return (1 - rho**2) / math.sqrt(2 * dim) / (rho * s * s)


@pytest.mark.parametrize("bits", [10, 16, 40, 62])
@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.2, 0.3, 0.4, 0.45])
def test_the_deviation_before_the_wrap_comes_back(bits: int, fraction: float) -> None:
    """Within five standard errors, 6e-7 each for fresh seeds; rounding to the grid adds 1/12 to the variance."""
    stddev = fraction * 2.0**bits
    # At 62 bits some products overflow, by multiples of 2^64: nothing that the wrap would not remove.
    values = unwrapped(stddev) if bits < 60 else unwrapped(stddev / 16) * 16
    estimate = estimate_wrapping(wrap(values, bits), bits)
    assert math.isfinite(estimate.stddev)
    allowed = 5 * standard_error(fraction, DIM)
    assert abs(estimate.stddev / math.sqrt(stddev**2 + 1 / 12) - 1) < allowed


@pytest.mark.parametrize("fraction", [0.15, 0.2, 0.3, 0.4])
def test_the_share_outside_is_the_one_counted_before_the_wrap(fraction: float) -> None:
    """Five standard errors of the count and five of the estimate."""
    bits = 16
    values = unwrapped(fraction * 2**bits)
    counted = np.mean((values < -(1 << 15)) | (values >= 1 << 15))
    estimate = estimate_wrapping(wrap(values, bits), bits)
    reach = 0.5 / fraction  # of the range, in standard deviations
    slope = 2 * reach * math.exp(-(reach**2) / 2) / math.sqrt(math.tau)  # d share / d ln stddev
    allowed = 5 * math.sqrt(counted / DIM) + 5 * slope * standard_error(fraction, DIM)
    assert abs(estimate.share - counted) < allowed < counted / 2


def test_the_sample_deviation_misses_heavy_wrapping() -> None:
    """The naive monitor. A uniform sum has 2^B / sqrt(12) = 0.289 moduli, and so does anything wrapped heavily."""
    bits = 16
    for fraction in (0.3, 0.4, 0.45):
        seen = wrap(unwrapped(fraction * 2**bits), bits)
        assert seen.std() < 0.9 * fraction * 2**bits
        assert seen.std() < 0.29 * 2**bits
        assert estimate_wrapping(seen, bits).stddev == pytest.approx(fraction * 2**bits, rel=0.05)


@pytest.mark.parametrize("fraction", [0.7, 1.0, 5.0, 1000.0])
def test_uniform_values_are_beyond_estimation(fraction: float) -> None:
    """R^2 would have to exceed 14 / d by chance: 8e-7 for fresh seeds."""
    estimate = estimate_wrapping(wrap(unwrapped(fraction * 2**16), 16), 16)
    assert estimate == WrapEstimate(math.inf, 1.0)


def test_below_the_modulus_it_is_the_sample_deviation() -> None:
    """To many digits even for angles near 1e-12, where 1 - cos would be nothing but rounding."""
    for bits, stddev in ((20, 300.0), (40, 300.0), (62, 1000.0), (62, 2.0)):
        values = unwrapped(stddev, 1000)
        estimate = estimate_wrapping(values, bits)
        assert estimate.stddev == pytest.approx(np.std(values, ddof=1), rel=1e-6)
        assert estimate.share < 1e-300


def test_a_mean_is_not_taken_for_spread() -> None:
    values = unwrapped(500.0, mean=5000.0)
    assert estimate_wrapping(wrap(values, 16), 16).stddev == pytest.approx(values.std(), rel=0.01)


def test_few_and_constant_values() -> None:
    assert estimate_wrapping(np.zeros(5, np.int64), 8) == WrapEstimate(0.0, 0.0)
    assert estimate_wrapping(np.array([-128], np.int64), 8) == WrapEstimate(0.0, 0.0)
    few = estimate_wrapping(np.array([3, -4, 1, 0, -2, 5], np.int64), 8)
    assert 2 < few.stddev < 6
    assert math.isinf(estimate_wrapping(np.arange(-128, 128), 8).stddev)
    assert math.isinf(estimate_wrapping(np.array([-1, 0] * 50, np.int64), 1).stddev)


def test_the_order_of_chunks_does_not_matter() -> None:
    values = wrap(unwrapped(0.25 * 2**16, 100_001), 16)
    forward, backward = estimate_wrapping(values, 16), estimate_wrapping(values[::-1], 16)
    assert forward.stddev == pytest.approx(backward.stddev, rel=1e-12)


@pytest.mark.parametrize(
    ("values", "bits", "message"),
    [
        (np.zeros(4, np.int64), 0, "bits must be in 1..62"),
        (np.zeros(4, np.int64), 63, "bits must be in 1..62"),
        (np.zeros(0, np.int64), 8, "non-empty"),
        (np.zeros((2, 2), np.int64), 8, "vector of int64"),
        (np.zeros(4, np.uint16), 8, "vector of int64"),
        (np.zeros(4), 8, "vector of int64"),
        (np.array([0, 128]), 8, "centre it first"),
        (np.array([0, -129]), 8, "centre it first"),
    ],
)
def test_bad_sums_are_refused(values: np.ndarray, bits: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        estimate_wrapping(values, bits)
