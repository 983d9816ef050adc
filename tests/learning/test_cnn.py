"""The torch task: same start everywhere, pure updates, and it learns."""

import numpy as np
import pytest

from learning.datasets import Dataset
from learning.make_task import make_task
from learning.options import OptionError
from learning.parameters import flatten

torch = pytest.importorskip("torch")


def _data(count: int) -> Dataset:
    rng = np.random.default_rng(0)
    return Dataset(rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), rng.integers(0, 10, count))


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
