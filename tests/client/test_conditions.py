"""Whether a device may take part now: what is measured, and that leaving never costs the others an attempt."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

import client.participant_host
import server.sessions
from client.conditions import Gate, Machine, NotNow
from client.host_file import load
from client.settings import Conditions, HostSettings
from runtime.processes import has_aes, too_old
from runtime.settings_file import ConfigurationError
from tests.support.host_in_process import host, settings_of
from tests.support.study_in_process import Coordinator, coordinator, until
from wire import coordinator_pb2 as pb

OWN = 77


Tree = Callable[[str, str], None]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Writes a file of the machine's file system."""

    def write(place: str, text: str) -> None:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text + "\n")

    return write


def machine(root: Path) -> Machine:
    return Machine(root, own=OWN)


@pytest.mark.parametrize(
    ("supplies", "mains"),
    [
        ({}, True),  # a Raspberry Pi, a server
        ({"AC": ("Mains", "online", "1"), "BAT0": ("Battery", "status", "Discharging")}, True),
        ({"AC": ("Mains", "online", "0"), "BAT0": ("Battery", "status", "Discharging")}, False),
        ({"usb": ("USB", "online", "1"), "BAT0": ("Battery", "status", "Unknown")}, True),
        ({"BAT0": ("Battery", "status", "Charging")}, True),
        ({"BAT0": ("Battery", "status", "Not charging")}, True),
        ({"BAT0": ("Battery", "status", "Unknown")}, False),
        ({"BAT0": ("Battery", "status", "Full"), "BAT1": ("Battery", "status", "Discharging")}, False),
        ({"ups": ("UPS", "status", "Discharging")}, False),
        ({"mouse": ("Battery", "status", "Discharging")}, True),
    ],
)
def test_mains(tree: Tree, tmp_path: Path, supplies: Mapping[str, tuple[str, str, str]], mains: bool) -> None:
    for name, (kind, what, value) in supplies.items():
        tree(f"sys/class/power_supply/{name}/type", kind)
        tree(f"sys/class/power_supply/{name}/{what}", value)
        if name == "mouse":
            tree(f"sys/class/power_supply/{name}/scope", "Device")
    assert machine(tmp_path).on_mains() is mains
    assert ("mains_power" in machine(tmp_path).why_not(Conditions(mains_power=True))) is not mains
    assert machine(tmp_path).why_not(Conditions()) == {}  # nothing was asked for


def process(tree: Tree, number: int, parent: int, used: int, waited_for: int = 0) -> None:
    zeros = " ".join(["0"] * 9)
    tree(f"proc/{number}/stat", f"{number} (a (name) here) S {parent} {zeros} {used} 0 {waited_for} 0")


