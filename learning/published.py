"""Sets in the formats in which they are published, read where they lie.

CIFAR-10 ([Kri09]) in its binary version, as the set's page describes it. Federated EMNIST by writer ([CDW+18]) in two
forms: the HDF5 files of TensorFlow Federated, and LEAF's JSON. In both a blank pixel is 1.0 and ink is 0.0; here images
are ``uint8`` with ink 255 on 0, as in MNIST, so one model fits all. StackOverflow in the HDF5 files of TensorFlow
Federated: sequences of 20 words over the 10,000 most frequent, as in [RCZ+21].
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.blocks import Block, Blocks, DatasetError, Part, file_sha256, file_version
from learning.plain_hdf5 import PlainGroup, damaged, opened
from learning.vocabulary import WORDS, Vocabulary

_CIFAR_BATCHES: Final[Mapping[Part, tuple[str, ...]]] = {
    "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    "test": ("test_batch.bin",),
}
_CIFAR_PIXELS: Final = 3 * 32 * 32
_EMNIST_SIDE: Final = 28
_WORD_COUNTS: Final = "stackoverflow.word_count"
_MOST_WORDS: Final = 10_000
_SENTENCES_OF_A_USER: Final = 256
_TEST_SENTENCES: Final = 10_000


def open_published(kind: str, path: Path) -> Blocks:
    """Return the set at ``path``, not read yet.

    ``kind``: one of ``learning.data_names.FORMATS``.

    Raises DatasetError: there is nothing of this format; while reading, that a file isn't in it.
    """
    readers = {"cifar10": cifar10, "femnist": femnist, "leaf": leaf, "stackoverflow": stackoverflow}
    return readers[kind](path)


def cifar10(folder: Path) -> Blocks:
    """CIFAR-10 in its binary version: ``data_batch_1.bin`` to ``data_batch_5.bin`` and ``test_batch.bin``.

    A record is 3,073 bytes: the class, then 1,024 bytes each of red, green and blue, row by row. Images are uint8 (n,
    32, 32, 3): height, width, colour. Raises DatasetError: a file is missing; while reading, that one isn't in the
    format.
    """
    files = {part: [folder / name for name in names] for part, names in _CIFAR_BATCHES.items()}
    if not all(file.is_file() for found in files.values() for file in found):
        raise DatasetError(
            f"{folder} doesn't hold CIFAR-10's binary version: put data_batch_1.bin to data_batch_5.bin and "
            "test_batch.bin there"
        )
    return _blocks("cifar10", files, lambda found: map(_cifar_batch, found))


def femnist(path: Path) -> Blocks:
    """Federated EMNIST of TensorFlow Federated: ``fed_emnist[_digitsonly]_train.h5``, its test file beside it.

    A group ``examples/WRITER`` for each writer holds ``pixels``, float32 (n, 28, 28), and ``label``, int32 (n,) or
    (n, 1). Every writer stands in both files, so the test part is of the same writers.

    ``path``: the training file, or a folder that holds one.

    Raises:
        DatasetError: there is no such file; while reading, that it isn't in the format, or that h5py isn't installed.
    """
    train = path
    if path.is_dir():
        found = sorted(path.glob("fed_emnist*_train.h5"))
        if len(found) != 1:
            raise DatasetError(f"{path} holds {len(found)} files fed_emnist*_train.h5: name the one to use")
        train = found[0]
    return _hdf5_set("femnist", train, train.with_name(train.name.replace("_train", "_test")), _emnist_writer)


def leaf(path: Path) -> Blocks:
    """LEAF's JSON ([CDW+18]): files with ``users``, ``num_samples`` and ``user_data``: user -> x (lists), y (numbers).

    Lists of 784 numbers in 0..1 are FEMNIST's images (uint8 (n, 28, 28), ink 255); others become float32 (n, length).
    The text sets of LEAF, whose x are strings, are refused.

    ``path``: a folder with ``train`` and ``test``, as LEAF's preprocessing leaves it; or a folder of such files, or one
    file, which is then all for training.

    Raises DatasetError: there is no such file; while reading, that one isn't in the format.
    """
    folders: dict[Part, Path] = {"train": path}
    if (path / "train").is_dir():
        folders = {"train": path / "train"}
        if (path / "test").is_dir():
            folders["test"] = path / "test"
    files = {part: sorted(one.glob("*.json")) if one.is_dir() else [one] for part, one in folders.items()}
    if not all(found and all(file.is_file() for file in found) for found in files.values()):
        raise DatasetError(f"{path} holds no JSON of LEAF: name a file, a folder of them, or one with train/ and test/")
    return _blocks("leaf", files, _leaf_blocks)


def stackoverflow(path: Path) -> Blocks:
    """StackOverflow of TensorFlow Federated: ``stackoverflow_train.h5``, with ``stackoverflow.word_count`` beside it.

    A group ``examples/USER`` for each user holds ``tokens``: (n,) sentences as bytes, words between spaces; other
    members (title, tags, score, ...) are not read. The word counts are text, a word and its count on each line, the
    most frequent first. Of each user the first 256 sentences are taken, of ``stackoverflow_test.h5``, where it lies
    beside them, the first 10,000 in all; sequences are of 20 words over the 10,000 most frequent.

    ``path``: the training file, or the folder that holds it.

    Raises DatasetError: a file is missing; while reading, that one isn't in the format, or that h5py isn't installed.
    """
    train = path / "stackoverflow_train.h5" if path.is_dir() else path
    counts = train.with_name(_WORD_COUNTS)
    try:
        with counts.open(encoding="utf-8") as file:
            words = [line.split()[0] for line in islice(file, _MOST_WORDS) if line.strip()]
    except FileNotFoundError:
        raise DatasetError(f"there is no file {counts}, the words by frequency: put it beside the sentences") from None
    except (OSError, UnicodeDecodeError) as error:
        raise damaged(counts, f"can't be read ({error})") from None
    read = partial(_user, Vocabulary(words))
    blocks = _hdf5_set("stackoverflow", train, train.with_name(train.name.replace("_train", "_test")), read)
    parts = dict(blocks.parts)
    if "test" in parts:
        parts["test"] = partial(_first, parts["test"])
    # The words give the sentences their numbers, so they are part of the examples.
    return replace(blocks, parts=parts, identity=partial(identity_of, "stackoverflow", [train, counts]))


def _hdf5_set(kind: str, train: Path, test: Path, read: Callable[[str, PlainGroup], Block]) -> Blocks:
    """A set of TensorFlow Federated: HDF5 files with a group ``examples/USER`` for each user, in the users' order.

    Args:
        kind: the format's name.
        test: left out where there is no such file.
        read: makes a block of a user's name and group.
    """
    if not train.is_file():
        raise DatasetError(f"there is no file {train}")
    files: dict[Part, list[Path]] = {"train": [train]}
    if test != train and test.is_file():
        files["test"] = [test]
    return _blocks(kind, files, lambda found: _hdf5_blocks(found[0], read))


def _blocks(
    kind: str, files: Mapping[Part, Sequence[Path]], read: Callable[[Sequence[Path]], Iterator[Block]]
) -> Blocks:
    """A set whose parts are read from files, and whose identity is that of its training files."""
    parts = {part: partial(read, found) for part, found in files.items()}
    return Blocks(parts, partial(identity_of, kind, files["train"]))


def identity_of(kind: str, files: Sequence[Path]) -> str:
    """By the content of training files in their order, whatever they are called.

    Raises DatasetError: one can't be read.
    """
    try:
        digests = "\n".join(_sha256(file, *file_version(file)) for file in files)
    except OSError as error:
        raise damaged(file=Path(error.filename or files[0]), why=f"can't be read ({error.strerror or error})") from None
    return f"{kind} {hashlib.sha256(digests.encode()).hexdigest()}"


@lru_cache(maxsize=64)
def _sha256(file: Path, *_: int) -> str:
    """Of a file, read once for all participants of a process while inode, size and time stay."""
    return file_sha256(file)


def _cifar_batch(file: Path) -> Block:
    size = file.stat().st_size
    if size == 0 or size % (1 + _CIFAR_PIXELS):
        raise damaged(file, f"has {size} bytes, not a multiple of {1 + _CIFAR_PIXELS}")
    records = np.memmap(file, dtype=np.uint8, mode="r").reshape(-1, 1 + _CIFAR_PIXELS)
    if int(records[:, 0].max()) > 9:
        raise damaged(file, "holds classes above 9")
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Block(len(records), lambda: images, lambda: np.asarray(records[:, 0], dtype=np.int64))


def _inked(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """0..1 with a blank of 1.0 to 0..255 with a blank of 0."""
    return np.rint((1.0 - np.asarray(pixels, dtype=np.float64)) * 255).astype(np.uint8)


def _hdf5_blocks(file: Path, read: Callable[[str, PlainGroup], Block]) -> Iterator[Block]:
    with opened(file) as root:
        users = root.group("examples")
        for user in users:
            try:
                block = read(user, users.group(user))
            except TypeError as error:
                raise damaged(file, f"isn't in the format ({error})") from None
            if block.count:
                yield block


def _emnist_writer(writer: str, group: PlainGroup) -> Block:
    pixels, label = group.data("pixels"), group.data("label")
    count = pixels.shape[0]
    if pixels.shape[1:] != (_EMNIST_SIDE, _EMNIST_SIDE) or label.shape not in ((count,), (count, 1)):
        raise TypeError(f"writer {writer}: pixels {pixels.shape} and label {label.shape}")
    return Block(count, lambda: _inked(pixels.read()), lambda: label.read().astype(np.int64).reshape(-1), writer)


def _leaf_blocks(files: Sequence[Path]) -> Iterator[Block]:
    for file in files:
        try:
            content = json.loads(file.read_bytes())
            pairs = list(zip(content["users"], content["num_samples"], strict=True))
            data = content.pop("user_data")
            if not isinstance(data, dict):
                raise TypeError("user_data is no table of users")
            for user, count in pairs:
                block = _leaf_user(str(user), data.pop(user))
                if block.count != count:
                    raise ValueError(f"user {user} has {block.count} examples, not {count}")
                if count:
                    yield block
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise damaged(file, f"isn't LEAF's JSON ({type(error).__name__}: {error})") from None


def _leaf_user(user: str, held: Mapping[str, Any]) -> Block:
    if any(isinstance(one, str) for one in held["x"][:1]):
        raise TypeError("its examples are text, which isn't read")
    x, y = np.asarray(held["x"], dtype=np.float64), np.asarray(held["y"])
    with np.errstate(invalid="ignore"):  # infinite ones are refused below
        labels = y.astype(np.int64)
    if y.ndim != 1 or len(x) != len(y) or (labels != y).any() or (y.size and x.ndim != 2):
        raise TypeError(f"user {user}: x {x.shape} and y {y.shape}")
    if x.ndim == 2 and x.shape[1] == _EMNIST_SIDE**2 and x.min() >= 0 and x.max() <= 1:
        return Block.of(_inked(x.reshape(-1, _EMNIST_SIDE, _EMNIST_SIDE)), labels, user)
    return Block.of(x.astype(np.float32), labels, user)


def _user(vocabulary: Vocabulary, user: str, group: PlainGroup) -> Block:
    tokens = group.data("tokens", texts=True)
    count = min(tokens.shape[0], _SENTENCES_OF_A_USER)

    @cache  # features and labels are asked for one after the other
    def read() -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        return vocabulary.sequences([sentence.split(maxsplit=WORDS) for sentence in tokens.first_texts(count)])

    return Block(count, lambda: read()[0], lambda: read()[1], user)


def _first(blocks: Any) -> Iterator[Block]:
    """Blocks up to ``_TEST_SENTENCES``, the last one cut."""
    left = _TEST_SENTENCES
    for block in blocks():
        if left <= 0:
            return
        yield block if block.count <= left else _cut(block, left)
        left -= block.count


def _cut(block: Block, count: int) -> Block:
    return Block(count, lambda: block.features()[:count], lambda: block.labels()[:count], block.user)
