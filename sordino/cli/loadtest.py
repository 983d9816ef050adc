"""``sordino loadtest``: real processes, planned dropouts and other faults, checked sums."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from runtime.failure import ExitCode, listing

NAME = "loadtest"
HELP = (
    "Load a real coordinator process with many real participants, some of whom leave, and check every sum.\n\nEach "
    "participant has its own identity, TLS channel, study document, roster and model, and verifies all signatures "
    "itself; they share a process and its journal (and with --verify-once what they verified). Instead of an update it "
    "sends uniform integers that follow from the seed, so the sum of whoever survives is known exactly and compared "
    "with the coordinator's. Which participants leave, in which round and at which phase, follows from the seed too. A "
    "round that aborts is counted with its reason and is no failure of the command; a wrong sum or a broken bound is. "
    "Ctrl-C, or a process that dies, ends the load test with what the rounds so far have shown. All parts run on this "
    "machine, in a temporary folder unless --out names one.\n\n"
    "With --drop-style disconnect a participant closes its connection before it "
    "answers, or in the middle of its upload, and comes back for the next round; with silent it stays connected and "
    "never answers, so the coordinator waits for the phase's deadline.\n\n"
    "Further faults are written name=value,name=value: --stragglers share=0.05,from_s=2,to_s=10 (answer late); --link "
    "share=0.3,latency_ms=80,mbit_s=2,loss=0.01,resets_per_min=1 (through a proxy); --storm round=2,at=between (all "
    "connections are reset at once); --cheats share=0.1; --availability online_s=60,offline_s=20 (come and go), or "
    "trace=FILE. --scenario reads all of it from a file. docs/load_tests.md describes each."
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


_FAULT: Final = "NAME=VALUE,..."
_BOUNDS: Final = "Bounds (broken: exit code 1)"
_FAULTS: Final = "Faults"


def run(
    scenario: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Options from a file; those on the command line come first."),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=3, max=65_519, help="Participants in all.", show_default="50")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Client processes that they are spread over.", show_default="4")
    ] = None,
    dim: Annotated[
        int | None, typer.Option(min=1, max=1 << 28, help="Values of a vector, before padding.", show_default="10000")
    ] = None,
    bits: Annotated[
        int | None, typer.Option(min=1, max=62, help="Bits of one value on the wire.", show_default="20")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds to begin; one that aborts counts.", show_default="5")
    ] = None,
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
    drop_style: Annotated[
        str | None,
        typer.Option(
            metavar="disconnect|silent",
            help="How they leave.",
            show_default="disconnect",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, max=2**63 - 1, help="Of vectors, dropouts and other faults.", show_default="1"),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(min=0.1, max=86_400, help="Seconds of each phase.", show_default="60, or 10 if silent"),
    ] = None,
    resume: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=3600,
            help="Seconds for which a connection that broke keeps its place in a round.",
            show_default="0; 2 where links have resets and with storms",
        ),
    ] = None,
    pause: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=604_800,
            help="Seconds between rounds.",
            show_default="0; 1 where something happens between them",
        ),
    ] = None,
    stragglers: Annotated[
        str | None,
        typer.Option(
            metavar=_FAULT, help="Who answers late in each round: share, from_s, to_s, at.", rich_help_panel=_FAULTS
        ),
    ] = None,
    link: Annotated[
        list[str] | None,
        typer.Option(
            metavar=_FAULT,
            help="A bad link for a share: latency_ms, jitter_ms, mbit_s, loss, resets_per_min; can be repeated.",
            rich_help_panel=_FAULTS,
        ),
    ] = None,
    storm: Annotated[
        list[str] | None,
        typer.Option(
            metavar=_FAULT,
            help="Connections are gone at once: round, share, at (between or a phase), for_s (a black hole instead of "
            "resets); can be repeated.",
            rich_help_panel=_FAULTS,
        ),
    ] = None,
    crash: Annotated[
        list[int] | None,
        typer.Option(
            metavar="ROUND",
            help="Kill the coordinator at the end of this round and start it again; can be repeated.",
            rich_help_panel=_FAULTS,
        ),
    ] = None,
    cheats: Annotated[
        str | None,
        typer.Option(metavar=_FAULT, help="Who cheats: share, ways (a+b, or any).", rich_help_panel=_FAULTS),
    ] = None,
    availability: Annotated[
        str | None,
        typer.Option(
            metavar=_FAULT,
            help="Who is there when: online_s, offline_s, shape (Weibull), or trace=FILE.",
            rich_help_panel=_FAULTS,
        ),
    ] = None,
    noise: Annotated[
        bool | None,
        typer.Option(
            "--noise",
            help="Real noise on updates of zero: each sum is held against the deviation that was planned, not word "
            "for word.",
            show_default=False,
        ),
    ] = None,
    verify_once: Annotated[
        bool | None,
        typer.Option(
            "--verify-once",
            help="Participants of one process verify each signature once, as those of one join do, and not as if each "
            "had a process of its own.",
            show_default=False,
        ),
    ] = None,
    max_p95: Annotated[
        float | None,
        typer.Option(
            min=0, help="Fail when the 95th percentile of a round's seconds is above.", rich_help_panel=_BOUNDS
        ),
    ] = None,
    min_completed: Annotated[
        int | None, typer.Option(min=0, help="Fail when fewer rounds end in a sum.", rich_help_panel=_BOUNDS)
    ] = None,
    min_share: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Fail when a smaller share of rounds ends in a sum.", rich_help_panel=_BOUNDS),
    ] = None,
    max_rss: Annotated[
        float | None,
        typer.Option(min=0, metavar="MB", help="Fail when the coordinator takes more.", rich_help_panel=_BOUNDS),
    ] = None,
    max_unplanned: Annotated[
        int | None,
        typer.Option(min=0, help="Fail when more dropouts have no planned cause.", rich_help_panel=_BOUNDS),
    ] = None,
    noise_within: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="SHARE",
            help="Fail when the noise is further from what was planned; 0.01 is 1 %.",
            rich_help_panel=_BOUNDS,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="New or empty folder for result.json, figures, the study and its logs."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> int:
    from sordino.lab.loadtest.display import LoadDisplay
    from sordino.lab.loadtest.options import LoadOptions
    from sordino.lab.loadtest.run import run_load_test
    from sordino.lab.loadtest.scenario import fields_of, read_scenario

    signal.signal(signal.SIGTERM, _terminate)
    plain = {"clients": clients, "processes": processes, "dim": dim, "bits": bits, "rounds": rounds, "seed": seed}
    plain |= {"drop": drop, "at": at, "deadline": deadline, "resume": resume, "pause": pause, "noise": noise}
    plain["verify_once"] = verify_once
    bounds = {"max_p95": max_p95, "min_completed": min_completed, "min_share": min_share, "max_rss": max_rss}
    bounds |= {"max_unplanned": max_unplanned, "noise_within": noise_within}
    faults = {"stragglers": stragglers, "link": link or None, "storm": storm or None, "crash": crash or None}
    faults |= {"cheats": cheats, "availability": availability}
    fields = ({} if scenario is None else read_scenario(scenario)) | fields_of(
        plain | bounds | faults | {"drop_style": drop_style}, "the command line"
    )
    options = LoadOptions(out=out, **fields)
    options.check()
    options.check_can_end()
    with LoadDisplay(plain=as_json) as display:
        result = run_load_test(options, display)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        _tell(result, out)
    return _judge(result)


def _judge(result: dict[str, Any]) -> int:
    """Told on standard error, not raised: with --json the result is the one object, and holds the sentences too."""
    for sentence in filter(None, (*result["broken"], result["incomplete"])):
        print(f"sordino loadtest: {sentence}.", file=sys.stderr)
    return int(result["exit_code"])


def _tell(result: dict[str, Any], out: Path | None) -> None:
    from rich.console import Console

    from sordino.lab.loadtest.display import WIDTH, final_lines, round_table

    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    if result["rounds"]:
        console.print()
        console.print(round_table(result))
    typer.echo("\n" + "\n".join(final_lines(result)))
    if out is not None:
        figures = "figures (SVG and PNG), " if result["rounds"] else ""
        typer.echo(f"kept                {out}: result.json, {figures}logs, study")


def _terminate(number: int, frame: Any) -> None:
    """Stop as on Ctrl-C, so that every process is stopped too."""
    raise KeyboardInterrupt
