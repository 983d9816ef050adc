"""How much a decoded sum has wrapped, estimated from the sum itself.

A wrapped sum looks like any other: its values fill the range and their sample deviation can't exceed half of it.
But a normal variable of standard deviation s, wrapped on a circle of 2^B, has |E exp(2 pi i X / 2^B)| =
exp(-(2 pi s / 2^B)^2 / 2), wrapped or not: its characteristic function at the one frequency that the wrap leaves
alone. Inverting the sample's value estimates the deviation *before* the wrap. Source: the wrapped normal law,
[MJ00].

The rotation makes coordinates of a block nearly normal around zero with one deviation. Blocks of very different
mass are a mixture, which this would understate in its heaviest part: estimate such blocks one by one.

Nothing here costs privacy: it reads the sum that is published anyway.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

# Uniform values, wrapped many times over, exceed d R^2 = 14 with probability e^-14 = 8e-7.
_SIGNIFICANT: Final = 14.0
_CHUNK: Final = 1 << 15
FEWEST_VALUES: Final = 30
"""Below, the rotation leaves values that aren't normal around zero, and a share is a guess: it should not be shown."""


@dataclass(frozen=True, slots=True)
class WrapEstimate:
    """What the monitor says of one sum. Values as good as uniform have an infinite ``stddev``: the sum is useless then,
    and only a lower bound is known, about 2^B sqrt(ln(d / 14)) / 2 pi.
    """

    stddev: float  # of a coordinate before the wrap, grid units
    share: float  # of the coordinates that lie outside [-2^(B-1), 2^(B-1)) before the wrap; 1 if ``stddev`` is infinite


def estimate_wrapping(centred: NDArray[np.int64], bits: int) -> WrapEstimate:
    """Estimate the deviation of a sum's coordinates before they were reduced mod 2^bits, and the share that wrapped.

    For a deviation far below 2^bits this is the sample deviation. Relative standard error about 1 / sqrt(2 d) there,
    1 % for d = 10^6 at half the modulus (where a third of all coordinates wrap). Fewer than ``FEWEST_VALUES`` tell
    little, and are called beyond estimation only when they are spread all over the circle.

    Args:
        centred: (d,) the sum, each value in [-2^(bits-1), 2^(bits-1)), grid units.
        bits: B in 1..62.

    Raises ValueError: another dtype or shape, no values, ``bits`` out of range, or a value that is not centred.
    """
    if not 1 <= bits <= 62:
        raise ValueError(f"bits must be in 1..62, not {bits}")
    if centred.dtype != np.int64 or centred.ndim != 1 or not centred.size:
        raise ValueError("a centred sum is a non-empty vector of int64")
    half = 1 << (bits - 1)
    if int(centred.min()) < -half or int(centred.max()) >= half:
        raise ValueError(f"a centred sum of {bits} bits has values in [-{half}, {half}); centre it first")
    missing = _missing_length(centred, bits)
    if 1.0 - missing < min(_SIGNIFICANT / centred.size, 0.5):
        return WrapEstimate(math.inf, 1.0)
    stddev = math.sqrt(-math.log1p(-missing)) * 2.0**bits / math.tau
    return WrapEstimate(stddev, math.erfc(half / stddev / math.sqrt(2)) if stddev else 0.0)


def _missing_length(centred: NDArray[np.int64], bits: int) -> float:
    """An unbiased estimate of 1 - |E exp(i theta)|^2, without cancellation for small angles.

    With m = mean sin^2(theta / 2) and S = mean sin(theta), the mean cosine is 1 - 2 m, so 1 - R^2 = 4 m - 4 m^2 - S^2;
    the expectation of R^2 is short of the truth by 1 / d of what is missing.
    """
    squares = products = 0.0
    buffers = np.empty((2, min(centred.size, _CHUNK)))
    for start in range(0, centred.size, _CHUNK):
        values = centred[start : start + _CHUNK]
        sine, cosine = buffers[:, : values.size]
        np.multiply(values, math.pi / 2.0**bits, out=sine)  # theta / 2, within a quarter turn: its cosine is a root
        np.sin(sine, out=sine)
        np.multiply(sine, sine, out=cosine)
        np.subtract(1.0, cosine, out=cosine)
        np.sqrt(cosine, out=cosine)
        squares += float(np.dot(sine, sine))
        products += float(np.dot(sine, cosine))
    half_sine, mean_sine = squares / centred.size, 2 * products / centred.size
    missing = max(0.0, 4 * half_sine * (1 - half_sine) - mean_sine**2)
    return missing * centred.size / max(1, centred.size - 1)
