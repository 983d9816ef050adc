"""``sordino status``: what a study does, from another terminal or another machine."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from runtime.durable import is_in_use
from runtime.failure import ExitCode, Failure, InputFailure, NetworkFailure
from sordino.cli.verbs import Json, answer, argument, epilog, flag, option

if TYPE_CHECKING:
    from sordino.reporting.feed import Snapshot

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
        str, argument("DIR|study.toml|http://HOST:PORT", "The study's folder or file, or the address of its page.")
    ],
    watch: Annotated[bool, flag("--watch", "Go on until the study ends or Ctrl-C.")] = False,
    password: Annotated[Path | None, option("FILE", "With the page's password.", shown="none")] = None,
    as_json: Json = False,
) -> int:
    if study.startswith(("http://", "https://")):
        secret = "" if password is None else password.read_text(encoding="utf-8").strip()
        return _show(lambda: (ask(study, secret), True), watch, as_json)
    if password is not None:
        raise InputFailure("--password is for the address of a page. Leave it out for a folder.")
    from sordino.api.coordinator import study_to_serve

    if ":" in study and not Path(study).exists():
        raise InputFailure(f"{study}: there is no such folder; the address of a page begins with http://")
    configuration = study_to_serve(Path(study), of_a_host="join --status --home", of_an_authority="authority show")
    state = configuration.coordinator.state
    if not state.is_file():
        if state.with_name("ledger.sqlite").exists():
            raise Failure(ExitCode.LEDGER, f"{state} is missing, beside a ledger: restore the newest backup of {study}")
        never = f"The study {configuration.study.name} was never served: sordino serve {study}"
        return answer(as_json, {"running": False, "study": {"name": configuration.study.name}, "said": never}, [never])
    if watch and not as_json:
        _panel(state)
        watch = False
    return _show(_feed_of(state), watch, as_json)


def _show(read: Callable[[], tuple[Snapshot, bool]], watch: bool, as_json: bool) -> int:
    """One answer; or one each second that differs from the last, until the study is over."""
    from rich.live import Live
    from rich.text import Text

    from sordino.reporting.feed import status_lines

    last: dict[str, Any] = {}
    found = read()  # before a screen begins: it may fail
    with Live(auto_refresh=False) if watch and not as_json else contextlib.nullcontext() as live:
        while True:
            shown, running = found
            body = {"running": running, **shown}
            if live is not None:
                live.update(Text("\n".join(status_lines(shown, running))), refresh=True)
            elif body != last:
                answer(as_json, body, status_lines(shown, running))
            if not watch or shown["now"]["over"] is not None or not running:
                return int(ExitCode.OK)
            time.sleep(_EVERY_S)
            last, found = body, read()


def _feed_of(state: Path) -> Callable[[], tuple[Snapshot, bool]]:
    """The feed of the coordinator's page, from the journal; for `_show`."""
    from server.journal import NewEvents
    from sordino.reporting.feed import StudyFeed

    feed, new_events = StudyFeed(state), NewEvents(state)

    def read() -> tuple[Snapshot, bool]:
        running = is_in_use(state)
        for event in new_events.read():
            feed.apply(event)
        if not running:
            feed.view.nobody_is_connected()
        return feed.snapshot(time.time() if running else feed.view.last_at), running

    return read


def _panel(state: Path) -> None:
    """The panel of ``sordino serve`` over the journal, until the study or its coordinator ends.

    Without a terminal: plain lines of what happens from now on.
    """
    from server.journal import NewEvents
    from sordino.reporting.panel import Display, StudyPanel

    panel, new_events, running = StudyPanel(), NewEvents(state), is_in_use(state)
    panel.view.apply_all(new_events.read())
    with Display(panel, stream=sys.stdout) as display:
        while running and panel.view.finished is None:
            time.sleep(_EVERY_S / 4)
            running = is_in_use(state)
            for event in new_events.read():
                display.show(event)


def ask(address: str, password: str = "") -> dict[str, Any]:
    """The feed of a page. Raises NetworkFailure: no page answers there; InputFailure: it wants another password."""
    parts = urlsplit(address)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    basic = base64.b64encode(f"sordino:{password}".encode()).decode()
    headers = {"Authorization": f"Basic {basic}"} if password else {}

    try:
        with contextlib.closing(kind(parts.netloc, timeout=_ANSWER_S)) as connection:
            connection.request("GET", f"{parts.path.rstrip('/')}/feed", headers=headers)
            response = connection.getresponse()
            body = response.read()
        if response.status == 401:
            wanted = "has another password than that file" if password else "asks for a password"
            raise InputFailure(f"{address} {wanted}: --password FILE, with http.password of the coordinator")
        found = json.loads(body) if response.status == 200 else None
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or error
        where = "look at the address that `sordino serve` prints when it starts"
        raise NetworkFailure(f"no page of a study answers at {address} ({why}): {where}") from error
    if not isinstance(found, dict) or "now" not in found:
        raise NetworkFailure(f"no page of a study answers at {address}: it said {response.status}")
    return found
