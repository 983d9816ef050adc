"""``sordino serve``: run a study's coordinator."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runtime.failure import ExitCode
from runtime.processes import end_with_parent
from runtime.service_notify import Notifier
from runtime.text import json_line
from server.study_file import StudyConfiguration
from sordino.cli.options import chosen, options, with_options
from sordino.cli.verbs import A_STUDY, AsService, EndWith, argument, epilog, flag

if TYPE_CHECKING:
    from server.events import Event

HELP = (
    "Run the coordinator of a study until its last round, or until the privacy budget is reached.\n\nOn a "
    "terminal a panel shows the phase and what it waits for, participants, dropouts with their reason, accuracy "
    "and both epsilons; elsewhere each important event is one plain line. After Ctrl-C, or "
    "kill -9, the same command continues where the journal ends: in the midst of an attempt, if its participants still "
    "run. "
    "SORDINO_TABLE__KEY in the environment overrides a key of study.toml: SORDINO_COORDINATOR__LISTEN=0.0.0.0:8443."
)
_WARNINGS = ("attempt_aborted", "participant_dropped", "participant_excluded", "participant_set_aside")
EPILOG = epilog("serve my-study", *A_STUDY, ExitCode.BUDGET, ExitCode.LEDGER)


def _run(
    study: Annotated[Path, argument("DIR|study.toml", "The study's folder or file.")],
    quiet: Annotated[bool, flag("--quiet", "Print no progress.")] = False,
    as_json: Annotated[bool, flag("--json", "Print each event as a line of JSON, as it happens.")] = False,
    service: AsService = False,
    page_names: Annotated[
        bool, flag("--page-names", "Show hosts, participants' numbers and transcripts on the page, not counts alone.")
    ] = False,
    end_with: EndWith = 0,
    **given: Any,
) -> int:
    if end_with:
        end_with_parent(end_with)
    from runtime.logs import configure_logs

    configure_logs()
    from server.coordinator import serve
    from server.events import to_json
    from server.journal import read_events
    from server.study_view import StudyView
    from sordino.api.coordinator import page_for, study_to_serve
    from sordino.reporting.study_text import PlainLines, closing_lines, why_stopped

    configuration = study_to_serve(study)
    configuration = configuration.model_copy(
        update={"engine": configuration.engine.changed(chosen(given, StudyConfiguration))}
    )
    notifier = Notifier() if service else Notifier({})
    table = configuration.coordinator
    before = read_events(table.state) if table.http_listen or not (as_json or quiet) else []
    page = page_for(configuration, before, names=page_names)
    if as_json or quiet:
        import structlog  # after `runtime.logs`, which loads it without rich

        before.clear()  # of a long study it is much
        view = StudyView(history=False)
        told, log = PlainLines(view), structlog.get_logger()

        def show(event: Event) -> None:
            view.apply(event)
            for line in told.of(event, serious=True):
                log.log(logging.INFO if event.kind == "study_finished" else logging.WARNING, line)
            if as_json:
                level = "warning" if event.kind in _WARNINGS else "info"
                print(json_line(event.kind, to_json(event), level=level, at=event.at), flush=True)

        code = int(serve(configuration, on_event=show, service=notifier, page=page))
    else:
        from sordino.reporting.panel import Display, StudyPanel

        panel = StudyPanel()
        view = panel.view.apply_all(before)
        before.clear()
        display = Display(panel, also=notifier.status)
        # What matters is in the panel, or is a plain line; warnings stand between those as plain lines too.
        configure_logs(lowest=logging.WARNING, plain=True)
        with display:
            code = int(serve(configuration, on_event=display.show, service=notifier, page=page))
        lines = closing_lines(view, study if study.is_dir() else study.parent, table.state)
        if lines:
            typer.echo("\n" + "\n".join(lines))
    # One line for an ending that isn't the one hoped for.
    if code == ExitCode.BUDGET:
        print("sordino serve: budget reached; no further round is run.", file=sys.stderr)
    elif code == ExitCode.STUDY:
        print(f"sordino serve: {why_stopped(view)}", file=sys.stderr)
    return code


_ENGINE = ("coordinator_engine", "gateways", "opening_workers", "ray_address")
run = with_options(_run, options(StudyConfiguration, only=_ENGINE, panel="Processes"))
