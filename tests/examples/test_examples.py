"""The examples as users run them: their own command, real processes, real files."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from learning.blocks import Block
from learning.checkpoints import load_model
from learning.prepared_data import write_prepared
from runtime.child_process import child_environment
from runtime.processes import free_port
from server.events import RoundCompleted
from server.journal import read_events
from sordino.lab.preparation.made import in_memory

pytestmark = [pytest.mark.slow, pytest.mark.long]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE_S = 120.0  # each takes some ten seconds; the machine may be busy with something else
SIGMAS = 6.0
"""Nine figures of normal noise are all nearer than that, but for 2e-8."""


def run(example: str, folder: Path, patience_s: float = PATIENCE_S, **environment: str) -> str:
    """What ``run.sh`` prints; all that it started has ended when this returns."""
    commands = folder.parent / "bin"
    commands.mkdir()
    (commands / "sordino").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sordino "$@"\n')
    (commands / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for command in commands.iterdir():
        command.chmod(0o755)
    process = subprocess.Popen(
        [str(EXAMPLES / example / "run.sh"), str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=child_environment()
        | {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "PORT": str(free_port())}
        | environment,
    )
    try:
        said, _ = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        pytest.fail(f"{example} did not end:\n{said}")
    joined = [f"--- {log}\n{log.read_text()}" for log in folder.glob("*/hosts/*/join.txt")]
    assert process.returncode == 0, said + "\n".join(joined)
    return said


def number_after(word: str, said: str) -> float:
    """The last number that stands behind a word."""
    found = re.findall(rf"^{re.escape(word)} +(-?[\d.]+)", said, flags=re.MULTILINE)
    assert found, said
    return float(found[-1])


def test_sensors(tmp_path: Path) -> None:
    said = run("sensor_statistics", tmp_path / "run")
    known = re.search(r"mean ([\d.]+), of each 2 degrees from 14 to 30: ([\d ]+)$", said, flags=re.MULTILINE)
    assert known, said
    assert said.count("round 1: sum of 40") == 2, said  # else the estimates are of fewer than the truth is
    truth = [float(known[1]), *map(float, known[2].split())]
    told = re.findall(r"^(?:temperature|\d+ to \d+) +(-?[\d.]+) ± ([\d.]+)$", said, flags=re.MULTILINE)
    assert len(told) == len(truth) == 9, said
    for (value, error), true in zip(told, truth, strict=True):
        assert abs(float(value) - true) < SIGMAS * float(error) + 0.05, said  # 0.05: figures are rounded
    # The second study's ledger knows the data of the first again.
    spent = dict(re.findall(r"^  (\S.*?)  +(?:1  +)?([\d.]+)  +1e-05", said, re.MULTILINE))
    assert float(spent["mean"]) < float(spent["all studies together"]) <= 2 * 4, said


def test_hospitals_with_patients_made_up(tmp_path: Path) -> None:
    said = run("hospitals", tmp_path / "run", SORDINO_DATA_FOLDER=str(tmp_path / "nothing"))
    assert "THE PATIENTS ARE MADE UP" in said
    assert "round 10: sum of 4" in said
    # 60 runs in memory: 0.770, deviation 0.029; that is six below. Whoever takes everybody for ill has 0.577.
    assert number_after("accuracy", said) > 0.59, said


def test_a_network_of_ones_own(tmp_path: Path) -> None:
    said = run("torch_cnn", tmp_path / "run")
    assert "round 3: sum of 8" in said
    # Six runs: 0.52 to 0.57. A model that learnt nothing has 0.1.
    assert number_after("accuracy", said) > 0.3, said


@pytest.mark.timeout(660)
def test_lora_on_a_frozen_backbone(tmp_path: Path) -> None:
    """The roles are made of the pages' words here: the plays have to be fetched."""
    pytest.importorskip("torch")
    for package in ("peft", "transformers"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: make lora-test")
    words = re.findall(
        r"[a-z]+", " ".join(page.read_text() for page in (EXAMPLES.parent / "docs").glob("*.md")).lower()
    )
    ranked = sorted(set(words))
    numbers = np.array([1 + ranked.index(word) for word in words[: 44 * 400]]).reshape(44, 20, 20)
    roles = [Block.of(rows.astype(np.int32), rows, str(role)) for role, rows in enumerate(numbers)]
    made = in_memory({"train": roles[:40], "test": roles[40:]}, "shakespeare")
    write_prepared(tmp_path / "sets" / "shakespeare", made, {"name": "shakespeare", "vocabulary": ranked})
    ten_minutes = 600.0  # on two cores, with whatever else runs there
    said = run("lora", tmp_path / "run", ten_minutes, SORDINO_DATA_FOLDER=str(tmp_path / "sets"), STEPS="30")
    assert "round 3: sum of 40" in said
    coordinator = tmp_path / "run" / "study" / "coordinator"
    losses = [event.loss for event in read_events(coordinator / "state.sqlite") if isinstance(event, RoundCompleted)]
    assert len(losses) == 3
    assert losses[2] < losses[0], losses
    model = load_model(coordinator / "checkpoints" / "round-000003.safetensors")
    assert all("lora_" in name for name in model.parameters)
    assert sum(array.size for array in model.parameters.values()) == 1_536  # beside 190,176 that are frozen


def test_a_sum_over_plain_sockets() -> None:
    script = EXAMPLES / "plain_sockets" / "sum_ten.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    expected = 10 * (sum(range(10)) - 3)
    assert done.stdout.splitlines() == [
        "participant 3 left before MaskedInputCollection",
        f"the sum of [0, 1, 2, 4, 5, 6, 7, 8, 9] is [{' '.join(5 * [str(expected)])}]",
    ]
