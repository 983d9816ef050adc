"""Hyper-parameters: a grid, played on seeds of its own, and the combination with the greatest mean accuracy.

The choice looks at accuracy on the same held-out examples as the results do, with other partitions, cohorts, initial
weights and noise, and it looks at several private runs: what that costs is part of no epsilon, here as in the papers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sordino.lab.experiments.run_pool import RunPool, labels_of
from sordino.lab.experiments.runs import Row, Run
from sordino.lab.experiments.tables import CONDITIONAL, Mean, Share, Table, accuracy, gathered
from sordino.lab.simulation.settings import SimulationSettings

SEEDS: Final = (101, 102)
"""Of selections; results take others."""
NOT_CHARGED: Final = "Hyper-parameters were chosen on seeds 101 and 102; that choice is not charged to epsilon."


@dataclass(frozen=True)
class Choice:
    """What a grid has led to.

    Attributes:
        what: one line.
        names: of the labels that vary.
        chosen: the combination, for each value of ``of``; None where nothing has worked.
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
        """The combination to go on with, for a value of each of ``of``: the first one where nothing has worked."""
        return self.chosen.get(of) or self.first

    def to_json(self) -> dict[str, Any]:
        """The whole grid with its means, and what was chosen."""
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

    def table(self, name: str) -> Table:
        """Every combination and its accuracy, what was chosen marked."""
        rows = []
        for key, mean in self.means.items():
            head, tail = key[: len(self.of)], key[len(self.of) :]
            found = self.chosen.get(head)
            mark = "chosen" if found is not None and tuple(found[one] for one in self.names) == tail else ""
            rows.append([*key, Share(mean), mark])
        columns = (*(CONDITIONAL if name == "epsilon" else name for name in self.of), *self.names, "accuracy, %", "")
        return Table(name, self.what, columns, rows, NOT_CHARGED)


def choose(what: str, rows: Sequence[Row], names: Sequence[str], of: Sequence[str] = ()) -> Choice:
    """The combination of ``names`` with the greatest mean accuracy, for each one of ``of``; of equals the first.

    Args:
        rows: of runs on `SEEDS`, one or more.
        names: labels that vary.
        of: labels for each of whose values there is a choice.
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


def tuned(
    pool: RunPool,
    what: str,
    grid: Mapping[str, Sequence[Any]],
    make: Callable[..., SimulationSettings],
    last: int,
    *,
    of: Mapping[str, Sequence[Any]] | None = None,
) -> Choice:
    """Play a grid and choose.

    Args:
        grid: names to the values that vary.
        make: called with ``seed`` and a value for each name of ``grid`` and ``of``.
        last: evaluated rounds that count.
        of: names to the values for each of which there is a choice.
    """
    outer = dict(of or {})
    runs = combined(outer | dict(grid), make, SEEDS, last)
    return choose(what, pool.run(f"choosing {', '.join(grid)}", runs), tuple(grid), tuple(outer))


def combined(
    grid: Mapping[str, Sequence[Any]], make: Callable[..., SimulationSettings], seeds: Sequence[int], last: int
) -> list[Run]:
    """A run for every combination of a grid's values and every seed, labelled with the combination.

    Args:
        make: called with ``seed`` and a value for each name of ``grid``.
        last: evaluated rounds that count.
    """
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [Run(one, make(seed=seed, **one), last) for one in combinations for seed in seeds]
