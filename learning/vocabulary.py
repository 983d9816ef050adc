"""Next-word prediction: sentences to word numbers.

Sequences of 20 words are those of [RCZ+21]. Words are numbered as in its published code: 0 is padding, 1 to V the V
most frequent words, V + 1 any other word, V + 2 the beginning and V + 3 the end of a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

WORDS: Final = 20  # of a sequence
PADDING: Final = 0
SPECIAL: Final = 4
"""Numbers besides those of the words."""


class Vocabulary:
    """Words by number.

    Attributes:
        numbers: word -> 1..V, in the order of ``words``.
        marks: V + 1 for a word that isn't among them, V + 2 and V + 3 for the beginning and end of a sentence.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.numbers = {word: number for number, word in enumerate(words, 1)}
        unknown = len(self.numbers) + 1
        self.marks = unknown, unknown + 1, unknown + 2

    def sequences(self, sentences: Sequence[Sequence[str]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """What a model is given and what it should predict: int32 and int64, both (sentences, 20).

        A sentence is cut after 20 words; a shorter one gets the end mark and then padding. The model is given the
        beginning mark and all but the last; the label at each place is the next word.
        """
        table = np.full((len(sentences), WORDS + 1), PADDING, dtype=np.int64)
        unknown, table[:, 0], end = self.marks
        for row, words in zip(table, sentences, strict=True):
            numbers = [self.numbers.get(word, unknown) for word in words[:WORDS]]
            if len(numbers) < WORDS:
                numbers.append(end)
            row[1 : 1 + len(numbers)] = numbers
        return table[:, :-1].astype(np.int32), table[:, 1:]
