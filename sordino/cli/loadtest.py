"""``sordino loadtest``: real processes, planned dropouts and other faults, checked sums."""

from __future__ import annotations

import json
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.extras import check_extra
from runtime.failure import ExitCode
from runtime.option_values import settled
from runtime.text import say
from sordino.cli.options import chosen, options, with_options
from sordino.cli.verbs import A_STUDY, JsonAtEnd, epilog, option
from sordino.lab.loadtest.options import LoadOptions, read_scenario

HELP = (
    "Load a real coordinator process with many real participants, some of which leave, and check every sum.\n\nEach "
    "participant has its own identity, TLS channel, study document, roster and model, and verifies all signatures "
    "itself; participants share a process and its journal (and with --verify-once what they verified; with --thin they "
    "do only what the coordinator sees). Instead of an update it sends uniform integers that follow from the seed, so "
    "the sum of the survivors is known exactly and compared with the coordinator's. The seed also determines which "
    "participants leave, in which round and at which phase. A round that aborts is counted with its reason and is no "
    "failure of the command; a wrong sum or a broken bound is. Ctrl-C, or a process that dies, ends the load test with "
    "the result so far. All parts run on this machine, in a temporary folder unless --out names one.\n\n"
    "Faults are written name=value,name=value: --stragglers share=0.05,from_s=2,to_s=10; --link "
    "share=0.3,latency_ms=80,mbit_s=2,loss=0.01,resets_per_min=1; --storm round=2,at=between; --cheats share=0.1; "
    "--availability online_s=60,offline_s=20 or trace=FILE. --scenario reads all options from a file. "
    "docs/load_tests.md describes each."
)
EPILOG = epilog("loadtest --clients 200 --dim 100000 --drop 0.1 --max-p95 15 --out load", *A_STUDY, ExitCode.BOUND)


def _run(
    scenario: Annotated[
        Path | None, option("FILE.toml", "Options from a file; those on the command line take precedence.")
    ] = None,
    out: Annotated[
        Path | None, option("DIR", "New or empty folder for result.json, figures, the study and its logs.")
    ] = None,
    as_json: JsonAtEnd = False,
    **given: Any,
) -> int:
    check_extra("server")  # before anything is made or started
    from sordino.lab.loadtest.run import run_load_test
    from sordino.lab.loadtest.study import check_can_end

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that every process is stopped too
    values = ({} if scenario is None else read_scenario(scenario)) | chosen(given, LoadOptions)
    load = settled(lambda: LoadOptions.model_validate(values), lambda load: load, values, LoadOptions)
    load.check()
    check_can_end(load)
    result = run_load_test(load, partial(say, stream=sys.stderr), out)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        _print(result, out)
    for sentence in filter(None, (*result["broken"], result["incomplete"])):  # not raised: the result states them too
        print(f"sordino loadtest: {sentence}.", file=sys.stderr)
    return int(result["exit_code"])


run = with_options(_run, options(LoadOptions))


def _print(result: dict[str, Any], out: Path | None) -> None:
    from rich.console import Console

    from sordino.lab.loadtest.display import WIDTH, cpu_table, final_lines, round_table

    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    if result["rounds"]:
        console.print()
        console.print(round_table(result))
    if result["phase_cpu_s"]:
        console.print()
        console.print(cpu_table(result))
    typer.echo("\n" + "\n".join(final_lines(result)))
    if out is not None:
        figures = "figures (SVG and PNG), " if result["rounds"] else ""
        typer.echo(f"kept                {out}: result.json, {figures}logs, study")
