"""The shipped models: gradients, purity, divergence shown, bad data refused, many side by side."""

from __future__ import annotations

import numpy as np
import pytest

from learning.datasets import Dataset, load_part
from learning.make_task import make_task
from learning.options import METHODS, OptionError
from learning.parameters import Parameters, flatten
from learning.public_random import PublicRandom
from learning.task import BatchedTask, update_rng
from learning.tasks.mlp import pixels
from learning.tasks.softmax_regression import SoftmaxOptions, SoftmaxRegression, pooled_pixels
from tests.learning.numeric_slopes import slope_of
from tests.support.rounds_in_memory import NOBODY


def _data(count: int, seed: int = 0) -> Dataset:
    """Images."""
    rng = np.random.default_rng(seed)
    return Dataset(rng.integers(0, 256, (count, 28, 28), dtype=np.uint8), rng.integers(0, 10, count))


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
    slopes = SoftmaxRegression(SoftmaxOptions()).slopes(model, features[:, :-1], labels, None)
    return np.vstack([slopes["weights"], slopes["bias"]])


def test_gradient_of_softmax_regression() -> None:
    rng = np.random.default_rng(5)
    weights, features = rng.normal(size=(6, 10)), np.hstack([rng.normal(size=(7, 5)), np.ones((7, 1))])
    labels = rng.integers(0, 10, 7)
    gradient = _gradient(weights, features, labels)
    for index in np.ndindex(6, 10):
        slope = slope_of(lambda w: _mean_loss(w["w"], features, labels), {"w": weights}, "w", index)
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
    before = [flatten(parameters), data.features.copy(), data.labels.copy()]
    first = task.local_update(parameters, data, np.random.default_rng(4))
    second = task.local_update(parameters, data, np.random.default_rng(4))
    other_order = task.local_update(parameters, data, np.random.default_rng(5))
    np.testing.assert_array_equal(flatten(first), flatten(second))
    assert not np.array_equal(flatten(first), flatten(other_order))
    for now, then in zip((flatten(parameters), data.features, data.labels), before, strict=True):
        np.testing.assert_array_equal(now, then)
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


@pytest.mark.parametrize(("name", "options"), [("softmax-regression", {}), ("mlp", {"hidden": 2}), ("cnn", {})])
def test_bad_data_is_refused(name: str, options: dict[str, int]) -> None:
    if name == "cnn":
        pytest.importorskip("torch")
    task = make_task(name, options)
    start, rng = task.initial_parameters(), update_rng(0, 1, 0)
    images = np.zeros((2, 28, 28), np.uint8)
    for data, message in (
        (_data(0), "without examples"),
        (Dataset(images, np.array([3, 10])), "labels run from 3 to 10"),
        (Dataset(np.zeros((2, 784), np.uint8), np.array([1, 2])), "28 x 28"),
    ):
        with pytest.raises(ValueError, match=message):
            task.local_update(start, data, rng)
    for data, message in (
        (_data(0), "nothing to evaluate on: the data set has no examples"),
        (Dataset(images, np.array([3, -1])), "labels run from -1 to 3"),
    ):
        with pytest.raises(ValueError, match=message):
            task.evaluate(start, data)
    last = list(start)[-1]
    with pytest.raises(ValueError, match=f"'{last}'"):
        task.local_update({**start, last: np.zeros(9, np.float32)}, Dataset(images, np.array([1, 2])), rng)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mlp", {"hidden": 0}, "hidden"),
        ("cnn", {"initial_seed": -1}, r"'initial_seed' is -1; it must be from 0 to 2\^63 - 1"),
        ("cnn", {"pooling": 4}, "pooling"),
        *(("synthetic", {"dim": dim}, "dim") for dim in (0, -1, 2**28 + 1, 1.5, True)),
    ],
)
def test_bad_options_are_refused_by_name(name: str, options: dict[str, object], message: str) -> None:
    if name == "cnn":
        pytest.importorskip("torch")
    with pytest.raises(OptionError, match=message):
        make_task(name, options)


# ---------------------------------------------------------------- the perceptron


def _perceptrons_loss(parameters: dict[str, np.ndarray], inputs: np.ndarray, labels: np.ndarray) -> float:
    """Plain reference, one example at a time."""
    total = 0.0
    for row, label in zip(inputs, labels, strict=True):
        hidden = np.maximum(0.0, row @ parameters["hidden_weights"] + parameters["hidden_bias"])
        scores = hidden @ parameters["output_weights"] + parameters["output_bias"]
        total -= scores[label] - np.log(np.exp(scores).sum())
    return total / len(labels)


