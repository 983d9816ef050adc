"""Means with standard errors over seeds, and their tables as text, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from runtime.text import folded
from sordino.lab.experiments.paired import LEVEL, detectable, holm, p_value
from sordino.lab.experiments.runs import DONE, Row, labels_of

CONDITIONAL: Final = "epsilon (conditional)"
"""The published figure's name, in columns and on axes; condition: `sordino.lab.experiments.setting.PUBLISHED`."""
SPENT: Final = ("epsilon_released", "epsilon_coordinator")
"""Columns of proved epsilons: for readers of released models, and for readers who see the sums and know the cohorts."""
HELD: Final = (
    "Of the epsilons the conditional one compares with papers and isn't proved for cohorts of a fixed size; "
    "epsilon_released holds for readers of the released models, epsilon_coordinator for those who know the cohorts."
)
PAIRED: Final = ("p", "finding")
"""Columns after that of a difference: see `compared`."""
TEST: Final = (
    "Differences are points, paired by seed: equal partitions, cohorts and initial weights. p: two-sided sign-flip "
    "test, corrected for the comparisons {of} (Holm). 'above' and 'below': p of 0.05 at most. 'Would have been': the "
    "difference that the test finds with 80 % power."
)
"""Note of a table of comparisons; ``of``: its family, as "of this table"."""
_ROUNDING: Final = 1e-14  # of a mean, relative


@dataclass(frozen=True)
class Mean:
    """Over seeds: arithmetic mean, and standard error, sample deviation / sqrt(count), None for one value."""

    mean: float
    error: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        count = len(values)
        mean = math.fsum(values) / count
        if count == 1:
            return cls(mean, None, 1)
        spread = [value - mean if abs(value - mean) > _ROUNDING * abs(mean) else 0.0 for value in values]
        variance = math.fsum(one * one for one in spread) / (count - 1)
        return cls(mean, math.sqrt(variance / count), count)


@dataclass(frozen=True)
class Share:
    """A mean of shares of one, shown in percent; ``signed`` shows a plus."""

    of: Mean
    signed: bool = False


Cell: TypeAlias = "str | int | float | Mean | Share | None"


@dataclass(frozen=True)
class Table:
    """One table; ``name`` is its file's without ending, ``title`` one line, ``note`` explains it."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def text(self, width: int | None = None) -> str:
        """Return `lines`, each ended."""
        return "\n".join(self.lines(width)) + "\n"

    def lines(self, width: int | None = None) -> list[str]:
        """Return aligned columns: words to the left, numbers to the right.

        ``width``: of the terminal: a wider table is broken into several, each with the first column; None breaks none.
        """
        cells = [list(map(shown, row)) for row in self.rows]
        widths = [max(map(len, column)) for column in zip(self.columns, *cells, strict=True)]
        words = [all(isinstance(row[at], str) for row in self.rows) for at in range(len(self.columns))]

        def line(row: Sequence[str], places: Sequence[int]) -> str:
            placed = (f"{row[at]:<{widths[at]}}" if words[at] else f"{row[at]:>{widths[at]}}" for at in places)
            return "  ".join(placed).rstrip()

        note = self.note if width is None else "\n".join(folded(self.note, width))
        lines = [self.title, *([note] if note else [])]
        for places in _blocks(widths, width):
            lines += ["", line(self.columns, places), *(line(row, places) for row in cells)]
        return lines

    def markdown(self) -> str:
        """With the title above and the note below."""
        words = [all(isinstance(row[at], str) for row in self.rows) for at in range(len(self.columns))]
        rule = ["---" if word else "--:" for word in words]
        rows = [self.columns, rule, *([shown(cell) for cell in row] for row in self.rows)]
        lines = [f"**{self.title}**", "", *("| " + " | ".join(row) + " |" for row in rows)]
        return "\n".join([*lines, *(["", self.note] if self.note else [])]) + "\n"

    def csv(self) -> str:
        """Unrounded; a mean takes three columns: itself, its standard error and how many seeds."""
        averaged = [any(isinstance(row[at], Mean | Share) for row in self.rows) for at in range(len(self.columns))]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        heads = [
            [name, f"{name}: standard error", f"{name}: seeds"] if mean else [name]
            for name, mean in zip(self.columns, averaged, strict=True)
        ]
        writer.writerow(itertools.chain(*heads))
        for row in self.rows:
            plain = [_plain(cell) if mean else [cell] for cell, mean in zip(row, averaged, strict=True)]
            writer.writerow(["" if cell is None else cell for cell in itertools.chain(*plain)])
        return out.getvalue()


def _blocks(widths: Sequence[int], width: int | None) -> list[list[int]]:
    """Return the places of columns side by side; each later block repeats the first column."""
    blocks = [[0]]
    for at in range(1, len(widths)):
        needed = sum(widths[place] + 2 for place in blocks[-1]) + widths[at]
        if width is not None and needed > width and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(at)
    return blocks


def shown(cell: Cell) -> str:
    """A cell for people: shares in percent with one digit of the error's size, other numbers with four digits."""
    if isinstance(cell, Share):
        mean, sign = cell.of, "+" if cell.signed else ""
        error = "" if mean.error is None else f" ± {100 * mean.error:.2f}"
        return f"{100 * mean.mean:{sign}.2f}{error}"
    if isinstance(cell, Mean):
        return f"{cell.mean:.4g}" + ("" if cell.error is None else f" ± {cell.error:.2g}")
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return "" if cell is None else str(cell)


