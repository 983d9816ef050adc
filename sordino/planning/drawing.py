"""How figures look, and curves with standard errors drawn so. matplotlib is imported when one is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from sordino.planning.shown import library

if TYPE_CHECKING:
    import matplotlib.axes

INK, MUTED, GRID = "#22303c", "#66737f", "#e3e8ec"
BLUE, RED, OCHRE = "#3b7a9e", "#b3452c", "#b98a2c"
_STYLE: Final = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titlecolor": INK,
    "legend.edgecolor": "none",
    "legend.framealpha": 0.85,
    "legend.fontsize": 9,
    "svg.hashsalt": "sordino",  # the same figures give the same file
}


@contextmanager
def styled() -> Iterator[None]:
    """Colours and fonts, for whatever is made and saved inside."""
    with library("matplotlib").rc_context(_STYLE):
        yield


def bare(axes: Any, *sides: str) -> None:
    """Take the frame away at some sides, and put the grid behind the curves."""
    axes.set_axisbelow(True)
    for side in sides:
        axes.spines[side].set_visible(False)


def save(figure: Any, file: Path, note: str = "") -> None:
    """Write the figure, with a note below, as SVG or PNG by the file's ending; no SVG holds the date."""
    figure.text(0.012, -0.012, note, fontsize=8, color=MUTED, va="top", wrap=True)
    metadata: Any = {"Date": None} if file.suffix.lower() == ".svg" else {}
    figure.savefig(file, dpi=130, bbox_inches="tight", metadata=metadata, facecolor="white")


LINEAR, LOG, NAMES = "linear", "log", "names"
COLOURS: Final = ("#b3452c", "#3b7a9e", "#b98a2c", "#5f8f4e", "#6d5aa0", "#8a6a55", "#2f8f8a", "#a04a78")
_MARKS: Final = ("o", "s", "^", "D", "v", "P", "X", "h")
_COLUMN_IN, _ROW_IN = 5.2, 3.9
_APART: Final = 0.25
"""Horizontal offset, as a share of the distance of two names, that keeps the error bars of the series apart."""


@contextmanager
def bars(names: Sequence[str], note: str, file: Path) -> Iterator[Any]:
    """Axes for a horizontal bar of each name, from the top; written with a note below, in a folder that is made."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=(11, 1.4 + 0.45 * len(names)), layout="constrained")
        axes = figure.subplots()
        yield axes
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.margins(x=0.12)
        axes.tick_params(axis="y", length=0)
        bare(axes, "top", "right", "left")
        file.parent.mkdir(parents=True, exist_ok=True)
        save(figure, file, note)


class Estimate(Protocol):
    """A mean, with its standard error where that is known."""

    @property
    def mean(self) -> float: ...

    @property
    def error(self) -> float | None: ...


@dataclass(frozen=True)
class Series:
    """One curve: x to y; ``colour`` is a number in `COLOURS`; without a name it isn't in the legend.

    ``marks`` draws points and errors; a curve of many rounds is better without. ``line``: or points alone.
    """

    name: str
    points: Mapping[Any, Estimate | float]
    colour: int
    dashed: bool = False
    marks: bool = True
    line: bool = True
    width: float = 1.8


@dataclass(frozen=True)
class Band:
    """A range around a curve, as between two quantiles: x to (low, middle, high)."""

    name: str
    points: Mapping[float, tuple[float, float, float]]
    colour: int


@dataclass(frozen=True)
class Axes:
    """One set of axes.

    Attributes:
        scale: of x: "linear", "log", or "names": equidistant places in the order of ``ticks``.
        percent: y is a share of one, drawn in percent.
        level: a value of y that is marked by a line, with its name.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series | Band]
    scale: str = LINEAR
    log_y: bool = False
    ticks: Sequence[Any] = ()
    percent: bool = True
    level: tuple[float, str] | None = None


@dataclass(frozen=True)
class Picture:
    """A figure of several axes; ``columns`` are side by side, ``same_y`` lets a row share its y axis."""

    name: str
    axes: Sequence[Axes]
    note: str
    columns: int = 1
    same_y: bool = False


