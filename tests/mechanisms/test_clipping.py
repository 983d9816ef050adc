"""Clipping, whole and by layers: norms, directions, zeros, extremes, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from mechanisms.clipping import clip_l2, clip_layers, clip_rows, l2_norm

POSITIVE = st.floats(1e-6, 1e6)
FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(hnp.arrays(np.float64, st.integers(1, 30), elements=FINITE), POSITIVE)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_clipping_bounds_any_finite_vector(vector: np.ndarray, clip: float) -> None:
    clipped = clip_l2(vector, clip)
    assert np.all(np.isfinite(clipped))
    assert math.sqrt(math.fsum(float(v) ** 2 for v in clipped)) <= clip
    if l2_norm(vector) <= clip * (1 - 1e-9):
        assert np.array_equal(clipped, vector)


def test_clipping_keeps_the_direction() -> None:
    assert np.allclose(clip_l2(np.array([30.0, -40.0]), 5.0), [3.0, -4.0])
    assert np.allclose(clip_l2(np.array([3e200, -4e200]), 5.0), [3.0, -4.0])
    assert np.allclose(clip_l2(np.full(4, 1.7e308), 2.0), 1.0)
    assert not clip_l2(np.zeros(3), 1.0).any()
    assert l2_norm(np.array([3e-200, 4e-200])) == pytest.approx(5e-200)


def test_clipping_refuses_what_has_no_norm() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="NaN or infinite"):
            clip_l2(np.array([1.0, bad]), 1.0)


@st.composite
def layered(draw: st.DrawFn, elements: st.SearchStrategy[float] = FINITE) -> dict[str, Any]:
    """Arguments of clip_layers: up to five layers of up to eight coordinates."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=5))
    each = st.lists(POSITIVE, min_size=len(sizes), max_size=len(sizes))
    vector = draw(hnp.arrays(np.float64, sum(sizes), elements=elements))
    return {"vector": vector, "sizes": sizes, "clips": draw(each), "scales": draw(each)}


def exact_norm(vector: np.ndarray) -> float:
    """The norm by exact summation, for values whose squares are far from the ends of the doubles."""
    return math.sqrt(math.fsum(float(v) ** 2 for v in vector))


def split(vector: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    return np.split(vector, np.cumsum(sizes)[:-1])


@given(layered())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_every_layer_and_the_whole_keep_their_bounds(given: dict[str, Any]) -> None:
    before = given["vector"].copy()
    scaled, norms = clip_layers(**given)
    assert scaled.dtype == norms.dtype == np.float64
    assert np.array_equal(given["vector"], before)
    assert np.all(np.isfinite(scaled))
    bounds = [clip / scale for clip, scale in zip(given["clips"], given["scales"], strict=True)]
    for layer, bound in zip(split(scaled, given["sizes"]), bounds, strict=True):
        assert exact_norm(layer) <= bound
    assert exact_norm(scaled) <= math.hypot(*bounds)


@given(layered(st.floats(-1e6, 1e6)))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_layers_are_clipped_one_by_one_and_then_divided(given: dict[str, Any]) -> None:
    """Against `clip_l2` of each layer; norms are those before clipping."""
    scaled, norms = clip_layers(**given)
    layers = split(given["vector"], given["sizes"])
    expected = [clip_l2(*pair) / s for *pair, s in zip(layers, given["clips"], given["scales"], strict=True)]
    assert np.allclose(scaled, np.concatenate(expected), rtol=1e-14, atol=1e-300)
    assert norms.tolist() == [l2_norm(layer) for layer in layers]


@given(layered(st.floats(-1e300, 1e300)), st.sampled_from([1e-3, 1.0, 1e3]))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_rows_are_clipped_as_vectors_are(given: dict[str, Any], factor: float) -> None:
    """Layers of zeros and those whose squares overflow among them."""
    vector, *rest = given.values()
    rows = np.stack([vector, vector * factor])
    scaled, norms = clip_rows(rows, *rest)
    for row, found, of_layers in zip(rows, scaled, norms, strict=True):
        expected, expected_norms = clip_layers(row, *rest)
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-300)
        assert of_layers == pytest.approx(expected_norms, rel=1e-12)
        bounds = [clip / scale for clip, scale in zip(given["clips"], given["scales"], strict=True)]
        for layer, bound in zip(split(found, given["sizes"]), bounds, strict=True):
            assert exact_norm(layer) <= bound


