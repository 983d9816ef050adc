"""Data sets, loaded without a network and a part at a time.

Images stay uint8 until a task turns a batch of them into numbers: 60,000 of them are 47 MB that way and 188 MB as
float32. A participant's process asks ``load_partition`` for its own rows and holds only those.

``learning.data_names`` lists the kinds of names. Two forms of Fashion-MNIST ([XRV17], MIT licence) are built in: the
whole of it in IDX files, as the Debian package ``dataset-fashion-mnist`` installs them, and a subset that ships with
Sordino: the first 600 training and the first 200 test images of each class, in the order of those files.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from learning.blocks import Blocks, DatasetError, Part
from learning.data_names import BUILT_IN, OWN, check_dataset_name, format_and_path
from learning.prepared_data import PreparedSet, open_prepared

IMAGE_SIDE: Final = 28
CLASSES: Final = 10
NO_LABEL: Final = int(np.iinfo(np.int64).min)
"""Stands for a label that is missing, where statistics take gaps."""

SUBSET_FILE: Final = Path(__file__).parent / "data" / "fashion_mnist_subset.npz"
SUBSET_SHA256: Final = "17f8369e96553b6410b9b42604e4d49875ca05f22fd822951ef8f980a7184108"

FULL_FOLDER: Final = Path("/usr/share/datasets/fashion-mnist")
IDX_FILES: Final[Mapping[Part, tuple[str, str]]] = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
"""Images and labels of MNIST and Fashion-MNIST, as published but for compression."""
IDX_COUNTS: Final[Mapping[Part, int]] = {"train": 60_000, "test": 10_000}
_IDX_IMAGES: Final = b"\x00\x00\x08\x03"  # unsigned bytes, three dimensions
_IDX_LABELS: Final = b"\x00\x00\x08\x01"  # unsigned bytes, one dimension
_ROWS_A_BLOCK: Final = 1_000


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


@dataclass(frozen=True)
class Dataset:
    """Examples with their labels.

    Attributes:
        features: (n, ...) uint8 pixels in 0..255, float32 (pixels in 0..1 for the image tasks), or int32 (word numbers
            and other categories).
        labels: int64, class numbers from 0: (n,), or (n, L) where each example is a sequence of L classes.
        columns: names of the features, in order, where the examples are rows of named numbers; else empty.
        labelled: False where the data have no labels and zeros stand in their place.
        unread: what their file holds besides them.
    """

    features: NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int32]
    labels: NDArray[np.int64]
    columns: tuple[str, ...] = ()
    labelled: bool = True
    unread: Unread = Unread()

    def __post_init__(self) -> None:
        if self.features.dtype not in (np.uint8, np.float32, np.int32):
            raise DatasetError(f"features are {self.features.dtype}; expected uint8, float32 or int32")
        if self.labels.dtype != np.int64 or self.labels.ndim not in (1, 2):
            raise DatasetError(
                f"labels are {self.labels.dtype}{list(self.labels.shape)}; expected int64[n] or int64[n, L]"
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

    def form(self) -> Dataset:
        """One example of zeros, shaped, typed and named as these: what they look like."""
        return Dataset(
            np.zeros((1, *self.features.shape[1:]), dtype=self.features.dtype),
            np.zeros((1, *self.labels.shape[1:]), dtype=np.int64),
            self.columns,
            self.labelled,
        )


def resolve_dataset(name: str) -> str:
    """Return the concrete data set behind a name, for a study file to record.

    Indices of a partition mean nothing without it: ``fashion-mnist`` is another set where the full one is installed.
    Raises DatasetError: no data set could have this name. Whether the set exists is seen when it is loaded.
    """
    try:
        check_dataset_name(name)
    except ValueError as error:
        raise DatasetError(f"data set {name!r} {error}") from None
    if name != "fashion-mnist":
        return name
    files = [FULL_FOLDER / f"{name}.gz" for pair in IDX_FILES.values() for name in pair]
    return "fashion-mnist-full" if all(file.is_file() for file in files) else "fashion-mnist-subset"


def dataset_identity(name: str) -> str:
    """An identity of the training examples, wherever they lie: a ledger recognises data by it.

    For published files it is the SHA-256 of their content, read once in a process. Raises DatasetError: as
    ``load_dataset``.
    """
    held = _held(name)
    if held is None:
        return resolve_dataset(name)
    return held.sha256 if isinstance(held, PreparedSet) else held.known_by()


def load_dataset(name: str) -> tuple[Dataset, Dataset]:
    """Return (train, test).

    Raises DatasetError: unknown name, a file that is missing or damaged, or a set without a test part.
    """
    concrete = resolve_dataset(name)
    return load_part(concrete, "train"), load_part(concrete, "test")


def has_part(name: str, part: Part) -> bool:
    """Whether the set has such a part; all have ``train``."""
    held = _held(name)
    if held is None:
        return True
    return held.has(part) if isinstance(held, PreparedSet) else part in held.parts


def load_part(name: str, part: Part) -> Dataset:
    """Return one part, and read no more than that: the coordinator needs only ``test``."""
    held = _held(name)
    if held is not None:
        if not has_part(name, part):
            raise DatasetError(f"the data set {name} has no part {part!r}: name a file of test examples in [data] test")
        return Dataset(*held.rows(part, None))
    if resolve_dataset(name) == "fashion-mnist-subset":
        members = _read_subset(f"{part}_images", f"{part}_labels")
        return Dataset(members[f"{part}_images"], members[f"{part}_labels"].astype(np.int64))
    return Dataset(_read_full_images(part, None), _read_full_labels(part))


def count_examples(name: str) -> int:
    """Training examples."""
    held = _held(name)
    if held is not None:
        return held.count("train")
    return 6_000 if resolve_dataset(name) == "fashion-mnist-subset" else IDX_COUNTS["train"]


def load_labels(name: str, part: Part = "train") -> NDArray[np.int64]:
    """Return the labels alone, int64 (n,) or (n, L)."""
    held = _held(name)
    if held is not None:
        return held.labels(part)
    if resolve_dataset(name) == "fashion-mnist-subset":
        return _read_subset(f"{part}_labels")[f"{part}_labels"].astype(np.int64)
    return _read_full_labels(part)


def load_users(name: str, part: Part = "train") -> NDArray[np.int32] | NDArray[np.int64] | None:
    """Return (n,) the user of each example, as numbers from 0; None in a set without users."""
    held = _held(name)
    return None if held is None else held.users(part)


def load_partition(name: str, indices: ArrayLike) -> Dataset:
    """Return the training rows at ``indices``, in that order, holding no others: larger sets are read in blocks, or
    mapped.

    Raises DatasetError: as ``load_dataset``; also indices outside the training set.
    """
    held = _held(name)
    if held is not None:
        return Dataset(*held.rows("train", _checked_indices(indices, held.count("train"))))
    if resolve_dataset(name) == "fashion-mnist-subset":
        return load_part(name, "train").take(indices)
    rows = _checked_indices(indices, IDX_COUNTS["train"])
    return Dataset(_read_full_images("train", rows), _read_full_labels("train")[rows])


def _held(name: str) -> PreparedSet | Blocks | None:
    """The set under a name; None for those that are built in. Raises DatasetError: it doesn't exist."""
    concrete = resolve_dataset(name)
    if concrete in BUILT_IN:
        return None
    if concrete == OWN:
        raise DatasetError("with the data set 'own' each participant names its own file: there is no set to load")
    found = format_and_path(concrete)
    if found is None:
        return open_prepared(concrete)
    from learning.published import open_published

    return open_published(*found)


