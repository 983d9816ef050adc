"""A container's health check, and the file that the processes behind it touch: in every wait, however long that is."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.child_process import child_environment
from runtime.processes import free_port
from tests.support.commands import in_a_process
from tests.support.enrolment_port import Authority, port_in_thread
from tests.support.processes_left import wait_for
from tests.support.study_in_process import make_folder

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of processes that have a health file, and show life often, through an exec, too."""
    (tmp_path / "often").mkdir()
    often = "import runtime.health_file\nruntime.health_file.EVERY_S = 0.05\n"
    (tmp_path / "often" / "sitecustomize.py").write_text(often)
    path = os.pathsep.join([str(tmp_path / "often"), str(ROOT)])
    return child_environment() | {"PYTHONPATH": path, "SORDINO_HEALTH_FILE": str(tmp_path / "health")}


@contextlib.contextmanager
def started(tmp_path: Path, environment: dict[str, str], *arguments: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process; ended with what it does."""
    command = [sys.executable, "-m", "sordino", *map(str, arguments)]
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=environment, cwd=tmp_path)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def until_said(tmp_path: Path, words: str) -> None:
    said = tmp_path / "said"
    assert wait_for(lambda: words in said.read_text(), PATIENCE_S), said.read_text()


def shows_life(tmp_path: Path, environment: dict[str, str], words: str, *arguments: str | Path) -> None:
    """It touches the file again and again, as long as it waits for what it says it waits for."""
    with started(tmp_path, environment, *arguments):
        until_said(tmp_path, words)
        for _ in range(3):
            (tmp_path / "health").unlink(missing_ok=True)
            assert wait_for((tmp_path / "health").exists, 5)


def test_a_client_that_waits_to_be_admitted(tmp_path: Path, environment: dict[str, str]) -> None:
    authority = Authority()
    (tmp_path / "port").mkdir()
    with port_in_thread(tmp_path / "port", authority, signs=False) as (where, _):
        code = authority.code().to_text()
        asks = ("join", where.address, "--code", code, "--yes", "--service", "--home", tmp_path / "home")
        for command in (asks, ("join", "--home", tmp_path / "home")):  # the second: the same, begun before
            shows_life(tmp_path, environment, "waiting for the study's authority to sign", *command)


def test_a_client_that_waits_for_the_coordinator_or_the_socket(tmp_path: Path, environment: dict[str, str]) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    asks = ("join", nobody, "--yes", "--service", "--desk", tmp_path / "desk", "--home", tmp_path / "home")
    shows_life(tmp_path, environment, "Trying again for", *asks)
    (tmp_path / "port").mkdir()
    with port_in_thread(tmp_path / "port", Authority()) as (where, _):
        shows_life(tmp_path, environment, "Waiting for the authority's socket", "join", where.address, *asks[2:])


@pytest.mark.parametrize("options", [(), ("--service",)])
def test_the_coordinator_is_away(tmp_path: Path, environment: dict[str, str], options: tuple[str, ...]) -> None:
    home = make_folder(tmp_path / "study", listen=f"127.0.0.1:{free_port()}") / "hosts" / "host-01"
    shows_life(tmp_path, environment, "coordinator away", "join", "--home", home, *options)


def test_an_authority_that_asks_every_hour(tmp_path: Path, environment: dict[str, str]) -> None:
    home = tmp_path / "authority"
    in_a_process("authority", "init", home, "--study", "s", "--coordinator", f"localhost:{free_port()}")
    shows_life(tmp_path, environment, "can't be reached", "authority", "run", home, "--every", "1h")


@pytest.mark.parametrize("party", ["coordinator", "authority"])
def test_a_service_tells_systemd_that_it_is_ready_and_how_it_goes(
    tmp_path: Path, environment: dict[str, str], party: str
) -> None:
    home, status = tmp_path / "authority", "STATUS=the authority of s asks"
    command: tuple[str | Path, ...] = ("authority", "run", home, "--service")
    if party == "authority":
        in_a_process("authority", "init", home, "--study", "s", "--coordinator", f"localhost:{free_port()}")
    else:
        status = "STATUS=waiting for participants"
        command = ("serve", make_folder(tmp_path / "study", listen=f"127.0.0.1:{free_port()}"), "--service")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "systemd"))
        systemd.settimeout(PATIENCE_S)
        variables = environment | {"NOTIFY_SOCKET": str(tmp_path / "systemd"), "WATCHDOG_USEC": "200000"}
        heard = ""
        with started(tmp_path, variables, *command) as process:
            while not all(one in heard for one in ("READY=1", status, "WATCHDOG=1")):
                heard += systemd.recv(4096).decode()
            process.terminate()
            while "STOPPING=1" not in heard:
                heard += systemd.recv(4096).decode()
            assert process.wait(PATIENCE_S) == 0


def test_without_the_variable_nothing_is_touched(tmp_path: Path, environment: dict[str, str]) -> None:
    del environment["SORDINO_HEALTH_FILE"]
    home = make_folder(tmp_path / "study", listen=f"127.0.0.1:{free_port()}") / "hosts" / "host-01"
    with started(tmp_path, environment, "join", "--home", home):
        until_said(tmp_path, "coordinator away")
    assert not (tmp_path / "health").exists()


def test_the_check_tells_which_variables_it_reads() -> None:
    text = (ROOT / "deploy" / "healthcheck.py").read_text()
    told = re.findall(r"SORDINO_\w+", text.split('"""')[1])
    assert set(told) == set(re.findall(r'"(SORDINO_\w+)"', text))
