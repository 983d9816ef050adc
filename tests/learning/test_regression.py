"""The regression that ships: its gradient, its bound, and what it learns beside least squares."""

from __future__ import annotations

import numpy as np
import pytest

from learning.datasets import Dataset
from learning.make_task import make_task
from learning.options import OptionError
from learning.parameters import Parameters, flatten
from learning.task import update_rng
from tests.learning.numeric_slopes import slope_of

WEIGHTS = np.array([9.0, -14.0, 4.0, 0.0])


def heights(count: int, seed: int, *, bent: bool = False) -> Dataset:
    """Numbers around 170 that depend on four features, with a deviation of 4 that nothing explains."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (count, 4)).astype(np.float32)
    told = 30 * np.abs(features[:, 0]) - 15 if bent else features @ WEIGHTS
    return Dataset(features, (170 + told + rng.normal(0, 4, count)).astype(np.float32))


def task_of(**options: object):  # type: ignore[no-untyped-def]
    return make_task("regression", {"features": 4, "low": 120, "high": 220, "client_rate": 0.1, **options})


def trained(task, data: Dataset, rounds: int) -> Parameters:  # type: ignore[no-untyped-def]
    model = task.initial_parameters()
    for number in range(rounds):
        change = task.local_update(model, data, update_rng(0, number + 1, 0))
        model = {name: model[name] + change[name] for name in model}
    return model


def test_a_line_comes_close_to_least_squares() -> None:
    data, held_out = heights(600, 1), heights(2_000, 2)
    columns = np.column_stack([data.features, np.ones(600)])
    best = np.linalg.lstsq(columns, data.labels, rcond=None)[0]
    errors = np.column_stack([held_out.features, np.ones(2_000)]) @ best - held_out.labels
    task = task_of()
    start = task.evaluate(task.initial_parameters(), held_out)
    assert start["root_mean_squared_error"] == pytest.approx(float(np.std(held_out.labels)), rel=0.01)
    found = task.evaluate(trained(task, data, 20), held_out)
    assert found["root_mean_squared_error"] < 1.02 * float(np.sqrt(np.mean(errors**2)))
    assert found["mean_absolute_error"] < 1.02 * float(np.mean(np.abs(errors)))
    assert 0 < found["loss"] < 0.4 * start["loss"]


def test_a_network_learns_what_no_line_can() -> None:
    data, held_out = heights(1_000, 1, bent=True), heights(2_000, 2, bent=True)
    errors = {
        hidden: task.evaluate(trained(task, data, 40), held_out)["root_mean_squared_error"]
        for hidden in (0, 16)
        for task in [task_of(hidden=hidden)]
    }
    assert errors[0] > 8
    assert errors[16] < 5


@pytest.mark.parametrize("hidden", [0, 3])
def test_gradient_of_the_bounded_loss(hidden: int) -> None:
    task, data = task_of(hidden=hidden), heights(20, 1)
    inputs, scaled = 3.0 * data.features, (data.labels - 170.0) / 50
    rng = np.random.default_rng(4)
    model = {name: rng.normal(0, 0.8, shape) for name, shape in task.contribution_shapes.items()}

    def loss(of: Parameters) -> float:
        sizes = np.abs(task.scores(of, inputs)[:, 0] - scaled)
        assert 0 < np.count_nonzero(sizes > 1) < 20  # both sides of the bend
        return float(np.where(sizes <= 1, sizes**2 / 2, sizes - 0.5).mean())

    slopes = task.slopes(model, inputs, data.labels, None)
    for name, array in model.items():
        for place in np.ndindex(array.shape):
            assert slopes[name][place] == pytest.approx(slope_of(loss, model, name, place), rel=1e-4, abs=1e-6)


def test_no_label_moves_a_step_by_more_than_its_example() -> None:
    task = task_of(method="dp-fedsgd", client_rate=0.5)
    features = np.array([[3.0, 0.0, -4.0, 0.0]], np.float32)
    far = {"weights": np.full((4, 1), 1e6, np.float32), "bias": np.zeros(1, np.float32)}
    for label in (-3e38, 1.0, 170.0, 3e38):
        for model in (task.initial_parameters(), far):
            moved = task.local_update(model, Dataset(features, np.array([label], np.float32)), update_rng(0, 1, 0))
            assert np.linalg.norm(flatten(moved)) <= 0.5 * np.sqrt(26) * (1 + 1e-6)


def test_what_is_no_regression_is_refused() -> None:
    for options, said in (
        ({"high": 0}, "'high' is 0.0; it must be finite and above low"),
        ({"low": float("nan")}, "'low' is nan; it must be finite"),
        ({"features": 0}, "'features' is 0; it must be from 1 to 1000000"),
        ({"hidden": -1}, "'hidden' is -1; it must be from 0 to 4096"),
    ):
        with pytest.raises(OptionError, match=said):
            make_task("regression", options)
    with pytest.raises(OptionError, match="votes are of a task with classes"):
        make_task("votes", {"of": "regression"})
    task = task_of()
    for data in (Dataset(np.zeros((1, 3), np.float32), np.zeros(1, np.float32)), heights(0, 1)):
        with pytest.raises(ValueError, match=r"this task takes rows of 4 numbers|nothing to evaluate on"):
            task.evaluate(task.initial_parameters(), data)
    with pytest.raises(ValueError, match="there is no label, which it learns"):
        task.check_form(Dataset(np.zeros((1, 4), np.float32), np.zeros(1, np.float32), labelled=False))