def draw(picture: Picture, file: Path) -> None:
    """Write it; the same figures give the same file."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with styled():
        rows = math.ceil(len(picture.axes) / picture.columns)
        size = (max(7.0, _COLUMN_IN * picture.columns), _ROW_IN * rows + 0.4)
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.05, hspace=0.08))
        places = figure.subplots(rows, picture.columns, squeeze=False, sharey="row" if picture.same_y else False)
        for at, place in enumerate(places.flat):
            if at >= len(picture.axes):
                place.set_visible(False)
                continue
            _fill(place, picture.axes[at], named=not picture.same_y or at % picture.columns == 0)
        save(figure, file, picture.note)


def on_axes(axes: Axes, place: matplotlib.axes.Axes | None = None) -> matplotlib.axes.Axes:
    """Draw on matplotlib axes, by default those of a new figure; returns them. Raises InputFailure: no matplotlib."""
    figure: Any = None
    if place is None:  # before the style, whose end would take back what pyplot sets with its first figure
        figure = library("matplotlib.pyplot").figure(figsize=(7.0, _ROW_IN), layout="constrained")
    with styled():
        place = figure.add_subplot() if place is None else place
        _fill(place, axes, named=True)
    return place


def _fill(place: Any, axes: Axes, *, named: bool) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

    factor = 100 if axes.percent else 1
    at = {name: number for number, name in enumerate(axes.ticks)} if axes.scale == NAMES else {}
    for number, series in enumerate(axes.series):
        colour = COLOURS[series.colour % len(COLOURS)]
        if isinstance(series, Band):
            xs = sorted(series.points)
            low, middle, high = ([factor * series.points[x][part] for x in xs] for part in range(3))
            place.fill_between(xs, low, high, color=colour, alpha=0.2, linewidth=0)
            place.plot(xs, middle, color=colour, linewidth=1.8, label=series.name)
            continue
        points = {x: (y, None) if isinstance(y, float) else (y.mean, y.error) for x, y in series.points.items()}
        known = [(at.get(x, x), *point) for x, point in points.items() if x in at or axes.scale != NAMES]
        known.sort(key=lambda point: point[0])
        aside = _APART * ((number + 0.5) / len(axes.series) - 0.5) if axes.scale == NAMES else 0.0
        xs, ys = [x + aside for x, _, _ in known], [factor * mean for _, mean, _ in known]
        errors = [factor * (error or 0.0) for *_, error in known]
        place.errorbar(
            xs,
            ys,
            yerr=errors if series.marks and any(errors) else None,
            color=colour,
            linewidth=series.width,
            linestyle=((0, (4, 2.5)) if series.dashed else "-") if series.line else "",
            marker=_MARKS[series.colour % len(_MARKS)] if series.marks else None,
            markersize=5,
            markerfacecolor="white",
            markeredgewidth=1.3,
            capsize=2.5,
            elinewidth=1.0,
            label=series.name or None,
        )
    if axes.level is not None:
        value, note = axes.level
        place.axhline(factor * value, color=MUTED, linewidth=1.2, dashes=(1, 1.5), label=note)
    if axes.scale == LOG:
        place.set_xscale("log")
    if axes.log_y:
        place.set_yscale("log")
        place.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        place.yaxis.set_minor_formatter(NullFormatter())
        place.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if axes.ticks:
        shown = list(at.values()) if axes.scale == NAMES else list(axes.ticks)
        words = [f"{tick:g}" if isinstance(tick, int | float) else str(tick) for tick in axes.ticks]
        place.xaxis.set_major_locator(FixedLocator(shown))
        place.xaxis.set_minor_locator(NullLocator())
        place.xaxis.set_minor_formatter(NullFormatter())
        place.set_xticks(shown, words)
    place.set_title(axes.title)
    place.set_xlabel(axes.x)
    if named:
        place.set_ylabel(axes.y)
    place.grid(True, which="major", color=GRID, linewidth=0.8)
    bare(place, "top", "right")
    if place.get_legend_handles_labels()[1]:
        place.legend(fontsize=8.5, loc="best", handlelength=2.4)
