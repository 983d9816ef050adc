"""Tables of numbers in files: ``.csv``, ``.npz`` and, with pyarrow, ``.parquet``.

What can't be used (a gap, a word, an infinite number) is refused, kept as missing, or left out with its row: `Missing`
says which. `learning.own_data` has the rules for participants' files.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.blocks import DatasetError, library
from learning.datasets import LABEL, NO_LABEL, Dataset, Unread

SUFFIXES: Final = (".csv", ".npz", ".parquet")
_OTHER_SEPARATORS: Final = (";", "\t", "|")
_LARGEST_LABEL: Final = 2**53
_PREDICTED: Final = "; --task regression predicts numbers with fractions"


class Missing(Enum):
    """What becomes of cells that can't be used."""

    REFUSED = 0
    KEPT = 1
    LEFT_OUT = 2


def read_table(path: str | os.PathLike[str], *, label: str = LABEL, numeric_labels: bool = False) -> Dataset:
    """All rows of a .csv, .npz or .parquet whose cells can be used; how many can't is in ``unread`` of the result.

    Args:
        path: of the file; its suffix says how it is read. A .csv has a line of names, then numbers. A .parquet has
            columns of numbers; it needs pyarrow. An .npz has ``features`` (n, ...) and perhaps ``labels`` (n,).
        label: name of the column of labels; all others are features. An .npz has its own name for it.
        numeric_labels: labels are numbers to predict, float32, and not classes, int64.

    Returns features float32 (n, columns), of an .npz as it has them; without labels these are 0.

    Raises learning.blocks.DatasetError: the file is missing or has another form, such as a column of text.
    """
    with named_in_errors(path := Path(path)):
        return table(path, Missing.LEFT_OUT, label, numeric_labels=numeric_labels)


def table(path: Path, missing: Missing, label: str = LABEL, *, numeric_labels: bool = False) -> Dataset:
    """As `read_table`, with missing values as ``missing`` says, and errors that don't name the file."""
    kind = path.suffix.lower()
    if kind == ".npz":
        return _read_npz(path, missing, numeric_labels)
    if kind == ".csv":
        return _read_csv(path, missing, label, numeric_labels)
    if kind == ".parquet":
        return _read_parquet(path, missing, label, numeric_labels)
    raise DatasetError(
        f"only {', '.join(SUFFIXES)} and folders of images are read; a task's own read takes any other: see "
        "docs/your_own_data.md"
    )


