"""A participant's or the coordinator's own data file: ``.npz`` or ``.csv``.

- ``.npz``: ``features``, uint8, float32 or int32 (n, ...), and ``labels``, int64 (n,) or (n, L). float64 and other
integers are taken too, where only the precision of float32 is lost. Nothing in it is unpickled.

- ``.csv``: one line of column names, then numbers; the column ``label`` holds the classes, all others are features,
float32, in their order.

A path without a suffix stands for the one of the two that exists. Labels may be left out where a task needs none (a
mean, a histogram): they are 0 then.

A participant's file is refused by its form alone: kind, names of the columns, shapes and types. Others see that a
participant stays away, and a stranger chooses what would make it stay away, so no value may (decision 0004). A cell
that can't be used (empty, a word, a number that isn't finite) is missing for a statistic; of a model's examples the row
is left out. `unread_told` reports counts to the participant. The coordinator's own file is refused for such cells.
"""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.blocks import DatasetError
from learning.data_names import BROUGHT
from learning.datasets import NO_LABEL, Dataset, Unread, has_part, load_part
from learning.task_names import STATISTICS
from runtime.text import counted

if TYPE_CHECKING:
    from learning.task import Task

SUFFIXES: Final = (".csv", ".npz")
LABEL: Final = "label"
_ROWS_A_BLOCK: Final = 1_000
_MOST_NAMED: Final = 5  # columns in a warning
_OTHER_SEPARATORS: Final = (";", "\t", "|")
_LARGEST_LABEL: Final = 2**53


class _Missing(Enum):
    """What becomes of cells that can't be used."""

    REFUSED = 0
    KEPT = 1
    LEFT_OUT = 2


def read_own(path: Path) -> Dataset:
    """All examples of the coordinator's own file, or of a file whose owner may be shown errors about its values.

    Raises DatasetError: it is missing, of another kind, empty, or holds anything but numbers; the message names what to
    change.
    """
    data = _read(path, _Missing.REFUSED)
    if len(data) == 0:
        raise DatasetError(f"data file {_located(path)} holds no examples")
    return data


def read_held(path: Path, *, statistics: bool) -> Dataset:
    """A participant's examples: every value is read, or is missing.

    ``statistics``: missing values are NaN in float32, and labels `NO_LABEL`. Else rows with any are left out.

    Raises DatasetError: the file doesn't exist or has another form; no value decides it, and none is in the message.
    """
    return _read(path, _Missing.KEPT if statistics else _Missing.LEFT_OUT)


def _read(path: Path, missing: _Missing) -> Dataset:
    path = _located(path)
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise DatasetError(f"data file {path}: only .npz and .csv are read; see docs/data.md")
    try:
        return _read_npz(path, missing) if kind == ".npz" else _read_csv(path, missing)
    except FileNotFoundError:
        raise DatasetError(f"there is no data file {path}: put it there, or correct its path") from None
    except OSError as error:
        raise DatasetError(f"data file {path} can't be read: {error.strerror or error}") from error
    except MemoryError:
        why = "it needs more memory than there is, or states shapes that it doesn't have"
        raise DatasetError(f"data file {path}: {why}") from None
    except DatasetError as error:
        raise DatasetError(f"data file {path}: {error}") from None


def _located(path: Path) -> Path:
    """The file that a path without a suffix stands for. Raises DatasetError: none exists, or both do."""
    if path.suffix or path.is_file():
        return path
    found = [one for suffix in SUFFIXES if (one := path.with_suffix(suffix)).is_file()]
    if len(found) == 1:
        return found[0]
    both = " and ".join(str(path.with_suffix(suffix)) for suffix in SUFFIXES)
    if found:
        raise DatasetError(f"there are {both}, and a participant has one file: take one away")
    first, second = (path.with_suffix(suffix) for suffix in SUFFIXES)
    raise DatasetError(f"there is no data file {first}, nor {second.name}: put one there")


def check_form(task: Task, data: Dataset, path: Path) -> None:
    """Check that a task can use a file's examples, by their columns, shape and types alone.

    No value is looked at: a participant whose file is refused stays away, and others see that.

    ``path``: of the file, for the message.

    Raises DatasetError: a column is missing, or examples are of another shape; the message names what the file has.
    """
    check = getattr(task, "check_form", None)
    if check is None:  # a user's own task, which says nothing about examples
        return
    try:
        check(data.form())
    except ValueError as error:
        raise DatasetError(
            f"data file {_located(path)} doesn't fit the study's task {task.name}: {error}. {columns_told(data)}"
        ) from None


