"""What the pages on models and data of one's own show works as it stands there."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from learning.checkpoints import Checkpoint, save_checkpoint
from learning.datasets import Dataset
from learning.make_task import make_task
from learning.own_data import read_own
from learning.parameters import Parameters, flatten, shapes_of
from learning.task import update_rng

OwnModule = Callable[[str, str], Path]
ROOT = Path(__file__).resolve().parents[2]


def block(page: str, number: int) -> str:
    """A block of code of a page, from 0."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)[number]


def trained(task: Any, data: Dataset) -> tuple[Parameters, Parameters]:
    """The start, and the parameters after one update, which leaves its arguments alone."""
    start = task.initial_parameters()
    before = flatten(start).copy()
    update = task.local_update(start, data, update_rng(0, 1, 0), 1.0)
    assert np.array_equal(flatten(start), before)
    assert list(shapes_of(update).items()) == list(task.contribution_shapes.items())
    return start, {name: start[name] + update[name] for name in start}


def made_up() -> ModuleType:
    spec = importlib.util.spec_from_file_location("made_up", ROOT / "examples" / "hospitals" / "made_up.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_was_learned_gets_into_the_module(tmp_path: Path, own_module: OwnModule) -> None:
    pytest.importorskip("torch")
    own_module("rows", block("your_own_model.md", 0))
    task = make_task("rows:Rows", {"hidden": 64, "local_steps": 40, "client_rate": 0.3})
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    data = Dataset(rng.normal(size=(60, 8)).astype(np.float32) + 2 * np.eye(8, dtype=np.float32)[labels], labels)
    start, learned = trained(task, data)
    assert task.evaluate(learned, data)["loss"] < 0.8 * task.evaluate(start, data)["loss"]
    code = block("your_own_model.md", 2)
    file = tmp_path / re.findall(r'load_model\("(.*?)"\)', code)[0]
    file.parent.mkdir(parents=True)
    save_checkpoint(file, Checkpoint(learned, {}, {"study": "my-study", "task": "rows:Rows", "round": 15}))
    names: dict[str, Any] = {}
    exec(compile(code, "the page", "exec"), names)
    with names["torch"].no_grad():
        found = names["module"](names["torch"].from_numpy(data.features)).argmax(dim=1).numpy()
    assert names["model"].round == 15
    assert found.tolist() == task.predict(learned, data.features).tolist()


def test_the_head_on_a_frozen_body(tmp_path: Path, own_module: OwnModule) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    save_file(torch.nn.Linear(784, 64).state_dict(), tmp_path / "body.safetensors")
    own_module("head", block("your_own_model.md", 1))
    task = make_task("head:Head")
    rng = np.random.default_rng(0)
    trained(task, Dataset(rng.integers(0, 256, (20, 28, 28), dtype=np.uint8), rng.integers(0, 10, 20)))
    assert list(task.contribution_shapes.values()) == [(10, 64), (10,)]


def test_the_model_in_numpy_learns(own_module: OwnModule) -> None:
    own_module("line", block("your_own_model.md", 3))
    task = make_task("line:Line", {"steps": 10})
    data = Dataset(**made_up().patients("Cleveland", 243, seed=2))
    start, moved = trained(task, data)
    assert task.evaluate(moved, data)["loss"] < 0.9 * task.evaluate(start, data)["loss"]
    assert task.evaluate(moved, data)["accuracy"] > 0.7


def test_the_file_of_ones_own_is_read(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "your_own_data.md").read_text(encoding="utf-8")
    [rows] = re.findall(r"^```\n(age,.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "visits.csv").write_text(rows)
    data = read_own(tmp_path / "visits.csv", "mlp")
    assert data.features.tolist() == [[np.float32(0.12), np.float32(-1.3), np.float32(0.44)]]
    assert data.labels.tolist() == [1]


def test_volumes_are_read_and_learned(tmp_path: Path, own_module: OwnModule) -> None:
    pytest.importorskip("torch")
    nibabel = pytest.importorskip("nibabel")
    own_module("scans", block("your_own_data.md", 0))
    rng = np.random.default_rng(3)
    (tmp_path / "hospital").mkdir()
    for number in range(16):
        volume = rng.normal(800 * (number % 2), 300, (64, 64, 64)).astype(np.float32)
        scan = nibabel.Nifti1Image(volume, np.eye(4))
        nibabel.save(scan, tmp_path / "hospital" / f"{number % 2}-patient-{number:02}.nii.gz")
    data = read_own(tmp_path / "hospital", "scans:Scans")
    assert (data.features.shape, data.labels.tolist()) == ((16, 1, 16, 16, 16), [0] * 8 + [1] * 8)
    task = make_task("scans:Scans", {"local_steps": 40, "client_rate": 0.3})
    _, learned = trained(task, data)
    assert task.evaluate(learned, data)["accuracy"] > 0.9
