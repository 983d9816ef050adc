"""``sordino authority run``: visits the coordinator until it is stopped."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from runtime.durable import StorageError
from runtime.failure import ExitCode, InputFailure
from runtime.service_notify import Notifier
from runtime.text import counted, json_line
from sordino.cli.verbs import AsService, argument, epilog, flag, option

if TYPE_CHECKING:
    from authority.visit import Visit

HELP = (
    "Approve and sign automatically until it is stopped.\n\nEvery few seconds it fetches the requests that wait at "
    "the coordinator, accepts those that prove an open join code, renews certificates, signs the next version when "
    "anything has changed, and publishes. While the coordinator can't be reached it keeps trying. The other verbs "
    "can be used on the same folder meanwhile, except a second `run`. SIGTERM or Ctrl-C ends it.\n\nWith --desk it "
    "also gives join codes to participants on this machine, through a Unix socket: [bold]sordino join HOST:PORT "
    "--desk PATH[/bold]. A process that can open the socket gets a place, while there are any, and can take all of "
    "them: put the socket where only participants can open it, and not the coordinator. --desk-places limits the "
    "places that it gives.\n\nWith --first-terms it signs the first terms that the coordinator serves, if that "
    "policy accepts them. Later terms always need `sordino authority terms`."
)
EPILOG = epilog("authority run my-authority --every 5s", ExitCode.NETWORK, ExitCode.INTERRUPTED)
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_BETTER: Final = "connection to the coordinator restored"


def run(
    directory: Annotated[Path, argument("DIR", "The authority's folder.")],
    every: Annotated[str, option("TIME", "Interval between two visits.", shown=True)] = "5s",
    desk: Annotated[
        Path | None, option("PATH", "Unix socket that gives a code to each process that can open it.")
    ] = None,
    desk_places: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Most places that the socket gives.", show_default="all places"),
    ] = None,
    first_terms: Annotated[
        Path | None,
        option("POLICY", "Sign the study's first terms without a question, if this policy file accepts them."),
    ] = None,
    service: AsService = False,
    as_json: Annotated[bool, flag("--json", "Print one JSON object for each visit with news.")] = False,
) -> None:
    from authority.folder import AuthorityError, open_folder
    from authority.link import LinkError, open_link
    from authority.local_enrolment import LocalEnrolmentSocket
    from authority.store import exclusive
    from authority.visit import Visit, attend, rest, sign_first
    from client.policy_file import load_policy

    pause = seconds_of("--every", every)
    if desk is None and desk_places is not None:
        raise InputFailure("--desk-places needs --desk PATH.")
    folder = open_folder(directory)
    if not folder.settings.coordinator:
        raise InputFailure(
            f'{directory}/authority.toml names no coordinator: set coordinator = "HOST:ENROLMENT-PORT"; or, in a study '
            f"without enrolment, once in each roster_valid_h: sordino authority sign {directory} --out FOLDER, and cp "
            "FOLDER/* to the coordinator's folder."
        )
    policy = None if first_terms is None else load_policy(first_terms)
    stop, reported, notifier = threading.Event(), "", Notifier() if service else Notifier({})
    begins = f"the authority of {folder.settings.study} asks {folder.settings.coordinator} every {every}"
    with exclusive(folder.path / "run.lock", 0), open_link(folder) as link, contextlib.ExitStack() as opened:
        socket = None
        if desk is not None:
            socket = LocalEnrolmentSocket(folder, desk, partial(_tell_desk, as_json), places=desk_places)
            opened.callback(socket.close)
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        _say(as_json, begins)
        if socket is not None:
            most = min(folder.settings.places, desk_places or folder.settings.places)
            _say(as_json, f"each process that can open {desk} gets one of {most} places")
        notifier.tell(READY="1", STATUS=begins)
        while not stop.is_set():
            notifier.alive()
            try:
                if policy is not None:
                    sign_first(folder, link, policy)
                visit = attend(folder, link, sign=True)
                trouble = ""
            except (LinkError, AuthorityError, StorageError) as error:  # each of them may pass
                visit, trouble = Visit(), str(error)
            if trouble != reported:
                _say(as_json, trouble or _BETTER, error=bool(trouble))
                notifier.status(trouble or _BETTER)
                reported = trouble
            _tell_visit(as_json, visit)
            rest(stop, pause, socket, notifier.alive)
        notifier.tell(STOPPING="1")


def _tell_desk(as_json: bool, news: dict[str, Any]) -> None:
    if "refused" in news:
        text = f"the socket gives no code: {news['refused']}"
    elif "handed_out" in news:
        text = f"the socket gave the code {news['handed_out'][:8]}"
    else:
        text = f"the socket took the code {news['taken_back'][:8]} back: no participant has kept it"
    _say(as_json, text, event="desk", body={"desk": news})


def _tell_visit(as_json: bool, visit: Visit) -> None:
    from authority import text

    news = text.news(visit)
    lines = [text.line(one) for one in news]
    if visit.signed is not None:
        lines.append(f"signed version {visit.signed[0]} with {counted(visit.signed[1], 'participant')}")
    if lines:
        body = {"requests": [text.row(one) for one in news], **text.signed(visit)}
        _say(as_json, "\n".join(lines), event="visit", body=body)


def _say(
    as_json: bool, text: str, *, error: bool = False, event: str = "note", body: dict[str, Any] | None = None
) -> None:
    """The text, or a line like those of the other processes' logs: with a time, a level and an event."""
    if as_json:
        text = json_line(event, {"note": text} if body is None else body, level="warning" if error else "info")
    print(text, file=sys.stderr if error else sys.stdout, flush=True)


def seconds_of(option: str, text: str) -> float:
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()):
        raise InputFailure(f"{option} {text} needs a unit: s, m, h or d, such as {text.strip()}h.")
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text.strip())
    seconds = float(found.group(1)) * _UNITS[found.group(2)] if found else 0.0
    if not 0 < seconds < 1e9:
        raise InputFailure(f"{option} {text} isn't a time above zero: write 30s, 15m, 24h or 7d.")
    return seconds
