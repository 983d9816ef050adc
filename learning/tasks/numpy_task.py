"""What models in numpy share: local training of one participant or of many side by side, and evaluation in blocks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from learning.datasets import Dataset
from learning.local_training import Arrays, Batch, Gradient, batches_of_all, blocks, local_change, steps
from learning.options import TrainingOptions
from learning.parameters import Floats, Parameters, Shapes, check_shapes
from learning.public_random import Shuffler
from learning.tasks.inputs import ImageOptions, TrainedTask, WordOptions

_NUMBERS_SIDE_BY_SIDE: Final = 1 << 22  # of all models trained at once: 16 MB, and as much for slopes and change each


class NumpyTask(TrainedTask):
    """A model in numpy. A subclass has shapes, inputs, scores, slopes and an evaluation.

    Its functions take one model, or one for each participant: arrays then have a leading axis.
    """

    rows_a_block: ClassVar[int] = 1_000
    """Examples that are evaluated at a time."""

    def __init__(self, options: TrainingOptions, example_shape: tuple[int, ...], shapes: Shapes) -> None:
        """``shapes``: of the model, which isn't made for them."""
        self.options, self.contribution_shapes = options, shapes
        self.example_shape = example_shape

    @abstractmethod
    def inputs(self, features: NDArray[Any]) -> NDArray[np.float32]:
        """Examples as rows of numbers, float32 (n, f)."""

    @abstractmethod
    def scores(self, model: Arrays, inputs: Floats) -> Floats:
        """What the model says of each example, (..., n, classes) before softmax; of a regression (..., n, 1)."""

    @abstractmethod
    def slopes(self, model: Arrays, inputs: Floats, labels: NDArray[Any], counted: NDArray[np.bool_] | None) -> Arrays:
        """Gradient of the mean loss over the examples that count (None: all), in fresh arrays.

        Args:
            model: of any float dtype.
            inputs: (..., n, f), n >= 1.
            labels: (..., n), as `check` takes them.
            counted: bool (..., n).
        """

    def output_slopes(self, outputs: Floats, labels: NDArray[Any], counted: NDArray[np.bool_] | None) -> Floats:
        """Gradient of the mean loss, by default cross-entropy, by `scores`; may be written over ``outputs``."""
        return cross_entropy_slopes(outputs, labels, counted)

    def local_update(self, parameters: Parameters, data: Dataset, rng: Shuffler, l2_clip: float = inf) -> Parameters:
        """Train by the method of the options and return new minus old, as `learning.task.Task.local_update`.

        The change is that of `learning.local_training.local_change`; NaN or infinite where training diverged.
        """
        self._check(parameters, data)
        with np.errstate(all="ignore"):  # a diverged model is reported where it is encoded
            return local_change(
                parameters,
                {name: array.copy() for name, array in parameters.items()},
                self.options,
                l2_clip,
                (Batch(rows) for rows in steps(self.options, len(data), rng)),
                lambda: (Batch(rows) for rows in blocks(self.options, len(data))),
                self._gradient(data.features, data.labels),
            )

    def local_updates(
        self,
        parameters: Parameters,
        data: Sequence[Dataset],
        rngs: Sequence[Shuffler],
        l2_clip: float = inf,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        updates = np.empty((len(data), self.dim), dtype=np.float32) if out is None else out
        at_once = max(1, _NUMBERS_SIDE_BY_SIDE // self.dim)
        for start in range(0, len(data), at_once):
            chunk = slice(start, start + at_once)
            self._train_side_by_side(parameters, data[chunk], rngs[chunk], l2_clip, updates[chunk])
        return updates

    def _train_side_by_side(
        self,
        parameters: Parameters,
        data: Sequence[Dataset],
        rngs: Sequence[Shuffler],
        l2_clip: float,
        updates: NDArray[np.float32],
    ) -> None:
        for one in data:
            self._check(parameters, one)
        labels = np.concatenate([one.labels for one in data])
        gradient = self._gradient(np.concatenate([one.features for one in data]), labels)
        of_steps, of_all = batches_of_all(self.options, [len(one) for one in data], rngs)
        with np.errstate(all="ignore"):
            models = {name: np.repeat(array[None], len(data), axis=0) for name, array in parameters.items()}
            change = local_change(parameters, models, self.options, l2_clip, of_steps, of_all, gradient)
        np.concatenate([array.reshape(len(data), -1) for array in change.values()], axis=1, out=updates)

    def _gradient(self, features: NDArray[Any], labels: NDArray[Any]) -> Gradient:
        """Of the loss over batches of these examples, of one participant or of all side by side."""
        inputs = self.inputs(features)

        def gradient(model: Arrays, batch: Batch, training: bool) -> tuple[Arrays, Any]:
            counted = batch.counted
            weight = batch.rows.shape[-1] if counted is None else counted.sum(axis=-1).astype(np.float32)
            return self.slopes(model, inputs[batch.rows], labels[batch.rows], counted), weight

        return gradient

    def _scored(self, parameters: Parameters, features: NDArray[Any]) -> Iterator[tuple[slice, Floats]]:
        """Scores of a block after the other: float copies of a block at a time, not of all."""
        check_shapes(parameters, self.contribution_shapes)
        model = self.for_evaluation(parameters)
        for start in range(0, len(features), self.rows_a_block):
            block = slice(start, start + self.rows_a_block)
            yield block, self.scores(model, self.inputs(features[block]))

    def for_evaluation(self, parameters: Parameters) -> Arrays:
        """The parameters in the precision to evaluate in; as they are, unless a subclass says otherwise."""
        return parameters


class NumpyClassifier(NumpyTask):
    """A model in numpy that learns classes, by cross-entropy."""

    def __init__(self, options: ImageOptions | WordOptions, classes: int, shapes: Shapes) -> None:
        super().__init__(options, options.example_shape, shapes)
        self.classes = classes

    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        """Return accuracy in [0, 1] and the mean cross-entropy in nats (NaN for a diverged model).

        Raises ValueError: no labels that count, or shapes or labels that don't fit.
        """
        self.check(data)
        correct, judged, loss = 0, 0, 0.0
        with np.errstate(all="ignore"):
            for block, scores in self._scored(parameters, data.features):
                labels = data.labels[block]
                counted = self.counted(labels)
                scores, labels = scores[counted], labels[counted]
                correct += int(np.count_nonzero(scores.argmax(axis=-1) == labels))
                judged += len(labels)
                scores = scores.astype(np.float64) - scores.max(axis=-1, keepdims=True)
                of_labels = np.take_along_axis(scores, labels[:, None], axis=-1)[:, 0]
                loss += float((np.log(np.exp(scores).sum(axis=-1)) - of_labels).sum())
        if not judged:
            raise ValueError("nothing to evaluate on: the data set has no examples that count")
        return {"accuracy": correct / judged, "loss": loss / judged}

    def counted(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which labels count in an evaluation: all, unless a subclass says otherwise."""
        return np.ones(labels.shape, dtype=bool)

    def predict(self, parameters: Parameters, examples: NDArray[Any]) -> NDArray[np.int64]:
        """As `learning.task.Classifier.predict`; of equal scores the first class."""
        found = np.zeros(len(examples), dtype=np.int64)
        with np.errstate(all="ignore"):
            for block, scores in self._scored(parameters, examples):
                found[block] = scores.argmax(axis=1)
        return found


def cross_entropy_slopes(scores: Floats, labels: NDArray[np.int64], counted: NDArray[np.bool_] | None = None) -> Floats:
    """Gradient of the mean cross-entropy by the scores: (softmax - one-hot) / n, written over ``scores``.

    Args:
        scores: (..., n, classes).
        labels: int64 (..., n), in 0..classes - 1.
        counted: bool (..., n), which of them count; None: all. n is how many count, in each of the leading places.
    """
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    places = labels[..., None]
    np.put_along_axis(scores, places, np.take_along_axis(scores, places, axis=-1) - 1, axis=-1)
    return averaged(scores, counted)


def averaged(slopes: Floats, counted: NDArray[np.bool_] | None) -> Floats:
    """Slopes of each example, (..., n, outputs), over how many count; 0 for others. Written over ``slopes``."""
    if counted is None:
        slopes /= slopes.shape[-2]
    else:
        slopes *= (counted / np.maximum(counted.sum(axis=-1, keepdims=True), 1)).astype(slopes.dtype)[..., None]
    return slopes
