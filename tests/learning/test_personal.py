"""Layers that never travel: what is fitted, what is sent, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from learning.datasets import Dataset
from learning.make_task import make_task, model_shapes
from learning.options import OptionError, TrainingOptions
from learning.parameters import Parameters
from learning.public_random import PublicRandom
from learning.task import BatchedTask, ModelTask, at_round, held_out_metrics
from sordino import SimulationSettings, simulate_study, simulated_study

RNG = np.random.default_rng(4)
DATA = Dataset(RNG.normal(size=(12, 6)).astype(np.float32), RNG.integers(0, 3, 12))
OPTIONS = {"features": 6, "classes": 3, "client_rate": 0.5, "batch_size": 12, "local_epochs": 1}


def softmax(weights: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Of the loss by the scores, over all examples."""
    scores = np.exp(DATA.features @ weights + bias)
    scores /= scores.sum(axis=1, keepdims=True)
    return (scores - np.eye(3)[DATA.labels]) / len(DATA)


@pytest.mark.parametrize("steps", [1, 3])
def test_own_arrays_are_fitted_before_the_others_are_trained(steps: int) -> None:
    """By hand: gradient descent on the bias alone, from its public start, then on the weights alone."""
    task: Any = make_task("softmax-regression", OPTIONS | {"personal": "bias", "local_steps": steps})
    assert [*task.initial_parameters()] == [*task.contribution_shapes] == ["weights"]
    assert task.dim == 18
    start = RNG.normal(size=(6, 3)).astype(np.float32)
    change = task.local_update({"weights": start}, DATA, PublicRandom(1), 1.0)
    bias, weights = np.zeros(3), start.astype(np.float64)
    for _ in range(steps):
        bias -= 0.5 * softmax(start, bias).sum(axis=0)
    fitted = task.fitted({"weights": start}, DATA, PublicRandom(1))
    np.testing.assert_allclose(fitted["bias"], bias, atol=1e-6)
    np.testing.assert_array_equal(fitted["weights"], start)
    for _ in range(steps):
        weights -= 0.5 * DATA.features.T @ softmax(weights, bias)
    assert [*change] == ["weights"]
    np.testing.assert_allclose(change["weights"], weights - start, atol=1e-6)
    held = held_out_metrics(task, {"weights": start}, DATA, DATA, PublicRandom(1))
    whole: Any = make_task("softmax-regression", OPTIONS)
    assert held.loss == pytest.approx(whole.evaluate(fitted, DATA)["loss"])


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedsgd", "fedprox", "blur-lus"])
@pytest.mark.parametrize("task", ["mlp", "tests.learning.test_personal:Perceptron"])
def test_nothing_of_them_is_sent_whatever_trains(task: str, method: str) -> None:
    if ":" in task:
        pytest.importorskip("torch")
    options = {name: OPTIONS[name] for name in ("client_rate", "batch_size")} | {"method": method, "hidden": 4}
    options |= {"features": 6, "classes": 3} if task == "mlp" else {}
    head = "output" if task == "mlp" else "2"
    made: Any = make_task(task, options | {"personal": head})
    whole: Any = make_task(task, options)
    kept = [name for name in whole.contribution_shapes if not name.startswith(head)]
    assert 0 < len(kept) < len(whole.contribution_shapes)
    assert made.contribution_shapes == model_shapes(task, options | {"personal": head}) != whole.contribution_shapes
    start = made.initial_parameters()
    before = {name: array.copy() for name, array in start.items()}
    change = made.local_update(start, DATA, PublicRandom(1), 1.0)
    assert [*change] == kept
    assert any(array.any() for array in change.values())
    for name, array in start.items():
        np.testing.assert_array_equal(array, before[name])
    fitted = made.fitted(start, DATA, PublicRandom(1))
    own = whole.initial_parameters()
    assert all((fitted[name] != own[name]).any() for name in own if name.startswith(head))
    assert not isinstance(made, BatchedTask)
    assert made.learner(None, DATA).evaluate() == {}


