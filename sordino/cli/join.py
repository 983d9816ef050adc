"""``sordino join``: take part in a study, after getting a place in it by a join code where there is none yet.

Loads nothing of the server.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from client.joining.options import CODE, JoinOptions
from runtime.failure import ExitCode, InputFailure
from runtime.option_values import built
from runtime.processes import end_with_parent
from runtime.settings_file import Table
from runtime.settings_keys import key
from sordino.api.participant import Participant
from sordino.cli.options import chosen, options, with_options
from sordino.cli.verbs import EndWith, answer, argument, epilog, flag, option

HELP = (
    "Take part in a study with the participants of one host.\n\nConnects to the coordinator, trains on the data "
    "here, and sends masked, noised integers; never an example, a gradient or a loss in the clear. The host's folder "
    "holds host.toml, the participants' keys, the coordinator's certificate authority and the policy that was "
    "accepted: a round that breaks the policy is refused. While the coordinator can't be reached, this keeps "
    "trying for as long as host.toml says. The journal remembers what was spent: keep it, and never run two "
    "processes from one folder. Each event is a plain line, or a line of JSON where standard error is no "
    "terminal.\n\nWith --code a place in the study is asked for first. HOST:PORT is then the coordinator's port for "
    "enrolment. The code names the study's authority, so no other can pass for it; what the "
    "study is, and what will and will not be sent, is shown before anything is sent. The study is held against your "
    "--policy, or the plan that you accept becomes your policy. A new identity and all else is kept in the folder "
    "--home; an interruption costs nothing, the same command continues. Later [bold]sordino join --home DIR[/bold] is "
    "enough: the certificate renews itself.\n\nOn the authority's own machine --desk takes a code from `sordino "
    "authority run --desk`. Processes that are started alike, such as containers, share a folder with --homes: each "
    "takes a home in it that no other has, or begins one."
)
EPILOG = epilog(
    "join study.example:8444   (asks for the code)\njoin --home my-study   (from then on)",
    *(ExitCode.NETWORK, ExitCode.STUDY, ExitCode.LEDGER, ExitCode.INTERRUPTED),
)
_option = partial(key, panel="Options")
_OWNER = "A host that has joined: your say, while it runs or not"
_code = partial(key, None, panel=CODE)


class Participation(Table):
    """Options of a host that takes part, and of getting there."""

    home: Path | None = _option(
        None,
        "the host's folder, or its host.toml. With --code: the folder to make",
        shown="here; with --code a folder named after the study",
        metavar="DIR",
    )
    policy: Path | None = _option(
        None,
        "your policy: a file with one table, \\[policy]",
        shown="that of host.toml; with --code the plan that you accept",
        metavar="FILE",
    )
    service: bool = _option(
        False, "run as a system service: tell systemd how it goes, and never give up while the coordinator is away"
    )
    code: str | None = _code(
        "the join code that the study's authority gave you, good once; - reads it from standard input, where the "
        "list of processes doesn't show it",
        shown="asked for, at a terminal",
        metavar="CODE",
        repr=False,
    )
    code_file: Path | None = _code("a file with the join code", metavar="FILE")
    accept: bool | None = _code("show how the study's terms have changed, and accept them in the folder --home")
    yes: bool | None = _code("agree without being asked")


def _run(
    address: Annotated[
        str | None,
        argument(
            "[HOST:PORT]", "The coordinator's address; with --code its port for enrolment.", shown="from host.toml"
        ),
    ] = None,
    as_json: Annotated[bool, flag("--json", "Print one JSON object with the exit code at the end.")] = False,
    status: Annotated[
        bool, flag("--status", "Show what this host sent and when, what it cost, and what its policy allows.", _OWNER)
    ] = False,
    pause: Annotated[
        bool, flag("--pause", "Take no part until --resume; a running process finishes its attempt first.", _OWNER)
    ] = False,
    resume: Annotated[bool, flag("--resume", "Take part again after --pause.", _OWNER)] = False,
    leave: Annotated[
        bool, flag("--leave", "End this host's part in the study for good; keys, journal and ledger stay.", _OWNER)
    ] = False,
    export: Annotated[
        Path | None,
        option(
            "FOLDER",
            "Write what this host's participants signed, answered and were charged, signed by them.",
            panel=_OWNER,
        ),
    ] = None,
    end_with: EndWith = 0,
    **given: Any,
) -> int:
    if end_with:
        end_with_parent(end_with)
    values = chosen(given, JoinOptions)
    own, how = built(JoinOptions, values), built(Participation, chosen(given, Participation))
    home, code = how.home, how.code
    asked = {"--status": status, "--pause": pause, "--resume": resume, "--leave": leave, "--export": export is not None}
    if wishes := [name for name, wanted in asked.items() if wanted]:
        if len(wishes) > 1 or address is not None or values.keys() | chosen(given, Participation).keys() - {"home"}:
            raise InputFailure(f"{wishes[0]} takes only --home DIR and --json: leave out the other options.")
        return _owners_say(wishes[0], home or Path(), export, as_json)

    def say(line: str) -> None:
        typer.echo(line, err=as_json)

    if how.accept:
        from client.joining.joining import accept as accept_changed

        accept_changed(JoinOptions(home=home or Path(), agreed=bool(how.yes), task=own.task), say)
        return int(ExitCode.OK)
    if how.code_file is not None:
        if code is not None:
            raise InputFailure("--code and --code-file are two ways to the same: use one.")
        code = _code_in(how.code_file)
    elif code == "-":
        code = sys.stdin.readline().strip()
    elif code is None and address and own.desk is None and home is None and own.homes is None and sys.stdin.isatty():
        code = typer.prompt("Join code").strip()
    options = {**values, "code": code, "address": address, "policy": how.policy, "yes": bool(how.yes)}
    if how.service and own.homes is None:
        # One command line for every start: what it says about joining is for the first one.
        if home is None:
            raise InputFailure("--service needs --home DIR, or --homes: the host's folder, which outlives a restart.")
        if (home / "host.toml").is_file():
            options = {"policy": how.policy}
        else:
            options["code"] = code = _code_of_service(code)
            if code is None and own.desk is None and address is not None:
                raise InputFailure(
                    f"{home} has no place in a study yet, and there is no join code: hand it over as systemd's "
                    "credential join-code (LoadCredential=join-code:FILE), name the authority's --desk where it is on "
                    "this machine, or copy a host's folder there."
                )
    settings = asyncio.run(Participant(home, say=say, **options).settings())
    if how.service:
        settings = replace(settings, coordinator=replace(settings.coordinator, give_up_s=0.0))
    from client.process import become

    become(settings, as_json=as_json, service=how.service)
    return int(ExitCode.OK)


def _owners_say(wish: str, home: Path, folder: Path | None, as_json: bool) -> int:
    """Do what an owner's option says. Raises Failure: the host's folder can't be used, or hasn't joined yet."""
    from client.credentials import load_identity
    from client.host_file import load
    from client.joining.folder import unfinished
    from client.owners_word import LEFT, PAUSED, RESUMED, write_word
    from sordino.reporting.participation import export, figures, lines

    if home.is_dir() and (joining := unfinished(home)) is not None:
        raise InputFailure(
            f"{home}, identity {joining.shown_identity}, hasn't joined its study yet, and {wish} is for a host that "
            f"has: first finish joining by `sordino join --home {home}`."
        )
    settings = load(home).settings()
    host, study = settings.host.name, settings.study.name
    if wish == "--status":
        body = figures(settings)
        return answer(as_json, body, lines(settings, body))
    if wish == "--export":
        files = export(settings, folder or Path())
        key = settings.study.authority_public_key
        said = [
            *map(str, files),
            "Signed by the participant, without its data or updates. Compare it with the coordinator's transcripts:",
            f"sordino transcript verify TRANSCRIPT... --authority {key} --own {files[0]}",
        ]
        return answer(as_json, {"files": [str(file) for file in files]}, said)
    state = {"--pause": PAUSED, "--resume": RESUMED, "--leave": LEFT}[wish]
    write_word(settings.host.journal.parent, state)
    if state == PAUSED:
        said = [
            f"Paused: the host {host} takes no part in {study}. A running process notices within seconds, finishes "
            "an attempt under way, and disconnects; a later start waits too. The coordinator sees that it stopped on "
            "purpose, not why.",
            f"To take part again: sordino join --home {home} --resume",
        ]
    elif state == RESUMED:
        said = [f"The host {host} takes part in {study} again, while sordino join runs."]
    else:
        said = [
            f"Left: the host {host} takes no part in {study} any more. A running process finishes an attempt under "
            "way, and ends; later starts end at once.",
            "It is still on the roster, as an absent participant. To be taken off, ask the study's authority to "
            "revoke:",
            "  " + " ".join(load_identity(one.key).public.hex() for one in settings.participants),
            f"Keys, journal and ledger stay. Keep the ledger ({settings.host.ledger}, with its .head): it says what "
            "was spent from this data, and a later study over it needs it (--ledger). What is in earlier sums can't be "
            "taken out of them.",
        ]
    return answer(as_json, {"host": host, "study": study, "state": state}, said)


def _code_of_service(code: str | None) -> str | None:
    """The join code, given or as systemd hands it over: a credential, which no other process can read.

    Raises Failure: the credential can't be read.
    """
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    credential = None if folder is None else Path(folder) / "join-code"
    if code is not None or credential is None or not credential.exists():
        return code
    return _code_in(credential) or None  # a blank: there is no such file on the host


def _code_in(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it isn't text"
        raise InputFailure(f"the join code in {file} can't be read: {reason}.") from None


run = with_options(_run, options(Participation, JoinOptions))
