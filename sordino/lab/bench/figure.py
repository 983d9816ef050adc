"""Figures of the tables, as SVG or PNG by the file's ending."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sordino.planning.drawing import BLUE, INK, RED, bars


def draw_ratios(rows: list[dict[str, Any]], bounds: dict[str, float], machine: str, file: Path) -> None:
    """Hot paths beside their limits: a bar to the median, a whisker from minimum to maximum, a tick at the bound.

    ``rows``: of `sordino.lab.bench.paths.run`; ``bounds``: path -> most; ``machine``: a line below the figure;
    ``file``: to write, ending in .svg or .png.
    """
    with bars([row["name"] for row in rows], machine, file) as axes:
        for place, row in enumerate(rows):
            ratio = row["ratio"]
            axes.barh(place, ratio["median"], color=BLUE, height=0.55)
            axes.hlines(place, ratio["minimum"], ratio["maximum"], color=INK, linewidth=2)
            if row["path"] in bounds:
                axes.vlines(bounds[row["path"]], place - 0.38, place + 0.38, color=RED, linewidth=2)
            axes.annotate(
                f"{ratio['median']:.2f}", (0, place), (6, 0), textcoords="offset points", va="center", color="white"
            )
        axes.axvline(1, color=INK, linewidth=1, linestyle=":")
        axes.set_xlabel("CPU time beside the limit of this machine (1 = the limit; red: the bound)")


def draw_comparisons(rows: list[dict[str, Any]], machine: str, file: Path) -> None:
    """Ours beside peers: CPU time as a multiple of ours, on a logarithmic axis.

    ``rows``: each with ``name``, ``peer_name``, ``unit``, and spreads ``ours``, ``peers`` and ``ratio``.
    """
    labels = [f"{row['name']}: {side}" for row in rows for side in ("Sordino", row["peer_name"])]
    with bars(labels, machine, file) as axes:
        for place, row in enumerate(rows):
            times = row["ratio"]["median"]
            for offset, side, colour, length in ((0, "ours", BLUE, 1.0), (1, "peers", RED, times)):
                at, value = 2 * place + offset, row[side]["median"]
                # From well below 1 on the logarithmic axis, so that ours has a bar too.
                axes.barh(at, length - 0.4, left=0.4, color=colour, height=0.7)
                figures = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
                text = f"{figures} {row['unit']}" + (f", {times:,.0f} times ours" if offset else "")
                axes.annotate(text, (length, at), (6, 0), textcoords="offset points", va="center")
        axes.set_xscale("log")
        axes.set_xlim(0.4, 20 * max(row["ratio"]["median"] for row in rows))
        axes.set_xlabel("CPU time as a multiple of Sordino's, logarithmic; less is better")
