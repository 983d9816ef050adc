"""Whether the data that a study names can be what it needs, seen before anything is made."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

from learning.data_checks import LAID_OUT, SHAPES, check_task_takes, options_known, shape_options
from learning.data_names import BROUGHT, BUILT_IN, located
from learning.task_names import BOUNDED, STATISTICS, SYNTHETIC, TASKS, trained_task
from runtime.failure import InputFailure
from server.study_file import StudyConfiguration

Study = TypeVar("Study", bound=StudyConfiguration)
_WORDS_MARKED: Final = 3  # numbers above a vocabulary: unknown, beginning, end


def fitted(study: Study) -> Study:
    """With the options of the task that describe examples, where a prepared set states them and the owner did not.

    A built-in set fits the tasks as they are; published formats and the participants' own files are known only once
    they are read.

    Raises DatasetError: there is no such set here; OptionError, TaskUnavailable: the task can't be.
    """
    from learning.data_names import is_prepared_name
    from learning.prepared_data import open_prepared

    task = trained_task(study.study.task, study.task)
    if task not in TASKS or task in STATISTICS or not is_prepared_name(study.data.dataset):
        return study
    import numpy as np

    from learning.datasets import Dataset

    held = open_prepared(study.data.dataset)
    labels = held.labels("train")
    first, _ = held.rows("train", np.arange(min(len(labels), 1)))
    found = shape_options(task, Dataset(first, np.array(labels[:1])))
    if not LAID_OUT.isdisjoint(study.task):  # stated, rightly or not
        found = {}
    known = options_known(task)
    if "classes" in known and len(labels):
        found["classes"] = int(labels.max()) + 1
    if "vocabulary" in known and len(labels):
        words = held.manifest.get("options", {}).get("vocabulary")
        found["vocabulary"] = words if isinstance(words, int) else max(int(labels.max()) - _WORDS_MARKED, 1)
    return study.model_copy(update={"task": found | dict(study.task)})


def check_data(study: StudyConfiguration, participants: int) -> None:
    """Check that the participants made here (perhaps none) can have their parts, and that the task takes the examples.

    Built-in sets work with the tasks as they ship. Other sets, tasks and shapes are checked with the first part, and
    the coordinator's own file always.

    Raises Failure: the set can't be cut so, or the task takes other examples; DatasetError: there is no such set here.
    """
    from learning.blocks import DatasetError
    from learning.datasets import load_partition
    from learning.own_data import load_test
    from learning.partitions import cut_dataset

    data, name, options = study.data, study.study.task, study.task
    judges = name not in BOUNDED
    if judges and data.test and Path(data.test).exists():  # a missing one is reported elsewhere
        check_task_takes(name, options, load_test(data.dataset, data.test, trained_task(name, options)), data.test)
    if data.dataset in BROUGHT or not participants or name == SYNTHETIC:  # load tests have more than any set
        return
    dataset = located(data.dataset, Path.cwd())
    try:
        parts = cut_dataset(dataset, data.partition, study.places, data.alpha, data.seed, data.shards)
    except DatasetError:
        raise
    except ValueError as error:
        raise InputFailure(f"{data.dataset} can't be cut so: {error}.") from None
    as_shipped = trained_task(name, options) in TASKS and not SHAPES & set(options)
    if not (data.dataset in BUILT_IN and as_shipped):
        check_task_takes(name, options, load_partition(dataset, parts[0][:1]), data.dataset)
