"""What the benchmarks show: tables for a terminal or a file with the lines below them, and figures of the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.text import folded
from secagg.parameters import HARARY, complete_graph_threshold, sparse_sharing
from sordino.lab.bench.secagg import Setting
from sordino.planning.drawing import BLUE, INK, RED, bars
from sordino.planning.notes import no_ring

Row = tuple[str, ...]


@dataclass(frozen=True)
class Shown:
    """A table, and the lines below it."""

    head: Row
    rows: Sequence[Row]
    below: Sequence[str] = ()


def about_graph(setting: Setting) -> list[str]:
    """Where the graph isn't the one asked for, or not the one that our rules ask for; without full stops."""
    plan = setting.parameters
    whose = (plan.cohort, plan.colluders, plan.min_survivors, plan.adversary)
    rules = sparse_sharing(*whose)
    if setting.degree is None or setting.threshold is None:
        return [no_ring(*whose, "lower --dropout")] if setting.graph == HARARY and rules is None else []
    against = f"against this coordinator, with min_survivors {plan.min_survivors}"
    if rules is None:
        threshold = complete_graph_threshold(plan.cohort, plan.colluders)
        return [f"another system's setting: our rules ask for the complete graph, threshold {threshold} {against}"]
    if setting.degree >= rules.degree and setting.threshold >= rules.threshold:
        return []
    return [f"another system's setting: our rules ask for degree {rules.degree}, threshold {rules.threshold} {against}"]


def secagg_table(figures: Mapping[str, Any]) -> Shown:
    """CPU of each phase; below it the sum, the graph, and what it took in all."""
    verdict = "is right" if figures["sum_ok"] else "IS WRONG"
    graph = "complete graph" if figures["graph"] == "complete" else f"ring (k-regular) of degree {figures['degree']}"
    paragraphs = (
        f"The sum of {figures['survivors']} of {figures['clients']} participants {verdict}: {figures['dim']:,} "
        f"values of {figures['bits']} bits, {graph}, threshold {figures['threshold']}, min_survivors "
        f"{figures['min_survivors']}, keys by {figures['key_agreement']}.",
        *(f"Note: {warning}." for warning in figures["warnings"]),
        f"CPU: {figures['cpu_s']:.3f} s in all, one client {1e3 * figures['client_cpu_s']:.1f} ms, coordinator "
        f"{1e3 * figures['server_cpu_s']:.1f} ms; wall {figures['wall_s']:.3f} s.",
        f"A client sends {figures['upload_bytes']:,} bytes and receives {figures['download_bytes']:,}; "
        f"peak memory of the process {figures['peak_rss_mb']:.0f} MB.",
    )
    rows = [
        (phase, f"{1e3 * spent['client']:.1f}", f"{1e3 * spent['server']:.1f}")
        for phase, spent in figures["phases"].items()
    ]
    below = [line for one in paragraphs for line in folded(one)]
    return Shown(("phase", "clients, CPU ms", "coordinator, CPU ms"), rows, below)


def noise_table(law: str, stddev: float, dim: int, figures: Mapping[str, Any]) -> Shown:
    row = (
        law,
        f"{stddev:g}",
        f"{figures['stddev_seen']:.6g}",
        f"{dim:,}",
        *_spread(figures["ns_per_sample_spread"], ".2f"),
        f"{figures['setup_ms']:.1f}",
    )
    head = ("law", "standard deviation", "seen", "values", "ns a sample", "min", "max", "set up, ms")
    return Shown(head, [row])


def training_table(task: str, participants: int, examples: int, figures: Mapping[str, Any]) -> Shown:
    names = {
        "one_by_one": "one by one",
        "one_by_one_torch_threads": f"one by one, {figures['threads']} threads in each operation",
        "at_once": f"at once, {figures['threads']} threads",
    }
    rows = [
        (
            names[way],
            *_spread(seconds, ".3f", ("minimum", "median", "maximum")),
            f"{figures['cpu_seconds'][way]['minimum']:.3f}",
        )
        for way, seconds in figures["seconds"].items()
    ]
    for key, limit in (figures["limits"] or {}).items():
        if key != "operations":
            bound = f"{limit['seconds_at_the_faster']:.3f}"
            operations = f"{figures['limits']['operations']:.3g} operations"
            rows.append((f"limit: {operations}, {key.removeprefix('threads_')} threads", bound, "", "", ""))
    title = f"{task}, {figures['dim']:,} values, {participants} x {examples} examples"
    below = [f"At once is {figures['speedup']:.2f} times as fast as one by one."]
    return Shown((title, "least, s", "median", "most", "CPU"), rows, below)


def primitives_table(rows: Sequence[Mapping[str, Any]]) -> Shown:
    shown: list[tuple[str, ...]] = []
    for above, row in zip([{}, *rows], rows, strict=False):
        group = "" if above.get("group") == row["group"] else row["group"]
        shown.append((group, row["name"], row["unit"], *_spread(row, ".3g")))
    return Shown(("", "", "unit", "median", "min", "max"), shown)


def ratios_table(rows: Sequence[Mapping[str, Any]], most: Mapping[str, float]) -> Shown:
    shown = [
        (
            f"{row['name']}\n  {row['limit_name']}",
            f"{row['ours']['median']:.3g}",
            f"{row['limit']['median']:.3g}",
            row["unit"],
            *_spread(row["ratio"], ".2f"),
            f"{most[row['path']]:g}" if row["path"] in most else "",
        )
        for row in rows
    ]
    head = ("path", "ours", "limit", "unit", "ratio", "min", "max", "bound")
    return Shown(head, shown)


def comparisons_table(
    comparisons: Mapping[str, Any], names: Mapping[str, tuple[str, str]], least: Mapping[str, float]
) -> Shown:
    """``names``: what the work is and whose the peer is, by comparison."""
    shown, below = [], []
    for key, one in comparisons.items():
        work, peer = names[key]
        shown.append(
            (
                f"{work}\n  {peer} {next(iter(one['versions'].values()))}",
                f"{one['ours']['median']:.3g}",
                f"{one['peers']['median']:.3g}",
                one["unit"],
                *_spread(one["ratio"], ".0f"),
                f"{least[key]:g}" if key in least else "",
            )
        )
        for side, lines in one["includes"].items():
            below += [f"{peer if side == 'peer' else 'Sordino'} ({work}):", *(f"  {line}" for line in lines)]
    head = ("work", "ours", "peer", "unit", "peer / ours", "min", "max", "bound")
    return Shown(head, shown, below)


def _spread(
    values: Mapping[str, float], how: str, names: tuple[str, ...] = ("median", "minimum", "maximum")
) -> list[str]:
    return [format(values[name], how) for name in names]


# ---------------------------------------------------------------- figures, as SVG or PNG by the file's ending


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
