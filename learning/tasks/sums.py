"""Sums and means of columns, one value a participant."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from learning.datasets import Dataset
from learning.parameters import Parameters
from learning.tasks.statistic import GRID, TOO_FEW, Estimate, StatisticOptions, StatisticTask, rows_of, why_withheld


@dataclass(frozen=True, kw_only=True)
class SumOptions(StatisticOptions):
    """Options of a sum: those of any statistic; of several rows a participant contributes their sum."""

    reduce: str = "sum"


class Sum(StatisticTask):
    """Sum over participants of one value each, for one or more columns.

    A value v in [low, high] is sent as v / B with B = max(|low|, |high|), and nothing as 0. Each of the c columns is
    then at most 1 in size, and the contribution at most sqrt(c): met where every value is at a bound of size B.
    """

    Options: Final = SumOptions
    name: Final = "sum"

    def __init__(self, options: SumOptions) -> None:
        self.options = options
        columns = len(options.columns)
        self.contribution_shapes = {"sum": (columns,)}
        self.l2_sensitivity = math.sqrt(columns)
        self._unit = np.maximum(np.abs(options.bounds[0]), np.abs(options.bounds[1]))

    def contribution(self, data: Dataset) -> Parameters:
        """Return values over B, float32 (columns,), each in [-1, 1]; 0 where there is nothing."""
        sent = np.zeros(len(self.options.columns), dtype=np.float32)
        for place, value in enumerate(self.reduced_columns(data)):
            if value is not None:
                sent[place] = value / self._unit[place]
        return {"sum": sent}

    def statistic(self, estimate: Estimate) -> dict[str, Any]:
        """Return sums over the participants of one round, as many as took part on average."""
        values = rows_of(
            name=self.options.names,
            value=(estimate.mean * (self._unit * estimate.participants)).tolist(),
            standard_error=self._errors(estimate.stddev, estimate.participants),
            per_participant=(estimate.mean * self._unit).tolist(),
        )
        note = f"Sums over the {estimate.participants:.6g} participants of one round, on average."
        return {"values": values, "note": note}

    def expected_errors(self, stddev: float, participants: float) -> list[dict[str, Any]]:
        """As `StatisticTask.expected_errors`: of each column's sum; who has no value adds 0."""
        low, high = self.options.bounds
        return rows_of(
            name=self.options.names,
            standard_error=self._errors(stddev, participants),
            least=(participants * np.minimum(low, 0.0)).tolist(),
            most=(participants * np.maximum(high, 0.0)).tolist(),
            withheld=[False] * len(low),
        )

    def _errors(self, stddev: float, participants: float) -> list[float]:
        return list((stddev * participants * self._unit).tolist())


@dataclass(frozen=True, kw_only=True)
class MeanOptions(StatisticOptions):
    """Options of a mean.

    Attributes:
        count: whether participants may lack a value in a column: the number of those that have one is then estimated
            within the same noised sum. Without it all count, those without a value as the middle of the bounds, and the
            standard error is smaller by a factor of sqrt(2) to 2.
    """

    count: bool = True


class Mean(StatisticTask):
    """Mean over participants of one value each, for one or more columns; not weighted by their numbers of rows.

    With x = (v - low) / (high - low) in [0, 1] a participant sends the pair (x, 1 - x) for a column, and (0, 0) without
    a value. Its norm is at most 1, reached at both bounds, so of c columns sqrt(c). The pair's sum counts the answers,
    inside the same noise: with A and B the noised means of its halves, the mean over those that answered is low + (high
    - low) A / (A + B), of standard error (high - low) s sqrt(A^2 + B^2) / (A + B)^2 where s is that of A and of B (the
    delta method). A pair (2x - 1, 1) says the same, sqrt(2) times as large.

    Without the count it is 2x - 1 alone, in [-1, 1], and the standard error s (high - low) / 2.
    """

    Options: Final = MeanOptions
    name: Final = "mean"

    def __init__(self, options: MeanOptions) -> None:
        self.options: MeanOptions = options
        columns = len(options.columns)
        names = ("above_low", "below_high") if options.count else ("middle",)
        self.contribution_shapes = dict.fromkeys(names, (columns,))
        self.l2_sensitivity = math.sqrt(columns)

    def contribution(self, data: Dataset) -> Parameters:
        """Return the pairs, or 2x - 1; float32 (columns,) each."""
        above = np.zeros(len(self.options.columns))
        values = self.reduced_columns(data)
        answered = np.array([value is not None for value in values])
        for place, (value, low, high) in enumerate(zip(values, *self.options.bounds, strict=True)):
            if value is not None:
                # Multiples of 1/2^24 in [0, 1]: then 1 - x is exact in float32 too, and no norm exceeds 1 by rounding.
                above[place] = round((value - low) / (high - low) * GRID) / GRID
        if not self.options.count:
            return {"middle": np.where(answered, 2 * above - 1, 0).astype(np.float32)}
        return {
            "above_low": above.astype(np.float32),
            "below_high": np.where(answered, 1 - above, 0).astype(np.float32),
        }

    def statistic(self, estimate: Estimate) -> dict[str, Any]:
        """Return the mean of each column with its standard error, and the share of participants who answered."""
        low, high = self.options.bounds
        if not self.options.count:
            values = rows_of(
                name=self.options.names,
                value=((high + low) / 2 + (high - low) / 2 * np.clip(estimate.mean, -1.0, 1.0)).tolist(),
                standard_error=self._errors(estimate.stddev),
            )
            return {"values": values, "note": "Each participant counts once, whatever its number of rows."}
        values = []
        above, below = np.split(estimate.mean, 2)
        answered_error = _answered_error(estimate.stddev)
        for name, first, second, a, b in zip(self.options.names, low, high, above, below, strict=True):
            answered, share, error = float(a + b), None, None
            if answered > TOO_FEW * answered_error:  # else the quotient says nothing
                share = min(max(float(a) / answered, 0.0), 1.0)
                error = float(second - first) * (estimate.stddev / answered) * math.hypot(share, 1 - share)
            entry: dict[str, Any] = {
                "name": name,
                "value": None if share is None else float(first + (second - first) * share),
                "standard_error": error,
                "answered": min(max(answered, 0.0), 1.0),
                "answered_error": answered_error,
            }
            values.append(entry if share is not None else entry | {"why": why_withheld(answered, answered_error)})
        return {"values": values, "note": "Each participant with a value counts once, whatever its number of rows."}

    def expected_errors(self, stddev: float, participants: float) -> list[dict[str, Any]]:
        """As `StatisticTask.expected_errors`: of each column's mean.

        Where answers are counted, the error is largest if the mean lies at a bound; in the middle of the bounds it is
        smaller by sqrt(2): ``standard_error_middle``.
        """
        low, high = self.options.bounds
        return rows_of(
            name=self.options.names,
            standard_error=self._errors(stddev),
            standard_error_middle=self._errors(stddev, 0.5),
            least=low.tolist(),
            most=high.tolist(),
            withheld=[self.options.count and TOO_FEW * _answered_error(stddev) >= 1] * len(low),
        )

    def _errors(self, stddev: float, share: float = 1.0) -> list[float]:
        """Of each column's mean, if all have a value; ``share``: where it lies between the bounds, 0 to 1."""
        low, high = self.options.bounds
        factor = math.hypot(share, 1 - share) if self.options.count else 0.5
        return list(((high - low) * (stddev * factor)).tolist())


def _answered_error(stddev: float) -> float:
    """Standard error of the share who have a value: of the sum of a pair."""
    return math.sqrt(2) * stddev
