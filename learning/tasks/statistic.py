"""The common part of statistics: which values of a participant count, and how the coordinator joins the rounds.

One participant contributes once to a round, whatever its number of rows: they become one value or one distribution of
weight 1, and whatever they hold the contribution's norm is at most the task's ``l2_sensitivity``. Values that are
infinite or not a number count as missing; values beyond the public bounds count as the bound.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from math import inf
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from learning.datasets import LABEL, NO_LABEL, Dataset
from learning.learner import Learner, State
from learning.options import OptionError, TaskOptions, require, shown_value
from learning.parameters import Floats, Parameters, Shapes, dimension
from learning.public_random import Shuffler
from learning.server_optimizers import ServerOptimizer

TOO_FEW: Final = 3.0
"""Standard deviations that the number of those who answered must stand above 0 for a figure of them to be stated."""
NOISE, FEW_ANSWERED = "noise", "few answered"
"""Why no value is stated: the noise would hide even the answers of all; or, as far as it shows, not all answered."""
SPREAD, MODE = "spread", "mode"
REDUCTIONS: Final[Mapping[str, Callable[[NDArray[np.float64]], float]]] = {
    "mean": lambda values: float(values.mean()),
    "sum": lambda values: float(values.sum()),
    "median": lambda values: float(np.median(values)),
    "min": lambda values: float(values.min()),
    "max": lambda values: float(values.max()),
    "first": lambda values: float(values[0]),
    "last": lambda values: float(values[-1]),
    "count": lambda values: float(len(values)),
}
"""What one participant's rows become; of no rows at all only ``count`` says something."""
MOST_COLUMNS: Final = 4096
LONGEST_LIST: Final = MOST_COLUMNS * 65
"""Characters of an option that lists numbers or columns: as many names of the greatest length."""
LARGEST_BOUND: Final = 1e30
GRID: Final = 1 << 24
"""Shares are whole multiples of 1/2^24: such numbers, and 1 minus them, are exact in float32."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""Of a column: short and plain, since it is shown to participants that join."""
_COLUMN: Final = r"(?:0|[1-9][0-9]{0,8})"
_COLUMNS: Final = re.compile(f"({_COLUMN})(?:-({_COLUMN}))?")
_NUMBER: Final = re.compile(r"-?[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?")


