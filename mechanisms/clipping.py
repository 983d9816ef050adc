"""Clip an update to a Euclidean ball, whole or layer by layer, in floating point.

Privacy does not rest on this bound: after rotation and rounding the integer norm is checked exactly
(`mechanisms.rounding`). Clipping only brings the vector to where that check passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# A hair below the clip, so that the rounding errors of the rotation (about 1e-15 a step) stay inside it.
HAIR: Final = 1 - 2.0**-40


def l2_norm(vector: NDArray[np.float64]) -> float:
    """The Euclidean norm of a vector (d,), also where squares of entries overflow.

    NaN if any entry is, infinite if the norm is beyond the largest double.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.dot(vector, vector))
        # Also where it isn't needed: the time shall not tell a vector of zeros from another.
        largest = float(np.maximum(np.max(vector, initial=0.0), -np.min(vector, initial=0.0)))
    if 1e-200 < square < 1e200:  # nothing overflowed, and squares that underflowed are 1e-100 of the whole
        return math.sqrt(square)
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    scaled = vector / largest
    return largest * math.sqrt(float(np.dot(scaled, scaled)))


def clip_l2(vector: NDArray[np.float64], clip: float) -> NDArray[np.float64]:
    """Scale ``vector``, (d,) in data units, down to a computed norm of at most ``clip`` > 0; return a shorter one
    unchanged.

    Raises ValueError: a value is infinite or not a number.
    """
    norm = _norm_of_finite(vector, "the vector")
    if norm <= clip * HAIR:
        return vector
    if norm == math.inf:  # entries near the largest double: bring them into range first
        return clip_l2(vector * 2.0**-600, clip)
    return vector / norm * (clip * HAIR)  # in this order: clip / norm may be too small for full precision


def layers_in(values: NDArray[Any], sizes: Sequence[int]) -> list[NDArray[Any]]:
    """Views of the layers, one after the other along the last axis."""
    return np.split(values, np.cumsum(sizes)[:-1], axis=-1)


def clip_layers(
    vector: NDArray[np.floating[Any]],
    sizes: Sequence[int],
    clips: Sequence[float],
    scales: Sequence[float],
    out: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Clip each layer to its own ball, then divide it by its own scale.

    Layers hold different coordinates, so the result has norm at most sqrt(sum (clips_l / scales_l)^2): the bound for
    one noise over all layers. Multiplied back, layer l carries scales_l times that noise.

    Args:
        vector: (d,) float16, float32 or float64, finite, data units: the layers one after the other.
        sizes: coordinates of each layer, >= 1, together d.
        clips: > 0, data units, one for each layer.
        scales: > 0, data units per unit of the result, one for each layer.
        out: where the result is written, (d,); None makes a new array.

    Returns (scaled, norms): (d,) float64; and (layers,) float64, the norms before clipping, in data units
    (infinite only beyond the largest double). A layer of zeros stays zero.

    Raises ValueError: lengths that don't match, a clip or scale that is not positive and finite, a quotient of the two
    beyond floating point, or a value that is infinite or not a number.
    """
    _check_layers(vector.shape, sizes, clips, scales)
    scaled = np.empty(vector.shape[0]) if out is None else out
    norms = np.empty(len(sizes))
    layers = zip(layers_in(scaled, sizes), layers_in(vector, sizes), clips, scales, strict=True)
    for index, (layer, given, clip, scale) in enumerate(layers):
        layer[:] = given  # converts block by block, without a copy of the whole
        norms[index] = norm = _norm_of_finite(layer, f"layer {index}")
        _scale_to(layer, norm, clip, scale)
    return scaled, norms


def clip_rows(
    rows: NDArray[np.floating[Any]],
    sizes: Sequence[int],
    clips: Sequence[float],
    scales: Sequence[float],
    out: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(n, d) -> (n, d) and (n, layers): `clip_layers` of each row, up to rounding."""
    _check_layers(rows.shape[1:], sizes, clips, scales)
    scaled = np.empty(rows.shape) if out is None else out
    scaled[:] = rows
    norms = np.empty((len(rows), len(sizes)))
    for index, layer in enumerate(layers_in(scaled, sizes)):
        with np.errstate(over="ignore", invalid="ignore"):
            np.einsum("ij,ij->i", layer, layer, out=norms[:, index])
    ordinary = np.all((norms > 1e-200) & (norms < 1e200)) and all(1e-200 < one < 1e200 for one in (*clips, *scales))
    if not ordinary:
        for row, clipped, norm in zip(rows, scaled, norms, strict=True):
            norm[:] = clip_layers(row, sizes, clips, scales, clipped)[1]
        return scaled, norms
    np.sqrt(norms, out=norms)
    for layer, norm, clip, scale in zip(layers_in(scaled, sizes), norms.T, clips, scales, strict=True):
        layer *= np.where(norm <= clip * HAIR, 1 / scale, clip / scale * HAIR / norm)[:, None]
    return scaled, norms


def _norm_of_finite(vector: NDArray[np.float64], name: str) -> float:
    """The norm, looking at single values only where it says that something may be amiss."""
    norm = l2_norm(vector)
    if math.isnan(norm) or (norm == math.inf and not np.all(np.isfinite(vector))):
        raise ValueError(f"{name} holds NaN or infinite values")
    return norm


def _scale_to(layer: NDArray[np.float64], norm: float, clip: float, scale: float) -> None:
    """Divide ``layer`` of the given norm by ``scale`` in place, after clipping it: in one pass, clipped or not."""
    if norm <= clip * HAIR:
        if 1e-290 < scale < 1e290:
            layer *= 1.0 / scale
        else:
            layer /= scale
        return
    if norm == math.inf:
        layer *= 2.0**-600
        norm = l2_norm(layer)
    target = clip / scale * HAIR
    if 1e-250 < target / norm < 1e250:
        layer *= target / norm  # one pass; three roundings are far below the hair
    else:
        layer /= norm
        layer *= target


def _check_layers(
    shape: tuple[int, ...], sizes: Sequence[int], clips: Sequence[float], scales: Sequence[float]
) -> None:
    if not len(sizes) == len(clips) == len(scales):
        raise ValueError(
            f"{len(sizes)} sizes, {len(clips)} clips and {len(scales)} scales: every layer needs one of each"
        )
    if any(size < 1 for size in sizes):
        raise ValueError("every layer needs a size of at least 1")
    if shape != (sum(sizes),):
        raise ValueError(f"the vector has shape {shape}, the layers' sizes add up to {sum(sizes)}")
    for index, (clip, scale) in enumerate(zip(clips, scales, strict=True)):
        for name, value in (("clip", clip), ("scale", scale)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"layer {index} needs a positive, finite {name}, not {value}")
        if not 1e-280 < clip / scale < 1e280:
            raise ValueError(f"layer {index}: clip / scale = {clip / scale} is outside 1e-280..1e280; change the scale")
