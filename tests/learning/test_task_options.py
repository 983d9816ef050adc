"""Options are read from plain mappings and refused by name; tasks are made by name."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from learning.make_task import make_task
from learning.options import OptionError, TrainingOptions
from learning.task import update_rng
from learning.task_names import TASKS
from learning.tasks.softmax_regression import SoftmaxOptions

ROOT = Path(__file__).resolve().parents[2]


def test_defaults_and_given_values() -> None:
    assert SoftmaxOptions.from_mapping({}) == SoftmaxOptions()
    options = SoftmaxOptions.from_mapping({"client_rate": 1, "pooling": 2})
    assert (options.client_rate, type(options.client_rate), options.pooling) == (1.0, float, 2)
    assert SoftmaxOptions.from_mapping(options.to_mapping()) == options


BAD_VALUES: dict[str, tuple[object, ...]] = {
    "client_rate": (0, -1.0, math.nan, math.inf, "0.5", True, 10**400),
    "batch_size": (0, 65_537, 20.0, None),
    "local_epochs": (0, 1_001, True),
    "pooling": (3, 28),
    "pixel_scale": (0.0,),
    "pixel_offset": (math.nan,),
    "clientrate": (0.5,),
}


@pytest.mark.parametrize(("option", "value"), [(name, one) for name, values in BAD_VALUES.items() for one in values])
def test_bad_option_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(OptionError, match=option):
        make_task("softmax-regression", {option: value})


def test_unknown_names_say_what_is_near_or_list_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"^unknown option 'epochs'\. Did you mean local_epochs\?$"):
        TrainingOptions.from_mapping({"epochs": 3})
    with pytest.raises(OptionError, match="batch_size, blur_weight, client_rate, client_schedule, local_epochs"):
        TrainingOptions.from_mapping({"x": 3})
    with pytest.raises(OptionError, match="softmax-regression, mlp, regression, cnn"):
        make_task("resnet")


def test_update_rng_differs_by_seed_round_and_participant() -> None:
    draws = {key: int(update_rng(*key).words(1)[0]) for key in [(0, 1, 2), (0, 2, 1), (1, 1, 2), (0, 1, 3), (0, 12, 0)]}
    assert len(set(draws.values())) == len(draws)
    assert int(update_rng(0, 1, 2).words(1)[0]) == draws[(0, 1, 2)]


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_numpy_path_runs_with_torch_blocked() -> None:
    done = _run(
        """
import sys
sys.modules["torch"] = None
import numpy as np
import learning.checkpoints, learning.server_optimizers
from learning.datasets import load_labels, load_part, load_partition
from learning.partitions import partition
from learning.make_task import make_task
from learning.own_task import TaskUnavailable
task = make_task("softmax-regression", {})
parts = partition(load_labels("fashion-mnist-subset"), "dirichlet", 100, 1.0, 0)
data = load_partition("fashion-mnist-subset", parts[0])
task.local_update(task.initial_parameters(), data, np.random.default_rng(0))
task.evaluate(task.initial_parameters(), load_part("fashion-mnist-subset", "test"))
assert not any(name.split(".")[0] in ("torch", "scipy", "grpc") for name in sys.modules if sys.modules[name])
try:
    make_task("cnn", {})
except TaskUnavailable as error:
    print(error)
"""
    )
    assert done.returncode == 0, done.stderr
    assert "pip install '.[torch]'" in done.stdout


def test_numpy_path_does_not_import_torch_where_it_is_installed() -> None:
    done = _run(
        "import sys, sordino.lab.simulation.run; from learning.make_task import make_task;"
        "make_task('softmax-regression', {}); print('torch' in sys.modules)"
    )
    assert done.stdout.strip() == "False", done.stderr


def test_blur_compares_an_unweighted_change() -> None:
    for method in ("blur", "blur-lus"):
        with pytest.raises(OptionError, match=f"'weight_cap' is 5; it must be 0 with the method {method}"):
            make_task("softmax-regression", {"method": method, "weight_cap": 5})


def test_every_named_task_agrees_on_its_dimension() -> None:
    for name in TASKS:
        if name in ("cnn", "femnist-cnn", "resnet18", "lstm"):
            pytest.importorskip("torch")
        task = make_task(name)
        assert task.name == name
        assert sum(math.prod(shape) for shape in task.contribution_shapes.values()) == task.dim
        assert all(array.dtype == np.float32 for array in task.initial_parameters().values())
