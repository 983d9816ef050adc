"""The load test's figures: round time by phase, how rounds ended, participants online, memory and loop lag.

matplotlib is loaded when they are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from secagg.messages import PHASES
from sordino.lab.loadtest.summary import BETWEEN, round_name, seconds_in
from sordino.planning.drawing import MUTED, bare, save, styled

FIGURE: Final = "round-time-by-phase"
# Distinct in print and for most colour-blind readers: light to dark in the order of the phases.
_COLOURS: Final = dict(zip(PHASES, ("#c7e3ef", "#8cc3dc", "#4a97c2", "#f2b56b", "#c8662c"), strict=True))
_REST: Final = "#c9c9c9"
_REASONS: Final = ("#c8662c", "#7a4fa3", "#b03a4a", "#8a8a2a", "#5c6570")


def write_figures(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw all figures and write them as SVG and PNG.

    ``result``: of `run_load_test`; ``folder``: where to. Returns the files; nothing where no round was begun.
    """
    from matplotlib.figure import Figure

    if not result["rounds"]:
        return []
    drawings: dict[str, tuple[Callable[..., None], int]] = {FIGURE: (_phases, 1), "outcomes": (_outcomes, 1)}
    if result["online"]:
        drawings["online"] = _online, 1
    drawings["coordinator-load"] = _load, 2
    paths: list[Path] = []
    for name, (draw, rows) in drawings.items():
        with styled():
            figure = Figure(figsize=(8.4, 4.2), layout="constrained")
            all_axes = figure.subplots(rows, 1, sharex=rows > 1, squeeze=False)[:, 0]
            for axes in all_axes:
                bare(axes, "top", "right")
            draw(result, *all_axes)
            for ending in ("svg", "png"):
                paths.append(folder / f"{name}.{ending}")
                save(figure, paths[-1])
    return paths


def _ticks(axes: Any, rounds: list[Mapping[str, Any]]) -> None:
    step = max(1, -(-len(rounds) // 20))
    axes.set_xticks(range(0, len(rounds), step), [round_name(one) for one in rounds[::step]])
    beside = 0.6 + max(0.0, 4 - len(rounds)) / 2
    axes.set_xlim(-beside, len(rounds) - 1 + beside)
    axes.set_xlabel("round")


def _outcomes(result: Mapping[str, Any], axes: Any) -> None:
    """Inputs in each sum beside the connected participants, and why the other rounds aborted."""
    rounds = result["rounds"]
    reasons = {reason: _REASONS[place % len(_REASONS)] for place, reason in enumerate(result["reasons"])}
    places = range(len(rounds))
    done = [place for place in places if rounds[place]["completed"]]
    axes.bar(places, [one["cohort"] for one in rounds], 0.66, color="#e6e9ec", label="connected")
    axes.bar(done, [rounds[place]["survivors"] for place in done], 0.66, color="#4a97c2", label="in the sum")
    for reason, colour in reasons.items():
        which = [place for place in places if rounds[place]["reason"] == reason]
        cohorts = [rounds[place]["cohort"] for place in which]
        axes.bar(which, cohorts, 0.66, color=colour, alpha=0.75, label=f"aborted: {_short(reason)}")
    _ticks(axes, rounds)
    axes.set_ylabel("participants")
    axes.set_title(f"{result['rounds_completed']} rounds completed, {result['rounds_aborted']} aborted")
    axes.legend(ncols=1 if reasons else 2, loc="upper left", bbox_to_anchor=(0.0, -0.16))


def _online(result: Mapping[str, Any], axes: Any) -> None:
    """Participants that were connected, over time."""
    points = result["online"]
    times, many = [one["at_s"] for one in points], [one["participants"] for one in points]
    axes.fill_between(times, many, step="post", color="#c7e3ef")
    axes.step(times, many, where="post", color="#4a97c2", linewidth=1.2)
    axes.set_ylim(0, max(result["options"]["clients"], *many) * 1.05)
    axes.set_xlim(left=0)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("seconds")
    axes.set_ylabel("participants connected")
    axes.set_title("participants connected to the coordinator")


def _load(result: Mapping[str, Any], memory: Any, lag: Any) -> None:
    """The coordinator's memory and the lag of its event loop, round by round."""
    rounds = result["rounds"]
    kept = [(place, one["server_rss_mb"]) for place, one in enumerate(rounds) if one["server_rss_mb"] is not None]
    if kept:
        memory.plot(*zip(*kept, strict=True), color="#4a97c2", marker="o", markersize=4)
    memory.axhline(result["server_peak_rss_mb"], color=MUTED, linewidth=0.8, linestyle=":")
    memory.set_ylim(0, result["server_peak_rss_mb"] * 1.15 or 1)
    memory.set_ylabel("MB resident")
    memory.set_title("the coordinator: memory (dotted: its peak) and lag of its event loop")
    for name, colour in (("p50", "#8cc3dc"), ("p99", "#4a97c2"), ("max", "#c8662c")):
        known = [(place, one["loop_lag_ms"][name]) for place, one in enumerate(rounds) if one["loop_lag_ms"]]
        if known:
            lag.plot(*zip(*known, strict=True), color=colour, marker="o", markersize=4, label=name)
    lag.set_ylabel("ms late")
    lag.set_ylim(0, max((one["loop_lag_ms"].get("max", 0) for one in rounds), default=0) * 1.3 or 1)
    if lag.lines:
        lag.legend(ncols=3, loc="upper right")
    _ticks(lag, rounds)


def _short(reason: str) -> str:
    return reason if len(reason) <= 90 else reason[:89] + "…"


def _phases(result: Mapping[str, Any], axes: Any) -> None:
    """Stacked bars, one for each round: its seconds by phase."""
    rounds, options = result["rounds"], result["options"]
    places = list(range(len(rounds)))
    floor = [0.0] * len(rounds)
    for name in (*PHASES, BETWEEN):
        heights = [seconds_in(one, name) for one in rounds]
        colour = _COLOURS.get(name, _REST)
        axes.bar(places, heights, 0.66, floor, color=colour, edgecolor="white", linewidth=0.6, label=name)
        floor = [low + more for low, more in zip(floor, heights, strict=True)]
    tallest = max(floor) or 1.0
    if len(rounds) <= 24:
        for place, one, top in zip(places, rounds, floor, strict=True):
            text = f"{one['seconds']:.1f}" if one["completed"] else "aborted"
            axes.text(place, top + tallest * 0.012, text, ha="center", va="bottom", fontsize=8.5, color=MUTED)
    _ticks(axes, rounds)
    axes.set_ylim(0, tallest * 1.08)
    axes.set_ylabel("seconds")
    axes.set_title(
        f"{options['clients']} participants, {options['dim']:,} values of {options['bits']} bits, "
        f"{100 * options['drop']:g} % leave ({options['drop_style']}, at {options['at']})"
    )
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))
