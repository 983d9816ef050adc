"""Make a task by its name, or answer from its name and options what needs no task.

A task's module is imported only when that task is asked for, so a process with a numpy task never loads torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from learning.options import OptionError, TaskOptions, TrainingOptions
from learning.own_task import TaskMistake, mistakes_told, task_class
from learning.parameters import Shapes
from learning.task import ModelTask, Task
from learning.task_names import BUILT_IN, FLOWER, check_task_name
from learning.tasks.personal import Personal, travelling


def make_task(name: str, options: Mapping[str, object] | None = None) -> Task:
    """Make a task by name.

    Args:
        name: one of ``TASKS``, ``module:Class``, or ``flower:module:app`` for a Flower app, from an installed module or
            a file in the folder that the command runs in. A coordinator never chooses it: each side names it in its own
            file.
        options: plain mapping from a study file; a missing option takes the task's default.

    Raises:
        OptionError: unknown task, unknown option, or a value outside its range; the message names it.
        TaskMistake: a user's own class is wrong; the message names file and line. It is an `OptionError`.
        TaskUnavailable: the task needs torch or Flower, which is not installed, or a module that doesn't exist.
    """
    try:
        check_task_name(name)
    except ValueError as error:
        raise OptionError(f"task {name!r} {error}") from None
    kind = task_class(name)
    with mistakes_told(name, kind):
        made = kind.Options.from_mapping(options or {})
        task = kind(made)
        if name not in BUILT_IN and not name.startswith(FLOWER):
            if not hasattr(task, "options"):  # an __init__ of its own may not keep them
                cast(Any, task).options = made
            _ = task.dim  # what else it left out fails here, and is told with its place
        return Personal(cast(ModelTask, task)) if isinstance(made, TrainingOptions) and made.personal else task


def options_of(name: str, options: Mapping[str, object]) -> TaskOptions:
    """Return a task's options, checked, without making the task.

    Raises OptionError, TaskUnavailable: as `make_task`.
    """
    kind = task_class(name)
    with mistakes_told(name, kind):
        return kind.Options.from_mapping(options)


def check_task_table(file: Path, name: str, options: Mapping[str, object]) -> None:
    """Check the table [task] of a settings file.

    Raises ConfigurationError: names file, or variable of the environment, and option; TaskUnavailable: as `make_task`.
    """
    try:
        options_of(name, options)
    except TaskMistake:
        raise
    except OptionError as error:
        from runtime.settings_file import ConfigurationError, origin  # only where there is one: it loads pydantic

        raise ConfigurationError(f"{origin(file, ('task', error.option))}: [task]: {error}") from None


def model_shapes(name: str, options: Mapping[str, object]) -> Shapes:
    """Return names and shapes of a task's model; of a statistic or of votes, of its contribution.

    A task that ships makes no array for it: a stranger may have written the options. Raises OptionError,
    TaskUnavailable: as `make_task`.
    """
    kind, made = task_class(name), options_of(name, options)
    stated = getattr(kind, "stated_shapes", None)
    shapes: Shapes = kind(made).contribution_shapes if stated is None or name not in BUILT_IN else stated(made)
    return travelling(shapes, made.personal) if isinstance(made, TrainingOptions) and made.personal else shapes


def clip_of(task: Task, clip: float | None, *, adaptive: bool = False, sketch: bool = False) -> float:
    """Return the clip of a study: as stated, else the task's own bound where it has one, else 1.

    Args:
        clip: L2 norm in the contribution's units, or None.
        adaptive, sketch: whether clips follow a quantile of the norms, or a sketch is sent.

    Raises OptionError: it would cut contributions of a task that bounds them itself, and the result would not be its
    statistic.
    """
    bound = task.l2_sensitivity
    if bound is None:
        return 1.0 if clip is None else clip
    reason = f"task {task.name!r} bounds each contribution to norm {bound:.6g} by itself"
    if adaptive:
        raise OptionError(f"{reason}, and clips that adapt would distort the sum: leave clip_update fixed")
    if sketch:
        raise OptionError(f"{reason}, and is exact where a sketch is not: leave sketch_rows out")
    if clip is not None and clip < bound:
        raise OptionError(f"{reason}, and a clip of {clip:g} would distort the sum: leave the clip out")
    return bound if clip is None else clip
