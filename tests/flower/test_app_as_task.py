"""Flower apps as tasks: an unchanged app, under Flower's own FedAvg and under Sordino."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg

from client.held_data import declared_data_name
from client.training import LocalTraining, failure_summary
from learning.checkpoints import Checkpoint, load_checkpoint, save_checkpoint
from learning.make_task import make_task
from learning.options import OptionError
from learning.own_data import app_partition
from learning.own_task import TaskMistake, TaskUnavailable
from learning.parameters import flatten
from learning.public_random import PublicRandom
from learning.server_optimizers import ServerOptimizer
from sordino.lab.simulation.run import simulate_study
from sordino.lab.simulation.settings import SimulationSettings, simulated_study
from tests.flower.flower_processes import ROOT
from tests.flower.local_grid import LocalGrid
from tests.support.running_study import running_study

PLAIN = Path(__file__).parent / "plain"
MESSAGE, LEGACY = "flower:plain.message_app:app", "flower:plain.legacy_app:app"
NODES, ROUNDS = 7, 3
RNG = PublicRandom(1)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(PLAIN))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "plain"]:
        del sys.modules[name]


def by_flower(rounds: int) -> np.ndarray:
    """What Flower's FedAvg makes of the app, from Sordino's beginning."""
    task: Any = make_task(MESSAGE)
    start = {name: task.initial_parameters()[name] for name in task.contribution_shapes}
    module: Any = sys.modules["plain.message_app"]
    nodes = {100 + at: {"partition-id": at, "num-partitions": NODES} for at in range(NODES)}
    grid = LocalGrid(lambda: module.app, nodes, {"learning-rate": 0.5, "steps": 5, "broken-round": 0})
    record = ArrayRecord(dict(zip(start, map(Array, start.values()), strict=True)))
    if not rounds:
        return flatten(start)
    found = FedAvg(fraction_evaluate=0.0).start(grid, record, num_rounds=rounds).arrays
    return flatten({name: found[name].numpy() for name in start})


@pytest.mark.parametrize("name", [MESSAGE, LEGACY])
def test_without_noise_it_is_plain_fedavg(name: str) -> None:
    options = {"task": name, "dataset": "app", "participants": NODES, "rounds": ROUNDS, "server_momentum": 0.0}
    study = simulated_study(name="s", mechanism="none", clip=1e4, **options)
    found = flatten(dict(simulate_study(SimulationSettings(study=study)).parameters))
    wanted = by_flower(ROUNDS)
    assert np.abs(wanted - by_flower(1)).max() > 0.01  # each round does something
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("name", [MESSAGE, LEGACY])
def test_its_evaluation_comes_with_the_sum(name: str) -> None:
    """What the app's own ``evaluate`` says, over all participants; on the examples that the app keeps for it."""
    options = {"task": name, "dataset": "app", "participants": NODES, "rounds": 2, "server_momentum": 0.0}
    judged = {"evaluate": "participants", "evaluation_examples": 100}
    study = simulated_study(name="s", mechanism="none", clip=1e4, **options, **judged)
    rows = simulate_study(SimulationSettings(study=study)).rows
    task: Any = make_task(name)
    figures = [task.evaluate(task.initial_parameters(), app_partition(at, NODES)) for at in range(NODES)]
    assert {one["examples"] for one in figures} == {10}
    for figure in ("accuracy", "loss"):
        mean = np.mean([min(one[figure], 4.0) for one in figures])
        assert rows[0]["reported"][figure] == pytest.approx(mean)
    assert rows[0]["reported"]["weight"] == pytest.approx(0.1)
    assert rows[1]["reported"]["loss"] < rows[0]["reported"]["loss"]


def test_the_example_learns_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "flower"))
    options = {"task": "flower:fashion.client_app:app", "dataset": "app", "participants": 4, "rounds": 2}
    study = simulated_study(name="s", mechanism="none", clip=1e4, server_momentum=0.0, **options)
    found = simulate_study(SimulationSettings(study=study))
    assert found.configuration["settings"]["study"]["task_options"]["learning-rate"] == 0.05  # of its pyproject.toml
    example = sys.modules["fashion.task"]
    model = example.Net()
    model.load_state_dict({name: torch.tensor(one) for name, one in found.parameters.items()})
    assert example.evaluate(model) > 0.3  # 0.1 before


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
def test_a_served_study_of_an_app(tmp_path: Path) -> None:
    """Real processes; the noise is the one difference to plain FedAvg."""
    options = {"task": MESSAGE, "dataset": "app", "rounds": 2, "clip": 2.0, "epsilon": 1000.0, "hosts": 2}
    path = {"PYTHONPATH": f"{PLAIN}:{ROOT}"}
    with running_study(tmp_path / "study", together=(), **options) as study:
        joins = [[sys.executable, "-m", "sordino", "join", "--home", str(home)] for home in study.study.hosts]
        coordinator = study._start([sys.executable, "-m", "sordino", "serve", str(study.folder)], "serve", path)
        hosts = [study._start(command, "host", path) for command in joins]
        assert [study.code_of(one) for one in (coordinator, *hosts)] == [0, 0, 0], study.story()
        assert [one["u3"] for one in study.events("round_completed")] == [NODES, NODES]
        spent = {row.data for home in range(2) for row in study.host_charges(home) if hasattr(row, "data")}
        held = [tomllib.loads((home / "host.toml").read_text())["participants"] for home in study.study.hosts]
    found = flatten(
        load_checkpoint(study.folder / "coordinator" / "checkpoints" / "round-000002.safetensors").parameters
    )
    plan = study.study.plan
    noise = plan.local_stddev / NODES**0.5 * 2**0.5  # of a value of the mean, over both rounds
    difference = np.abs(found - by_flower(2)).max()
    assert difference < 6 * noise, (difference, noise)
    assert noise < np.abs(by_flower(2) - by_flower(0)).max() / 6  # or all could pass
    identities = [one["data_identity"] for part in held for one in part]
    assert identities == [f"{MESSAGE}, partition {at} of {NODES}" for at in range(NODES)]
    assert spent == set(map(declared_data_name, identities))


