"""Expected errors of a statistic and its default bounds, which are stated before any budget is spent.

The noise follows from the plan and the number of participants alone. Figures are for the case that all have a value.
A simulation also counts what the bounds cut off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from learning.task_names import REGRESSION, STATISTICS
from runtime.text import aligned, counted, folded
from sordino.planning.notes import percent

if TYPE_CHECKING:
    from learning.datasets import Dataset
    from mechanisms.plan import Plan
    from sordino.planning.plan_figures import PlanFigures

Expected = Mapping[str, Any]

GUESS: Final = 1 / math.sqrt(12)
"""Standard deviation of a uniform guess between two bounds, over their distance: a less exact answer adds nothing."""
_SHOWN: Final = 8
_MORE: Final = "More participants or a larger --epsilon"


def expected_errors(plan: Plan, task: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Standard errors of a statistic with these options under a plan; None for a task that has no such figures.

    Returns ``participants``, ``min_survivors`` and ``rounds`` of the plan; ``values``, after one round with all there;
    ``values_of_fewest``, after one with min_survivors; ``values_of_all_rounds``, after all of them with all there in
    each: tables of `StatisticTask.expected_errors`. And ``warnings``, sentences.
    """
    if task not in STATISTICS:
        return None
    from learning.make_task import make_task
    from mechanisms.encoder import mean_stddev

    made: Any = make_task(task, dict(options))

    def values(participants: int, rounds: int) -> Any:
        return made.expected_errors(mean_stddev(plan, participants) / math.sqrt(rounds), float(participants))

    whole = values(plan.clients, plan.rounds)
    return {
        "statistic": task,
        "participants": plan.clients,
        "min_survivors": plan.min_survivors,
        "rounds": plan.rounds,
        "values": values(plan.clients, 1),
        "values_of_fewest": values(plan.min_survivors, 1),
        "values_of_all_rounds": whole,
        "warnings": _warnings(task, whole, plan.clients, plan.rounds),
    }


def expected_rows(expected: Expected) -> list[tuple[str, str, str]]:
    """(what, how exactly, what that means) of each value, for `sordino.planning.text.aligned`."""
    rows = []
    tables = zip(expected["values"], expected["values_of_fewest"], expected["values_of_all_rounds"], strict=True)
    for value, fewest, whole in list(tables)[:_SHOWN]:
        much, meaning = _words(expected["statistic"], value, expected["participants"])
        more = []
        if _size(fewest) > _size(value):  # a sum over fewer has less noise, and means less
            more.append(f"{_error(fewest)} if only {expected['min_survivors']} stay")
        if expected["rounds"] > 1:
            more.append(f"{_error(whole)} after all {expected['rounds']} rounds together")
        rows.append((_label(expected["statistic"], value), much, "; ".join([meaning, *more])))
    left = len(expected["values"]) - _SHOWN
    return [*rows, ("", "", f"and {left} more: --json has all")] if left > 0 else rows


def expected_lines(expected: Expected, width: int) -> list[str]:
    """What `init` and `plan` print: a heading, and a line or more for each value."""
    after = "one round" if expected["rounds"] > 1 else "the round"
    everybody = f"if all {expected['participants']} have a value:"
    heading = f"Expected standard error after {after}, of the noise alone, {everybody}"
    return [heading, *(f"  {line}" for line in aligned(expected_rows(expected), width - 2))]


def described(figures: PlanFigures, remarks: Sequence[str], width: int) -> list[str]:
    """Lines of `plan_lines` and of the expected errors, then the remarks as paragraphs, and warnings of the errors."""
    from sordino.planning.text import plan_lines

    lines = [f"  {line}" for line in plan_lines(figures, width - 2)]
    expected = figures.expected
    if expected is not None:
        lines += ["", *expected_lines(expected, width)]
        remarks = [*remarks, *(f"Warning: {one}" for one in expected["warnings"])]
    return lines + [line for remark in remarks for line in ("", *folded(remark, width))]


