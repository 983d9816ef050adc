"""A task without a model: parameters of any dimension, all zeros, that nothing is learnt about.

For load tests, where a round is to be the protocol and nothing else. It looks at no example.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final

import numpy as np

from learning.datasets import Dataset
from learning.options import TaskOptions
from learning.parameters import Parameters, check_shapes
from learning.public_random import Shuffler
from learning.task import ModelTask


@dataclass(frozen=True, kw_only=True)
class SyntheticOptions(TaskOptions):
    """Options of the synthetic task.

    Attributes:
        dim: d, the number of parameters, 1 to 2^28.
    """

    dim: int = 1_000
    ranges: ClassVar = {"dim": (1, 1 << 28)}


class Synthetic(ModelTask):
    """One vector of ``dim`` zeros whose update is zero."""

    Options: Final = SyntheticOptions

    name: Final = "synthetic"

    def __init__(self, options: SyntheticOptions) -> None:
        self.options = options
        self.contribution_shapes = {"vector": (options.dim,)}  # known without making the vector

    def initial_parameters(self) -> Parameters:
        """Return zeros, shape (dim,)."""
        return {"vector": np.zeros(self.options.dim, dtype=np.float32)}

    def local_update(self, parameters: Parameters, data: Dataset, rng: Shuffler, l2_clip: float = inf) -> Parameters:
        """Return zeros, shape (dim,), whatever the examples are.

        Raises ValueError: the parameters' shape doesn't fit.
        """
        check_shapes(parameters, self.contribution_shapes)
        return self.initial_parameters()

    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        """Return accuracy and loss 0: there is nothing to be right about.

        Raises ValueError: the parameters' shape doesn't fit.
        """
        check_shapes(parameters, self.contribution_shapes)
        return {"accuracy": 0.0, "loss": 0.0}
