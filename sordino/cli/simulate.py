"""``sordino simulate``: a study without a network."""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from authority.study_options import StudyOptions
from learning.task_names import WITHOUT_TORCH, trained_task
from runtime.failure import ExitCode, Failure, listing
from sordino.cli import init
from sordino.cli.study_options import study_options
from sordino.planning.default_bounds import defaults_told

if TYPE_CHECKING:
    from sordino.lab.simulation.settings import SimulationSettings

NAME = "simulate"
HELP = (
    "Run a study without a network, with thousands of participants if you like.\n\nThe tasks, the encoder, the plan "
    "and the accounting are those of a served study; so are the epsilons, what it would have spent. Every survivor's "
    "update is clipped, rotated, rounded and noised by itself, with the operating system's randomness. Secure "
    "aggregation is replaced by its ideal sum, or with --secagg real run in memory; every output says which. Take a "
    "study's folder, DIR, or choose with the options of `sordino init`. With DIR only --participants, --cohort, "
    "--population, --sampling and --mechanism change what its file says; min_survivors then follows anew.\n\n"
    "--mechanism none averages clipped updates without noise: that is NOT PRIVATE, and says so.\n\n--output FILE takes "
    "one line of JSON a round. The same command goes on where it stopped: cohorts, dropouts and batch orders are those "
    "of the seed, noise is fresh. It refuses a file that was begun with other settings.\n\nTime: 1000 participants of "
    "softmax-regression take about 0.1 s a round."
)
EPILOG = (
    "Example: [bold]sordino simulate --participants 1000 --bits 18 --drop 0.1 --rounds 20 --output run.jsonl[/bold]\n\n"
    + listing(
        ExitCode.OK,
        ExitCode.INPUT,
        ExitCode.INFEASIBLE,
        ExitCode.STUDY,
        ExitCode.BUDGET,
        ExitCode.INTERRUPTED,
    )
)
_PANEL: Final = "Simulation"
NOTHING_KEPT: Final = "Nothing was kept: with --output FILE the same command goes on where it stopped."
# Options of init for a network, an authority or files; and those that mean something else here.
NOT_SHARED: Final = frozenset(
    {"directory", "name", "hosts", "enrol", "authority", "listen", "host", "training_s", "one_machine", "as_json"}
    | {"pause", "http"}
    | {"participants", "sampling", "cohort", "population", "mechanism", "seed"}
)
CHANGES: Final = ("participants", "cohort", "population", "sampling", "mechanism")
"""What may be chosen anew with a study's folder."""