def unread_told(name: str, task: Task | None, data: Dataset, path: Path) -> list[str]:
    """What in a participant's file can't be used, for the participant: one sentence each, with counts and columns, no
    cell.

    Args:
        task: where it is a statistic: only the columns that it reads count.
        data: as `read_held` returns them.

    Raises ValueError: a column that the task reads doesn't exist.
    """
    file, unread = f"data file {_located(path)}", data.unread
    notes = []
    if unread.lines:
        why = "with another number of cells than the first line has names"
        notes.append(f"{file}: left out {counted(unread.lines, 'line')} {why}")
    cells = dict(unread.cells)
    if name not in STATISTICS:
        if unread.rows:
            why = f"no number can be read in {_places(unread.cells)}"
            notes.append(f"{file}: left out {counted(unread.rows, 'row')}, since {why}")
        if not len(data):
            notes.append(f"{file}: NO ROW CAN BE USED: this participant takes part, is charged, and sends zeros")
        return notes
    answers: dict[str, int] = getattr(task, "answers", lambda _: {})(data)
    silent = tuple((column, cells.get(column, 0)) for column, values in answers.items() if not values)
    if silent:
        notes.append(
            f"{file}: NO VALUE CAN BE USED in {_places(silent)}, which the study asks for: this participant takes "
            "part, is charged, and says nothing of it"
        )
    some = tuple((column, cells[column]) for column, values in answers.items() if values and column in cells)
    if some:
        notes.append(f"{file}: no number can be read in {_places(some)}; such cells count as missing")
    return notes


def _places(cells: tuple[tuple[str, int], ...]) -> str:
    shown = [f"column {name} ({counted(count, 'cell')})" for name, count in cells[:_MOST_NAMED]]
    more = [f"{len(cells) - _MOST_NAMED} more columns"] * (len(cells) > _MOST_NAMED)
    return ", ".join(shown + more)


def says_nothing(data: Dataset) -> bool:
    """Whether no row has a value or a label: such data identify no owner."""
    if data.labelled and bool((data.labels != NO_LABEL).any()):
        return False
    return not len(data) or (data.features.dtype.kind == "f" and bool(np.isnan(data.features).all()))


def columns_told(data: Dataset) -> str:
    """What columns there are, in one sentence: ``Its columns are 0 age, 1 weight; and label``."""
    if not data.columns:
        shape = data.features.shape[1:]
        each = "one number" if not shape else f"{shape[0]} numbers" if len(shape) == 1 else f"shape {shape}"
        return f"Its examples have {each} each, and {'labels' if data.labelled else 'no labels'}"
    shown = ", ".join(f"{number} {name}" for number, name in enumerate(data.columns))
    return f"Its columns are {shown}; and {LABEL if data.labelled else f'none is called {LABEL}'}"


def content_sha256(data: Dataset) -> str:
    """Digest of the examples in their order: the same for the same numbers in ``.npz`` and ``.csv``, as float64, which
    holds each feature and each label of a usual size exactly.
    """
    digest = hashlib.sha256(b"sordino/v1/own-data\x00")
    for array in (data.features, data.labels):
        digest.update(f"{list(array.shape)}\x00".encode())
        for start in range(0, len(array), _ROWS_A_BLOCK):
            digest.update(array[start : start + _ROWS_A_BLOCK].astype("<f8").tobytes())
    return digest.hexdigest()


def empty() -> Dataset:
    """No examples: the test data of a coordinator that has none."""
    return Dataset(np.zeros((0, 0), dtype=np.float32), np.zeros(0, dtype=np.int64))


def app_partition(part: int, parts: int) -> Dataset:
    """What stands for data that a task loads by itself: one row, the numbers of the partition and of all."""
    columns = ("partition-id", "num-partitions")
    return Dataset(np.array([[part, parts]], np.int32), np.zeros(1, np.int64), columns, labelled=False)


def load_test(dataset: str, file: str) -> Dataset:
    """The coordinator's test data: its own file, else the set's test part, else nothing.

    Args:
        dataset: as ``learning.data_names`` lists them.
        file: empty for none.

    Raises DatasetError: the file or the set can't be used.
    """
    if file:
        return read_own(Path(file))
    if dataset in BROUGHT or not has_part(dataset, "test"):
        return empty()
    return load_part(dataset, "test")


