"""HDF5 files as plain storage: everything that is read lies in the named file, and is as large as the file says.

A link in HDF5 may lead into another file, and a data set may have its content in any file that this process may read,
or in other data sets. So a stranger's file could show the content of other files of this machine, and the SHA-256 by
which a ledger knows the file would stay when that content changes. A data set that was never written may claim any
number of values in no bytes. So only plain links are followed, and a claimed size is compared with the stored one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from learning.blocks import DatasetError, library

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
    """The file's root. Raises DatasetError: h5py isn't installed, or the file isn't HDF5."""
    h5py = library("h5py", "data", str(file))
    reading = _Reading(file, h5py)
    root = reading.checked(lambda: h5py.File(file, "r"))
    try:
        yield PlainGroup(reading, root)
    finally:
        root.close()


class _Reading:
    """One file that is read, and how many stored bytes its data sets may still claim."""

    def __init__(self, file: Path, h5py: Any) -> None:
        self.file, self.h5py = file, h5py
        self.size = self.left = self.checked(lambda: file.stat().st_size)

    def checked(self, read: Callable[[], _R]) -> _R:
        """Return what ``read`` returns; what h5py raises of a damaged file becomes one error that names the file."""
        try:
            return read()
        except MemoryError:
            raise damaged(self.file, "needs more memory than there is") from None
        except DatasetError:
            raise
        except (OSError, RuntimeError, LookupError, AttributeError, TypeError, ValueError) as error:
            raise damaged(self.file, f"isn't in the format ({error})") from None


class PlainGroup:
    """A group of an open file."""

    def __init__(self, reading: _Reading, group: Any) -> None:
        self._reading, self._group = reading, group

    def __iter__(self) -> Iterator[str]:
        """The names of its members, in the file's order."""
        return iter(self._reading.checked(lambda: [str(name) for name in self._group]))

    def group(self, name: str) -> PlainGroup:
        """Return a group in it. Raises DatasetError: it doesn't exist."""
        return PlainGroup(self._reading, self._member(name, self._reading.h5py.Group, "group"))

    def data(self, name: str, *, texts: bool = False) -> PlainData:
        """Return a data set in it, of numbers or of one line of texts; no value is read yet.

        Raises DatasetError: it doesn't exist, its content lies elsewhere, or it claims more than it can hold.
        """
        found = self._member(name, self._reading.h5py.Dataset, "data set")
        return self._reading.checked(lambda: PlainData(self._reading, found, name, texts))

    def _member(self, name: str, kind: Any, what: str) -> Any:
        def find() -> Any:
            if "/" in name:  # a path, any part of which may be a link
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

        return self._reading.checked(find)


class PlainData:
    """A data set of an open file, made by `PlainGroup.data`.

    Attributes:
        shape: as the file states it, and stores it.
    """

    def __init__(self, reading: _Reading, data: Any, name: str, texts: bool) -> None:
        self._reading, self._data = reading, data
        if data.external is not None or data.is_virtual:
            raise damaged(reading.file, f"has what {name!r} holds elsewhere, and nothing but the file itself is read")
        is_text = reading.h5py.check_string_dtype(data.dtype) is not None and data.ndim == 1
        if not (is_text if texts else data.dtype.kind in "fiu") or not data.shape:
            raise damaged(reading.file, f"isn't in the format ({name!r} holds {data.dtype} of shape {data.shape})")
        self.shape: tuple[int, ...] = tuple(int(extent) for extent in data.shape)
        claimed, stored = math.prod(self.shape) * int(data.dtype.itemsize), int(data.id.get_storage_size())
        reading.left -= stored
        if reading.left < 0:  # one part of the file stands under several names
            raise damaged(reading.file, "claims to store more than it holds")
        if claimed > min(MOST_BYTES, MOST_GROWTH * stored):
            raise damaged(
                reading.file,
                f"claims {claimed} bytes in {name!r}, of which it stores {stored}; at most {MOST_BYTES} are read, and "
                f"{MOST_GROWTH} for each that is stored",
            )

    def read(self) -> NDArray[Any]:
        """Return all of it. Raises DatasetError: the file is damaged, or there is no memory for it."""
        return self._reading.checked(lambda: np.asarray(self._data[()]))

    def first_texts(self, count: int) -> list[str]:
        """Return the first ``count`` texts, or all; bytes that aren't UTF-8 become question marks.

        Raises DatasetError: as `read`; or they are longer than the file, in which all might be one and the same.
        """
        found: list[str] = []
        room, most = max(self._reading.size, MOST_BYTES), min(count, self.shape[0])
        while len(found) < most:
            at = slice(len(found), min(len(found) + _TEXTS_AT_ONCE, most))
            for one in self._reading.checked(partial(self._data.__getitem__, at)):
                room -= len(one)
                found.append(one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one))
            if room < 0:
                raise damaged(self._reading.file, "claims texts that are longer than the whole of it")
        return found
