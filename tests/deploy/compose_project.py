"""A compose project of its own for a test: brought up, looked into, and taken away with all that it made."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
STUDY: Final = "/var/lib/sordino/study"

# Run inside the coordinator's container: what its journal says, as one JSON object a line.
_EVENTS: Final = """
import json, sqlite3, sys
journal = sqlite3.connect(f"file:{sys.argv[1]}/coordinator/state.sqlite?mode=ro", uri=True)
for seq, at, kind, body in journal.execute("SELECT seq, at, kind, body FROM events WHERE seq > ?", (int(sys.argv[2]),)):
    print(json.dumps({"seq": seq, "at": at, "kind": kind} | json.loads(body)))
"""


class ComposeError(Exception):
    """Something isn't as it must be; one sentence."""


def compose_command() -> list[str]:
    """`docker compose` where there is one, else `docker-compose` 1.29 or later; COMPOSE names another."""
    if named := os.environ.get("COMPOSE"):
        return named.split()
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    raise ComposeError("neither `docker compose` nor docker-compose is here: install one, and start the engine")


@dataclass
class Project:
    """One compose project."""

    study: str
    settings: Mapping[str, str]
    name: str = field(default_factory=lambda: f"sordino-test-{secrets.token_hex(3)}")
    command: list[str] = field(default_factory=compose_command)
    _seen: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def compose(self, *arguments: str, quiet: bool = True) -> str:
        """Run a command of compose; returns its output.

        Raises:
            ComposeError: it failed, with its last lines.
        """
        named = {"SORDINO_STUDY": self.study, "COMPOSE_PROJECT_NAME": self.name}
        environment = {**os.environ, **named, **self.settings}
        return _run([*self.command, *arguments], environment, quiet=quiet)

    def up(self, clients: int) -> None:
        """Start everything that isn't running, with this number of clients."""
        self.compose("up", "-d", "--no-build", "--scale", f"client={clients}")

    def containers(self, service: str, *, stopped: bool = False) -> list[str]:
        """Ids of a service's containers."""
        chosen = ["--filter", f"label=com.docker.compose.project={self.name}"]
        chosen += ["--filter", f"label=com.docker.compose.service={service}"]
        return docker("ps", "-q", "--no-trunc", *(["-a"] if stopped else []), *chosen).split()

    def http(self, path: str) -> tuple[int, str]:
        """Ask the coordinator's HTTP port; status 0 if there is no answer."""
        try:
            [coordinator] = self.containers("coordinator")
            port = docker("port", coordinator, "9464").split(":")[-1].strip()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=3) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (OSError, ValueError, ComposeError):
            return 0, ""

    def read_events(self) -> list[dict[str, Any]]:
        """Return the events since the last call, in order; all of them are in ``events``."""
        [coordinator] = self.containers("coordinator")
        asked = ["python3", "-", f"{STUDY}/{self.study}", str(self._seen)]
        said = docker("exec", "-i", coordinator, *asked, stdin=_EVENTS)
        fresh = [json.loads(line) for line in said.splitlines()]
        if fresh:
            self._seen = fresh[-1]["seq"]
        self.events += fresh
        return fresh

    def wait_for(self, what: str, found: Callable[[dict[str, Any]], bool], longest_s: float) -> dict[str, Any]:
        """Return the first event from now on for which ``found`` holds.

        Raises:
            ComposeError: none came in time.
        """
        deadline = time.monotonic() + longest_s
        while time.monotonic() < deadline:
            try:
                fresh = self.read_events()
            except (ComposeError, ValueError):  # the coordinator is being started, or cut off
                fresh = []
            for event in fresh:
                if found(event):
                    return event
            time.sleep(0.1)
        raise ComposeError(f"{what}: not within {longest_s:g} s")

    def left_behind(self) -> list[str]:
        """Return what the engine still has of this project."""
        label = f"label=com.docker.compose.project={self.name}"
        kinds = {"container": ["ps", "-aq"], "volume": ["volume", "ls", "-q"], "network": ["network", "ls", "-q"]}
        return [
            f"{kind} {one}" for kind, listing in kinds.items() for one in docker(*listing, "--filter", label).split()
        ]


@contextmanager
def project(study: str, settings: Mapping[str, str]) -> Iterator[Project]:
    """A project that is taken away however the block ends."""
    made = Project(study, settings)
    try:
        yield made
    finally:
        made.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")


def docker(*arguments: str, stdin: str | None = None) -> str:
    """Run docker; returns its output. Raises `ComposeError`: it failed."""
    return _run(["docker", *arguments], dict(os.environ), stdin=stdin)


def _run(command: list[str], environment: Mapping[str, str], *, stdin: str | None = None, quiet: bool = True) -> str:
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=dict(environment),
        input=stdin,
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if quiet else None,
    )
    if done.returncode:
        said = ((done.stderr or "") + done.stdout).strip().splitlines()[-8:]
        raise ComposeError(f"`{' '.join(command)}` ended with {done.returncode}: " + " | ".join(said))
    return done.stdout
