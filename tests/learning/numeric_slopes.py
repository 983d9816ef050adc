"""Slopes by differences, against which gradients are held."""

from collections.abc import Callable, Mapping

import numpy as np


def slope_of(
    loss: Callable[[dict[str, np.ndarray]], float],
    model: Mapping[str, np.ndarray],
    name: str,
    place: tuple[int, ...],
    step: float = 1e-5,
) -> float:
    """Of a loss by one value of a model, to second order in ``step``."""
    ends = []
    for sign in (1, -1):
        moved = {key: array.copy() for key, array in model.items()}
        moved[name][place] += sign * step
        ends.append(loss(moved))
    return (ends[0] - ends[1]) / (2 * step)
