"""Regression on rows of numbers, in numpy: a line, or a network with one hidden layer, under a bounded loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from learning.datasets import Dataset
from learning.options import SEEDS, TrainingOptions, require
from learning.parameters import Floats, Parameters
from learning.tasks.inputs import MOST_FEATURES, check_examples
from learning.tasks.mlp import Perceptron, perceptron_shapes
from learning.tasks.numpy_task import averaged


@dataclass(frozen=True, kw_only=True)
class RegressionOptions(TrainingOptions):
    """Options of a regression, besides those of training.

    Attributes:
        features: numbers in one example, taken as they are: scale them by public constants to about -1 to 1.
        low, high: public bounds of a label, in its unit; a label beyond counts as the bound when training.
        hidden: units of a hidden layer; 0: predictions are linear in the features.
        initial_seed: of the initial weights of a network.
    """

    client_rate: float = 0.05
    features: int = 1
    low: float = 0.0
    high: float = 1.0
    hidden: int = 0
    initial_seed: int = 0
    _ranges: ClassVar = {"features": (1, MOST_FEATURES), "hidden": (0, 4_096), "initial_seed": SEEDS}

    def __post_init__(self) -> None:
        super().__post_init__()
        require(math.isfinite(self.low), "low", self.low, "finite")
        require(self.low < self.high < math.inf, "high", self.high, f"finite and above low, which is {self.low:g}")

    @property
    def example_shape(self) -> tuple[int, ...]:
        return (self.features,)

    def _left_out(self) -> set[str]:
        return super()._left_out() | (set() if self.hidden else {"initial_seed"})


class Regression(Perceptron):
    """Predicts labels, which the model sees scaled from ``low``..``high`` to -1..1; zeros predict the middle.

    The loss is Huber's, with its bend at 1, half the label's range: r^2 / 2 for an error |r| <= 1, else |r| - 1/2. So
    one example moves a step of the linear model by at most client_rate x ||(x, 1)||, whatever its label.
    """

    Options: Final = RegressionOptions
    options: RegressionOptions

    name: Final = "regression"
    judged = ("loss",)

    def __init__(self, options: RegressionOptions) -> None:
        super().__init__(options, options.example_shape, perceptron_shapes(options.features, options.hidden, 1))
        self._middle, self._half = (options.high + options.low) / 2, (options.high - options.low) / 2

    def check(self, data: Dataset) -> None:
        check_examples(data, self.example_shape, None)

    def inputs(self, features: NDArray[Any]) -> NDArray[np.float32]:
        return features

    def output_slopes(self, outputs: Floats, labels: NDArray[Any], counted: NDArray[np.bool_] | None) -> Floats:
        """The error of each scaled prediction, at most 1 in size."""
        return averaged(np.clip(outputs - self._scaled(labels)[..., None], -1, 1), counted)

    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        """Return ``loss`` (mean, scaled as in training), ``mean_absolute_error`` and ``root_mean_squared_error``.

        Both errors are in the label's unit and count a label as it is, beyond the bounds too. NaN for a diverged model.

        Raises ValueError: no examples, or shapes or types that don't fit.
        """
        self.check(data)
        if not len(data):
            raise ValueError("nothing to evaluate on: the data set has no examples")
        loss, absolute, squared = 0.0, 0.0, 0.0
        with np.errstate(all="ignore"):
            for block, found in self._scored(parameters, data.features):
                scaled = found[..., 0].astype(np.float64)
                sizes = np.abs(scaled - self._scaled(data.labels[block]))
                loss += float(np.where(sizes <= 1, sizes**2 / 2, sizes - 0.5).sum())
                errors = self._middle + self._half * scaled - data.labels[block]
                absolute += float(np.abs(errors).sum())
                squared += float((errors**2).sum())
        count = len(data)
        return {
            "loss": loss / count,
            "mean_absolute_error": absolute / count,
            "root_mean_squared_error": math.sqrt(squared / count),
        }

    def _scaled(self, labels: NDArray[Any]) -> NDArray[np.float32]:
        """Labels within the bounds, from -1 to 1."""
        scaled: NDArray[np.float32] = np.clip((labels - self._middle) / self._half, -1, 1).astype(np.float32)
        return scaled
