"""No process that holds keys leaves its memory behind, or lets another one look into it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from pathlib import Path

import pytest

from runtime.processes import run_event_loop

ROOT = Path(__file__).resolve().parents[2]
MOST = "import resource as r; _, hard = r.getrlimit(r.RLIMIT_CORE); r.setrlimit(r.RLIMIT_CORE, (hard, hard))\n"
FACTS = (
    "import ctypes, resource, sys\n"
    "print(resource.getrlimit(resource.RLIMIT_CORE), ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), flush=True)\n"
)
CRASH = "import os; os.abort()\n"

# What a process has done when it holds its first key: the command for every verb, and the client after its exec.
COMMAND = "import sordino.cli\nsordino.cli._invoke = lambda arguments: run() or 0\nsordino.cli.main()\n"
CLIENT = (
    "import client.participant_host, client.process, tempfile\n"
    "from pathlib import Path\n"
    "from client.host_file import load\n"
    "from authority.new_study import *\n"
    "folder = Path(tempfile.mkdtemp(dir='.')) / 'study'\n"
    "make_local_study(folder, new_study(participants=10, hosts=1, rounds=1))\n"
    "client.participant_host.join = lambda settings, service: run() or 0\n"
    "file = tempfile.TemporaryFile()\n"
    "file.write(b'00' + load(folder / 'hosts' / 'host-01').settings().to_json().encode())\n"
    "file.seek(0)\n"
    "client.process.main(file.fileno())\n"
)


def ended(script: str, folder: Path) -> tuple[int, str]:
    """The wait status of a process with this script, and what it printed. From the folder: a core would lie there."""
    out = folder / "out"
    with out.open("wb") as file:
        null = os.open(os.devnull, os.O_RDWR)
        arguments = [sys.executable, "-c", f"import os, sys; sys.path.insert(0, {str(ROOT)!r})\n" + script]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
        actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, file.fileno(), 1)]
        arguments[2] = f"import os; os.chdir({str(folder)!r})\n" + arguments[2]
        pid = os.posix_spawn(sys.executable, arguments, environment, file_actions=actions)
        os.close(null)
    _, status = os.waitpid(pid, 0)
    for core in folder.glob("core*"):
        core.unlink()
    return status, out.read_text()


@pytest.mark.parametrize("start", [COMMAND, CLIENT], ids=["command", "client after its exec"])
def test_limit_and_mark(start: str, tmp_path: Path) -> None:
    status, told = ended(MOST + f"def run():\n    exec({FACTS!r})\n" + start, tmp_path)
    assert os.waitstatus_to_exitcode(status) == 0
    assert told.split() == ["(0,", "0)", "0" if sys.platform == "linux" else told.split()[-1]]


def test_a_crash_leaves_no_core(tmp_path: Path) -> None:
    """The naive process, with the same limit, does: the kernel says so in its wait status."""
    status, _ = ended(MOST + CRASH, tmp_path)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGABRT
    if not os.WCOREDUMP(status):
        pytest.skip("this system writes no cores")
    status, _ = ended(MOST + f"def run():\n    exec({CRASH!r})\n" + COMMAND, tmp_path)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGABRT
    assert not os.WCOREDUMP(status)


@pytest.mark.skipif(sys.platform != "linux", reason="the mark is Linux's")
def test_each_of_the_two_is_enough(tmp_path: Path) -> None:
    """A system that pipes cores to a collector ignores the limit, so the mark must hold by itself."""
    before = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)
    assert before == 1, "these tests themselves run as an ordinary process"
    without_limit = "import resource\nresource.setrlimit = lambda *_: None\n"
    status, _ = ended(MOST + without_limit + f"def run():\n    exec({CRASH!r})\n" + COMMAND, tmp_path)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGABRT
    assert not os.WCOREDUMP(status)


@pytest.mark.parametrize("name", ["uvloop", "asyncio"])
def test_the_event_loop_is_uvloops_where_there_is_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def loop() -> str:
        return type(asyncio.get_running_loop()).__module__.partition(".")[0]

    if name == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    else:
        pytest.importorskip("uvloop")
    assert run_event_loop(loop()) == name
