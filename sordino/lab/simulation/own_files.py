"""Data files of the participants, all in one folder, one file for each participant."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learning.blocks import DatasetError
from learning.data_checks import fitting_options
from learning.datasets import Dataset
from learning.own_data import SUFFIXES, check_form, content_sha256, load_test, read_held, says_nothing
from learning.published import file_version
from learning.task_names import STATISTICS

if TYPE_CHECKING:
    from learning.task import Task


def own_files(folder: Path) -> list[Path]:
    """Return the .csv and .npz files of a folder, by name.

    Raises DatasetError: the folder is missing or holds no such file.
    """
    try:
        found = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    except OSError as error:
        raise DatasetError(f"the folder {folder} can't be read: {error.strerror or error}") from None
    if not found:
        raise DatasetError(f"the folder {folder} holds no .csv or .npz: put one file of each participant there")
    return found


def load_own(folder: str, participants: int, task: Task, name: str, test: str) -> tuple[tuple[Dataset, ...], Dataset]:
    """Read all files, as a participant's process does at its start; kept for the next simulation.

    Args:
        participants: as many as files.
        task: must fit the examples.
        name: of the task.
        test: the coordinator's own file; empty for none.

    Returns the participants' data, in the order of the files' names, and the coordinator's.

    Raises DatasetError: a file can't be used, or a model finds no row in it; two files hold the same; or their number
    isn't that of the participants.
    """
    files = own_files(Path(folder))
    if len(files) != participants:
        raise DatasetError(
            f"the folder {folder} holds {len(files)} files for {participants} participants: one file, one participant"
        )
    found = _read(tuple((path, *file_version(path)) for path in files), name in STATISTICS)
    for path, one in zip(files, found, strict=True):
        try:
            check_form(task, one, path)
        except DatasetError as error:
            raise DatasetError(f"{error}{_fits(name, task, one, found)}") from None
        if not len(one) and name not in STATISTICS:
            raise DatasetError(f"data file {path} holds no row that can be used: a participant would send zeros for it")
    return found, load_test("own", test)


def _fits(name: str, task: Task, one: Dataset, everybody: Sequence[Dataset]) -> str:
    """Return the options with which a built-in task accepts such examples; empty if none help."""
    fitting = fitting_options(name, task.options.to_mapping(), one)
    labels = max((int(data.labels.max()) for data in everybody if data.labels.size), default=-1) + 1
    if fitting and labels != getattr(task.options, "classes", labels):
        fitting.append(f"--task-option classes={labels}")
    return f". Use {' '.join(fitting)}." if fitting else ""


@lru_cache(maxsize=2)
def _read(files: tuple[tuple[Any, ...], ...], gaps: bool) -> tuple[Dataset, ...]:
    held: list[Dataset] = []
    known: dict[str, Path] = {}
    for path, *_ in files:
        one = read_held(path, statistics=gaps)
        name = content_sha256(one)
        if not says_nothing(one) and name in known:
            raise DatasetError(f"data file {path} holds what {known[name].name} holds: give each its own file")
        known[name] = path
        held.append(one)
    return tuple(held)
