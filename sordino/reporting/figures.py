"""The report's figures as inline SVG: text stays text, colours are the page's, so dark mode and print just
work.

matplotlib draws with placeholder colours, which are then replaced by the page's CSS variables. matplotlib is
imported here and nowhere else.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from secagg.messages import PHASES
from server.study_view import StudyView
from sordino.reporting.statistic_text import HISTOGRAM, values_of, what_counts
from wire.guarantee import TRUSTED_COORDINATOR

# Placeholder -> CSS variable. The placeholders are colours that no figure uses.
INK, MUTED, GRID, ACCENT, WARN, QUIET = "#010101", "#020202", "#030303", "#040404", "#050505", "#060606"
PHASE_COLOURS: Final = dict(zip(PHASES, ("#0a0a01", "#0a0a02", "#0a0a03", "#0a0a04", "#0a0a05"), strict=True))
_LAYER_COLOURS: Final = (ACCENT, *(PHASE_COLOURS[phase] for phase in (PHASES[3], PHASES[4], PHASES[1], PHASES[0])))
_VARIABLES: Final = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    ACCENT: "--accent",
    WARN: "--warn",
    QUIET: "--quiet",
    **{colour: f"--phase-{index}" for index, colour in enumerate(PHASE_COLOURS.values(), start=1)},
}
_HALF: Final = (6.1, 3.3)  # inches at 72 units each: half the page's width, and nearly all of it
_WIDE: Final = 12.7
_HOST_ROWS: Final = 24
_MOST_WHISKERS, _MOST_NAMES = 64, 20
_SIZE: Final = 11.5

_RC: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": _SIZE,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "xtick.major.size": 3,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
}


class _Line(NamedTuple):
    """A curve by round; ``form``: of its last value, which stands with its name at its right end; empty: neither."""

    points: Mapping[int, float]
    form: str
    name: str = ""
    colour: str = ACCENT
    width: float = 2.4
    dashed: bool = False
    marks: bool = False


def _lines(
    name: str,
    title: str,
    what: str,
    last: int,
    lines: Sequence[_Line],
    limits: tuple[float | None, float | None],
    *,
    first: int = 1,
    ranges: Sequence[tuple[int, float, float, float]] = (),
) -> str:
    """A figure of curves over the rounds from ``first`` to ``last``; ``what`` is drawn, between ``limits``.

    ``ranges``: (round, value, low, high), as points with whiskers.
    """
    with matplotlib.rc_context(_RC):
        figure, axes = _figure(*_HALF)
        drawn = [line for line in lines if line.points]
        for line in drawn:
            style: dict[str, Any] = {"dashes": (4, 2.5)} if line.dashed else {}
            style["marker"] = "o" if line.marks and len(line.points) < 40 else None
            xs, ys = list(line.points), list(line.points.values())
            axes.plot(xs, ys, color=line.colour, linewidth=line.width, markersize=4, **style)
        for number, at, low, high in ranges:
            axes.plot([number, number], [low, high], color=MUTED, linewidth=1.2)
            axes.plot([number], [at], color=MUTED, marker="o", markersize=3.5)
        axes.set_ylim(*limits)
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        named = [(list(line.points.values())[-1], line) for line in drawn if line.form]
        ends = [(value, f"{value:{line.form}} {line.name}".rstrip(), line.colour) for value, line in named]
        _label_ends(axes, last, ends)
        _round_axis(axes, last, first=first)
        axes.set_ylabel(what)
        return _svg(figure, name, title)


def accuracy_figure(view: StudyView, without_noise: Sequence[float]) -> str:
    """Accuracy on held-out data after each round, beside the same training without noise."""
    judged = {done.round: done.accuracy for done in view.rounds if done.accuracy is not None}
    beside = dict(enumerate(without_noise, 1))
    said = {done.round - 1: done.reported for done in view.rounds if done.round > 1 and "accuracy" in done.reported}
    ranges = [
        _range(number, {"value": one["accuracy"], "standard_error": one["accuracy_stderr"]})
        for number, one in said.items()
    ]
    ranged = [min(max(end, 0), 1) for _, _, *ends in ranges for end in ends]
    lines = [_Line(beside, ".3f", "without", MUTED, 1.6, dashed=True), _Line(judged, ".3f", "with noise", marks=True)]
    limits = _share_range([*judged.values(), *without_noise, *ranged])
    last = max([view.started.rounds, *judged, *beside, 1])
    title = "Accuracy on held-out data after each round"
    return _lines("accuracy", title, "accuracy", last, lines, limits, ranges=ranges)


def error_figure(view: StudyView) -> str:
    """The first error of a model without an accuracy, after each round."""
    name = next(iter(view.errors))
    judged = {done.round: done.figures.get(name, math.nan) for done in view.rounds}
    reached = {number: value for number, value in judged.items() if math.isfinite(value)}
    last, shown = max([view.started.rounds, *judged]), name.replace("_", " ")
    title = f"{shown.capitalize()} on held-out data after each round"
    return _lines("error", title, shown, last, [_Line(reached, ".4g", marks=True)], (0, None))


def statistic_figure(view: StudyView) -> str:
    """The statistic after the last round: a distribution function, bars, points, or one value round by round."""
    released = view.released
    values, title = values_of(released), "The statistic after the last round"
    cumulative: Any = released.get("cumulative")
    edges: Any = released.get("edges")
    distributed = isinstance(cumulative, list) and isinstance(edges, list) and len(edges) == len(cumulative) + 1
    if len(values) == 1 and not distributed:
        by_round = {done.round: values_of(done.released)[0] for done in view.rounds if values_of(done.released)}
        ranges = [_range(number, value) for number, value in by_round.items() if value.get("value") is not None]
        line = _Line({number: at for number, at, *_ in ranges}, ".4g")
        last = max(done.round for done in view.rounds)
        return _lines("statistic", title, what_counts(released), last, [line], (None, None), ranges=ranges)
    with matplotlib.rc_context(_RC):
        figure, axes = _figure(*_HALF)
        if distributed:
            _distribution(axes, edges, [0.0, *cumulative], values)
            axes.set_xlabel(what_counts(released))
        else:
            _beside(axes, released, values)
        return _svg(figure, "statistic", title)


def _range(number: int, value: Mapping[str, Any]) -> tuple[int, float, float, float]:
    """Round, value, and two standard errors to either side or its interval, where there is one."""
    at, error, low, high = value["value"], *(value.get(name) for name in ("standard_error", "low", "high"))
    if error is not None:
        low, high = at - 2 * error, at + 2 * error
    return number, at, at if low is None else low, at if high is None else high


def _distribution(
    axes: Any, edges: Sequence[float], cumulative: Sequence[float], values: Sequence[Mapping[str, Any]]
) -> None:
    """A distribution function, and each quantile on it with its interval."""
    axes.plot(edges, cumulative, color=ACCENT, linewidth=2.0)
    for value in values:
        at, share, low, high = (value.get(name) for name in ("value", "share", "low", "high"))
        if at is None or share is None:
            continue
        if low is not None and high is not None:
            axes.plot([low, high], [share, share], color=INK, linewidth=1.6)
        axes.plot([at], [share], color=INK, marker="o", markersize=5)
        axes.annotate(
            f"{at:.4g}", (at, share), xytext=(8, -4), textcoords="offset points", color=INK, va="top", ha="left"
        )
    axes.set_ylim(0, 1.02)
    axes.set_xlim(edges[0], edges[-1])
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_ylabel("share at or below")


def _beside(axes: Any, released: Mapping[str, Any], values: Sequence[Mapping[str, Any]]) -> None:
    """Bars where participants are counted, else points; each with two standard errors."""
    known = [(place, value) for place, value in enumerate(values) if value.get("value") is not None]
    counts = released.get("statistic") == HISTOGRAM
    found = released.get("edges")
    edges = found if isinstance(found, list) and len(found) == len(values) + 1 else None
    places = [place if edges is None else (edges[place] + edges[place + 1]) / 2 for place, _ in known]
    width = 1.0 if edges is None else edges[1] - edges[0]
    heights = [float(value["value"]) for _, value in known]
    if counts:
        axes.bar(places, heights, width=0.86 * width, color=ACCENT, linewidth=0, alpha=0.85)
    else:
        axes.plot(places, heights, color=ACCENT, marker="o", markersize=5, linestyle="")
    for at, height, (_, value) in zip(places, heights, known, strict=True):
        error = value.get("standard_error")
        if error is not None and len(known) <= _MOST_WHISKERS:
            axes.plot([at, at], [height - 2 * error, height + 2 * error], color=INK, linewidth=1.4)
    if edges is not None:
        axes.xaxis.set_major_locator(MaxNLocator(6))
    elif len(values) <= _MOST_NAMES:
        names = [str(value["name"]) for value in values]
        axes.set_xticks(range(len(values)), [name.removeprefix("class ").removeprefix("column ") for name in names])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.axhline(0, color=GRID, linewidth=1.0)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    if counts:
        axes.set_ylabel("participants")
    if edges is not None:
        axes.set_xlabel(what_counts(released))
    elif values:
        axes.set_xlabel(str(values[0]["name"]).rpartition(" ")[0])


def epsilon_figure(view: StudyView) -> str:
    """Both epsilons after each round, under the budget."""
    budget, last = view.started.epsilon_target, max([view.started.rounds, *(done.round for done in view.rounds), 1])
    coordinator = {0: 0.0} | {done.round: done.epsilon_coordinator for done in view.rounds}
    released = {0: 0.0} | {done.round: done.epsilon_released for done in view.rounds}
    lines = [_Line({0: budget, last: budget}, "g", "budget", WARN, 1.4, dashed=True)] if budget else []
    if view.rounds:
        both = "spent" if view.started.plan.get("mechanism") == TRUSTED_COORDINATOR else "both"
        same = all(abs(value - released[number]) < 5e-3 for number, value in coordinator.items())
        lines.append(_Line(coordinator, ".2f", both if same else "coordinator"))
        if not same:
            lines.append(_Line(released, ".2f", "released", MUTED, 1.8))
    limits = (0, max([budget, *coordinator.values(), *released.values(), 1e-9]) * 1.12)
    title = "Privacy spent after each round, and the budget"
    return _lines("epsilon", title, "epsilon", last, lines, limits, first=0)


Clips = Sequence[tuple[int, Sequence[float], Sequence[float]]]
"""(round, clips, share of norms within them), both by layer."""


def clip_figure(rows: Clips, names: Sequence[str]) -> str:
    """The clip of each layer, round by round."""
    lines = _layer_lines({number: clips for number, clips, _ in rows}, names, ".3g")
    limits = (0, max(max(clips) for _, clips, _ in rows) * 1.12)
    return _lines("clips", "The clip of each layer in each round", "clip", rows[-1][0], lines, limits)


def below_clip_figure(rows: Clips, names: Sequence[str], quantile: float) -> str:
    """The estimated share of norms within the clip, round by round, and where it should be."""
    first, last = rows[0][0], rows[-1][0]
    short = [name.partition(" (")[0] for name in names]
    lines = [
        _Line({first: quantile, last: quantile}, "g", "wanted", WARN, 1.4, dashed=True),
        *_layer_lines({number: shares for number, _, shares in rows}, short, ".2f"),
    ]
    return _lines("within", "Estimated share of norms within the clip in each round", "share", last, lines, (0, 1))


def _layer_lines(values: Mapping[int, Sequence[float]], names: Sequence[str], form: str) -> list[_Line]:
    """One line a layer; up to five have a colour and a name, else the least and the greatest a name."""
    columns = list(zip(*values.values(), strict=True))
    many = len(columns) > len(_LAYER_COLOURS)
    ends = [(column[-1], name) for column, name in zip(columns, names, strict=True)]
    named = [min(ends), max(ends)] if many else ends
    return [
        _Line(
            dict(zip(values, column, strict=True)),
            form if end in named else "",
            end[1],
            MUTED if many else _LAYER_COLOURS[at],
            1.2 if many else 2.0,
        )
        for at, (column, end) in enumerate(zip(columns, ends, strict=True))
    ]


def _share_range(values: Sequence[float]) -> tuple[float, float]:
    """Limits of an axis of shares: the data and a little more, but never so close that noise looks like a trend."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    spare = max(0.08 * (high - low), (0.2 - (high - low)) / 2)
    return max(0.0, low - spare), min(1.0, high + spare)


