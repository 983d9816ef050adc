"""The command in processes of its own that needn't load everything first: a warm process forks for each.

What takes most of the time of a command that ends at once is the loading of its modules, the same each time. Here it is
done once, by a process that runs no event loop and opens no channel; what it forks has its own id, files, environment,
exit code and signals as any process, and replaces itself by exec where the command does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from runtime.child_process import child_environment

TIMEOUT_S: Final = 60
_MODULES: Final = (
    "grpc.aio",
    "client.host_file",
    "server.study_file",
    "server.coordinator",
    "sordino.cli.budget",
    "sordino.cli.join",
    "sordino.cli.report",
    "sordino.cli.serve",
    "sordino.reporting.closing_lines",
    "sordino.reporting.panel",
    "sordino.reporting.study_text",
    "wire.enrolment",
    "wire.records.ledger",
)
_WARM: Final = """
import importlib, json, os, signal, sys, time
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
from sordino.cli import main
files = sys.stdin
for line in files:
    request = json.loads(line)
    child = os.fork()
    if not child:
        nothing = os.open(os.devnull, os.O_RDONLY)
        out, err = (os.open(request[name], os.O_WRONLY) for name in ("out", "err"))
        for number, place in enumerate((nothing, out, err)):
            os.dup2(place, number)
        sys.stdin = open(0, closefd=False)
        sys.argv = ["sordino", *request["arguments"]]
        signal.alarm(request["timeout_s"])
        sys.exit(main())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Commands:
    """Runs `sordino` with arguments, one command at a time."""

    def __enter__(self) -> Commands:
        self._warm = subprocess.Popen(
            [sys.executable, "-c", _WARM, json.dumps(_MODULES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=child_environment(),
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._warm.communicate()  # ends it

    def __call__(self, *arguments: Any) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run([python, "-m", "sordino", ...])`` with nothing to read and everything captured."""
        words = [str(one) for one in arguments]
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            for file in (out, err):
                file.touch()
            request = {"arguments": words, "out": str(out), "err": str(err), "timeout_s": TIMEOUT_S}
            assert self._warm.stdin is not None
            assert self._warm.stdout is not None
            self._warm.stdin.write(json.dumps(request) + "\n")
            self._warm.stdin.flush()
            code = int(self._warm.stdout.readline())
            return subprocess.CompletedProcess(words, code, out.read_text(), err.read_text())
