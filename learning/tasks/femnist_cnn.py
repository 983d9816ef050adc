"""The convolutional network that federated EMNIST is commonly judged with, in torch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from learning.options import require
from learning.tasks.torch_images import ImageTask, TorchImageOptions


@dataclass(frozen=True, kw_only=True)
class FemnistCnnOptions(TorchImageOptions):
    """Options of the network, besides those of training, of images and of the start.

    Attributes:
        classes: 62 for digits and both cases of letters, 10 for digits alone or for Fashion-MNIST.
    """

    client_rate: float = 0.03
    local_epochs: int = 1
    classes: int = 62

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.side >= 6, "side", self.side, "at least 6 for this network")


class FemnistCnn(ImageTask):
    """3 x 3 convolutions of 32 and 64 channels, 2 x 2 max pooling between them, 128 units: 1,018,174 parameters.

    Dropout of a quarter of the values before the 128 units and of half of them after. Source: the network of [RCZ+21]
    section 5 for EMNIST, in the form in which [KLS21] publishes code for its experiments.
    """

    Options = FemnistCnnOptions

    name = "femnist-cnn"

    def module(self) -> nn.Module:
        """The network; weights as torch draws them."""
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
