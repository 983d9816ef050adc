"""Make a task by its name, or answer from its name and options what needs no task.

A task's module is imported only when that task is asked for, so a process with a numpy task never loads torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from learning.options import AE_DPFL, OptionError, TaskOptions
from learning.own_task import mistakes_told, task_class
from learning.parameters import Shapes
from learning.task import Task
from learning.task_names import BUILT_IN, check_task_name


def make_task(name: str, options: Mapping[str, object] | None = None) -> Task:
    """Make a task by name.

    Args:
        name: one of ``TASKS``, or ``module:Class`` of one's own. The module is an installed one, or a file in the
            folder that the command runs in. A coordinator never chooses it: each side names it in its own file.
        options: plain mapping from a study file; what is left out takes the task's default.

    Raises:
        OptionError: unknown task, unknown option, or a value outside its range; the message names it.
        TaskMistake: a class of one's own is wrong; the message names file and line. It is an `OptionError`.
        TaskUnavailable: the task needs torch, which is not installed, or a module that isn't there.
    """
    given = dict(options or {})
    try:
        check_task_name(name)
    except ValueError as error:
        raise OptionError(str(error)) from None
    kind = task_class(name)
    with mistakes_told(name, kind) if name not in BUILT_IN else nullcontext():
        made: Task = _make(name, kind, given)
    return made


def options_of(name: str, options: Mapping[str, object]) -> TaskOptions:
    """A task's options, checked, without making the task; of votes those of the task that is voted on.

    Raises:
        OptionError, TaskUnavailable: as `make_task`.
    """
    given = dict(options)
    if given.get("method") == AE_DPFL:
        from learning.tasks.votes import VoteOptions

        votes = {"method", *VoteOptions().to_mapping()}
        given = {key: value for key, value in given.items() if key not in votes}
    kind = task_class(name)
    with mistakes_told(name, kind) if name not in BUILT_IN else nullcontext():
        made: TaskOptions = kind.Options.from_mapping(given)
    return made


def model_shapes(name: str, options: Mapping[str, object]) -> Shapes:
    """Names and shapes of a task's model; of a statistic, of its contribution. Of votes: of the model that votes.

    A task that ships makes no array for it: who wrote the options may be a stranger.

    Raises:
        OptionError, TaskUnavailable: as `make_task`.
    """
    kind, made = task_class(name), options_of(name, options)
    stated = getattr(kind, "stated_shapes", None)
    shapes: Shapes = kind(made).contribution_shapes if stated is None or name not in BUILT_IN else stated(made)
    return shapes


def _make(name: str, kind: Any, given: dict[str, object]) -> Any:
    if given.get("method") == AE_DPFL:
        from learning.tasks.votes import Votes

        return Votes.over(name, kind, given)
    task = kind(kind.Options.from_mapping(given))
    if name not in BUILT_IN:
        task.name = name
    return task


def clip_of(task: Task, clip: float | None, *, adaptive: bool = False, sketch: bool = False) -> float:
    """Return the clip of a study: as stated, else the task's own bound where it has one, else 1.

    Args:
        clip: L2 norm in the contribution's units, or None.
        adaptive, sketch: whether clips follow a quantile of the norms, or a sketch is sent.

    Raises:
        OptionError: it would cut contributions of a task that bounds them itself: what comes out would not be its
            statistic.
    """
    bound = task.l2_sensitivity
    if bound is None:
        return 1.0 if clip is None else clip
    told = f"task {task.name!r} bounds each contribution to norm {bound:.6g} by itself"
    if adaptive:
        raise OptionError(f"{told}, and clips that adapt would distort the sum: leave clip_update fixed")
    if sketch:
        raise OptionError(f"{told}, and is exact where a sketch is not: leave sketch_rows out")
    if clip is not None and clip < bound:
        raise OptionError(f"{told}, and a clip of {clip:g} would distort the sum: leave the clip out")
    return bound if clip is None else clip