def _run(
    context: typer.Context,
    directory: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="A study's folder, or its study.toml.", show_default=False)
    ] = None,
    participants: Annotated[
        int | None,
        typer.Option(min=2, help="Participants in all.", rich_help_panel=_PANEL, show_default="100, or DIR's"),
    ] = None,
    cohort: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Participants of a round, drawn from all; by a lottery if --sampling says nothing else.",
            rich_help_panel=_PANEL,
            show_default="everybody",
        ),
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How a round's are drawn: none, lottery; poisson or fixed, which are for comparison only.",
            rich_help_panel=_PANEL,
            show_default="none, with --cohort lottery",
        ),
    ] = None,
    population: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="The smallest roster that the plan covers, where a round's are drawn.",
            rich_help_panel=_PANEL,
            show_default="participants",
        ),
    ] = None,
    mechanism: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="ddgauss, skellam, local-gaussian, gaussian; or none: no noise, NOT PRIVATE.",
            rich_help_panel=_PANEL,
            show_default="ddgauss, or DIR's",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where a file of each participant lies, .csv or .npz: data of their own, in place of --dataset.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Whose epsilon is planned for: coordinator, released, or conditional, for comparison only.",
            rich_help_panel=_PANEL,
        ),
    ] = "coordinator",
    drop: Annotated[
        float, typer.Option(help="Share of a round's participants that leave it.", rich_help_panel=_PANEL)
    ] = 0.0,
    drop_law: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="independent: each with that chance. exact: that share, to whole participants.",
            rich_help_panel=_PANEL,
        ),
    ] = "independent",
    secagg: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="ideal: the sum it stands for. real: its keys, shares and masks, in memory; slow for many.",
            rich_help_panel=_PANEL,
        ),
    ] = "ideal",
    seed: Annotated[
        int,
        typer.Option(
            min=0,
            help="Of cohorts, dropouts, batch orders and rotations, and without DIR of the partition; never of noise.",
            rich_help_panel=_PANEL,
        ),
    ] = 1,
    evaluate_every: Annotated[
        int, typer.Option(min=1, help="Rounds from one evaluation to the next.", rich_help_panel=_PANEL)
    ] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a line of JSON a round, and a checkpoint, FILE.npz, to go on from.",
            rich_help_panel=_PANEL,
            show_default="no file",
        ),
    ] = None,
    checkpoint_every: Annotated[
        int, typer.Option(min=1, help="Rounds from one checkpoint to the next.", rich_help_panel=_PANEL)
    ] = 10,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that train and encode.", rich_help_panel=_PANEL)
    ] = 1,
    engine: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="local: processes of this machine. ray: workers of Ray, also on the cluster that RAY_ADDRESS names.",
            rich_help_panel=_PANEL,
        ),
    ] = "local",
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Of tasks that train with torch: cpu, cuda or auto.", rich_help_panel=_PANEL
        ),
    ] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    **shared: Any,
) -> int:
    from runtime.text import terminal_width
    from sordino.lab.simulation.progress import SimulationProgress, closing
    from sordino.lab.simulation.record import finite
    from sordino.lab.simulation.run import simulate_study
    from sordino.lab.simulation.settings import SimulationError
    from sordino.planning.notes import unreached
    from sordino.planning.options import check_folder
    from sordino.planning.study_checks import check_study

    changed = {
        "participants": participants,
        "cohort": cohort,
        "population": population,
        "sampling": sampling or ("lottery" if cohort is not None else None),
        "mechanism": mechanism,
    }
    if output is not None:
        check_folder("--output", output)
        if output.suffix.lower() == ".npz":
            raise Failure(
                ExitCode.INPUT,
                f"--output {output} takes lines of JSON, and the model goes beside them as {output.name}.npz. Use "
                f"--output {output.with_suffix('.jsonl')}.",
            )
    if data is not None and directory is None:
        shared, changed = _over_files(data, shared, changed)
    study = _from_folder(context, directory, changed) if directory is not None else _from_options(shared, changed, seed)
    if cohort is not None and population is None and cohort > study.places:
        raise Failure(
            ExitCode.INPUT,
            f"--cohort {cohort} exceeds --participants {study.places}, of whom a round's are drawn. Use at most "
            f"--cohort {study.places}, or more participants.",
        )
    try:
        settings = _settings(
            study,
            target=target,
            seed=seed,
            drop=drop,
            drop_law=drop_law,
            secagg=secagg,
            evaluate_every=evaluate_every,
            workers=workers,
            engine=engine,
            device=device,
            data=None if data is None else str(data.absolute()),
        )
    except SimulationError as error:
        raise Failure(ExitCode.INPUT, _in_options(str(error))) from None
    trained = trained_task(study.task, study.task_options)
    if device == "cuda" and trained in WITHOUT_TORCH:
        raise Failure(
            ExitCode.INPUT,
            f"--device cuda needs a task that trains with torch, and {trained} computes with numpy; leave it out.",
        )
    if settings.private and (directory is None or any(value is not None for value in changed.values())):
        try:
            figures = check_study(replace(settings.study, hosts=1), target=target)
        except Failure as refused:
            raise refused if data is None or participants is not None else _in_files(refused, data) from None
        for note in () if as_json else unreached(figures):
            typer.echo(textwrap.fill(note, terminal_width()) + "\n")
    if directory is None and not as_json and (told := defaults_told(study.task, study.task_options)):
        typer.echo(textwrap.fill(told, terminal_width(), break_on_hyphens=False) + "\n")
    with SimulationProgress(quiet=as_json) as progress:
        try:
            result = simulate_study(
                settings,
                output=output,
                checkpoint_every=checkpoint_every,
                on_row=progress.row,
                on_start=progress.start,
            )
        except KeyboardInterrupt:
            told = f"The same command goes on from {output}." if output is not None else NOTHING_KEPT
            print(f"sordino simulate: stopped {progress.reached}. {told}", file=sys.stderr)
            raise
    if as_json:
        body = {
            "configuration": result.configuration,
            "rows": result.rows,
            "aborted": result.aborted,
            "summary": result.summary,
        }
        typer.echo(json.dumps(finite(body), allow_nan=False))
    else:
        typer.echo()
        for line in closing(result.configuration, result.summary):
            typer.echo(line)
        if output is not None:
            model = "" if result.summary["released"] else ", the model: read it with sordino.load_model"
            typer.echo(f"Written:    {output} and {output.name}.npz{model}")
    return int(_ENDINGS[str(result.summary["outcome"])])