def test_gradient_of_the_perceptron() -> None:
    rng = np.random.default_rng(5)
    task = make_task("mlp", {"hidden": 3})
    parameters = {name: array.astype(np.float64) for name, array in task.initial_parameters().items()}
    inputs, labels = rng.normal(size=(4, 784)), rng.integers(0, 10, 4)
    gradient = task.slopes(parameters, inputs, labels, None)
    for name, array in parameters.items():
        for index in [tuple(int(rng.integers(0, extent)) for extent in array.shape) for _ in range(8)]:
            slope = slope_of(lambda model: _perceptrons_loss(model, inputs, labels), parameters, name, index, 1e-6)
            assert gradient[name][index] == pytest.approx(slope, abs=1e-6)


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


# ---------------------------------------------------------------- many side by side


SIZES = (7, 1, 20, 13, 5, 8)


def orders(count: int) -> list[PublicRandom]:
    """Of the examples of so many participants."""
    return [update_rng(0, 1, place) for place in range(count)]


def rows(count: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(rng.normal(size=(count, 6)).astype(np.float32), rng.integers(0, 3, count))


TASKS = [
    ("softmax-regression", {"pooling": 7}, _data),
    ("softmax-regression", {"features": 6, "classes": 3}, rows),
    ("mlp", {"hidden": 5}, _data),
    ("mlp", {"features": 6, "classes": 3, "hidden": 4}, rows),
    ("regression", {"features": 6, "high": 2.0}, rows),
    ("regression", {"features": 6, "high": 2.0, "hidden": 4}, rows),
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
    alone = [flatten(task.local_update(start, *each, 0.05)) for each in zip(data, orders(6), strict=True)]
    together = task.local_updates(start, data, orders(6), 0.05)
    assert together.dtype == np.float32
    np.testing.assert_allclose(together, np.array(alone), rtol=1e-3, atol=2e-6)
    if method in ("lus", "blur-lus"):
        np.testing.assert_array_equal(together == 0, np.array(alone) == 0)


def test_more_participants_than_fit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task("softmax-regression", {"pooling": 14, "local_steps": 3, "batch_size": 4})
    data = [_data(size, seed) for seed, size in enumerate(SIZES)]
    whole = task.local_updates(task.initial_parameters(), data, orders(6))
    monkeypatch.setattr("learning.tasks.numpy_task._NUMBERS_SIDE_BY_SIDE", 4 * task.dim)
    cut = task.local_updates(task.initial_parameters(), data, orders(6))
    np.testing.assert_allclose(cut, whole, atol=1e-6)
    assert whole.any(axis=1).all()


def test_one_participant_without_examples_is_refused() -> None:
    task = make_task("softmax-regression")
    with pytest.raises(ValueError, match="without examples"):
        task.local_updates(task.initial_parameters(), [_data(2), _data(0)], orders(2))


# ---------------------------------------------------------------- the task without a model


def test_any_dimension_and_a_zero_update() -> None:
    task = make_task("synthetic", {"dim": 12_345})
    assert task.dim == 12_345
    assert task.options.to_mapping() == {"dim": 12_345}
    start = task.initial_parameters()
    update = task.local_update(start, NOBODY, PublicRandom(b"order"))
    assert {name: array.shape for name, array in update.items()} == {"vector": (12_345,)}
    assert not update["vector"].any()
    assert task.evaluate(start, NOBODY) == {"accuracy": 0.0, "loss": 0.0}


def test_parameters_of_another_shape_are_refused() -> None:
    task = make_task("synthetic", {"dim": 3})
    with pytest.raises(ValueError):
        task.local_update({"vector": np.zeros(4, dtype=np.float32)}, NOBODY, PublicRandom(b"order"))


# ---------------------------------------------------------------- the network of torch


def test_divergence_of_the_cnn_is_returned() -> None:
    pytest.importorskip("torch")
    task = make_task("cnn", {"client_rate": 1e6, "local_epochs": 5})
    update = flatten(task.local_update(task.initial_parameters(), _data(60), np.random.default_rng(0)))
    assert not np.isfinite(update).all()


def test_float_images_count_as_pixels_in_zero_to_one() -> None:
    pytest.importorskip("torch")
    task, data = make_task("cnn"), _data(20)
    floats = Dataset((data.features / 255).astype(np.float32), data.labels)
    start = task.initial_parameters()
    first, second = task.evaluate(start, data), task.evaluate(start, floats)
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-5)
    np.testing.assert_array_equal(floats.features, (data.features / 255).astype(np.float32))