def _label(statistic: str, value: Mapping[str, Any]) -> str:
    if statistic == "histogram":
        return f"count of {value['name']}"
    return str(value["name"]) if statistic == "quantile" else f"{statistic}, {value['name']}"


def _words(statistic: str, value: Mapping[str, Any], participants: int) -> tuple[str, str]:
    if statistic == "quantile":
        low, high = f"{value['from_share']:.2g}", f"{value['to_share']:.2g}"
        rank = f"{value['rank_error']:.2g} of {participants} participants in rank"
        if value["rank_error"] > participants:
            rank = f"more than all {participants} participants in rank"
        words = f"of the share, {rank}: at 95 % the stated value lies between quantile {low} and quantile {high}"
        return _error(value), words
    if statistic == "histogram":
        return _error(value), f"of {counted(participants, 'participant')}; spread evenly, {value['even']:.3g} in each"
    share = value["standard_error"] / (value["most"] - value["least"])
    meaning = f"{percent(share)} of {value['least']:g} to {value['most']:g}"
    middle = value.get("standard_error_middle", value["standard_error"])
    if middle < value["standard_error"]:
        meaning += f", if it lies at a bound; ± {middle:.2g} in the middle"
    return _error(value), meaning


def _error(value: Mapping[str, Any]) -> str:
    return f"± {_size(value):.2g}"


def _size(value: Mapping[str, Any]) -> float:
    return float(value["share_error"] if "share_error" in value else value["standard_error"])


def _warnings(statistic: str, values: Sequence[Mapping[str, Any]], participants: int, rounds: int) -> list[str]:
    """What would be noise, after all rounds: one sentence for all values that are alike."""
    after = "" if rounds == 1 else f" after all {rounds} rounds"
    columns = ", or fewer columns," if statistic in ("sum", "mean") and len(values) > 1 else ""
    more = f"{_MORE}{columns} would help."
    if any(value["withheld"] for value in values):
        return [
            f"The answer would be nothing but noise: it hides{after} even whether any of the {participants} "
            f"participants answered, so most likely no value is released, and the budget is spent for nothing. {more}"
        ]
    bad = [value for value in values if _is_noise(statistic, value)]
    if not bad:
        return []
    if statistic == "histogram":
        return [
            f"The counts would be mostly noise: spread evenly, {bad[0]['name']} holds {bad[0]['even']:.3g} of "
            f"{participants} participants, less than the standard error{after}, {bad[0]['standard_error']:.2g}. Fewer "
            "bins, more participants or a larger --epsilon would help."
        ]
    more_bad = [f"{len(bad) - _SHOWN} more"] if len(bad) > _SHOWN else []
    named = " and ".join([*(str(value["name"]) for value in bad[:_SHOWN]), *more_bad])
    if statistic == "quantile":
        return [
            f"The answer would be nothing but noise ({named}): at 95 % the stated value{after} may be any of the "
            f"{participants} participants', the smallest or the largest. {more}"
        ]
    return [
        f"The answer would be nothing but noise ({named}): its standard error{after} is larger than that of a guess "
        f"anywhere between the bounds. {more}"
    ]


def _is_noise(statistic: str, value: Mapping[str, Any]) -> bool:
    if statistic == "quantile":
        return bool(value["from_share"] <= 0 and value["to_share"] >= 1)
    if statistic == "histogram":
        return bool(value["standard_error"] > value["even"])
    return bool(value["standard_error"] > GUESS * (value["most"] - value["least"]))


def default_bounds_note(task: str, given: Mapping[str, object]) -> str:
    """Which bounds of a statistic, or of the labels of a regression, are the default, and what that does to values;
    empty where all are given, or none are used.

    Raises OptionError: the given options can't be.
    """
    if task not in (*STATISTICS, REGRESSION):
        return ""
    from learning.make_task import options_of

    made: Any = options_of(task, dict(given))
    missing = [name for name in ("low", "high") if name not in given]
    counts = getattr(made, "reduce", "") == "count"
    if getattr(made, "of_labels", False) or not missing or (missing == ["low"] and counts):
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
