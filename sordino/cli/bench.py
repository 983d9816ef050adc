"""``sordino bench``: how fast, beside the limits of this machine and beside peers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.failure import ExitCode, InputFailure
from runtime.option_values import built, task_options
from secagg.masking import choose_keystream
from sordino.cli.options import chosen, options, with_options
from sordino.cli.verbs import Json, number, option, verb_group, verb_in
from sordino.lab.bench.secagg import Setting, run_attempt
from sordino.lab.bench.text import (
    Shown,
    about_graph,
    comparisons_table,
    draw_comparisons,
    draw_ratios,
    noise_table,
    primitives_table,
    ratios_table,
    secagg_table,
    training_table,
)
from sordino.lab.bench.timing import BOUNDS, broken, describe, one_line

app = verb_group(
    "bench",
    "Measure the protocol, the noise and what lies below them on this machine.\n\nTimes are CPU time, since "
    "machines are shared. [bold]all[/bold] holds each hot path against its limit and fails when a bound is broken; "
    "[bold]peers[/bold] runs other projects on the same work in the same run.",
)
_CODES = (ExitCode.BOUND, ExitCode.INFEASIBLE, ExitCode.INTERRUPTED)

Runs = Annotated[int, number("Runs of each; one more before them isn't counted.", 1, 99)]
Figure = Annotated[Path | None, option("FILE", "Draw the table as .svg or .png.", shown="no figure")]


def _secagg(
    threads: Annotated[int, number("Of the coordinator's unmasking.", 1, 64)] = 1, as_json: Json = False, **given: Any
) -> int:
    setting = built(Setting, chosen(given, Setting))
    figures = run_attempt(setting, threads) | {"warnings": about_graph(setting)}
    _show(figures, secagg_table(figures), as_json)
    wrong = "the sum that was opened is not the sum of the survivors' vectors"
    return _judge("secagg", [] if figures["sum_ok"] else [wrong])


verb_in(
    app,
    "secagg",
    "bench secagg --clients 50 --dim 100000 --drop 0.2",
    "One attempt of the protocol core in one process, and whether its sum is right.\n\nNo network, nothing shared "
    "between participants, every signature and commitment checked. The client figure is the mean over survivors.",
    *_CODES,
)(with_options(_secagg, options(Setting)))


@verb_in(
    app,
    "noise",
    "bench noise --stddev 10 --dim 1000000",
    "Nanoseconds a sample of the sampler that clients use, and what it takes to set up once a process.",
    *_CODES,
)
def noise(
    law: Annotated[str, option("NAME", "gaussian (the discrete one) or skellam.", shown=True)] = "gaussian",
    stddev: Annotated[float, number("Of one value, in grid steps.")] = 10.0,
    dim: Annotated[int, number("Values in one vector.")] = 1_000_000,
    runs: Runs = 15,
    as_json: Json = False,
) -> int:
    from sordino.lab.bench.noise import run

    try:
        figures = run(law, stddev, dim, runs)
    except ValueError as error:
        raise InputFailure(str(error)) from error
    _show(figures, noise_table(law, stddev, dim, figures), as_json)
    wrong = "mean or variance of the draws are more than six standard errors from the law's"
    return _judge("noise", [] if figures["law_ok"] else [wrong])


@verb_in(
    app,
    "training",
    "bench training --task femnist-cnn --participants 100 --examples 20",
    "Local training of all participants of a round on random images: one after the other, and all at once, in "
    "turns.\n\nWall time; the smallest of the runs counts, since other work on the machine only ever adds. For "
    "tasks in torch also the loop with as many threads in each operation, the operations that the gradients take, "
    "and how long these would take at the rates of bare library calls.",
    *_CODES,
)
def training(
    task: Annotated[str, option("NAME", "A task for images.", shown=True)] = "femnist-cnn",
    participants: Annotated[int, number("Of the round.", 1, 100_000)] = 100,
    examples: Annotated[int, number("Of each participant.", 1, 10_000)] = 20,
    task_option: Annotated[list[str] | None, option("KEY=VALUE", "Of the task; repeatable.")] = None,
    threads: Annotated[int, number("At once; 0: one for each core.", 0, 256)] = 0,
    runs: Annotated[int, number("Of each way; one more before them isn't counted.", 1, 99)] = 3,
    as_json: Json = False,
) -> int:
    from learning.own_task import TaskUnavailable
    from sordino.lab.bench.training import run

    machine = _calibrated()
    try:
        figures = run(task, task_options(task_option, {}), participants, examples, threads, runs)
    except (ValueError, TaskUnavailable) as error:
        raise InputFailure(str(error)) from error
    _show({"machine": machine, **figures}, training_table(task, participants, examples, figures), as_json)
    return _judge("training", [] if figures["same"] else ["training at once gives other updates than one by one"])


@verb_in(
    app,
    "primitives",
    "bench primitives",
    "What this machine does at best: keystream, add, packing, hashes, keys, Shamir's scheme, gRPC.",
    *_CODES,
)
def primitives(runs: Runs = 7, as_json: Json = False) -> int:
    from sordino.lab.bench.primitives import run

    machine = _calibrated()
    rows = run(runs)
    _show({"machine": machine, "primitives": rows}, primitives_table(rows), as_json)
    return int(ExitCode.OK)


@verb_in(
    app,
    "all",
    "bench all --figure bench.svg",
    "Each hot path beside its limit on this machine, as a ratio.\n\nPath and limit are timed in turns, so a busy "
    "machine slows both. A limit is the same work by the bare library calls it can't do without. Fails when the "
    "median ratio of a path is above its bound.",
    *_CODES,
)
def everything(
    runs: Runs = 5,
    only: Annotated[str | None, option("PATH", "One path.", shown="all paths")] = None,
    figure: Figure = None,
    as_json: Json = False,
) -> int:
    from sordino.lab.bench.paths import run

    _check_figure(figure)
    machine, most = _calibrated(), BOUNDS["most"]
    try:
        rows = run(runs, only)
    except ValueError as error:
        raise InputFailure(str(error)) from error
    faults = broken({row["path"]: row["ratio"]["median"] for row in rows}, most, largest=True)
    if figure is not None:
        draw_ratios(rows, most, one_line(machine), figure)
    result = {"machine": machine, "paths": rows, "bounds": most, "broken": faults}
    _show(result, ratios_table(rows, most), as_json)
    return _judge("all", faults)


@verb_in(
    app,
    "peers",
    "bench peers --repeats 3 --figure peers.svg",
    "Sordino beside Flower's SecAgg+ and OpenDP's discrete Gaussian, on the same work in the same run.\n\nThe "
    "peers have a separate environment, which [bold]make bench-peers[/bold] builds. Each side runs in a separate "
    "process, in turns. Fails when a peer costs less than its bound times ours; the bound shipped "
    "for Flower holds for the default size and isn't applied to another.",
    *_CODES,
)
def peers(
    clients: Annotated[int, number("Participants of the round.", 3, 1000)] = 50,
    dim: Annotated[int, number("Values in one vector of the round.", 1)] = 100_000,
    drop: Annotated[float, number("Share that leaves before the masked input.", 0, 0.3)] = 0.2,
    stddev: Annotated[float, number("Of the noise, in grid steps.", 1)] = 10.0,
    repeats: Annotated[int, number("Pairs of runs.", 1, 99)] = 3,
    figure: Figure = None,
    as_json: Json = False,
) -> int:
    from sordino.lab.bench.peers.run import PeerFailed, PeersMissing, compare_all

    _check_figure(figure)
    machine, least = _calibrated(), dict(BOUNDS["least"])
    # Ours grows more slowly than Flower's, so a bound for one size says nothing about another.
    if (clients, dim, drop) != (50, 100_000, 0.2):
        least.pop("flower_secagg")
    try:
        found, names = compare_all(clients=clients, dim=dim, drop=drop, stddev=stddev, repeats=repeats)
    except (PeersMissing, PeerFailed, ValueError) as error:
        raise InputFailure(str(error)) from error
    faults = broken({key: one.ratio.median for key, one in found.items()}, least, largest=False)
    comparisons = {key: one.to_json() for key, one in found.items()}
    if figure is not None:
        rows = [{"name": names[key][0], "peer_name": names[key][1], **one} for key, one in comparisons.items()]
        draw_comparisons(rows, one_line(machine), figure)
    result = {"machine": machine, "comparisons": comparisons, "bounds": least, "broken": faults}
    _show(result, comparisons_table(comparisons, names, least), as_json)
    return _judge("peers", faults)


def _judge(verb: str, faults: list[str]) -> int:
    """Print faults to standard error. They are not raised: with --json the one object contains them too."""
    for fault in faults:
        print(f"sordino bench {verb}: {fault}.", file=sys.stderr)
    return int(ExitCode.BOUND if faults else ExitCode.OK)


def _check_figure(file: Path | None) -> None:
    if file is not None and file.suffix not in (".svg", ".png"):
        raise InputFailure(f"--figure {file}: the name must end in .svg or .png.")


def _calibrated() -> dict[str, Any]:
    """The machine, after this process has chosen its keystream as a participant does at its start."""
    choose_keystream(time.perf_counter)
    return describe()


def _show(result: Mapping[str, Any], shown: Shown, as_json: bool) -> None:
    """Print the result as JSON; or as a table, with the lines and the machine below it."""
    if as_json:
        typer.echo(json.dumps(result))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, name in enumerate(shown.head):
        is_text = column == 0 or not shown.rows or not shown.rows[0][column][:1].isdigit()
        table.add_column(name, justify="left" if is_text else "right", overflow="fold")
    for row in shown.rows:
        table.add_row(*row)
    console = Console()
    # Piped into a file, a table isn't cut to 80 columns.
    console.width = console.width if console.is_terminal else 150
    console.print(table)
    lines = [*shown.below, *([one_line(result["machine"])] if "machine" in result else [])]
    if lines:
        typer.echo("\n" + "\n".join(lines))
