"""What data she brings who joins by code, and whether they look like what the study takes, before anything is sent.

Refused are data by their form alone; what of their values can't be used is told to her, and keeps her from nothing
(decision 0004).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from client.joining.home import BY_PLACE, DataChoice
from learning.data_names import BUILT_IN, OWN, check_dataset_name, located
from learning.task_names import STATISTICS, TASKS
from runtime.failure import ExitCode, Failure
from runtime.text import counted

if TYPE_CHECKING:
    from client.enrolment import Look
    from client.joining.options import JoinOptions
    from learning.datasets import Dataset

USUAL_DATA: Final[dict[str, Any]] = {
    "dataset": "fashion-mnist-subset",
    "partition": "dirichlet",
    "alpha": 1.0,
    "shards": 2,
    "seed": 1,
}
"""What a participant's data are unless she chooses."""


def choose_data(options: JoinOptions, seen: Look, random_part: int) -> DataChoice:
    """A file of hers, or a part of a set.

    Args:
        random_part: any number: decides which part is hers where she doesn't.

    Raises:
        Failure: no data set, or no part, is called so.
        learning.datasets.DatasetError: the set isn't here.
    """
    plan = seen.document.plan
    if options.data is not None:
        return DataChoice(**(USUAL_DATA | {"dataset": OWN}), parts=0, part=0, file=options.data.absolute())
    parts = options.parts if options.parts is not None else max(plan.clients, plan.population)
    part = random_part % parts if options.part is None else None
    if options.part is not None and options.part != BY_PLACE:
        part = int(options.part) - 1
    if part is not None and not 0 <= part < parts:
        raise Failure(ExitCode.INPUT, f"--part {options.part} is none of {parts} parts of the data: use 1 to {parts}.")
    chosen = {name: getattr(options, name) for name in USUAL_DATA if getattr(options, name) is not None}
    choice = DataChoice(**(USUAL_DATA | chosen), parts=parts, part=part)
    if choice.dataset == OWN:
        raise Failure(ExitCode.INPUT, "--dataset own needs the file: name it with --data FILE instead.")
    return replace(choice, dataset=_found(choice.dataset))


def _found(dataset: str) -> str:
    """The data set's name, its path absolute; that it is there is seen before anything is sent."""
    from learning.datasets import has_part

    try:
        check_dataset_name(dataset)
    except ValueError as error:
        raise Failure(ExitCode.INPUT, f"--dataset {dataset}: {error}.") from None
    dataset = located(dataset, Path.cwd())
    if dataset not in BUILT_IN:
        has_part(dataset, "train")
    return dataset


def read_own_file(options: JoinOptions, file: Path, seen: Look) -> Dataset:
    """Read before anything is sent: who has a place should have data for it. No value of it keeps her away.

    Raises:
        Failure: she also chose how a set is cut.
        learning.datasets.DatasetError: there is no such file, or it is of another form.
    """
    from learning.own_data import read_held

    chosen = [f"--{name}" for name in (*USUAL_DATA, "part", "parts") if getattr(options, name) is not None]
    if chosen:
        raise Failure(ExitCode.INPUT, f"{chosen[0]} says how a data set is cut; --data {file} is hers alone. Use one.")
    return read_held(file, statistics=seen.document.task in STATISTICS)


def read_example(data: DataChoice, task: str) -> Dataset | None:
    """One example of a set that is here, for its form; None where nothing is to be seen before she takes part.

    What ships is known to fit tasks as they ship, but not with options that say what examples look like. A module of
    somebody's own is run by nothing here.
    """
    import numpy as np

    from learning.datasets import load_partition

    return load_partition(data.dataset, np.zeros(1, dtype=np.int64)) if task in TASKS else None


def check_form(held: Dataset, of: str, seen: Look) -> None:
    """Before she is asked: who can't take part needn't read all of it.

    Raises:
        Failure: no examples of this form fit.
    """
    from learning.data_checks import check_form_fits

    document = seen.document
    check_form_fits(document.task, document.task_options, held, of, planned=document.plan.dim)


def unread(file: Path, held: Dataset, seen: Look) -> list[str]:
    """What of her file can't be used."""
    from learning.make_task import make_task
    from learning.own_data import unread_told

    task, options = seen.document.task, dict(seen.document.task_options)
    try:
        told = unread_told(task, make_task(task, options) if task in STATISTICS else None, held, file)
    except ValueError:
        return []
    return [*told, *_other_labels(task, options, held, file)]


def _other_labels(task: str, options: dict[str, Any], held: Dataset, file: Path) -> list[str]:
    """That no training will end, where labels are none of the study's: told to her alone, and never in her way."""
    from learning.make_task import options_of

    if task not in TASKS or task in STATISTICS or not len(held):
        return []
    classes = getattr(options_of(task, options), "classes", None)
    if not isinstance(classes, int):
        return []
    count = int(((held.labels < 0) | (held.labels >= classes)).sum())
    if not count:
        return []
    return [
        f"data file {file}: {counted(count, 'label')} of {held.labels.size} {'is' if count == 1 else 'are'} none from "
        f"0 to {classes - 1}, as the study's task takes them: this participant takes part, is charged, and sends zeros"
    ]


def try_own(of: str, held: Dataset, seen: Look) -> None:
    """Try the study's task on the form of her data: once she agreed, for its options are a stranger's till then.

    Raises:
        Failure: no examples of this form fit; what stands in it makes no difference.
    """
    from learning.data_checks import check_task_takes

    document = seen.document
    check_task_takes(document.task, document.task_options, held, of, planned=document.plan.dim)
