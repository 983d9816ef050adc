"""A perceptron with one hidden layer on whole images or rows of numbers, in numpy: 100,000 parameters without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from learning.local_training import Arrays
from learning.options import SEEDS
from learning.parameters import Floats, Parameters, Shapes
from learning.public_random import PublicRandom
from learning.tasks.inputs import ImageOrRowOptions
from learning.tasks.numpy_task import NumpyClassifier, NumpyTask


@dataclass(frozen=True, kw_only=True)
class MlpOptions(ImageOrRowOptions):
    """Options of the perceptron, besides those of training and of examples.

    Attributes:
        hidden: units of the hidden layer; for the usual images and classes d = 795 x hidden + 10, so 126 units give
            d = 100,180.
        initial_seed: of the initial weights.
    """

    client_rate: float = 0.05
    hidden: int = 126
    initial_seed: int = 0
    _ranges: ClassVar = {"hidden": (1, 4_096), "initial_seed": SEEDS}


class Perceptron(NumpyTask):
    """Scores are linear in the inputs, or in the rectified units of one hidden layer, if the options have one."""

    def initial_parameters(self) -> Parameters:
        """Weights uniform in +-sqrt(6 / fan-in) (He et al. 2015), biases zero, without a hidden layer all zero.

        The same in every process.
        """
        parameters = {name: np.zeros(shape, dtype=np.float32) for name, shape in self.contribution_shapes.items()}
        seed = getattr(self.options, "initial_seed", 0)
        for place, (name, zeros) in enumerate(parameters.items()):
            if name in ("hidden_weights", "output_weights"):
                uniform = PublicRandom(b"mlp", seed, place).uniform(zeros.size)
                zeros[:] = ((2 * uniform - 1) * math.sqrt(6 / len(zeros))).astype(np.float32).reshape(zeros.shape)
        return parameters

    @property
    def _hidden(self) -> int:
        """Units of the hidden layer, 0: there is none."""
        return getattr(self.options, "hidden", 0)

    def scores(self, model: Arrays, inputs: Floats) -> Floats:
        return self._outputs(model, inputs)[1]

    def slopes(self, model: Arrays, inputs: Floats, labels: NDArray[Any], counted: NDArray[np.bool_] | None) -> Arrays:
        """As `NumpyTask.slopes`, by backpropagation."""
        hidden, outputs = self._outputs(model, inputs)
        by_outputs = self.output_slopes(outputs, labels, counted)
        if not self._hidden:
            return {"weights": inputs.swapaxes(-1, -2) @ by_outputs, "bias": by_outputs.sum(axis=-2)}
        back = by_outputs @ model["output_weights"].swapaxes(-1, -2)
        back *= hidden > 0
        return {
            "hidden_weights": inputs.swapaxes(-1, -2) @ back,
            "hidden_bias": back.sum(axis=-2),
            "output_weights": hidden.swapaxes(-1, -2) @ by_outputs,
            "output_bias": by_outputs.sum(axis=-2),
        }

    def _outputs(self, model: Arrays, inputs: Floats) -> tuple[Floats, Floats]:
        """What the hidden units give, (..., n, hidden), without them the inputs; and the outputs, (..., n, outputs)."""
        if not self._hidden:
            return inputs, inputs @ model["weights"] + model["bias"][..., None, :]
        hidden = inputs @ model["hidden_weights"]
        hidden += model["hidden_bias"][..., None, :]
        np.maximum(hidden, 0, out=hidden)
        return hidden, hidden @ model["output_weights"] + model["output_bias"][..., None, :]


class Mlp(Perceptron, NumpyClassifier):
    """All pixels or numbers of an example, ``hidden`` rectified units, softmax over the classes."""

    Options: Final = MlpOptions
    options: MlpOptions

    name: Final = "mlp"

    def __init__(self, options: MlpOptions) -> None:
        inputs = math.prod(options.example_shape)
        super().__init__(options, options.classes, perceptron_shapes(inputs, options.hidden, options.classes))

    def inputs(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Images as `pixels`, rows of numbers as they are."""
        return features if self.options.features else pixels(features)


def pixels(images: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.float32]:
    """Images as rows of numbers, float32 (n, pixels x channels), spread over [-1, 1]."""
    flat = images.reshape(len(images), -1).astype(np.float32)
    flat *= np.float32(2 / 255 if images.dtype == np.uint8 else 2)
    flat -= np.float32(1)
    return flat


def perceptron_shapes(inputs: int, hidden: int, outputs: int) -> Shapes:
    """Of the model; ``hidden``: units of the hidden layer, 0: there is none, and outputs are linear in the inputs."""
    if not hidden:
        return {"weights": (inputs, outputs), "bias": (outputs,)}
    return {
        "hidden_weights": (inputs, hidden),
        "hidden_bias": (hidden,),
        "output_weights": (hidden, outputs),
        "output_bias": (outputs,),
    }
