"""Model parameters as named arrays, and as the one flat vector that is clipped, encoded and summed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Parameters: TypeAlias = dict[str, NDArray[np.float32]]
"""Ordered: the order of the names is the order of the flat vector."""

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
Floats: TypeAlias = NDArray[np.floating[Any]]


def shapes_of(parameters: Parameters) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array, in the order of the flat vector."""
    return {name: tuple(array.shape) for name, array in parameters.items()}


def dimension(shapes: Shapes) -> int:
    """Return d, the length of the flat vector."""
    return sum(layers_of(shapes))


def layers_of(shapes: Shapes) -> list[int]:
    """Return the size of each array, in the order of the flat vector."""
    return [math.prod(shape) for shape in shapes.values()]


def flatten(parameters: Parameters) -> NDArray[np.float32]:
    """Concatenate all arrays, each in C order, into a new float32 vector (d,)."""
    if not parameters:
        return np.zeros(0, dtype=np.float32)
    return np.concatenate([np.asarray(array, dtype=np.float32).reshape(-1) for array in parameters.values()])


def flatten_contribution(contribution: Parameters, shapes: Shapes) -> NDArray[np.float32]:
    """As ``flatten``, for the result of a task's ``local_update``: a vector has no names.

    Args:
        contribution: any real dtype.
        shapes: the task's ``contribution_shapes``.

    Raises ValueError: no dict of arrays, or other names, another order or other shapes: in the sum it would change the
    wrong values.
    """
    if not isinstance(contribution, Mapping):
        kind = type(contribution).__name__
        raise ValueError(f"local_update returns {kind}; it must return {described(shapes)}, in a dict")
    for name, array in contribution.items():
        if not isinstance(array, np.ndarray | np.generic):
            raise ValueError(f"local_update gives {name!r} as {type(array).__name__}; it must be an array of numpy")
    found = {name: tuple(array.shape) for name, array in contribution.items()}
    stated = {name: tuple(shape) for name, shape in shapes.items()}
    if list(found.items()) != list(stated.items()):
        raise ValueError(f"local_update returns {described(found)}; it must return {described(stated)}, in that order")
    return flatten(contribution)


def described(shapes: Shapes) -> str:
    """Names and shapes for a message: ``weights [28], bias [1]``."""
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items()) or "nothing"


def unflatten(vector: ArrayLike, shapes: Shapes) -> Parameters:
    """Cut a flat vector into named arrays; the inverse of ``flatten``.

    Args:
        vector: (d,), any real dtype; values pass through as they are, NaN and infinity included.
        shapes: name to shape, as ``shapes_of`` gives them.

    Returns new float32 arrays that share no memory with ``vector``.

    Raises ValueError: the vector is not one-dimensional or its length is not the sum of the sizes.
    """
    flat = np.asarray(vector)
    expected = dimension(shapes)
    if flat.shape != (expected,):
        raise ValueError(f"the vector has shape {flat.shape}; these parameters need ({expected},)")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, and is seen as such
        return views(flat.astype(np.float32, copy=True), shapes, writable=True)


def views(vector: NDArray[np.float32], shapes: Shapes, *, writable: bool = False) -> Parameters:
    """Named arrays that look into a flat float32 vector (d,), without copying it.

    They are read-only, except for torch, which accepts no read-only arrays: its callers must not write to them.
    """
    locked = vector.view()
    locked.setflags(write=writable)
    parts = np.split(locked, np.cumsum(layers_of(shapes)))[:-1]
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def check_shapes(parameters: Parameters, shapes: Shapes) -> None:
    """Raise ``ValueError`` unless names, their order, shapes and dtype are exactly those expected."""
    if list(parameters) != list(shapes):
        raise ValueError(f"the model has parameters {list(parameters)}; expected {list(shapes)}")
    for name, shape in shapes.items():
        array = parameters[name]
        if array.dtype != np.float32 or array.shape != tuple(shape):
            raise ValueError(f"parameter {name!r} is {array.dtype}{list(array.shape)}; expected float32{list(shape)}")
