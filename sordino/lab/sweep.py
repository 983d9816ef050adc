"""Simulations over every combination of some options' values, for `sordino.sweep`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runtime.settings_keys import settings_keys
from runtime.text import counted, did_you_mean
from sordino.lab.experiments.outcome import combined
from sordino.lab.experiments.runs import Row, RunPool, Standing
from sordino.lab.experiments.setting import with_start
from sordino.lab.experiments.tables import Cell, Mean, Table, gathered
from sordino.lab.simulation.settings import (
    SimulatedStudy,
    SimulationError,
    SimulationOptions,
    SimulationSettings,
    resized,
)
from sordino.planning.drawing import LINEAR, LOG, NAMES, Axes, Series, on_axes
from sordino.planning.shown import Shown, data_frame

if TYPE_CHECKING:
    import matplotlib.axes
    from pandas import DataFrame

_SIZES = ("participants", "cohort")
_FIGURES: Final = (
    *("outcome", "reason", "accuracy", "rounds_completed", "epsilon_coordinator", "epsilon_released"),
    *("aborted_attempts", "diverged", "wall_s"),
)
_WIDE = 8.0  # ratio of the largest to the smallest value from which on an axis is logarithmic


@dataclass(frozen=True, repr=False)
class Sweep(Shown):
    """Result of `sweep`.

    Attributes:
        grid: each option with its values.
        runs: one for each combination and seed, as `sordino.lab.experiments.runs.play` returns them.
    """

    grid: Mapping[str, Sequence[Any]]
    runs: Sequence[Row]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return one row per run: the options, the seed, ``outcome``, ``accuracy``, ``loss``, epsilons and more.

        ``outcome`` is "infeasible" with a ``reason`` where no plan keeps the budget; figures are None there.
        """
        return [
            {**run["labels"], "seed": run["seed"]}
            | {name: run.get(name) for name in _FIGURES}
            | {"loss": (run.get("losses") or [None])[-1]}
            | {f"reported_{name}": one for name, one in (run.get("reported") or {}).items()}
            for run in self.runs
        ]

    def means(self, figure: str = "accuracy") -> Mapping[tuple[Any, ...], Mean]:
        """Return the mean of a figure over seeds for each combination that has one, in the order of ``grid``."""
        if self.rows and not any(figure in row for row in self.rows):
            raise SimulationError(f"no run has the figure {figure}.{did_you_mean(figure, self.rows[0])}")
        values = {id(run): row.get(figure) for run, row in zip(self.runs, self.rows, strict=True)}
        return gathered(self.runs, tuple(self.grid), lambda run: values[id(run)])

    def to_frame(self) -> DataFrame:
        """Return `rows`; raises InputFailure: no pandas."""
        return data_frame(self.rows)

    def plot(
        self, x: str | None = None, figure: str = "accuracy", ax: matplotlib.axes.Axes | None = None
    ) -> matplotlib.axes.Axes:
        """Draw a figure's means with their standard errors, a curve for each combination of the other options.

        ``x``: an option, by default the first; ``ax``: by default in a new figure. Raises InputFailure: no matplotlib.
        """
        names = tuple(self.grid)
        x = next(iter(names), None) if x is None else x
        if x not in names:
            raise SimulationError(f"{x} wasn't swept: use one of {', '.join(names)}" if names else "nothing was swept")
        at = names.index(x)
        curves: dict[tuple[Any, ...], dict[Any, Mean]] = {}
        for key, mean in self.means(figure).items():
            curves.setdefault(key[:at] + key[at + 1 :], {})[key[at]] = mean
        others = names[:at] + names[at + 1 :]
        series = [
            Series(", ".join(f"{name} {one}" for name, one in zip(others, key, strict=True)) or figure, points, number)
            for number, (key, points) in enumerate(curves.items())
        ]
        share = figure == "accuracy"
        return on_axes(
            Axes(
                f"{figure}, {counted(len(self.runs), 'simulation')}",
                x,
                f"{figure}, %" if share else figure,
                series,
                scale=_scale(self.grid[x]),
                ticks=self.grid[x],
                percent=share,
            ),
            ax,
        )

    def _lines(self) -> Sequence[str]:
        means, names = self.means(), tuple(self.grid)
        by_key = {tuple(run["labels"][name] for name in names): run["outcome"] for run in self.runs}
        rows: list[list[Cell]] = [[*key, means.get(key), outcome] for key, outcome in by_key.items()]
        title = f"Sweep: {counted(len(self.runs), 'simulation')}"
        return Table("sweep", title, (*names, "accuracy", "outcome"), rows).lines()


