"""Data sets, loaded without a network and a part at a time.

Images stay uint8 until a task turns a batch of them into numbers: 60,000 of them are 47 MB that way and 188 MB as
float32. A participant's process asks ``load_partition`` for its own rows and holds only those.

``learning.data_names`` lists the kinds of names. A subset of Fashion-MNIST ([XRV17], MIT licence) ships with Sordino:
the first 600 training and the first 200 test images of each class, in the order of the published files.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from learning.blocks import Block, Blocks, DatasetError, Part
from learning.data_names import BROUGHT, BUILT_IN, check_dataset_name, format_and_path
from learning.prepared_data import PreparedSet, open_prepared

LABEL: Final = "label"
"""Name of the column of labels in files."""
NO_LABEL: Final = int(np.iinfo(np.int64).min)
"""Stands for a label that is missing, where statistics take gaps."""

SUBSET_FILE: Final = Path(__file__).parent / "data" / "fashion_mnist_subset.npz"
SUBSET_SHA256: Final = "17f8369e96553b6410b9b42604e4d49875ca05f22fd822951ef8f980a7184108"


@dataclass(frozen=True)
class Unread:
    """Counts of what a file's examples can't be made of; for the file's owner only.

    Attributes:
        cells: by column: (its name or number, how many of its cells).
        lines: left out since they have another number of cells than there are columns.
        rows: left out since one of their cells can't be used.
    """

    cells: tuple[tuple[str, int], ...] = ()
    lines: int = 0
    rows: int = 0


@dataclass(frozen=True, eq=False)  # compared by identity: arrays have no single truth value
class Dataset:
    """Examples with their labels.

    Attributes:
        features: (n, ...) uint8 pixels in 0..255, float32 (pixels in 0..1 for the image tasks), or int32 (word numbers
            and other categories).
        labels: int64, class numbers from 0: (n,), or (n, L) where each example is a sequence of L classes; or float32
            (n,), numbers to predict.
        columns: names of the features, in order, where the examples are rows of named numbers; else empty.
        labelled: False where the data have no labels and zeros stand in their place.
        unread: what their file holds besides them.
    """

    features: NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int32]
    labels: NDArray[Any]
    columns: tuple[str, ...] = ()
    labelled: bool = True
    unread: Unread = Unread()

    def __post_init__(self) -> None:
        if self.features.dtype not in (np.uint8, np.float32, np.int32):
            raise DatasetError(f"features are {self.features.dtype}; expected uint8, float32 or int32")
        if (self.labels.dtype.name, self.labels.ndim) not in (("int64", 1), ("int64", 2), ("float32", 1)):
            raise DatasetError(
                f"labels are {self.labels.dtype}{list(self.labels.shape)}; expected int64[n], int64[n, L] or float32[n]"
            )
        if self.columns and self.features.shape[1:] != (len(self.columns),):
            raise DatasetError(f"{len(self.columns)} columns are named for features {list(self.features.shape)}")
        if self.features.ndim < 1 or len(self.features) != len(self.labels):
            raise DatasetError(f"{self.features.shape} features do not match {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: ArrayLike) -> Dataset:
        """Return a copy of the rows at ``indices``, in that order.

        Raises DatasetError: indices that are not whole numbers in [0, n).
        """
        rows = _checked_indices(indices, len(self))
        return Dataset(self.features[rows], self.labels[rows], self.columns, self.labelled, self.unread)

    def described(self) -> str:
        """What columns there are, in one sentence: ``Its columns are 0 age, 1 weight; and label``."""
        if not self.columns:
            shape = self.features.shape[1:]
            each = "one number" if not shape else f"{shape[0]} numbers" if len(shape) == 1 else f"shape {shape}"
            return f"Its examples have {each} each, and {'labels' if self.labelled else 'no labels'}"
        shown = ", ".join(f"{number} {name}" for number, name in enumerate(self.columns))
        return f"Its columns are {shown}; and {LABEL if self.labelled else f'none is called {LABEL}'}"

    def form(self) -> Dataset:
        """One example of zeros, shaped, typed and named as these: what they look like."""
        return Dataset(
            np.zeros((1, *self.features.shape[1:]), dtype=self.features.dtype),
            np.zeros((1, *self.labels.shape[1:]), dtype=self.labels.dtype),
            self.columns,
            self.labelled,
        )


def dataset_identity(name: str) -> str:
    """An identity of the training examples, wherever they lie: a ledger recognises data by it.

    For published files it is the SHA-256 of their content, read once in a process. Raises DatasetError: as
    ``load_dataset``.
    """
    return _held(name).known_by()


def load_dataset(name: str) -> tuple[Dataset, Dataset]:
    """Return (train, test).

    Raises DatasetError: unknown name, a file that is missing or damaged, or a set without a test part.
    """
    return load_part(name, "train"), load_part(name, "test")


def has_part(name: str, part: Part) -> bool:
    """Whether the set has such a part; all have ``train``."""
    return _held(name).has(part)


def load_part(name: str, part: Part) -> Dataset:
    """Return one part, and read no more than that: the coordinator needs only ``test``."""
    held = _held(name)
    if not held.has(part):
        raise DatasetError(f"the data set {name} has no part {part!r}: name a file of test examples in [data] test")
    return Dataset(*held.rows(part, None))


def count_examples(name: str) -> int:
    """Training examples."""
    return _held(name).count("train")


def load_labels(name: str, part: Part = "train") -> NDArray[np.int64]:
    """Return the labels alone, int64 (n,) or (n, L)."""
    return _held(name).labels(part)


def load_users(name: str) -> NDArray[np.int32] | NDArray[np.int64] | None:
    """Return (n,) the user of each training example, as numbers from 0; None in a set without users."""
    return _held(name).users("train")


def load_partition(name: str, indices: ArrayLike) -> Dataset:
    """Return the training rows at ``indices``, in that order, holding no others: larger sets are read in blocks, or
    mapped.

    Raises DatasetError: as ``load_dataset``; also indices outside the training set.
    """
    held = _held(name)
    return Dataset(*held.rows("train", _checked_indices(indices, held.count("train"))))


def _held(name: str) -> PreparedSet | Blocks:
    """The set under a name. Raises DatasetError: it doesn't exist."""
    try:
        check_dataset_name(name)
    except ValueError as error:
        raise DatasetError(f"data set {name!r} {error}") from None
    if name in BUILT_IN:
        return Blocks({"train": lambda: _shipped("train", 6_000), "test": lambda: _shipped("test", 2_000)}, name)
    if name in BROUGHT:
        raise DatasetError(f"with the data set {name!r} each participant has its own data: there is no set to load")
    found = format_and_path(name)
    if found is None:
        return open_prepared(name)
    from learning.published import open_published

    return open_published(*found)


