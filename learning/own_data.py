"""A participant's or the coordinator's own data: a file or a folder, read by its suffix or by the task's own ``read``.

- ``.npz``: ``features``, uint8, float32 or int32 (n, ...), and ``labels``, int64 (n,) or (n, L). float64 and other
integers are taken too, where only the precision of float32 is lost. Nothing in it is unpickled.

- ``.csv``: one line of column names, then numbers; the column ``label`` holds the classes, all others are features,
float32, in their order. ``.parquet``: the same columns.

- a folder: images, see `learning.image_folder`.

- a user's own class may have a static method ``read(path)``, which then reads every file in their place.

A path without a suffix stands for the one file of that name that exists. Labels may be left out where a task needs none
(a mean, a histogram): they are 0 then. Where a task predicts a number they are float32.

A participant's file is refused by its form alone: kind, names of the columns, shapes and types. Others see that a
participant stays away, and a stranger chooses what would make it stay away, so no value may (decision 0004). A cell
that can't be used (empty, a word, a number that isn't finite) is missing for a statistic; of a model's examples the row
is left out. `unread_told` reports counts to the participant. The coordinator's own file is refused for such cells.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from learning.blocks import DatasetError, file_version
from learning.data_checks import fitting_options
from learning.data_names import BROUGHT, OWN
from learning.datasets import NO_LABEL, Dataset, Unread, has_part, load_part
from learning.image_folder import images
from learning.own_task import own_reader
from learning.table_files import SUFFIXES, Missing, named_in_errors, of_arrays, table
from learning.task_names import REGRESSION, STATISTICS, TASKS
from runtime.text import counted

if TYPE_CHECKING:
    from learning.options import TaskOptions
    from learning.task import Task

_VALUES_A_BLOCK: Final = 1 << 18
_MOST_NAMED: Final = 5  # columns in a warning


def read_own(path: Path, task: str) -> Dataset:
    """All examples of the coordinator's own file, or of a file whose owner may be shown errors about its values.

    ``task``: name of the task that is trained.

    Raises DatasetError: it is missing, of another kind, empty, or holds anything but numbers; the message names what to
    change. `learning.own_task.TaskMistake`: the ``read`` of the task's class is wrong.
    """
    data = _read(path, task, Missing.REFUSED)
    if data.unread != Unread():  # left out by a reader that a user's own class called
        raise DatasetError(f"data file {_located(path)} holds examples that can't be used: fill gaps, code words")
    if len(data) == 0:
        raise DatasetError(f"data file {_located(path)} holds no examples")
    return data


def read_held(path: Path, task: str) -> Dataset:
    """A participant's examples: every value is read, or is missing.

    ``task``: name of the task that is trained. For a statistic missing values are NaN in float32, and labels
    `NO_LABEL`; for a model rows with any are left out.

    Raises DatasetError: the file doesn't exist or has another form; no value decides it, and none is in the message.
    `learning.own_task.TaskMistake`: the ``read`` of the task's class is wrong.
    """
    return _read(path, task, Missing.KEPT if task in STATISTICS else Missing.LEFT_OUT)


def _read(path: Path, task: str, missing: Missing) -> Dataset:
    path, reader = _located(path), own_reader(task)
    with named_in_errors(path):
        if not path.exists():
            raise FileNotFoundError
        if reader is not None:
            made = reader(path)
            if not isinstance(made, Dataset):
                return of_arrays(*made, missing)
            checked = of_arrays(made.features, made.labels if made.labelled else None, missing, made.columns)
            return checked if made.unread == Unread() else replace(checked, unread=made.unread)
        if path.is_dir():
            return images(path, missing, numeric_labels=task == REGRESSION)
        return table(path, missing, numeric_labels=task == REGRESSION)


def _located(path: Path) -> Path:
    """What a path without a suffix stands for. Raises DatasetError: nothing of that name exists, or several do."""
    if path.suffix or path.exists():
        return path
    beside = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
    named = [one for one in beside if one.name.startswith(f"{path.name}.")]
    found = [one for one in named if one.suffix.lower() in SUFFIXES] or named
    if len(found) == 1:
        return found[0]
    if found:
        both = " and ".join(map(str, found))
        raise DatasetError(f"there are {both}, and a participant has one file: take one away")
    first, *others = (path.with_suffix(suffix).name for suffix in SUFFIXES)
    raise DatasetError(f"there is no data file {path.parent / first}, nor {', '.join(others)}: put one there")


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
            f"data file {_located(path)} doesn't fit the study's task {task.name}: {error}. {data.described()}"
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


def content_sha256(data: Dataset) -> str:
    """Digest of the examples in their order: the same for the same numbers in every kind of file, as float64, which
    holds each feature and each label of a usual size exactly.
    """
    digest = hashlib.sha256(b"sordino/v1/own-data\x00")
    for array in (data.features, data.labels):
        digest.update(f"{list(array.shape)}\x00".encode())
        rows = max(1, _VALUES_A_BLOCK // max(1, math.prod(array.shape[1:])))
        for start in range(0, len(array), rows):
            digest.update(array[start : start + rows].astype("<f8").tobytes())
    return digest.hexdigest()


def empty() -> Dataset:
    """No examples: the test data of a coordinator that has none."""
    return Dataset(np.zeros((0, 0), dtype=np.float32), np.zeros(0, dtype=np.int64))


def app_partition(part: int, parts: int) -> Dataset:
    """What stands for data that a task loads by itself: one row, the numbers of the partition and of all."""
    columns = ("partition-id", "num-partitions")
    return Dataset(np.array([[part, parts]], np.int32), np.zeros(1, np.int64), columns, labelled=False)


def load_test(dataset: str, file: str, task: str) -> Dataset:
    """The coordinator's test data: its own file, else the set's test part, else nothing.

    Args:
        dataset: as ``learning.data_names`` lists them.
        file: empty for none.
        task: name of the task that is trained.

    Raises DatasetError: the file or the set can't be used.
    """
    if file:
        return read_own(Path(file), task)
    if dataset in BROUGHT or not has_part(dataset, "test"):
        return empty()
    return load_part(dataset, "test")


# ---------------------------------------------------------------- of all participants, in one folder


def own_files(folder: Path, task: str) -> list[Path]:
    """Return the participants' files in a folder, by name; where it holds none, its subfolders.

    ``task``: name of the task that is trained; its own ``read`` takes files of any kind.

    Raises DatasetError: the folder is missing or holds neither; TaskUnavailable, TaskMistake: as `own_reader`.
    """
    any_kind = own_reader(task) is not None
    try:
        inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        files = [one for one in inside if one.is_file() and (any_kind or one.suffix.lower() in SUFFIXES)]
        found = files or [one for one in inside if one.is_dir()]
    except OSError as error:
        raise DatasetError(f"the folder {folder} can't be read: {error.strerror or error}") from None
    if not found:
        kinds = "file" if any_kind else ", ".join(SUFFIXES)
        raise DatasetError(f"the folder {folder} holds no {kinds} and no subfolder: put one of each participant there")
    return found


def load_own(folder: str, participants: int, task: Task, name: str, test: str) -> tuple[tuple[Dataset, ...], Dataset]:
    """Read all files, as a participant's process does at its start; kept for the next simulation.

    Args:
        participants: as many as files.
        task: must fit the examples.
        name: of the task that is trained.
        test: the coordinator's own file; empty for none.

    Returns the participants' data, in the order of the files' names, and the coordinator's.

    Raises DatasetError: a file can't be used, or a model finds no row in it; two files hold the same; or their number
    isn't that of the participants.
    """
    files = own_files(Path(folder), name)
    if len(files) != participants:
        raise DatasetError(
            f"the folder {folder} holds {len(files)} files for {participants} participants: one file, one participant"
        )
    found = _read_all(tuple((path, *_version(path)) for path in files), name)
    for path, one in zip(files, found, strict=True):
        try:
            check_form(task, one, path)
        except DatasetError as error:
            raise DatasetError(f"{error}{_fits(name, task, one, found)}") from None
        if not len(one) and name not in STATISTICS:
            why = "".join(f"; {sentence.partition(': ')[2]}" for sentence in unread_told(name, None, one, path)[:-1])
            raise DatasetError(
                f"data file {path} holds no row that can be used{why}: a participant would send zeros for it"
                + (". Classes are whole numbers from 0" if why and "column label" in why and name != REGRESSION else "")
            )
        if name in TASKS and (wrong := other_labels(task.options, one)):
            raise DatasetError(f"data file {path}: {wrong}{_fits(name, task, one, found)}")
    tested = load_test(OWN, test, name)
    if test:
        check_form(task, tested, Path(test))
    if name not in STATISTICS:
        _check_columns([*zip(files, found, strict=True), *([(Path(test), tested)] if test else [])])
    return found, tested


def _check_columns(files: Sequence[tuple[Path, Dataset]]) -> None:
    """A model takes columns by their places. Raises DatasetError: two files have others, or another order."""
    named = [(path, one.columns) for path, one in files if one.columns]
    for path, columns in named[1:]:
        first, wanted = named[0]
        for place, (name, other) in enumerate(zip(columns, wanted, strict=False)):
            if name != other:
                raise DatasetError(
                    f"data file {path} has {name} as column {place}, where {first.name} has {other}: give all files "
                    "the same columns in one order"
                )


def left_out(folder: str, participants: int, task: Task, name: str) -> list[str]:
    """What of the participants' files can't be used, in a few sentences; arguments and errors as of `load_own`."""
    found, _ = load_own(folder, participants, task, name, "")
    files = zip(own_files(Path(folder), name), found, strict=True)
    told = [said for path, one in files if (said := unread_told(name, task, one, path))]
    more = [f"And {counted(len(told) - 1, 'file')} more with values that can't be used."] if len(told) > 1 else []
    return [f"{sentence}." for said in told[:1] for sentence in said] + more


def other_labels(options: TaskOptions, data: Dataset) -> str:
    """What a task with classes can't take among labels; empty where there is nothing."""
    classes = getattr(options, "classes", None)
    if not isinstance(classes, int) or not (count := int(((data.labels < 0) | (data.labels >= classes)).sum())):
        return ""
    are = "is" if count == 1 else "are"
    return f"{counted(count, 'label')} of {data.labels.size} {are} outside the labels 0 to {classes - 1} of the task"


def _fits(name: str, task: Task, one: Dataset, everybody: Sequence[Dataset]) -> str:
    """Return the options with which a built-in task accepts such examples; empty if none help."""
    fitting = fitting_options(name, task.options.to_mapping(), one)
    labels = max((int(data.labels.max()) for data in everybody if data.labels.size), default=-1) + 1
    if fitting and labels > 1 and labels != getattr(task.options, "classes", labels):
        fitting.append(f"--task-option classes={labels}")
    return f". Use {' '.join(fitting)}." if fitting else ""


def _version(path: Path) -> tuple[Any, ...]:
    """What changes when a file, or one in a folder, does."""
    return tuple(file_version(one) for one in (path, *sorted(path.rglob("*"))))


@lru_cache(maxsize=2)
def _read_all(files: tuple[tuple[Any, ...], ...], task: str) -> tuple[Dataset, ...]:
    held: list[Dataset] = []
    known: dict[str, Path] = {}
    for path, *_ in files:
        one = read_held(path, task)
        name = content_sha256(one)
        if not says_nothing(one) and name in known:
            raise DatasetError(f"data file {path} holds what {known[name].name} holds: give each its own file")
        known[name] = path
        held.append(one)
    return tuple(held)
