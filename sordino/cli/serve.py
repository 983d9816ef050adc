"""``sordino serve``: run a study's coordinator."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sordino.exit_codes import ExitCode, Failure, listing

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
    if study.is_dir() and not (study / "study.toml").exists() and (study / "host.toml").exists():
        raise Failure(ExitCode.INPUT, f"{study} is a host's folder: sordino join --home {study}")
    configuration = load(study)
    from sordino.logs import configure_logs

    configure_logs()
    from server.coordinator import serve

    why: list[str] = []

    def note(event: Mapping[str, Any]) -> None:
        if event.get("kind") == "attempt_aborted":
            why[:] = [f"round {event.get('round')}, {event.get('phase')}: {event.get('reason')}"]

    if as_json or quiet:

        def tell(event: Mapping[str, Any]) -> None:
            note(event)
            if as_json:
                _print_event(event)

        code = int(serve(configuration, on_event=tell))
        _explain(code, why)
        return code
    from server.journal import read_events
    from sordino.closing_lines import closing_lines
    from sordino.panel import Display, StudyPanel

    panel = StudyPanel()
    with contextlib.suppress(sqlite3.Error):  # the coordinator itself says what is wrong with its journal
        panel.view.apply_all(read_events(configuration.coordinator.state))
    display = Display(panel)
    configure_logs(lowest=logging.WARNING)  # what matters is in the panel, or told as a plain line

    def show(event: Mapping[str, Any]) -> None:
        note(event)
        display.show(event)

    with display:
        code = int(serve(configuration, on_event=show))
    home = study if study.is_dir() else study.parent
    lines = closing_lines(panel.view, home, configuration.coordinator.state)
    if lines:
        typer.echo("\n" + "\n".join(lines))
    _explain(code, why)
    return code


def _explain(code: int, why: list[str]) -> None:
    """One line for an ending that isn't the one hoped for."""
    if code == ExitCode.BUDGET:
        print("sordino serve: budget reached; no further round is run.", file=sys.stderr)
    elif code == ExitCode.STUDY:
        reason = why[0] if why else "a round failed as often as it may"
        print(
            f"sordino serve: the study stopped: {reason}. Start what is missing, or raise [deadlines] in study.toml, "
            "then run the same command again; it goes on there.",
            file=sys.stderr,
        )


def _print_event(event: Mapping[str, Any]) -> None:
    print(json.dumps(event), flush=True)
