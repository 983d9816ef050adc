"""Mistakes in a user's own class are one sentence with file and line, wherever Sordino's code calls the class."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learning.datasets import Dataset
from learning.make_task import make_task
from learning.options import OptionError
from learning.own_task import TaskMistake, TaskUnavailable, place_of, with_place
from learning.parameters import flatten_contribution
from learning.server_optimizers import ServerOptimizer
from learning.task import update_rng

LINE = """from dataclasses import dataclass

import numpy as np

from sordino import ModelTask, TaskOptions


@dataclass(frozen=True, kw_only=True)
class Options(TaskOptions):
    features: int = 4


class Line(ModelTask):
    Options = Options

    def __init__(self, options):
        self.options = options

    def initial_parameters(self):
        return {"weights": np.zeros(self.options.features, np.float32)}

    def local_update(self, parameters, data, rng, l2_clip):
        return {"weights": data.features.T @ data.labels / len(data)}

    def evaluate(self, parameters, data):
        return {"accuracy": 0.5, "loss": 1.0}
"""
ROWS = """from dataclasses import dataclass

from torch import nn

from sordino import TorchTask, TrainingOptions


@dataclass(frozen=True, kw_only=True)
class Options(TrainingOptions):
    hidden: int = 5


class Rows(TorchTask):
    Options = Options
    example_shape = (4,)
    classes = 3

    def module(self):
        return nn.Sequential(nn.Linear(4, self.options.hidden), nn.ReLU(), nn.Linear(self.options.hidden, 3))
"""
DATA = Dataset(np.ones((3, 4), np.float32), np.zeros(3, np.int64))
Written = Callable[[str], Path]


@pytest.fixture
def written(own_module: Callable[[str, str], Path]) -> Written:
    return partial(own_module, "own_module")


@pytest.mark.parametrize(("release", "there"), [("1.40.2", "flwr 1.40.2 is installed"), ("", "it is not installed")])
def test_flower_is_named_where_it_is_missing_or_too_old(
    release: str, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if not release:
            raise PackageNotFoundError(name)
        return release

    monkeypatch.setattr("importlib.metadata.version", version)
    for name in ("learning.tasks.flower_app", "learning.tasks.flower_arrays"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(TaskUnavailable, match=f"a Flower app needs flwr 1.41 or later, and {there}: pip install"):
        make_task("flower:own_module:app")


def line_of(text: str, part: str) -> int:
    """In which line a part of a text stands, from 1."""
    return text[: text.index(part)].count("\n") + 1


def told(file: Path, name: str) -> str:
    """What is said of a class that can't be made."""
    with pytest.raises(TaskMistake) as caught:
        make_task(f"{file.stem}:{name}")
    assert isinstance(caught.value, OptionError)  # told as input by every verb, and by client and coordinator
    return str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "at", "said"),
    [
        ("self.options.hidden)", "self.options.hiden)", "return nn.Seq", "no attribute 'hiden'"),
        ("nn.ReLU()", "ReLU()", "return nn.Seq", "NameError: name 'ReLU' is not defined"),
        ("nn.ReLU()", "nn.BatchNorm1d(5)", "def module", "take nn.GroupNorm for batch norm"),
        ("hidden, 3)", "hidden, 2)", "def module", "its last layer must give 3 for each"),
        ("nn.Linear(4,", "nn.Linear(6,", "def module", r"example_shape (4,): RuntimeError: mat1 and mat2 shapes"),
        ("        return nn.", "        nn.", "def module", "module() returns NoneType; it must return"),
        ("    classes = 3\n", "", "class Rows", "add a line such as classes = 10"),
    ],
)
def test_mistakes_in_a_torch_task(written: Written, before: str, after: str, at: str, said: str) -> None:
    pytest.importorskip("torch")
    text = ROWS.replace(before, after)
    assert text != ROWS
    file = written(text)
    message = told(file, "Rows")
    assert f"task '{file.stem}:Rows': its class Rows fails: {file}, line {line_of(text, at)}" in message
    assert said in message


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("import no_such_thing\n", "Line", "line 1: ModuleNotFoundError: No module named 'no_such_thing'; install"),
        ("\nx = undefined\n", "Line", "line 2: NameError: name 'undefined' is not defined; correct it there"),
        ("class Line\n    pass\n", "Line", "line 1: SyntaxError"),
        ("import sys\nsys.exit(1)\n", "Line", "line 2: SystemExit: 1; a module of a task is imported, not run"),
        (LINE, "Lines", "has no class 'Lines'; it was imported from {file}: name one of its tasks after the colon: L"),
        (LINE, "Options", "is no task yet: it lacks initial_parameters, local_update, learner, Options"),
        (LINE.replace("evaluate", "evaluat"), "Line", "line 13) is no task yet: it lacks evaluate; docs"),
        (LINE.replace("    Options = Options\n", ""), "Line", "it lacks Options, a dataclass derived"),
        (LINE.replace("features: int = 4", "features: int"), "Line", "it lacks a default for features in its Options"),
        (LINE.replace("@dataclass(frozen=True, kw_only=True)\n", ""), "Line", "it lacks @dataclass(frozen=True"),
    ],
)
def test_a_module_or_a_class_that_is_no_task(written: Written, text: str, name: str, said: str) -> None:
    file = written(text)
    assert said.format(file=file) in told(file, name)


