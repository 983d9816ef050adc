"""Networks for images, in torch. Import this module only where such a task is used."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from learning.options import SEEDS, require
from learning.parameters import Parameters
from learning.tasks.inputs import ImageOptions
from learning.tasks.torch_task import TorchTask


@dataclass(frozen=True, kw_only=True)
class TorchImageOptions(ImageOptions):
    """Options of images, and the seed of the initial weights."""

    initial_seed: int = 0
    _ranges: ClassVar = {"initial_seed": SEEDS}
    least_side: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.side >= self.least_side, "side", self.side, f"at least {self.least_side} for this network")


class ImageTask(TorchTask):
    """Classes of square images; shape and classes are options."""

    options: TorchImageOptions

    def __init__(self, options: TorchImageOptions) -> None:
        self.example_shape, self.classes = options.example_shape, options.classes
        super().__init__(options)

    def inputs(self, features: torch.Tensor) -> torch.Tensor:
        """Pixels in 0..1, float32 (n, channels, side, side), from bytes or numbers of `example_shape`."""
        images = super().inputs(features)
        return images.unsqueeze(1) if images.ndim == 3 else images.movedim(-1, 1)


@dataclass(frozen=True, kw_only=True)
class CnnOptions(TorchImageOptions):
    """Options of the network."""

    client_rate: float = 0.05
    local_epochs: int = 1
    least_side: ClassVar[int] = 16


class Cnn(ImageTask):
    """Two 5 x 5 convolutions (16 and 32 channels, no padding), each with ReLU and 2 x 2 max pooling; a linear layer.

    d = 18,378 for images of the usual side and 10 classes: 512 features. Pixels are spread over [-1, 1].
    """

    Options = CnnOptions
    options: CnnOptions

    name = "cnn"

    def module(self) -> nn.Module:
        side = ((self.options.side - 4) // 2 - 4) // 2
        layers: dict[str, nn.Module] = {
            "conv1": nn.Conv2d(self.options.channels, 16, 5),
            "relu1": nn.ReLU(),
            "pool1": nn.MaxPool2d(2),
            "conv2": nn.Conv2d(16, 32, 5),
            "relu2": nn.ReLU(),
            "pool2": nn.MaxPool2d(2),
            "flat": nn.Flatten(),
            "linear": nn.Linear(32 * side * side, self.options.classes),
        }
        return nn.Sequential(OrderedDict(layers))

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


@dataclass(frozen=True, kw_only=True)
class FemnistCnnOptions(TorchImageOptions):
    """Options of the network.

    Attributes:
        classes: 62 for digits and both cases of letters, 10 for digits alone or for Fashion-MNIST.
    """

    client_rate: float = 0.03
    local_epochs: int = 1
    classes: int = 62
    least_side: ClassVar[int] = 6


class FemnistCnn(ImageTask):
    """What federated EMNIST is commonly judged with: 3 x 3 convolutions of 32 and 64 channels,
    2 x 2 max pooling between them, 128 units: 1,018,174 parameters.

    Dropout of a quarter of the values before the 128 units and of half of them after. Source: the network of [RCZ+21]
    section 5 for EMNIST, in the form in which [KLS21] publishes code for its experiments.
    """

    Options = FemnistCnnOptions

    name = "femnist-cnn"

    def module(self) -> nn.Module:
        side = (self.options.side - 2) // 2 - 2
        return nn.Sequential(
            nn.Conv2d(self.options.channels, 32, 3),
            nn.MaxPool2d(2),
            nn.ReLU(),  # after the pooling: the same values, a quarter of the work
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * side * side, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, self.options.classes),
        )


_STAGES: Final = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels and stride of the first block of two


@dataclass(frozen=True, kw_only=True)
class ResNet18Options(TorchImageOptions):
    """Options of the network.

    Attributes:
        groups: of the channels in each normalisation; divides 64. 2 is usual in federated learning, 32 elsewhere.
    """

    client_rate: float = 0.03
    local_epochs: int = 1
    groups: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.groups >= 1 and 64 % self.groups == 0, "groups", self.groups, "a divisor of 64")


class ResNet18(ImageTask):
    """A stem of 3 x 3 without pooling, four stages of two blocks, the mean over what is left, and a linear layer.

    11,173,962 parameters for 3 channels and 10 classes, 11,172,810 for 1 channel. Source: [HZRS16], in the form for
    32 x 32 pixels; batch norm is replaced by group norm [WH18], since its running statistics would leave a participant
    without clip or noise.
    """

    Options = ResNet18Options
    options: ResNet18Options
    rows_a_block: ClassVar[int] = 50

    name = "resnet18"

    def module(self) -> nn.Module:
        return _ResNet18(self.options)


class _Block(nn.Module):
    """Two 3 x 3 convolutions beside the identity, or beside a 1 x 1 convolution where the shape changes."""

    def __init__(self, before: int, after: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(groups, after))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.norm1(self.conv1(images)))
        return functional.relu(self.norm2(self.conv2(hidden)) + self.shortcut(images))


class _ResNet18(nn.Module):
    def __init__(self, options: ResNet18Options) -> None:
        super().__init__()
        self.stem = nn.Conv2d(options.channels, 64, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(options.groups, 64)
        blocks, before = [], 64
        for after, stride in _STAGES:
            blocks += [_Block(before, after, stride, options.groups), _Block(after, after, 1, options.groups)]
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(512, options.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores (n, classes) before softmax."""
        hidden = self.blocks(functional.relu(self.norm(self.stem(images))))
        scores: torch.Tensor = self.linear(hidden.mean(dim=(2, 3)))
        return scores