def _checked_indices(indices: ArrayLike, count: int) -> NDArray[np.int64]:
    rows = np.asarray(indices)
    if rows.size == 0:
        rows = rows.astype(np.int64)
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise DatasetError(f"indices are {rows.dtype}{list(rows.shape)}; expected whole numbers in one row")
    if rows.size and (int(rows.min()) < 0 or int(rows.max()) >= count):
        raise DatasetError(f"indices run from {rows.min()} to {rows.max()}; the data set has {count} rows")
    return rows.astype(np.int64)


def _read_subset(*members: str) -> dict[str, NDArray[np.uint8]]:
    """Read members of the shipped file after checking the whole file against the pinned digest."""
    try:
        content = SUBSET_FILE.read_bytes()
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise DatasetError(f"data set file {SUBSET_FILE}: {reason}; reinstall sordino") from error
    if hashlib.sha256(content).hexdigest() != SUBSET_SHA256:
        raise DatasetError(f"data set file {SUBSET_FILE} is damaged (wrong SHA-256); reinstall sordino")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            return {member: archive[member] for member in members}
    except (KeyError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        # Only a wrong pin can lead here: the bytes are those this release was made with.
        raise DatasetError(f"data set file {SUBSET_FILE} is not the expected archive") from error


class _IdxFile:
    """A gzipped IDX file of unsigned bytes, read front to back; any defect is one ``DatasetError``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _damaged(self, why: str) -> DatasetError:
        return DatasetError(
            f"data set file {self.path} is {why}; reinstall the Debian package dataset-fashion-mnist, "
            "or name the data set 'fashion-mnist-subset'"
        )

    def _read(self, stream: BinaryIO, size: int) -> bytes:
        content = stream.read(size)
        if len(content) != size:
            raise self._damaged("too short")
        return content

    def rows(self, magic: bytes, shape: tuple[int, ...], wanted: NDArray[np.int64] | None) -> NDArray[np.uint8]:
        """Return rows ``wanted`` (None: all) of an array of exactly ``shape``, in the order wanted."""
        count, row_shape = shape[0], shape[1:]
        row_bytes = int(np.prod(row_shape, dtype=np.int64))
        result = np.empty((count if wanted is None else len(wanted), *row_shape), dtype=np.uint8)
        header = magic + b"".join(extent.to_bytes(4, "big") for extent in shape)
        try:
            with gzip.open(self.path, "rb") as opened:
                stream = cast("BinaryIO", opened)
                if self._read(stream, len(header)) != header:
                    raise self._damaged(f"not an IDX file of shape {shape}")
                for start in range(0, count, _ROWS_A_BLOCK):
                    rows = min(_ROWS_A_BLOCK, count - start)
                    block = np.frombuffer(self._read(stream, rows * row_bytes), dtype=np.uint8)
                    block = block.reshape(rows, *row_shape)
                    if wanted is None:
                        result[start : start + rows] = block
                    else:
                        here = (wanted >= start) & (wanted < start + rows)
                        result[here] = block[wanted[here] - start]
                if stream.read(1):  # reading to the end also makes gzip compare its checksum
                    raise self._damaged("too long")
        except FileNotFoundError as error:
            raise self._damaged("missing") from error
        except (OSError, EOFError, zlib.error) as error:
            raise self._damaged("damaged or unreadable") from error
        return result


def _read_full_images(part: Part, wanted: NDArray[np.int64] | None) -> NDArray[np.uint8]:
    file = _IdxFile(FULL_FOLDER / f"{IDX_FILES[part][0]}.gz")
    return file.rows(_IDX_IMAGES, (IDX_COUNTS[part], IMAGE_SIDE, IMAGE_SIDE), wanted)


def _read_full_labels(part: Part) -> NDArray[np.int64]:
    path = FULL_FOLDER / f"{IDX_FILES[part][1]}.gz"
    labels = _IdxFile(path).rows(_IDX_LABELS, (IDX_COUNTS[part],), None).astype(np.int64)
    if int(labels.max()) >= CLASSES:
        raise DatasetError(f"data set file {path} holds labels above {CLASSES - 1}")
    return labels
