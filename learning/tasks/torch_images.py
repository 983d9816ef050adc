"""What tasks for images in torch share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from learning.options import require
from learning.tasks.inputs import ImageOptions
from learning.tasks.torch_task import TorchTask


@dataclass(frozen=True, kw_only=True)
class TorchImageOptions(ImageOptions):
    """Options of images and of the start.

    Attributes:
        initial_seed: chooses the initial weights, 0 to 2^63 - 1; public, part of the study's configuration.
    """

    initial_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.initial_seed < 2**63, "initial_seed", self.initial_seed, "from 0 to 2^63 - 1")


class ImageTask(TorchTask):
    """Classes of square images; shape and classes are options."""

    options: TorchImageOptions

    @property
    def example_shape(self) -> tuple[int, ...]:
        """(side, side), or (side, side, channels)."""
        return self.options.example_shape

    @property
    def classes(self) -> int:
        """How many there are."""
        return self.options.classes

    def inputs(self, features: torch.Tensor) -> torch.Tensor:
        """Pixels in 0..1, float32 (n, channels, side, side), from bytes or numbers of `example_shape`."""
        return planes(super().inputs(features))


def planes(images: torch.Tensor) -> torch.Tensor:
    """Images (n, side, side) or (n, side, side, channels) with channels first: (n, channels, side, side)."""
    return images.unsqueeze(1) if images.ndim == 3 else images.movedim(-1, 1)
