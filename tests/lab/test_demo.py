"""The demo: real processes, one of them killed on purpose, and nothing left running."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from authority.new_study import make_local_study
from runtime.child_process import child_environment
from sordino.lab.demo import DemoOptions, final_lines, parts_by_participant
from tests.support.commands import Run, in_a_process, says
from tests.support.processes_left import processes_of, start_interruptible, wait_for

SMALL = ("--participants", "20", "--processes", "3")


@pytest.mark.slow
@pytest.mark.long
def test_demo_with_a_killed_process(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    # Rounds long enough that the middle of one can be hit: of the second, or else of a later one.
    asked = ("--participants", 24, "--processes", 4, "--rounds", 5)
    ended = in_a_process("demo", *asked, "--out", folder, "--json")
    result = json.loads(ended.stdout)
    names = "accuracy accuracy_without_noise epsilon_coordinator epsilon_released delta rounds dropouts wall_s"
    assert set(names.split()) <= set(result)
    assert result["rounds"] == 5
    assert result["dropouts"] <= 6  # on a busy machine some have sent their vectors before the kill
    assert result["attempts_aborted"] == 0
    assert result["epsilon_coordinator"] <= 8
    assert 0 < result["accuracy_without_noise"] < 1
    assert result["client_peak_rss_mb"] > 0
    assert result["networked_round"]["dim"] > 100_000
    assert "killed host-03 in round" in ended.stderr
    page = (folder / "report.html").read_text()
    # One line, or several where the kill met some of them in the middle of an upload; none where all had sent theirs.
    assert "(host-03)" in page or not result["dropouts"]
    assert "honest-but-curious" in page
    assert processes_of(folder) == {}
    again = in_a_process("report", folder, "--output", tmp_path / "again.html", "--json")
    assert json.loads(again.stdout)["rounds"] == 5


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.long
def test_nothing_is_left_running(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM is handled by the same lines (test_child_process.py)."""
    folder = tmp_path / "demo"
    with (tmp_path / "said").open("wb") as said:
        command = [sys.executable, "-X", "faulthandler", "-m", "sordino", "demo", *SMALL, "--rounds", "200"]
        process = start_interruptible([*command, "--out", str(folder)], stdout=subprocess.DEVNULL, stderr=said)
    try:
        assert wait_for(lambda: (folder / "coordinator" / "state.sqlite").exists(), 30)
        assert len(processes_of(folder)) >= 3
        process.send_signal(number)
        code = process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        process.wait()
        pytest.fail("it hangs:\n" + (tmp_path / "said").read_text())
    finally:
        process.kill()
    assert code == (130 if number != signal.SIGKILL else -signal.SIGKILL)
    assert wait_for(lambda: processes_of(folder) == {}, 15)


def test_parts_follow_the_roster(tmp_path: Path) -> None:
    options = DemoOptions(rounds=2, participants=20, processes=4).study(8443)
    parts = parts_by_participant(make_local_study(tmp_path / "demo", options))
    assert sorted(parts) == sorted(parts.values()) == list(range(20))


def test_children_get_no_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_PRIVACY__EPSILON", "1")
    environment = child_environment()
    assert not [name for name in environment if name.startswith("SORDINO_")]
    assert environment["OMP_NUM_THREADS"] == "1"


def test_final_lines_are_short_and_complete() -> None:
    result = {
        "accuracy": 0.7412,
        "accuracy_without_noise": 0.7609,
        "epsilon_coordinator": 6.781,
        "epsilon_released": 6.781,
        "epsilon_budget": 8.0,
        "delta": 1e-5,
        "rounds": 15,
        "wall_s": 38.2,
        "round_s": 2.1,
        "dropouts": 20,
        "rounds_with_dropouts": 1,
        "attempts_aborted": 0,
        "key_to_sum_s": 2.04,
        "participants": 100,
        "processes": 10,
        "upload_bytes": 24_500.0,
        "vector_bytes": 1024.0,
        "vector_floor_bytes": 1000,
        "coordinator_peak_rss_mb": 140.0,
        "client_peak_rss_mb": 99.0,
        "partition": "Dirichlet 1",
        "min_survivors": 70,
        "h_min": 65,
        "A": 5,
        "noise_multiplier": 2.471,
        "networked_round": {"key_to_sum_s": 0.31, "dim": 100_180},
        "report": "/tmp/x/report.html",
    }
    lines = final_lines(result)
    assert max(map(len, lines)) <= 100
    says(
        "\n".join(lines),
        "0.741, 0.761",
        "6.78 of 8",
        "delta 1e-05,\n                    zero-out, if at most 5 of 100 collude\n"
        "                    less was spent than planned: noise was sized for 70 survivors, and more survived\n",
        "min_survivors 70",
        "h_min 65",
        "A 5",
        "Dirichlet 1",
        "0.31 s",
    )
    assert "could not be measured" in "\n".join(final_lines(result | {"networked_round": None}))
    assert "accuracy            0.741\n" in "\n".join(final_lines(result | {"accuracy_without_noise": None}))


def test_without_its_packages_the_demo_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """A bare installation lacks the coordinator's: said before there is a folder, not by a process that fails."""
    monkeypatch.setattr("runtime.extras.find_spec", lambda name: None if name == "grpc_health" else find_spec(name))
    code, _, err = run("demo", "--out", tmp_path / "demo")
    assert (code, (tmp_path / "demo").exists()) == (2, False)
    assert err.startswith("sordino demo: grpc_health isn't installed. In the checkout of Sordino, run ")
