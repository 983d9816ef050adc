"""The perceptron: gradient, same start everywhere, learns, bad data refused."""

from __future__ import annotations

import numpy as np
import pytest

from learning.datasets import Dataset, load_part
from learning.make_task import make_task
from learning.options import OptionError
from learning.parameters import flatten
from learning.task import update_rng
from learning.tasks.mlp import pixels


def _loss(parameters: dict[str, np.ndarray], inputs: np.ndarray, labels: np.ndarray) -> float:
    """Plain reference, one example at a time."""
    total = 0.0
    for row, label in zip(inputs, labels, strict=True):
        hidden = [
            max(0.0, float(row @ column) + b)
            for column, b in zip(parameters["hidden_weights"].T, parameters["hidden_bias"], strict=True)
        ]
        scores = np.array(hidden) @ parameters["output_weights"] + parameters["output_bias"]
        total -= scores[label] - np.log(np.exp(scores).sum())
    return total / len(labels)


def test_gradient_against_finite_differences() -> None:
    rng = np.random.default_rng(5)
    task = make_task("mlp", {"hidden": 3})
    parameters = {name: array.astype(np.float64) for name, array in task.initial_parameters().items()}
    inputs, labels = rng.normal(size=(4, 784)), rng.integers(0, 10, 4)
    gradient = task.slopes(parameters, inputs, labels, None)
    step = 1e-6
    for name, array in parameters.items():
        for index in [tuple(int(rng.integers(0, extent)) for extent in array.shape) for _ in range(8)]:
            ends = []
            for sign in (1, -1):
                moved = {key: value.copy() for key, value in parameters.items()}
                moved[name][index] += sign * step
                ends.append(_loss(moved, inputs, labels))
            assert gradient[name][index] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-6)


def test_the_size_that_the_docstring_states_and_one_start_for_all() -> None:
    task = make_task("mlp")
    assert task.dim == 100_180 == flatten(task.initial_parameters()).size
    np.testing.assert_array_equal(flatten(task.initial_parameters()), flatten(make_task("mlp").initial_parameters()))
    other = make_task("mlp", {"initial_seed": 1})
    assert (flatten(other.initial_parameters()) != flatten(task.initial_parameters())).any()


def test_it_learns_and_leaves_its_arguments_alone() -> None:
    task = make_task("mlp", {"hidden": 32})
    train = load_part("fashion-mnist-subset", "train").take(np.arange(600))
    parameters = task.initial_parameters()
    before = flatten(parameters).copy()
    update = task.local_update(parameters, train, update_rng(0, 1, 0))
    np.testing.assert_array_equal(flatten(parameters), before)
    after = {name: parameters[name] + update[name] for name in parameters}
    assert task.evaluate(after, train)["loss"] < 0.7 * task.evaluate(parameters, train)["loss"]


def test_uint8_and_float_images_are_the_same_numbers() -> None:
    images = np.arange(784, dtype=np.uint8).reshape(1, 28, 28)
    np.testing.assert_allclose(pixels(images), pixels(images.astype(np.float32) / 255), atol=1e-6)
    assert pixels(images).min() == -1


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match="hidden"):
        make_task("mlp", {"hidden": 0})
    empty = Dataset(np.zeros((0, 28, 28), dtype=np.uint8), np.zeros(0, dtype=np.int64))
    task = make_task("mlp", {"hidden": 2})
    with pytest.raises(ValueError, match="without examples"):
        task.local_update(task.initial_parameters(), empty, update_rng(0, 1, 0))
    with pytest.raises(ValueError, match="nothing to evaluate"):
        task.evaluate(task.initial_parameters(), empty)