@contextmanager
def named_in_errors(path: Path) -> Iterator[None]:
    """Every error of reading a file as one sentence that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise DatasetError(f"there is no data file {path}: put it there, or correct its path") from None
    except OSError as error:
        raise DatasetError(f"data file {path} can't be read: {error.strerror or error}") from error
    except MemoryError:
        why = "it needs more memory than there is, or states shapes that it doesn't have"
        raise DatasetError(f"data file {path}: {why}") from None
    except DatasetError as error:
        if error.message.startswith(("data file", "there is no data file")):
            raise
        raise DatasetError(f"data file {path}: {error}") from None


def of_arrays(
    features: NDArray[Any],
    labels: NDArray[Any] | None,
    missing: Missing,
    columns: tuple[str, ...] = (),
    *,
    numeric_labels: bool | None = None,
) -> Dataset:
    """Examples of arrays that somebody made.

    Args:
        features: (n, ...) of any numbers.
        labels: (n,), or (n, L) whole numbers; None: there are none.
        numeric_labels: whether labels are numbers to predict; None: they are where their type has fractions.

    Raises DatasetError: shapes or types that don't fit; or a value is missing, where that is refused.
    """
    labelled = labels is not None
    if labels is None:
        labels = np.zeros(len(features) if features.ndim else 0, dtype=np.int64)
    whole = np.issubdtype(labels.dtype, np.integer)
    if numeric_labels is None:
        numeric_labels = not whole
    if not (whole or (numeric_labels and np.issubdtype(labels.dtype, np.floating))):
        expected = "numbers" if numeric_labels else f"whole numbers{_PREDICTED}"
        raise DatasetError(f"labels are {labels.dtype}; expected {expected}")
    if numeric_labels and labels.ndim > 1:
        raise DatasetError(f"labels {list(labels.shape)} are fractions: a number to predict is one for each example")
    if not (features.ndim and labels.ndim) or len(features) != len(labels):
        raise DatasetError(f"{features.shape} features do not match {len(labels) if labels.ndim else 'no'} labels")
    values = labels.astype(np.float64 if numeric_labels else np.int64)
    return dataset_of(features, values, columns, labelled, missing, numeric_labels=numeric_labels)


def _read_npz(path: Path, missing: Missing, numeric_labels: bool) -> Dataset:
    try:
        with np.load(path, allow_pickle=False) as archive:
            members = {name: archive[name] for name in archive.files}
    except (OSError, MemoryError):
        raise
    except Exception as error:  # what a damaged archive, or a header in it, raises is not bounded
        raise DatasetError(f"not an .npz file of plain arrays ({error}): write it with numpy.savez") from None
    for name, member in members.items():
        if not isinstance(member, np.ndarray):
            raise DatasetError(f"its member {name} is no array: write it with numpy.savez")
    if "features" not in members or set(members) - {"features", "labels"}:
        raise DatasetError(f"it holds {', '.join(sorted(members)) or 'nothing'}; expected features and labels")
    return of_arrays(members["features"], members.get("labels"), missing, numeric_labels=numeric_labels)


def _read_csv(path: Path, missing: Missing, label: str, numeric_labels: bool) -> Dataset:
    rows: list[list[float]] = []
    numbers: list[int] = []
    odd = 0
    # A byte that is no UTF-8 makes its cell a word; in the names it shows that this is no text of columns.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = csv.reader(file)
        names = _names(lines)
        for cells in _cells(lines):
            if cells is not None and len(cells) == len(names):
                rows.append([number(cell) for cell in cells])
                numbers.append(lines.line_num)
            elif missing is Missing.REFUSED:
                found = "can't be split into cells" if cells is None else f"has {len(cells)} cells"
                raise DatasetError(f"line {lines.line_num} {found}; the first line names {len(names)} columns")
            else:
                odd += 1
    values = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    return _of_columns(values, names, label, missing, numeric_labels, numbers, odd)


def _read_parquet(path: Path, missing: Missing, label: str, numeric_labels: bool) -> Dataset:
    arrow, parquet = (library(name, "parquet", "a .parquet") for name in ("pyarrow", "pyarrow.parquet"))
    try:
        held = parquet.read_table(path)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # what a damaged file raises is not bounded
        raise DatasetError(f"not a .parquet ({type(error).__name__})") from None
    names = _checked_names(held.column_names)
    kinds = arrow.types
    numeric = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal)
    words = [f"{one.name} ({one.type})" for one in held.schema if not any(is_kind(one.type) for is_kind in numeric)]
    if words:
        raise DatasetError(f"its columns must hold numbers, and {', '.join(words)} don't: code them as numbers first")
    # A cell without a value is NaN then.
    columns = [one.cast(arrow.float64(), safe=False).to_numpy() for one in held.columns]  # any whole number has a place
    values = np.column_stack(columns) if columns else np.zeros((0, 0))
    return _of_columns(values, names, label, missing, numeric_labels)


def _of_columns(
    values: NDArray[np.float64],
    names: list[str],
    label: str,
    missing: Missing,
    numeric_labels: bool,
    lines: list[int] | None = None,
    odd: int = 0,
) -> Dataset:
    """A table (n, columns), NaN where a cell is empty and infinite where it can't be used; the rest as `dataset_of`."""
    at = names.index(label) if label in names else None
    if at is None and label != LABEL:
        raise DatasetError(f"no column is called {label}; its columns are {', '.join(names)}")
    columns = tuple(name for name in names if name != label)
    labels = np.zeros(len(values), dtype=np.int64) if at is None else values[:, at]
    features = values if at is None else np.delete(values, at, axis=1)
    return dataset_of(features, labels, columns, at is not None, missing, lines, odd, numeric_labels=numeric_labels)


def _names(lines: Iterator[list[str]]) -> list[str]:
    """The columns' names, of the first line."""
    try:
        names = [name.strip() for name in next(lines, [])]
    except csv.Error as error:
        raise DatasetError(f"not a text file of columns ({error})") from None
    if any("\0" in name or any("\ud800" <= letter <= "\udfff" for letter in name) for name in names):
        raise DatasetError("not a text file of columns: its first line is no UTF-8")
    other = next((one for one in _OTHER_SEPARATORS if len(names) == 1 and one in names[0]), None)
    if other is not None:  # as spreadsheets write them where decimals have a comma
        raise DatasetError(
            "cells are separated by commas, decimals have a point; this file seems to use "
            + ("tabs" if other == "\t" else other)
        )
    return _checked_names(names)


def _checked_names(names: list[str]) -> list[str]:
    if not names or any(np.isfinite(number(name)) for name in names):
        raise DatasetError("its first line must name the columns")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise DatasetError(f"two columns are called {twice!r}")
    return names


