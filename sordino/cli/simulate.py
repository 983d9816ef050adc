"""``sordino simulate``: a study without a network."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from authority.new_study import Sizes
from learning.task_names import WITHOUT_TORCH, trained_task
from runtime.failure import ExitCode, InputFailure
from runtime.option_values import built, check_folder, settled
from server.study_file import load
from server.study_tables import TaskTable
from sordino.cli.options import chosen, options, with_options
from sordino.cli.study_options import over_files, study_values
from sordino.cli.verbs import JsonAtEnd, argument, epilog
from sordino.lab.simulation.settings import (
    Files,
    SimulatedStudy,
    SimulationOptions,
    SimulationSettings,
    resized,
    simulated_study,
)
from sordino.planning.expected_errors import default_bounds_note
from wire.ending import EXIT_CODES

NAME = "simulate"
HELP = (
    "Run a study without a network, with thousands of participants if you like.\n\nThe tasks, the encoder, the plan "
    "and the accounting are those of a served study; the epsilons are those that it would have spent. Every survivor's "
    "update is clipped, rotated, rounded and noised by itself, with the operating system's randomness (on an "
    "accelerator by a generator that it seeds). Secure aggregation is replaced by its ideal sum, or with --secagg real "
    "run in memory; every output says which. Take a study's folder, DIR, or choose with the options of `sordino init`. "
    "With DIR only --participants, --cohort, "
    "--population, --sampling and --mechanism change what its file says; min_survivors then follows anew.\n\n"
    "--mechanism none averages clipped updates without noise: that is NOT PRIVATE, and says so.\n\n--output FILE takes "
    "one line of JSON a round. The same command continues where it stopped: cohorts, dropouts and batch orders are "
    "those of the seed, noise is fresh. It refuses a file that was begun with other settings.\n\nTime: 1000 "
    "participants of softmax-regression take about 0.1 s a round."
)
EPILOG = epilog(
    "simulate --participants 1000 --bits 18 --drop 0.1 --rounds 20 --output run.jsonl",
    *(ExitCode.INFEASIBLE, ExitCode.STUDY, ExitCode.BUDGET, ExitCode.INTERRUPTED),
)
CHANGES: Final = ("participants", "cohort", "population", "sampling", "mechanism")
"""Options that may change a study's folder."""
NOTHING_KEPT: Final = "Nothing was kept: with --output FILE the same command continues where it stopped."
_NOT_SIMULATED: Final = (
    *("name", "listen", "training_s", "one_machine", "pause_s", "http_listen", "largest_roster"),
    *("coordinator_engine", "gateways", "opening_workers", "ray_address"),
)


