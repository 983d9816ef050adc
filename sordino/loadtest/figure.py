"""The load test's figure: how long each round took, and in which phase. matplotlib is loaded when it is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sordino.loadtest.summary import BETWEEN
from sordino.progress import PHASES

FIGURE: Final = "round-time-by-phase"
# Told apart in print and by most colour-blind readers: light to dark in the order of the phases.
_COLOURS: Final = dict(zip(PHASES, ("#c7e3ef", "#8cc3dc", "#4a97c2", "#f2b56b", "#c8662c"), strict=True))
_REST: Final = "#c9c9c9"
_MUTED: Final = "#5c6570"


def write_figure(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draw stacked bars, one a round, and write them as SVG and PNG.

    Args:
        result: of `run_load_test`.
        folder: where to.

    Returns:
        The two files; nothing where no round was begun.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rounds = result["rounds"]
    if not rounds:
        return []
    options = result["options"]
    style: dict[Any, Any] = {
        "font.size": 10,
        "svg.fonttype": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with rc_context({**style, "svg.hashsalt": FIGURE}):
        figure = Figure(figsize=(8.4, 4.2), layout="constrained")
        axes = figure.add_subplot()
        places = list(range(len(rounds)))
        floor = [0.0] * len(rounds)
        for name in (*PHASES, BETWEEN):
            heights = [_seconds(one, name) for one in rounds]
            colour = _COLOURS.get(name, _REST)
            axes.bar(places, heights, 0.66, floor, color=colour, edgecolor="white", linewidth=0.6, label=name)
            floor = [low + more for low, more in zip(floor, heights, strict=True)]
        tallest = max(floor) or 1.0
        if len(rounds) <= 24:
            for place, one, top in zip(places, rounds, floor, strict=True):
                text = f"{one['seconds']:.1f}" if one["completed"] else "aborted"
                axes.text(place, top + tallest * 0.012, text, ha="center", va="bottom", fontsize=8.5, color=_MUTED)
        step = max(1, -(-len(rounds) // 20))
        axes.set_xticks(places[::step], [_label(one) for one in rounds[::step]])
        beside = 0.6 + max(0.0, 4 - len(rounds)) / 2
        axes.set_xlim(-beside, len(rounds) - 1 + beside)
        axes.set_ylim(0, tallest * 1.08)
        axes.set_xlabel("round")
        axes.set_ylabel("seconds")
        axes.tick_params(color=_MUTED, labelcolor=_MUTED)
        axes.set_title(
            f"{options['clients']} participants, {options['dim']:,} values of {options['bits']} bits, "
            f"{100 * options['drop']:g} % leave ({options['drop_style']}, at {options['at']})",
            loc="left",
            fontsize=10.5,
        )
        handles, labels = axes.get_legend_handles_labels()
        beside_it: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
        axes.legend(handles[::-1], labels[::-1], frameon=False, fontsize=9, **beside_it)
        paths = [folder / f"{FIGURE}.svg", folder / f"{FIGURE}.png"]
        figure.savefig(paths[0], metadata={"Date": None})
        figure.savefig(paths[1], dpi=150)
    return paths


def _seconds(one: Mapping[str, Any], name: str) -> float:
    phases = one["phase_seconds"]
    return max(0.0, one["seconds"] - sum(phases.values())) if name == BETWEEN else float(phases.get(name, 0.0))


def _label(one: Mapping[str, Any]) -> str:
    return f"{one['round']}" if one["attempt"] == 1 else f"{one['round']}.{one['attempt']}"
