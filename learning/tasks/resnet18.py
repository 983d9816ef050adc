"""ResNet-18 for small images, with group normalisation, in torch: 11.2 million parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional

from learning.options import require
from learning.tasks.torch_images import ImageTask, TorchImageOptions

_STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels and stride of the first block of two


@dataclass(frozen=True, kw_only=True)
class ResNet18Options(TorchImageOptions):
    """Options of the network, besides those of training, of images and of the start.

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
        """The network; weights as torch draws them."""
        return _Network(self.options)


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
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(groups, after)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = functional.relu(self.norm1(self.conv1(images)))
        return functional.relu(self.norm2(self.conv2(hidden)) + self.shortcut(images))


class _Network(nn.Module):
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
