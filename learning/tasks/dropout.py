"""Dropout whose masks are drawn only where the order of examples is drawn.

Torch's own dropout draws from the generator of the process: training would depend on all earlier draws, and two
participants in one process on each other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from learning.public_random import Shuffler


class Dropout(nn.Module):
    """Zeroes a share of the values, or of the channels, in training, and scales the others up.

    `learning.tasks.torch_task.TorchTask` puts it in the place of each ``nn.Dropout``, ``nn.Dropout1d``, 2d and 3d of a
    module, draws the mask of each step and hands it in as the buffer ``mask``.
    """

    mask: torch.Tensor

    def __init__(self, share: float, by_channel: bool = False) -> None:
        """Args: share: of what is zeroed, in [0, 1]; by_channel: whole channels, the second axis."""
        super().__init__()
        self.share, self.by_channel = share, by_channel
        self.shape: tuple[int, ...] = ()
        self.register_buffer("mask", torch.empty(0), persistent=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Values (n, ...) times the mask, which is 0 or 1 / (1 - share); as they are outside training."""
        if not self.training:
            return values
        if not self.mask.numel():  # the trial of a module: no more than the shape is asked for
            trailing = values.shape[1:]
            self.shape = (trailing[0], *[1] * (len(trailing) - 1)) if self.by_channel else tuple(trailing)
            return values
        return values * self.mask

    def draw(self, examples: int, generator: torch.Generator) -> torch.Tensor:
        """A mask for ``examples``, float32 (examples, ...); the share is rounded to a multiple of 2^-16.

        Four values from each 64-bit draw: a quarter of the time of torch's own Bernoulli variates.
        """
        size = examples * math.prod(self.shape)
        words = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
        kept = round((1 - self.share) * 2**16)
        if not kept:
            return torch.zeros(examples, *self.shape)
        mask = (words.view(torch.int16)[:size] <= kept - 1 - 2**15).float()  # of -2^15 .. 2^15 - 1, as many as are kept
        return mask.mul_(2**16 / kept).reshape(examples, *self.shape)


def replace_dropout(module: nn.Module) -> None:
    """Put `Dropout` in the place of torch's own, at any depth."""
    for name, child in module.named_children():
        if isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            setattr(module, name, Dropout(child.p, by_channel=not isinstance(child, nn.Dropout)))
        else:
            replace_dropout(child)


def dropouts(module: nn.Module) -> dict[str, Dropout]:
    """All of a module's, by the name of its mask."""
    return {f"{name}.mask": child for name, child in module.named_modules() if isinstance(child, Dropout)}


class Masks:
    """One participant's masks in one round."""

    def __init__(self, layers: Mapping[str, Dropout], rng: Shuffler) -> None:
        """Args: rng: one permutation seeds the generator of all masks; none is drawn where there are no layers."""
        self._layers = layers
        self._generator = torch.Generator()
        if layers:
            digest = hashlib.sha256(np.ascontiguousarray(rng.permutation(64), dtype="<i8").tobytes()).digest()
            self._generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)

    def draw(self, examples: int) -> dict[str, torch.Tensor]:
        """The next masks, for this many examples."""
        return {name: layer.draw(examples, self._generator) for name, layer in self._layers.items()}
