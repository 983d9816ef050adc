"""A small convolutional network, in torch. Import this module only where the task is used.

Two 5 x 5 convolutions (16 and 32 channels, no padding), each with ReLU and 2 x 2 max pooling, then one
linear layer from 512 features to 10 classes: d = 18,378 for images of the usual side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from learning.options import require
from learning.parameters import Parameters
from learning.tasks.torch_images import ImageTask, TorchImageOptions


@dataclass(frozen=True, kw_only=True)
class CnnOptions(TorchImageOptions):
    """Options of the network, besides those of training, of images and of the start."""

    client_rate: float = 0.05
    batch_size: int = 20
    local_epochs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.side >= 16, "side", self.side, "at least 16 for this network")


class Cnn(ImageTask):
    """The network; pixels are spread over [-1, 1]."""

    Options = CnnOptions
    options: CnnOptions

    name = "cnn"

    def module(self) -> nn.Module:
        """The network; its weights are not the ones begun with."""
        return _Network(self.options)

    def initial_parameters(self) -> Parameters:
        """Return He-uniform weights and zero biases, drawn by numpy from ``initial_seed``.

        Numpy's generator, not torch's: each array then depends on the seed and its place alone, not on
        what the process drew before.
        """
        parameters: Parameters = {}
        for place, (name, shape) in enumerate(self.contribution_shapes.items()):
            bound = 0.0 if name.endswith(".bias") else math.sqrt(6 / math.prod(shape[1:]))
            rng = np.random.Generator(np.random.PCG64([self.options.initial_seed, place]))
            parameters[name] = (rng.uniform(-1.0, 1.0, shape) * bound).astype(np.float32)
        return parameters

    def inputs(self, features: torch.Tensor) -> torch.Tensor:
        """Pixels in -1..1, float32 (n, channels, side, side)."""
        return super().inputs(features) * 2 - 1


class _Network(nn.Module):
    def __init__(self, options: CnnOptions) -> None:
        super().__init__()
        side = ((options.side - 4) // 2 - 4) // 2
        self.conv1 = nn.Conv2d(options.channels, 16, 5)
        self.conv2 = nn.Conv2d(16, 32, 5)
        self.linear = nn.Linear(32 * side * side, options.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores (n, classes) before softmax."""
        hidden = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        hidden = functional.max_pool2d(functional.relu(self.conv2(hidden)), 2)
        scores: torch.Tensor = self.linear(hidden.flatten(1))
        return scores
