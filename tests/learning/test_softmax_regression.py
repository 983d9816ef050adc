"""Softmax regression: gradient, pooling, purity, divergence shown, bad data refused."""

import numpy as np
import pytest

from learning.datasets import Dataset
from learning.make_task import make_task
from learning.parameters import Parameters, flatten
from learning.tasks.softmax_regression import SoftmaxOptions, SoftmaxRegression, pooled_pixels


def _data(count: int, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
    return Dataset(images, rng.integers(0, 10, count))


def _random_parameters(seed: int = 3) -> Parameters:
    rng = np.random.default_rng(seed)
    return {"weights": rng.normal(size=(49, 10)).astype(np.float32), "bias": rng.normal(size=10).astype(np.float32)}


def _mean_loss(weights: np.ndarray, features: np.ndarray, labels: np.ndarray) -> float:
    """Plain reference: minus the mean log-probability of the label, one example at a time."""
    total = 0.0
    for row, label in zip(features, labels, strict=True):
        scores = [sum(x * w for x, w in zip(row, column, strict=True)) for column in weights.T]
        total -= scores[label] - np.log(sum(np.exp(score) for score in scores))
    return total / len(labels)


def _gradient(weights: np.ndarray, features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """By weights whose last row is the bias, where the last feature is 1."""
    model = {"weights": weights[:-1], "bias": weights[-1]}
    slopes = SoftmaxRegression(SoftmaxOptions()).slopes(model, features, labels, None)
    return np.vstack([slopes["weights"], slopes["bias"]])


def test_gradient_against_finite_differences() -> None:
    rng = np.random.default_rng(5)
    weights, features = rng.normal(size=(6, 10)), rng.normal(size=(7, 6))
    labels = rng.integers(0, 10, 7)
    gradient = _gradient(weights, features, labels)
    step = 1e-5
    for index in np.ndindex(6, 10):
        up, down = weights.copy(), weights.copy()
        up[index] += step
        down[index] -= step
        slope = (_mean_loss(up, features, labels) - _mean_loss(down, features, labels)) / (2 * step)
        assert gradient[index] == pytest.approx(slope, abs=1e-8)


def test_one_full_batch_step_is_rate_times_gradient() -> None:
    task = make_task("softmax-regression", {"client_rate": 0.25, "batch_size": 64, "local_epochs": 1})
    data, parameters = _data(30), _random_parameters()
    update = task.local_update(parameters, data, np.random.default_rng(0))
    features = data.features.reshape(30, 7, 4, 7, 4).mean(axis=(2, 4)).reshape(30, 49) / 255
    features = np.hstack([features * 2.0 - 0.25, np.ones((30, 1))])
    weights = np.vstack([parameters["weights"], parameters["bias"]]).astype(np.float64)
    expected = -0.25 * _gradient(weights, features, data.labels)
    np.testing.assert_allclose(update["weights"], expected[:-1], atol=2e-6)
    np.testing.assert_allclose(update["bias"], expected[-1], atol=2e-6)


def test_last_batch_takes_what_is_left() -> None:
    """21 examples in batches of 20: the second step's gradient is that of its one example, undiluted."""
    task = make_task("softmax-regression", {"client_rate": 0.1, "batch_size": 20, "local_epochs": 1})
    data, rng = _data(21), np.random.default_rng(9)
    order = np.random.default_rng(9).permutation(21)
    parameters = task.initial_parameters()
    first = task.local_update(parameters, data.take(order[:20]), np.random.default_rng(0))
    moved = {name: parameters[name] + first[name] for name in parameters}
    second = task.local_update(moved, data.take(order[20:]), np.random.default_rng(0))
    whole = task.local_update(parameters, data, rng)
    np.testing.assert_allclose(flatten(whole), flatten(first) + flatten(second), atol=1e-6)


@pytest.mark.parametrize("pooling", [1, 2, 4, 7, 14])
def test_pooling_against_plain_means(pooling: int) -> None:
    images = _data(5).features
    images[0] = 255  # the largest sum must fit its word
    side = 28 // pooling
    expected = images.reshape(5, side, pooling, side, pooling).mean(axis=(2, 4)).reshape(5, -1) / 255
    pooled = pooled_pixels(images, pooling)
    assert pooled.dtype == np.float32
    np.testing.assert_allclose(pooled, expected, rtol=1e-6)
    as_floats = (images / 255).astype(np.float32)
    np.testing.assert_allclose(pooled_pixels(as_floats, pooling), expected, rtol=1e-5)


@pytest.mark.parametrize(("pooling", "dim"), [(4, 500), (1, 7850), (2, 1970), (7, 170), (14, 50)])
def test_dimension_and_zero_start(pooling: int, dim: int) -> None:
    task = make_task("softmax-regression", {"pooling": pooling})
    assert task.dim == dim
    vector = flatten(task.initial_parameters())
    assert vector.shape == (dim,)
    assert not vector.any()


def test_local_update_is_a_pure_function() -> None:
    task = make_task("softmax-regression", {})
    data, parameters = _data(60), _random_parameters()
    before = flatten(parameters), data.features.copy(), data.labels.copy()
    first = task.local_update(parameters, data, np.random.default_rng(4))
    second = task.local_update(parameters, data, np.random.default_rng(4))
    other_order = task.local_update(parameters, data, np.random.default_rng(5))
    np.testing.assert_array_equal(flatten(first), flatten(second))
    assert not np.array_equal(flatten(first), flatten(other_order))
    np.testing.assert_array_equal(flatten(parameters), before[0])
    np.testing.assert_array_equal(data.features, before[1])
    np.testing.assert_array_equal(data.labels, before[2])
    assert list(first) == ["weights", "bias"]


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
@pytest.mark.filterwarnings("error")
def test_divergence_is_returned_not_hidden(value: float) -> None:
    task = make_task("softmax-regression", {})
    parameters = _random_parameters()
    parameters["weights"][0, :2] = value
    parameters["weights"][0, 2:] = -value
    data = _data(40)
    update = flatten(task.local_update(parameters, data, np.random.default_rng(0)))
    assert not np.isfinite(update).all() or np.isfinite(value)
    figures = task.evaluate(parameters, data)
    assert 0 <= figures["accuracy"] <= 1
    features = np.full((40, 28, 28), np.nan, dtype=np.float32)
    poisoned = task.local_update(_random_parameters(), Dataset(features, data.labels), np.random.default_rng(0))
    assert np.isnan(flatten(poisoned)).any()


def test_evaluate_at_zero_is_chance() -> None:
    task = make_task("softmax-regression", {})
    data = Dataset(_data(2_500).features, np.arange(2_500) % 10)  # more than one block
    figures = task.evaluate(task.initial_parameters(), data)
    assert figures["loss"] == pytest.approx(np.log(10))
    assert figures["accuracy"] == 0.1  # ties go to class 0


def test_evaluate_against_the_plain_loss() -> None:
    task = make_task("softmax-regression", {"pixel_scale": 1.0, "pixel_offset": 0.0})
    data, parameters = _data(50), _random_parameters()
    features = np.hstack([pooled_pixels(data.features, 4), np.ones((50, 1))])
    weights = np.vstack([parameters["weights"], parameters["bias"]])
    figures = task.evaluate(parameters, data)
    assert figures["loss"] == pytest.approx(_mean_loss(weights, features, data.labels), rel=1e-5)
    assert figures["accuracy"] == np.mean((features @ weights).argmax(axis=1) == data.labels)


def test_bad_data_is_refused() -> None:
    task = make_task("softmax-regression", {})
    parameters, rng = task.initial_parameters(), np.random.default_rng(0)
    images = np.zeros((2, 28, 28), np.uint8)
    empty = Dataset(images[:0], np.zeros(0, np.int64))
    with pytest.raises(ValueError, match="without examples"):
        task.local_update(parameters, empty, rng)
    with pytest.raises(ValueError, match="no examples"):
        task.evaluate(parameters, empty)
    with pytest.raises(ValueError, match="labels run from 3 to 10"):
        task.local_update(parameters, Dataset(images, np.array([3, 10])), rng)
    with pytest.raises(ValueError, match="labels run from -1 to 3"):
        task.evaluate(parameters, Dataset(images, np.array([3, -1])))
    with pytest.raises(ValueError, match="28 x 28"):
        task.local_update(parameters, Dataset(np.zeros((2, 784), np.uint8), np.array([1, 2])), rng)
    with pytest.raises(ValueError, match="'bias'"):
        task.local_update({**parameters, "bias": np.zeros(9, np.float32)}, Dataset(images, np.array([1, 2])), rng)