def dropout_figure(view: StudyView) -> str:
    """Which host lost participants in which round and phase, and who was away: one row a host."""
    hosts = view.hosts_in_order()
    last = max([view.started.rounds, *view.absent, 1])
    by_host = 0 < len(hosts) <= _HOST_ROWS
    rows = hosts if by_host else ["all"]
    with matplotlib.rc_context(_RC | {"axes.grid": False, "axes.spines.bottom": False, "xtick.major.size": 0}):
        figure, axes = _figure(_WIDE, max(1.7, 0.235 * len(rows) + 0.95))
        for index, row in enumerate(rows):
            members = set(view.members(row)) if by_host else set(view.hosts)
            for number in sorted(view.absent):
                _dropout_cell(axes, view, members, number, index)
        axes.set_xlim(0.45, last + 0.55)
        axes.set_ylim(len(rows) - 0.45, -0.55)
        axes.set_yticks(range(len(rows)), rows)
        _round_axis(axes, last, limits=False)
        used = [phase for phase in PHASES if any(dropout.phase == phase for dropout in view.dropouts)]
        keys = [(QUIET, "took part"), *((PHASE_COLOURS[phase], f"left in {phase}") for phase in used)]
        if any(view.absent.values()):
            keys.append((GRID, "away"))
        _legend(figure, axes, keys)
        return _svg(figure, "dropouts", "Dropouts by round, host and phase")