def _read_npz(path: Path, missing: _Missing) -> Dataset:
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
    features = members["features"]
    labels = members.get("labels", np.zeros(len(features) if features.ndim else 0, dtype=np.int64))
    if not np.issubdtype(labels.dtype, np.integer):
        raise DatasetError(f"labels are {labels.dtype}; expected whole numbers")
    if not (features.ndim and labels.ndim) or len(features) != len(labels):
        raise DatasetError(f"{features.shape} features do not match {len(labels) if labels.ndim else 'no'} labels")
    return _dataset(features, labels.astype(np.int64), (), "labels" in members, missing)


def _read_csv(path: Path, missing: _Missing) -> Dataset:
    rows: list[list[float]] = []
    numbers: list[int] = []
    odd = 0
    # A byte that is no UTF-8 makes its cell a word; in the names it shows that this is no text of columns.
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = csv.reader(file)
        names = _names(lines)
        for cells in _cells(lines):
            if cells is not None and len(cells) == len(names):
                rows.append([_number(cell) for cell in cells])
                numbers.append(lines.line_num)
            elif missing is _Missing.REFUSED:
                found = "can't be split into cells" if cells is None else f"has {len(cells)} cells"
                raise DatasetError(f"line {lines.line_num} {found}; the first line names {len(names)} columns")
            else:
                odd += 1
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
    columns = tuple(name for name in names if name != LABEL)
    at = names.index(LABEL) if LABEL in names else None
    labels = np.zeros(len(table), dtype=np.int64) if at is None else table[:, at]
    features = table if at is None else np.delete(table, at, axis=1)
    return _dataset(features, labels, columns, at is not None, missing, numbers, odd)


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
    if not names or any(np.isfinite(_number(name)) for name in names):
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


def _number(cell: str) -> float:
    """What a cell holds: NaN if it is empty, infinite if it is a word."""
    try:
        return float(cell)
    except ValueError:
        return np.inf if cell.strip() else np.nan


def _dataset(
    features: NDArray[Any],
    labels: NDArray[Any],
    columns: tuple[str, ...],
    labelled: bool,
    missing: _Missing,
    lines: list[int] | None = None,
    odd: int = 0,
) -> Dataset:
    """The data as read, with missing values refused, kept or left out.

    Args:
        features: (n, ...), of any type.
        labels: int64, or float64 of a .csv.
        lines: line number of each row; None: the file has no lines.
        odd: number of lines that were left out.

    Raises DatasetError: the features aren't numbers; or a value is missing, where that is refused.
    """
    values, unread, gaps = _values(features, missing)
    classes, label_unread, label_gaps = _classes(labels)
    if not (unread.any() or gaps.any() or label_unread.any() or label_gaps.any()):
        return Dataset(values, classes, columns, labelled, Unread(lines=odd))
    names = (*(columns or map(str, range(unread.shape[1]))), LABEL)
    unread = np.column_stack([unread, label_unread])
    lost = np.column_stack([gaps, label_gaps]) | unread
    if missing is _Missing.REFUSED:
        row, column = np.argwhere(lost)[0]
        where = f"row {row}" if lines is None else f"line {lines[row]}"
        what = "whole" if names[column] == LABEL else "finite"
        raise DatasetError(f"{where}, column {names[column]} holds no {what} number: fill gaps, code words")
    counted = unread if missing is _Missing.KEPT else lost
    cells = tuple((name, int(count)) for name, count in zip(names, counted.sum(axis=0), strict=True) if count)
    if missing is _Missing.LEFT_OUT:
        whole = ~lost.any(axis=1)
        left = Unread(cells, odd, int((~whole).sum()))
        return Dataset(values[whole], classes[whole], columns, labelled, left)
    values[unread[:, :-1].reshape(values.shape)] = np.nan
    return Dataset(values, classes, columns, labelled, Unread(cells, odd))


def _values(features: NDArray[Any], missing: _Missing) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.bool_]]:
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
        if missing is _Missing.KEPT:  # no task of figures looks at the type
            return features.astype(np.float32), nowhere, nowhere
        if missing is _Missing.REFUSED:
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
