"""A perceptron with one hidden layer on whole images, in numpy: about 100,000 parameters without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from learning.datasets import CLASSES, IMAGE_SIDE, Dataset
from learning.options import TrainingOptions, require
from learning.parameters import Parameters, check_shapes, dimension, subtract
from learning.public_random import PublicRandom, Shuffler
from learning.tasks.softmax_regression import check_images

PIXELS: Final = IMAGE_SIDE * IMAGE_SIDE
_ROWS_A_BLOCK: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class MlpOptions(TrainingOptions):
    """Options of the perceptron, besides those of training.

    Attributes:
        hidden: units of the hidden layer, 1 to 4,096; d = 795 x hidden + 10, so 126 units give d = 100,180.
        initial_seed: public seed of the initial weights, the same in every process.
    """

    client_rate: float = 0.05
    hidden: int = 126
    initial_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 <= self.hidden <= 4_096, "hidden", self.hidden, "from 1 to 4096")
        require(0 <= self.initial_seed < 2**63, "initial_seed", self.initial_seed, "from 0 to 2^63 - 1")


class Mlp:
    """784 pixels, ``hidden`` rectified units, softmax over 10 classes; minibatch gradient descent."""

    name: Final = "mlp"

    def __init__(self, options: MlpOptions) -> None:
        self.options = options
        self._shapes = {
            "hidden_weights": (PIXELS, options.hidden),
            "hidden_bias": (options.hidden,),
            "output_weights": (options.hidden, CLASSES),
            "output_bias": (CLASSES,),
        }
        self.dim = dimension(self._shapes)

    def initial_parameters(self) -> Parameters:
        """Weights uniform in +-sqrt(6 / fan-in) (He et al. 2015), biases zero; the same in every process."""
        parameters: Parameters = {}
        for place, (name, shape) in enumerate(self._shapes.items()):
            if len(shape) == 1:
                parameters[name] = np.zeros(shape, dtype=np.float32)
                continue
            uniform = PublicRandom(b"mlp", self.options.initial_seed, place).uniform(math.prod(shape))
            bound = math.sqrt(6 / shape[0])
            parameters[name] = ((2 * uniform - 1) * bound).astype(np.float32).reshape(shape)
        return parameters

    def local_update(self, parameters: Parameters, data: Dataset, rng: Shuffler) -> Parameters:
        """Train ``local_epochs`` passes in a fresh random order each and return new minus old.

        Args:
            parameters: as `initial_parameters`; not written to.
            data: images (n, 28, 28), uint8 or float32 in 0..1; n >= 1.
            rng: orders the examples.

        Returns:
            The update, named and shaped as ``parameters``; NaN or infinite where training diverged.

        Raises:
            ValueError: no examples, or shapes or labels that don't fit.
        """
        check_shapes(parameters, self._shapes)
        check_images(data)
        if not len(data):
            raise ValueError("a participant without examples cannot train")
        model = {name: array.copy() for name, array in parameters.items()}
        rate, batch_size = np.float32(self.options.client_rate), self.options.batch_size
        with np.errstate(all="ignore"):  # a diverged model is reported where it is encoded
            for _ in range(self.options.local_epochs):
                order = rng.permutation(len(data))
                for start in range(0, len(data), batch_size):
                    rows = order[start : start + batch_size]
                    gradient = mlp_gradient(model, pixels(data.features[rows]), data.labels[rows])
                    for name, slope in gradient.items():
                        model[name] -= rate * slope
        return subtract(model, parameters)

    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        """Return accuracy in [0, 1] and the mean cross-entropy in nats (NaN for a diverged model).

        Raises:
            ValueError: no examples, or shapes or labels that don't fit.
        """
        check_shapes(parameters, self._shapes)
        check_images(data)
        if not len(data):
            raise ValueError("nothing to evaluate on: the data set has no examples")
        correct, loss = 0, 0.0
        with np.errstate(all="ignore"):
            for start in range(0, len(data), _ROWS_A_BLOCK):
                labels = data.labels[start : start + _ROWS_A_BLOCK]
                _, scores = _forward(parameters, pixels(data.features[start : start + _ROWS_A_BLOCK]))
                correct += int(np.count_nonzero(scores.argmax(axis=1) == labels))
                scores = scores.astype(np.float64) - scores.max(axis=1, keepdims=True)
                logs = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]
                loss += float(logs.sum())
        return {"accuracy": correct / len(data), "loss": loss / len(data)}


def pixels(images: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.float32]:
    """Images as rows of 784 numbers, float32, spread over [-1, 1]."""
    flat = images.reshape(len(images), PIXELS).astype(np.float32)
    flat *= np.float32(2 / 255 if images.dtype == np.uint8 else 2)
    flat -= np.float32(1)
    return flat


def _forward(parameters: Parameters, inputs: NDArray[np.floating]) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    hidden = np.maximum(inputs @ parameters["hidden_weights"] + parameters["hidden_bias"], 0)
    return hidden, hidden @ parameters["output_weights"] + parameters["output_bias"]


def mlp_gradient(
    parameters: Parameters, inputs: NDArray[np.floating], labels: NDArray[np.int64]
) -> dict[str, NDArray[np.floating]]:
    """Gradient of the mean cross-entropy, by backpropagation.

    Args:
        parameters: as `Mlp.initial_parameters`, any float dtype.
        inputs: (n, 784), n >= 1.
        labels: int64 (n,), in 0..9.
    """
    hidden, scores = _forward(parameters, inputs)
    scores = scores - scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    scores[np.arange(len(labels)), labels] -= 1
    scores /= len(labels)
    back = (scores @ parameters["output_weights"].T) * (hidden > 0)
    return {
        "hidden_weights": inputs.T @ back,
        "hidden_bias": back.sum(axis=0),
        "output_weights": hidden.T @ scores,
        "output_bias": scores.sum(axis=0),
    }