def _shipped(part: Part, count: int) -> Iterator[Block]:
    """A part of the subset of Fashion-MNIST."""
    yield Block(count, lambda: _read_subset(f"{part}_images"), lambda: _read_subset(f"{part}_labels").astype(np.int64))


def _checked_indices(indices: ArrayLike, count: int) -> NDArray[np.int64]:
    rows = np.asarray(indices)
    if rows.size == 0:
        rows = rows.astype(np.int64)
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise DatasetError(f"indices are {rows.dtype}{list(rows.shape)}; expected whole numbers in one row")
    if rows.size and (int(rows.min()) < 0 or int(rows.max()) >= count):
        raise DatasetError(f"indices run from {rows.min()} to {rows.max()}; the data set has {count} rows")
    return rows.astype(np.int64)


def _read_subset(member: str) -> NDArray[np.uint8]:
    """Read a member of the shipped file after checking the whole file against the pinned digest."""
    try:
        content = SUBSET_FILE.read_bytes()
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise DatasetError(f"data set file {SUBSET_FILE}: {reason}; reinstall sordino") from error
    if hashlib.sha256(content).hexdigest() != SUBSET_SHA256:
        raise DatasetError(f"data set file {SUBSET_FILE} is damaged (wrong SHA-256); reinstall sordino")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            found: NDArray[np.uint8] = archive[member]
            return found
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # Only a wrong pin can lead here: the bytes are those this release was made with.
        raise DatasetError(f"data set file {SUBSET_FILE} is not the expected archive") from error
