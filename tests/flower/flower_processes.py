"""Flower as it is deployed: a SuperLink, SuperNodes and runs, each a process of its own, on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runtime.processes import free_port

PATIENCE_S = 600.0
BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parents[2]
_COLOUR = re.compile(r"\x1b\[\d*m")


class Flower:
    """One SuperLink; ``work`` holds the logs and Flower's own files."""

    def __init__(self, work: Path) -> None:
        self.work, self.port = work, free_port()
        self.nodes: list[subprocess.Popen[bytes]] = []
        (work / "flwr").mkdir(parents=True, exist_ok=True)
        (work / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(work / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.work / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=self.environment,
                start_new_session=True,
            )

    def run(self, app: Path, **config: Any) -> str:
        """Run an app to its end; returns its log, without colours."""
        given = " ".join(f"{name.replace('_', '-')}={json.dumps(value)}" for name, value in config.items())
        done = subprocess.run(
            [str(BIN / "flwr"), "run", str(app), "--stream", *(["--run-config", given] if given else [])],
            capture_output=True,
            text=True,
            env=self.environment,
            timeout=PATIENCE_S,
            check=False,
        )
        return _COLOUR.sub("", done.stdout + done.stderr)

    def simulate(self, nodes: int) -> None:
        """Have runs simulated, with this many nodes."""
        command = ["federation", "simulation-config", "@none/default", "here", "--num-supernodes", str(nodes)]
        subprocess.run([str(BIN / "flwr"), *command], env=self.environment, check=True, capture_output=True)

    def add_node(self, number: int, nodes: int, home: Path) -> None:
        config = f'partition-id={number} num-partitions={nodes} sordino-home="{home}"'
        link = f"127.0.0.1:{self.port}"
        command = ["flower-supernode", "--insecure", "--superlink", link, "--port", str(free_port())]
        self.nodes.append(self.start(f"node-{number}", *command, "--node-config", config))


@contextlib.contextmanager
def flower(work: Path, *, simulation: bool) -> Iterator[Flower]:
    """A SuperLink, for simulated nodes or for SuperNodes."""
    one = Flower(work)
    command = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(one.port)]
    link = one.start("superlink", *command, *(["--simulation"] if simulation else []))
    try:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", one.port), 1):
                break
            time.sleep(0.1)
        yield one
    finally:
        for process in (*one.nodes, link):
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """A process with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def app_in(folder: Path, source: Path, patch: Path | None = None) -> Path:
    """A copy of an app, perhaps changed by a patch."""
    app = shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if patch is not None:
        subprocess.run(["patch", "-p1", "-i", str(patch)], cwd=app, check=True, capture_output=True)
    return app
