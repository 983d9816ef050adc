"""Commands that start processes: starting one that Ctrl-C reaches, and finding what it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def processes_of(folder: Path) -> dict[int, str]:
    """Processes with ``folder`` on their command line, but for this one: id -> command line, separated by NUL."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(folder) in line:
                found[int(entry.name)] = line
    return found


def wait_for(condition: Callable[[], object], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.05)
    return False


def start_interruptible(command: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
    """Start a command that SIGINT reaches, also when this process ignores it (tests in a shell's background).

    A child inherits an ignored signal but not a handled one. ``preexec_fn`` would set it too, but forks this process
    while gRPC's threads run, and the child can hang before it becomes the command.
    """
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, **more)
    finally:
        signal.signal(signal.SIGINT, inherited)
