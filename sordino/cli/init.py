"""``sordino init``: make a study that can be served and joined at once."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from authority.new_study import ONE_MACHINE, Making, new_study
from learning.data_names import APP, OWN
from learning.task_names import trained_task
from runtime.address import split_address, split_addresses
from runtime.failure import ExitCode, InputFailure
from runtime.option_values import settled
from runtime.text import counted, folded, terminal_width
from server.study_file import StudyConfiguration
from server.study_tables import STUDY, TaskTable
from sordino.cli.options import options, with_options
from sordino.cli.study_options import over_files, study_values
from sordino.cli.verbs import Json, argument, epilog, option
from sordino.planning.expected_errors import default_bounds_note, described, expected_errors
from sordino.planning.notes import notes

if TYPE_CHECKING:
    from authority.founding import CarriedAuthority

HELP = (
    "Make a study: its file, the authority and the signed roster, TLS certificates, and a folder for each "
    "host.\n\nDIR must be new or empty. The privacy plan is made first; when no plan keeps the budget, nothing "
    "is written and the nearest setting that works is named. A host's folder is complete: copy it to the machine "
    "that holds the data. With --enrol further participants join with codes of `sordino authority invite`. When the "
    "study is more than a trial, take DIR/authority away from the coordinator's machine before the first round: its "
    "keys say who takes part."
)
EPILOG = epilog("init my-study --participants 20 --hosts 4 --epsilon 6 --rounds 30", ExitCode.INFEASIBLE)
AWAY = (
    "Take {} away from the coordinator's machine: its keys decide who takes part, and can impersonate any participant "
    "that joins later."
)
DRAWN = "Each round: {} of at least {} on the roster, drawn by the authority's seeds; the coordinator knows all draws."
HIDDEN = "epsilon_released holds only for readers who don't know who was drawn; publishing transcripts ends it."
BOUNDED = "The clip is {:.6g}, the bound that the task keeps by itself: no contribution exceeds it, and none is cut."
WHERE_FILES_GO = (
    "Before a host joins, put the data of each of its participants there, such as {first}.csv{more}. A .csv has a line "
    "of column names, then numbers; all files have the same columns. docs/your_own_data.md has the other kinds. Files "
    "that lie elsewhere are named in host.toml."
)
LIVE_PAGE = "127.0.0.1:0"
_UNREACHABLE = "The coordinator listens on {} only, so other machines can't reach it: add --listen 0.0.0.0:8443."
"""Where `sordino serve` shows the page of a new study: a free port, since a machine may serve several."""

DECLARED = (
    "The app loads each participant's data. The ledger knows them by data_identity in host.toml: let it be the same "
    "name in all studies over the same person's data."
)


def _run(
    directory: Annotated[Path, argument("DIR", "Folder to make.")],
    authority: Annotated[
        Path | None,
        option(
            "DIR",
            "Folder coordinator/ of `sordino authority init`, where the authority is elsewhere: it decides who "
            "takes part, and all join with its codes.",
            shown="one is made with the study",
            panel=STUDY,
        ),
    ] = None,
    as_json: Json = False,
    **given: Any,
) -> int:
    from authority.founding import CarriedAuthority
    from authority.new_study import make_local_study
    from authority.study_data import fitted
    from learning.own_data import left_out
    from sordino.planning.refusals import check_study
    from wire.certificates import LOCAL_NAMES

    values = {"http_listen": LIVE_PAGE} | study_values(given, StudyConfiguration, Making)
    carried = None if authority is None else CarriedAuthority.read(authority)
    if carried is not None:
        values = _as_carried(carried, values)
    if "data" in values:
        values = over_files(Path(values["data"]), values)
    values.setdefault("name", directory.resolve().name)
    enrol, participants = values.get("enrol", 0), values.setdefault("participants", 100)
    if participants + enrol < 2:
        raise InputFailure(
            f"--participants {participants} with --enrol {enrol} are too few: a sum of one hides nothing. "
            "Use at least 3."
        )
    new = settled(lambda: new_study(carried, **values), lambda made: made.study, values, StudyConfiguration, Making)
    new = replace(new, study=fitted(new.study))
    if new.study.study.task == "external" and "dim" not in new.study.task:
        raise InputFailure("name the number of values of the app's model: --task-option dim=N (docs/flower.md)")
    figures = check_study(new.study, lambda **changed: new.changed(**changed).study, new.making.enrol)
    study = make_local_study(directory, new)
    made, hosts = study.study, new.making.hosts
    expected = expected_errors(study.plan, made.study.task, made.task)
    if as_json:
        body = {
            "study": made.study.name,
            "directory": str(study.directory.resolve()),
            "address": new.client_address,
            "enrolment": new.client_enrolment,
            "authority": None if carried is not None else str((study.directory / "authority").resolve()),
            "hosts": [str(path.resolve()) for path in study.hosts],
            "plan": replace(figures, task=None).to_json(),
            "expected": expected,
            "data": [str(path) for path in study.data_files],
        }
        typer.echo(json.dumps(body))
        return int(ExitCode.OK)
    typer.echo(
        f"Made the study {made.study.name} in {study.directory}: "
        f"{counted(participants, 'participant')} on {counted(hosts, 'host')}"
        + (f", and {counted(enrol, 'place')} for those who enrol" if enrol else "")
        + ".\n"
    )
    width, remarks = terminal_width(), list[str]()
    bound = made.make_task().l2_sensitivity
    if bound is not None and bound == made.privacy.clip:
        remarks.append(BOUNDED.format(bound))
    if made.privacy.population is not None:
        remarks.append(DRAWN.format(made.study.participants, made.privacy.population))
        if made.privacy.sampling == "lottery":
            remarks[-1] += f" {HIDDEN}"
    figures = replace(figures, expected=expected)
    listens, reached = (
        split_address(one)[0] in LOCAL_NAMES
        for one in (made.coordinator.listen, split_addresses(new.client_address)[0])
    )
    if listens and not reached:
        remarks.append(_UNREACHABLE.format(made.coordinator.listen))
    remarks += notes(figures, hosts_made=bool(study.hosts))
    if new.making.data is not None:
        trained = trained_task(made.study.task, made.task)
        remarks += left_out(str(new.making.data), participants, made.make_task(), trained)
    if made.data.dataset == APP:
        remarks.append(DECLARED)
    remarks += filter(None, [default_bounds_note(made.study.task, new.study.task)])
    typer.echo("\n".join(described(figures, remarks, width)))
    by_flower = made.study.task == "external"
    if by_flower:
        run_it = f"flwr run APP --stream --run-config 'sordino-study=\"{study.directory.resolve()}\"'"
        typer.echo(f"\nRun it:    {run_it}  (docs/flower.md)")
    elif study.data_files:
        first, last = study.data_files[0], study.data_files[-1]
        more = "" if first == last else f", and so on to {last.parent.parent.name}/data/{last.name}.csv"
        advice = WHERE_FILES_GO.format(first=first, more=more)
        lines = textwrap.wrap(advice, width, break_on_hyphens=False, break_long_words=False)
        typer.echo("\n".join(["", *lines]))
    if not by_flower:
        typer.echo(f"\nServe it:  sordino serve {study.directory}")
        if study.hosts:
            typer.echo(f"Join it:   sordino join --home {study.hosts[0]}")
    if hosts > 1 and not by_flower:
        typer.echo(f"           and so on to {study.hosts[-1].name}, each in its own terminal")
    if carried is not None:
        typer.echo("Invite:    sordino authority invite, where the authority is; and sordino authority run there")
        return int(ExitCode.OK)
    if enrol:
        typer.echo(f"Invite:    sordino authority invite {study.directory / 'authority'}")
        typer.echo(f"Let in:    sordino authority run {study.directory / 'authority'}")
        brought = {OWN: "--data FILE", APP: f"--data-identity NAME --task {made.study.task}"}.get(made.data.dataset)
        if brought:
            typer.echo(f"They join: sordino join {new.client_enrolment} --code CODE {brought}")
    last_words = [AWAY.format(study.directory / "authority")]
    if made.coordinator.one_machine:
        last_words = [ONE_MACHINE, "For more than a trial make the study with --separate-machines. " + last_words[0]]
    typer.echo("\n".join(line for words in last_words for line in ("", *folded(words, width))))
    return int(ExitCode.OK)


def _as_carried(carried: CarriedAuthority, values: dict[str, Any]) -> dict[str, Any]:
    """The values of a study whose authority is elsewhere: its name, its address, and no participants.

    Raises Failure: they are chosen otherwise than its card says.
    """
    name, participants = values.get("name"), values.get("participants")
    if name not in (None, carried.card.study):
        raise InputFailure(f"--name {name}: the authority is that of {carried.card.study}. Leave it out.")
    if participants:
        raise InputFailure(
            f"--participants {participants}: only the authority can add participants to the roster, and it is "
            f"elsewhere. Keep places with --enrol {participants}, and invite participants there."
        )
    listen = f"0.0.0.0:{split_address(split_addresses(carried.card.address)[0])[1]}"
    return {"listen": listen, "one_machine": False} | values | {"name": carried.card.study, "participants": 0}


run = with_options(_run, options(Making, StudyConfiguration, TaskTable, without=("largest_roster",)))
