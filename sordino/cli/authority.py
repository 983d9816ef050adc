"""``sordino authority``: who may take part. Runs where the coordinator's owner can't read its keys."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from runtime.failure import ExitCode, Failure, listing
from runtime.text import counted
from sordino.cli.verb_group import verb_group

if TYPE_CHECKING:
    import threading

    from authority.local_enrolment import LocalEnrolmentSocket
    from authority.visit import Visit

NAME = "authority"
app = verb_group(
    NAME,
    "Decide who may take part in a study.\n\nThe authority holds the two keys that sign rosters and TLS "
    "certificates. It is not the coordinator: keep its folder on another machine, in other hands. It is needed "
    "when somebody joins, renews a certificate or is revoked, and can be switched off in between. "
    "docs/enrolment.md says what each party has and what a coordinator that lies can't do."
)
_CODES = listing(ExitCode.OK, ExitCode.INPUT, ExitCode.NETWORK)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SOON_S: Final = 0.3
_BETTER: Final = "that is over: it goes on"

Where = Annotated[Path, typer.Argument(metavar="DIR", help="The authority's folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _example(text: str) -> str:
    return f"Example: [bold]sordino authority {text}[/bold]\n\n{_CODES}"


@app.command(
    "init",
    help=(
        "Make an authority: its keys, and a first roster without participants.\n\n`sordino init` makes one together "
        "with a study; this one is for an authority that is somebody else's from the start. DIR must be new or empty. "
        "Carry DIR/coordinator to the coordinator's machine (its two keys belong there and nowhere else), and keep "
        "the rest. Nobody can restore a lost authority: back DIR up, offline."
    ),
    epilog=_example("init my-authority --study clinics --coordinator coordinator.example:8444"),
)
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make.", show_default=False)],
    study: Annotated[str, typer.Option(metavar="NAME", help="The study's name, as in study.toml.", show_default=False)],
    coordinator: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="The coordinator's port for enrolment (enrolment_listen in study.toml).",
            show_default="none: by hand",
        ),
    ] = "",
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where participants open sessions (listen in study.toml).",
            show_default="the port before that of enrolment",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Further host name or address by which the coordinator is reached; repeatable.",
            show_default=False,
        ),
    ] = None,
    draws: Annotated[
        int,
        typer.Option(min=0, help="Rounds of the study, where each roster version draws their cohorts; 0: no lottery."),
    ] = 0,
    places: Annotated[
        int, typer.Option(min=0, help="Most participants at the same time, as the plan covers them; 0: any number.")
    ] = 0,
    client_days: Annotated[
        float, typer.Option(help="How long a participant's TLS certificate is valid; it is renewed in time.")
    ] = 90,
    own_data: Annotated[
        bool, typer.Option("--own-data", help="Participants bring data of their own: invitations say --data FILE.")
    ] = False,
    task: Annotated[
        str,
        typer.Option(
            metavar="MODULE:CLASS",
            help="The study's task, where it is none of Sordino's: invitations name it.",
            show_default=False,
        ),
    ] = "",
    as_json: Json = False,
) -> int:
    from pydantic import ValidationError

    from authority.folder import AuthorityTable
    from authority.founding import COORDINATOR_FOLDER, found, session_address
    from wire.join_code import show_fingerprint

    try:
        settings = AuthorityTable(
            study=study,
            coordinator=coordinator,
            draws=draws,
            places=places,
            client_days=client_days,
            own_data=own_data,
            task=task,
        )
        sessions = address if address is not None else session_address(coordinator, host or ())
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        option = "--" + str(detail["loc"][0]).replace("_", "-")
        told = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Input ")
        raise Failure(ExitCode.INPUT, f"{option} {detail['input']}: {told}.") from None
    folder = found(directory, settings, address=sessions, names=host or ())
    shown = show_fingerprint(folder.keys.fingerprint)
    if as_json:
        body = {
            "directory": str(directory.resolve()),
            "study": study,
            "fingerprint": folder.keys.fingerprint.hex(),
            "authority_public_key": folder.keys.public.hex(),
            "address": sessions,
            "coordinator": coordinator,
        }
        typer.echo(json.dumps(body))
        return int(ExitCode.OK)
    typer.echo(f"Made the authority of {study} in {directory}.\n\n  fingerprint  {shown}\n")
    typer.echo(f"Carry {directory / COORDINATOR_FOLDER} to the coordinator's machine, then remove it here.")
    typer.echo(f"Make the study there:  sordino init DIR --authority {COORDINATOR_FOLDER} --enrol N")
    typer.echo("Keep the rest away from there, and a copy of it offline.")
    typer.echo(f"Invite somebody:  sordino authority invite {directory}")
    return int(ExitCode.OK)


@app.command(
    "invite",
    help=(
        "Make join codes, each for one participant.\n\nA code names this authority by its fingerprint and holds 16 "
        "secret bytes: hand it over where the coordinator can't read it, in person or by a message of your own. It "
        "is good for one participant, until it expires by the clock of this machine; what counts is when the "
        "authority sees her request, so run `approve` or `run` in time. It is shown now and never again."
    ),
    epilog=_example("invite my-authority --name clinic-7 --valid 24h"),
)
def invite(
    directory: Where,
    name: Annotated[
        str, typer.Option(metavar="HOST", help="Name of her host on the roster.", show_default="as she wishes")
    ] = "",
    valid: Annotated[str, typer.Option(metavar="TIME", help="How long: 30m, 24h, 7d.")] = "24h",
    count: Annotated[int, typer.Option(min=1, max=1000, help="How many codes.")] = 1,
    as_json: Json = False,
) -> int:
    import os

    from authority.folder import open_folder
    from authority.invitations import invite as make
    from authority.invitations import without_place
    from authority.store import locked
    from wire.join_code import show_fingerprint

    seconds = _seconds("--valid", valid)
    if name and count > 1:
        raise Failure(ExitCode.INPUT, "--name is for one participant: use it without --count.")
    folder = open_folder(directory)
    with locked(folder.state) as store:
        codes = [
            make(folder, store, name=name, valid_s=seconds, now=time.time(), random_bytes=os.urandom)
            for _ in range(count)
        ]
        unplaced = without_place(folder, store, time.time())
    if unplaced:
        note = (
            f"Note: {unplaced} of the open codes will be refused if all are used: the study has "
            f"{counted(folder.settings.places, 'place')}. Take codes back, or revoke a member."
        )
        typer.echo(note, err=True)
    address = folder.settings.coordinator or "HOST:PORT"
    settings = folder.settings
    more = (" --data FILE" if settings.own_data else "") + (f" --task {settings.task}" if settings.task else "")
    commands = [f"sordino join {address} --code {code.to_text()}{more}" for code in codes]
    if as_json:
        made = [
            {
                "code": code.to_text(),
                "id": code.code_id.hex(),
                "name": name,
                "expires": code.expires,
                "command": command,
            }
            for code, command in zip(codes, commands, strict=True)
        ]
        body = {"study": folder.settings.study, "fingerprint": folder.keys.fingerprint.hex(), "invitations": made}
        typer.echo(json.dumps(body))
        return int(ExitCode.OK)
    typer.echo(f"study        {folder.settings.study}")
    typer.echo(f"fingerprint  {show_fingerprint(folder.keys.fingerprint)}")
    typer.echo(f"expires      {_when(codes[0].expires)}\n")
    if count == 1:
        typer.echo(f"code         {codes[0].to_text()}\n")
    typer.echo("She types:" if count == 1 else "Each types one of these:")
    for command in commands:
        typer.echo(f"  {command}")
    if settings.own_data:
        typer.echo("\nFILE is her own, a .csv or an .npz: docs/your_own_data.md.")
    if not settings.coordinator:
        typer.echo("\nauthority.toml names no coordinator: put its address in for HOST:PORT.")
    typer.echo(f"\nLet in:  sordino authority run {directory}  (or approve --sign)")
    return int(ExitCode.OK)


@app.command(
    "approve",
    help=(
        "Fetch what waits at the coordinator and judge it.\n\nWhoever proves to hold an open join code is accepted, "
        "and so is a renewal by somebody on the roster; everybody else is told why not. With ID only those are "
        "judged, by how the request or the identity begins, and the others go on waiting. Who is accepted takes part "
        "once the next version of the roster is signed: at once with --sign."
    ),
    epilog=_example("approve my-authority --sign"),
)
def approve(
    directory: Where,
    chosen: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID...]", help="Requests to judge.", show_default="all"),
    ] = None,
    only_list: Annotated[bool, typer.Option("--list", help="Only show what waits, and what would be done.")] = False,
    sign: Annotated[bool, typer.Option("--sign", help="Sign and publish the next version at once.")] = False,
    as_json: Json = False,
) -> int:
    from authority import text
    from authority.folder import open_folder
    from authority.link import open_link
    from authority.visit import Visit, attend, preview

    folder = open_folder(directory)
    with open_link(folder) as link:
        wanted = None
        if only_list or chosen:
            seen = preview(folder, link)
            wanted = text.chosen(seen, chosen or ())
        if only_list:
            visit = Visit([one for one in seen if wanted is None or one.request.id in wanted])
        else:
            visit = attend(folder, link, sign=sign, chosen=lambda signed: wanted is None or signed.id in wanted)
    if as_json:
        typer.echo(json.dumps({"requests": [text.row(one) for one in visit.judgements], **text.signed(visit)}))
        return int(ExitCode.OK)
    for judgement in visit.judgements:
        typer.echo(text.line(judgement, preview=only_list))
    if not visit.judgements:
        typer.echo("Nothing waits at the coordinator.")
    _echo(text.signed_lines(visit))
    if visit.waiting:
        typer.echo(f"{visit.waiting} accepted, not yet listed:  sordino authority sign {directory}")
    return int(ExitCode.OK)


@app.command(
    "sign",
    help=(
        "Close the next version of the roster, sign and publish it.\n\nIt lists everybody who was accepted and not "
        "revoked; where cohorts are drawn, their seeds are drawn afresh. Where nothing has changed nothing is signed, "
        "but what the coordinator hasn't got yet is published. With --out the roster is also written to files that "
        "can be carried to the coordinator by hand, which takes them up between two rounds."
    ),
    epilog=_example("sign my-authority --out usb-stick --offline"),
)
def sign_(
    directory: Where,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write roster.json, and lottery.json, there too.", show_default=False),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Don't talk to the coordinator.")] = False,
    after: Annotated[
        int,
        typer.Option(min=0, help="A version that exists elsewhere, after this folder was restored from an older copy."),
    ] = 0,
    as_json: Json = False,
) -> int:
    from authority import text
    from authority.folder import open_folder
    from authority.founding import newest, write_roster
    from authority.link import open_link
    from authority.roster import sign_next
    from authority.store import locked
    from authority.visit import Visit, attend

    folder = open_folder(directory)
    if not offline and not (out is not None and not folder.settings.coordinator):
        with open_link(folder) as link:
            visit = attend(folder, link, sign=True, chosen=lambda _: False, after=after)
    else:
        with locked(folder.state) as store:
            version = sign_next(folder, store, time.time(), after=after)
        visit = Visit(signed=None if version is None else (version.version, version.participants))
    files: list[Path] = []
    if out is not None:
        with locked(folder.state) as store:
            files = write_roster(newest(store), out)
    if as_json:
        typer.echo(json.dumps({**text.signed(visit), "files": [str(path.resolve()) for path in files]}))
        return int(ExitCode.OK)
    _echo(text.signed_lines(visit, always=True))
    for path in files:
        typer.echo(f"wrote {path}")
    return int(ExitCode.OK)


@app.command(
    "revoke",
    help=(
        "Strike a participant off the roster, or take an invitation back.\n\nWHO is the name of a host, or how an "
        "identity begins; or the name or the beginning of the id of an invitation that is still open. A revoked "
        "identity never comes back, and the name is given to nobody else. It takes effect with the next version of "
        "the roster: at once with --sign, and in the study from its next attempt at a round."
    ),
    epilog=_example("revoke my-authority clinic-7 --sign"),
)
def revoke_(
    directory: Where,
    who: Annotated[str, typer.Argument(metavar="WHO", help="Whom, or which invitation.", show_default=False)],
    whole_host: Annotated[
        bool, typer.Option("--whole-host", help="Everybody on the host of that name, where several are.")
    ] = False,
    sign: Annotated[bool, typer.Option("--sign", help="Sign and publish the next version at once.")] = False,
    as_json: Json = False,
) -> int:
    from authority import text
    from authority.folder import open_folder
    from authority.invitations import find_members, revoke, withdraw
    from authority.link import open_link
    from authority.store import locked
    from authority.visit import Visit, attend

    folder = open_folder(directory)
    with locked(folder.state) as store:
        taken = None if find_members(store, who, whole_host=whole_host) else withdraw(store, who, time.time())
        gone = [] if taken else revoke(store, who, time.time(), whole_host=whole_host)
    if not as_json:
        for member in gone:
            typer.echo(f"revoked {member.host}, identity {member.identity.hex()[:16]}")
        if taken is not None:
            typer.echo(f"took the invitation {taken.code_id.hex()[:8]} back")
    visit = Visit()
    if sign and gone:
        with open_link(folder) as link:
            visit = attend(folder, link, sign=True, chosen=lambda _: False)
    if as_json:
        body = {
            "revoked": [{"identity": member.identity.hex(), "host": member.host} for member in gone],
            "withdrawn": None if taken is None else taken.code_id.hex(),
        }
        typer.echo(json.dumps(body | text.signed(visit)))
        return int(ExitCode.OK)
    _echo(text.signed_lines(visit))
    if gone and not sign:
        typer.echo(f"It takes effect with the next version:  sordino authority sign {directory}")
    return int(ExitCode.OK)


@app.command(
    "show",
    help="Members, invitations and signed versions. Shows no secret: codes can't be shown again.",
    epilog=_example("show my-authority"),
)
def show(directory: Where, as_json: Json = False) -> int:
    from authority.folder import open_folder
    from authority.store import locked
    from authority.text import overview, overview_lines

    folder = open_folder(directory)
    with locked(folder.state) as store:
        found = overview(folder, store, time.time())
    typer.echo(json.dumps(found) if as_json else "\n".join(overview_lines(found)))
    return int(ExitCode.OK)


@app.command(
    "run",
    help=(
        "Approve and sign by itself until it is stopped.\n\nEvery few seconds it asks the coordinator what waits, "
        "accepts whoever holds an open join code, renews certificates, signs the next version when anything has "
        "changed, and publishes. While the coordinator is away it goes on asking. The other commands can be used on "
        "the same folder meanwhile; a second `run` can't. SIGTERM or Ctrl-C ends it.\n\nWith --desk it also hands "
        "join codes to participants on this machine, through a Unix socket: [bold]sordino join HOST:PORT --desk "
        "PATH[/bold]. Whoever can open the socket gets a place, as long as there are any, and can take all: put it "
        "where only they can, and not the coordinator. --desk-places says how many at most come in through the desk."
    ),
    epilog="Example: [bold]sordino authority run my-authority --every 5s[/bold]\n\n"
    + listing(ExitCode.OK, ExitCode.INPUT, ExitCode.NETWORK, ExitCode.INTERRUPTED),
)
def run(
    directory: Where,
    every: Annotated[str, typer.Option(metavar="TIME", help="How often it asks.")] = "5s",
    desk: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Unix socket at which whoever can open it gets a join code.",
            show_default=False,
        ),
    ] = None,
    desk_places: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Most places that the desk gives; by default all there are.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each visit with news.")] = False,
) -> int:
    import signal
    import threading

    from authority.folder import AuthorityError, open_folder
    from authority.link import LinkError, open_link
    from authority.local_enrolment import open_local_enrolment
    from authority.store import exclusive
    from authority.visit import Visit, attend
    from runtime.durable import StorageError
    from runtime.health_file import show_life

    pause = _seconds("--every", every)
    if desk is None and desk_places is not None:
        raise Failure(ExitCode.INPUT, "--desk-places goes with --desk PATH.")
    folder = open_folder(directory)
    stop, told = threading.Event(), ""
    with (
        exclusive(folder.path / "run.lock", 0),
        open_link(folder) as link,
        open_local_enrolment(folder, desk, lambda news: _tell_desk(news, as_json), desk_places) as at_desk,
    ):
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        _say(as_json, f"the authority of {folder.settings.study} asks {folder.settings.coordinator} every {every}")
        if at_desk is not None:
            most = min(folder.settings.places, desk_places or folder.settings.places)
            _say(as_json, f"whoever can open {desk} gets one of {most} places")
        while not stop.is_set():
            show_life()
            try:
                visit = attend(folder, link, sign=True)
                trouble = ""
            except (LinkError, AuthorityError, StorageError) as error:  # all of them can pass
                visit, trouble = Visit(), str(error)
            if trouble != told:
                _say(as_json, trouble or _BETTER, error=bool(trouble))
                told = trouble
            _tell_visit(visit, as_json)
            _rest(stop, pause, at_desk)
    return int(ExitCode.OK)


def _rest(stop: threading.Event, pause_s: float, desk: LocalEnrolmentSocket | None) -> None:
    """Until the next visit, with signs of life; soon while somebody who was given a code is about to ask."""
    from runtime.health_file import EVERY_S, show_life

    ends = time.monotonic() + pause_s
    while (left := ends - time.monotonic()) > 0:
        show_life()
        if stop.wait(min(left, EVERY_S if desk is None else _SOON_S)) or (desk is not None and desk.busy()):
            return


def _tell_desk(news: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json("desk", {"desk": news})
    elif "refused" in news:
        print(f"the desk gives no code: {news['refused']}", flush=True)
    elif "handed_out" in news:
        print(f"the desk handed out the code {news['handed_out'][:8]}", flush=True)
    else:
        print(f"the desk took the code {news['taken_back'][:8]} back: nobody keeps it", flush=True)


def _tell_visit(visit: Visit, as_json: bool) -> None:
    from authority import text

    news = text.news(visit)
    if as_json and (news or visit.signed is not None):
        _print_json("visit", {"requests": [text.row(one) for one in news], **text.signed(visit)})
    if as_json:
        return
    for one in news:
        print(text.line(one), flush=True)
    if visit.signed is not None:
        print(f"signed version {visit.signed[0]} with {counted(visit.signed[1], 'participant')}", flush=True)


def _say(as_json: bool, text: str, *, error: bool = False) -> None:
    if as_json:
        _print_json("note", {"note": text}, error=error)
    else:
        print(text, file=sys.stderr if error else sys.stdout, flush=True)


def _print_json(event: str, body: dict[str, Any], *, error: bool = False) -> None:
    """As the logs of the other processes: with a time, a level and an event."""
    from runtime.text import json_line

    line = json_line(event, body, level="warning" if error else "info")
    print(line, file=sys.stderr if error else sys.stdout, flush=True)


def _echo(lines: Sequence[str]) -> None:
    for line in lines:
        typer.echo(line)


def _seconds(option: str, text: str) -> float:
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        raise Failure(ExitCode.INPUT, f"{option} {text} needs a unit: s, m, h or d, such as {text.strip()}h.")
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip())
    seconds = float(found.group(1)) * _UNITS[found.group(2)] if found else 0.0
    if not 0 < seconds < 1e9:
        raise Failure(ExitCode.INPUT, f"{option} {text} is no time: write 30s, 15m, 24h or 7d.")
    return seconds


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
