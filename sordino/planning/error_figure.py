"""Error against epsilon as a file, PNG or SVG by its ending: for ``plan --plot`` and ``experiment dme``.

matplotlib is imported when something is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sordino.planning.figure_style import GRID, MUTED, bare, save, styled

_GAP: Final = 0.048  # between the names at the ends of lines, of the panel's height

_ARROW: Final = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 2, "relpos": (0, 0.5)}
_BELOW, _ABOVE = 0.05, 0.08  # room below and above all curves, of their height
_SAME: Final = 0.012  # lines that end closer than that share a name


@dataclass(frozen=True)
class Line:
    """One curve."""

    name: str  # written at its right end, in its colour
    colour: str
    points: Sequence[tuple[float, float]]  # (epsilon, error), ascending; errors positive
    dashes: tuple[float, ...] = ()  # of the line, () for a full one
    width: float = 2.0
    dots: Sequence[tuple[float, float]] = ()  # measured points (epsilon, error) that are drawn as circles on it


@dataclass(frozen=True)
class Panel:
    """One set of axes and its heading."""

    title: str
    lines: Sequence[Line]


def draw_errors(
    panels: Sequence[Panel],
    *,
    ylabel: str,
    note: str,
    file: Path,
    room: float = 0.3,
    columns: int = 1,
    ticks: Sequence[float] | None = None,
) -> None:
    """Panels in rows of ``columns``, both axes logarithmic, the same in each row, and a note below.

    Args:
        panels: a multiple of ``columns``.
        room: share of each panel's width that is kept for the names of its lines.
        ticks: epsilons that are written on the axis; by default those of the points, thinned out.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with styled():
        rows = len(panels) // columns
        size = (max(7.2, 5.4 * columns), 4.9 * rows if columns == 1 else 4.3 * rows)
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.04, hspace=0.06))
        axes = figure.subplots(rows, columns, sharey="row", squeeze=False)
        for place, (panel, one) in enumerate(zip(panels, axes.flat, strict=True)):
            _draw(panel, one, ticks)
            if place % columns == 0:
                one.set_ylabel(ylabel)
        for row in range(rows):  # which share their y axis
            _fit(panels[row * columns : (row + 1) * columns], axes[row, 0])
        for panel, one in zip(panels, axes.flat, strict=True):  # when the shared axis is known
            _name_ends(panel, one, room)
        save(figure, file, note)


def _draw(panel: Panel, axes: Any, ticks: Sequence[float] | None) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    given: set[float] = set()
    for line in panel.lines:
        xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
        given.update(xs)
        axes.plot(xs, ys, color=line.colour, linewidth=line.width, **({"dashes": line.dashes} if line.dashes else {}))
        circles = {"marker": "o", "markersize": 4.5, "markerfacecolor": "white", "markeredgewidth": 1.2}
        xs, ys = [x for x, _ in line.dots], [y for _, y in line.dots]
        axes.plot(xs, ys, linestyle="", markeredgecolor=line.colour, **circles)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(panel.title)
    axes.set_xlabel("epsilon")
    axes.set_xticks(_thinned(sorted(given)) if ticks is None else list(ticks))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="minor", length=0)
    axes.grid(True, which="major", color=GRID, linewidth=0.8)
    bare(axes, "top", "right")


def _fit(panels: Sequence[Panel], axes: Any) -> None:
    """The y axis from just below the least error to some room above the largest."""
    errors = [y for panel in panels for line in panel.lines for _, y in (*line.points, *line.dots)]
    if not errors:
        return
    low, high = math.log(min(errors)), math.log(max(errors))
    gap = max(high - low, 0.5)
    axes.set_ylim(math.exp(low - _BELOW * gap), math.exp(high + _ABOVE * gap))


def _thinned(ticks: list[float]) -> list[float]:
    kept: list[float] = []
    for tick in ticks:
        if not kept or tick >= kept[-1] * 1.18:
            kept.append(tick)
    return kept


def _name_ends(panel: Panel, axes: Any, room: float) -> None:
    """Names at the right ends of the lines, moved apart where they would overlap."""
    lines = [line for line in panel.lines if line.points]
    if not lines:
        axes.text(0.5, 0.5, "no setting is feasible", transform=axes.transAxes, ha="center", color=MUTED)
        return
    left = min(line.points[0][0] for line in lines)
    right = max(line.points[-1][0] for line in lines)
    span = math.log(max(right / left, 1.5))
    axes.set_xlim(left * math.exp(-0.04 * span), right * math.exp(span * room / (1 - room)))
    low, high = (math.log(bound) for bound in axes.get_ylim())
    ends = [((math.log(line.points[-1][1]) - low) / (high - low), line) for line in lines]
    ends.sort(key=lambda end: end[0])
    groups: list[list[tuple[float, Line]]] = []
    for end in ends:
        if groups and end[0] - groups[-1][0][0] < _SAME and not (end[1].dashes or groups[-1][0][1].dashes):
            groups[-1].append(end)
        else:
            groups.append([end])
    placed: list[float] = []
    for group in groups:
        at = group[-1][0]
        placed.append(at if not placed else max(at, placed[-1] + _GAP))
    excess = max(0.0, placed[-1] - 0.99)
    for at, group in zip(placed, groups, strict=True):
        line = group[0][1]  # drawn last
        axes.annotate(
            _joined([one.name for _, one in reversed(group)]),
            xy=line.points[-1],
            xytext=(right * math.exp(0.07 * span), math.exp(low + (at - excess) * (high - low))),
            color=line.colour,
            fontsize=9,
            va="center",
            arrowprops=_ARROW | {"color": line.colour},
        )


def _joined(names: Sequence[str]) -> str:
    """``16 bits``, ``18 bits`` -> ``16, 18 bits``."""
    first, _, unit = names[0].partition(" ")
    if len(names) > 1 and unit and all(name.partition(" ")[2] == unit for name in names):
        return ", ".join(name.partition(" ")[0] for name in names) + f" {unit}"
    return ", ".join([first + (f" {unit}" if unit else ""), *names[1:]])
