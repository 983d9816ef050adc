"""Examples a block at a time: a block is one file's, or one user's. Published formats are read, and sets written, so.

No more than a block and the rows that are asked for is ever held, so a participant's process finds its own rows in a
file of any size.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from runtime.failure import InputFailure

Part: TypeAlias = Literal["train", "test"]


class DatasetError(InputFailure, ValueError):
    """A data set is unknown, missing or damaged; the message names the file and what to do."""


def library(name: str, extra: str, what: str) -> Any:
    """A module of a package that only some sets need. Raises DatasetError: it isn't installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        package = name.partition(".")[0]
        raise DatasetError(
            f"{what} needs {package}, which isn't installed: pip install '.[{extra}]' in the checkout"
        ) from None


def file_version(file: Path) -> tuple[int, int, int]:
    """Inode, size and time: what is read of a file is kept while they stay."""
    found = file.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def file_sha256(file: Path) -> str:
    """In hex. Raises OSError: it can't be read."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


@dataclass(frozen=True)
class Block:
    """Consecutive examples of one part of a set.

    Attributes:
        count: number of examples.
        features: reads them; (count, ...) uint8, float32 or int32.
        labels: reads them; int64 (count,) or (count, L).
        user: to whom all of them belong; None in a set without users.
    """

    count: int
    features: Callable[[], NDArray[Any]]
    labels: Callable[[], NDArray[np.int64]]
    user: str | None = None

    @classmethod
    def of(cls, features: NDArray[Any], labels: NDArray[np.int64], user: str | None = None) -> Block:
        """A block that is in memory already."""
        return cls(len(labels), lambda: features, lambda: labels, user)


@dataclass(frozen=True)
class Blocks:
    """A set whose parts are read a block at a time.

    Attributes:
        parts: for ``train``, and where it exists for ``test``: a function that begins a pass over the part's blocks,
            always in the same order. The first block of a part is never empty.
        identity: of the training examples, equal for equal files. A function where the files must be read for it, so
            that they are read only if it is needed.
    """

    parts: Mapping[Part, Callable[[], Iterator[Block]]]
    identity: str | Callable[[], str]

    def known_by(self) -> str:
        """The identity. Raises DatasetError: a file can't be read."""
        return self.identity if isinstance(self.identity, str) else self.identity()

    def has(self, part: Part) -> bool:
        return part in self.parts

    def count(self, part: Part) -> int:
        return sum(block.count for block in self.parts[part]())

    def users(self, part: Part) -> NDArray[np.int64] | None:
        """(n,) the user of each example, numbered from 0 by first appearance; None in a set without users."""
        numbers: dict[str, int] = {}
        runs: list[NDArray[np.int64]] = []
        for block in self.parts[part]():
            if block.user is None:
                return None
            number = numbers.setdefault(block.user, len(numbers))
            runs.append(np.full(block.count, number, dtype=np.int64))
        return np.concatenate(runs)

    def labels(self, part: Part) -> NDArray[np.int64]:
        """int64 (n,) or (n, L)."""
        return np.concatenate([block.labels() for block in self.parts[part]()])

    def rows(self, part: Part, wanted: NDArray[np.int64] | None) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Features and labels at ``wanted`` (None: all), in that order.

        Raises IndexError: a row that the part doesn't have.
        """
        if wanted is None:
            wanted = np.arange(self.count(part))
        order = np.argsort(wanted, kind="stable")
        ordered = wanted[order]
        features: list[NDArray[Any]] = []
        labels: list[NDArray[np.int64]] = []
        start = 0
        for block in self.parts[part]():
            low, high = np.searchsorted(ordered, (start, start + block.count))
            if high > low or not features:  # the first one, so that no rows still have a shape
                here = ordered[low:high] - start
                features.append(np.asarray(block.features()[here]))
                labels.append(np.asarray(block.labels()[here]))
            start += block.count
            if high == len(ordered):
                break
        if ordered.size and int(ordered[-1]) >= start:
            raise IndexError(f"row {ordered[-1]} of {start}")
        back = np.empty(len(order), dtype=np.int64)
        back[order] = np.arange(len(order))
        return np.concatenate(features)[back], np.concatenate(labels)[back]
