"""``sordino experiment``: the papers' curves, and an audit, without a network."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import typer

from runtime.failure import ExitCode, Failure, InputFailure, listing
from runtime.option_values import built
from sordino.cli.options import chosen, options, with_options
from sordino.cli.verbs import Json, JsonAtEnd, answer, counting, verb_group, verb_in
from sordino.lab.experiments.grid import EXPERIMENTS, OF_SOME, GridOptions, play, telling
from sordino.lab.experiments.options import AuditOptions, DmeOptions, audit_settings, dme_settings

app = verb_group("experiment", "Reproduce published experiments with the encoder and the plans that a study uses.")


def _dme(as_json: Json = False, **given: Any) -> int:
    own = built(DmeOptions, chosen(given, DmeOptions))
    settings = dme_settings(own)

    from sordino.lab.experiments.dme import body_of, draw, run, table_lines, write_csv

    rows = run(settings, own.trials, workers=own.workers, progress=counting("encodings"))
    if not any(row["feasible"] for row in rows):
        raise Failure(ExitCode.INFEASIBLE, str(rows[0]["reason"]), rows[0]["suggestion"] or None)
    body = body_of(settings[0], rows, own.trials)
    if own.csv is not None:
        write_csv(rows, own.csv)
    if own.figure is not None:
        draw(body, own.figure)
    written = [f"Written: {file}" for file in (own.csv, own.figure) if file is not None]
    return answer(as_json, body, [*table_lines(body), *written])


verb_in(
    app,
    "dme",
    "experiment dme --clients 100,1000 --trials 80 --workers 2 --csv dme.csv --figure dme.svg",
    "Distributed mean estimation: error of the mean against epsilon, bits and mechanism.\n\nEach participant holds "
    "a vector on the sphere whose radius is the clip; no participant leaves or colludes. Every trial draws new "
    "vectors and a new rotation, encodes for every participant, sums modulo 2^bits and decodes. Beside the "
    "simulated error stand its closed form, that of a central Gaussian with the least noise there is, and that of "
    "a sampler that rounds its deviation up to whole grid steps. The table shows the simulated error, or with "
    "--trials 0 the closed form.\n\nTime: about 0.1 ms a participant and trial "
    "of each setting; the default is two minutes of one core.",
    ExitCode.INFEASIBLE,
    ExitCode.INTERRUPTED,
)(with_options(_dme, options(DmeOptions)))

_AUDIT_HELP: Final = (
    "A lower bound on epsilon, from one run of the whole mechanism.\n\nEvery participant is a canary: a fair coin "
    "decides whether it contributes a vector of its own, of the clip's norm, or nothing (with local-gaussian that "
    "vector or its negative). From the decoded means of all rounds the audit guesses those coins that it is surest of; "
    "how many is fixed before. Many right guesses refute a small epsilon. A second check compares the noise itself "
    "with the plan's.\n\nExit code 43 says that the bound exceeds what the plan proves, or that the noise is not the "
    "plan's. With --noise-divided-by 4 that has to happen: it tests the audit.\n\nTime on one core: 20 to 40 seconds "
    "with --scale small, some minutes with paper."
)


def _audit(as_json: Json = False, **given: Any) -> int:
    own = built(AuditOptions, chosen(given, AuditOptions))
    settings = audit_settings(own)

    from mechanisms.plan import InfeasiblePlan
    from sordino.lab.experiments.audit import UnsuitableSetting, audit, body_of, draw, table_lines

    rows, tell = [], counting("rounds")
    for place, setting in enumerate(settings):

        def progress(done: int, of: int, place: int = place) -> None:
            tell(place * of + done, len(settings) * of)

        try:
            rows.append(audit(setting, progress=progress))
        except InfeasiblePlan as problem:
            raise Failure(ExitCode.INFEASIBLE, problem.reason, problem.suggestion) from None
        except UnsuitableSetting as problem:
            raise InputFailure(f"{setting.mechanism}: {problem}.") from None
    body = body_of(rows)
    if own.figure is not None:
        draw(body, own.figure)
    written = [] if own.figure is None else [f"Written: {own.figure}"]
    answer(as_json, body, [*table_lines(body), *written])
    return int(ExitCode.AUDIT if body["accused"] else ExitCode.OK)


app.command(
    "audit",
    help=_AUDIT_HELP,
    epilog=(
        "Example: [bold]sordino experiment audit --noise-divided-by 1,4 --figure audit.svg[/bold]\n\n"
        "What it shows and what it can't: docs/audit.md.\n\n"
        + listing(ExitCode.OK, ExitCode.INPUT, ExitCode.INFEASIBLE, ExitCode.AUDIT, ExitCode.INTERRUPTED)
    ),
)(with_options(_audit, options(AuditOptions)))

_COMMON: Final = (
    "\n\nEvery run is a whole simulated study, with the real encoder, noise and accounting. Finished runs are kept in "
    "FOLDER/runs.jsonl and not played again: after Ctrl-C the same command continues. FOLDER also takes each table as "
    ".txt, .csv and .md, each figure as .svg, and all of it as outcome.json."
)
_TIMES: Final = "\n\nTime: with --scale small {small}; with --scale paper {paper}."


def _play(name: str, own: GridOptions, as_json: bool) -> int:
    folder = own.output or Path(f"experiment-{name}")
    try:
        outcome, body, files = play(name, own, folder, telling(quiet=as_json))
    except KeyboardInterrupt:
        print(f"\nsordino experiment: stopped. The same command continues from {folder}.", file=sys.stderr)
        raise
    if as_json:
        typer.echo(json.dumps(body))
        return int(ExitCode.OK)
    for note in outcome.notes:
        typer.echo(note)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None  # a file is as wide as its table
    for table in outcome.tables:
        typer.echo("\n" + table.text(width), nl=False)
    typer.echo(f"\nWritten: {files} files in {folder}")
    return int(ExitCode.OK)


def _command(name: str, parts: tuple[str, ...]) -> Callable[..., int]:
    def run(as_json: JsonAtEnd = False, **given: Any) -> int:
        return _play(name, built(GridOptions, chosen(given, GridOptions)), as_json)

    changed: dict[str, Any] = {option: {"hidden": name not in takers} for option, takers in OF_SOME.items()}
    changed["parts"]["help"] = f"Of {', '.join(parts)}."
    return with_options(run, options(GridOptions, output={"show_default": f"experiment-{name}"}, **changed))


for _name, (_wording, (_small, _paper), _parts) in EXPERIMENTS.items():
    verb_in(
        app,
        _name,
        f"experiment {_name} --workers 2 --output {_name}",
        _wording + _COMMON + _TIMES.format(small=_small, paper=_paper),
        ExitCode.INTERRUPTED,
    )(_command(_name, _parts))
