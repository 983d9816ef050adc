"""A client as a system service: what systemd hears of it, with a socket in systemd's place."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

import client.settings
from client.log_lines import use_service_lines
from runtime.child_process import child_environment
from runtime.processes import free_port
from runtime.service_notify import LONGEST_STATUS, Notifier
from sordino.cli import main
from tests.support.study_in_process import make_folder

PATIENCE_S = 60.0


@pytest.fixture(params=["abstract", "file"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket, and NOTIFY_SOCKET's value for it."""
    name = f"@sordino-test-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind("\0" + name[1:] if name.startswith("@") else name)
        channel.settimeout(PATIENCE_S)
        yield channel, name


async def test_ready_lives_and_ends(systemd: tuple[socket.socket, str]) -> None:
    channel, name = systemd
    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "40000", "WATCHDOG_PID": str(os.getpid())})

    channel.setblocking(False)
    heard: list[str] = []

    async def work() -> int:
        async with asyncio.timeout(PATIENCE_S):
            while heard.count("WATCHDOG=1") < 3:
                await asyncio.sleep(0.005)
                with contextlib.suppress(BlockingIOError):
                    heard.append(channel.recv(4096).decode())
        return 7

    assert await notifier.around(work()) == 7
    notifier.status("two\nlines" + "x" * 2 * LONGEST_STATUS)
    while not heard[-1].startswith("STATUS"):
        heard.append(channel.recv(4096).decode())
    assert heard[0] == "READY=1"
    assert heard[-2] == "STOPPING=1"
    assert heard[-1].startswith("STATUS=two linesxxx")
    assert len(heard[-1]) == len("STATUS=") + LONGEST_STATUS


async def test_a_loop_that_hangs_gives_no_sign(systemd: tuple[socket.socket, str]) -> None:
    """The naive way, a thread that reports to systemd, would also report for a process that hangs."""
    channel, name = systemd
    notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000"})

    async def work() -> None:
        await asyncio.sleep(0.05)
        channel.setblocking(False)
        while True:
            try:
                channel.recv(4096)
            except BlockingIOError:
                break
        time.sleep(0.1)  # the event loop hangs
        with pytest.raises(BlockingIOError):
            channel.recv(4096)

    await notifier.around(work())


def test_without_systemd() -> None:
    """Under another supervisor, or after systemd ended: nothing is sent, and nothing fails."""
    assert not Notifier({}).tell(READY="1")
    assert not Notifier({"NOTIFY_SOCKET": "/nowhere/at/all"}).tell(READY="1")
    assert Notifier({"WATCHDOG_USEC": "1000000"}).watchdog_s is None
    at = {"NOTIFY_SOCKET": "@somewhere"}
    assert Notifier(at | {"WATCHDOG_USEC": "3000000"}).watchdog_s == 3.0
    assert Notifier(at | {"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}).watchdog_s is None  # not this process
    assert Notifier(at | {"WATCHDOG_USEC": "never"}).watchdog_s is None


def test_levels_for_the_journal(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    notifier = Notifier({})
    notifier.status = told.append  # type: ignore[method-assign]
    before = structlog.get_config()
    try:
        for where, start in (({"JOURNAL_STREAM": "8:1"}, "<4>{"), ({}, "{")):
            structlog.configure(
                processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
                logger_factory=structlog.PrintLoggerFactory(),
            )
            use_service_lines(notifier, where)
            structlog.get_logger().warning("left out", reason="its <b>\nnext")
            [line] = capsys.readouterr().out.splitlines()
            assert line.startswith(start)
            assert json.loads(line[line.index("{") :])["reason"] == "its <b>\nnext"
    finally:
        structlog.configure(**before)
    assert told == ["warning: left out (reason: its <b> next)"] * 2


def test_the_command_without_a_coordinator(tmp_path: Path, systemd: tuple[socket.socket, str]) -> None:
    """It is ready without a coordinator, never gives up despite host.toml, and ends well on SIGTERM."""
    channel, name = systemd
    if not name.startswith("@"):
        pytest.skip("once is enough")
    home = make_folder(tmp_path / "study", listen=f"127.0.0.1:{free_port()}") / "hosts" / "host-01"
    settings = home / "host.toml"
    text = settings.read_text()
    line = next(one for one in text.splitlines() if one.startswith("give_up_s"))
    settings.write_text(text.replace(line, "give_up_s = 0.01"))
    environment = child_environment() | {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "400000", "JOURNAL_STREAM": "1:1"}
    command = [sys.executable, "-m", "sordino", "join", "--service", "--home", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        heard = [channel.recv(4096).decode()]
        while sum(one == "WATCHDOG=1" for one in heard) < 5:  # a second: give_up_s would be over long ago
            heard.append(channel.recv(4096).decode())
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    while heard[-1] != "STOPPING=1":
        heard.append(channel.recv(4096).decode())
    assert heard[0] == "READY=1"
    assert any(one.startswith("STATUS=coordinator away, trying again until it is stopped") for one in heard)
    assert [line[:4] for line in said.decode().splitlines()] == ["<6>{"] * len(said.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--service"], "--service needs --home DIR"),
        (["localhost:8444", "--service", "--yes", "--home", "{}"], "there is no join code: hand it over as systemd's"),
        (["--service", "--home", "{}"], "holds no host.toml, so it isn't a host's folder"),
    ],
)
def test_what_is_missing(
    tmp_path: Path,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "join-code").write_text(" \n")  # as in the unit, where there is no such file
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["join", *(one.format(tmp_path) for one in arguments)])
    assert ended.value.code == 2  # which systemd doesn't start again
    assert words in " ".join(capsys.readouterr().err.split())


def test_the_settings_say_who_takes_them_over() -> None:
    named = re.findall(r"`(\w+\.\w+)`", client.settings.__doc__ or "")
    assert named
    assert [name for name in named if importlib.util.find_spec(name) is None] == []
