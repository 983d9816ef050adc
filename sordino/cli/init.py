"""``sordino init``: make a study that can be served and joined at once."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli import clip_options as _options
from sordino.exit_codes import ExitCode, Failure, listing
from sordino.local_study import ONE_MACHINE, StudyOptions

if TYPE_CHECKING:
    from sordino.carried_authority import CarriedAuthority

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
        int, typer.Option(min=0, help="Client processes they are spread over.", rich_help_panel=_STUDY)
    ] = _D.hosts,
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
    task: Annotated[
        str, typer.Option(help="softmax-regression, mlp, or cnn (needs torch).", rich_help_panel=_STUDY)
    ] = _D.task,
    client_rate: Annotated[float, typer.Option(help="Step size of local training.", rich_help_panel=_STUDY)] = 0.5,
    batch_size: Annotated[int, typer.Option(help="Examples in one step.", rich_help_panel=_STUDY)] = 20,
    local_epochs: Annotated[
        int, typer.Option(help="Passes over one's own data in a round.", rich_help_panel=_STUDY)
    ] = 3,
    server_rate: Annotated[
        float, typer.Option(help="Step along the mean update.", rich_help_panel=_STUDY)
    ] = _D.server_rate,
    server_momentum: Annotated[
        float, typer.Option(help="Momentum of the coordinator; 0 is plain averaging.", rich_help_panel=_STUDY)
    ] = _D.server_momentum,
    dataset: Annotated[
        str, typer.Option(help="fashion-mnist-subset or fashion-mnist.", rich_help_panel=_DATA)
    ] = _D.dataset,
    partition: Annotated[
        str, typer.Option(help="dirichlet (uneven classes) or iid.", rich_help_panel=_DATA)
    ] = _D.partition,
    alpha: Annotated[float, typer.Option(help="Dirichlet only: small is uneven.", rich_help_panel=_DATA)] = _D.alpha,
    seed: Annotated[int, typer.Option(help="Seed of the partition; public.", rich_help_panel=_DATA)] = _D.seed,
    epsilon: Annotated[float, typer.Option(help="Budget of the whole study.", rich_help_panel=_PRIVACY)] = _D.epsilon,
    delta: Annotated[float, typer.Option(help="Chance that the guarantee fails.", rich_help_panel=_PRIVACY)] = _D.delta,
    clip: Annotated[float, typer.Option(help="Largest L2 norm of one update.", rich_help_panel=_PRIVACY)] = _D.clip,
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
    from mechanisms.refusals import InfeasiblePlan
    from secagg.parameters import GRAPHS
    from secagg.sharing import CURIOUS, MALICIOUS, SEMI_MALICIOUS
    from sordino.carried_authority import CarriedAuthority
    from sordino.local_study import check_places, make_local_study, plan_for
    from sordino.plan_checks import notes
    from sordino.plan_options import ROTATIONS, SCALINGS, check_adapting, check_ranges, check_sketch, graph_name, one_of
    from sordino.plan_refusals import check_aborts, check_counts, in_options
    from sordino.plan_text import figures_of, plan_lines, terminal_width

    if mechanism == "binomial":
        raise Failure(ExitCode.INPUT, "--mechanism binomial can be planned, not served. Use ddgauss or skellam.")
    one_of("--mechanism", mechanism, ("ddgauss", "skellam", "gaussian", "local-gaussian"))
    carried = None
    if authority is not None:
        carried = CarriedAuthority.read(authority)
        name, listen, participants = _as_carried(carried, name, listen, participants)
        one_machine = bool(one_machine)
    if participants is None:
        participants = _D.participants
    listen = listen or _D.listen
    one_machine = _D.one_machine if one_machine is None else one_machine
    if participants == 0 and enrol:
        hosts = 0
    one_of("--sampling", sampling, ("none", "lottery"))
    if participants + enrol < 2:
        raise Failure(
            ExitCode.INPUT,
            f"--participants {participants} with --enrol {enrol} are too few: a sum of one hides nothing. "
            "Use 2 or more.",
        )
    one_of("--rotation", rotation, ("auto", *ROTATIONS))
    if adversary == SEMI_MALICIOUS:
        raise Failure(
            ExitCode.INPUT,
            "--adversary semi-malicious is for comparison only (sordino plan, graph, bench): a study is served under "
            "malicious or curious.",
        )
    one_of("--adversary", adversary, (MALICIOUS, CURIOUS))
    graph = graph_name(graph, ("auto", *GRAPHS))
    one_of("--clip-scaling", clip_scaling, SCALINGS)
    check_adapting(clip_update, clip_quantile, clip_rate, clip_bit_weight)
    check_sketch(sketch_rows, sketch_ratio)
    if sketch_rows and clip_by_layer:
        raise Failure(ExitCode.INPUT, "a sketch mixes the layers: use either --clip-by-layer or --sketch-rows.")
    check_ranges(
        epsilon=epsilon,
        delta=delta,
        clip=clip,
        bits=bits,
        max_dropout=max_dropout,
        adversarial=adversarial,
        beta=beta,
        k_stddevs=k_stddevs,
    )
    options = StudyOptions(
        name=name if name is not None else directory.resolve().name,
        rounds=rounds,
        enrol=enrol,
        authority=carried,
        sampling=sampling,
        cohort=cohort,
        population=population,
        task=task,
        task_options={"client_rate": client_rate, "batch_size": batch_size, "local_epochs": local_epochs},
        dataset=dataset,
        partition=partition,
        alpha=alpha,
        seed=seed,
        participants=participants,
        hosts=hosts,
        epsilon=epsilon,
        delta=delta,
        clip=clip,
        bits=bits,
        max_dropout=max_dropout,
        adversarial=adversarial,
        adversary=adversary,
        graph=graph,
        min_survivors=min_survivors,
        quorum=quorum,
        beta=beta,
        k_stddevs=k_stddevs,
        mechanism=mechanism,
        rotation=rotation,
        clip_by_layer=clip_by_layer,
        clip_scaling=clip_scaling,
        clip_update=clip_update,
        clip_quantile=_D.clip_quantile if clip_quantile is None else clip_quantile,
        clip_rate=_D.clip_rate if clip_rate is None else clip_rate,
        clip_bit_weight=_D.clip_bit_weight if clip_bit_weight is None else clip_bit_weight,
        sketch_rows=sketch_rows,
        sketch_ratio=_D.sketch_ratio if sketch_ratio is None else sketch_ratio,
        server_rate=server_rate,
        server_momentum=server_momentum,
        listen=listen,
        names=tuple(host or ()),
        one_machine=one_machine,
    )
    check_places(options)
    # What a plan calls clients are the participants of one round.
    counted, option = "participants", "--participants"
    if sampling == "lottery":
        counted, option = "cohort", "--cohort"
    elif enrol:
        option = "--participants and --enrol, together"
    chosen = {
        "clients": options.in_a_round,
        "sampling": sampling,
        "population": options.smallest_roster,
        "rounds": rounds,
        "bits": bits,
        "max_dropout": max_dropout,
        "adversarial": adversarial,
        "min_survivors": min_survivors,
        "quorum": quorum,
    }

    def again(changed: dict[str, Any]) -> dict[str, Any]:
        renamed = {counted if name == "clients" else name: value for name, value in changed.items()}
        if counted == "participants" and counted in renamed:
            renamed[counted] = max(renamed[counted] - enrol, 0)
        return figures_of(plan_for(dataclasses.replace(options, **renamed)))

    check_counts(chosen, again, option)
    try:
        check_aborts(again({}), max_dropout, again)
    except InfeasiblePlan as problem:
        raise in_options(problem, chosen, again) from None
    study = make_local_study(directory, options)
    figures = figures_of(study.plan)
    if as_json:
        body = {
            "study": study.options.name,
            "directory": str(study.directory.resolve()),
            "address": study.options.client_address,
            "enrolment": study.options.client_enrolment,
            "authority": None if carried is not None else str((study.directory / "authority").resolve()),
            "hosts": [str(path.resolve()) for path in study.hosts],
            "plan": figures,
        }
        typer.echo(json.dumps(body))
        return int(ExitCode.OK)
    typer.echo(
        f"Made the study {study.options.name} in {study.directory}: "
        f"{participants} participants on {hosts} {'host' if hosts == 1 else 'hosts'}"
        + (f", and {enrol} {'place' if enrol == 1 else 'places'} for those who enrol" if enrol else "")
        + ".\n"
    )
    width = terminal_width()
    for line in plan_lines(figures, width - 2):
        typer.echo(f"  {line}")
    if study.options.smallest_roster is not None:
        promise = LOTTERY.format(study.options.in_a_round, study.options.smallest_roster)
        typer.echo("\n" + textwrap.fill(promise, width))
    for note in notes(figures, max_dropout, hosts_made=bool(study.hosts)):
        typer.echo("\n" + textwrap.fill(note, width))
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
    typer.echo("\n" + textwrap.fill(AWAY.format(study.directory / "authority"), width, break_on_hyphens=False))
    if one_machine:
        typer.echo("\n" + textwrap.fill(ONE_MACHINE, width))
    return int(ExitCode.OK)


def _as_carried(
    carried: CarriedAuthority, name: str | None, listen: str | None, participants: int | None
) -> tuple[str, str, int]:
    """Name, address and number of participants of a study whose authority is elsewhere.

    Raises:
        Failure: they are chosen otherwise than its card says.
    """
    from wire.address import split_address

    if name not in (None, carried.card.study):
        raise Failure(ExitCode.INPUT, f"--name {name}: the authority is that of {carried.card.study}. Leave it out.")
    if participants:
        raise Failure(
            ExitCode.INPUT,
            f"--participants {participants}: only the authority puts somebody on the roster, and it is elsewhere. Keep "
            f"places with --enrol {participants}, and invite them there.",
        )
    return carried.card.study, listen or f"0.0.0.0:{split_address(carried.card.address)[1]}", 0