def sweep(
    settings: SimulationSettings,
    *,
    seeds: Sequence[int] = (1,),
    folder: str | os.PathLike[str] | None = None,
    processes: int = 1,
    on_progress: Callable[[Standing], None] = lambda standing: None,
    **grid: Any,
) -> Sweep:
    """Simulate every combination of some options' values: ``sweep(settings, epsilon=[1, 2, 8], drop=[0, 0.2])``.

    Args:
        settings: all that isn't swept.
        seeds: of each combination: of partition, initial weights, cohorts, dropouts and batch orders.
        folder: keeps each finished run; the same call continues from there after an interruption.
        processes: that run simulations side by side.
        on_progress: called whenever a run has ended.
        grid: options of a study (``sordino simulate --help``), of a simulation or of the task, each with a list of
            values, or one value.

    Raises SimulationError, ConfigurationError: an option that doesn't exist, or a value outside its range; and as
    `simulate_study`, but for an infeasible plan, which is the outcome of its runs.
    """
    values = {name: _listed(one) for name, one in grid.items()}
    if isinstance(seeds, int) or not all([*values.values(), _listed(seeds)]) or processes < 1:
        raise SimulationError("a sweep needs values of each option, seeds such as range(3), and one process or more")
    if len(set(seeds := _listed(seeds))) < len(seeds):
        raise SimulationError("a seed is named twice: means would count its run twice")
    task_options = settings.study.make_task().options
    of_task = {*task_options.to_mapping(), *(field.name for field in fields(task_options))}
    of_simulation = [name for name in SimulationOptions.model_fields if name not in ("workers", "threads")]
    known = {*settings_keys(SimulatedStudy), *_SIZES, *of_simulation, *of_task} - {"seed", "task_options"}
    for name in values.keys() - known:
        raise SimulationError(f"there is no option {name} to sweep.{did_you_mean(name, known)}")

    def make(*, seed: int, **chosen: Any) -> SimulationSettings:
        study = {name: one for name, one in chosen.items() if name not in of_simulation and name not in of_task}
        task, options = study.get("task", settings.study.study.task), dict(settings.study.task)
        options |= {name: one for name, one in chosen.items() if name in of_task}
        study |= {"task_options": with_start(task, options, seed), "seed": seed}
        if {"participants", "cohort", "max_dropout", "adversarial"} & study.keys():
            study = {"min_survivors": None, "quorum": None} | study
        changed = resized(settings.study, settings.participants, **study)
        of_run = {name: one for name, one in chosen.items() if name in of_simulation}
        return settings.changed(study=changed, seed=seed, **of_run)

    runs = combined(values, make, seeds, 1)
    return Sweep(
        values,
        RunPool(None if folder is None else Path(folder), processes, on_progress, settings.device).run("sweep", runs),
    )


def _listed(values: Any) -> list[Any]:
    values = values.tolist() if hasattr(values, "tolist") else values  # NumPy's
    return [values] if isinstance(values, str | bytes) or not isinstance(values, Iterable) else list(values)


def _scale(values: Sequence[Any]) -> str:
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in values):
        return NAMES
    return LOG if min(values) > 0 and max(values) / min(values) >= _WIDE else LINEAR
