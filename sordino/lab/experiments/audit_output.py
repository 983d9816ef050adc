"""Output of ``sordino experiment audit``: lines, JSON and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from runtime.text import counted

_COLUMNS: Final = ("lower bound", "expected", "proved", "right", "noise found")


def body_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the JSON object: one entry per audit, and whether any of them accuses."""
    return {"accused": any(accusations(row) for row in rows), "rows": [dict(row) for row in rows]}


def accusations(row: Mapping[str, Any]) -> list[str]:
    """Return the audit's accusations, one sentence each; empty if none."""
    found = []
    if row["violation"]:
        found.append(
            f"not ({row['epsilon_proved']:.3g}, {row['delta']:g})-private: "
            f"epsilon is at least {row['epsilon_lower']:.3g} at {100 * (1 - row['error']):g} %"
        )
    if row["noise_short"]:
        found.append(f"noise is {row['noise_found']:.3f} of the planned deviation; at least {row['noise_least']:.3f}")
    if row["noise_excess"]:
        found.append(
            f"noise is {row['noise_found']:.3f} of the planned deviation; at most {row['noise_most']:.3f}: "
            "participants may share theirs"
        )
    if row["noise_shared"]:
        found.append(f"noise of two rounds has correlation {row['noise_correlation']:.2f}")
    return found


def name_of(row: Mapping[str, Any]) -> str:
    """Return the mechanism, and its deliberate mistake."""
    divided = row["noise_divided_by"]
    return f"{row['mechanism']}, noise / {divided:g}" if divided != 1 else str(row["mechanism"])


def table_lines(body: Mapping[str, Any]) -> list[str]:
    """Return a line for each audit, then the accusations, and how to read them."""
    rows = body["rows"]
    first = rows[0]
    wide = max(len(name_of(row)) for row in rows)
    lines = [
        f"{first['canaries']} canaries, {first['dim']} values, {counted(first['rounds'], 'round')}, "
        f"{100 * first['leaving']:g} % leave, delta {first['delta']:g}, seed {first['seed']}",
        f"Lower bounds on epsilon at {100 * (1 - first['error']):g} % confidence each, from one run each.",
        "",
        " " * wide + "".join(f"{column:>13}" for column in _COLUMNS),
    ]
    for row in rows:
        right = f"{row['right']} of {row['guesses']}"
        lines.append(
            f"{name_of(row):<{wide}}{row['epsilon_lower']:>13.2f}{row['epsilon_lower_expected']:>13.2f}"
            f"{row['epsilon_proved']:>13.2f}{right:>13}{row['noise_found']:>13.3f}"
        )
    lines.append("")
    for row in rows:
        lines += [f"ACCUSED: {name_of(row)}: {found}." for found in accusations(row)]
    if not body["accused"]:
        lines.append("Nothing found. An audit can refute a claim, not prove it: a bound far below is no sign of slack.")
    return lines


def draw(body: Mapping[str, Any], file: Path) -> None:
    """Draw a line for each audit: the bound found, the expected one, and the proved epsilon as its limit."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from sordino.planning.drawing import BLUE, GRID, INK, RED, bare, save, styled

    rows = body["rows"]
    with styled():
        figure = Figure(figsize=(7.6, 1.7 + 0.42 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for place, row in enumerate(rows):
            proved, lower = row["epsilon_proved"], row["epsilon_lower"]
            shade = RED if row["violation"] else BLUE
            labels = (
                {"proved": "proved", "lower": "lower bound found", "expected": "bound expected"} if not place else {}
            )
            axes.plot([0, lower], [place, place], color=shade, linewidth=2.2, solid_capstyle="butt")
            axes.plot(lower, place, "o", color=shade, markersize=7, label=labels.get("lower"), zorder=4)
            axes.plot(
                row["epsilon_lower_expected"],
                place,
                "o",
                markerfacecolor="none",
                markeredgecolor=INK,
                markersize=11,
                markeredgewidth=0.9,
                label=labels.get("expected"),
                zorder=3,
            )
            axes.plot(
                [proved, proved], [place - 0.3, place + 0.3], color=INK, linewidth=2.4, label=labels.get("proved")
            )
            if row["violation"]:
                end = (max(lower, row["epsilon_lower_expected"]), place)
                axes.annotate("refuted", end, (12, 0), textcoords="offset points", color=RED, fontsize=9, va="center")
        most = max(max(row["epsilon_proved"], row["epsilon_lower"], row["epsilon_lower_expected"]) for row in rows)
        axes.set_xlim(0, 1.22 * most)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks(range(len(rows)), [name_of(row) for row in rows])
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
        axes.set_xlabel("epsilon")
        axes.grid(True, axis="x", color=GRID, linewidth=0.8)
        bare(axes, "top", "right", "left")
        figure.legend(loc="outside upper left", ncols=3)
        first = rows[0]
        note = (
            f"{first['canaries']} canaries, {first['dim']} values, {counted(first['rounds'], 'round')}, "
            f"delta {first['delta']:g}; each bound holds at {100 * (1 - first['error']):g} %."
        )
        save(figure, file, note)
