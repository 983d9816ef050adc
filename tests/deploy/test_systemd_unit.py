"""The units of the three parties: held against the commands they start, and by systemd's own tools where they are."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from runtime.failure import ExitCode
from sordino.cli import authority_run, serve
from sordino.cli.join import EPILOG, _code_of_service, run

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNIT, COORDINATOR, AUTHORITY = (FOLDER / f"sordino-{party}.service" for party in ("client", "coordinator", "authority"))
WORST_EXPOSURE = 2.0


def settings(unit: Path = UNIT) -> dict[str, dict[str, list[str]]]:
    """Values by section and key, in order."""
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(section, {}).setdefault(key, []).append(value)
    return found


def test_the_command_knows_its_options() -> None:
    [command] = settings()["Service"]["ExecStart"]
    program, verb, *arguments = command.split()
    assert program.startswith("/")  # systemd looks for it nowhere
    assert verb == "join"
    app = typer.Typer()
    app.command()(run)
    known = {option for one in typer.main.get_command(app).params for option in one.opts}
    options = [one for one in arguments if one.startswith("--")]
    assert set(options) <= known
    assert {"--service", "--yes", "--home"} <= set(options)
    assert arguments[arguments.index("--home") + 1].startswith("${STATE_DIRECTORY}/")  # all else is read-only
    # Words of their own: where they aren't set they leave nothing, and no empty argument. None begins with SORDINO_:
    # SORDINO_COORDINATOR stands for the table [coordinator] of host.toml.
    assert {one for one in arguments if "$" in one} == {"$JOIN_ADDRESS", "$JOIN_OPTIONS", "${STATE_DIRECTORY}/host"}


def test_the_credential_is_the_one_that_is_read() -> None:
    service = settings()["Service"]
    [loaded] = service["LoadCredential"]
    [fallback] = service["SetCredential"]
    assert loaded.split(":")[0] == fallback.split(":")[0] == "join-code"
    assert fallback.partition(":")[2] == r"\x20"  # nothing but a blank: an empty one isn't accepted
    assert '"join-code"' in (Path(_code_of_service.__code__.co_filename)).read_text()


def test_which_ends_are_left_at_that() -> None:
    service = settings()["Service"]
    assert service["Restart"] == ["on-failure"]
    left = {int(one) for one in service["RestartPreventExitStatus"][0].split()}
    assert told(EPILOG) == {0, 2, 4, 5, 41, 130}  # a new one needs a decision here
    assert left == {ExitCode.INPUT, ExitCode.LEDGER}
    assert settings()["Unit"]["StartLimitIntervalSec"] == ["0"]  # away for days is no reason to give up


def test_limits_and_the_watchdog() -> None:
    service = settings()["Service"]
    assert (service["Type"], service["WatchdogSec"]) == (["notify"], ["2min"])
    assert (service["MemoryMax"], service["MemorySwapMax"], service["CPUQuota"]) == (["256M"], ["0"], ["50%"])
    assert service["DynamicUser"] == ["yes"]
    assert "ProcSubset" not in service  # [conditions] idle reads /proc/stat


def told(epilog: str) -> set[int]:
    """The exit codes that a help page lists."""
    return {int(one) for one in re.findall(r"(\d+) [a-z]", epilog.partition("Exit codes:")[2])}


def test_the_coordinator_is_started_again_unless_that_changes_nothing() -> None:
    service = settings(COORDINATOR)["Service"]
    assert service["ExecStart"] == ["/opt/sordino/bin/sordino serve ${STATE_DIRECTORY}/study --service"]
    assert (service["Type"], service["Restart"], service["WatchdogSec"]) == (["notify"], ["on-failure"], ["2min"])
    again, left = {0, 4, 5, 130}, {2, 3, 40, 41}  # 0 is no failure; 130 is a person's Ctrl-C, in no service
    assert told(serve.EPILOG) == again | left  # a new one needs a decision here
    assert {int(one) for one in service["RestartPreventExitStatus"][0].split()} == left | {ExitCode.TRANSCRIPT}


def test_the_authority_is_started_again_unless_that_changes_nothing() -> None:
    service = settings(AUTHORITY)["Service"]
    [command] = service["ExecStart"]
    assert command.endswith("/sordino authority run ${STATE_DIRECTORY}/authority --service $AUTHORITY_OPTIONS")
    assert told(authority_run.EPILOG) == {0, 2, 4, 130}
    assert service["RestartPreventExitStatus"] == [str(int(ExitCode.INPUT))]


def test_all_are_confined_alike() -> None:
    def sandbox(unit: Path) -> list[str]:
        text = unit.read_text().partition("StateDirectoryMode")[2]
        return [line for line in text.splitlines() if not line.startswith("#")]

    assert sandbox(COORDINATOR) == sandbox(AUTHORITY) == sandbox(UNIT)
    for unit in (COORDINATOR, AUTHORITY):
        assert settings(unit)["Service"]["DynamicUser"] == ["yes"]
        assert settings(unit)["Service"]["MemorySwapMax"] == ["0"]


@pytest.mark.parametrize("unit", [UNIT, COORDINATOR, AUTHORITY], ids=lambda unit: unit.stem)
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_agrees(tmp_path: Path, unit: Path) -> None:
    text = unit.read_text()
    unit = tmp_path / unit.name
    unit.write_text(text.replace("/opt/sordino/bin/sordino", "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    rated = subprocess.run(command, capture_output=True, text=True).stdout
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", rated)
    assert found is not None, rated
    assert float(found[1]) < WORST_EXPOSURE
