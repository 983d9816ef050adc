"""The count-mean sketch: linear, unbiased with the stated variance, and hashed independently.

Seeds are fixed: no statistical test can fail by chance. The rates stated are those of fresh seeds.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mechanisms.randomness import Keystream
from mechanisms.sketch import LARGEST_WIDTH, CountMeanSketch, RowHash, sketch_shape

DIM, ROWS, WIDTH = 200, 3, 16


def seed(number: int) -> bytes:
    return hashlib.sha256(b"sketch" + number.to_bytes(4, "big")).digest()


class OneHash(RowHash):
    """Wrong on purpose, like a published experiment: bucket and sign from the same bits of one hash."""

    def take(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        buckets, _ = super().take(count)
        return buckets, (1 - 2 * (buckets % 2)).astype(np.int8)


class NaiveSketch(CountMeanSketch):
    def _row(self, row: int) -> RowHash:
        return OneHash(self._seed, row, self.width)


# ------------------------------------------------------------------------------------------------ linear


@given(st.integers(1, 300), st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**16))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_sketches_of_integers_add_up_exactly(dim: int, rows: int, width: int, number: int) -> None:
    """Times L everything is an integer, so addition and decoding are exact."""
    sketch = CountMeanSketch(seed(number), dim, rows, width)
    x, y = np.random.default_rng(number).integers(-1000, 1000, (2, dim)).astype(np.float64) * rows
    total = sketch.encode(x) + sketch.encode(-3 * y)
    assert total.shape == (rows * width,) == (sketch.size,)
    assert np.array_equal(total, sketch.encode(x - 3 * y))
    assert np.array_equal(sketch.decode_mean(total), sketch.decode_mean(sketch.encode(x - 3 * y)))
    assert not sketch.encode(np.zeros(dim)).any()


def test_a_lone_coordinate_comes_back_exactly() -> None:
    sketch = CountMeanSketch(seed(0), 50, 4, 8)
    for i in range(50):
        alone = np.zeros(50)
        alone[i] = 3.0
        assert sketch.decode_mean(sketch.encode(alone))[i] == 3.0


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_narrow_floats_are_summed_as_doubles(dtype: type) -> None:
    vector = np.full(100_000, 0.1, dtype)
    sketch = CountMeanSketch(seed(1), vector.size, 2, 3)
    assert np.array_equal(sketch.encode(vector), sketch.encode(vector.astype(np.float64)))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_several_vectors_have_the_sketches_that_each_has(dtype: type) -> None:
    vectors = np.random.default_rng(0).normal(size=(3, 40_000)).astype(dtype)
    sketch = CountMeanSketch(seed(1), 40_000, 2, 300)
    assert np.array_equal(sketch.encode_many(vectors), [sketch.encode(vector) for vector in vectors])


# ------------------------------------------------------------------------------------- documented, the same


def plain_hashes(key: bytes, row: int, width: int, dim: int) -> tuple[list[int], list[int]]:
    """The module's docstring in plain integers."""
    tail = row.to_bytes(4, "little") + key
    words, bits = np.empty(8 * dim, np.uint8), np.empty((dim + 7) // 8, np.uint8)
    Keystream(hashlib.sha256(b"sordino/v1/sketch buckets\x00" + tail).digest()).fill(words)
    Keystream(hashlib.sha256(b"sordino/v1/sketch signs\x00" + tail).digest()).fill(bits)
    raw = words.tobytes()
    buckets = [(int.from_bytes(raw[8 * i : 8 * i + 8], "little") >> 24) * width >> 40 for i in range(dim)]
    return buckets, [-1 if bits[i // 8] >> i % 8 & 1 else 1 for i in range(dim)]


@pytest.mark.parametrize(("dim", "width"), [(1, 1), (13, 5), (1000, 1 << 18), (70_001, 1000)])
def test_the_sketch_is_the_documented_one(dim: int, width: int) -> None:
    """70,001 coordinates are three blocks, the last of an odd length."""
    rows = 2
    sketch = CountMeanSketch(seed(2), dim, rows, width)
    vector = np.random.default_rng(dim).normal(size=dim)
    expected = np.zeros((rows, width))
    hashes = [plain_hashes(seed(2), row, width, dim) for row in range(rows)]
    for row, (buckets, signs) in enumerate(hashes):
        for i in range(dim):
            expected[row, buckets[i]] += signs[i] * vector[i]
    expected /= rows
    assert np.array_equal(sketch.encode(vector), expected.ravel())
    decoded = sum(np.array(signs) * expected[row][buckets] for row, (buckets, signs) in enumerate(hashes))
    assert np.array_equal(sketch.decode_mean(expected.ravel()), decoded)


def test_the_largest_width_does_not_overflow() -> None:
    buckets, _ = RowHash(seed(2), 0, LARGEST_WIDTH).take(10_000)
    assert buckets.tolist() == plain_hashes(seed(2), 0, LARGEST_WIDTH, 10_000)[0]


def test_a_sketch_is_the_same_on_every_platform() -> None:
    sketch = CountMeanSketch(bytes(range(32)), 20, 2, 5)
    assert sketch.encode(np.arange(20.0) * 2).tolist() == [-4, -10, 49, 0, -11, -15, -18, 54, -4, 39]


def test_rows_and_seeds_have_their_own_hashes() -> None:
    drawn = [RowHash(key, row, 1 << 20).take(64) for key in (seed(3), seed(4)) for row in (0, 1, 256)]
    assert len({tuple(buckets) for buckets, _ in drawn}) == len({tuple(signs) for _, signs in drawn}) == 6


# -------------------------------------------------------------------------------------------- statistics


def bucket_score(hashed: RowHash, width: int, count: int) -> float:
    """Chi-square of the bucket counts against uniform, in standard deviations."""
    buckets, _ = hashed.take(count)
    counts = np.bincount(buckets, minlength=width)
    assert counts.size == width
    chi_square = float(np.sum((counts - count / width) ** 2) / (count / width))
    return (chi_square - (width - 1)) / math.sqrt(2 * (width - 1))


def sign_score(hashed: RowHash, width: int, count: int) -> float:
    """Sum over buckets of (sum of signs)^2 / items, chi-square if signs ignore buckets, standardised."""
    buckets, signs = hashed.take(count)
    counts = np.bincount(buckets, minlength=width)
    sums = np.bincount(buckets, weights=signs, minlength=width)
    return (float(np.sum(sums**2 / counts)) - width) / math.sqrt(2 * width)


@pytest.mark.parametrize("width", [997, 1024])
def test_buckets_are_uniform_and_signs_ignore_them(width: int) -> None:
    """2^20 coordinates; five standard deviations of a chi-square score: 2e-6 each for fresh seeds, four scores."""
    assert abs(bucket_score(RowHash(seed(5), 0, width), width, 1 << 20)) < 5
    assert abs(sign_score(RowHash(seed(5), 0, width), width, 1 << 20)) < 5


def test_one_hash_for_bucket_and_sign_fails_the_same_test() -> None:
    assert sign_score(OneHash(seed(5), 0, 1024), 1024, 1 << 20) > 1000


def decoded_errors(kind: type[CountMeanSketch], vector: np.ndarray, trials: int) -> np.ndarray:
    """(trials, dim): decoded minus true, each trial under its own seed."""
    sketches = [kind(seed(trial), vector.size, ROWS, WIDTH) for trial in range(trials)]
    return np.array([sketch.decode_mean(sketch.encode(vector)) - vector for sketch in sketches])


def bias_score(kind: type[CountMeanSketch]) -> float:
    """The largest mean error of any coordinate over 2,000 seeds, in its theoretical standard errors."""
    vector = np.linspace(0.5, 1.5, DIM)  # of one sign: what doesn't cancel adds up
    stddev = np.sqrt((np.dot(vector, vector) - vector**2) / (ROWS * WIDTH))
    errors = decoded_errors(kind, vector, 2000)
    return float(np.max(np.abs(errors.mean(axis=0)) / (stddev / math.sqrt(2000))))


def test_decoding_is_unbiased() -> None:
    """200 coordinates within 5.5 standard errors: fresh seeds would fail with probability 8e-6."""
    assert bias_score(CountMeanSketch) < 5.5


def test_one_hash_for_bucket_and_sign_is_biased() -> None:
    assert bias_score(NaiveSketch) > 50


def test_the_variance_is_the_stated_one() -> None:
    """Mean squared error of a coordinate, over 2,000 seeds: within five of its measured standard errors (6e-7).

    A vector with one heavy coordinate, whose own error is smaller: it is not in its own way.
    """
    vector = np.ones(DIM)
    vector[0] = 20.0
    squares = decoded_errors(CountMeanSketch, vector, 2000) ** 2
    theory = (np.dot(vector, vector) - vector**2) / (ROWS * WIDTH)
    for measured, expected in ((squares[:, 0], theory[0]), (squares[:, 1:].mean(axis=1), theory[1])):
        assert abs(measured.mean() - expected) < 5 * measured.std() / math.sqrt(2000)
    assert theory[0] < theory[1] / 2


def test_the_norm_shrinks_by_the_root_of_the_rows() -> None:
    """||S||^2 L / ||g||^2 = 1 +- sqrt(2 / L w): 0.02 is over five standard deviations of 0.0037 (fresh seeds: 7e-8)."""
    vector = np.random.default_rng(6).normal(size=100_000)
    sketch = CountMeanSketch(seed(6), vector.size, 15, 10_000)
    ratio = 15 * np.sum(sketch.encode(vector) ** 2) / np.sum(vector**2)
    assert abs(ratio - 1) < 0.02


def test_the_sketch_can_be_longer_than_its_usual_norm() -> None:
    """Why the sketch needs a clip of its own: coordinates of one bucket, chosen with their signs."""
    sketch = CountMeanSketch(seed(7), 1000, 1, 10)
    buckets, signs = RowHash(seed(7), 0, 10).take(1000)
    aimed = np.where(buckets == 3, signs, 0) / math.sqrt(np.count_nonzero(buckets == 3))
    assert np.linalg.norm(aimed) == pytest.approx(1)
    assert np.linalg.norm(sketch.encode(aimed)) > 8


# ------------------------------------------------------------------------------------------------- shapes


@given(st.integers(1, 10**8), st.integers(1, 30), st.integers(1, 1000))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_width_compresses_at_least_by_the_ratio(dim: int, rows: int, ratio: int) -> None:
    width = sketch_shape(dim, rows, ratio)
    assert width == max(1, dim // (rows * ratio))
    assert width == sketch_shape(dim, rows, float(ratio))
    assert width == 1 or rows * width * ratio <= dim < rows * (width + 1) * ratio


def test_shapes_of_the_published_experiments() -> None:
    assert sketch_shape(1_018_174, 15, 10) == 6787
    assert sketch_shape(1_018_174, 15, 2.5) == 27_151
    assert sketch_shape(5, 15, 10) == 1


@pytest.mark.parametrize(
    ("dim", "rows", "ratio"),
    [(0, 15, 2.0), (100, 0, 2.0), (100, 15, 0.0), (100, 15, -1.0), (100, 15, math.nan), (100, 15, math.inf)],
)
def test_bad_shapes_are_refused(dim: int, rows: int, ratio: float) -> None:
    with pytest.raises(ValueError, match=r"at least 1|positive and finite"):
        sketch_shape(dim, rows, ratio)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": bytes(31)}, "32 bytes, not 31"),
        ({"dim": 0}, "at least 1"),
        ({"rows": 0}, "at least 1"),
        ({"width": 0}, "buckets a row"),
        ({"width": LARGEST_WIDTH + 1}, "use more rows"),
    ],
)
def test_bad_sketches_are_refused(change: dict[str, Any], message: str) -> None:
    good: dict[str, Any] = {"seed": bytes(32), "dim": 4, "rows": 2, "width": 2}
    CountMeanSketch(**good)
    with pytest.raises(ValueError, match=message):
        CountMeanSketch(**good | change)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros(5), r"shape \(5,\)"),
        (np.zeros((2, 2)), "shape"),
        (np.zeros(4, np.int64), "float64, not int64"),
        (np.zeros(4, np.complex128), "not complex"),
        (np.array([1.0, math.nan, 0.0, 0.0]), "NaN or infinite"),
        (np.array([1.0, 0.0, -math.inf, 0.0]), "NaN or infinite"),
    ],
)
def test_bad_vectors_are_refused(values: np.ndarray, message: str) -> None:
    sketch = CountMeanSketch(bytes(32), 4, 2, 2)
    with pytest.raises(ValueError, match=message):
        sketch.encode(values)
    with pytest.raises(ValueError, match=message):
        sketch.decode_mean(values)
