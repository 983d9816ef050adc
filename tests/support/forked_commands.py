"""The command in processes of its own that needn't load everything first: a warm process forks for each.

What takes most of the time of a command that ends at once is the loading of its modules, the same each time. Here it is
done once, by a process that runs no event loop and opens no channel; what it forks has its own id, files, environment,
exit code and signals as any process, and replaces itself by exec where the command does.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from runtime.child_process import child_environment

TIMEOUT_S: Final = 60
_MODULES: Final = (
    "grpc.aio",
    "authority.link",
    "authority.visit",
    "client.participant_host",
    "server.coordinator",
    "sordino.cli.authority_run",
    "sordino.cli.budget",
    "sordino.cli.join",
    "sordino.cli.report",
    "sordino.cli.serve",
    "sordino.reporting.panel",
    "sordino.reporting.study_text",
    "uvloop",
    "wire.enrolment",
    "wire.records.ledger",
)
_WARM: Final = """
import gc, importlib, json, os, runpy, signal, sys
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
from sordino.cli import main
gc.freeze()  # shared with what is forked
files = sys.stdin
for line in files:
    request = json.loads(line)
    if "started" in request:
        pid, status = os.waitpid(request["started"], request["options"])
        print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
        continue
    child = os.fork()
    if not child:
        nothing = os.open(os.devnull, os.O_RDONLY)
        out, err = (os.open(request[name], os.O_WRONLY | os.O_APPEND) for name in ("out", "err"))
        for number, place in enumerate((nothing, out, err)):
            os.dup2(place, number)
        sys.stdin = open(0, closefd=False)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["cwd"])
        sys.argv = request["arguments"]
        signal.alarm(request["timeout_s"])
        if sys.argv[0] != "sordino":
            runpy.run_path(sys.argv[0], run_name="__main__")
        sys.exit(main())
    print(child, flush=True)
"""


@dataclass
class Forked:
    """A process that was forked, as far as tests use `subprocess.Popen`."""

    commands: Commands
    pid: int
    args: Sequence[str]
    returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(os.WNOHANG)

    def wait(self) -> int:
        code = self._ended(0)
        assert code is not None
        return code

    def _ended(self, options: int) -> int | None:
        if self.returncode is None:
            self.returncode = self.commands.ask(started=self.pid, options=options)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Commands:
    """Starts `sordino` with arguments, or a script."""

    def __init__(self) -> None:
        self._warm = subprocess.Popen(  # ends with this process, which closes its standard input
            [sys.executable, "-c", _WARM, json.dumps(_MODULES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )

    def ask(self, **request: Any) -> Any:
        """Hand the warm process one request; its answer."""
        assert self._warm.stdin is not None
        assert self._warm.stdout is not None
        self._warm.stdin.write(json.dumps(request) + "\n")
        self._warm.stdin.flush()
        return json.loads(self._warm.stdout.readline())

    def start(
        self, arguments: Sequence[str], out: Path, err: Path, overrides: Mapping[str, str] = {}, timeout_s: int = 0
    ) -> Forked:
        """Start "sordino" or a script with the arguments behind it, which writes to these files.

        Args:
            overrides: environment variables, beside those of `child_environment`.
            timeout_s: after these seconds an alarm ends it; 0: never.
        """
        environment = child_environment() | dict(overrides)
        files = {"out": str(out), "err": str(err), "cwd": str(Path.cwd())}
        pid = self.ask(arguments=list(arguments), environment=environment, timeout_s=timeout_s, **files)
        return Forked(self, pid, arguments)

    def __call__(self, *arguments: Any) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run([python, "-m", "sordino", ...])`` with nothing to read and everything captured."""
        words = [str(one) for one in arguments]
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            for file in (out, err):
                file.touch()
            code = self.start(["sordino", *words], out, err, timeout_s=TIMEOUT_S).wait()
            return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())


@cache
def commands() -> Commands:
    """The one of this process."""
    return Commands()
