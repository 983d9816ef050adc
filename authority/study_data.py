"""Whether the data that a study names can be what it needs, seen before anything is made."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from learning.data_checks import (
    LAID_OUT,
    SHAPES,
    check_task_takes,
    concrete,
    options_known,
    shape_options,
)
from learning.data_names import BUILT_IN, OWN
from learning.task_names import BOUNDED, STATISTICS, TASKS, trained_task
from runtime.failure import ExitCode, Failure

if TYPE_CHECKING:
    from authority.study_options import StudyOptions

_WORDS_MARKED: Final = 3  # numbers above a vocabulary: unknown, beginning, end


def fitted(options: StudyOptions) -> StudyOptions:
    """With the options of the task that say what examples look like, where a prepared set says it and nobody else did.

    A set that ships fits the tasks as they are; of a published format, or files of the participants' own, no more is
    known than they say when they are read.

    Raises:
        learning.datasets.DatasetError: there is no such set here.
        learning.options.OptionError, learning.own_task.TaskUnavailable: the task can't be.
    """
    from learning.data_names import is_prepared_name
    from learning.prepared_data import open_prepared

    task = trained_task(options.task, options.task_options)
    if task not in TASKS or task in STATISTICS or not is_prepared_name(options.dataset):
        return options
    import numpy as np

    from learning.datasets import Dataset

    held = open_prepared(options.dataset)
    labels = held.labels("train")
    first, _ = held.rows("train", np.arange(min(len(labels), 1)))
    found = shape_options(task, Dataset(first, np.array(labels[:1])))
    if not LAID_OUT.isdisjoint(options.task_options):  # said by somebody, rightly or not
        found = {}
    known = options_known(task)
    if "classes" in known and len(labels):
        found["classes"] = int(labels.max()) + 1
    if "vocabulary" in known and len(labels):
        words = held.manifest.get("options", {}).get("vocabulary")
        found["vocabulary"] = words if isinstance(words, int) else max(int(labels.max()) - _WORDS_MARKED, 1)
    return replace(options, task_options=found | dict(options.task_options))


def check_data(options: StudyOptions) -> None:
    """Whether the participants that are made here can have their parts, and the task use an example of the first.

    What ships is known to work with tasks as they ship; so this looks at other sets, partitions and tasks, at other
    shapes of examples, and at the coordinator's own file.

    Raises:
        Failure: the set can't be cut so, or the task takes other examples.
        learning.datasets.DatasetError: there is no such set here.
    """
    from learning.cut_data import cut_dataset
    from learning.datasets import DatasetError, load_partition
    from learning.own_data import load_test

    judges = options.task not in BOUNDED
    if judges and options.test and Path(options.test).is_file():  # one that is missing is reported elsewhere
        check_task_takes(options.task, options.task_options, load_test(options.dataset, options.test), options.test)
    if options.dataset == OWN or not options.participants:
        return
    task = trained_task(options.task, options.task_options)
    as_shipped = task in TASKS and not SHAPES & set(options.task_options)
    if options.dataset in BUILT_IN and options.partition in ("iid", "dirichlet") and as_shipped:
        return
    dataset = concrete(options.dataset)
    try:
        parts = cut_dataset(dataset, options.partition, options.places, options.alpha, options.seed, options.shards)
    except DatasetError:
        raise
    except ValueError as error:
        raise Failure(ExitCode.INPUT, f"{options.dataset} can't be cut so: {error}.") from None
    check_task_takes(options.task, options.task_options, load_partition(dataset, parts[0][:1]), options.dataset)
