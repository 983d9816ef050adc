"""A plan as the public API gives it, which shows what it costs and promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self

import wire.study
from mechanisms.plan import Plan
from mechanisms.statement import DDGAUSS, SKELLAM
from runtime.text import aligned
from sordino.planning.drawing import on_axes
from sordino.planning.figure import plan_axes
from sordino.planning.shown import Shown, data_frame
from sordino.planning.text import figures_of, heading, plan_table

if TYPE_CHECKING:
    import matplotlib.axes
    from pandas import DataFrame

_P = ParamSpec("_P")
_STATED: Final = (
    *("mechanism", "clients", "dim", "bits", "clipping", "epsilon", "delta", "rounds", "min_survivors", "quorum"),
    *("max_dropout", "adversarial", "target", "sampling", "rotation", "beta", "k_stddevs", "graph", "adversary"),
    *("key_agreement", "offer_offset_s", "evaluation"),
)
_ROWS, _WIDTH = 10, 90  # what is shown of the table; the rest is `sordino plan`'s


class StudyPlan(Shown, Plan):
    """`mechanisms.plan.Plan` with its figures for people."""

    @classmethod
    def of(cls, plan: Plan) -> Self:
        return cls(**{one.name: getattr(plan, one.name) for one in fields(plan)})

    def to_frame(self) -> DataFrame:
        """One row with every figure of ``sordino plan --json``; raises InputFailure: no pandas."""
        return data_frame([figures_of(self).to_json()])

    def plot(self, ax: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
        """The utility curve: error of one value of a round's mean against epsilon, for four mechanisms.

        ``ax``: to draw on; by default that of a new figure. Raises InputFailure: no matplotlib.
        """
        return on_axes(plan_axes(self._stated()), ax)

    def _stated(self) -> dict[str, Any]:
        """The arguments of `plan_study` that give this plan, or one for another epsilon."""
        return {name: getattr(self, name) for name in _STATED} | {
            "population": None if self.sampling == "none" else self.population,
            "sketch": (self.sketch_rows, self.sketch_width),
            # As many as the other plan can have, unless all noise of this one stays.
            "noise_parts": 0 if self.mechanism in (DDGAUSS, SKELLAM) and not self.noise_parts else None,
        }

    def _lines(self) -> Sequence[str]:
        figures = figures_of(self)
        table = plan_table(figures)
        rows = table[:_ROWS] + [row for row in table[_ROWS:] if row[0] == "upload"]
        return [heading(figures), "", *aligned(rows, _WIDTH)]


def _shown(make: Callable[_P, Plan]) -> Callable[_P, StudyPlan]:
    @wraps(make)
    def plan_study(*args: _P.args, **kwargs: _P.kwargs) -> StudyPlan:
        return StudyPlan.of(make(*args, **kwargs))

    return plan_study


plan_study = _shown(wire.study.plan_study)
