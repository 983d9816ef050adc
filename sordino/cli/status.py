"""``sordino status``: what a study does, from another terminal or another machine."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from runtime.failure import ExitCode, InputFailure, NetworkFailure
from sordino.cli.verbs import Json, answer, epilog

if TYPE_CHECKING:
    from server.study_file import StudyConfiguration

NAME = "status"
HELP = (
    "Say what a study does: what it waits for, participants, accuracy, privacy spent, dropouts.\n\nOf a folder on this "
    "machine it reads what the coordinator records, whether one runs or not; --watch is the panel of `sordino serve`. "
    "Of an address it asks the page there; with --password FILE where that page asks for one."
)
EPILOG = epilog("status my-study --watch", ExitCode.NETWORK, ExitCode.INTERRUPTED)
_EVERY_S = 1.0
_ANSWER_S = 5.0


def run(
    study: Annotated[
        str,
        typer.Argument(
            metavar="DIR|study.toml|http://HOST:PORT",
            help="The study's folder or file, or the address of its page.",
            show_default=False,
        ),
    ],
    watch: Annotated[bool, typer.Option("--watch", help="Go on until the study ends or Ctrl-C.")] = False,
    password: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With the page's password; of a folder its own.", show_default="none"),
    ] = None,
    as_json: Json = False,
) -> int:
    if study.startswith(("http://", "https://")):
        secret = "" if password is None else password.read_text(encoding="utf-8").strip()
        return _show(lambda: (ask(study, secret), True), watch, as_json)
    from sordino.api.coordinator import study_to_serve

    configuration = study_to_serve(Path(study))
    if watch and not as_json:
        _panel(configuration)
        watch = False
    return _show(lambda: _of_folder(configuration), watch, as_json)


def _show(read: Callable[[], tuple[dict[str, Any], bool | None]], watch: bool, as_json: bool) -> int:
    """One answer; or one each second that differs from the last, until the study is over."""
    from sordino.reporting.feed import status_lines

    shown, running = read()
    body = {"running": running, **shown}
    if not watch:
        return answer(as_json, body, status_lines(shown, running))
    if as_json:
        last = None
        while True:
            if body != last:
                typer.echo(json.dumps(body))
            if shown["now"]["over"] is not None or running is False:
                return int(ExitCode.OK)
            time.sleep(_EVERY_S)
            last, (shown, running) = body, read()
            body = {"running": running, **shown}
    from rich.live import Live
    from rich.text import Text

    with Live(auto_refresh=False) as live:
        while True:
            live.update(Text("\n".join(status_lines(shown, running))), refresh=True)
            if shown["now"]["over"] is not None:
                return int(ExitCode.OK)
            time.sleep(_EVERY_S)
            shown, running = read()


def _page_of(configuration: StudyConfiguration) -> dict[str, Any] | None:
    """The feed of the coordinator that serves a folder; None where none answers."""
    from server.http_port import ADDRESS_FILE
    from server.page_guard import PASSWORD_FILE

    state = configuration.coordinator.state
    address, secret = state.with_name(ADDRESS_FILE), state.with_name(PASSWORD_FILE)
    try:
        at = address.read_text(encoding="utf-8").strip()  # a crash leaves it
        return ask(f"http://{at}", secret.read_text(encoding="utf-8").strip() if secret.exists() else "")
    except (FileNotFoundError, NetworkFailure):
        return None


def _of_folder(configuration: StudyConfiguration) -> tuple[dict[str, Any], bool | None]:
    """What the coordinator's page says, or else its journal; and whether that page answers, None if it has none."""
    from server.journal import read_events
    from sordino.reporting.feed import StudyFeed

    shown = _page_of(configuration)
    if shown is not None:
        return shown, True
    feed = StudyFeed(configuration.coordinator.state)
    for event in read_events(configuration.coordinator.state):
        feed.apply(event)
    if not configuration.coordinator.http_listen:
        return feed.snapshot(time.time()), None
    return feed.snapshot(feed.view.last_at), False


def _panel(configuration: StudyConfiguration) -> None:
    """The panel of ``sordino serve`` over the journal, until the study or its coordinator ends.

    Without a terminal: plain lines of what happens from now on.
    """
    from server.journal import read_events
    from sordino.reporting.panel import Display, StudyPanel

    panel, with_page = StudyPanel(), bool(configuration.coordinator.http_listen)
    state, seen, asked = configuration.coordinator.state, 0, 0.0
    for event in read_events(state):
        seen = event.seq
        panel.apply(event)
    with Display(panel) as display:
        while panel.view.finished is None:
            if with_page and time.monotonic() >= asked + _ANSWER_S:
                asked = time.monotonic()
                if _page_of(configuration) is None:
                    return
            time.sleep(_EVERY_S / 4)
            for event in read_events(state, seen):
                seen = event.seq
                display.show(event)


def ask(address: str, password: str = "") -> dict[str, Any]:
    """The feed of a page. Raises NetworkFailure: no page answers there; InputFailure: it wants another password."""
    parts = urlsplit(address)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    basic = base64.b64encode(f"sordino:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {basic}"} if password else {}

    try:
        connection = kind(parts.netloc, timeout=_ANSWER_S)
        try:
            connection.request("GET", f"{parts.path.rstrip('/')}/feed", headers=headers)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status == 401:
            raise InputFailure(f"{address} asks for a password: --password FILE, with http.password of the coordinator")
        found = json.loads(body) if response.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NetworkFailure(f"no page of a study answers at {address}: {error}") from error
    if not isinstance(found, dict) or "now" not in found:
        raise NetworkFailure(f"no page of a study answers at {address}: it said {response.status}")
    return found
