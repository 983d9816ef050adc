"""``sordino init``: make a study that can be served and joined at once."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from authority.new_study import ONE_MACHINE
from authority.study_options import StudyOptions
from learning.data_names import OWN
from runtime.failure import ExitCode, Failure, listing
from runtime.text import counted
from sordino.cli import clip_options as _options
from sordino.cli import task_options as _task
from sordino.cli.study_options import study_options
from sordino.planning.default_bounds import defaults_told

if TYPE_CHECKING:
    from authority.founding import CarriedAuthority

NAME = "init"
HELP = (
    "Make a study: its file, the authority and the signed roster, TLS certificates, and a folder for each "
    "host.\n\nDIR must be new or empty. The privacy plan is made first; when no plan keeps the budget, nothing "
    "is written and the nearest setting that works is named. A host's folder is complete: copy it to the machine "
    "that holds the data. With --enrol further participants join with codes of `sordino authority invite`. When the "
    "study is more than a trial, take DIR/authority away from the coordinator's machine before the first round: its "
    "keys say who takes part."
)
EPILOG = (
    "Example: [bold]sordino init my-study --participants 20 --hosts 4 --epsilon 6 --rounds 30[/bold]\n\n"
    + listing(ExitCode.OK, ExitCode.INPUT, ExitCode.INFEASIBLE)
)
AWAY = (
    "Take {} away from the coordinator's machine: whoever has its keys decides who takes part, and can pretend to be "
    "anybody who joins later."
)
LOTTERY = (
    "Each round: {} of at least {} on the roster, drawn by the authority's seeds; the coordinator knows all draws. "
    "epsilon_released holds only for readers who don't know who was drawn; publishing transcripts ends it."
)
BOUNDED = (
    "The clip is {:.6g}, the bound that the task keeps by itself: no contribution is longer, whatever somebody's data, "
    "and none is cut."
)
_D = StudyOptions()
_STUDY, _DATA, _PRIVACY, _CODING, _NETWORK = "Study", "Data", "Privacy", _options.PANEL, "Network"


def run(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make.", show_default=False)],
    name: Annotated[
        str | None,
        typer.Option(help="Name of the study.", rich_help_panel=_STUDY, show_default="the folder's name"),
    ] = None,
    participants: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Participants made with the study.",
            rich_help_panel=_STUDY,
            show_default=f"{_D.participants}; 0 with --authority",
        ),
    ] = None,
    hosts: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Client processes they are spread over.",
            rich_help_panel=_STUDY,
            show_default=f"{_D.hosts}, or one for each participant where they are fewer",
        ),
    ] = None,
    enrol: Annotated[
        int,
        typer.Option(min=0, help="Places kept for participants who join with a code.", rich_help_panel=_STUDY),
    ] = _D.enrol,
    authority: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder coordinator/ of `sordino authority init`, where the authority is elsewhere: it says who takes "
            "part, and all join with its codes.",
            rich_help_panel=_STUDY,
            show_default="one is made with the study",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of training.", rich_help_panel=_STUDY)] = _D.rounds,
    task: Annotated[str, _task.TASK] = _D.task,
    method: Annotated[str | None, _task.METHOD] = None,
    client_rate: Annotated[float | None, _task.CLIENT_RATE] = None,
    batch_size: Annotated[int | None, _task.BATCH_SIZE] = None,
    local_epochs: Annotated[int | None, _task.LOCAL_EPOCHS] = None,
    task_option: Annotated[list[str] | None, _task.TASK_OPTION] = None,
    server_optimizer: Annotated[str, _task.SERVER_OPTIMIZER] = _D.server_optimizer,
    server_rate: Annotated[float | None, _task.SERVER_RATE] = _D.server_rate,
    server_momentum: Annotated[float, _task.SERVER_MOMENTUM] = _D.server_momentum,
    server_second_momentum: Annotated[float, _task.SERVER_SECOND_MOMENTUM] = _D.server_second_momentum,
    server_adaptivity: Annotated[float, _task.SERVER_ADAPTIVITY] = _D.server_adaptivity,
    dataset: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="One of `sordino data list`, FORMAT:PATH, or own: each participant has a file of her own, and "
            "host.toml says where.",
            rich_help_panel=_DATA,
        ),
    ] = _D.dataset,
    partition: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Who holds which examples: iid, dirichlet (uneven classes), shards (few classes each), natural (one "
            "user of the set each).",
            rich_help_panel=_DATA,
        ),
    ] = _D.partition,
    alpha: Annotated[float, typer.Option(help="Dirichlet only: small is uneven.", rich_help_panel=_DATA)] = _D.alpha,
    shards: Annotated[
        int, typer.Option(min=1, help="Shards only: runs of one class for each.", rich_help_panel=_DATA)
    ] = _D.shards,
    seed: Annotated[int, typer.Option(help="Seed of the partition; public.", rich_help_panel=_DATA)] = _D.seed,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Your own file to evaluate on, .npz or .csv.",
            rich_help_panel=_DATA,
            show_default="the data set's test part, where it has one",
        ),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="Budget of the whole study.", rich_help_panel=_PRIVACY)] = _D.epsilon,
    delta: Annotated[float, typer.Option(help="Chance that the guarantee fails.", rich_help_panel=_PRIVACY)] = _D.delta,
    clip: Annotated[
        float | None,
        typer.Option(
            help="Largest L2 norm of one update.",
            rich_help_panel=_PRIVACY,
            show_default="1; where the task bounds it, that",
        ),
    ] = _D.clip,
    bits: Annotated[
        int, typer.Option(help="Bits of one value on the wire, 1 to 62.", rich_help_panel=_PRIVACY)
    ] = _D.bits,
    max_dropout: Annotated[
        float,
        typer.Option("--max-dropout", "--dropout", help="Share that may leave in a round.", rich_help_panel=_PRIVACY),
    ] = _D.max_dropout,
    adversarial: Annotated[
        float, typer.Option(help="Share assumed to collude.", rich_help_panel=_PRIVACY)
    ] = _D.adversarial,
    adversary: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What the coordinator may do: malicious, or curious, trusted to follow the protocol: it tells "
            "everybody the same, and reads what it can. The hosts' files made here then accept that already: "
            "curious_coordinator = true.",
            rich_help_panel=_PRIVACY,
        ),
    ] = _D.adversary,
    graph: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="On which secrets are shared: complete, harary (or ring), or auto: the ring where it halves the "
            "work.",
            rich_help_panel=_PRIVACY,
        ),
    ] = _D.graph,
    min_survivors: Annotated[
        int | None,
        typer.Option(
            help="Fewest participants in a sum.",
            rich_help_panel=_PRIVACY,
            show_default="what independent dropouts rarely miss",
        ),
    ] = None,
    quorum: Annotated[
        int | None,
        typer.Option(
            help="Fewest that begin a round.",
            rich_help_panel=_PRIVACY,
            show_default="min-survivors",
        ),
    ] = None,
    sampling: Annotated[
        str,
        typer.Option(
            help="none: everybody in each round. lottery: a cohort, drawn by seeds of the authority.",
            rich_help_panel=_PRIVACY,
        ),
    ] = _D.sampling,
    cohort: Annotated[
        int | None,
        typer.Option(
            min=2, help="Lottery only: participants of a round.", rich_help_panel=_PRIVACY, show_default=False
        ),
    ] = None,
    population: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Lottery only: the smallest roster that the plan covers.",
            rich_help_panel=_PRIVACY,
            show_default="participants; needed with --participants 0",
        ),
    ] = None,
    beta: Annotated[
        float,
        typer.Option(help="Level of the conditional rounding.", rich_help_panel=_PRIVACY, show_default="e^-0.5"),
    ] = _D.beta,
    k_stddevs: Annotated[
        float, typer.Option(help="Room before the sum could wrap.", rich_help_panel=_PRIVACY)
    ] = _D.k_stddevs,
    mechanism: Annotated[
        str,
        typer.Option(
            help="Who adds which noise: ddgauss or skellam (participants together), local-gaussian (each for itself), "
            "gaussian (the coordinator, which is trusted).",
            rich_help_panel=_PRIVACY,
        ),
    ] = _D.mechanism,
    rotation: Annotated[
        str, typer.Option(help="auto, hadamard or hadamard-blocks.", rich_help_panel=_CODING)
    ] = _D.rotation,
    clip_by_layer: Annotated[
        bool,
        typer.Option(
            "--clip-by-layer/--clip-flat", help="Clip each array of the model by itself.", rich_help_panel=_CODING
        ),
    ] = _D.clip_by_layer,
    clip_scaling: Annotated[str, _options.CLIP_SCALING] = _D.clip_scaling,
    clip_update: Annotated[str, _options.CLIP_UPDATE] = _D.clip_update,
    clip_quantile: Annotated[float | None, _options.CLIP_QUANTILE] = None,
    clip_rate: Annotated[float | None, _options.CLIP_RATE] = None,
    clip_bit_weight: Annotated[float | None, _options.CLIP_BIT_WEIGHT] = None,
    sketch_rows: Annotated[int, _options.SKETCH_ROWS] = _D.sketch_rows,
    sketch_ratio: Annotated[float | None, _options.SKETCH_RATIO] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the coordinator listens.",
            rich_help_panel=_NETWORK,
            show_default=f"{_D.listen}; with --authority all interfaces, at the port on its card",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name or address by which clients reach it; repeatable. The first is put into host.toml.",
            rich_help_panel=_NETWORK,
            show_default=False,
        ),
    ] = None,
    training_s: Annotated[
        float | None,
        typer.Option(
            "--training-s",
            min=1,
            metavar="S",
            help="Longest wait for local training and the masked vector, seconds: as long as the slowest takes.",
            rich_help_panel=_NETWORK,
            show_default="60",
        ),
    ] = None,
    pause: Annotated[
        float,
        typer.Option(
            "--pause",
            min=0,
            metavar="S",
            help="Seconds between the end of a round and the beginning of the next.",
            rich_help_panel=_STUDY,
        ),
    ] = _D.pause_s,
    http: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the coordinator tells metrics and health over HTTP, to whoever operates it.",
            rich_help_panel=_NETWORK,
            show_default="nowhere",
        ),
    ] = _D.http_listen,
    one_machine: Annotated[
        bool | None,
        typer.Option(
            "--one-machine/--separate-machines",
            help="One machine plays all parts: hosts may hold more participants than are assumed to collude.",
            rich_help_panel=_NETWORK,
            show_default="one-machine; separate-machines with --authority",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    given = dict(locals())  # the options as they came; what follows changes some
    from authority.founding import CarriedAuthority
    from authority.new_study import make_local_study
    from learning.make_task import make_task
    from mechanisms.statement import VECTOR_MECHANISMS
    from runtime.text import terminal_width
    from sordino.planning.expected_errors import expected_errors, expected_lines
    from sordino.planning.notes import notes
    from sordino.planning.study_checks import check_study
    from sordino.planning.text import figures_of, plan_lines

    carried = None
    if authority is not None:
        carried = CarriedAuthority.read(authority)
        name, listen, participants = _as_carried(carried, name, listen, participants)
        one_machine = bool(one_machine)
    if participants is None:
        participants = _D.participants
    listen = listen or _D.listen
    one_machine = _D.one_machine if one_machine is None else one_machine
    if hosts is None or (participants == 0 and enrol):
        hosts = min(_D.hosts, participants)
    if participants + enrol < 2:
        raise Failure(
            ExitCode.INPUT,
            f"--participants {participants} with --enrol {enrol} are too few: a sum of one hides nothing. "
            "Use 2 or more.",
        )
    options = study_options(
        given,
        mechanisms=VECTOR_MECHANISMS,
        samplings=("none", "lottery"),
        name=name if name is not None else directory.resolve().name,
        authority=carried,
        participants=participants,
        hosts=hosts,
        listen=listen,
        names=tuple(host or ()),
        training_s=training_s,
        pause_s=pause,
        http_listen=http,
        one_machine=one_machine,
    )
    check_study(options)
    study = make_local_study(directory, options)
    figures = figures_of(study.plan)
    expected = expected_errors(study.plan, study.options.task, study.options.task_options)
    if as_json:
        body = {
            "study": study.options.name,
            "directory": str(study.directory.resolve()),
            "address": study.options.client_address,
            "enrolment": study.options.client_enrolment,
            "authority": None if carried is not None else str((study.directory / "authority").resolve()),
            "hosts": [str(path.resolve()) for path in study.hosts],
            "plan": figures,
            "expected": expected,
            "data": [str(path) for path in study.data_files],
        }
        typer.echo(json.dumps(body))
        return int(ExitCode.OK)
    typer.echo(
        f"Made the study {study.options.name} in {study.directory}: "
        f"{counted(participants, 'participant')} on {counted(hosts, 'host')}"
        + (f", and {counted(enrol, 'place')} for those who enrol" if enrol else "")
        + ".\n"
    )
    width = terminal_width()
    for line in plan_lines(figures, width - 2):
        typer.echo(f"  {line}")
    if expected is not None:
        typer.echo("")
        for line in expected_lines(expected, width):
            typer.echo(line)
    bound = make_task(study.options.task, dict(study.options.task_options)).l2_sensitivity
    if bound is not None and bound == study.options.clip:
        typer.echo("\n" + textwrap.fill(BOUNDED.format(bound), width))
    if study.options.smallest_roster is not None:
        promise = LOTTERY.format(study.options.in_a_round, study.options.smallest_roster)
        typer.echo("\n" + textwrap.fill(promise, width))
    warned = [f"Warning: {one}" for one in (expected["warnings"] if expected is not None else ())]
    bounds = [told] if (told := defaults_told(study.options.task, study.options.task_options)) else []
    for note in [*notes(figures, max_dropout, hosts_made=bool(study.hosts)), *bounds, *warned]:
        typer.echo("\n" + textwrap.fill(note, width))
    if study.data_files:
        first, last = study.data_files[0], study.data_files[-1]
        typer.echo("")
        for line in _where_files_go(first, last, len(study.data_files), width):
            typer.echo(line)
    typer.echo(f"\nServe it:  sordino serve {study.directory}")
    if study.hosts:
        typer.echo(f"Join it:   sordino join --home {study.hosts[0]}")
    if hosts > 1:
        typer.echo(f"           and so on to {study.hosts[-1].name}, each in a terminal of its own")
    if carried is not None:
        typer.echo("Invite:    sordino authority invite, where the authority is; and sordino authority run there")
        return int(ExitCode.OK)
    if enrol:
        typer.echo(f"Invite:    sordino authority invite {study.directory / 'authority'}")
        typer.echo(f"Let in:    sordino authority run {study.directory / 'authority'}")
        if study.options.dataset == OWN:
            typer.echo(f"They join: sordino join {study.options.client_enrolment} --code CODE --data FILE")
    typer.echo("\n" + textwrap.fill(AWAY.format(study.directory / "authority"), width, break_on_hyphens=False))
    if one_machine:
        typer.echo("\n" + textwrap.fill(ONE_MACHINE, width))
    return int(ExitCode.OK)


def _where_files_go(first: Path, last: Path, count: int, width: int) -> list[str]:
    """Where the participants' own files are expected, said once for all of them."""
    told = f"Before a host joins, put the file of each of its participants there, as .csv or .npz: {first}.csv"
    if count > 1:
        told += f", and so on to {last.parent.parent.name}/data/{last.name}.csv"
    told += (
        ". A .csv has a line of column names, then numbers; all files have the same columns. Files that lie elsewhere "
        "are named in host.toml."
    )
    return textwrap.wrap(told, width, break_on_hyphens=False, break_long_words=False)


def _as_carried(
    carried: CarriedAuthority, name: str | None, listen: str | None, participants: int | None
) -> tuple[str, str, int]:
    """Name, address and number of participants of a study whose authority is elsewhere.

    Raises:
        Failure: they are chosen otherwise than its card says.
    """
    from runtime.address import split_address

    if name not in (None, carried.card.study):
        raise Failure(ExitCode.INPUT, f"--name {name}: the authority is that of {carried.card.study}. Leave it out.")
    if participants:
        raise Failure(
            ExitCode.INPUT,
            f"--participants {participants}: only the authority puts somebody on the roster, and it is elsewhere. Keep "
            f"places with --enrol {participants}, and invite them there.",
        )
    return carried.card.study, listen or f"0.0.0.0:{split_address(carried.card.address)[1]}", 0
