"""Flower's arrays as one vector of float32, and back."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

Vector = NDArray[np.float32]


def check_arrays(arrays: ArrayRecord) -> None:
    """Raises ValueError: one of them isn't of floats, so that no mean of updates fits it."""
    other = [name for name, one in arrays.items() if not np.issubdtype(np.dtype(one.dtype), np.floating)]
    if other:
        raise ValueError(
            f"the model's array {other[0]} has no floats, and only floats can be averaged with noise: leave it out of "
            "the ArrayRecord, or use layers without counters, such as GroupNorm for BatchNorm"
        )


def to_vector(arrays: ArrayRecord) -> Vector:
    """(d,) all values, array after array in the record's order."""
    return np.concatenate([one.numpy().astype(np.float32, copy=False).reshape(-1) for one in arrays.values()])


def to_arrays(vector: Vector, like: ArrayRecord) -> ArrayRecord:
    """The inverse of `to_vector`, with the names, shapes and types of ``like``."""
    made, at = {}, 0
    for name, one in like.items():
        size = int(np.prod(one.shape, dtype=np.int64))
        made[name] = Array(vector[at : at + size].reshape(one.shape).astype(one.dtype))
        at += size
    return ArrayRecord(made)


def same_form(arrays: ArrayRecord, like: ArrayRecord) -> bool:
    """Whether they have the same names, in the same order, and shapes."""
    return [(name, tuple(one.shape)) for name, one in arrays.items()] == [
        (name, tuple(one.shape)) for name, one in like.items()
    ]
