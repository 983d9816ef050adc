"""Quantiles over participants, any number of them from one noised sum: the whole distribution function is released.

A participant's place j among B bins is sent as column j of a matrix C, and the coordinator multiplies the sum by L,
where L C is the lower triangle of ones: the result is the noised numbers of participants at or below each bin. Both are
the square root of that triangle, a Toeplitz matrix with r_k = binom(2k, k) / 4^k in the k-th diagonal below the main
one. Source: the factorisation of [FHU23], whose stream is our line of bins. The contribution's norm is at most g =
sqrt(r_0^2 + ... + r_{B-1}^2), and as r_k < 1 / sqrt(pi k), g^2 <= 1 + (1 + ln B) / pi. Noise of deviation s g in the
sum becomes at most s g^2 in each number.

Reason: with 256 bins and the same budget, in units of the noise of a histogram of sensitivity 1, the standard error of
those numbers (root mean square over the bins) is 11.3 where bins are counted and added up, 3.15 with a binary tree of
intervals and least squares [HRMS10], and 2.67 here; the largest is 16.0, 3.96 and 2.83. Halving an interval round by
round spends the budget on 8 numbers, each of error sqrt(8) = 2.83, and finds one quantile.
tests/learning/test_quantile.py computes these figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from learning.datasets import Dataset
from learning.options import require
from learning.parameters import Parameters
from learning.tasks.histogram import edges_of, places_of
from learning.tasks.statistic import (
    SPREAD,
    TOO_FEW,
    Estimate,
    OneColumnOptions,
    StatisticTask,
    list_of_numbers,
    rows_of,
    shares_of,
    shown_numbers,
    why_withheld,
)

_MOST_QUANTILES: Final = 99
INTERVAL: Final = 1.959964
"""Half width of an interval in standard deviations: 95 % of normal noise lies within."""


@dataclass(frozen=True, kw_only=True)
class QuantileOptions(OneColumnOptions):
    """Options of quantiles.

    Attributes:
        quantiles: shares above 0 and below 1, with commas between; 0.5 is the median. More of them cost nothing.
        bins: between the bounds, 2 to 4,096: a quantile is no finer than a bin. More of them cost little: the noise
            grows with ln(bins) / pi.
        reduce: a participant's one value, or ``spread``: its rows share its weight of 1.
    """

    quantiles: str = "0.5"
    bins: int = 256
    _ranges: ClassVar = {"bins": (2, 4096)}

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.shares

    def _check_reduction(self, known: tuple[str, ...]) -> None:
        super()._check_reduction((SPREAD, *known))

    @cached_property
    def shares(self) -> tuple[float, ...]:
        """The quantiles, in ascending order."""
        found = list_of_numbers(self.quantiles, _MOST_QUANTILES)
        usable = found is not None and all(0 < share < 1 for share in found)
        require(usable, "quantiles", self.quantiles, f"up to {_MOST_QUANTILES} numbers between 0 and 1, with commas")
        return tuple(sorted(set(found or ())))

    def asked(self) -> dict[str, str]:
        return super().asked() | {"quantiles": shown_numbers(self.shares)}


def root_coefficients(count: int) -> NDArray[np.float64]:
    """Return r_0, ..., r_{count-1}: r_k = binom(2k, k) / 4^k, the series of 1 / sqrt(1 - x).

    Their square as a series is 1 + x + x^2 + ..., so the Toeplitz matrix of them is the root of the triangle of ones.
    """
    steps = np.arange(1, count)
    return np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])


class Quantile(StatisticTask):
    """Quantiles of one value a participant, or of its rows at a weight of 1."""

    Options: Final = QuantileOptions
    name: Final = "quantile"

    def __init__(self, options: QuantileOptions) -> None:
        self.options: QuantileOptions = options
        self.contribution_shapes = {"cumulative": (options.bins,)}
        # In float32, as they are sent, so that the bound is that of what is sent.
        self._root = root_coefficients(options.bins).astype(np.float32).astype(np.float64)
        self.l2_sensitivity = math.sqrt(math.fsum(self._root**2))

    def contribution(self, data: Dataset) -> Parameters:
        """Return C times the participant's distribution over bins, float32 (bins,), rounded towards zero."""
        options = self.options
        weights = shares_of(np.bincount(places_of(data, options, options.bins), minlength=options.bins))
        sent = np.zeros(options.bins)
        for place in np.flatnonzero(weights):  # in this order everywhere: one bin's column is exact
            sent[place:] += weights[place] * self._root[: options.bins - place]
        rounded = sent.astype(np.float32)
        above = rounded.astype(np.float64) > sent
        return {"cumulative": np.where(above, np.nextafter(rounded, np.float32(0)), rounded)}

    def statistic(self, estimate: Estimate) -> dict[str, Any]:
        """Return the quantiles, each with the interval that noise leaves, and the whole distribution function.

        The numbers at or below each bin are made monotone (least squares), and cut to what can be. A quantile's
        interval holds what lies within 1.96 standard errors of its share; the standard error of a share follows from
        the noise of both numbers whose quotient it is (the delta method).
        """
        numbers = np.convolve(estimate.mean, self._root)[: self.options.bins]  # shares of all participants
        total, answered_error = float(min(numbers[-1], 1.0)), self._answered_error(estimate.stddev)
        note = "Over participants, each of weight 1, whatever its number of rows."
        answered = {"answered": max(total, 0.0), "answered_error": answered_error}
        if total <= TOO_FEW * answered_error:
            why = why_withheld(total, answered_error)
            values = [self._value(share, None, None, None, None) | {"why": why} for share in self.options.shares]
            return {"values": values, "note": note, **answered, "edges": None, "cumulative": None}
        cumulative = np.clip(nearest_monotone(numbers / total), 0.0, 1.0)
        cumulative[-1] = 1.0
        values = []
        for share in self.options.shares:
            place = int(np.searchsorted(cumulative, share))
            error = float(self._share_errors(share, total, estimate.stddev)[place])
            found, low, high = (
                self._inverse(cumulative, one) for one in (share, share - INTERVAL * error, share + INTERVAL * error)
            )
            values.append(self._value(share, found, low, high, error))
        return {
            "values": values,
            "note": note,
            **answered,
            "edges": self._edges.tolist(),
            "cumulative": [round(float(one), 6) for one in cumulative],
        }

    def expected_errors(self, stddev: float, participants: float) -> list[dict[str, Any]]:
        """As `StatisticTask.expected_errors`: of each quantile's share.

        Attributes of a table:
            share_error: standard error of the share at or below the value found, the largest over all bins in which the
                quantile could lie.
            rank_error: the same in participants.
            from_share, to_share: between which quantiles of the participants what is found lies, at 95 %.
        """
        shares = np.array(self.options.shares)
        errors = np.array([self._share_errors(share, 1.0, stddev).max() for share in self.options.shares])
        return rows_of(
            name=map(_name, self.options.shares),
            share=self.options.shares,
            share_error=errors.tolist(),
            rank_error=(errors * participants).tolist(),
            from_share=np.maximum(shares - INTERVAL * errors, 0.0).tolist(),
            to_share=np.minimum(shares + INTERVAL * errors, 1.0).tolist(),
            withheld=[TOO_FEW * self._answered_error(stddev) >= 1] * len(shares),
        )

    def _answered_error(self, stddev: float) -> float:
        """Standard error of the share who have a value."""
        return stddev * self.l2_sensitivity

    @cached_property
    def _edges(self) -> NDArray[np.float64]:
        return edges_of(self.options, self.options.bins)

    def _share_errors(self, share: float, total: float, stddev: float) -> NDArray[np.float64]:
        """Standard errors of the share at or below each bin: of the quotient of two numbers with noise in common."""
        here, common = self._squares
        variances: NDArray[np.float64] = np.maximum(here - 2 * share * common + share**2 * here[-1], 0.0)
        return np.sqrt(variances) * (stddev / total)

    @cached_property
    def _squares(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """In units of the noise of a coordinate: variance of each number, and its covariance with the last one."""
        root = self._root
        # Row p of L is r_p, ..., r_0 and the last row r_last, ..., r_0: the product is an autocorrelation, at last - p.
        return np.cumsum(root**2), np.correlate(root, root, "full")[: len(root)]

    def _inverse(self, cumulative: NDArray[np.float64], share: float) -> float:
        """Where the distribution function, straight within a bin, reaches a share."""
        if share <= 0:
            return float(self._edges[0])
        if share >= 1:
            return float(self._edges[-1])
        place = int(np.searchsorted(cumulative, share))
        before = float(cumulative[place - 1]) if place else 0.0
        inside = (share - before) / (float(cumulative[place]) - before)
        return float(self._edges[place] + inside * (self._edges[place + 1] - self._edges[place]))

    @staticmethod
    def _value(
        share: float, value: float | None, low: float | None, high: float | None, error: float | None
    ) -> dict[str, Any]:
        return {"name": _name(share), "share": share, "value": value, "low": low, "high": high, "share_error": error}


def _name(share: float) -> str:
    return "median" if share == 0.5 else f"quantile {share:g}"


def nearest_monotone(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the non-decreasing vector nearest to ``values`` in L2 norm: neighbours that fall are pooled."""
    means: list[float] = []
    sizes: list[int] = []
    for value in values.tolist():
        means.append(value)
        sizes.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            size = sizes[-2] + sizes[-1]
            means[-2:] = [(means[-2] * sizes[-2] + means[-1] * sizes[-1]) / size]
            sizes[-2:] = [size]
    return np.repeat(means, sizes)
