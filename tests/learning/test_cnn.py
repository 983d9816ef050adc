"""The torch task: same start everywhere, pure updates, and it learns."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from learning.datasets import Dataset, load_dataset
from learning.make_task import make_task
from learning.options import OptionError
from learning.parameters import flatten
from learning.partitions import partition
from learning.server_optimizers import FedAvg
from sordino.lab.baseline import train_without_noise
from tests.learning.digests import parameters_digest

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]


def _data(count: int) -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset(rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), rng.integers(0, 10, count))


def test_start_is_the_same_in_another_process() -> None:
    task = make_task("cnn", {"initial_seed": 7})
    assert task.dim == 18_378
    assert flatten(task.initial_parameters()).shape == (18_378,)
    code = (
        "import torch; torch.manual_seed(5); torch.rand(3); from learning.make_task import make_task;"
        "from tests.learning.digests import parameters_digest;"
        "task = make_task('cnn', {'initial_seed': 7});"
        "print(parameters_digest(task.initial_parameters()).hex(), torch.get_num_threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [parameters_digest(task.initial_parameters()).hex(), "1"]
    other = make_task("cnn", {"initial_seed": 8}).initial_parameters()
    assert parameters_digest(other) != parameters_digest(task.initial_parameters())


def test_local_update_is_a_pure_function() -> None:
    task = make_task("cnn", {"local_epochs": 2})
    data, parameters = _data(45), task.initial_parameters()
    before = parameters_digest(parameters)
    torch.manual_seed(1)
    first = flatten(task.local_update(parameters, data, np.random.default_rng(4)))
    state = torch.get_rng_state()
    torch.manual_seed(2)
    second = flatten(task.local_update(parameters, data, np.random.default_rng(4)))
    np.testing.assert_array_equal(first, second)
    assert parameters_digest(parameters) == before
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.any()
    assert np.isfinite(first).all()


def test_gradient_against_finite_differences() -> None:
    """A full-batch step is -rate x gradient; its slope along itself is measured through ``evaluate``."""
    task = make_task("cnn", {"client_rate": 1e-3, "batch_size": 64, "local_epochs": 1})
    data, start = _data(32), task.initial_parameters()
    update = task.local_update(start, data, np.random.default_rng(0))
    gradient = {name: array.astype(np.float64) / -1e-3 for name, array in update.items()}
    square = sum(float((array**2).sum()) for array in gradient.values())
    step = 1e-2 / np.sqrt(square)

    def loss_at(distance: float) -> float:
        moved = {name: (start[name] + distance * gradient[name]).astype(np.float32) for name in start}
        return task.evaluate(moved, data)["loss"]

    slope = (loss_at(step) - loss_at(-step)) / (2 * step)
    assert slope == pytest.approx(square, rel=0.02)


def test_few_participants_few_rounds_improve() -> None:
    train, test = load_dataset("fashion-mnist-subset")
    train, test = train.take(np.arange(1_000)), test.take(np.arange(500))
    parts = partition(train.labels, "iid", 5, seed=0)
    task = make_task("cnn", {"local_epochs": 2, "client_rate": 0.05})
    done = list(train_without_noise(task, train, test, parts, FedAvg(1.0, 0.5), rounds=4, l2_clip=5.0, seed=0))
    assert done[-1].accuracy > 0.55
    assert done[-1].loss < done[0].loss


def test_divergence_is_returned_not_hidden() -> None:
    task = make_task("cnn", {"client_rate": 1e6, "local_epochs": 5})
    update = flatten(task.local_update(task.initial_parameters(), _data(60), np.random.default_rng(0)))
    assert not np.isfinite(update).all()


def test_bad_options_and_data_are_refused() -> None:
    with pytest.raises(OptionError, match="initial_seed"):
        make_task("cnn", {"initial_seed": -1})
    with pytest.raises(OptionError, match="pooling"):
        make_task("cnn", {"pooling": 4})
    task = make_task("cnn")
    images = np.zeros((2, 28, 28), np.uint8)
    with pytest.raises(ValueError, match="labels run from 3 to 10"):
        task.local_update(task.initial_parameters(), Dataset(images, np.array([3, 10])), np.random.default_rng(0))
    with pytest.raises(ValueError, match="without examples"):
        task.local_update(
            task.initial_parameters(), Dataset(images[:0], np.zeros(0, np.int64)), np.random.default_rng(0)
        )


def test_float_images_count_as_pixels_in_zero_to_one() -> None:
    task, data = make_task("cnn"), _data(20)
    floats = Dataset((data.features / 255).astype(np.float32), data.labels)
    start = task.initial_parameters()
    first, second = task.evaluate(start, data), task.evaluate(start, floats)
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-5)
    np.testing.assert_array_equal(floats.features, (data.features / 255).astype(np.float32))
