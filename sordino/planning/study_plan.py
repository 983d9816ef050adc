"""A plan as the public API gives it, which shows what it costs and promises, and the figure of ``sordino plan``: error
of the mean against epsilon, for four mechanisms at the chosen bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self

import wire.study
from mechanisms.plan import InfeasiblePlan, Plan
from mechanisms.statement import DDGAUSS, SKELLAM
from runtime.text import aligned, counted
from sordino.planning.alternatives import central_gaussian_multiplier, error_variance
from sordino.planning.drawing import LOG, Axes, Picture, Series, draw, on_axes
from sordino.planning.shown import Shown, data_frame
from sordino.planning.text import figures_of, heading, plan_table

if TYPE_CHECKING:
    import matplotlib.axes
    from pandas import DataFrame

_P = ParamSpec("_P")
_STEPS: Final = (1 / 8, 1 / 5.6, 1 / 4, 1 / 2.8, 1 / 2, 1 / 1.4, 1.0, 1.4, 2.0)  # of the chosen epsilon
_TICKS: Final = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0)
_STATED: Final = (
    *("mechanism", "clients", "dim", "bits", "clipping", "epsilon", "delta", "rounds", "min_survivors", "quorum"),
    *("max_dropout", "adversarial", "target", "sampling", "rotation", "beta", "k_stddevs", "graph", "adversary"),
    *("key_agreement", "offer_offset_s", "evaluation"),
)
_ROWS, _WIDTH = 10, 90  # what is shown of the table; the rest is `sordino plan`'s


def error_curves(chosen: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Root mean squared error of one value of the mean, over the clip: (epsilon, error), ascending, by mechanism.

    If all survive; the noise is still sized for the smallest sum. Settings that no plan keeps are left out. ``central``
    is a Gaussian without grid; ``chosen`` are arguments of `plan_study`.
    """
    found: dict[str, list[tuple[float, float]]] = {"ddgauss": [], "skellam": [], "central": [], "local-gaussian": []}
    for step in _STEPS:
        epsilon = float(f"{chosen['epsilon'] * step:.2g}")
        stated = dict(chosen) | {"epsilon": epsilon, "budget_coordinator": None, "budget_released": None}
        for mechanism, points in found.items():
            try:
                if mechanism == "central":
                    error = central_gaussian_multiplier(stated)[0] / chosen["clients"]
                else:
                    plan = wire.study.plan_study(**stated | {"mechanism": mechanism})
                    error = math.sqrt(error_variance(plan)) / plan.clip / plan.clients
            except InfeasiblePlan:
                continue
            points.append((epsilon, error))
    return found


def plan_axes(chosen: Mapping[str, Any]) -> Axes:
    """`error_curves` as they are drawn."""
    curves = error_curves(chosen)
    held = {epsilon for points in curves.values() for epsilon, _ in points}
    ticks = [epsilon for epsilon in (float(f"{chosen['epsilon'] * step:.2g}") for step in _TICKS) if epsilon in held]
    series = [
        Series("local Gaussian", dict(curves["local-gaussian"]), 0, marks=False),
        # They often coincide: one lies dashed on the other.
        Series("distributed Skellam", dict(curves["skellam"]), 2, marks=False, width=4.0),
        Series("distributed discrete Gaussian", dict(curves["ddgauss"]), 1, marks=False, dashed=True),
        Series("central Gaussian", dict(curves["central"]), 5, marks=False, dashed=True),
    ]
    return Axes(
        f"{counted(chosen['clients'], 'participant')}, {counted(chosen['dim'], 'value')} of "
        f"{counted(chosen['bits'], 'bit')}, {counted(chosen['rounds'], 'round')}, "
        f"delta {chosen['delta']:g}",
        "epsilon",
        "RMS error of a value of the mean, over the clip",
        series,
        scale=LOG,
        log_y=True,
        ticks=ticks,
        percent=False,
    )


def draw_plan(chosen: Mapping[str, Any], file: Path) -> None:
    """Draw `plan_axes` to a .png or .svg file."""
    note = (
        f"epsilon of all rounds, for the reader “{chosen['target']}”. Noise is sized for the smallest sum; the error\n"
        "is that of a sum in which all survived. Adjacency: zero-out; of the local Gaussian replace-one,\n"
        "where each report alone is private. The central Gaussian trusts the coordinator."
    )
    draw(Picture("plan", [plan_axes(chosen)], note), file)


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
