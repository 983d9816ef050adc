"""From the options of a verb that makes or simulates a study to the study; every mistake is one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from learning.data_names import APP, OWN
from learning.task_names import CLASSIFIER, FLOWER, TASKS, trained_task
from runtime.failure import InputFailure
from runtime.option_values import task_options
from server.study_tables import TaskTable
from sordino.cli.options import chosen


def over_files(data: Path, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a study over a folder of the participants' own files: by default one participant for each file.

    Raises Failure: a data set is named as well; learning.blocks.DatasetError: there are no files.
    """
    from learning.own_data import own_files

    if values.get("dataset") == APP:
        raise InputFailure(f"--data {data} holds files, and a Flower app loads its data by itself: leave --data out.")
    if values.get("dataset", OWN) != OWN:
        raise InputFailure(f"--data {data} holds the participants' own files: leave --dataset out.")
    trained = trained_task(values.get("task", CLASSIFIER), values.get("task_options", {}))
    return {"participants": values.get("participants") or len(own_files(data, trained)), **values, "dataset": OWN}


def study_values(given: Mapping[str, Any], *models: type[BaseModel]) -> dict[str, Any]:
    """What was given of the models' keys, by flat name, the options of the task together under ``task_options``.

    Raises Failure: a file that isn't there, or an option of the task that can't be.
    """
    from learning.make_task import options_of
    from learning.options import OptionError

    values = chosen(given, *models)
    training = {name: given[name] for name in TaskTable.model_fields if name != "task_option"}
    options = task_options(given["task_option"], training)
    if options:
        values["task_options"] = options
    try:
        if options and (task := values.get("task", CLASSIFIER)) in TASKS:
            options_of(task, options)
    except OptionError as error:
        name = error.option
        flag = f"--{name.replace('_', '-')}" if training.get(name) is not None else f"--task-option {name}"
        said = error.message.replace(f"unknown option {name!r}", f"{flag} is unknown")
        error.message = f"--task {task}: {said.replace(f'option {name!r}', flag)}"
        raise
    if values.get("task", "").startswith(FLOWER):
        values.setdefault("dataset", APP)
    if "test" in values and not Path(values["test"]).exists():
        raise InputFailure(f"--test {values['test']}: there is no such file.")
    if values.get("sketch_rows") and values.get("clip_by_layer"):
        raise InputFailure("a sketch mixes the layers: use either --clip-by-layer or --sketch-rows.")
    return values