def _plain(cell: Cell) -> list[Any]:
    if isinstance(cell, Share):
        cell = cell.of
    if isinstance(cell, Mean):
        return [cell.mean, cell.error, cell.count]
    return [cell, None, None]


def gathered(
    rows: Iterable[Row], names: Sequence[str], value: Callable[[Row], float | None]
) -> Mapping[tuple[Any, ...], Mean]:
    """Return means over seeds for each combination of the labels ``names``; a ``value`` of None is left out."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        number = value(row)
        if number is not None:
            found.setdefault(labels_of(row, *names), []).append(number)
    return {key: Mean.of(values) for key, values in found.items()}


def accuracy(row: Row) -> float | None:
    """Of a run that came to its end; None for others."""
    return row["accuracy"] if row["outcome"] == DONE else None


class Results:
    """Rows of runs by some of their labels; ``means`` holds accuracies of completed runs, averaged over seeds."""

    def __init__(self, rows: Iterable[Row], *names: str) -> None:
        self.rows, self.names = list(rows), names
        self.means = gathered(self.rows, names, accuracy)

    def cell(self, *key: Any) -> Cell:
        """Return the mean accuracy in percent, or the outcome of the runs if none completed."""
        return Share(self.means[key]) if key in self.means else self.why_not(*key)

    def by_seed(self, *key: Any) -> dict[int, float]:
        """Return the accuracies of the completed runs with a key."""
        own = [row for row in self.rows if labels_of(row, *self.names) == key]
        return {row["seed"]: share for row in own if (share := accuracy(row)) is not None}

    def why_not(self, *key: Any) -> str:
        """Return the outcomes of runs that did not complete."""
        found = {row["outcome"] for row in self.rows if labels_of(row, *self.names) == key} - {DONE}
        return ", ".join(sorted(found)) or "not run"

    def curve(self, values: Iterable[Any], key: Callable[[Any], tuple[Any, ...]]) -> dict[Any, Mean]:
        """Return each value with the mean under its key, if it exists."""
        return {value: self.means[key(value)] for value in values if key(value) in self.means}

    def spent(self, **labels: Any) -> list[Cell]:
        """Return `SPENT`: the largest of the completed runs with these labels; None without noise."""
        own = [row for row in self.rows if row["outcome"] == DONE and labels.items() <= row["labels"].items()]
        found = [[row[name] for row in own if row[name] is not None] for name in SPENT]
        return [max(values) if values else None for values in found]


def compared(found: Results, pairs: Sequence[tuple[tuple[Any, ...], tuple[Any, ...]]]) -> list[list[Cell]]:
    """Compare accuracies, paired by seed; all ``pairs`` of keys, each a setting and its reference, are one family.

    Returns for each pair the mean difference with the standard error of the differences, p corrected by Holm's method,
    and the finding in words. A pair without a common seed says why, and doesn't count as a comparison.
    """
    sides = [(found.by_seed(*one), found.by_seed(*other)) for one, other in pairs]
    differences = [[one[seed] - other[seed] for seed in one if seed in other] for one, other in sides]
    known = [each for each in differences if each]
    corrected = holm([p_value(each) for each in known])
    # A difference that wasn't found had to pass the level of Holm's next step.
    level = LEVEL / max(sum(p > LEVEL for p in corrected), 1)
    left = iter(corrected)
    cells: list[list[Cell]] = []
    for (one, other), each in zip(pairs, differences, strict=True):
        if each:
            gain, p = Mean.of(each), next(left)
            cells.append([Share(gain, signed=True), p, _finding(gain, p, level)])
        else:
            cells.append([found.why_not(*(other if one in found.means else one)), None, ""])
    return cells


def _finding(gain: Mean, p: float, level: float) -> str:
    if p <= LEVEL:
        return "above" if gain.mean > 0 else "below"
    if gain.error is None or (size := detectable(gain.count, level)) == math.inf:
        return "too few seeds to find any"
    return f"no difference found; {100 * size * gain.error * math.sqrt(gain.count):.2g} would have been"
