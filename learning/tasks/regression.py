"""Regression on rows of numbers, in numpy: a line, or a network with one hidden layer, under a bounded loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from learning.datasets import Dataset
from learning.local_training import Arrays
from learning.options import SEEDS, TrainingOptions, require
from learning.parameters import Parameters, Shapes
from learning.tasks.inputs import MOST_FEATURES, check_examples
from learning.tasks.mlp import perceptron_outputs, perceptron_shapes, perceptron_slopes, perceptron_start
from learning.tasks.numpy_task import NumpyTask


@dataclass(frozen=True, kw_only=True)
class RegressionOptions(TrainingOptions):
    """Options of a regression, besides those of training.

    Attributes:
        features: numbers in one example, 1 to 1,000,000, taken as they are: scale them by public constants to about -1
            to 1.
        low, high: public bounds of a label, in its unit; a label beyond counts as the bound when training.
        hidden: units of a hidden layer, up to 4,096; 0: predictions are linear in the features.
        initial_seed: public seed of the initial weights of a network, the same in every process.
    """

    client_rate: float = 0.05
    features: int = 1
    low: float = 0.0
    high: float = 1.0
    hidden: int = 0
    initial_seed: int = 0
    ranges: ClassVar = {"features": (1, MOST_FEATURES), "hidden": (0, 4_096), "initial_seed": SEEDS}

    def __post_init__(self) -> None:
        super().__post_init__()
        require(math.isfinite(self.low), "low", self.low, "finite")
        require(self.low < self.high < math.inf, "high", self.high, f"finite and above low, which is {self.low:g}")

    @property
    def example_shape(self) -> tuple[int, ...]:
        return (self.features,)

    def _left_out(self) -> set[str]:
        return super()._left_out() | (set() if self.hidden else {"initial_seed"})


class Regression(NumpyTask):
    """Predicts labels, which the model sees scaled from ``low``..``high`` to -1..1.

    The loss is Huber's, with its bend at 1, half the label's range: r^2 / 2 for an error |r| <= 1, else |r| - 1/2. So
    one example moves a step of the linear model by at most client_rate x ||(x, 1)||, whatever its label.
    """

    Options: Final = RegressionOptions
    options: RegressionOptions

    name: Final = "regression"
    judged = ("loss",)

    def __init__(self, options: RegressionOptions) -> None:
        shapes: Shapes = {"weights": (options.features, 1), "bias": (1,)}
        if options.hidden:
            shapes = perceptron_shapes(options.features, options.hidden, 1)
        super().__init__(options, options.example_shape, shapes)
        self._middle, self._half = (options.high + options.low) / 2, (options.high - options.low) / 2

    def check(self, data: Dataset) -> None:
        check_examples(data, self.example_shape, None)

    def initial_parameters(self) -> Parameters:
        """Zeros of a line, which predicts the middle of the range; of a network as `perceptron_start`."""
        if self.options.hidden:
            return perceptron_start(self.contribution_shapes, self.options.initial_seed)
        return {name: np.zeros(shape, dtype=np.float32) for name, shape in self.contribution_shapes.items()}

    def inputs(self, features: NDArray[Any]) -> NDArray[np.float32]:
        return features

    def scores(self, model: Arrays, inputs: NDArray[np.floating]) -> NDArray[np.floating]:
        """Predictions, scaled: (..., n, 1)."""
        return self._outputs(model, inputs)[1]

    def slopes(
        self, model: Arrays, inputs: NDArray[np.floating], labels: NDArray[Any], counted: NDArray[np.bool_] | None
    ) -> Arrays:
        """As `NumpyTask.slopes`: the error of each example, at most 1 in size, times its inputs."""
        hidden, found = self._outputs(model, inputs)
        errors = np.clip(found[..., 0] - self._scaled(labels), -1, 1)
        if counted is None:
            errors /= labels.shape[-1]
        else:
            errors *= (counted / np.maximum(counted.sum(axis=-1, keepdims=True), 1)).astype(errors.dtype)
        by_outputs = errors[..., None]
        if self.options.hidden:
            return perceptron_slopes(model, inputs, hidden, by_outputs)
        return {"weights": inputs.swapaxes(-1, -2) @ by_outputs, "bias": by_outputs.sum(axis=-2)}

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

    def _outputs(
        self, model: Arrays, inputs: NDArray[np.floating]
    ) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """The hidden units, of a line its inputs, and the predictions."""
        if self.options.hidden:
            return perceptron_outputs(model, inputs)
        return inputs, inputs @ model["weights"] + model["bias"][..., None, :]

    def _scaled(self, labels: NDArray[Any]) -> NDArray[np.float32]:
        """Labels within the bounds, from -1 to 1."""
        scaled: NDArray[np.float32] = np.clip((labels - self._middle) / self._half, -1, 1).astype(np.float32)
        return scaled
