"""Tables and figures of ``sordino experiment blur-lus``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from sordino.lab.experiments.blur_lus_runs import DDGAUSS, FEDAVG, OURS, VOTES
from sordino.lab.experiments.curves import Axes, Band, Picture, Series
from sordino.lab.experiments.run_pool import labels_of
from sordino.lab.experiments.runs import NORMS, Row
from sordino.lab.experiments.tables import CONDITIONAL, HELD, SPENT, Cell, Mean, Results, Share, Table, accuracy

_NOTE: Final = "Accuracy in percent, mean ± standard error over seeds."
_OF_ALL: Final = "Epsilons are the largest of a line's methods."
_COLOURS: Final = {FEDAVG: 0, VOTES: 2, DDGAUSS: 1, OURS: 3}
_WORDS: Final = {
    "epsilon": CONDITIONAL,
    "alpha": "alpha of Dirichlet",
    "steps": "local steps Q",
    "cohort": "participants of a round",
    "rate": "local rate",
}


def method_table(name: str, title: str, rows: Sequence[Row], label: str, methods: Sequence[str]) -> Table:
    """Return a line per value of a label and a column per method; with varying epsilon also what it provably costs."""
    found = Results(rows, "method", label)
    body: list[list[Cell]] = []
    for value in dict.fromkeys(row["labels"][label] for row in rows):
        line = [value, *(found.cell(method, value) for method in methods)]
        if label == "epsilon":
            line += found.spent(epsilon=value)
        body.append(line)
    columns = (_WORDS[label], *methods, *(SPENT if label == "epsilon" else ()))
    return Table(name, title, columns, body, f"{_NOTE} {_OF_ALL} {HELD}" if label == "epsilon" else _NOTE)


def gain_table(name: str, rows: Sequence[Row], label: str, ours: str, others: Sequence[str]) -> Table:
    """Return a method's gain over others, paired by seed: equal partition, cohorts and initial weights."""
    values = list(dict.fromkeys(row["labels"][label] for row in rows))
    known = {(*labels_of(row, "method", label), row["seed"]): accuracy(row) for row in rows}
    body: list[list[Cell]] = []
    for value in values:
        line: list[Cell] = [value]
        for other in others:
            pairs = [
                (found, known.get((other, value, seed)))
                for (method, at, seed), found in known.items()
                if method == ours and at == value
            ]
            gains = [found - beside for found, beside in pairs if found is not None and beside is not None]
            gain = Mean.of(gains) if gains else None
            line += [None if gain is None else Share(gain, signed=True), "" if gain is None else _verdict(gain)]
        body.append(line)
    columns = [_WORDS[label]]
    for other in others:
        columns += [f"less {other}", "above by more than its error"]
    note = "Points of accuracy, paired by seed: mean ± standard error of the differences."
    return Table(name, f"{ours} against the others", tuple(columns), body, note)


def _verdict(gain: Mean) -> str:
    return "one seed" if gain.error is None else "yes" if gain.mean > gain.error else "no"


def sparsity_table(without: Sequence[Row], rows: Sequence[Row], values: Sequence[float], names: Sequence[str]) -> Table:
    """Return Table 3: LUS and BLUR + LUS by sparsity, with their gain over DP-FedAvg.

    Args:
        without: runs of the first two names.
        rows: of the others, labelled with ``sparsity``.
        names: of DP-FedAvg, BLUR, LUS and both.
    """
    fedavg, blur, lus, both = names
    plain = Results(without, "method").means
    means = Results(rows, "method", "sparsity").means
    base = plain.get((fedavg,))

    def line(method: str, sparsity: float, found: Mean | None) -> list[Cell]:
        gain = Share(found.minus(base), signed=True) if found and base and method != fedavg else None
        return [method, sparsity, None if found is None else Share(found), gain]

    body = [line(fedavg, 0.0, base), line(blur, 0.0, plain.get((blur,)))]
    for method in (lus, both):
        body += [line(method, sparsity, means.get((method, sparsity))) for sparsity in values]
    columns = ("method", "sparsity c", "accuracy, %", f"gain over {fedavg}")
    return Table("blur-lus-sparsity", "Accuracy against the sparsity of LUS", columns, body, _NOTE)


def rates_table(rows: Sequence[Row], methods: Sequence[str]) -> Table:
    """Return the accuracy of every method at its best local rate and S."""
    body: list[list[Cell]] = []
    for method in methods:
        own = [row for row in rows if row["labels"]["method"] == method]
        found = [value for row in own if (value := accuracy(row)) is not None]
        labels = own[0]["labels"] if own else {"rate": None, "clip": None}
        clip = "" if method == VOTES else f"{labels['clip']:g}"
        body.append([method, labels["rate"], clip, Share(Mean.of(found)) if found else "not run"])
    title = "Every method with a local rate and S of its own"
    return Table("blur-lus-own-rates", title, ("method", "local rate", "S", "accuracy, %"), body, _NOTE)


def by_label(name: str, title: str, rows: Sequence[Row], label: str, methods: Sequence[str], scale: str) -> Picture:
    """Draw a curve for each method; with AE-DPFL among them the others once more on a separate scale."""
    found = Results(rows, "method", label)
    values: list[Any] = sorted({row["labels"][label] for row in rows})

    def curve(method: str) -> dict[Any, Mean]:
        return found.curve(values, lambda value: (method, value))

    series = [
        Series(method, curve(method), _COLOURS.get(method, 4), dashed=method in (DDGAUSS, VOTES)) for method in methods
    ]
    axes = [Axes(title, _WORDS[label], "accuracy, %", series, scale=scale, ticks=values)]
    others = [one for one in series if one.name != VOTES]
    if len(others) < len(series):
        axes.append(replace(axes[0], title=f"Without {VOTES}", series=others))
    return Picture(name, axes, "Mean and standard error over seeds.", columns=len(axes))


def norms_picture(rows: Sequence[Row], methods: Sequence[str], epsilon: float, clip: float) -> Picture:
    """Draw norms before clipping, per round: median and the range from the 10th to the 90th percentile."""
    axes = []
    for method in methods:
        own = [row for row in rows if labels_of(row, "method", "epsilon") == (method, epsilon) and "norms" in row]
        points: dict[float, tuple[float, float, float]] = {}
        for at, round_ in enumerate(own[0]["rounds"] if own else []):
            found = [[row["norms"][share][at] for row in own if row["norms"][share][at] is not None] for share in NORMS]
            if all(found):
                low, middle, high = (sum(one) / len(one) for one in found)
                points[round_] = (low, middle, high)
        band = Band("median, 10th to 90th percentile", points, _COLOURS.get(method, 4))
        axes.append(
            Axes(method, "round", "norm before clipping", [band], percent=False, level=(clip, f"clip S = {clip:g}"))
        )
    note = f"{CONDITIONAL} {epsilon:g}; quantiles of a round's updates, averaged over seeds."
    return Picture("blur-lus-norms", axes, note, columns=len(axes), same_y=True)