@pytest.mark.parametrize("method", ["lus", "fedprox", "dp-fedsgd"])
def test_what_is_fitted_is_fitted_by_plain_descent_at_the_first_rate(method: str) -> None:
    """Nothing of it is sent, and it begins anew in each round."""
    options = OPTIONS | {"personal": "bias", "client_schedule": "linear"}
    if method == "dp-fedsgd":  # it has neither steps nor epochs
        options.pop("local_epochs")
    plain: Any = make_task("softmax-regression", options)
    other: Any = make_task("softmax-regression", options | {"method": method})
    start = {"weights": RNG.normal(size=(6, 3)).astype(np.float32)}
    wanted = plain.fitted(start, DATA, PublicRandom(1))
    for task in (other, at_round(other, 0.9)):
        np.testing.assert_array_equal(task.fitted(start, DATA, PublicRandom(1))["bias"], wanted["bias"])
    late = at_round(plain, 0.9).local_update(start, DATA, PublicRandom(1), 1.0)["weights"]
    assert np.linalg.norm(late) < 0.2 * np.linalg.norm(plain.local_update(start, DATA, PublicRandom(1), 1.0)["weights"])


def test_a_class_that_trains_in_a_way_of_its_own_is_refused() -> None:
    with pytest.raises(OptionError, match="classes derived from TorchTask"):
        make_task("tests.learning.test_personal:OwnWay", {"personal": "a"})


def test_a_strangers_model_is_refused_before_it_is_made() -> None:
    """The plan counts what travels alone; the whole must be one that could be planned."""
    options = {"vocabulary": 1_000_000, "embedding": 65_536, "hidden": 1, "personal": "embedding,output,dense"}
    with pytest.raises(OptionError, match=r"the model has .* values; at most 268435456 are tried"):
        model_shapes("lstm", options)


@pytest.mark.parametrize(
    ("personal", "told"),
    [
        ("head", "names 'head'; the model has weights, bias"),
        ("bias,", "names ''"),
        ("bias, weights", "nothing of the model is left"),
    ],
)
def test_names_that_cannot_be(personal: str, told: str) -> None:
    for ask in (make_task, model_shapes):
        with pytest.raises(OptionError, match=told):
            ask("softmax-regression", {"personal": personal})


def test_participants_whose_labels_mean_different_things_need_a_layer_of_their_own() -> None:
    """With few classes each, as in Dirichlet 0.1: at their held-out examples it is better by far."""
    found = []
    for personal in ({}, {"personal": "output"}):
        study = {
            "task": "mlp",
            "task_options": {"hidden": 8, **personal},
            "alpha": 0.1,
            "participants": 30,
            "rounds": 3,
        }
        study |= {"evaluate": "participants", "evaluation_examples": 1000, "clip": 3.0, "mechanism": "none"}
        found.append(simulate_study(SimulationSettings(study=simulated_study(name="s", **study))).summary)
    assert found[1]["reported"]["accuracy"] > found[0]["reported"]["accuracy"] + 0.05
    assert found[1]["accuracy"] is None  # the coordinator has no layer of its own


@dataclass(frozen=True, kw_only=True)
class OwnOptions(TrainingOptions):
    """Of training alone."""


class OwnWay(ModelTask):
    """Trains without the loop that knows what to leave as it is."""

    Options = OwnOptions
    name = "own"

    def __init__(self, options: OwnOptions) -> None:
        self.options = options

    def initial_parameters(self) -> Parameters:
        return {name: np.zeros(2, np.float32) for name in ("a", "b")}

    def local_update(self, parameters: Parameters, data: Any, rng: Any, l2_clip: float) -> Parameters:
        return {name: np.ones(2, np.float32) for name in parameters}

    def evaluate(self, parameters: Parameters, data: Any) -> dict[str, float]:
        return {"accuracy": 0.0, "loss": 0.0}


try:
    from torch import nn

    from learning.tasks.mlp import MlpOptions
    from sordino import TorchTask
except ImportError:
    pass
else:

    class Perceptron(TorchTask):
        Options = MlpOptions
        classes = 3
        example_shape = (6,)

        def module(self) -> nn.Module:
            return nn.Sequential(nn.Linear(6, self.options.hidden), nn.ReLU(), nn.Linear(self.options.hidden, 3))