def test_idle_means_other_programs(tree: Tree, tmp_path: Path) -> None:
    """Training doesn't count: with the load average, a participant would leave after each of its rounds."""

    def ticks(busy: int, idle: int, own: int) -> None:
        tree("proc/stat", f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0")
        process(tree, OWN, 1, own)

    asked, here = Conditions(idle=True, max_load=0.25), machine(tmp_path)
    ticks(1000, 1000, 0)
    assert "being measured" in here.why_not(asked)["idle"]
    ticks(1900, 1100, 880)  # 90 % busy, nearly all of it this process
    assert here.why_not(asked) == {}
    ticks(2800, 1200, 880)  # now another process
    assert here.why_not(asked)["idle"] == "other programs use 46% of the processors, max_load allows 25%"
    for step in range(1, 4):  # it ended two polls ago
        ticks(2800, 1200 + step * 1000, 880)
    assert here.why_not(asked) == {}


def test_what_a_task_uses_itself_does_not_count(tree: Tree, tmp_path: Path) -> None:
    """In this process, its children and theirs: otherwise the length of its work would reveal something of the data."""
    asked, here = Conditions(idle=True, max_load=0.25, min_free_memory_mb=400), machine(tmp_path)
    loader, helper, stranger = 80, 79, 90

    def look(busy: int, idle: int, available_kb: int) -> dict[str, str]:
        tree("proc/stat", f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0")
        tree("proc/meminfo", f"MemTotal: 900000 kB\nMemAvailable: {available_kb} kB")
        return here.why_not(asked)

    def holds(number: int, anonymous_kb: int) -> None:
        tree(f"proc/{number}/smaps_rollup", f"0-1 ---p 0 00:00 0 [rollup]\nPss: 9 kB\nPss_Anon: {anonymous_kb} kB")

    process(tree, OWN, 1, 0)
    process(tree, stranger, 1, 0)
    holds(OWN, 0)
    assert look(1000, 1000, 400_000).keys() == {"idle"}  # it is being measured
    assert look(1000, 1100, 400_000) == {}
    process(tree, OWN, 1, 100)
    process(tree, loader, OWN, 400)
    process(tree, helper, loader, 300)
    tree("proc/self/stat", "no process")
    for one, kb in ((OWN, 100_000), (loader, 200_000), (helper, 50_000)):
        holds(one, kb)
    assert look(1800, 1200, 50_000) == {}
    # The helper has ended, then the loader: their time is added to the process that waited for them.
    for ended in (helper, loader):
        shutil.rmtree(tmp_path / f"proc/{ended}")
    process(tree, OWN, 1, 200, waited_for=900)
    assert look(2100, 1300, 300_000) == {}
    (tmp_path / f"proc/{OWN}/smaps_rollup").unlink()  # a kernel without shares
    tree(f"proc/{OWN}/status", "Name: a\nRssAnon: 90000 kB\nRssFile: 70000 kB\nRssShmem: 10000 kB")
    assert look(2100, 1400, 300_000) == {}
    process(tree, stranger, 1, 500)  # a foreign process with a third of the memory
    tree(f"proc/{stranger}/status", "RssAnon: 99000 kB")
    assert look(2600, 1400, 200_000).keys() == {"idle", "min_free_memory_mb"}


def test_on_this_machine_ones_own_arrays_take_no_memory() -> None:
    here = Machine()
    before = here._memory_kb(os.getpid())
    held = np.ones(12_500_000)
    assert here._memory_kb(os.getpid()) - before >= 0.9 * held.nbytes / 1024
    assert os.getpid() in here._own_processes()


def test_memory_and_what_cannot_be_read(tree: Tree, tmp_path: Path) -> None:
    everything = Conditions(mains_power=True, idle=True, min_free_memory_mb=100)
    assert machine(tmp_path).why_not(everything) == {}  # not Linux, say
    tree("proc/meminfo", "MemTotal: 500000 kB\nMemAvailable: 90000 kB")
    [said] = machine(tmp_path).why_not(everything).values()
    assert said == "92 MB of memory are free, min_free_memory_mb asks for 100"


def test_in_host_toml(study_folder: Path) -> None:
    home = study_folder / "hosts" / "host-01"
    assert load(home).settings().conditions == Conditions()
    text = (home / "host.toml").read_text()
    file = home / "conditions.toml"
    file.write_text(text + "\n[conditions]\nmains_power = true\nidle = true\nmax_load = 0.5\n")
    settings = load(file).settings()
    assert settings.conditions == Conditions(mains_power=True, idle=True, max_load=0.5)
    assert HostSettings.from_json(settings.to_json()) == settings
    gone = "the key unmetered is gone, because metered networks are no longer detected: remove it"
    for line, told in (("max_load = 0", "conditions.max_load = 0"), ("unmetered = true", gone)):
        file.write_text(f"{text}\n[conditions]\n{line}\n")
        with pytest.raises(ConfigurationError, match=told):
            load(file)
    file.unlink()


# ---------------------------------------------------------------- the gate


class Device:
    """Replaces the machine; conditions hold while ``found`` is empty."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def why_not(self, conditions: Conditions) -> dict[str, str]:
        assert conditions.mains_power
        return self.found


BATTERY = {"mains_power": "this device runs on its battery"}


@contextlib.asynccontextmanager
async def on_mains_only(
    folder: Path, work: Path, monkeypatch: pytest.MonkeyPatch, sleep: Callable[[float], Any]
) -> AsyncIterator[tuple[Coordinator, Device, asyncio.Task[int]]]:
    """A study and a host that takes part only on mains power; ``sleep`` is the gate's."""
    device = Device()
    monkeypatch.setattr(client.participant_host, "Machine", lambda: device)
    monkeypatch.setattr(client.participant_host, "Gate", functools.partial(Gate, poll_s=0.01, sleep=sleep))
    async with coordinator(folder, work / "state.sqlite") as where:
        where.start()
        settings = settings_of(folder, work / "journal.sqlite", where.address, conditions={"mains_power": True})
        async with host(settings) as task:
            yield where, device, task


async def test_an_attempt_is_finished_first(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On battery from the middle of a round: that round is finished, and the next one waits for mains power."""

    async def sleep(seconds: float) -> None:
        """Polls often, but never sees a gap between attempts: the next announcement must do."""
        await asyncio.sleep(seconds if seconds < 1 else 3600)

    with capture_logs() as logs:
        async with on_mains_only(study_folder, tmp_path, monkeypatch, sleep) as (where, device, task):
            await where.wait_for("phase_started", round=1, phase="ShareKeys")
            device.found = BATTERY
            first = await where.wait_for("round_completed", round=1)
            assert first["u3"] == 7
            await until(lambda: not where.study.sessions.ready())
            assert not where.of("round_completed", round=2)
            device.found = {}
            await where.wait_for("round_completed", round=2)
            assert await task == 0
            # The second round may have been announced before they left: none was in it, and none dropped out.
            assert all(event["u1"] == event["u3"] == 7 for event in where.of("round_completed"))
    said = [one["event"] for one in logs if "taking part" in one["event"]]
    assert said == ["not taking part now, until this changes", "taking part again: what stood in the way has gone"]
    assert not [one for one in logs if "coordinator away" in one["event"]]


async def test_a_coordinator_that_never_ends_an_attempt_keeps_no_participant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.conditions, "LONGEST_FINISH_S", 20.0)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)  # the gate's clock
        await asyncio.sleep(0)

    found = BATTERY

    async def why_not() -> Mapping[str, str]:
        return found

    gate = Gate(why_not, poll_s=1000.0, sleep=lambda _: asyncio.sleep(3600), clock=lambda: sum(slept))
    looking = asyncio.create_task(gate.run())
    await asyncio.sleep(0)
    assert not gate.is_open()
    gate._sleep = sleep
    await gate.within(asyncio.sleep(0), lambda: True)  # an ended session; the next one gets only the rest
    slept.append(10.0)
    assert not gate.is_overdue()
    with pytest.raises(NotNow):
        await gate.within(asyncio.sleep(3600), lambda: True)
    assert gate.is_overdue()
    waited = len(slept)
    with pytest.raises(NotNow):
        await gate.within(asyncio.sleep(3600), lambda: False)
    assert len(slept) == waited  # at once, with nothing under way
    looking.cancel()
    assert sum(slept) == 20.0


async def test_leaving_after_the_attempts_time(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator ends no attempt, and answers no request to resume: the participant gives up and leaves."""
    monkeypatch.setattr(client.conditions, "LONGEST_FINISH_S", 0.3)
    honest = server.sessions.Session.send

    def swallow(session: server.sessions.Session, message: bytes) -> None:
        kind = pb.CoordinatorMessage.FromString(message).WhichOneof("message")
        if kind not in ("cohort_keys", "round_end", "resumed"):
            honest(session, message)

    monkeypatch.setattr(server.sessions.Session, "send", swallow)

    looks = on_mains_only(study_folder, tmp_path, monkeypatch, lambda _: asyncio.sleep(0.01))
    async with looks as (where, device, _):
        await where.wait_for("phase_started", round=1, phase="ShareKeys")
        device.found = BATTERY
        await until(lambda: not len(where.study.sessions))
        opened = len(where.of("participant_connected"))
        await asyncio.sleep(0.5)
        assert (len(where.study.sessions), len(where.of("participant_connected"))) == (0, opened)
        device.found = {}
        await until(lambda: len(where.study.sessions))


async def test_without_conditions_there_is_no_gate() -> None:
    gate = Gate(None)
    await gate.run()  # ends at once
    assert await gate.within(asyncio.sleep(0, 3), lambda: False) == 3
    assert not await gate.opened()


async def test_conditions_that_cannot_be_looked_at_are_not_met() -> None:
    async def why_not() -> Mapping[str, str]:
        raise RuntimeError("a fault of ours")

    gate = Gate(why_not)
    with capture_logs() as logs:
        looking = asyncio.create_task(gate.run())
        await asyncio.sleep(0.01)
        looking.cancel()
    assert not gate.is_open()
    assert [one["reason"] for one in logs] == ["the conditions can't be looked at: RuntimeError"]


# ---------------------------------------------------------------- the processor

V2 = "fpu sse sse2 pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"


def test_processors(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"

    def told(text: str, machine: str = "x86_64") -> tuple[bool | None, Any]:
        file.write_text(text)
        return has_aes(file), too_old(file, machine)

    assert told(f"processor\t: 0\nflags\t\t: {V2} aes avx2\n") == (True, None)
    assert told(f"processor\t: 0\nflags\t\t: {V2}\n") == (False, None)
    aes, why = told("processor\t: 0\nflags\t\t: fpu sse sse2 pni ssse3 cx16 lahf_lm\n")  # a Core 2 of 2006
    assert aes is False
    assert why.startswith("this processor lacks popcnt, sse4_1, sse4_2, which numpy's wheels need")
    raspberry_pi_4 = "processor\t: 0\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU implementer\t: 0x41\n"
    assert told(raspberry_pi_4, "aarch64") == (False, None)
    assert told(raspberry_pi_4.replace("crc32", "aes pmull sha1 sha2 crc32"), "aarch64") == (True, None)
    assert told("nothing of this kind\n") == (None, None)
