"""Integer weights against 500-bit references, exact convolutions, and statistics that a wrong sampler fails.

False alarms: every statistical test uses a fixed key, so it passes or fails for good; at a fresh key each
would fail with probability below 1e-6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from mechanisms.discrete_gaussian import (
    LARGEST_VARIANCE,
    SAMPLER_DISTANCE,
    DiscreteGaussian,
    discrete_gaussian,
    gaussian_weights,
)
from mechanisms.lattice_noise import convolution_levels
from mechanisms.randomness import RandomBytes, RandomnessFailed

FALSE_ALARM = 1e-6


def true_weights(variance: Fraction, reach: int) -> list[mpmath.mpf]:
    """exp(-x^2 / 2v) for x = 0..reach at the current precision."""
    v = mpmath.mpf(variance.numerator) / variance.denominator
    return [mpmath.exp(-x * x / (2 * v)) for x in range(reach + 1)]


def distance(law: dict[int, int], variance: Fraction) -> mpmath.mpf:
    """Total variation between integer weights and N_Z(0, variance), at 500 bits."""
    with mpmath.workprec(500):
        reach = max(max(law), math.isqrt(variance.numerator // variance.denominator) * 22 + 22)
        reference = true_weights(variance, reach)
        norm = 2 * mpmath.fsum(reference) - reference[0]
        total = sum(law.values())
        return (
            mpmath.fsum(
                abs(mpmath.mpf(law.get(x, 0)) / total - reference[abs(x)] / norm) for x in range(-reach, reach + 1)
            )
            / 2
        )


def both_sides(half: list[int], step: int) -> dict[int, int]:
    return {sign * y * step: w for y, w in enumerate(half) for sign in (1, -1)}


@pytest.mark.parametrize("variance", ["1/4", "1", "7/3", "314159/65536", "100", "40000"])
def test_weights_are_within_the_stated_distance(variance: str) -> None:
    v = Fraction(variance)
    assert distance(both_sides(gaussian_weights(v, 1), 1), v) <= SAMPLER_DISTANCE / 2**4


def test_double_precision_weights_are_not() -> None:
    v = Fraction(7, 3)
    naive = [int(math.exp(-y * y / (2 * float(v))) * 2**256) for y in range(23)]
    assert distance(both_sides(naive, 1), v) > SAMPLER_DISTANCE * 2**60


@pytest.mark.parametrize(("stddev", "widest", "levels"), [(60, 20.0, 2), (150, 20.0, 2), (250, 15.0, 3)])
def test_forced_convolutions_are_within_the_stated_distance(stddev: int, widest: float, levels: int) -> None:
    variance = Fraction(stddev**2)
    parts = convolution_levels(variance, widest)
    assert len(parts) == levels
    assert sum(v for v, _ in parts) == variance
    law = {0: 1}
    for v, step in parts:
        part = both_sides(gaussian_weights(v, step), step)
        # Long convolution as one product of big integers: 1,024 bits hold each coefficient.
        low, width = min(law), 1024
        a = sum(w << width * (x - low) for x, w in law.items())
        b = sum(w << width * (x - min(part)) for x, w in part.items())
        raw = (a * b).to_bytes(width // 8 * (max(law) - low + max(part) - min(part) + 2), "little")
        law = {
            low + min(part) + i: w
            for i in range(len(raw) * 8 // width)
            if (w := int.from_bytes(raw[i * width // 8 : (i + 1) * width // 8], "little"))
        }
        shift = max(0, max(law.values()).bit_length() - 400)  # keep the product below its 1,024 bits
        law = {x: w >> shift for x, w in law.items()}
    assert distance(law, variance) <= SAMPLER_DISTANCE


@pytest.mark.parametrize("stddev", [10**3, 10**4, 10**5, 10**6])
def test_wide_laws_are_right_at_each_point(stddev: int) -> None:
    """Pointwise, relative to the true probability: a cut that is absolute instead of relative shows here."""
    variance = Fraction(stddev**2)
    parts = [(gaussian_weights(v, step), step) for v, step in convolution_levels(variance)]
    norm = math.prod(2 * sum(half) - half[0] for half, _ in parts)

    def weight(x: int, level: int) -> int:
        half, step = parts[level]
        if level == 0:
            return half[abs(x)] if abs(x) < len(half) else 0
        below = sum((len(h) - 1) * s for h, s in parts[:level])
        y_low = max(-(len(half) - 1), -((below - x) // step))
        y_high = min(len(half) - 1, (x + below) // step)
        return sum(half[abs(y)] * weight(x - step * y, level - 1) for y in range(y_low, y_high + 1))

    with mpmath.workprec(500):
        v = mpmath.mpf(stddev) ** 2
        # Poisson summation: the normalising sum is sqrt(2 pi v) up to exp(-2 pi^2 v), nothing at this width.
        for x in (0, 1, 3 * stddev + 1, 6 * stddev):
            truth = mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * v)) / mpmath.sqrt(2 * mpmath.pi * v)
            got = mpmath.mpf(weight(x, len(parts) - 1)) / norm
            assert abs(got / truth - 1) < mpmath.mpf(2) ** -140


def pooled_chi_square(sample: np.ndarray, variance: float) -> float:
    """p-value of ``sample`` against N_Z(0, variance); bins pooled to at least 50 expected."""
    from scipy import stats

    reach = int(12 * math.sqrt(variance)) + 12
    x = np.arange(-reach, reach + 1)
    p = np.exp(-(x**2) / (2 * variance))
    p /= p.sum()
    seen = np.bincount(np.clip(sample, -reach, reach) + reach, minlength=x.size)
    edges, running = [0], 0.0
    for i, expected in enumerate(p * sample.size):
        running += expected
        if running >= 50:
            edges.append(i + 1)
            running = 0.0
    edges = edges[:-1] if running and len(edges) > 2 else edges
    expected = np.add.reduceat(p * sample.size, edges)
    observed = np.add.reduceat(seen, edges)
    if expected[-1] == 0:
        expected, observed = expected[:-1], observed[:-1]
    return float(stats.chi2.sf(np.sum((observed - expected) ** 2 / expected), expected.size - 1))


def moments(sample: np.ndarray, variance: float) -> list[float]:
    """z-scores of mean, variance, lag-1 correlation and the mass beyond 3 sd."""
    x, n = sample.astype(np.float64), sample.size
    far = 2 * sum(
        math.exp(-(k**2) / (2 * variance)) for k in range(int(3 * variance**0.5) + 1, int(20 * variance**0.5) + 20)
    )
    far /= 1 + 2 * sum(math.exp(-(k**2) / (2 * variance)) for k in range(1, int(20 * variance**0.5) + 20))
    beyond = int(np.sum(np.abs(sample) > 3 * variance**0.5))
    return [
        float(x.mean()) / math.sqrt(variance / n),
        (float(np.mean(x * x)) / variance - 1) / math.sqrt(2 / n),
        float(np.mean(x[1:] * x[:-1])) / variance * math.sqrt(n),
        (beyond - n * far) / math.sqrt(n * far),
    ]


def sample_of(sampler: DiscreteGaussian, size: int, source: RandomBytes) -> np.ndarray:
    x = np.zeros(size, np.int64)
    sampler.add(x, source)
    return x


# 4.9 standard deviations: two-sided 1e-6.
LARGEST_Z = 4.9


@pytest.mark.parametrize("variance", ["1", "314159/65536", "100", "40000", "1000000"])
def test_samples_follow_the_law(variance: str, keyed: Callable[[str], RandomBytes]) -> None:
    v = Fraction(variance)
    sample = sample_of(DiscreteGaussian(v), 1 << 21, keyed(f"law {variance}"))
    assert pooled_chi_square(sample, float(v)) > FALSE_ALARM
    assert max(map(abs, moments(sample, float(v)))) < LARGEST_Z


def test_a_rounded_normal_fails_the_same_tests() -> None:
    sample = np.rint(np.random.default_rng(1).normal(size=1 << 21)).astype(np.int64)
    assert pooled_chi_square(sample, 1.0) < FALSE_ALARM
    assert max(map(abs, moments(sample, 1.0))) > LARGEST_Z


def test_a_deviation_one_percent_off_fails_the_same_tests(keyed: Callable[[str], RandomBytes]) -> None:
    for factor in ("0.99", "1.01"):
        sample = sample_of(DiscreteGaussian(100 * Fraction(factor) ** 2), 1 << 21, keyed(f"off {factor}"))
        assert pooled_chi_square(sample, 100.0) < FALSE_ALARM
        assert max(map(abs, moments(sample, 100.0))) > LARGEST_Z


def test_variance_taken_for_deviation_fails(keyed: Callable[[str], RandomBytes]) -> None:
    sample = sample_of(DiscreteGaussian(Fraction(10)), 1 << 18, keyed("mix-up"))
    assert pooled_chi_square(sample, 100.0) < FALSE_ALARM


def test_noise_is_added_and_never_repeats(keyed: Callable[[str], RandomBytes]) -> None:
    sampler = DiscreteGaussian(Fraction(10**4))
    source = keyed("repeat")
    start = np.arange(70_000, dtype=np.int64) * 1000
    first, second = start.copy(), start.copy()
    sampler.add(first, source)
    sampler.add(second, source)
    assert not np.array_equal(first, second)
    assert np.max(np.abs(first - start)) <= sampler.reach
    again = start.copy()
    sampler.add(again, keyed("repeat"))
    assert np.array_equal(first, again)
    # Blocks draw on one stream: the second block does not repeat the first.
    noise = first - start
    assert not np.array_equal(noise[:4464], noise[65536:70_000])


def test_the_support_fits_its_words() -> None:
    for variance in (Fraction(1, 4), Fraction(512**2), Fraction(10**12)):
        assert DiscreteGaussian(variance).reach <= 15 * math.sqrt(variance) + 16
    widest = convolution_levels(Fraction(LARGEST_VARIANCE))
    assert 14.5 * math.sqrt(widest[-1][0]) < 2**31


def test_bad_input_is_refused(keyed: Callable[[str], RandomBytes]) -> None:
    for variance in (Fraction(0), Fraction(-1), Fraction(LARGEST_VARIANCE + 1), 1.0, 4):
        with pytest.raises(ValueError):
            DiscreteGaussian(variance)  # type: ignore[arg-type]
    sampler = DiscreteGaussian(Fraction(1))
    for x in (np.zeros(4), np.zeros(4, np.int32), np.zeros((2, 2), np.int64), np.zeros(8, np.int64)[::2]):
        with pytest.raises(ValueError):
            sampler.add(x, keyed("bad"))  # type: ignore[arg-type]
    with pytest.raises(RandomnessFailed):
        sampler.add(np.zeros(4, np.int64), lambda n: b"")
    sampler.add(np.zeros(0, np.int64), keyed("empty"))


def test_the_sampler_is_built_once_per_variance() -> None:
    assert discrete_gaussian(Fraction(5)) is discrete_gaussian(Fraction(10, 2))
