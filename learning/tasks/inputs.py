"""What examples look like: options of tasks that learn classes of images or of rows of numbers, and their checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import numpy as np

from learning.datasets import Dataset
from learning.options import SEEDS, OptionError, TrainingOptions
from learning.parameters import Parameters, check_shapes
from learning.task import ModelTask
from learning.vocabulary import SPECIAL

IMAGE_SIDE: Final = 28
CLASSES: Final = 10
MOST_FEATURES: Final = 1_000_000


@dataclass(frozen=True, kw_only=True)
class ImageOptions(TrainingOptions):
    """Options of tasks for images.

    Attributes:
        classes: labels are 0 to classes - 1; 2 to 100,000.
        side: of the square images, in pixels, 1 to 512.
        channels: 1 for images (n, side, side), 3 for (n, side, side, 3); 1 to 16.
    """

    classes: int = CLASSES
    side: int = IMAGE_SIDE
    channels: int = 1
    _ranges: ClassVar = {"classes": (2, 100_000), "side": (1, 512), "channels": (1, 16)}

    @property
    def example_shape(self) -> tuple[int, ...]:
        return (self.side, self.side) if self.channels == 1 else (self.side, self.side, self.channels)

    def _left_out(self) -> set[str]:
        return super()._left_out() | {name for name in ("classes", "side", "channels") if self.is_usual(name)}


@dataclass(frozen=True, kw_only=True)
class ImageOrRowOptions(ImageOptions):
    """Options of tasks for images or for rows of numbers.

    Attributes:
        features: 0 for images; else examples are rows of that many numbers, float32 (n, features), taken as they are.
    """

    features: int = 0
    _ranges: ClassVar = {"features": (0, MOST_FEATURES)}
    of_images: ClassVar[tuple[str, ...]] = ("side", "channels")
    """Options that count for images alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features:
            for name in self.of_images:
                if not self.is_usual(name):
                    raise OptionError(f"option {name!r} is for images; with features = {self.features} leave it out")

    @property
    def example_shape(self) -> tuple[int, ...]:
        return (self.features,) if self.features else super().example_shape

    def _left_out(self) -> set[str]:
        return super()._left_out().union(self.of_images if self.features else ("features",))


@dataclass(frozen=True, kw_only=True)
class WordOptions(TrainingOptions):
    """Options of tasks that learn the next word.

    Attributes:
        vocabulary: V, the number of words, from 1. Of characters some 86 make a small model.
        length: L, words of an example.
        embedding: numbers for a word, from 1.
        initial_seed: chooses the initial weights.
    """

    vocabulary: int = 10_000
    length: int = 20
    embedding: int = 96
    initial_seed: int = 0
    _ranges: ClassVar = {"length": (1, 10_000), "initial_seed": SEEDS}

    @property
    def words(self) -> int:
        """V, and what else stands in a word's place."""
        return self.vocabulary + SPECIAL

    @property
    def example_shape(self) -> tuple[int, ...]:
        return (self.length,)


class TrainedTask(ModelTask):
    """What models in numpy and in torch share: the checks before they train."""

    example_shape: tuple[int, ...]
    """Of one example, without the axis of examples."""
    classes: int
    """Labels are 0 to classes - 1."""

    def check(self, data: Dataset) -> None:
        """Raise ``ValueError`` unless examples and labels are the task's."""
        check_examples(data, self.example_shape, self.classes)

    def check_form(self, data: Dataset) -> None:
        """Raise ``ValueError`` unless examples of this shape and type, with labels, are the task's."""
        require_labels(data)
        self.check(data)

    def _check(self, parameters: Parameters, data: Dataset) -> None:
        check_shapes(parameters, self.contribution_shapes)
        self.check(data)
        if not len(data):
            raise ValueError("a participant without examples cannot train")


def require_labels(data: Dataset) -> None:
    """Raise ``ValueError`` unless there are labels: from zeros in their place a model would learn zeros."""
    if not data.labelled:
        raise ValueError("there is no label, which it learns")


def check_examples(data: Dataset, shape: tuple[int, ...], classes: int | None) -> None:
    """Raise ``ValueError`` unless examples have the shape, labels are classes, and rows of numbers aren't bytes.

    ``classes``: None where any labels are numbers to predict.
    """
    if data.features.shape[1:] != shape:
        raise ValueError(f"examples have shape {data.features.shape[1:]}; this task takes {_described(shape)}")
    if classes is not None and data.labels.dtype != np.int64:
        raise ValueError(f"labels are {data.labels.dtype}, numbers to predict; this task takes classes, int64")
    if data.labels.ndim != 1 or not (len(shape) == 1 or data.features.dtype.kind in "uf"):
        raise ValueError(
            f"examples are {data.features.dtype} with labels of shape {data.labels.shape[1:]} each; this task takes "
            f"{_described(shape)} with one label each"
        )
    if len(shape) == 1 and data.features.dtype.kind != "f":
        raise ValueError(f"examples are {data.features.dtype}; rows of numbers must be float32")
    if classes is not None and len(data) and (int(data.labels.min()) < 0 or int(data.labels.max()) >= classes):
        raise ValueError(
            f"labels run from {data.labels.min()} to {data.labels.max()}; this task takes 0 to {classes - 1}"
        )


def check_words(data: Dataset, length: int, classes: int) -> None:
    """Raise ``ValueError`` unless examples and labels are int32 and int64 (n, length) of words that exist."""
    shape = (len(data), length)
    if data.features.dtype != np.int32 or data.features.shape != shape or data.labels.shape != shape:
        raise ValueError(
            f"examples are {data.features.dtype}{list(data.features.shape)} with labels {list(data.labels.shape)}; "
            f"this task takes int32 (n, {length}) words and as many labels"
        )
    for kind, words in (("words", data.features), ("labels", data.labels)):
        if len(data) and not 0 <= int(words.min()) <= int(words.max()) < classes:
            raise ValueError(f"{kind} run from {words.min()} to {words.max()}; this task takes 0 to {classes - 1}")


def _described(shape: tuple[int, ...]) -> str:
    if len(shape) == 1:
        return f"rows of {shape[0]} numbers"
    channels = f" with {shape[2]} channels" if len(shape) == 3 else ""
    return f"{shape[0]} x {shape[1]} images{channels}"