@dataclass(frozen=True, kw_only=True)
class StatisticOptions(TaskOptions):
    """Which values count.

    Attributes:
        column: number of a column, from 0, in the examples' features laid out flat (row by row where they are images);
            its name, where all participants bring files whose columns have names; or ``label``. Where a task takes
            several: numbers, names and ranges with commas between, such as ``0,2,5-8``.
        low, high: public bounds of a participant's contribution, in the column's units, below 1e30 in size; one for all
            columns, or one for each, with commas between. They must not be read off the participants' data, and values
            beyond them count as the bound.
        reduce: the contribution of a participant with several rows: their mean, sum, median, min, max, first, last, or
            their count.
    """

    column: str = "0"
    low: str = "0"
    high: str = "1"
    reduce: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_reduction(tuple(REDUCTIONS))
        _ = self.columns, self.bounds

    def _check_reduction(self, known: tuple[str, ...]) -> None:
        require(self.reduce in known, "reduce", self.reduce, f"one of {', '.join(known)}")

    @classmethod
    def from_mapping(cls, options: Mapping[str, object]) -> Self:
        """As `TaskOptions.from_mapping`; where a list is expected, one number will do."""
        lists = {field.name for field in fields(cls) if isinstance(field.default, str)}
        numbers = {
            name: str(value)
            for name, value in options.items()
            if name in lists and isinstance(value, int | float) and not isinstance(value, bool)
        }
        return super().from_mapping({**options, **numbers})

    @cached_property
    def columns(self) -> tuple[int | str, ...]:
        found: list[int | str] = []
        require(len(self.column) <= LONGEST_LIST, "column", self.column, f"of at most {LONGEST_LIST} characters")
        for part in self.column.split(",", MOST_COLUMNS + 1)[: MOST_COLUMNS + 1]:  # one too many is enough to refuse it
            span = _COLUMNS.fullmatch(part)
            first, last = (0, 0) if span is None else (int(span[1]), int(span[2] or span[1]))
            if part == LABEL:
                found.append(LABEL)
            elif span is not None and first <= last < first + MOST_COLUMNS:
                # One too many is enough to refuse it: who wrote the option may be a stranger.
                found.extend(range(first, min(last, first + MOST_COLUMNS - len(found)) + 1))
            elif _NAME.fullmatch(part):
                found.append(part)
            else:
                raise OptionError(
                    f"option 'column' is {shown_value(self.column)}; it must be numbers from 0, ranges such as 0-9, "
                    "names of letters, digits and underscores, or label, with commas and no blanks between"
                )
            if len(found) > MOST_COLUMNS:
                break
        distinct = len(set(found)) == len(found) <= MOST_COLUMNS
        require(distinct, "column", self.column, f"at most {MOST_COLUMNS} columns, none of them twice")
        return tuple(found)

    @property
    def names(self) -> list[str]:
        return [column_name(column) for column in self.columns]

    @cached_property
    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Lower and upper bounds, (columns,) each."""
        low, high = (self._numbers(name) for name in ("low", "high"))
        require(bool((low < high).all()), "high", self.high, f"above low, which is {self.low}")
        return low, high

    def asked(self) -> dict[str, str]:
        """What the study asks of a participant, for display: every option as it is used in the computation.

        Returns texts by the options' names, nothing left out, with a blank after each comma.
        """
        found = {name: str(value) for name, value in self.to_mapping().items()}
        found["column"] = _shown_columns(self.columns)
        for name, bounds in zip(("low", "high"), self.bounds, strict=True):
            if name in found:
                found[name] = shown_numbers(bounds.tolist() if len(set(bounds.tolist())) > 1 else bounds.tolist()[:1])
        return found

    def _numbers(self, option: str) -> NDArray[np.float64]:
        text = getattr(self, option)
        count = len(self.columns)
        values = list_of_numbers(text, count)
        expected = "a number below 1e30" + (f", or {count} with commas between, one for each column" * (count > 1))
        usable = values is not None and len(values) in (1, count) and all(abs(one) <= LARGEST_BOUND for one in values)
        require(usable, option, text, expected)
        return np.broadcast_to(np.array(values, dtype=np.float64), (count,))


@dataclass(frozen=True, kw_only=True)
class OneColumnOptions(StatisticOptions):
    """Which values count, of one column."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.columns) == 1, "column", self.column, "one column")


def list_of_numbers(text: str, most: int) -> list[float] | None:
    """Up to ``most`` numbers written as 1, 1.5 or 1e6, with commas and no blanks between; None for anything else.

    ``float`` alone would take blanks, underscores and the digits of any script: text that a person reads otherwise.
    """
    parts = text.split(",", most) if len(text) <= LONGEST_LIST else []
    if not 1 <= len(parts) <= most or not all(map(_NUMBER.fullmatch, parts)):
        return None
    values = list(map(float, parts))
    return values if all(map(math.isfinite, values)) else None


def shown_numbers(values: Sequence[float]) -> str:
    """Numbers with commas between, to the last digit."""
    return ", ".join(repr(value).removesuffix(".0") for value in values)


def _shown_columns(columns: Sequence[int | str]) -> str:
    """As an option names them: neighbours that follow one another as a range."""
    spans: list[tuple[int | str, int | str]] = []
    for column in columns:
        if spans and isinstance(column, int) and spans[-1][1] == column - 1:
            spans[-1] = (spans[-1][0], column)
        else:
            spans.append((column, column))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def classes_of(data: Dataset) -> NDArray[np.int64]:
    """Return the labels, (n,), missing ones left out. Raises ValueError: there are several for each example."""
    if data.labels.ndim != 1:
        raise ValueError("these examples have several labels each: there is no one column of them")
    known: NDArray[np.int64] = data.labels[data.labels != NO_LABEL]
    return known


def column_values(data: Dataset, column: int | str) -> NDArray[np.float64]:
    """Return what stands in a column, (n,), missing values left out.

    Raises ValueError: the data have no such column.
    """
    if column == LABEL:
        return classes_of(data).astype(np.float64)
    if not len(data):
        return np.zeros(0)
    values = data.features.reshape(len(data), -1)[:, place_of(data, column)].astype(np.float64)
    return values[np.isfinite(values)]


