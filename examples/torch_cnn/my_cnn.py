"""A model of one's own: `sordino init DIR --task my_cnn:MyCnn`."""

from dataclasses import dataclass

from torch import nn

from sordino import TorchTask, TrainingOptions


@dataclass(frozen=True, kw_only=True)
class Options(TrainingOptions):
    channels: int = 8
    initial_seed: int = 0


class MyCnn(TorchTask):
    Options = Options
    example_shape = (28, 28)
    classes = 10

    def module(self):
        width = self.options.channels
        return nn.Sequential(
            nn.Unflatten(1, (1, 28)), nn.Conv2d(1, width, 5, stride=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * width, 10),
        )  # fmt: skip
