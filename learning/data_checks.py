"""Checks that data fit a study, before anything is made or sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from learning.task_names import STATISTICS, TASKS, trained_task
from runtime.failure import Failure, InputFailure

if TYPE_CHECKING:
    from learning.datasets import Dataset

SHAPES: Final = frozenset({"features", "side", "channels", "classes", "length", "vocabulary"})
"""Options that say what examples look like."""
LAID_OUT: Final = SHAPES - {"classes", "vocabulary"}


def shape_options(task: str, examples: Dataset) -> dict[str, int]:
    """Options of a task that state the shape of these examples; empty where the task can't take them at all.

    Args:
        task: one of ``TASKS``.
        examples: one is enough; the number of classes is left out, since one example doesn't show it.
    """
    known = options_known(task)
    shape, kind = examples.features.shape[1:], examples.features.dtype.kind
    if "features" in known and len(shape) == 1 and kind == "f":
        return {"features": shape[0]}
    if "side" in known and len(shape) in (2, 3) and shape[0] == shape[1] and kind in "uf":
        return {"side": shape[0]} | ({"channels": shape[2]} if len(shape) == 3 else {})
    if "length" in known and len(shape) == 1 and kind == "i" and examples.labels.ndim == 2:
        return {"length": shape[0]}
    return {}


def fitting_options(name: str, options: Mapping[str, Any], examples: Dataset) -> list[str]:
    """What to type so that a task takes examples of this shape; empty where nothing would help.

    Args:
        name: of the task, or of a user's own class, of which nothing is known.
        examples: one is enough.
    """
    wanted = shape_options(trained_task(name, options), examples)
    return [f"--task-option {key}={value}" for key, value in wanted.items() if options.get(key) != value]


def options_known(task: str) -> set[str]:
    from learning.make_task import options_of

    return {one.name for one in fields(options_of(task, {}))} & SHAPES if task in TASKS else set()


def check_form_fits(name: str, options: Mapping[str, Any], examples: Dataset, of: str, *, planned: int) -> None:
    """Check that examples look like what a task takes: names, shapes and numbers of values; no value is used.

    For a participant that has not yet agreed to join: no model is made, and no module imported, for a stranger's
    options. Arguments and errors as `check_task_takes`, which is the complete check.
    """
    from learning.make_task import make_task, options_of
    from learning.tasks.inputs import require_labels

    if trained_task(name, options) not in TASKS:
        return
    if name not in STATISTICS:
        _check_size(name, options, examples.form(), of, planned)
    try:
        if name in STATISTICS:
            statistic: Any = make_task(name, dict(options))
            statistic.check_form(examples.form())
        elif options_of(name, options).example_shape is not None:
            require_labels(examples.form())
    except (ValueError, IndexError) as error:
        raise _cannot_use(name, options, examples, of, str(error), joins=True) from None


def check_task_takes(
    name: str, options: Mapping[str, Any], examples: Dataset, of: str, *, planned: int | None = None
) -> None:
    """Check that a task can use examples: one step on one example, of which only the shapes of the result are read.

    Where a study is planned the first example is tried, values and all. Where a participant joins it is zeros in the
    form of its examples: others see that a participant stays away, and a stranger chose what would make it stay away
    (decision 0004).

    A user's own task must also evaluate, so that a mistake shows before the first round has cost anything. A vector has
    no names: arrays in another order than the task states would be added up with others' without an error.

    Args:
        of: source of the examples, for the message.
        planned: values of an update by the plan, where a participant joins a stranger's study: another number, or
            examples of another shape, are then refused before memory is taken for the model.

    Raises Failure: it can't; learning.options.OptionError, learning.own_task.TaskUnavailable: the task can't be made.
    """
    from learning.make_task import make_task, options_of
    from learning.own_task import TaskMistake, with_place
    from learning.parameters import flatten_contribution
    from learning.task import ModelTask, update_rng

    first = examples.take(range(min(len(examples), 1))) if planned is None else examples.form()
    if planned is not None:
        _check_size(name, options, first, of, planned)
    try:
        task = make_task(name, options_of(name, options).for_one_step())
        try:
            check_form = getattr(task, "check_form", None)
            if check_form is not None:
                check_form(examples.form())
            start = task.initial_parameters()
            made = task.local_update(start, first, update_rng(0, 1, 0), 1.0)
            if name not in TASKS and planned is None and isinstance(task, ModelTask):  # the planner evaluates it
                task.evaluate(task.fitted(start, first, update_rng(0, 1, 0)), first)
        except TaskMistake:
            raise
        except (ValueError, IndexError) as error:
            raise _cannot_use(name, options, examples, of, with_place(error), joins=planned is not None) from None
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):  # torch's word for it
            raise InputFailure(
                f"the task {name} needs more memory than there is on this machine",
                "take part from a larger machine, or ask for a smaller model",
            ) from None
        raise
    try:
        flatten_contribution(made, task.contribution_shapes)
    except ValueError as error:
        raise InputFailure(
            f"the task {name}, tried on an example of {of}: {error}",
            "let local_update return those names, in that order, or fit the task to the examples with --task-option",
        ) from None


def _check_size(name: str, options: Mapping[str, Any], first: Dataset, of: str, planned: int) -> None:
    """Compare examples and number of values with the options and the plan, without making a model."""
    from learning.make_task import model_shapes, options_of
    from learning.parameters import dimension

    shape = options_of(name, options).example_shape
    if shape is not None and first.features.shape[1:] != tuple(shape):
        theirs = first.features.shape[1:]
        why = f"examples have shape {theirs}; this task takes {tuple(shape)}"
        raise _cannot_use(name, options, first, of, why, joins=True)
    values = dimension(model_shapes(name, options))
    if values != planned:
        raise InputFailure(
            f"the task {name} makes an update of {values} values with the study's options; its plan is for {planned}",
            "ask the study's owner: no participant could take part"
            if trained_task(name, options) in TASKS
            else "get the study's own module from its owner: this one isn't the same",
        )


def _cannot_use(name: str, options: Mapping[str, Any], examples: Dataset, of: str, why: str, *, joins: bool) -> Failure:
    message = f"the task {name} can't use the examples of {of}: {why}"
    if examples.columns or not examples.labelled:
        message += f". {examples.described()}"
    fitting = fitting_options(name, options, examples)
    trained = trained_task(name, options)
    if joins:
        instead = "bring a file with the columns that the study's owner has agreed on, or ask the owner"
    elif fitting:
        if "classes" in options_known(trained) and "classes" not in options:
            fitting.append("--task-option classes=N for labels from 0 to N - 1")
        instead = f"{', '.join(fitting)}; or another --task"
    elif trained not in TASKS:
        instead = (
            "name the data that your class is for: --dataset own where each participant brings its own file, or one of "
            "`sordino data list`; or fit the class, perhaps with --task-option"
        )
    elif examples.features.dtype.kind != "i":
        instead = "name another --task, or fit it with --task-option"
    elif examples.labels.ndim == 2:
        instead = "--task lstm learns sequences of words"
    else:
        instead = (
            "no task that ships learns from numbers that stand for categories; --task histogram counts "
            "classes, and docs/your_own_model.md says how to make your own task"
        )
    return InputFailure(message, instead)