def place_of(data: Dataset, column: int | str) -> int:
    """Return where a column stands in the features laid out flat.

    Raises ValueError: no column has this number or name.
    """
    count = math.prod(data.features.shape[1:])
    if isinstance(column, int):
        if column >= count:
            raise ValueError(f"there is no column {column}: the examples have {count}")
        return column
    if column not in data.columns:
        why = "" if data.columns else ": the examples' columns have no names, so that only a number can say which"
        raise ValueError(f"there is no column called {column}{why}")
    return data.columns.index(column)


def reduced(values: NDArray[np.float64], how: str, low: float, high: float) -> float | None:
    """Return one participant's value within [low, high], or None where it has none.

    Args:
        values: (n,), finite; float32 values in float64, so that no sum overflows.
        how: one of ``REDUCTIONS``.
    """
    if not len(values) and how != "count":
        return None
    return min(max(REDUCTIONS[how](values), low), high)


def shares_of(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return counts >= 0 as a distribution of weight 1, rounded down to multiples of 1/2^24; zeros of nothing.

    Counts are of rows in memory, far below 2^39, where the product would leave 64 bits. Rounded down, the weights sum
    to 1 at most, and so their L2 norm is at most 1, exactly, in float32 too.
    """
    total = int(counts.sum())
    return np.zeros(len(counts)) if total == 0 else (counts * GRID // total) / GRID


@dataclass(frozen=True)
class Estimate:
    """The mean contribution over all rounds so far.

    Attributes:
        mean: (dim,): sum of all rounds over the sum of their participants.
        stddev: of its noise, one coordinate.
        participants: in one round, on average.
    """

    mean: NDArray[np.float64]
    stddev: float
    participants: float


class StatisticTask(ABC):
    """A task without a model. A subclass has ``name``, ``Options``, shapes and bound, contribution, and statistic."""

    options: StatisticOptions
    contribution_shapes: Shapes
    l2_sensitivity: float
    name: str

    @cached_property
    def dim(self) -> int:
        return dimension(self.contribution_shapes)

    def initial_parameters(self) -> Parameters:
        """Return one zero: participants need nothing to begin from, and a document of no bytes isn't fetched."""
        return {"nothing": np.zeros(1, dtype=np.float32)}

    @abstractmethod
    def contribution(self, data: Dataset) -> Parameters:
        """Return what one participant adds; its L2 norm is at most ``l2_sensitivity`` whatever the data.

        Raises ValueError: the data have no such column.
        """

    @abstractmethod
    def statistic(self, estimate: Estimate) -> dict[str, Any]:
        """Return ``values``, ``note`` and whatever else is released, all of it computed from the estimate alone."""

    def reduced_columns(self, data: Dataset) -> list[float | None]:
        """Return one participant's value in each column, within its bounds; None where it has none."""
        options = self.options
        return [
            reduced(column_values(data, column), options.reduce, low, high)
            for column, low, high in zip(options.columns, *options.bounds, strict=True)
        ]

    def check_form(self, data: Dataset) -> None:
        """Raise ``ValueError`` if a column that is read doesn't exist; only the examples' form counts.

        A participant without values may bring examples without any column.
        """
        if not math.prod(data.features.shape[1:]) and not data.columns:
            return
        for column in self.options.columns:
            if column == LABEL and not data.labelled:
                raise ValueError(f"there is no column {LABEL}")
            column_values(data.form(), column)

    def answers(self, data: Dataset) -> dict[str, int]:
        """How many values the examples have in each column that is read, by its name or number; for their owner alone.

        ``data``: of a form that `check_form` takes.
        """
        if not math.prod(data.features.shape[1:]) and not data.columns:
            return {}
        found: dict[str, int] = {}
        for column in self.options.columns:
            name = column
            if column != LABEL:
                place = place_of(data, column)
                name = data.columns[place] if data.columns else place
            found[str(name)] = len(column_values(data, column))
        return found

    def expected_errors(self, stddev: float, participants: float) -> list[dict[str, Any]]:
        """The errors that the noise will cause if every participant has a value: known before anything is spent.

        The formulas are those of `statistic`, so a released result says the same, except for participants without a
        value.

        Args:
            stddev: of the noise in one coordinate of the mean contribution, at most.
            participants: in the sum.

        Returns tables with ``name``; then ``standard_error``, the largest possible one, with the bounds ``least`` and
        ``most`` of the value, or ``share_error`` of a quantile's share; and ``withheld``, whether the noise would hide
        even the answers of all. Further keys are described by each statistic. Empty where nothing can be said.
        """
        return []

    def local_update(self, parameters: Parameters, data: Dataset, rng: Shuffler, l2_clip: float = inf) -> Parameters:
        """Return the contribution: the same in every round, whatever the round begins from."""
        return self.contribution(data)

    def learner(self, optimizer: ServerOptimizer, data: Dataset) -> StatisticLearner:
        """The sum over rounds; the coordinator has no use for data of its own."""
        return StatisticLearner(self)


class StatisticLearner(Learner):
    """Joins rounds: all sums added up, over all their participants.

    A round counts by its survivors. Its mean has a variance in proportion to 1 over them where each participant adds a
    share of the noise, so no other weights give a smaller one.
    """

    def __init__(self, task: StatisticTask) -> None:
        self._task = task
        self._total = np.zeros(task.dim)
        self._participations = self._rounds = self._last = 0
        self._variance = 0.0  # of one coordinate of the total

    def broadcast(self) -> Parameters:
        return self._task.initial_parameters()

    def learn(self, mean: Floats, survivors: int, stddev: float = 0.0) -> None:
        """Add a round. Raises ValueError, and stays as it was, for a mean that doesn't fit or isn't finite."""
        if mean.shape != self._total.shape or not np.isfinite(mean).all():
            raise ValueError(f"a mean is {self._total.shape[0]} finite numbers")
        self._total = self._total + survivors * mean.astype(np.float64)
        self._variance += (survivors * stddev) ** 2
        self._participations += survivors
        self._rounds, self._last = self._rounds + 1, survivors

    def estimate(self) -> Estimate:
        """What all rounds say. Raises ValueError before the first."""
        if not self._rounds:
            raise ValueError("no round has ended yet")
        count = self._participations
        return Estimate(self._total / count, math.sqrt(self._variance) / count, count / self._rounds)

    def released(self) -> dict[str, Any]:
        """The statistic after all rounds so far, as `learning.learner.Learner.released` says; {} before the first."""
        if not self._rounds:
            return {}
        about: dict[str, Any] = {"statistic": self._task.name, "participants": self._last, "rounds": self._rounds}
        asked = getattr(self._task.options, "asked", None)  # a user's own task may have other options
        if asked is not None:
            about["asked"] = asked()
        return about | self._task.statistic(self.estimate())

    def state(self) -> tuple[Parameters, State]:
        mean = self._total / max(self._participations, 1)
        counts = [self._participations, self._rounds, self._last, self._variance]
        return {"mean": mean.astype(np.float32)}, {"total": self._total, "counts": np.array(counts, dtype=np.float64)}

    def load_state(self, parameters: Parameters, state: Mapping[str, Floats]) -> None:
        """Raises ValueError: another statistic's."""
        shapes = {name: array.shape for name, array in state.items()}
        if shapes != {"total": self._total.shape, "counts": (4,)}:
            raise ValueError("the checkpoint holds another statistic")
        total, counts = state["total"], state["counts"]
        self._total = total.astype(np.float64)
        self._participations, self._rounds, self._last = (int(value) for value in counts[:3])
        self._variance = float(counts[3])


def rows_of(**columns: Iterable[Any]) -> list[dict[str, Any]]:
    """The rows of a table of equally long columns, by the columns' names."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def why_withheld(answered: float, stddev: float) -> str:
    """Why the number of participants that answered can't be distinguished from 0.

    Args:
        answered: share of the participants, as the noised sum has it.
        stddev: of its noise.

    Returns ``NOISE`` where all may have answered, within two standard deviations; else ``FEW_ANSWERED``.
    """
    return NOISE if answered + 2 * stddev >= 1 else FEW_ANSWERED


def column_name(column: int | str) -> str:
    """As it stands in front of a figure."""
    return column if isinstance(column, str) else f"column {column}"
