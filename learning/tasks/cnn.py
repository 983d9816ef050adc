"""A small convolutional network, in torch. Import this module only where the task is used.

Two 5 x 5 convolutions (16 and 32 channels, no padding), each with ReLU and 2 x 2 max pooling, then one
linear layer from 512 features to 10 classes: d = 18,378.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from learning.datasets import CLASSES, Dataset
from learning.options import TrainingOptions, require
from learning.parameters import Parameters, check_shapes, dimension, subtract
from learning.public_random import Shuffler
from learning.tasks.softmax_regression import check_images

_SHAPES: Final[dict[str, tuple[int, ...]]] = {
    "conv1.weight": (16, 1, 5, 5),
    "conv1.bias": (16,),
    "conv2.weight": (32, 16, 5, 5),
    "conv2.bias": (32,),
    "linear.weight": (CLASSES, 512),
    "linear.bias": (CLASSES,),
}
_ROWS_A_BLOCK: Final = 250


@dataclass(frozen=True, kw_only=True)
class CnnOptions(TrainingOptions):
    """Options of the network, besides those of training.

    Attributes:
        initial_seed: chooses the initial weights, 0 to 2^63 - 1; public, part of the study's configuration.
    """

    client_rate: float = 0.05
    batch_size: int = 20
    local_epochs: int = 1
    initial_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.initial_seed < 2**63, "initial_seed", self.initial_seed, "from 0 to 2^63 - 1")


class Cnn:
    """The network, trained by plain minibatch gradient descent.

    Making one sets torch to a single thread in this process: several participants share a machine, and sums
    split over threads would differ from run to run.
    """

    name: Final = "cnn"

    def __init__(self, options: CnnOptions) -> None:
        self.options = options
        self.dim = dimension(_SHAPES)
        torch.set_num_threads(1)

    def initial_parameters(self) -> Parameters:
        """Return He-uniform weights and zero biases, drawn by numpy from ``initial_seed``.

        Numpy's generator, not torch's: each array then depends on the seed and its place alone, not on
        what the process drew before.
        """
        parameters: Parameters = {}
        for place, (name, shape) in enumerate(_SHAPES.items()):
            bound = 0.0 if name.endswith(".bias") else math.sqrt(6 / math.prod(shape[1:]))
            rng = np.random.Generator(np.random.PCG64([self.options.initial_seed, place]))
            parameters[name] = (rng.uniform(-1.0, 1.0, shape) * bound).astype(np.float32)
        return parameters

    def local_update(self, parameters: Parameters, data: Dataset, rng: Shuffler) -> Parameters:
        """Train ``local_epochs`` passes in a fresh random order each and return new minus old.

        Args:
            parameters: as ``initial_parameters`` names and shapes them, float32; not written to.
            data: images (n, 28, 28), uint8 or float32 in 0..1; n >= 1.
            rng: orders the examples; torch's own generators are neither read nor moved.

        Returns:
            The update, named and shaped as ``parameters``; NaN or infinite where training diverged.

        Raises:
            ValueError: no examples, or shapes or labels that don't fit.
        """
        check_shapes(parameters, _SHAPES)
        check_images(data)
        if not len(data):
            raise ValueError("a participant without examples cannot train")
        images, labels = _pixels(data.features), torch.from_numpy(data.labels)
        model = {name: torch.tensor(array, requires_grad=True) for name, array in parameters.items()}
        for _ in range(self.options.local_epochs):
            order = torch.from_numpy(rng.permutation(len(data)))
            for start in range(0, len(data), self.options.batch_size):
                batch = order[start : start + self.options.batch_size]
                loss = functional.cross_entropy(_scores(model, images[batch]), labels[batch])
                gradients = torch.autograd.grad(loss, list(model.values()))
                with torch.no_grad():
                    for tensor, gradient in zip(model.values(), gradients, strict=True):
                        tensor -= self.options.client_rate * gradient
        return subtract({name: tensor.detach().numpy() for name, tensor in model.items()}, parameters)

    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        """Return accuracy in [0, 1] and the mean cross-entropy in nats (NaN for a diverged model).

        Raises:
            ValueError: no examples, or shapes or labels that don't fit.
        """
        check_shapes(parameters, _SHAPES)
        check_images(data)
        if not len(data):
            raise ValueError("nothing to evaluate on: the data set has no examples")
        model = {name: torch.tensor(array) for name, array in parameters.items()}
        correct, loss = 0, 0.0
        with torch.no_grad():
            for start in range(0, len(data), _ROWS_A_BLOCK):
                labels = torch.from_numpy(data.labels[start : start + _ROWS_A_BLOCK])
                scores = _scores(model, _pixels(data.features[start : start + _ROWS_A_BLOCK]))
                correct += int((scores.argmax(dim=1) == labels).sum())
                loss += float(functional.cross_entropy(scores, labels, reduction="sum"))
        return {"accuracy": correct / len(data), "loss": loss / len(data)}


def _pixels(images: NDArray[np.uint8] | NDArray[np.float32]) -> torch.Tensor:
    """Spread pixels over [-1, 1]: float32 (n, 1, 28, 28)."""
    scale = np.float32(2 / 255 if images.dtype == np.uint8 else 2)
    return torch.from_numpy(images.astype(np.float32) * scale - np.float32(1)).unsqueeze(1)


def _scores(model: dict[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    """Return (n, 10) scores before softmax."""
    hidden = functional.relu(functional.conv2d(images, model["conv1.weight"], model["conv1.bias"]))
    hidden = functional.max_pool2d(hidden, 2)
    hidden = functional.relu(functional.conv2d(hidden, model["conv2.weight"], model["conv2.bias"]))
    hidden = functional.max_pool2d(hidden, 2)
    return functional.linear(hidden.flatten(1), model["linear.weight"], model["linear.bias"])