def test_a_module_of_torch_is_no_task(written: Written) -> None:
    pytest.importorskip("torch")
    file = written("from torch import nn\n\n\nclass Net(nn.Module):\n    pass\n")
    assert f"class Net ({file}, line 4) is a module of torch, no task" in told(file, "Net")


def test_a_file_that_an_installed_module_hides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "colorsys.py").write_text(LINE)
    for name, error, told in (
        ("colorsys", TaskMistake, r"imported from .*colorsys\.py, which hides .*colorsys\.py: give yours"),  # Python's
        ("colorsyst", TaskUnavailable, "there is no module 'colorsyst'"),
        ("colorsyst.py", TaskUnavailable, r"write colorsyst:Line, without \.py"),
        ("./colorsyst", OptionError, r"write module:Class, the file's name without \.py and without its folder"),
    ):
        with pytest.raises(error, match=told):
            make_task(f"{name}:Line")


@pytest.mark.parametrize(
    ("before", "after", "said", "raises"),
    [
        (": data.features", ": dat.features", "in local_update: NameError: name 'dat' is not defined", True),
        ('0.5, "loss": 1.0', "[0.5]", "evaluate returns no figures; it must return a dict such as", False),
        ('"accuracy": 0.5', '"accuracy": 95.0', "evaluate gives accuracy 95; it must be a share, from 0 to 1", False),
        ("np.zeros(self.options.features, np.float32)", "[0.0]", "gives 'weights' as list; it must be an arr", False),
        ("np.zeros(self.options.features", "np.full(self.options.features, np.nan", "'weights'; a name must be", False),
        ('{"weights": np.zeros', "{1: np.zeros", "gives 1; a name must be a text, and its values finite", False),
        ("np.zeros(self", "np.zeros(-self", "in initial_parameters: ValueError: negative dimensions", True),
    ],
)
def test_mistakes_while_it_works(written: Written, before: str, after: str, said: str, raises: bool) -> None:
    text = LINE.replace(before, after)
    assert text != LINE
    file = written(text)
    with pytest.raises(TaskMistake, match=f"its class Line fails: {file}, line ") as caught:
        used(make_task(f"{file.stem}:Line"))
    assert said in str(caught.value)
    place = place_of(caught.value)
    assert bool(place) == raises
    assert f"fails: {place}" in str(caught.value)


def test_a_class_that_keeps_no_options_has_them(written: Written) -> None:
    file = written(LINE.replace("        self.options = options", "        pass"))
    assert make_task(f"{file.stem}:Line", {"features": 3}).dim == 3


def test_figures_are_numbers_of_python(written: Written) -> None:
    """NumPy's can't be written as JSON, where a round is recorded: the coordinator would end after its charge."""
    file = written(LINE.replace('0.5, "loss"', 'np.mean(data.features[0, :2] * np.float32(0.5)), "loss"'))
    task = make_task(f"{file.stem}:Line")
    assert json.dumps(task.evaluate(task.initial_parameters(), DATA)) == '{"accuracy": 0.5, "loss": 1.0}'


def test_an_evaluation_cannot_change_the_model(written: Written) -> None:
    file = written(
        LINE.replace('        return {"accuracy"', '        parameters["weights"] += 1\n        return {"accuracy"')
    )
    learner = make_task(f"{file.stem}:Line").learner(ServerOptimizer(), DATA)
    with pytest.raises(ValueError, match="read-only") as caught:
        learner.evaluate()
    assert "in evaluate" in place_of(caught.value)
    assert learner.broadcast()["weights"].tolist() == [0] * 4


