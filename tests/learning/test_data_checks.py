"""A task and examples that don't belong together are refused when the study is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from authority.new_study import NewStudy, new_study
from authority.study_data import check_data
from learning.data_checks import check_task_takes
from learning.datasets import Dataset
from learning.make_task import make_task, model_shapes
from learning.parameters import shapes_of
from learning.task_names import BOUNDED
from learning.tasks.mlp import Mlp
from runtime.failure import Failure

OWN_TASK = """
import numpy as np
from sordino import ModelTask, TaskOptions

class Straight(ModelTask):
    Options = TaskOptions
    names = ("weights", "bias")
    def __init__(self, options):
        self.options = options
    def initial_parameters(self):
        return {"weights": np.zeros(784, np.float32), "bias": np.zeros(1, np.float32)}
    def local_update(self, parameters, data, rng, l2_clip):
        data.features.reshape(len(data), 784)
        return {name: parameters[name] for name in self.names}
    def evaluate(self, parameters, data):
        return {"accuracy": 0.0, "loss": 0.0}

class Choosy(Straight):
    def local_update(self, parameters, data, rng, l2_clip):
        if data.features.max() > 100:
            raise ValueError(f"{data.features.max()} is above 100")
        return parameters

class Swapped(Straight):
    names = ("bias", "weights")
"""


@pytest.fixture
def own_task(own_module: Callable[[str, str], Path]) -> str:
    return own_module("lines_of_784", OWN_TASK).stem


def options(**chosen: Any) -> NewStudy:
    return new_study(participants=10, hosts=1, **({"task_options": {}} | chosen))


def check(new: NewStudy) -> None:
    check_data(new.study, new.making.participants)


ROWS = Dataset(np.zeros((3, 5), np.float32), np.zeros(3, np.int64))
IMAGES = Dataset(np.zeros((3, 28, 28), np.float32), np.zeros(3, np.int64))
MANY = {"hidden": 4096, "classes": 100_000}
WIDE = {"vocabulary": 1_000_000, "embedding": 65_536, "hidden": 65_536}
WORDS = Dataset(np.zeros((3, 4), np.int32), np.zeros((3, 4), np.int64))


@pytest.mark.parametrize(
    ("task", "options", "data", "told"),
    [
        # 16 GB of weights, and 680 GB: refused by what the options say, before any of it is made.
        ("mlp", {"features": 1_000_000, "hidden": 4096}, ROWS, "takes (1000000,)"),
        ("mlp", {"features": 5, "hidden": 4096}, ROWS, "an update of 65546 values with the study's options"),
        ("mlp", MANY, IMAGES, "an update of 412915360 values"),
        ("lstm", {"length": 10_000}, WORDS, "takes (10000,)"),
        ("lstm", {"length": 4} | WIDE, WORDS, "an update of 169728557636 values"),
        ("votes", {"of": "mlp"} | MANY, IMAGES, "a model of 412915360 values; at most 268435456"),
        ("votes", {"of": "mlp", "queries": 9}, IMAGES, "an update of 90 values"),
        ("synthetic", {"dim": 1 << 28}, ROWS, "an update of 268435456 values"),
    ],
)
def test_a_strangers_model_is_not_made_to_be_refused(
    task: str, options: dict[str, Any], data: Dataset, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if task == "lstm":
        pytest.importorskip("torch", reason="the task needs it")

    made = Mock(side_effect=AssertionError("the model was made"))
    monkeypatch.setattr("learning.tasks.votes.make_task", made)
    monkeypatch.setattr("learning.make_task.make_task", made)
    monkeypatch.setattr("learning.tasks.mlp.Mlp.initial_parameters", made)
    with pytest.raises(Failure) as failure:
        check_task_takes(task, options, data, "mine.csv", planned=7)
    assert told in str(failure.value)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(("softmax-regression", {}), ("mlp", {"features": 7, "hidden": 3}), ("synthetic", {"dim": 9})),
        *(("mean", {"low": 0.0, "high": 1.0}), ("histogram", {})),
        *((name, {}) for name in ("cnn", "femnist-cnn", "resnet18")),
        ("lstm", {"vocabulary": 20, "hidden": 5}),
        ("votes", {"queries": 7, "classes": 3}),
    ],
)
def test_shapes_are_told_without_the_model(name: str, options: dict[str, Any]) -> None:
    if name in ("cnn", "femnist-cnn", "resnet18", "lstm"):
        pytest.importorskip("torch", reason="the task needs it")
    task = make_task(name, options)
    stated = model_shapes(name, options)
    assert list(stated.items()) == list(task.contribution_shapes.items())
    if name not in BOUNDED:
        assert list(stated.items()) == list(shapes_of(task.initial_parameters()).items())


@pytest.mark.parametrize(
    "options",
    [
        {"local_steps": 100_000},
        {"local_epochs": 1_000, "batch_size": 1},
        {"method": "fedprox", "local_steps": 100_000},
        {"method": "dp-fedsgd"},
        {"of": "mlp", "queries": 10_000, "local_epochs": 1_000, "server_epochs": 1_000},
    ],
)
def test_one_step_is_tried(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 steps of a wide perceptron took minutes, before the participant was even asked."""
    slopes = Mock(wraps=Mlp.slopes)
    monkeypatch.setattr(Mlp, "slopes", lambda *given: slopes(*given))
    check_task_takes("votes" if "of" in options else "mlp", {"hidden": 4} | options, IMAGES, "mine.csv")
    assert slopes.call_count == 1


