"""Default bounds of a statistic: stated before any budget is spent; a simulation counts what they cut off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from learning.task_names import STATISTICS

if TYPE_CHECKING:
    from learning.datasets import Dataset


def default_bounds_note(task: str, given: Mapping[str, object]) -> str:
    """Which bounds of a statistic are the default, and what that does to values; empty where all are given, or none are
    used.

    Raises OptionError: the given options can't be.
    """
    if task not in STATISTICS:
        return ""
    from learning.make_task import options_of

    made: Any = options_of(task, dict(given))
    missing = [name for name in ("low", "high") if name not in given]
    if getattr(made, "of_labels", False) or not missing or (made.reduce == "count" and missing == ["low"]):
        return ""
    if len(missing) == 2:
        return (
            f"Note: the bounds {made.low} to {made.high} are the default, as neither low nor high is given: values "
            "beyond count as the bound. Say what a value can be with --task-option low=... and --task-option high=..."
        )
    side = "below" if missing == ["low"] else "above"
    value = getattr(made, missing[0])
    return f"Note: {missing[0]} isn't given and is {value}, the default: values {side} count as {value}."


def beyond_bounds(task: Any, everybody: Iterable[Dataset]) -> list[dict[str, Any]]:
    """How many values lie beyond the bounds of a statistic, and so count as one: what only a simulation knows.

    Returns for each column with any: ``name``, ``beyond`` and ``values``: one value a participant, or one a row where a
    participant's rows are spread.
    """
    from learning.tasks.statistic import REDUCTIONS, StatisticTask, column_name, column_values

    if not isinstance(task, StatisticTask) or getattr(task.options, "of_labels", False):
        return []
    options, held, found = task.options, list(everybody), []
    if not hasattr(options, "bounds"):  # a user's own statistic
        return []
    for column, low, high in zip(options.columns, *options.bounds, strict=True):
        beyond = count = 0
        for data in held:
            values = column_values(data, column)
            counted = values.tolist()
            if options.reduce in REDUCTIONS and (counted or options.reduce == "count"):
                counted = [REDUCTIONS[options.reduce](values)]
            count += len(counted)
            beyond += sum(not low <= value <= high for value in counted)
        if beyond:
            found.append({"name": column_name(column), "beyond": beyond, "values": count})
    return found
