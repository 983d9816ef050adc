"""Data of the participants, all in one folder: one file, or one subfolder, for each participant."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learning.blocks import DatasetError
from learning.data_checks import fitting_options
from learning.data_names import OWN
from learning.datasets import Dataset
from learning.own_data import check_form, content_sha256, load_test, read_held, says_nothing
from learning.own_task import own_reader
from learning.published import file_version
from learning.table_files import SUFFIXES
from learning.task_names import STATISTICS

if TYPE_CHECKING:
    from learning.task import Task


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
    found = _read(tuple((path, *_version(path)) for path in files), name)
    for path, one in zip(files, found, strict=True):
        try:
            check_form(task, one, path)
        except DatasetError as error:
            raise DatasetError(f"{error}{_fits(name, task, one, found)}") from None
        if not len(one) and name not in STATISTICS:
            raise DatasetError(f"data file {path} holds no row that can be used: a participant would send zeros for it")
    return found, load_test(OWN, test, name)


def _fits(name: str, task: Task, one: Dataset, everybody: Sequence[Dataset]) -> str:
    """Return the options with which a built-in task accepts such examples; empty if none help."""
    fitting = fitting_options(name, task.options.to_mapping(), one)
    labels = max((int(data.labels.max()) for data in everybody if data.labels.size), default=-1) + 1
    if fitting and labels != getattr(task.options, "classes", labels):
        fitting.append(f"--task-option classes={labels}")
    return f". Use {' '.join(fitting)}." if fitting else ""


def _version(path: Path) -> tuple[Any, ...]:
    """What changes when a file, or one in a folder, does."""
    return tuple(file_version(one) for one in (path, *sorted(path.rglob("*"))))


@lru_cache(maxsize=2)
def _read(files: tuple[tuple[Any, ...], ...], task: str) -> tuple[Dataset, ...]:
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
