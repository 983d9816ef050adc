"""Noise: nanoseconds a sample, and what building the sampler takes once in a process."""

from __future__ import annotations

import math
import os
import time
from fractions import Fraction
from typing import Any, Final

import numpy as np

from mechanisms.discrete_gaussian import gaussian_weights
from mechanisms.lattice_noise import LARGEST_VARIANCE, LatticeNoise, Weights
from mechanisms.skellam import skellam_weights
from sordino.lab.bench.timing import spread

LAWS: Final[dict[str, Weights]] = {"gaussian": gaussian_weights, "skellam": skellam_weights}
LARGEST_DIM = 1 << 28  # 2 GB of integers
NARROWEST = 0.1  # below, hardly any draw differs from 0


def run(law: str, stddev: float, dim: int, runs: int = 7) -> dict[str, Any]:
    """Draw vectors from the sampler that clients use.

    Args:
        law: one of `LAWS`.
        stddev: of one coordinate, in grid steps.

    Returns:
        figures under the names of `sordino bench noise --json`. ``stddev_seen`` is that of all draws; ``law_ok`` tells
        whether mean and variance lie within six standard errors of the law's. Tests hold the law itself.

    Raises ValueError: an argument lies outside its range.
    """
    if law not in LAWS:
        raise ValueError(f"--law takes {', '.join(LAWS)}, not {law!r}")
    if not 1 <= dim <= LARGEST_DIM:
        raise ValueError(f"--dim must lie between 1 and {LARGEST_DIM}, not {dim}")
    if not NARROWEST <= stddev <= math.sqrt(LARGEST_VARIANCE):
        raise ValueError(f"--stddev must lie between {NARROWEST:g} and 2^27, not {stddev:g}")
    began = time.process_time()
    sampler = LatticeNoise(Fraction(stddev) ** 2, LAWS[law])
    setup_ms = 1e3 * (time.process_time() - began)
    vector = np.zeros(dim, dtype=np.int64)

    def draw() -> None:
        sampler.add(vector, os.urandom)

    times = spread(draw, runs, 1e9 / dim)
    vector[:] = 0
    draw()
    variance = float(np.mean(np.square(vector.astype(np.float64))))
    expected, kurtosis = _moments(law, stddev)
    mean_ok = abs(float(vector.mean())) <= 6 * math.sqrt(expected / dim)
    variance_ok = abs(variance / expected - 1) <= 6 * math.sqrt((kurtosis - 1) / dim)
    return {
        "law": law,
        "stddev": stddev,
        "dim": dim,
        "ns_per_sample": times.median,
        "ns_per_sample_spread": times.to_json(),
        "setup_ms": setup_ms,
        "stddev_seen": math.sqrt(variance),
        "law_ok": mean_ok and variance_ok,
    }


def _moments(law: str, stddev: float) -> tuple[float, float]:
    """Variance and kurtosis of the law: for narrow ones the kurtosis isn't 3, nor, of the discrete Gaussian, the
    variance the parameter's square."""
    if law == "skellam":
        return stddev**2, 3.0 + stddev**-2
    if stddev > 8:
        return stddev**2, 3.0
    values = np.arange(-12 * math.ceil(stddev), 12 * math.ceil(stddev) + 1, dtype=np.float64)
    weights = np.exp(-(values**2) / (2 * stddev**2))
    weights /= weights.sum()
    variance = float(weights @ values**2)
    return variance, float(weights @ values**4) / variance**2
