"""``sordino serve``: run a study's coordinator."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sordino.exit_codes import ExitCode, listing

NAME = "serve"
HELP = (
    "Run the coordinator of a study until its last round, or until the privacy budget is reached.\n\nOn a "
    "terminal a panel shows the phase and what it waits for, participants, dropouts with their reason, accuracy "
    "and both epsilons; elsewhere each thing that matters is one plain line. Ctrl-C stops cleanly; the same "
    "command goes on where the journal ends. SORDINO_TABLE__KEY in the environment overrides a key of "
    "study.toml, such as SORDINO_COORDINATOR__LISTEN=0.0.0.0:8443."
)
EPILOG = "Example: [bold]sordino serve my-study[/bold]\n\n" + listing(
    ExitCode.OK,
    ExitCode.INPUT,
    ExitCode.INFEASIBLE,
    ExitCode.NETWORK,
    ExitCode.STUDY,
    ExitCode.BUDGET,
    ExitCode.INTERRUPTED,
)


def run(
    study: Annotated[
        Path, typer.Argument(metavar="DIR|study.toml", help="The study's folder or file.", show_default=False)
    ],
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing while it runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print each event as a line of JSON, as it happens.")] = False,
    end_with: Annotated[
        int, typer.Option("--end-with", hidden=True, help="End when this process, the parent, has ended.")
    ] = 0,
) -> int:
    from server.configuration import load
    from sordino.processes import end_with_parent

    if end_with:
        end_with_parent(end_with)
    configuration = load(study)
    from sordino.logs import configure_logs

    configure_logs()
    from server.coordinator import serve

    if as_json or quiet:
        return int(serve(configuration, on_event=_print_event if as_json else None))
    from sordino.panel import Display, StudyPanel

    display = Display(StudyPanel())
    configure_logs(lowest=logging.WARNING)  # what matters is in the panel, or told as a plain line
    with display:
        code = int(serve(configuration, on_event=display.show))
    if code == ExitCode.BUDGET:
        print("sordino serve: budget reached; no further round is run.", file=sys.stderr)
    return code


def _print_event(event: Mapping[str, Any]) -> None:
    print(json.dumps(event), flush=True)
