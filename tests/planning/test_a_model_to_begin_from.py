"""init and serve: a study that begins from a model has it in its folder, and it is the task's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from learning.checkpoints import SavedModel
from learning.datasets import load_part
from learning.make_task import make_task
from server.study_file import load
from tests.support.commands import Run, one_clear_error, output

FEW = ("--participants", 10, "--hosts", 2, "--rounds", 2, "--epsilon", 20)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    task = make_task("softmax-regression")
    parameters = {name: array + np.float32(0.5) for name, array in task.initial_parameters().items()}
    SavedModel(parameters, "before", task.name, 3).save(tmp_path / "before.safetensors")
    return tmp_path / "before.safetensors"


def test_the_study_holds_a_copy(run: Run, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a coordinator that starts again, or a restored backup, finds it; hosts don't have it."""
    monkeypatch.chdir(tmp_path)
    output(run, "init", tmp_path / "study", *FEW, "--start-from", model.name)
    model.unlink()
    study = load((tmp_path / "study").rename(tmp_path / "moved"))
    test = load_part(study.data.dataset, "test")
    begun = study.make_learner(study.make_task(), test).broadcast()
    assert {float(array.min()) for array in begun.values()} == {0.5}
    assert [one.parent.name for one in (tmp_path / "moved").rglob("start.safetensors")] == ["moved"]
    assert "start" not in "".join(one.read_text() for one in (tmp_path / "moved").rglob("host.toml"))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--task", "mlp"), "before.safetensors has bias [10], weights [49, 10]; the model has hidden_weights"),
        (("--task", "mean", "--task-option", "column=label"), "task 'mean' has no model that could begin from a file"),
        (("--start-from", "nothing.safetensors"), "nothing.safetensors"),
    ],
)
def test_init_refuses_what_cannot_begin(
    run: Run, tmp_path: Path, model: Path, arguments: tuple[object, ...], told: str
) -> None:
    given = () if "--start-from" in arguments else ("--start-from", model)
    one_clear_error(run, told, "init", tmp_path / "study", *FEW, *given, *arguments)
    assert [one.name for one in tmp_path.iterdir()] == [model.name]


def test_who_waits_for_a_figure_has_one(run: Run, tmp_path: Path) -> None:
    """Of a model with layers of their own the coordinator has none."""
    given = ("--task", "mlp", "--task-option", "personal=output", "--patience", 3)
    one_clear_error(run, "has no figure to wait for", "init", tmp_path / "study", *FEW, *given)
    output(run, "init", tmp_path / "study", *FEW, *given, "--evaluate", "participants")
