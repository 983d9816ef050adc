"""The figure of ``sordino plan``: error of the mean against epsilon, for four mechanisms at the chosen bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from mechanisms.plan import InfeasiblePlan
from runtime.text import counted
from sordino.planning.alternatives import central_gaussian_multiplier, error_variance
from sordino.planning.drawing import LOG, Axes, Picture, Series, draw
from wire.study import plan_study

_STEPS: Final = (1 / 8, 1 / 5.6, 1 / 4, 1 / 2.8, 1 / 2, 1 / 1.4, 1.0, 1.4, 2.0)  # of the chosen epsilon
_TICKS: Final = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0)


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
                    plan = plan_study(**stated | {"mechanism": mechanism})
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