_ENDINGS: Final = {
    "rounds done": ExitCode.OK,
    "budget reached": ExitCode.BUDGET,
    "round aborted": ExitCode.STUDY,
}


def _settings(study: StudyOptions, **others: Any) -> SimulationSettings:
    from sordino.lab.simulation.settings import SimulationSettings

    return SimulationSettings(study=study, **others)


def _over_files(
    data: Path, shared: Mapping[str, Any], changed: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of a simulation over files of the participants' own: as many participants as files, if nobody says.

    Raises:
        Failure: a data set is named as well.
        learning.datasets.DatasetError: there are no files.
    """
    from learning.data_names import OWN
    from sordino.lab.simulation.own_files import own_files

    if shared["dataset"] not in (StudyOptions.dataset, OWN):
        raise Failure(ExitCode.INPUT, f"--data {data} holds the participants' own files: leave --dataset out.")
    participants = changed["participants"] or len(own_files(data))
    return {**shared, "dataset": OWN}, {**changed, "participants": participants}


def _in_files(refused: Failure, data: Path) -> Failure:
    """What is to be changed, where the number of participants is that of the files."""
    files = f"at least \\1 files in {data}, one of each participant"
    suggestion = re.sub(r"--participants (\d+)", files, refused.suggestion or "") or None
    return type(refused)(refused.code, refused.message, suggestion)


def _from_options(shared: Mapping[str, Any], changed: Mapping[str, Any], seed: int) -> StudyOptions:
    from sordino.lab.simulation.settings import MECHANISMS, SAMPLINGS

    own = {name: value for name, value in changed.items() if value is not None}
    defaults = {"mechanism": StudyOptions.mechanism, "sampling": StudyOptions.sampling}
    given = {**shared, **defaults, **own, "seed": seed}
    return study_options(given, mechanisms=MECHANISMS, samplings=SAMPLINGS, name=NAME)


def _from_folder(context: typer.Context, directory: Path, changed: Mapping[str, Any]) -> StudyOptions:
    """What the study's file says, but for what is chosen anew.

    Raises:
        Failure: an option is given that the file decides.
    """
    from server.roster_file import RosterFile
    from server.study_file import load
    from sordino.lab.simulation.settings import study_of

    for option in context.command.params:
        name = option.name or ""
        source = context.get_parameter_source(name)
        if name in SHARED and source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP"):
            raise Failure(
                ExitCode.INPUT,
                f"{option.opts[0]} doesn't go with {directory}: its study.toml says it. Change it there, or leave out "
                "the folder and choose all with options.",
            )
    configuration = load(directory)
    size = configuration.study.participants or len(RosterFile.of(configuration).read().roster)
    study = study_of(configuration, size)
    anew = {name: value for name, value in changed.items() if value is not None}
    if {"participants", "cohort", "sampling"} & set(anew):
        anew |= {"min_survivors": None, "quorum": None}
    return replace(study, **anew)


def _in_options(message: str) -> str:
    """A setting's complaint in the words of the command line."""
    for name in ("drop_law", "evaluate_every", "drop", "secagg", "engine", "device", "target", "workers", "data"):
        if message.startswith(f"{name} "):
            return "--" + name.replace("_", "-") + message[len(name) :]
    return message


def _signature() -> inspect.Signature:
    """The options above, then those of `sordino init` that say what a study is: added there, they are here, too."""
    own = [one for one in inspect.signature(_run, eval_str=True).parameters.values() if one.name != "shared"]
    made = inspect.signature(init.run, eval_str=True).parameters.values()
    both = own + [_as_here(one) for one in made if one.name not in NOT_SHARED]
    return inspect.Signature([one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in both], return_annotation=int)


def _as_here(option: inspect.Parameter) -> inspect.Parameter:
    """An option of `sordino init`, whose --dropout could be taken for the share that leaves here."""
    if option.name != "max_dropout":
        return option
    share = typer.Option("--max-dropout", help="Share that the plan allows to leave.", rich_help_panel="Privacy")
    return option.replace(annotation=Annotated[float, share])


def run(**given: Any) -> int:
    """See ``HELP``."""
    return _run(**given)


run.__signature__ = _signature()  # type: ignore[attr-defined]  # what typer reads
run.__annotations__ = {one.name: one.annotation for one in run.__signature__.parameters.values()}  # type: ignore[attr-defined]
SHARED: Final = frozenset(inspect.signature(run).parameters) - frozenset(inspect.signature(_run).parameters)
