"""What an experiment is asked, the hyper-parameters it chooses, and its outcome: tables, figures, choices and notes.

A choice is the combination of a grid with the greatest mean accuracy, on separate seeds. It uses the same held-out
examples as the results, with other partitions, cohorts, initial weights and noise, and it looks at several private
runs; no epsilon includes that cost, here as in the papers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sordino.lab.experiments.runs import ExperimentError, Row, Run, RunPool, labels_of
from sordino.lab.experiments.tables import CONDITIONAL, Mean, Results, Share, Table, accuracy, gathered, shown
from sordino.lab.simulation.settings import SimulationSettings
from sordino.planning.drawing import Picture, draw

SEEDS: Final = (101, 102)
"""Of selections; results take others."""
NOT_CHARGED: Final = "Hyper-parameters were chosen on seeds 101 and 102; that choice is not charged to epsilon."


@dataclass(frozen=True)
class Choice:
    """Result of a grid.

    Attributes:
        of, names: the labels for each of whose values there is a choice, and those that are chosen.
        chosen: the combination, for each value of ``of``; None if no run completed.
        means: of every combination: (of, names...) to the accuracy on the selection's seeds.
        first: the first combination of the grid.
    """

    what: str
    of: tuple[str, ...]
    names: tuple[str, ...]
    chosen: Mapping[tuple[Any, ...], Mapping[str, Any] | None]
    means: Mapping[tuple[Any, ...], Mean]
    first: Mapping[str, Any]

    def taken(self, *of: Any) -> Mapping[str, Any]:
        """Return the chosen combination for a value of each of ``of``; the first one if no run completed."""
        return self.chosen.get(of) or self.first

    def to_json(self) -> dict[str, Any]:
        """Return the whole grid with its means, and the choice."""
        keys = (*self.of, *self.names)
        return {
            "what": self.what,
            "seeds": list(SEEDS),
            "chosen": [
                dict(zip(self.of, key, strict=True)) | {"chosen": dict(found) if found else None}
                for key, found in self.chosen.items()
            ],
            "grid": [
                dict(zip(keys, key, strict=True)) | {"accuracy": mean.mean, "standard_error": mean.error}
                for key, mean in self.means.items()
            ],
        }

    def table(self, name: str, epsilon: str = CONDITIONAL) -> Table:
        """Return every combination and its accuracy, the choice marked; ``epsilon``: whose is bounded."""
        rows = []
        for key, mean in self.means.items():
            head, tail = key[: len(self.of)], key[len(self.of) :]
            found = self.chosen.get(head)
            mark = "chosen" if found is not None and tuple(found[one] for one in self.names) == tail else ""
            rows.append([*key, Share(mean), mark])
        columns = (*(epsilon if name == "epsilon" else name for name in self.of), *self.names, "accuracy, %", "")
        return Table(name, self.what, columns, rows, NOT_CHARGED)


def choose(what: str, rows: Sequence[Row], names: Sequence[str], of: Sequence[str] = ()) -> Choice:
    """Choose the combination of ``names`` with the greatest mean accuracy, per value of ``of``; of equals the first.

    ``rows``: of runs on `SEEDS`, one or more.
    """
    means = gathered(rows, (*of, *names), accuracy)
    chosen: dict[tuple[Any, ...], Mapping[str, Any] | None] = {labels_of(row, *of): None for row in rows}
    best: dict[tuple[Any, ...], float] = {}
    for key, mean in means.items():
        head, tail = key[: len(of)], key[len(of) :]
        if head not in best or mean.mean > best[head]:
            best[head], chosen[head] = mean.mean, dict(zip(names, tail, strict=True))
    first = dict(zip(names, labels_of(rows[0], *names), strict=True))
    return Choice(what, tuple(of), tuple(names), chosen, means, first)


def combined(
    grid: Mapping[str, Sequence[Any]], make: Callable[..., SimulationSettings], seeds: Sequence[int], last: int
) -> list[Run]:
    """Return a run for every combination of a grid's values and every seed; arguments as in `Stages`."""
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [Run(one, make(seed=seed, **one), last) for one in combinations for seed in seeds]


