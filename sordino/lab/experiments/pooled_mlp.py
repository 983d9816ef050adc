"""The perceptron of `learning.tasks.mlp` on images whose pixels are averaged in squares: a few thousand parameters.

For experiments of many runs; its name as a task is ``sordino.lab.experiments.pooled_mlp:PooledMlp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.options import require
from learning.tasks.mlp import Mlp, MlpOptions
from learning.tasks.softmax_regression import pooled_pixels

NAME: Final = "sordino.lab.experiments.pooled_mlp:PooledMlp"


@dataclass(frozen=True, kw_only=True)
class PooledMlpOptions(MlpOptions):
    """Options of the perceptron, with 32 hidden units.

    Attributes:
        pooling: side of the square of pixels averaged into one; 2 gives 14 x 14 = 196 inputs, and with 32 units
            d = 6,634. It divides the side and is smaller.
    """

    hidden: int = 32
    pooling: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.features == 0, "features", self.features, "0: pixels are averaged in images only")
        sides = tuple(side for side in range(1, max(self.side, 2)) if self.side % side == 0)
        require(self.pooling in sides, "pooling", self.pooling, f"one of {sides}")


class PooledMlp(Mlp):
    """Averaged pixels, ``hidden`` rectified units, softmax over the classes."""

    Options: Final = PooledMlpOptions  # type: ignore[misc]  # the task's own, as every task has
    options: PooledMlpOptions

    def __init__(self, options: PooledMlpOptions) -> None:
        super().__init__(options)
        inputs = (options.side // options.pooling) ** 2 * options.channels
        self.contribution_shapes = {**self.contribution_shapes, "hidden_weights": (inputs, options.hidden)}

    def inputs(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Averaged pixels, float32 (n, inputs), spread over [-1, 1]."""
        return pooled_pixels(features, self.options.pooling) * np.float32(2) - np.float32(1)
