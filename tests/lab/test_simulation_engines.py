"""Participants played by several processes, and by Ray's workers: the same sums as in one process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sordino import simulate_study
from sordino.lab.simulation.run import SimulationResult
from sordino.lab.simulation.settings import SimulationError, SimulationSettings, resized, simulated_study

# Five shards, of participants that are trained one after the other.
QUIET = SimulationSettings(
    study=simulated_study(participants=150, rounds=3, mechanism="none", clip=1.0, clip_update="geometric"),
    drop=0.1,
    batched=False,
)
NOISY = QUIET.changed(study=resized(QUIET.study, 0, mechanism="skellam", bits=20, epsilon=50.0))


def check_the_same(found: SimulationResult, expected: SimulationResult) -> None:
    assert all(np.array_equal(found.parameters[name], array) for name, array in expected.parameters.items())
    for name in ("survivors", "accuracy", "clips", "below_clip", "update_norms", "exactly_below_clip"):
        assert [row[name] for row in found.rows] == [row[name] for row in expected.rows], name


def check_it_trains(found: SimulationResult) -> None:
    """With noise at epsilon 50 the first round reaches 0.5 and the third 0.6; chance is 0.1, and noise alone strays by
    far less than what is between 0.3 and them."""
    assert found.rows[-1]["accuracy"] > 0.3
    assert all(row["wrapped_share"] < 1e-3 for row in found.rows)


@pytest.mark.long
def test_several_processes_compute_what_one_does() -> None:
    check_the_same(simulate_study(QUIET.changed(workers=2)), simulate_study(QUIET))
    check_it_trains(simulate_study(NOISY.changed(workers=2)))


@pytest.mark.long
def test_real_secure_aggregation_takes_vectors_of_other_processes() -> None:
    study = resized(NOISY.study, 0, participants=40, rounds=1)
    found = simulate_study(NOISY.changed(study=study, workers=2, secagg="real", batched=False))
    assert found.summary["outcome"] == "rounds done"
    assert found.rows[0]["wrapped_share"] < 1e-3


def test_what_goes_wrong_in_a_process_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of one's own that fails in training: its own sentence, not that of a pool."""
    (tmp_path / "faulty_task.py").write_text(
        "from learning.tasks.softmax_regression import SoftmaxRegression\n"
        "class Faulty(SoftmaxRegression):\n"
        "    def local_update(self, *_):\n"
        "        raise ValueError('a fault of its own')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(SimulationError, match=r"faulty_task:Faulty can't use the examples .*: a fault of its own"):
        simulate_study(QUIET.changed(study=resized(QUIET.study, 0, task="faulty_task:Faulty"), workers=2))


def test_without_ray_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SimulationError, match=r"pip install '\.\[ray\]'"):
        simulate_study(QUIET.changed(engine="ray"))


SIMULATION = "simulate_study(own.QUIET.changed(workers=2), on_row=lambda row: kill())"
EXPERIMENT = """
from sordino.lab.experiments.runs import Run, RunPool
runs = [Run({}, own.QUIET.changed(seed=seed)) for seed in (1, 2)]
RunPool(None, 2, lambda standing: standing.done and kill()).run("killed", runs)
"""
KILLED = """
import multiprocessing, os, signal, tests.lab.test_simulation_engines as own
from sordino import simulate_study

def kill():
    print(len(multiprocessing.active_children()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("work", [SIMULATION, EXPERIMENT], ids=["simulation", "experiment"])
def test_workers_end_with_whoever_started_them_and_is_killed(work: str) -> None:
    """They have its standard output, which ends when the last of them does."""
    started = subprocess.Popen(
        [sys.executable, "-c", KILLED + work],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = started.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)  # those that stayed
        raise
    assert (started.returncode, told) == (-signal.SIGKILL, "2\n")


WITH_RAY = """
import tests.lab.test_simulation_engines as own
from sordino import simulate_study

found = simulate_study(own.QUIET.changed(workers=2, engine="ray"))
import ray
assert not ray.is_initialized(), "started by the simulation, and not ended"
import os, runtime.ray_start
folder = runtime.ray_start._private_folder()
assert os.listdir(folder + "/r"), "Ray wrote elsewhere"
assert os.stat(folder).st_mode & 0o077 == 0, "others can write where Ray's workers take orders from"
own.check_the_same(found, simulate_study(own.QUIET))
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
own.check_it_trains(simulate_study(own.NOISY.changed(workers=1, engine="ray")))
assert ray.is_initialized(), "started by somebody else, and ended"
ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.long
def test_ray_computes_what_one_process_does(tmp_path: Path) -> None:
    """In a process of its own, since what Ray reads when it is imported holds as long as the process."""
    pytest.importorskip("ray")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", WITH_RAY],
        cwd=Path(__file__).parents[2],
        env=environment | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / ".ray").exists()  # no token is left in the home folder
