"""Tasks whose training, if there is any, another program does: parameters of any dimension, first zeros.

`Synthetic` is for load tests, where a round is to be the protocol and nothing else. The learner and the training of
`External` are another program's, such as a Flower ClientApp; `sordino.flower` brings them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from learning.datasets import Dataset
from learning.learner import Learner
from learning.options import TaskOptions
from learning.parameters import Parameters, check_shapes
from learning.public_random import Shuffler
from learning.server_optimizers import ServerOptimizer
from learning.task import ModelTask

Vector = NDArray[np.float32]
BOUND: Final = 32
"""Values after the model's: what else participants are given to train with, as bytes of a SHA-256."""


@dataclass(frozen=True, kw_only=True)
class SyntheticOptions(TaskOptions):
    """Options of the synthetic task.

    Attributes:
        dim: d, the number of parameters, 1 to 2^28.
    """

    dim: int = 1_000
    _ranges: ClassVar = {"dim": (1, 1 << 28)}


class Synthetic(ModelTask):
    """One vector of ``dim`` zeros whose update is zero."""

    Options: Final = SyntheticOptions

    name: Final = "synthetic"

    def __init__(self, options: SyntheticOptions) -> None:
        self.options = options
        self.contribution_shapes = {"vector": (options.dim,)}  # known without making the vector

    def initial_parameters(self) -> Parameters:
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


class External(Synthetic):
    """One vector of ``dim`` values, which `train` changes, and a digest that all participants must agree on.

    Attributes:
        train: given a model (dim,), returns the model after training; a participant sets it.
        learns: the coordinator's half; a coordinator sets it.
    """

    judged = ()  # the other program evaluates
    name: Final = "external"  # type: ignore[misc]  # another name for the same form

    def __init__(self, options: SyntheticOptions) -> None:
        super().__init__(options)
        self.train: Callable[[Vector], Vector] | None = None
        self.learns: Learner | None = None

    def initial_parameters(self) -> Parameters:
        return super().initial_parameters() | {"bound": np.zeros(BOUND, np.float32)}

    def local_update(self, parameters: Parameters, data: Dataset, rng: Shuffler, l2_clip: float = inf) -> Parameters:
        """Return by how much training changes the parameters, shape (dim,).

        Raises ValueError: the parameters' shape doesn't fit, or nobody trains here.
        """
        check_shapes({"vector": parameters["vector"]}, self.contribution_shapes)
        if self.train is None:
            raise ValueError("the task external is trained by another program: see docs/flower.md")
        begun: Any = parameters["vector"]
        return {"vector": self.train(begun) - begun}

    def learner(self, optimizer: ServerOptimizer, data: Dataset) -> Learner:
        return super().learner(optimizer, data) if self.learns is None else self.learns

    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        return {}


def bound(digest: bytes) -> Vector:
    """(32,) the bytes of a digest as the values that end a model."""
    return np.frombuffer(digest, np.uint8).astype(np.float32)