def phase_figure(view: StudyView) -> str:
    """Seconds of each phase, stacked, round by round."""
    rounds = [done.round for done in view.rounds]
    last = max([view.started.rounds, *rounds, 1])
    with matplotlib.rc_context(_RC):
        figure, axes = _figure(_WIDE, 3.1)
        floor = [0.0] * len(rounds)
        for phase in PHASES:
            seconds = [done.phase_seconds.get(phase, 0.0) for done in view.rounds]
            axes.bar(rounds, seconds, bottom=floor, width=0.62, color=PHASE_COLOURS[phase], linewidth=0)
            floor = [low + more for low, more in zip(floor, seconds, strict=True)]
        rest = [max(0.0, done.seconds - sum(done.phase_seconds.values())) for done in view.rounds]
        axes.bar(rounds, rest, bottom=floor, width=0.62, color=QUIET, linewidth=0)
        axes.set_xlim(0.45, last + 0.55)
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        _round_axis(axes, last, limits=False)
        axes.set_ylabel("seconds")
        keys = [(PHASE_COLOURS[phase], phase) for phase in PHASES]
        _legend(figure, axes, [*keys, (QUIET, "between phases, evaluation")])
        return _svg(figure, "phases", "Seconds of each phase in each round")


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.03))
    return figure, figure.add_subplot()


