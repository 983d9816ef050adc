"""One study by its command line, as a user runs it: init, serve and join in processes of their own, over TLS."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime.child_process import Child, child_environment, stop
from runtime.processes import free_port
from server.journal import read_events
from server.study_view import StudyView

_POLL_S: Final = 0.25


class Unserved(Exception):
    """A study that didn't end as it should, with what its processes said."""


@dataclass(frozen=True)
class Served:
    """How a study ended.

    Attributes:
        report: what ``sordino report --json`` says.
        view: of all its events.
        seconds: from serve to the end.
        coordinator_mb, client_mb: largest resident memory of the coordinator and of one client process.
    """

    report: dict[str, Any]
    view: StudyView
    seconds: float
    coordinator_mb: float
    client_mb: float


def command(*arguments: str) -> str:
    """Run a verb to its end and return what it printed.

    Raises:
        Unserved: it failed.
    """
    asked = [sys.executable, "-m", "sordino", *arguments]
    done = subprocess.run(asked, capture_output=True, text=True, env=child_environment())
    if done.returncode != 0:
        raise Unserved(f"sordino {' '.join(arguments)}: exit code {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


def serve(folder: Path, options: Sequence[str], *, longest_s: float) -> Served:
    """Make a study in ``folder``, serve it, let all its hosts join, and look at what it left.

    Args:
        folder: new.
        options: of ``sordino init``.
        longest_s: after which it is stopped.

    Raises:
        Unserved: a verb failed, a process ended in an error, or it took too long.
    """
    command("init", str(folder), "--listen", f"127.0.0.1:{free_port()}", *options)
    logs = folder.with_name(f"{folder.name}-logs")
    logs.mkdir()
    coordinator = Child("coordinator", ["serve", str(folder), "--quiet"], logs / "coordinator.log")
    hosts = sorted((folder / "hosts").iterdir())
    clients = [Child(home.name, ["join", "--home", str(home)], logs / f"{home.name}.log") for home in hosts]
    began = time.monotonic()
    try:
        for child in (coordinator, *clients):
            child.start(child_environment())
        while coordinator.running:
            for child in (coordinator, *clients):
                child.measure()
            lost = [child for child in clients if not child.running and child.poll() != 0]
            if lost:
                raise Unserved(f"{lost[0].name} ended: {lost[0].last_words()}")
            if time.monotonic() - began > longest_s:
                raise Unserved(f"not done after {longest_s:g} s; the coordinator: {coordinator.last_words()}")
            time.sleep(_POLL_S)
        seconds = time.monotonic() - began
        if coordinator.poll() != 0:
            raise Unserved(f"the coordinator ended with {coordinator.poll()}: {coordinator.last_words()}")
    finally:
        stop(coordinator, clients)
    report = json.loads(command("report", str(folder), "--json"))
    command("budget", "verify", str(folder))
    transcripts = sorted(map(str, (folder / "coordinator" / "transcripts").iterdir()))
    command("transcript", "verify", *transcripts, "--authority", str(folder / "coordinator" / "authority.pub"))
    view = StudyView().apply_all(read_events(folder / "coordinator" / "state.sqlite"))
    return Served(report, view, seconds, coordinator.peak_mb, max(child.peak_mb for child in clients))