def test_other_shapes_make_one_round_of_zeros() -> None:
    """And are told in one sentence, which names the array, what came and what was expected."""
    task: Any = make_task(MESSAGE, {"broken-round": 2})
    told = "the app returns shape [4, 3] for array 'weight', expected shape [3, 4]"
    learner = task.learner(ServerOptimizer(rate=1.0), app_partition(0, 1))
    with structlog.testing.capture_logs() as logs:
        one = LocalTraining(task, app_partition(0, 7), None, structlog.get_logger())  # type: ignore[arg-type]
        updates = []
        for _ in range(3):
            made = one.contribution(learner.broadcast(), 1.0)
            updates.append(None if made is None else made.update)
            learner.learn(np.zeros(task.dim), 7)
        one.tell()
    assert [update is None for update in updates] == [False, True, False]
    assert updates[0].shape == (task.dim,) == (15,)
    [line] = logs
    assert (line["event"], line["where"]) == ("training failed, zeros are sent", told)
    assert failure_summary([one]).startswith(f"your training failed in 1 of 3 rounds (TaskMistake at {told})")
    with pytest.raises(TaskMistake, match=re.escape(told)):
        task.local_update(task.initial_parameters() | {"server-round": np.full(1, 2.0)}, app_partition(0, 7), RNG)


def test_the_round_is_in_the_checkpoint_and_not_in_the_model(tmp_path: Path) -> None:
    task: Any = make_task(MESSAGE)
    first, second = (task.learner(ServerOptimizer(rate=1.0), app_partition(0, 1)) for _ in range(2))
    first.learn(np.ones(15), 7)
    assert first.step() is None  # what is broadcast holds more than the model that moves
    model, state = first.state()
    assert list(model) == ["weight", "bias"]
    save_checkpoint(tmp_path / "kept.safetensors", Checkpoint(model, state))
    kept = load_checkpoint(tmp_path / "kept.safetensors")
    second.load_state(kept.parameters, kept.optimizer_state)
    for name, one in first.broadcast().items():
        np.testing.assert_array_equal(second.broadcast()[name], one)
    assert second.broadcast()["server-round"] == [2]


def test_equal_seeds_make_equal_models_and_trainings() -> None:
    first, other, again = (make_task(MESSAGE, {"initial_seed": seed}).initial_parameters() for seed in (1, 2, 1))
    assert all((first[name] == again[name]).all() for name in first)
    assert (first["weight"] != other["weight"]).any()


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        (MESSAGE, {"learning-rat": 1}, "unknown option 'learning-rat'. Did you mean learning-rate? Known options: bro"),
        (MESSAGE, {"initial_model": "Nett"}, "has no 'Nett' that makes the first model without arguments: name"),
        (MESSAGE, {"initial_model": "Normed"}, "array 1.num_batches_tracked has no floats, and only floats can be"),
        (MESSAGE, {"initial_model": "train"}, "has no 'train' that makes the first model without arguments: name"),
        (MESSAGE, {"steps": "x"}, "option 'steps' is 'x'; it must be a whole number"),
        ("flower:plain.message_app:Net", {}, "message_app.py is no flwr.clientapp.ClientApp"),
        ("flower:plain.message_apps:app", {}, "there is no module 'plain.message_apps'"),
    ],
)
def test_a_mistake_is_one_sentence(name: str, options: dict[str, Any], told: str) -> None:
    with pytest.raises((OptionError, TaskUnavailable)) as caught:
        make_task(name, options)
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["listed", "Weighted"])
def test_a_first_model_without_torch(name: str) -> None:
    """A list of arrays, and a model with get_weights; both draw from numpy."""
    first, again = (make_task(MESSAGE, {"initial_model": name}).initial_parameters() for _ in range(2))
    assert {key: one.shape for key, one in first.items()} == {"0": (3, 4), "1": (3,), "server-round": (1,)}
    np.testing.assert_array_equal(first["0"], again["0"])
    assert first["0"].std() > 0.1


def test_options_go_where_an_app_reads_them() -> None:
    usual: Any = make_task(MESSAGE, {"steps": 4, "learning-rate": 1})
    assert usual.options.to_mapping() == {
        **{"initial_model": "Net", "initial_seed": 0, "judged": "accuracy,loss"},
        **{"learning-rate": 1.0, "steps": 4, "broken-round": 0},
    }
    written: Any = make_task(MESSAGE, {"steps": 4, "config.rate": 1.0})  # as a ServerApp would write it into messages
    start, data = usual.initial_parameters(), app_partition(0, 7)
    found = [one.local_update(start, data, RNG)["weight"] for one in (usual, written)]
    np.testing.assert_array_equal(*found)
    assert (found[0] != make_task(MESSAGE).local_update(start, data, RNG, 1.0)["weight"]).any()
