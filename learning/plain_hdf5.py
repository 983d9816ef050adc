"""HDF5 files as plain storage: everything that is read lies in the one file that was named, and is as large as it says.

HDF5 can do more. A link may lead into another file, a data set may have its content in any file that this process may
read, or be put together of others; and a data set that was never written may claim any number of values in no bytes. A
file that somebody else wrote could so show what lies elsewhere on this machine, or take all memory; and the SHA-256 by
which a ledger knows it would stay when what it shows changes. So only plain links are followed, and what is claimed is
held against what is stored.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from learning.blocks import DatasetError

MOST_BYTES: Final = 1 << 28
"""Of one data set, which is one user's: 85,000 images of 28 x 28."""
MOST_GROWTH: Final = 1032
"""Bytes that one stored byte may become: no more come out of deflate, HDF5's usual compression."""
_TEXTS_AT_ONCE: Final = 16

_R = TypeVar("_R")


def damaged(file: Path, why: str) -> DatasetError:
    """A file that isn't in its format."""
    return DatasetError(f"data set file {file} {why}; fetch it again, or name another")


@contextmanager
def opened(file: Path) -> Iterator[PlainGroup]:
    """The file's root.

    Raises:
        DatasetError: h5py isn't installed, or the file is none of HDF5.
    """
    try:
        h5py = importlib.import_module("h5py")
    except ModuleNotFoundError:
        raise DatasetError(f"{file} needs h5py, which isn't installed: pip install '.[data]' in the checkout") from None
    read = _Reading(file, h5py)
    root = read.told(lambda: h5py.File(file, "r"))
    try:
        yield PlainGroup(read, root)
    finally:
        root.close()


class _Reading:
    """One file that is read, and how many stored bytes its data sets have claimed so far."""

    def __init__(self, file: Path, h5py: Any) -> None:
        self.file, self.h5py = file, h5py
        self._left = self.told(lambda: file.stat().st_size)
        self.size = self._left

    def told(self, read: Callable[[], _R]) -> _R:
        """What ``read`` returns; whatever h5py raises of a damaged file is one error that names it."""
        try:
            return read()
        except MemoryError:
            raise damaged(self.file, "needs more memory than there is") from None
        except (OSError, RuntimeError, LookupError, AttributeError, TypeError, ValueError) as error:
            if isinstance(error, DatasetError):
                raise
            raise damaged(self.file, f"isn't in the format ({error})") from None

    def claim(self, stored: int) -> None:
        """Count stored bytes: a part of the file that stands under several names would be counted over and over."""
        self._left -= stored
        if self._left < 0:
            raise damaged(self.file, "claims to store more than it holds")


class PlainGroup:
    """A group of an open file."""

    def __init__(self, reading: _Reading, group: Any) -> None:
        self._reading, self._group = reading, group

    def __iter__(self) -> Iterator[str]:
        """The names of its members, in the file's order."""
        return iter(self._reading.told(lambda: [str(name) for name in self._group]))

    def group(self, name: str) -> PlainGroup:
        """A group in it.

        Raises:
            DatasetError: there is none.
        """
        return PlainGroup(self._reading, self._member(name, self._reading.h5py.Group, "group"))

    def numbers(self, name: str) -> PlainData:
        """A data set of numbers in it; nothing is read yet.

        Raises:
            DatasetError: there is none, its content lies elsewhere, or it is larger than it can be.
        """
        return self._data(name, texts=False)

    def texts(self, name: str) -> PlainData:
        """A line of texts in it; nothing is read yet.

        Raises:
            DatasetError: as `numbers`.
        """
        return self._data(name, texts=True)

    def _data(self, name: str, *, texts: bool) -> PlainData:
        found = self._member(name, self._reading.h5py.Dataset, "data set")
        reading = self._reading

        def look() -> PlainData:
            elsewhere = found.external is not None or found.is_virtual
            if texts:
                expected = reading.h5py.check_string_dtype(found.dtype) is not None and found.ndim == 1
            else:
                expected = found.dtype.kind in "fiu"
            return PlainData(reading, found, name, elsewhere, expected)

        return reading.told(look)

    def _member(self, name: str, kind: Any, what: str) -> Any:
        def find() -> Any:
            if "/" in name:  # a path, which may lead anywhere on its way
                raise damaged(self._reading.file, f"isn't in the format ({name!r} is no name)")
            link = self._group.get(name, getlink=True)
            if link is None:
                raise damaged(self._reading.file, f"isn't in the format (there is no {name!r})")
            if not isinstance(link, self._reading.h5py.HardLink):
                raise damaged(self._reading.file, f"has a link to elsewhere in the place of {name!r}")
            found = self._group[name]
            if not isinstance(found, kind):
                raise damaged(self._reading.file, f"isn't in the format ({name!r} is no {what})")
            return found

        return self._reading.told(find)


class PlainData:
    """A data set of an open file.

    Attributes:
        shape: as the file states it, and stores it.
    """

    def __init__(self, reading: _Reading, data: Any, name: str, elsewhere: bool, expected: bool) -> None:
        """
        Args:
            name: of it.
            elsewhere: its content lies in another file, or in other data sets.
            expected: whether it holds what it should.

        Raises:
            DatasetError: it does, or it doesn't; or it is larger than it can be.
        """
        self._reading, self._data = reading, data
        if elsewhere:
            raise damaged(reading.file, f"has what {name!r} holds elsewhere, and nothing but the file itself is read")
        if not expected or data.shape is None or not data.shape:
            raise damaged(reading.file, f"isn't in the format ({name!r} holds {data.dtype} of shape {data.shape})")
        self.shape: tuple[int, ...] = tuple(int(extent) for extent in data.shape)
        claimed, stored = math.prod(self.shape) * int(data.dtype.itemsize), int(data.id.get_storage_size())
        reading.claim(stored)
        if claimed > min(MOST_BYTES, MOST_GROWTH * stored):
            raise damaged(
                reading.file,
                f"claims {claimed} bytes in {name!r}, of which it stores {stored}; at most {MOST_BYTES} are read, and "
                f"{MOST_GROWTH} for each that is stored",
            )

    def read(self) -> NDArray[Any]:
        """All of it.

        Raises:
            DatasetError: the file is damaged, or there is no memory for it.
        """
        return self._reading.told(lambda: np.asarray(self._data[()]))

    def first_texts(self, count: int) -> list[str]:
        """The first texts of a line of them, ``count`` or all; what is no UTF-8 stands as a question mark.

        Raises:
            DatasetError: as `read`; or they are longer than the file, in which all might be one and the same.
        """
        found: list[str] = []
        room = max(self._reading.size, MOST_BYTES)

        def some() -> list[bytes | str]:
            return list(self._data[len(found) : min(len(found) + _TEXTS_AT_ONCE, count)])

        while len(found) < min(count, self.shape[0]):
            for one in self._reading.told(some):
                room -= len(one)
                found.append(one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one))
            if room < 0:
                raise damaged(self._reading.file, "claims texts that are longer than the whole of it")
        return found
