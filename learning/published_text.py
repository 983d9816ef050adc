"""Next-word prediction: sentences to word numbers, and StackOverflow in the format of TensorFlow Federated.

Sequences of 20 words and a vocabulary of 10,000 are those of [RCZ+21]. Words are numbered as in its published code: 0
is padding, 1 to V the V most frequent words, V + 1 any other word, V + 2 the beginning and V + 3 the end of a sentence.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.blocks import Block, Blocks, DatasetError
from learning.plain_hdf5 import PlainGroup, damaged
from learning.published_images import hdf5_set, identity_of

WORDS: Final = 20  # of a sequence
VOCABULARY: Final = 10_000
SENTENCES_OF_A_USER: Final = 256
TEST_SENTENCES: Final = 10_000
WORD_COUNTS: Final = "stackoverflow.word_count"
PADDING: Final = 0


@dataclass(frozen=True)
class Vocabulary:
    """Words by number.

    Attributes:
        numbers: word -> 1..V.
    """

    numbers: Mapping[str, int]

    @classmethod
    def of(cls, words: Sequence[str]) -> Vocabulary:
        """Numbered in this order."""
        return cls({word: number for number, word in enumerate(words, 1)})

    @property
    def unknown(self) -> int:
        """V + 1: a word that isn't among them."""
        return len(self.numbers) + 1

    @property
    def beginning(self) -> int:
        """V + 2."""
        return len(self.numbers) + 2

    @property
    def end(self) -> int:
        """V + 3."""
        return len(self.numbers) + 3

    def numbered(self, words: Sequence[str]) -> list[int]:
        """The number of each word."""
        return [self.numbers.get(word, self.unknown) for word in words]

    def sequences(self, sentences: Sequence[Sequence[str]]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """What a model is given and what it should predict: int32 and int64, both (sentences, 20).

        A sentence is cut after 20 words; a shorter one gets the end mark and then padding. The model is given the
        beginning mark and all but the last; the label at each place is the next word.
        """
        table = np.full((len(sentences), WORDS + 1), PADDING, dtype=np.int64)
        table[:, 0] = self.beginning
        for row, words in zip(table, sentences, strict=True):
            numbers = self.numbered(words[:WORDS])
            if len(numbers) < WORDS:
                numbers.append(self.end)
            row[1 : 1 + len(numbers)] = numbers
        return table[:, :-1].astype(np.int32), table[:, 1:]


def stackoverflow(path: Path) -> Blocks:
    """StackOverflow of TensorFlow Federated: ``stackoverflow_train.h5``, with ``stackoverflow.word_count`` beside it.

    A group ``examples/USER`` for each user holds ``tokens``: (n,) sentences as bytes, words between spaces; other
    members (title, tags, score, ...) are not read. The word counts are text, a word and its count on each line, the
    most frequent first. Of each user the first 256 sentences are taken, of ``stackoverflow_test.h5``, where it lies
    beside them, the first 10,000 in all; sequences are of 20 words over the 10,000 most frequent.

    Args:
        path: the training file, or the folder that holds it.

    Raises:
        DatasetError: a file is missing; while reading, that one isn't in the format, or that h5py isn't installed.
    """
    train = path / "stackoverflow_train.h5" if path.is_dir() else path
    counts = train.with_name(WORD_COUNTS)
    try:
        with counts.open(encoding="utf-8") as file:
            words = [line.split()[0] for line in islice(file, VOCABULARY) if line.strip()]
    except FileNotFoundError:
        raise DatasetError(f"there is no file {counts}, the words by frequency: put it beside the sentences") from None
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(counts, f"can't be read ({error})") from None
    read = partial(_user, Vocabulary.of(words))
    blocks = hdf5_set("stackoverflow", train, train.with_name(train.name.replace("_train", "_test")), read)
    parts = dict(blocks.parts)
    if "test" in parts:
        parts["test"] = partial(_first, parts["test"])
    # The words give the sentences their numbers, so they are part of the examples.
    return replace(blocks, parts=parts, identity=partial(identity_of, "stackoverflow", [train, counts]))


def _user(vocabulary: Vocabulary, user: str, group: PlainGroup) -> Block:
    tokens = group.texts("tokens")
    count = min(tokens.shape[0], SENTENCES_OF_A_USER)

    @functools.cache  # features and labels are asked for one after the other
    def read() -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        return vocabulary.sequences([sentence.split(maxsplit=WORDS) for sentence in tokens.first_texts(count)])

    return Block(count, lambda: read()[0], lambda: read()[1], user)


def _first(blocks: Any) -> Iterator[Block]:
    """Blocks up to ``TEST_SENTENCES``, the last one cut."""
    left = TEST_SENTENCES
    for block in blocks():
        if left <= 0:
            return
        yield block if block.count <= left else _cut(block, left)
        left -= block.count


def _cut(block: Block, count: int) -> Block:
    return Block(count, lambda: block.features()[:count], lambda: block.labels()[:count], block.user)
