"""What the tests of both noise laws share: references of 500 bits, laws read off arrays, statistics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np

from mechanisms.lattice_noise import LatticeNoise
from mechanisms.noise_table import CELLS, NoiseTable
from mechanisms.randomness import RandomBytes

Law = dict[int, int]
"""Integer weights by value, not normalised."""
Reference = Callable[[Fraction, int], list[mpmath.mpf]]
"""(variance, reach) -> probabilities, up to a common factor, of 0..reach at the current precision."""


def gaussian_reference(variance: Fraction, reach: int) -> list[mpmath.mpf]:
    v = mpmath.mpf(variance.numerator) / variance.denominator
    return [mpmath.exp(-x * x / (2 * v)) for x in range(reach + 1)]


def skellam_reference(variance: Fraction, reach: int) -> list[mpmath.mpf]:
    """I_x(v) up to a factor, by Miller's backward recurrence I_{x-1} = I_{x+1} + (2 x / v) I_x from far out.

    Another way than that of the code under test, which sums cosines. All terms are positive, so it is stable; the
    arbitrary start is forgotten like the squared ratio of the probabilities there and here. `test_skellam` holds it
    against mpmath's own Bessel functions.
    """
    v = mpmath.mpf(variance.numerator) / variance.denominator
    bessel = [mpmath.mpf(0)] * reach + [mpmath.mpf(1), mpmath.mpf(0)]
    for x in range(reach, 0, -1):
        bessel[x - 1] = bessel[x + 1] + 2 * x / v * bessel[x]
    return bessel[:-1]


def both_sides(half: list[int], step: int = 1) -> Law:
    return {sign * y * step: w for y, w in enumerate(half) for sign in (1, -1)}


def distance(law: Law, reference: Reference, variance: Fraction) -> mpmath.mpf:
    """Total variation between integer weights and the true law of ``variance``, at 500 bits."""
    with mpmath.workprec(500):
        reach = max(max(law), math.isqrt(variance.numerator // variance.denominator) * 22) + 60
        truth = reference(variance, reach)
        norm = 2 * mpmath.fsum(truth) - truth[0]
        total = sum(law.values())
        gaps = (abs(mpmath.mpf(law.get(x, 0)) / total - truth[abs(x)] / norm) for x in range(-reach, reach + 1))
        return mpmath.fsum(gaps) / 2


def convolve(one: Law, other: Law) -> Law:
    """The exact law of a sum, cut to 400 bits: one product of big integers, 1,024 bits for each coefficient."""
    width, low, shift = 1024, min(one) + min(other), max(one) - min(one) + max(other) - min(other)
    a = sum(w << width * (x - min(one)) for x, w in one.items())
    b = sum(w << width * (x - min(other)) for x, w in other.items())
    raw = (a * b).to_bytes(width // 8 * (shift + 1), "little")
    size = width // 8
    found = {low + i: int.from_bytes(raw[i * size : (i + 1) * size], "little") for i in range(shift + 1)}
    excess = max(0, max(found.values()).bit_length() - 400)
    return {x: w >> excess for x, w in found.items() if w}


def probability(parts: list[tuple[list[int], int]], x: int) -> Fraction:
    """P[sum of the levels = x], exactly; levels are (weights, step), the lowest first."""

    def weight(x: int, level: int) -> int:
        half, step = parts[level]
        if level == 0:
            return half[abs(x)] if abs(x) < len(half) else 0
        below = sum((len(h) - 1) * s for h, s in parts[:level])
        y_low = max(-(len(half) - 1), -((below - x) // step))
        y_high = min(len(half) - 1, (x + below) // step)
        return sum(half[abs(y)] * weight(x - step * y, level - 1) for y in range(y_low, y_high + 1))

    return Fraction(weight(x, len(parts) - 1), math.prod(2 * sum(half) - half[0] for half, _ in parts))


def law_of(table: NoiseTable) -> dict[int, Fraction]:
    """The output law that a table's arrays imply, given uniform words."""
    law: Counter[int] = Counter()
    mass = Fraction(1)
    for cells, full in table.lookups:
        for value, count in Counter(cells[:full].tolist()).items():
            law[value] += mass * Fraction(count, CELLS)
        mass *= Fraction(CELLS - full, CELLS)
    if mass:
        for value, (before, after) in zip(table.values.tolist(), pairwise([0, *table.cumulative]), strict=True):
            law[value] += mass * Fraction(after - before, table.cumulative[-1])
    return {value: p for value, p in law.items() if p}


def exact_law(half: list[int], step: int) -> dict[int, Fraction]:
    total = 2 * sum(half) - half[0]
    return {sign * y * step: Fraction(w, total) for y, w in enumerate(half) for sign in ((1, -1) if y else (1,)) if w}


# ------------------------------------------------------------------------------------------------ statistics

FALSE_ALARM = 1e-6
LARGEST_Z = 4.9  # two-sided 1e-6


def sample_of(sampler: LatticeNoise, size: int, source: RandomBytes) -> np.ndarray:
    x = np.zeros(size, np.int64)
    sampler.add(x, source)
    return x


def chi_square(sample: np.ndarray, pmf: np.ndarray) -> float:
    """p-value of ``sample`` against probabilities of 0, 1, ..., reach (mirrored); bins pooled to >= 50 expected."""
    from scipy import stats

    reach = pmf.size - 1
    p = np.concatenate([pmf[:0:-1], pmf])
    p = p / p.sum() * sample.size
    seen = np.bincount(np.clip(sample, -reach, reach) + reach, minlength=p.size)
    left = p.sum() - np.cumsum(p)
    edges, running = [0], 0.0
    for i, expected in enumerate(p):
        running += expected
        if running >= 50 and left[i] >= 50:
            edges.append(i + 1)
            running = 0.0
    expected, observed = np.add.reduceat(p, edges), np.add.reduceat(seen, edges)
    return float(stats.chi2.sf(np.sum((observed - expected) ** 2 / expected), expected.size - 1))


def z_scores(sample: np.ndarray, pmf: np.ndarray) -> list[float]:
    """Mean, variance, lag-1 correlation and the mass beyond 3 standard deviations, against ``pmf`` as above."""
    values = np.arange(pmf.size)
    p = pmf / (2 * pmf.sum() - pmf[0])
    second, fourth = 2 * float(p @ values**2.0), 2 * float(p @ values**4.0)
    far = 2 * float(p[values > 3 * second**0.5].sum())
    x, n = sample.astype(np.float64), sample.size
    beyond = int(np.sum(np.abs(sample) > 3 * second**0.5))
    return [
        float(x.mean()) / math.sqrt(second / n),
        (float(np.mean(x * x)) - second) / math.sqrt((fourth - second**2) / n),
        float(np.mean(x[1:] * x[:-1])) / second * math.sqrt(n),
        (beyond - n * far) / math.sqrt(n * far),
    ]
