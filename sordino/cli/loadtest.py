"""``sordino loadtest``: real processes, planned dropouts, checked sums."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sordino.exit_codes import ExitCode, Failure, listing

NAME = "loadtest"
HELP = (
    "Load a real coordinator process with many real participants, some of whom leave, and check every sum.\n\nEach "
    "participant has its own identity, TLS channel, study document, roster and model; they share a process and its "
    "journal, nothing else. Instead of an update it sends uniform integers that follow from the seed, so the sum of "
    "whoever survives is known exactly and compared with the coordinator's. Which participants leave, in which round "
    "and at which phase, follows from the seed too. A round that aborts is counted with its reason and is no failure "
    "of the command; a wrong sum or a broken bound is. Ctrl-C, or a process that dies, ends the load test with what "
    "the rounds so far have shown. All parts run on this machine, in a temporary folder unless --out names one.\n\n"
    "With --drop-style disconnect a participant closes its connection before it "
    "answers, or in the middle of its upload, and comes back for the next round; with silent it stays connected and "
    "never answers, so the coordinator waits for the phase's deadline."
)
EPILOG = (
    "Example: [bold]sordino loadtest --clients 200 --dim 100000 --drop 0.1 --max-p95 15 --out load[/bold]\n\n"
    + listing(
        ExitCode.OK,
        ExitCode.BOUND,
        ExitCode.INPUT,
        ExitCode.INFEASIBLE,
        ExitCode.NETWORK,
        ExitCode.STUDY,
        ExitCode.INTERRUPTED,
    )
)


def run(
    clients: Annotated[int, typer.Option(min=3, max=65_519, help="Participants in all.")] = 50,
    processes: Annotated[int, typer.Option(min=1, help="Client processes that they are spread over.")] = 4,
    dim: Annotated[int, typer.Option(min=1, max=1 << 28, help="Values of a vector, before padding.")] = 10_000,
    bits: Annotated[int, typer.Option(min=1, max=62, help="Bits of one value on the wire.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to begin; one that aborts counts.")] = 5,
    drop: Annotated[
        float | None, typer.Option(help="Share of the participants that leave in each round.", show_default="0.1")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="PHASE|any",
            show_default="any",
            help="Where they leave: advertise-keys, share-keys, masked-input, consistency-check, unmasking, or any.",
        ),
    ] = None,
    drop_style: Annotated[str, typer.Option(metavar="disconnect|silent", help="How they leave.")] = "disconnect",
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of vectors and dropouts.")] = 1,
    deadline: Annotated[
        float | None,
        typer.Option(min=0.1, max=86_400, help="Seconds of each phase.", show_default="60, or 10 if silent"),
    ] = None,
    max_p95: Annotated[
        float | None, typer.Option(min=0, help="Fail when the 95th percentile of a round's seconds is above.")
    ] = None,
    min_completed: Annotated[int | None, typer.Option(min=0, help="Fail when fewer rounds end in a sum.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="New or empty folder for result.json, the figure, the study and its logs."),
    ] = None,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep",
            help="Repeat with drop 0.1, 0.2 and 0.3 at each single phase, and print a Markdown table; "
            "takes no --drop and no --at.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> int:
    from sordino.loadtest.display import LoadDisplay
    from sordino.loadtest.options import LoadOptions
    from sordino.loadtest.run import run_load_test

    if sweep and (drop is not None or at is not None):
        given = " and ".join(name for name, value in (("--drop", drop), ("--at", at)) if value is not None)
        raise Failure(
            ExitCode.INPUT,
            f"--sweep goes through every phase with 10, 20 and 30 %, and can't be used with {given}. Leave out one "
            "or the other.",
        )
    signal.signal(signal.SIGTERM, _terminate)
    options = LoadOptions(
        clients=clients,
        processes=processes,
        dim=dim,
        bits=bits,
        rounds=rounds,
        drop=0.1 if drop is None else drop,
        at="any" if at is None else at,
        drop_style=drop_style,
        seed=seed,
        deadline_s=deadline,
        out=out,
        max_p95_s=max_p95,
        min_completed=min_completed,
    )
    if sweep:
        return _sweep(options, as_json)
    options.check()
    options.check_can_end()
    with LoadDisplay(plain=as_json) as display:
        result = run_load_test(options, display)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        _tell(result, out)
    return _judge(result)


def _sweep(options: Any, as_json: bool) -> int:
    from sordino.loadtest.display import LoadDisplay
    from sordino.loadtest.sweep import markdown, run_sweep

    with LoadDisplay(plain=True) as display:
        result = run_sweep(options, display)
    typer.echo(json.dumps(result) if as_json else markdown(result["runs"], result["incomplete"]))
    return _judge(result)


def _judge(result: dict[str, Any]) -> int:
    """Told on standard error, not raised: with --json the result is the one object, and holds the sentences too."""
    for sentence in filter(None, (*result["broken"], result["incomplete"])):
        print(f"sordino loadtest: {sentence}.", file=sys.stderr)
    return int(result["exit_code"])


def _tell(result: dict[str, Any], out: Path | None) -> None:
    from rich.console import Console

    from sordino.loadtest.display import WIDTH, final_lines, round_table

    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    if result["rounds"]:
        console.print()
        console.print(round_table(result))
    typer.echo("\n" + "\n".join(final_lines(result)))
    if out is not None:
        figure = "round-time-by-phase.svg and .png, " if result["rounds"] else ""
        typer.echo(f"kept                {out}: result.json, {figure}logs, study")


def _terminate(number: int, frame: Any) -> None:
    """Stop as on Ctrl-C, so that every process is stopped too."""
    raise KeyboardInterrupt