def test_a_model_that_does_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")):
        monkeypatch.setattr(Mlp, "initial_parameters", Mock(side_effect=error))
        with pytest.raises(Failure, match="needs more memory than there is on this machine"):
            check_task_takes("mlp", {"hidden": 4}, IMAGES, "mine.csv")


def test_no_value_of_a_participant_is_tried_where_it_joins(own_task: str) -> None:
    """The study's owner chooses the number of classes, or what its own class refuses: and so the question."""
    for label in (0, 1, 2, -7):
        one = Dataset(np.zeros((1, 1), np.float32), np.array([label]))
        two = {"features": 1, "classes": 2}
        check_task_takes("softmax-regression", two, one, "mine.csv", planned=4)
        if label not in (0, 1):  # the planner of a study over public examples sees it
            with pytest.raises(Failure, match="labels run from"):
                check_task_takes("softmax-regression", two, one, "public.csv")
    for value in (0.0, 101.0, np.nan):
        held = Dataset(np.full((2, 28, 28), value, np.float32), np.zeros(2, np.int64))
        check_task_takes(f"{own_task}:Choosy", {}, held, "mine.npz", planned=785)
    with pytest.raises(Failure, match="above 100"):
        check_task_takes(f"{own_task}:Choosy", {}, Dataset(IMAGES.features + 500, IMAGES.labels), "public.npz")
    with pytest.raises(Failure, match="can't use the examples of mine"):  # the form is
        check_task_takes(f"{own_task}:Straight", {}, ROWS, "mine.npz", planned=785)
    with pytest.raises(Failure, match=r"returns bias \[1\], weights \[784\]; it must return weights \[784\], bias"):
        check_task_takes(f"{own_task}:Swapped", {}, IMAGES, "mine.npz", planned=785)


def test_the_shipped_images_are_no_rows() -> None:
    check(options())
    with pytest.raises(Failure, match=r"examples have shape \(28, 28\); this task takes rows of 4 numbers"):
        check(options(task_options={"features": 4}))


def test_the_coordinators_file_is_tried(tmp_path: Path) -> None:
    file = tmp_path / "held-out.csv"
    own: dict[str, Any] = {"dataset": "own", "test": str(file), "task_options": {"features": 2, "classes": 2}}
    file.write_text("age,pulse,label\n1,2,1\n")
    check(options(**own))
    with pytest.raises(Failure, match=r"--test .* needs a model that the coordinator evaluates"):
        options(**(own | {"task": "mean", "task_options": {}}))
    file.write_text("age,label\n1,1\n")
    with pytest.raises(Failure, match=r"held-out.csv: examples have shape \(1,\)"):
        check(options(**own))


def test_a_refusal_of_a_users_own_class_names_the_data_set(own_module: Callable[[str, str], Path]) -> None:
    own_module("task_for_rows", OWN_TASK.replace("784", "8"))
    with pytest.raises(Failure, match="can't use the examples of fashion-mnist-subset") as refused:
        check(options(task="task_for_rows:Straight"))
    assert "--dataset own" in str(refused.value.suggestion)
    assert "another --task" not in str(refused.value.suggestion)