def _cells(lines: Iterator[list[str]]) -> Iterator[list[str] | None]:
    """Each line's cells, but of empty ones; None for a line that can't be split."""
    while True:
        try:
            cells = next(lines)
        except StopIteration:
            return
        except csv.Error:
            yield None
        else:
            if cells:
                yield cells


def number(cell: str) -> float:
    """What a cell holds: NaN if it is empty, infinite if it is a word."""
    try:
        return float(cell)
    except ValueError:
        return np.inf if cell.strip() else np.nan


def dataset_of(
    features: NDArray[Any],
    labels: NDArray[Any],
    columns: tuple[str, ...],
    labelled: bool,
    missing: Missing,
    lines: list[int] | None = None,
    odd: int = 0,
    *,
    numeric_labels: bool = False,
) -> Dataset:
    """The data as read, with missing values refused, kept or left out.

    Args:
        features: (n, ...), of any type.
        labels: int64, or float64 of a table.
        lines: line number of each row; None: the file has no lines.
        odd: number of lines that were left out.
        numeric_labels: labels are numbers to predict.

    Raises DatasetError: the features aren't numbers; or a value is missing, where that is refused.
    """
    values, unread, gaps = _values(features, missing)
    found, label_unread, label_gaps = _amounts(labels) if numeric_labels else _classes(labels)
    if not (unread.any() or gaps.any() or label_unread.any() or label_gaps.any()):
        return Dataset(values, found, columns, labelled, Unread(lines=odd))
    names = (*(columns or map(str, range(unread.shape[1]))), LABEL)
    unread = np.column_stack([unread, label_unread])
    lost = np.column_stack([gaps, label_gaps]) | unread
    if missing is Missing.REFUSED:
        row, column = np.argwhere(lost)[0]
        where = f"row {row}" if lines is None else f"line {lines[row]}"
        is_class = column == len(names) - 1 and not numeric_labels
        what, hint = ("whole", _PREDICTED) if is_class else ("finite", "")
        raise DatasetError(f"{where}, column {names[column]} holds no {what} number: fill gaps, code words{hint}")
    counted = unread if missing is Missing.KEPT else lost
    cells = tuple((name, int(count)) for name, count in zip(names, counted.sum(axis=0), strict=True) if count)
    if missing is Missing.LEFT_OUT:
        whole = ~lost.any(axis=1)
        left = Unread(cells, odd, int((~whole).sum()))
        return Dataset(values[whole], found[whole], columns, labelled, left)
    values[unread[:, :-1].reshape(values.shape)] = np.nan
    return Dataset(values, found, columns, labelled, Unread(cells, odd))


def _values(features: NDArray[Any], missing: Missing) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.bool_]]:
    """Features as a `Dataset` holds them; where they can't be used, and where they are missing, (n, numbers) each."""
    width = int(np.prod(features.shape[1:], dtype=np.int64))
    nowhere = np.broadcast_to(np.False_, (len(features), width))
    kind = features.dtype.kind
    if features.dtype in (np.uint8, np.int32):
        return features, nowhere, nowhere
    if kind == "b":
        return features.astype(np.uint8), nowhere, nowhere
    if kind in "iu":
        limits = np.iinfo(np.int32)
        if not features.size or (int(features.min()) >= limits.min and int(features.max()) <= limits.max):
            return features.astype(np.int32), nowhere, nowhere
        if missing is Missing.KEPT:  # no task of figures looks at the type
            return features.astype(np.float32), nowhere, nowhere
        if missing is Missing.REFUSED:
            raise DatasetError("features don't fit into int32: make them float32")
        single = features.astype(np.int32)
        return single, (single != features).reshape(len(features), width), nowhere
    if kind != "f":
        raise DatasetError(f"features are {features.dtype}; expected numbers")
    with np.errstate(over="ignore"):
        values = features.astype(np.float32)
    if np.isfinite(values).all():
        return values, nowhere, nowhere
    flat = values.reshape(len(values), width)
    return values, np.isinf(flat), np.isnan(flat)


def _classes(labels: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Labels as a `Dataset` holds them, `NO_LABEL` where there is none; where they can't be used; where missing."""
    if labels.dtype.kind == "i":
        nowhere = np.broadcast_to(np.False_, labels.shape[:1])
        return labels, nowhere, nowhere
    gaps = np.isnan(labels)
    with np.errstate(invalid="ignore"):
        usable = (labels == np.rint(labels)) & (np.abs(labels) <= _LARGEST_LABEL)
    return np.where(usable, labels, float(NO_LABEL)).astype(np.int64), ~usable & ~gaps, gaps


def _amounts(labels: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
    """As `_classes`, of labels that are numbers to predict."""
    with np.errstate(over="ignore"):
        found = labels.astype(np.float32)
    return found, np.isinf(found), np.isnan(found)
