"""Choose hyper-parameters from a grid: the combination with the greatest mean accuracy, on separate seeds.

The choice uses the same held-out examples as the results, with other partitions, cohorts, initial weights and noise,
and it looks at several private runs; no epsilon includes that cost, here as in the papers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sordino.lab.experiments.runs import Row, Run, RunPool, labels_of
from sordino.lab.experiments.tables import CONDITIONAL, Mean, Share, Table, accuracy, gathered
from sordino.lab.simulation.settings import SimulationSettings

SEEDS: Final = (101, 102)
"""Of selections; results take others."""
NOT_CHARGED: Final = "Hyper-parameters were chosen on seeds 101 and 102; that choice is not charged to epsilon."


@dataclass(frozen=True)
class Choice:
    """Result of a grid.

    Attributes:
        what: one line.
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

    Args:
        rows: of runs on `SEEDS`, one or more.
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
    """Run a grid and choose.

    Args:
        grid: names to the values to choose from.
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
    """Return a run for every combination of a grid's values and every seed; arguments as in `tuned`."""
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [Run(one, make(seed=seed, **one), last) for one in combinations for seed in seeds]
