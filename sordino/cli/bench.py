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
from sordino.cli.verbs import Json, epilog, verb_group
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

NAME = "bench"
app = verb_group(
    NAME,
    "Measure the protocol, the noise and what lies below them on this machine.\n\nTimes are CPU time, since "
    "machines are shared. [bold]all[/bold] holds each hot path against its limit and fails when a bound is broken; "
    "[bold]peers[/bold] runs other projects on the same work in the same run.",
)
_CODES = (ExitCode.BOUND, ExitCode.INFEASIBLE, ExitCode.INTERRUPTED)

Runs = Annotated[int, typer.Option(min=1, max=99, help="Runs of each; one more before them isn't counted.")]
Figure = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Draw the table as .svg or .png.", show_default="no figure")
]


def _secagg(
    threads: Annotated[int, typer.Option(min=1, max=64, help="Of the coordinator's unmasking.")] = 1,
    as_json: Json = False,
    **given: Any,
) -> int:
    setting = built(Setting, chosen(given, Setting))
    figures = run_attempt(setting, threads) | {"warnings": about_graph(setting)}
    _show(figures, secagg_table(figures), as_json)
    wrong = "the sum that was opened is not the sum of the survivors' vectors"
    return _judge("secagg", [] if figures["sum_ok"] else [wrong])


app.command(
    "secagg",
    help=(
        "One attempt of the protocol core in one process, and whether its sum is right.\n\nNo network, nothing shared "
        "between participants, every signature and commitment checked. The client figure is the mean over survivors."
    ),
    epilog=epilog("bench secagg --clients 50 --dim 100000 --drop 0.2", *_CODES),
)(with_options(_secagg, options(Setting)))


@app.command(
    "noise",
    help="Nanoseconds a sample of the sampler that clients use, and what it takes to set up once a process.",
    epilog=epilog("bench noise --stddev 10 --dim 1000000", *_CODES),
)
def noise(
    law: Annotated[str, typer.Option(metavar="NAME", help="gaussian (the discrete one) or skellam.")] = "gaussian",
    stddev: Annotated[float, typer.Option(help="Of one value, in grid steps.")] = 10.0,
    dim: Annotated[int, typer.Option(help="Values in one vector.")] = 1_000_000,
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


@app.command(
    "training",
    help=(
        "Local training of all participants of a round on random images: one after the other, and all at once, in "
        "turns.\n\nWall time; the smallest of the runs counts, since other work on the machine only ever adds. For "
        "tasks in torch also the loop with as many threads in each operation, the operations that the gradients take, "
        "and how long these would take at the rates of bare library calls."
    ),
    epilog=epilog("bench training --task femnist-cnn --participants 100 --examples 20", *_CODES),
)
def training(
    task: Annotated[str, typer.Option(metavar="NAME", help="A task for images.")] = "femnist-cnn",
    participants: Annotated[int, typer.Option(min=1, max=100_000, help="Of the round.")] = 100,
    examples: Annotated[int, typer.Option(min=1, max=10_000, help="Of each participant.")] = 20,
    task_option: Annotated[
        list[str] | None,
        typer.Option("--task-option", metavar="KEY=VALUE", help="Of the task; repeatable.", show_default=False),
    ] = None,
    threads: Annotated[int, typer.Option(min=0, max=256, help="At once; 0: one for each core.")] = 0,
    runs: Annotated[int, typer.Option(min=1, max=99, help="Of each way; one more before them isn't counted.")] = 3,
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


@app.command(
    "primitives",
    help="What this machine does at best: keystream, add, packing, hashes, keys, Shamir's scheme, gRPC.",
    epilog=epilog("bench primitives", *_CODES),
)
def primitives(runs: Runs = 7, as_json: Json = False) -> int:
    from sordino.lab.bench.primitives import run

    machine = _calibrated()
    rows = run(runs)
    _show({"machine": machine, "primitives": rows}, primitives_table(rows), as_json)
    return int(ExitCode.OK)


@app.command(
    "all",
    help=(
        "Each hot path beside its limit on this machine, as a ratio.\n\nPath and limit are timed in turns, so a busy "
        "machine slows both. A limit is the same work by the bare library calls it can't do without. Fails when the "
        "median ratio of a path is above its bound."
    ),
    epilog=epilog("bench all --figure bench.svg", *_CODES),
)
def everything(
    runs: Runs = 5,
    only: Annotated[str | None, typer.Option(metavar="PATH", help="One path.", show_default="all paths")] = None,
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


@app.command(
    "peers",
    help=(
        "Sordino beside Flower's SecAgg+ and OpenDP's discrete Gaussian, on the same work in the same run.\n\nThe "
        "peers have a separate environment, which [bold]make bench-peers[/bold] builds. Each side runs in a separate "
        "process, in turns. Fails when a peer costs less than its bound times ours; the bound shipped "
        "for Flower holds for the default size and isn't applied to another."
    ),
    epilog=epilog("bench peers --repeats 3 --figure peers.svg", *_CODES),
)
def peers(
    clients: Annotated[int, typer.Option(min=3, max=1000, help="Participants of the round.")] = 50,
    dim: Annotated[int, typer.Option(min=1, help="Values in one vector of the round.")] = 100_000,
    drop: Annotated[float, typer.Option(min=0, max=0.3, help="Share that leaves before the masked input.")] = 0.2,
    stddev: Annotated[float, typer.Option(min=1, help="Of the noise, in grid steps.")] = 10.0,
    repeats: Annotated[int, typer.Option(min=1, max=99, help="Pairs of runs.")] = 3,
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
    for number, name in enumerate(shown.head):
        is_text = number == 0 or not shown.rows or not shown.rows[0][number][:1].isdigit()
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