def test_a_row_that_has_no_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="layer 1 holds NaN or infinite values"):
        clip_rows(np.array([[1.0, 2.0], [1.0, math.nan]]), [1, 1], [1.0, 1.0], [1.0, 1.0])


def test_clipping_the_whole_would_break_a_layers_bound() -> None:
    """The naive way: clip once to the norm of all clips together. One layer then takes the others' share."""
    vector, sizes, clips = np.array([30.0, 40.0, 0.0, 0.0]), [2, 2], [1.0, 5.0]
    naive = clip_l2(vector, math.hypot(*clips))
    assert exact_norm(naive[:2]) > 5 * clips[0]
    assert exact_norm(clip_layers(vector, sizes, clips, [1.0, 1.0])[0][:2]) <= clips[0]


def test_short_layers_are_only_divided_and_zeros_stay_zeros() -> None:
    vector = np.array([0.3, -0.4, 0.0, -0.0, 0.0, 7.0])
    scaled, norms = clip_layers(vector, [2, 3, 1], [1.0, 1.0, 3.5], [1.0, 0.25, 2.0])
    assert scaled[:5].tolist() == [0.3, -0.4, 0.0, 0.0, 0.0]
    assert scaled[5] == pytest.approx(1.75)
    assert norms.tolist() == [0.5, 0.0, 7.0]
    zeros, norms = clip_layers(np.zeros(4), [1, 3], [1e-9, 1e9], [1e9, 1e-9])
    assert not zeros.any()
    assert not norms.any()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_narrow_floats_are_widened_before_their_norm_is_taken(dtype: type) -> None:
    vector = np.full(3000, 0.1, dtype)
    scaled, norms = clip_layers(vector, [1000, 2000], [1.0, 100.0], [1.0, 1.0])
    assert scaled.dtype == np.float64
    assert norms[1] == pytest.approx(math.sqrt(2000) * float(vector[0]), rel=1e-13)
    assert exact_norm(scaled[:1000]) == pytest.approx(1.0, rel=1e-11)
    assert np.array_equal(scaled[1000:], vector[1000:].astype(np.float64))
    large = np.full(4, np.finfo(dtype).max, dtype)
    assert clip_layers(large, [4], [2.0], [1.0])[0] == pytest.approx(np.ones(4))


def test_extreme_norms_are_clipped_exactly_enough() -> None:
    for value in (1.7e308, 1e200, 1e-200, 5e-324):
        scaled, norms = clip_layers(np.full(4, value), [4], [1e-250 if value < 1 else 2.0], [1.0])
        expected = np.full(4, value) if value == 5e-324 else np.full(4, 5e-251 if value < 1 else 1.0)
        assert scaled == pytest.approx(expected, rel=1e-11)
        assert norms[0] == pytest.approx(2 * value) or norms[0] == math.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": [2, 3]}, "add up to 5"),
        ({"sizes": [4, 0]}, "at least 1"),
        ({"sizes": [5, -1]}, "at least 1"),
        ({"sizes": [4]}, "every layer needs one of each"),
        ({"clips": [1.0]}, "every layer needs one of each"),
        ({"scales": [1.0, 1.0, 1.0]}, "every layer needs one of each"),
        ({"clips": [1.0, 0.0]}, "layer 1 needs a positive, finite clip, not 0"),
        ({"clips": [-1.0, 1.0]}, "layer 0 needs a positive, finite clip"),
        ({"clips": [1.0, math.nan]}, "finite clip"),
        ({"scales": [0.0, 1.0]}, "layer 0 needs a positive, finite scale"),
        ({"scales": [1.0, math.inf]}, "finite scale"),
        ({"clips": [1e200, 1.0], "scales": [1e-200, 1.0]}, "change the scale"),
        ({"vector": np.array([1.0, 2.0, math.nan, 4.0])}, "layer 1 holds NaN"),
        ({"vector": np.array([math.inf, 2.0, 3.0, 4.0])}, "layer 0 holds NaN or infinite"),
        ({"vector": np.array([-math.inf, math.inf, 3.0, 4.0])}, "layer 0 holds NaN or infinite"),
        ({"vector": np.ones((2, 2))}, "add up to 4"),
    ],
)
def test_bad_layers_are_refused(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"vector": np.ones(4), "sizes": [2, 2], "clips": [1.0, 1.0], "scales": [1.0, 1.0]}
    clip_layers(**good)
    with pytest.raises(ValueError, match=message):
        clip_layers(**good | change)
