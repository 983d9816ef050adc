"""``sordino report``: write a study's report again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sordino.exit_codes import ExitCode, listing

NAME = "report"
HELP = (
    "Write a study's report.html from what its coordinator recorded.\n\nIt shows accuracy, the privacy spent, "
    "dropouts, phase times, and the plan in plain words. The page is one file, needs no network, and can be "
    "printed. It may be written while the study runs."
)
EPILOG = "Example: [bold]sordino report my-study[/bold]\n\n" + listing(ExitCode.OK, ExitCode.INPUT)


def run(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The study's folder, or its study.toml.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Where to write.", show_default="DIR/report.html"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    from sordino.report import write_report

    path, view = write_report(directory, output)
    if as_json:
        body = {
            "report": str(path.resolve()),
            "rounds": len(view.rounds),
            "accuracy": view.accuracy,
            "epsilon_coordinator": view.epsilon_coordinator,
            "epsilon_released": view.epsilon_released,
            "delta": view.delta,
        }
        typer.echo(json.dumps(body))
    else:
        typer.echo(f"Wrote {path} ({len(view.rounds)} of {view.planned_rounds} rounds).")
    return int(ExitCode.OK)