@dataclass(frozen=True)
class Stages:
    """The stages of one experiment: grids of runs, on `SEEDS` to choose, else on ``seeds``.

    In all of them a grid is names to their values, ``make`` is called with ``seed`` and a value for each name, and the
    mean accuracy of the ``last`` evaluated rounds counts.
    """

    pool: RunPool
    seeds: Sequence[int]
    last: int

    def tuned(
        self,
        what: str,
        grid: Mapping[str, Sequence[Any]],
        make: Callable[..., SimulationSettings],
        of: Mapping[str, Sequence[Any]] | None = None,
    ) -> Choice:
        """Run a grid and choose from it; ``of``: names to the values for each of which there is a choice."""
        outer = dict(of or {})
        runs = combined(outer | dict(grid), make, SEEDS, self.last)
        return choose(what, self.pool.run(f"choosing {', '.join(grid)}", runs), tuple(grid), tuple(outer))

    def results(
        self, stage: str, grid: Mapping[str, Sequence[Any]], make: Callable[..., SimulationSettings]
    ) -> Results:
        """Run a grid for its results."""
        return Results(self.pool.run(stage, combined(grid, make, self.seeds, self.last)), *grid)


SMALL, PAPER = "small", "paper"


@dataclass(frozen=True)
class Outcome:
    """The outcome of an experiment; notes are one line each, tables and pictures in reading order."""

    notes: Sequence[str]
    tables: Sequence[Table]
    pictures: Sequence[Picture]
    choices: Sequence[Choice] = ()

    def to_json(self) -> dict[str, Any]:
        """Return notes, choices unrounded, and tables as columns and rows of text."""
        return {
            "notes": list(self.notes),
            "tables": [
                {
                    "name": table.name,
                    "title": table.title,
                    "note": table.note,
                    "columns": list(table.columns),
                    "rows": [[shown(cell) for cell in row] for row in table.rows],
                }
                for table in self.tables
            ],
            "choices": [choice.to_json() for choice in self.choices],
        }


@dataclass(frozen=True)
class Request:
    """The choices of one call.

    Attributes:
        scale: "small" or "paper".
        seeds: of the results, one or more, none of `SEEDS`.
        data: names of data sets by kind ("images", "colour", "text"); by default the scale's own.
        parts: of the experiment; empty for all.
    """

    scale: str = SMALL
    seeds: Sequence[int] = (1, 2, 3)
    data: Mapping[str, str] = field(default_factory=dict)
    parts: Sequence[str] = ()

    def images(self, usual: str) -> str:
        """Return the requested data set of images, else the scale's own.

        Raises ExperimentError: the papers' size, without a data set.
        """
        found = self.data.get("images", usual)
        if not found:
            raise ExperimentError(
                "the papers' size takes FEMNIST, which can't be had here: get it and name it, --data femnist:PATH"
            )
        return found

    def partition(self, data: str) -> str:
        """Return "natural" for a data set that names the user of each example, else "dirichlet"."""
        from learning.datasets import load_users

        return "dirichlet" if load_users(data) is None else "natural"

    def wants(self, part: str) -> bool:
        return not self.parts or part in self.parts


def write(outcome: Outcome, folder: Path) -> list[Path]:
    """Write each table as .txt, .csv and .md, and each figure as .svg; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for table in outcome.tables:
        for ending, text in (("txt", table.text()), ("csv", table.csv()), ("md", table.markdown())):
            file = folder / f"{table.name}.{ending}"
            file.write_text(text, encoding="utf-8")
            files.append(file)
    for picture in outcome.pictures:
        file = folder / f"{picture.name}.svg"
        draw(picture, file)
        files.append(file)
    return files
