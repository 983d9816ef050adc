"""Predict the next word from the one before it, in numpy, for experiments where an LSTM would take too long.

A log-bilinear model ([MH07], with one word of context): scores of the next word are E[word] U + b. Words are numbered
as for `learning.tasks.lstm`; its name as a task is ``sordino.lab.experiments.word_pairs:WordPairs``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from learning.datasets import Dataset
from learning.local_training import Arrays
from learning.parameters import Parameters
from learning.public_random import PublicRandom
from learning.tasks.inputs import WordOptions, check_words
from learning.tasks.numpy_task import NumpyClassifier

NAME: Final = "sordino.lab.experiments.word_pairs:WordPairs"


@dataclass(frozen=True, kw_only=True)
class WordPairsOptions(WordOptions):
    """Options of the model, besides those of training.

    Attributes:
        embedding: numbers for a word; d = (V + 4) (2 embedding + 1).
    """

    vocabulary: int = 500
    embedding: int = 8
    _ranges: ClassVar = {"vocabulary": (1, 100_000), "embedding": (1, 4_096)}


class WordPairs(NumpyClassifier):
    """Examples are int32 (n, L) words, labels int64 (n, L) the word after each.

    Positions whose label isn't a word of the vocabulary are ignored, in training too: a model of few words would
    otherwise predict "out of vocabulary", which is always wrong.
    """

    Options: Final = WordPairsOptions

    name: Final = "word-pairs"
    rows_a_block: ClassVar[int] = 100
    options: WordPairsOptions

    def __init__(self, options: WordPairsOptions) -> None:
        words, size = options.words, options.embedding
        super().__init__(options, words, {"words": (words, size), "next": (size, words), "bias": (words,)})

    def initial_parameters(self) -> Parameters:
        """Uniform in +-1 / sqrt(embedding) for words, zeros for the rest: the same in every process."""
        shapes = self.contribution_shapes
        words, size = shapes["words"]
        uniform = PublicRandom(b"word pairs", self.options.initial_seed).uniform(words * size)
        return {
            "words": ((2 * uniform - 1) / math.sqrt(size)).astype(np.float32).reshape(words, size),
            "next": np.zeros(shapes["next"], np.float32),
            "bias": np.zeros(shapes["bias"], np.float32),
        }

    def inputs(self, features: NDArray[Any]) -> NDArray[Any]:
        return features

    def scores(self, model: Arrays, inputs: NDArray[Any]) -> NDArray[np.floating]:
        """(n, L) words of one model to (n, L, classes)."""
        scores: NDArray[np.floating] = model["words"][inputs] @ model["next"] + model["bias"]
        return scores

    def slopes(
        self, model: Arrays, inputs: NDArray[Any], labels: NDArray[np.int64], counted: NDArray[np.bool_] | None
    ) -> Arrays:
        """As `NumpyTask.slopes`; the mean is over the positions whose label is a word of the vocabulary.

        Scores depend on the word before alone, so there is one row for each that occurs. Participants side by side are
        computed one after the other: the scores of one stay in the cache.
        """
        if inputs.ndim > 2:
            counts = [None] * len(inputs) if counted is None else list(counted)
            models = [{name: array[at] for name, array in model.items()} for at in range(len(inputs))]
            each = [self.slopes(*one) for one in zip(models, inputs, labels, counts, strict=True)]
            return {name: np.stack([one[name] for one in each]) for name in model}
        real = self.counted(labels)
        if counted is not None:
            real &= counted[:, None]
        before, classes = inputs[real], len(model["bias"])
        times = np.bincount(before, minlength=classes)
        words = np.flatnonzero(times)
        pairs = np.bincount(before * np.int64(classes) + labels[real], minlength=classes * classes)
        known = model["words"][words]
        scores = known @ model["next"] + model["bias"]
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores *= (times[words] / scores.sum(axis=-1)).astype(scores.dtype)[:, None]
        scores -= pairs.reshape(classes, classes)[words].astype(scores.dtype)
        scores /= max(len(before), 1)
        of_words = np.zeros_like(model["words"])
        of_words[words] = scores @ model["next"].T
        return {"words": of_words, "next": known.T @ scores, "bias": scores.sum(axis=0)}

    def counted(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Words of the vocabulary."""
        return (labels >= 1) & (labels <= self.options.vocabulary)

    def check(self, data: Dataset) -> None:
        check_words(data, self.options.length, self.classes)