def used(task: Any) -> None:
    """As a round does."""
    start = task.initial_parameters()
    task.local_update(start, DATA, update_rng(0, 1, 0), 1.0)
    task.evaluate(start, DATA)


@pytest.mark.parametrize("note", ["", "row 0 is 42"])
def test_a_complaint_about_examples_stays_one_and_says_where(written: Written, note: str) -> None:
    """A note of the author may contain data; the place, which is logged, must not."""
    begins = '        return {"weights": data'
    raises = f"        error = ValueError('too few')\n        error.add_note({note!r})\n        raise error\n"
    text = LINE.replace(begins, raises + begins)
    file = written(text)
    task = make_task(f"{file.stem}:Line")
    with pytest.raises(ValueError, match="too few") as caught:
        task.local_update(task.initial_parameters(), DATA, update_rng(0, 1, 0), 1.0)
    assert not isinstance(caught.value, TaskMistake)
    place = f"{file}, line {line_of(text, 'raise error')}, in local_update"
    assert (place_of(caught.value), with_place(caught.value)) == (place, f"too few ({place})")
    noted = ValueError("elsewhere")
    noted.add_note(note)
    assert (place_of(noted), with_place(noted)) == ("", "elsewhere")


def test_a_class_that_exits_is_a_mistake_with_its_line(written: Written) -> None:
    text = LINE.replace('        return {"accuracy"', '        raise SystemExit(3)\n        return {"accuracy"')
    file = written(text)
    task = make_task(f"{file.stem}:Line")
    with pytest.raises(TaskMistake, match=f"{file}, line {line_of(text, 'raise SystemExit')}, in evaluate: SystemExit"):
        task.evaluate(task.initial_parameters(), DATA)


def test_a_class_without_mistakes_works(written: Written) -> None:
    file = written(LINE)
    task = make_task(f"{file.stem}:Line", {"features": 4})
    assert (task.name, task.dim, type(task).__name__) == (f"{file.stem}:Line", 4, "Line")
    assert task.local_update(task.initial_parameters(), DATA, update_rng(0, 1, 0), 1.0)["weights"].tolist() == [0] * 4
    with pytest.raises(OptionError, match=r"unknown option 'feature'\. Did you mean features\?"):
        make_task(f"{file.stem}:Line", {"feature": 4})


def test_a_contribution_has_the_names_order_and_shapes_that_were_stated() -> None:
    shapes = {"weights": (2,), "bias": (1,)}
    weights, bias = np.ones(2), np.zeros(1)
    assert flatten_contribution({"weights": weights, "bias": bias}, shapes).tolist() == [1, 1, 0]
    for wrong, said in [
        ({"bias": bias, "weights": weights}, r"bias \[1\], weights \[2\]; it must return weights \[2\], bias \[1\]"),
        ({"weights": weights}, r"returns weights \[2\]; it must"),
        ({"weights": weights.reshape(1, 2), "bias": bias}, r"weights \[1, 2\]"),
        ({"weights": weights, "bias": [0.0]}, "'bias' as list"),
        (None, "returns NoneType"),
    ]:
        with pytest.raises(ValueError, match=said):
            flatten_contribution(wrong, shapes)  # type: ignore[arg-type]  # what a mistake returns


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedsgd"])
def test_a_loss_of_several_numbers(written: Written, method: str) -> None:
    """Their sum would be another loss, with one step taken together as with many taken alone."""
    pytest.importorskip("torch")
    text = ROWS + "\n    def loss(self, outputs, labels):\n        return (outputs**2).mean(dim=1)\n"
    file = written(text)
    task = make_task(f"{file.stem}:Rows", {"method": method})
    start = task.initial_parameters()
    said = f"{file}, line {line_of(text, 'def loss')}: loss() gives shape (3,); it must give one number"
    with pytest.raises(TaskMistake, match=re.escape(said)):
        task.local_update(start, DATA, update_rng(0, 1, 0), 1.0)
    with pytest.raises(TaskMistake, match=re.escape(said)):
        task.local_updates(start, [DATA, DATA], [update_rng(0, 1, one) for one in range(2)], 1.0)
