"""Processes that demo and load test start: the coordinator and the clients, each with its log file.

Each is in a separate session, so that Ctrl-C reaches only the process that started it, and each ends when that one is
gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from runtime.processes import BLAS_THREADS, cpu_seconds, peak_resident_mb, processes_below

STOP_S: Final = 8.0  # how long a process may take to end after SIGTERM, before it is killed
_POLL_S: Final = 0.05
_GRACE_S: Final = 2.0


@dataclass
class Child:
    """One child process: one of our modules with arguments, and a log file for its output."""

    name: str
    arguments: list[str]
    log: Path
    process: subprocess.Popen[bytes] | None = None
    module: str = "sordino"
    peak_mb: float = 0.0
    cpu_s: float = 0.0  # user and system time at the last measurement
    below: dict[int, float] = field(default_factory=dict)  # the same of each process below it
    killed: bool = False  # on purpose, to be started again
    ended: bool = False  # by itself, and this has been reported

    def start(self, environment: Mapping[str, str]) -> None:
        self.killed = False
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, *self.arguments, "--end-with", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environment),
                start_new_session=True,
            )

    def poll(self) -> int | None:
        return None if self.process is None else self.process.poll()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)  # nothing where it has ended

    def kill(self) -> None:
        """As a power cut does: without a chance to clean up."""
        self.killed = True
        self.signal(signal.SIGKILL)

    def measure(self) -> None:
        if self.process is not None and self.running:
            self.peak_mb = max(self.peak_mb, peak_resident_mb(self.process.pid) or 0.0)
            self.cpu_s = max(self.cpu_s, cpu_seconds(self.process.pid) or 0.0)
            for one in processes_below(self.process.pid):
                self.below[one] = max(self.below.get(one, 0.0), cpu_seconds(one) or 0.0)

    @property
    def below_cpu_s(self) -> float:
        return sum(self.below.values())

    def last_words(self) -> str:
        """The last line of its log, for an error message."""
        with contextlib.suppress(OSError):
            lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            if lines:
                return lines[-1][:300]
        return "its log is empty"


@dataclass
class StopRequest:
    """Whether Ctrl-C or SIGTERM has requested the end.

    A KeyboardInterrupt may be raised between any two instructions: when an event is half counted, or when
    `subprocess.Popen` has just taken the lock with which it polls its process, which is then never released.
    """

    to_end: bool = False

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """The first signal sets `to_end`, for a loop that reads it; the second one interrupts."""

        def note(number: int, frame: Any) -> None:
            if self.to_end:
                raise KeyboardInterrupt
            self.to_end = True

        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def stop(coordinator: Child, clients: Sequence[Child]) -> None:
    """Ask all to end, then kill them; a second Ctrl-C kills them at once."""
    with contextlib.suppress(KeyboardInterrupt):
        _ask(coordinator, clients)
    for child in (coordinator, *clients):
        child.signal(signal.SIGKILL)
        if child.process is not None:
            child.process.wait()


def _ask(coordinator: Child, clients: Sequence[Child]) -> None:
    """Wait until all have ended or `STOP_S` has passed. Clients end by themselves once they learn the study's end."""
    coordinator.signal(signal.SIGTERM)
    until = time.monotonic() + STOP_S
    ask_at: float | None = None
    while any(child.running for child in (coordinator, *clients)) and time.monotonic() < until:
        if not coordinator.running:
            ask_at = ask_at if ask_at is not None else time.monotonic() + _GRACE_S
            if time.monotonic() >= ask_at:
                ask_at = until
                for child in clients:
                    child.signal(signal.SIGTERM)
        time.sleep(_POLL_S)


def child_environment() -> dict[str, str]:
    """The environment for child processes: no overrides of settings, and one thread each for linear algebra."""
    environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("SORDINO_")}
    environment |= dict.fromkeys(BLAS_THREADS, "1")
    home = str(Path(__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [home, environment.get("PYTHONPATH", "")]))
    environment["PYTHONUNBUFFERED"] = "1"
    return environment