def _round_axis(axes: Any, last: int, *, first: int = 1, limits: bool = True) -> None:
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 1000, 10**6) if last / step <= (10 if limits else 20))
    axes.set_xticks([number for number in range(first, last + 1) if number % step == 0] or [last])
    if limits:  # nothing is drawn to the right of the last round but names
        axes.set_xlim(first - 0.03 * ((last - first) or 10), last)
        for line in axes.lines:
            line.set_clip_on(False)
    axes.set_xlabel("round")


def _label_ends(axes: Any, last: int, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names at the right end of their lines, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    gap = (high - low) * 0.085
    placed: list[float] = []
    for value, text, colour in sorted(ends):
        at = value if not placed else max(value, placed[-1] + gap)
        placed.append(at)
        axes.annotate(
            text,
            (last, at),
            xytext=(9, 0),
            textcoords="offset points",
            color=colour,
            va="center",
            annotation_clip=False,
        )


def _dropout_cell(axes: Any, view: StudyView, members: set[int], number: int, row: int) -> None:
    left = [dropout for dropout in view.dropouts_of(number) if dropout.participant in members]
    away = len(members & view.absent.get(number, frozenset()))
    colour = GRID if members and away == len(members) else QUIET
    if left:
        phases = [dropout.phase for dropout in left]
        colour = PHASE_COLOURS.get(max(phases, key=phases.count), WARN)
    height = 0.78
    if colour == GRID:
        axes.plot([number - 0.2, number + 0.2], [row, row], color=MUTED, linewidth=1.2)
        return
    axes.add_patch(Rectangle((number - 0.45, row - height / 2), 0.9, height, facecolor=colour, linewidth=0))
    if left:
        gone = len({dropout.participant for dropout in left})
        axes.text(number, row, str(gone), ha="center", va="center_baseline", color="#ffffff", fontsize=10)


def _legend(figure: Any, axes: Any, keys: Sequence[tuple[str, str]]) -> None:
    handles: list[Any] = []
    for colour, _ in keys:
        if colour == GRID:
            handles.append(matplotlib.lines.Line2D([], [], color=MUTED, linewidth=1.2))
        else:
            handles.append(Rectangle((0, 0), 1, 1, facecolor=colour, linewidth=0))
    axes.legend(
        handles,
        [text for _, text in keys],
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        ncols=len(keys),
        frameon=False,
        handlelength=0.9,
        handleheight=0.9,
        handletextpad=0.5,
        columnspacing=1.6,
        borderaxespad=0.0,
        borderpad=0.4,
        labelcolor=MUTED,
    )


def _svg(figure: Figure, name: str, title: str) -> str:
    """The figure as an ``<svg>`` element for an HTML page, the same bytes for the same data."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    # Ids are per file; the page holds several files.
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    for placeholder, variable in _VARIABLES.items():
        text = text.replace(placeholder, f"var({variable})")
    text = re.sub(r"font: ([0-9.]+px)[^;\"]*", r"font-size: \1", text)
    text = re.sub(r"font-family: [^;\"]*;?", "", text)
    text = re.sub(r'<svg [^>]*viewBox="([^"]+)"[^>]*>', rf'<svg viewBox="\1" role="img" aria-label="{title}">', text)
    return text.replace("<title></title>", "").strip()
