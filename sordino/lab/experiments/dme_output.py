"""Output of ``sordino experiment dme``: lines, JSON, CSV and a figure."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sordino.planning.drawing import COLOURS, LOG, Axes, Picture, Series
from sordino.planning.drawing import draw as draw_picture

if TYPE_CHECKING:
    from sordino.lab.experiments.dme import Setting

COLUMNS: Final = (
    "clients",
    "mechanism",
    "bits",
    "epsilon",
    "feasible",
    "adjacency",
    "padded_dim",
    "granularity",
    "local_stddev",
    "local_stddev_grid",
    "noise_multiplier",
    "epsilon_achieved",
    "mse_central",
    "mse_closed_form",
    "mse_expected",
    "mse_integer_stddev",
    "closed_form_over_central",
    "trials",
    "mse_simulated",
    "mse_standard_error",
    "simulated_over_closed_form",
    "simulated_over_expected",
    "simulated_over_central",
)
_TITLES: Final = {
    "ddgauss": "distributed discrete Gaussian",
    "skellam": "distributed Skellam",
    "gaussian": "central discrete Gaussian",
    "local-gaussian": "local discrete Gaussian",
}
_MOST_TICKS: Final = 12


def body_of(common: Setting, rows: Sequence[Mapping[str, Any]], trials: int) -> dict[str, Any]:
    """Return the JSON object: common settings, then the rows."""
    return {
        "dim": common.dim,
        "delta": common.delta,
        "clip": common.clip,
        "k_stddevs": common.k_stddevs,
        "data": common.data,
        "seed": common.seed,
        "trials": trials,
        "rows": [dict(row) for row in rows],
    }


def write_csv(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write one line per setting; unknown values stay empty."""
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, COLUMNS, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def table_lines(body: Mapping[str, Any]) -> list[str]:
    """Return mean squared errors over the central Gaussian's: a table for each mechanism and number of clients."""
    rows = body["rows"]
    simulated = body["trials"] > 0
    name = "simulated_over_central" if simulated else "closed_form_over_central"
    trials = f"{body['trials']} trials" if body["trials"] > 1 else "1 trial"
    kind = f"simulated ({trials} each)" if simulated else "closed form"
    lines = [
        f"{body['dim']} values, clip {body['clip']:g}, one round, delta {body['delta']:g}, data {body['data']}",
        *_adjacencies(rows),
        f"Mean squared error, {kind}, as a factor of a central",
        "Gaussian's at the same epsilon, delta and clip:",
    ]
    for clients, mechanism in dict.fromkeys((row["clients"], row["mechanism"]) for row in rows):
        part = [row for row in rows if (row["clients"], row["mechanism"]) == (clients, mechanism)]
        widths = sorted({row["bits"] for row in part})
        found = {(row["bits"], row["epsilon"]): row.get(name) for row in part}
        lines += ["", f"{mechanism}, {clients} participants, {'simulated' if simulated else 'closed form'}"]
        lines[-1] += _standard_errors(part)
        lines.append("  epsilon" + "".join(f"{f'{width} bits':>10}" for width in widths))
        for epsilon in sorted({row["epsilon"] for row in part}):
            cells = (_factor(found[width, epsilon]) for width in widths)
            lines.append(f"  {epsilon:>7g}" + "".join(f"{cell:>10}" for cell in cells))
    return [*lines, "", *_summary(rows)]


def _adjacencies(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the notion of neighbouring inputs, for the mechanisms in the rows."""
    found: dict[str, list[str]] = {}
    for row in rows:
        names = found.setdefault(row["adjacency"].partition(":")[0], []) if row["feasible"] else []
        if row["mechanism"] not in names:
            names.append(row["mechanism"])
    text = [name if len(found) == 1 else f"{name} ({', '.join(names)})" for name, names in found.items()]
    return [f"Adjacency: {', '.join(text)}"]


def _standard_errors(part: Sequence[Mapping[str, Any]]) -> str:
    shares = [row["mse_standard_error"] / row["mse_simulated"] for row in part if row.get("mse_standard_error")]
    if not shares:
        return ""
    low, high = f"{100 * min(shares):.2g}", f"{100 * max(shares):.2g}"
    return f", each ± {low if low == high else f'{low} to {high}'} % (standard error)"


def _factor(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if value < 10 else f"{value:.3g}"


def _summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    measured = [row for row in rows if "mse_simulated" in row]
    if measured:
        fine = [row for row in measured if row["mse_expected"] > 0.995 * row["mse_closed_form"]]
        for title, part, name in (
            ("Simulated over (s^2 + 1/6) granularity^2 / n", fine, "simulated_over_closed_form"),
            ("Simulated over that with this grid's rounding", measured, "simulated_over_expected"),
        ):
            if part:
                ratios = [row[name] for row in part]
                lines.append(f"{title}: {min(ratios):.3f} to {max(ratios):.3f} ({len(part)} settings)")
    # What follows is about noise that many add together.
    feasible = [row for row in rows if row["feasible"] and row["mechanism"] in ("ddgauss", "skellam")]
    large = [row["closed_form_over_central"] for row in feasible if row["bits"] >= 16]
    if large:
        lines.append(f"Distributed over central Gaussian, closed form, 16 bits or more: at most {max(large):.3f}")
    small = [row["mse_closed_form"] / row["mse_integer_stddev"] for row in feasible if row["bits"] == 10]
    if small:
        text = "Distributed at 10 bits over a sampler's for whole deviations"
        lines.append(f"{text}: {min(small):.3f} to {max(small):.3f}")
    return lines


def draw(body: Mapping[str, Any], file: Path) -> None:
    """Error against epsilon: a panel for each mechanism and number of clients, a line for each number of bits."""
    rows = body["rows"]
    widths, epsilons = (sorted({row[name] for row in rows}) for name in ("bits", "epsilon"))
    all_axes = []
    for clients, mechanism in dict.fromkeys((row["clients"], row["mechanism"]) for row in rows):
        part = [row for row in rows if (row["clients"], row["mechanism"]) == (clients, mechanism)]
        series = []
        for at, width in enumerate(widths):
            curve = [row for row in part if row["bits"] == width and row["feasible"]]
            measured = [row for row in curve if "mse_simulated" in row]
            if curve:
                closed = {row["epsilon"]: row["mse_expected"] for row in curve}
                dots = {row["epsilon"]: row["mse_simulated"] for row in measured}
                series += [Series(f"{width} bits", closed, at, marks=False), Series("", dots, at, line=False)]
        central = {row["epsilon"]: row["mse_central"] for row in part}
        series.append(Series("central Gaussian", central, len(COLOURS) - 1, dashed=True, marks=False))
        all_axes.append(
            Axes(
                f"{_TITLES[mechanism]}, {clients} participants",
                "epsilon",
                "mean squared error of a value of the mean",
                series,
                scale=LOG,
                log_y=True,
                ticks=epsilons if len(epsilons) <= _MOST_TICKS else (),
                percent=False,
            )
        )
    note = (
        f"{body['dim']} values, clip {body['clip']:g}, delta {body['delta']:g}, one round, data: {body['data']}; "
        "no participant leaves or colludes. Lines: closed form; "
        + (f"points: simulated, {body['trials']} trials each." if body["trials"] else "nothing simulated.")
        + " Dashed: continuous Gaussian of a trusted coordinator, calibrated exactly. "
        + f"{_adjacencies(rows)[0]}."
    )
    columns = len({row["mechanism"] for row in rows})
    draw_picture(Picture("dme", all_axes, note, columns=columns, same_y=True), file)
