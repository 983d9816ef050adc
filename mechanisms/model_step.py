"""The change of a model in a round, as integers on a grid: participants that hold the model before need nothing else.

The grid is that of the round: its largest change is 2^19 - 1 steps, so a value moves by up to half a step less or more
than the server optimiser says, a millionth of the largest change. Both sides apply it by the same operations in
float32, one multiplication and one addition for each value, whose results IEEE 754 fixes: the models are equal in every
bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

STEP_BITS: Final = 20
MOST_STEPS: Final = 2 ** (STEP_BITS - 1) - 1


@dataclass(frozen=True)
class ModelStep:
    """Attributes: scale: of one step, in units of the model; steps: (d,) int32, at most `MOST_STEPS` either way."""

    scale: np.float32
    steps: NDArray[np.int32]

    @classmethod
    def between(cls, before: NDArray[np.float32], after: NDArray[np.float32]) -> Self | None:
        """The nearest on the grid; None where the change is no finite number, or too small for a grid."""
        with np.errstate(over="ignore", invalid="ignore"):
            change = after - before
        scale = np.float32(np.abs(change).max(initial=0.0) / MOST_STEPS)
        if not np.isfinite(scale) or scale < np.finfo(np.float32).tiny:
            return None
        steps = np.rint(change / scale).clip(-MOST_STEPS, MOST_STEPS)
        return cls(scale, steps.astype(np.int32))

    def applied(self, before: NDArray[np.float32]) -> NDArray[np.float32]:
        """The next model. ``before``: (d,); raises ValueError: another length."""
        if before.shape != self.steps.shape:
            raise ValueError(f"a step of {self.steps.size} values for a model of {before.size}")
        moved = self.steps.astype(np.float32)
        moved *= self.scale
        moved += before
        return moved