def _run(
    context: typer.Context,
    directory: Annotated[Path | None, argument("DIR", "A study's folder, or its study.toml.")] = None,
    as_json: JsonAtEnd = False,
    **given: Any,
) -> int:
    from authority.study_data import fitted
    from learning.own_data import left_out
    from runtime.text import finite, folded
    from sordino.lab.simulation.progress import SimulationProgress, closing
    from sordino.lab.simulation.run import simulate_study
    from sordino.planning.notes import noise_outweighs, unreached
    from sordino.planning.refusals import check_study

    files, own = built(Files, chosen(given, Files)), chosen(given, SimulationOptions)
    data, output = files.data, files.output
    if output is not None:
        check_folder("--output", output)
        if output.suffix.lower() == ".safetensors":
            raise InputFailure(
                f"--output {output} takes lines of JSON, and the model goes beside them as {output.name}.safetensors. "
                f"Use --output {output.with_suffix('.jsonl')}."
            )
    values = study_values(given, Sizes, SimulatedStudy)
    seed = values.get("seed", 1)
    counted = "participants" in values
    if directory is not None:
        study, changed = _from_folder(context, directory, values)
    else:
        if data is not None:
            values = over_files(data, values)
        cohort, participants = values.get("cohort"), values.get("participants", Sizes().participants)
        if cohort is not None and "population" not in values and cohort > participants:
            raise InputFailure(
                f"--cohort {cohort} exceeds --participants {participants}, which cohorts are drawn from. Use at most "
                f"--cohort {participants}, or more participants."
            )
        changed = partial(simulated_study, **({"name": NAME} | values))
        study = fitted(settled(changed, lambda study: study, values, SimulatedStudy, Sizes))
    folder = None if data is None else str(data.absolute())
    make = partial(SimulationSettings, study=study, seed=seed, data=folder, **own)
    settings = settled(make, lambda made: made.study, {}, SimulationOptions)
    trained = trained_task(study.study.task, study.task)
    if settings.device == "cuda" and trained in WITHOUT_TORCH:
        raise InputFailure(
            f"--device cuda needs a task that trains with torch; {trained} computes with numpy: leave it out."
        )
    if settings.private:
        more = None if data is None or counted else f"at least {{}} files in {data}, one of each participant"
        figures = check_study(study, changed, more=more, target=settings.target)
        for note in () if as_json else (*unreached(figures), *noise_outweighs(figures)):
            typer.echo("\n".join(folded(note)) + "\n")
    if folder is not None and not as_json:
        for sentence in left_out(folder, study.places, study.make_task(), trained):
            typer.echo("\n".join(folded(sentence)) + "\n")
    if directory is None and not as_json and (message := default_bounds_note(study.study.task, study.task)):
        typer.echo("\n".join(folded(message)) + "\n")
    with SimulationProgress(quiet=as_json) as progress:
        try:
            result = simulate_study(
                settings,
                output=output,
                checkpoint_every=files.checkpoint_every,
                on_row=progress.row,
                on_start=progress.start,
            )
        except KeyboardInterrupt:
            message = f"The same command continues from {output}." if output is not None else NOTHING_KEPT
            print(f"sordino simulate: stopped {progress.reached}. {message}", file=sys.stderr)
            raise
    if as_json:
        body = {name: getattr(result, name) for name in ("configuration", "rows", "aborted", "summary")}
        typer.echo(json.dumps(finite(body), allow_nan=False))
    else:
        typer.echo()
        for line in closing(result.configuration, result.summary):
            typer.echo(line)
        if output is not None:
            model = "" if result.summary["released"] else ", the model: read it with sordino.load_model"
            typer.echo(f"Written:    {output} and {output.name}.safetensors{model}")
    return int(EXIT_CODES[str(result.summary["outcome"])])


def _from_folder(
    context: typer.Context, directory: Path, values: Mapping[str, Any]
) -> tuple[SimulatedStudy, Callable[..., SimulatedStudy]]:
    """Return a folder's study with `CHANGES`, and a function that makes it with further changes.

    Raises Failure: an option is given that the file decides.
    """
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if option.name in _DECIDED and source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP"):
            raise InputFailure(
                f"{option.opts[0]} can't be combined with {directory}, whose study.toml sets it. Change it there, or "
                "leave out the folder and choose all with options."
            )
    configuration = load(directory)
    places = configuration.study.participants or len(configuration.roster_file().read().roster)
    anew = {name: value for name, value in values.items() if name in CHANGES}
    if anew.keys() & {"participants", "cohort", "sampling"}:
        anew |= {"min_survivors": None, "quorum": None}
    changed = partial(resized, configuration, places, **anew)
    return settled(changed, lambda made: made, {}, SimulatedStudy), changed


_STUDY: Final = options(
    SimulatedStudy,
    TaskTable,
    without=(*_NOT_SIMULATED, "population", "sampling", "mechanism", "seed"),
    max_dropout={"spellings": False},  # --dropout could be taken for the share that leaves here
)
_CHANGED: Final = options(
    Sizes,
    SimulatedStudy,
    only=(*CHANGES, "seed"),
    panel="Simulation",
    participants={"help": "Participants in all.", "show_default": "100, or DIR's"},
    cohort={
        "help": "Participants of a round, drawn from all; by a lottery unless --sampling states another law.",
        "show_default": "all",
    },
    population={"show_default": "participants"},
    seed={"help": "Of cohorts, dropouts, batch orders, rotations, and without DIR of the partition; never of noise."},
)
_DECIDED: Final = {one.name for one in _STUDY}
run = with_options(_run, [*options(Files, SimulationOptions), *_CHANGED, *_STUDY])
