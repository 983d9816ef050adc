"""Many participants side by side: what each would have computed alone, for every method and any numbers of examples."""

from __future__ import annotations

import numpy as np
import pytest

from learning.datasets import Dataset
from learning.make_task import make_task
from learning.options import METHODS
from learning.parameters import flatten
from learning.task import BatchedTask, update_rng

SIZES = (7, 1, 20, 13, 5, 8)


def images(count: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), rng.integers(0, 10, count))


def rows(count: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(rng.normal(size=(count, 6)).astype(np.float32), rng.integers(0, 3, count))


TASKS = [
    ("softmax-regression", {"pooling": 7}, images),
    ("softmax-regression", {"features": 6, "classes": 3}, rows),
    ("mlp", {"hidden": 5}, images),
    ("mlp", {"features": 6, "classes": 3, "hidden": 4}, rows),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("name", "options", "make"), TASKS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_each_row_is_what_the_participant_computes_alone(name, options, make, method) -> None:  # type: ignore[no-untyped-def]
    options = {**options, "method": method, "batch_size": 6, "client_rate": 0.05}
    if method != "dp-fedsgd":
        options["local_epochs"] = 2
    task = make_task(name, options)
    assert isinstance(task, BatchedTask)
    rng = np.random.default_rng(1)
    start = {key: rng.normal(0, 0.1, shape).astype(np.float32) for key, shape in task.contribution_shapes.items()}
    data = [make(size, seed) for seed, size in enumerate(SIZES)]
    alone = [flatten(task.local_update(start, one, update_rng(0, 1, place), 0.05)) for place, one in enumerate(data)]
    together = task.local_updates(start, data, [update_rng(0, 1, place) for place in range(len(data))], 0.05)
    assert together.dtype == np.float32
    np.testing.assert_allclose(together, np.array(alone), rtol=1e-3, atol=2e-6)
    if method in ("lus", "blur-lus"):
        np.testing.assert_array_equal(together == 0, np.array(alone) == 0)


def test_more_participants_than_fit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("softmax-regression", {"pooling": 14, "local_steps": 3, "batch_size": 4})
    data = [images(size, seed) for seed, size in enumerate(SIZES)]
    whole = task.local_updates(task.initial_parameters(), data, [update_rng(0, 1, place) for place in range(6)])
    monkeypatch.setattr("learning.tasks.numpy_task._NUMBERS_SIDE_BY_SIDE", 4 * task.dim)
    cut = task.local_updates(task.initial_parameters(), data, [update_rng(0, 1, place) for place in range(6)])
    np.testing.assert_allclose(cut, whole, atol=1e-6)
    assert whole.any(axis=1).all()


def test_one_participant_without_examples_is_refused() -> None:
    task = make_task("softmax-regression")
    with pytest.raises(ValueError, match="without examples"):
        task.local_updates(
            task.initial_parameters(), [images(2, 0), images(0, 1)], [update_rng(0, 1, 0), update_rng(0, 1, 1)]
        )
