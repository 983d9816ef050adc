"""Flat vectors and named arrays."""

import numpy as np
import pytest

from learning.parameters import check_shapes, dimension, flatten, shapes_of, unflatten


def _parameters() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "weights": rng.normal(size=(3, 4)).astype(np.float32),
        "bias": rng.normal(size=4).astype(np.float32),
        "scale": np.array(2.5, dtype=np.float32),
    }


def test_flatten_and_unflatten_are_inverse_and_share_nothing() -> None:
    parameters = _parameters()
    vector = flatten(parameters)
    assert vector.dtype == np.float32
    assert vector.shape == (17,)
    assert dimension(shapes_of(parameters)) == 17
    again = unflatten(vector, shapes_of(parameters))
    assert list(again) == list(parameters)
    for name, array in parameters.items():
        np.testing.assert_array_equal(again[name], array)
    again["bias"][:] = 0
    np.testing.assert_array_equal(vector, flatten(parameters))
    vector[:] = 0
    np.testing.assert_array_equal(flatten(_parameters()), flatten(parameters))


def test_order_of_names_is_order_of_vector() -> None:
    parameters = _parameters()
    np.testing.assert_array_equal(flatten(parameters)[:12], parameters["weights"].reshape(-1))
    np.testing.assert_array_equal(flatten(parameters)[12:16], parameters["bias"])


@pytest.mark.parametrize("shape", [(16,), (18,), (1, 17), ()])
def test_wrong_length_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="17"):
        unflatten(np.zeros(shape), shapes_of(_parameters()))


def test_nan_and_infinity_pass_through_unhidden() -> None:
    vector = np.zeros(17)
    vector[:3] = np.nan, np.inf, 1e300
    weights = unflatten(vector, shapes_of(_parameters()))["weights"].reshape(-1)
    np.testing.assert_array_equal(weights[:3], [np.nan, np.inf, np.inf])


def test_check_shapes_names_the_culprit() -> None:
    parameters = _parameters()
    shapes = shapes_of(parameters)
    check_shapes(parameters, shapes)
    with pytest.raises(ValueError, match="'bias' is float64"):
        check_shapes({**parameters, "bias": np.zeros(4)}, shapes)  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="'bias' is float32\\[5\\]"):
        check_shapes({**parameters, "bias": np.zeros(5, np.float32)}, shapes)
    with pytest.raises(ValueError, match="expected \\['weights', 'bias', 'scale'\\]"):
        check_shapes({name: parameters[name] for name in ("bias", "weights", "scale")}, shapes)
