"""Clip an update to a Euclidean ball, in floating point.

The bound that privacy rests on is not this one: after rotation and rounding the integer norm is checked
exactly (`mechanisms.rounding`). Clipping only has to bring the vector to where that check passes.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

# A hair below the clip, so that the rounding errors of the rotation (about 1e-15 a step) stay inside it.
_HAIR: Final = 1 - 2.0**-40


def l2_norm(vector: NDArray[np.float64]) -> float:
    """The Euclidean norm of a finite vector (d,), without overflow for entries whose squares overflow."""
    largest = float(np.max(np.abs(vector), initial=0.0))
    if largest == 0.0:
        return 0.0
    if 1e-100 < largest < 1e100:
        return math.sqrt(float(np.dot(vector, vector)))
    scaled = vector / largest
    return largest * math.sqrt(float(np.dot(scaled, scaled)))


def clip_l2(vector: NDArray[np.float64], clip: float) -> NDArray[np.float64]:
    """Scale ``vector`` down to norm at most ``clip``; shorter vectors are returned as they are.

    Args:
        vector: (d,) finite values, data units.
        clip: > 0, data units.

    Returns:
        (d,) with a computed norm of at most ``clip``; the same array if nothing had to be done.
    """
    norm = l2_norm(vector)
    if norm <= clip * _HAIR:
        return vector
    if norm == math.inf:  # entries near the largest double: bring them into range first
        return clip_l2(vector * 2.0**-600, clip)
    return vector / norm * (clip * _HAIR)  # in this order: clip / norm may be too small for full precision
