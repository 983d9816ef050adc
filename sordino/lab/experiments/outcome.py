"""What an experiment is asked, the hyper-parameters it chooses, and its outcome: tables, figures, choices and notes.

A choice is the combination of a grid with the greatest mean accuracy, on separate seeds. Choices that are compared
begin with the same grid, and clips and rates are extended where the best lies at an end. A choice uses the same
held-out examples as the results, with other partitions, cohorts, initial weights and noise, and it looks at several
private runs; no epsilon includes that cost, here as in the papers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from authority.study_data import check_data
from learning.blocks import DatasetError
from runtime.failure import Failure
from sordino.lab.experiments.runs import ExperimentError, Row, Run, RunPool, labels_of
from sordino.lab.experiments.setting import Sizes
from sordino.lab.experiments.tables import CONDITIONAL, Mean, Results, Share, Table, accuracy, gathered, shown
from sordino.lab.simulation.settings import SimulationSettings
from sordino.planning.drawing import Picture, draw

SEEDS: Final = (101, 102)
"""Of selections; results take others."""
WORDS: Final = "shakespeare-200"
"""The text of the small scale."""
EXTENDED: Final = ("clip", "rate")
"""Names whose values have no natural end: a grid of two or more is extended until the best is inside."""
MOST_ADDED: Final = 4
"""Values a side."""
NOT_CHARGED: Final = "Hyper-parameters were chosen on seeds 101 and 102; that choice is not charged to epsilon."


@dataclass(frozen=True)
class Choice:
    """Result of a grid.

    Attributes:
        of: the labels for each of whose values there is a choice.
        grids: for each of these values, the values tried of each name that is chosen.
        means: of every combination: (of, names...) to the accuracy on the selection's seeds.
    """

    what: str
    of: tuple[str, ...]
    grids: Mapping[tuple[Any, ...], Mapping[str, Sequence[Any]]]
    means: Mapping[tuple[Any, ...], Mean]

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are chosen."""
        return tuple(next(iter(self.grids.values())))

    @cached_property
    def chosen(self) -> Mapping[tuple[Any, ...], Mapping[str, Any] | None]:
        """The combination with the greatest mean accuracy, for each value of ``of``, of equals the first; None if no
        run completed."""
        found: dict[tuple[Any, ...], Mapping[str, Any] | None] = {}
        for head in self.grids:
            means = {key[len(head) :]: one.mean for key, one in self.means.items() if key[: len(head)] == head}
            best = max(means, key=means.__getitem__, default=None)
            found[head] = None if best is None else dict(zip(self.names, best, strict=True))
        return found

    def taken(self, *of: Any) -> Mapping[str, Any]:
        """Return the chosen combination for a value of each of ``of``; the first one if no run completed."""
        return self.chosen[of] or {name: values[0] for name, values in self.grids[of].items()}

    def applied(self, make: Callable[..., SimulationSettings]) -> Callable[..., SimulationSettings]:
        """Return ``make`` with the combination that was chosen for a run's labels; labels of that name go first."""
        return lambda **labels: make(**{**self.taken(*(labels[name] for name in self.of)), **labels})

    def runs(self, *of: Any) -> int:
        """Return the number of runs among which one was chosen."""
        return len(SEEDS) * math.prod(len(values) for values in self.grids[of].values())

    def wider(self, start: Mapping[str, Sequence[Any]], *of: Any) -> dict[str, Sequence[Any]]:
        """Return the grid, with a further value where the best lies at an end: at the ratio of the last step there.

        ``start``: the grid it began with, to which up to `MOST_ADDED` values are added on each side.
        """
        grid = dict(self.grids[of])
        for name, best in (self.chosen[of] or {}).items():
            if name not in EXTENDED or len(start[name]) < 2:
                continue
            ends, tried = sorted(start[name]), grid[name]
            if best == max(tried) and sum(value > ends[-1] for value in tried) < MOST_ADDED:
                step = ends[-1] / ends[-2]
            elif best == min(tried) and sum(value < ends[0] for value in tried) < MOST_ADDED:
                step = ends[0] / ends[1]
            else:
                continue
            grid[name] = (*tried, float(f"{best * step:.2g}"))
        return grid

    def at_end(self, *of: Any) -> str:
        """Return the names whose best lies at the end of a grid that was extended as far as it may be, as words."""
        grid, best = self.grids[of], self.chosen[of] or {}
        tried = {name: grid[name] for name in EXTENDED if len(grid.get(name, ())) > 1}
        names = [name for name, values in tried.items() if best.get(name) in (min(values), max(values))]
        return f", {' and '.join(names)} at an end" if names else ""

    def to_json(self) -> dict[str, Any]:
        """Return the whole grid with its means, and the choice."""
        keys = (*self.of, *self.names)
        return {
            "what": self.what,
            "seeds": list(SEEDS),
            "chosen": [
                dict(zip(self.of, key, strict=True))
                | {"chosen": dict(found) if found else None, "runs": self.runs(*key)}
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
            taken = found is not None and tuple(found[one] for one in self.names) == tail
            mark = f"chosen of {self.runs(*head)} runs{self.at_end(*head)}" if taken else ""
            rows.append([*key, Share(mean), mark])
        columns = (*(epsilon if name == "epsilon" else name for name in self.of), *self.names, "accuracy, %", "")
        return Table(name, self.what, columns, rows, f"{NOT_CHARGED} {self.budget()}")

    def budget(self) -> str:
        """Return a sentence on the number of runs of each choice."""
        counts = sorted({self.runs(*of) for of in self.grids})
        numbers = " to ".join(map(str, counts[:: len(counts) - 1 or 1]))
        return f"Each choice is of {numbers} runs: the same grid, extended where the best clip or rate lay at its end."


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
        """Run a grid, extended as `Choice.wider` says, and choose from it.

        ``of``: names to the values for each of which there is a choice; all begin with the same grid.
        """
        outer = dict(of or {})
        grids: dict[tuple[Any, ...], Mapping[str, Sequence[Any]]]
        grids = dict.fromkeys(itertools.product(*outer.values()), grid)
        rows: dict[tuple[Any, ...], list[Row]] = {}
        wider = grids
        while wider:
            runs: list[Run] = []
            for head, own in wider.items():
                fixed = {name: (value,) for name, value in zip(outer, head, strict=True)}
                runs += combined(fixed | dict(own), make, SEEDS, self.last)
            grids, rows = grids | wider, rows | {head: [] for head in wider}
            for row in self.pool.run(f"choosing {', '.join(grid)}", runs):
                rows[labels_of(row, *outer)].append(row)
            means = gathered(itertools.chain(*rows.values()), (*outer, *grid), accuracy)
            choice = Choice(what, tuple(outer), grids, means)
            wider = {head: own for head in wider if (own := choice.wider(grid, *head)) != grids[head]}
        return choice

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
        parts: of the experiment, in its order.
        scale: "small" or "paper".
        seeds: of the results, one or more, none of `SEEDS`.
        data: names of data sets by kind ("images", "colour", "text"); by default the scale's own.
    """

    parts: Sequence[str]
    scale: str = SMALL
    seeds: Sequence[int] = tuple(range(1, 11))
    data: Mapping[str, str] = field(default_factory=dict)

    def images(self, sizes: Sizes) -> str:
        """Return the requested data set of images, else the scale's own.

        Raises ExperimentError: the papers' size, without a data set, or as `checked`; DatasetError: it isn't here.
        """
        found = self.data.get("images", sizes.data)
        if not found:
            raise ExperimentError(
                "the papers' size takes FEMNIST, which can't be had here: get it and name it, --data femnist:PATH"
            )
        return self.checked(found, sizes)

    def words(self, sizes: Sizes) -> str:
        """Return the requested data set of words, else the scale's own; errors as of `images`."""
        found = self.data.get("text", sizes.data)
        if not found:
            raise ExperimentError("the papers' size takes StackOverflow: get it and name it, --text stackoverflow:PATH")
        try:
            return self.checked(found, sizes)
        except DatasetError as error:
            if found != WORDS:
                raise
            raise ExperimentError(
                f"the text {WORDS} isn't here: make it with sordino data prepare shakespeare --vocabulary 200 --as "
                f"{WORDS}, or leave it out with --parts images"
            ) from error

    def checked(self, data: str, sizes: Sizes) -> str:
        """Return a data set's name, after a check that its examples are those of the task, and enough to be divided.

        Raises ExperimentError: they aren't; DatasetError: it isn't here.
        """
        partition = self.partition(data)
        one = sizes.settings(data=data, epsilon=None, clip=None, rate=sizes.rates[0], seed=1, partition=partition)
        try:
            check_data(one.study, sizes.participants)
        except Failure as error:
            if isinstance(error, DatasetError):
                raise
            raise ExperimentError(f"{str(error).rstrip('.')}: name another data set") from error
        return data

    def partition(self, data: str) -> str:
        """Return "natural" for a data set that names the user of each example, else "dirichlet"."""
        from learning.datasets import load_users

        return "dirichlet" if load_users(data) is None else "natural"


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
