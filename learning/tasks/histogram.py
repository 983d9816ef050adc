"""How many participants have which values, or which classes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from learning.datasets import LABEL, Dataset
from learning.options import require
from learning.parameters import Parameters
from learning.tasks.statistic import (
    MODE,
    REDUCTIONS,
    SPREAD,
    Estimate,
    OneColumnOptions,
    StatisticTask,
    classes_of,
    column_values,
    reduced,
    rows_of,
    shares_of,
)

_OF_LABELS: Final = (SPREAD, MODE, "first", "last")


@dataclass(frozen=True, kw_only=True)
class HistogramOptions(OneColumnOptions):
    """Options of a histogram.

    Attributes:
        column: one column; ``label``, the default, counts classes.
        bins: classes from 0, or bins of equal width between the bounds, 1 to 65,536.
        reduce: ``spread``: a participant's rows share its weight of 1 among their bins. Else it counts in one bin: that
            of the first or last row, of what its values reduce to, or, of classes, of the most frequent (``mode``; of
            equals the smallest).
    """

    column: str = LABEL
    bins: int = 10
    reduce: str = SPREAD
    _ranges: ClassVar = {"bins": (1, 65_536)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.of_labels:
            for name in ("low", "high"):
                require(self.is_usual(name), name, getattr(self, name), "left out where classes are counted")

    @property
    def of_labels(self) -> bool:
        """Whether classes are counted, and not values between bounds."""
        return self.columns == (LABEL,)

    def _left_out(self) -> set[str]:
        return {"low", "high"} if self.of_labels else set()

    def _check_reduction(self, known: tuple[str, ...]) -> None:
        super()._check_reduction(_OF_LABELS if self.column == LABEL else (SPREAD, *REDUCTIONS))


def places_of(data: Dataset, options: OneColumnOptions, bins: int) -> NDArray[np.int64]:
    """Return the bins of a participant's values between the bounds, of its rows or of what they reduce to, from 0.

    A bin holds its lower edge, and the last one its upper edge, too; values beyond the bounds are in the outer bins.
    """
    low, high = (float(bound[0]) for bound in options.bounds)
    values = column_values(data, options.columns[0])
    if options.reduce != SPREAD:
        value = reduced(values, options.reduce, low, high)
        values = np.array([] if value is None else [value])
    places = np.floor((np.clip(values, low, high) - low) / (high - low) * bins)
    return np.clip(places, 0, bins - 1).astype(np.int64)


def edges_of(options: OneColumnOptions, bins: int) -> NDArray[np.float64]:
    """Return the edges of equal bins between the bounds, (bins + 1,)."""
    low, high = (float(bound[0]) for bound in options.bounds)
    return np.linspace(low, high, bins + 1)


class Histogram(StatisticTask):
    """Weight 1 of each participant, in one bin or spread over those of its rows.

    The L1 norm of a contribution is at most 1, and so is its L2 norm, reached where all weight lies in one bin: the
    sensitivity is 1 whatever the number of bins. A participant without values adds zeros. Classes below 0 or beyond the
    last bin are left out.
    """

    Options: Final = HistogramOptions
    name: Final = "histogram"
    l2_sensitivity = 1.0

    def __init__(self, options: HistogramOptions) -> None:
        self.options: HistogramOptions = options
        self.contribution_shapes = {"weights": (options.bins,)}

    def contribution(self, data: Dataset) -> Parameters:
        """Return weights, float32 (bins,), of sum 1 at most."""
        options = self.options
        if options.of_labels:
            classes = classes_of(data)
            places = classes[(classes >= 0) & (classes < options.bins)]
            if options.reduce in ("first", "last"):
                places = places[:1] if options.reduce == "first" else places[-1:]
        else:
            places = places_of(data, options, options.bins)
        counts = np.bincount(places, minlength=options.bins)
        if options.reduce == MODE and len(places):
            counts = np.bincount([counts.argmax()], minlength=options.bins)
        return {"weights": shares_of(counts).astype(np.float32)}

    def statistic(self, estimate: Estimate) -> dict[str, Any]:
        """Return the estimated number of participants in each bin, without bias, and shares that make sense together.

        Counts may be negative where there are few. ``share``: the nearest histogram that can be (least squares: none
        negative, their sum that of the counts), over that sum; None where the sum is within the noise of 0.
        """
        total = float(np.clip(estimate.mean.sum(), 0, 1))
        known = total > 2 * estimate.stddev * np.sqrt(self.options.bins)
        shares = nearest_histogram(estimate.mean, total) / total if known else None
        [expected] = self.expected_errors(estimate.stddev, estimate.participants)
        bins = self.options.bins
        values = rows_of(
            name=self._names(),
            value=(estimate.mean * estimate.participants).tolist(),
            standard_error=[expected["standard_error"]] * bins,
            share=[None] * bins if shares is None else shares.tolist(),
        )
        spread = "shared among the bins of its rows" if self.options.reduce == SPREAD else "in one bin"
        return {
            "values": values,
            "note": f"Participants of one round by {self.options.names[0]}: each has a weight of 1, {spread}.",
            "edges": None if self.options.of_labels else edges_of(self.options, bins).tolist(),
        }

    def expected_errors(self, stddev: float, participants: float) -> list[dict[str, Any]]:
        """As `StatisticTask.expected_errors`: of a count, the same for all; ``even`` is one if all were equal."""
        return [
            {
                "name": "each class" if self.options.of_labels else "each bin",
                "standard_error": stddev * participants,
                "least": 0.0,
                "most": float(participants),
                "even": participants / self.options.bins,
                "withheld": False,
            }
        ]

    def _names(self) -> list[str]:
        if self.options.of_labels:
            return [f"class {place}" for place in range(self.options.bins)]
        return [f"{first:.6g} to {second:.6g}" for first, second in pairwise(edges_of(self.options, self.options.bins))]


def nearest_histogram(values: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    """Return the vector of entries >= 0 and of sum ``total`` that is nearest to ``values`` in L2 norm.

    All entries above a common level, less that level. With noise of equal variance in all entries it is the most likely
    one of those that are possible.
    """
    descending = np.sort(values)[::-1]
    excess = np.cumsum(descending) - total
    levels = excess / np.arange(1, len(values) + 1)
    kept = int(np.flatnonzero(descending > levels)[-1]) if total > 0 else -1
    return np.maximum(values - levels[kept], 0) if kept >= 0 else np.zeros(len(values))
