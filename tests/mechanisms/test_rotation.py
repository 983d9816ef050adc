"""The rotation is orthonormal, inverts, is the documented one, and is drawn from the public seed."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mechanisms.randomness import Keystream
from mechanisms.rotation import ROTATIONS, Rotation, _sign_bits, _transform, default_rotation, rotation_layout


def rotation_signs(seed: bytes, dim: int) -> np.ndarray:
    """The diagonal of D, (dim,) of +1.0 and -1.0, as the rotation draws it."""
    return np.where(np.unpackbits(_sign_bits(seed, dim), count=dim, bitorder="little"), -1.0, 1.0)


def walsh_hadamard(vector: np.ndarray) -> np.ndarray:
    """H x, not normalised, by the rotation's transform of one block."""
    result = vector.astype(np.float64)
    _transform(result, vector.size)
    return result


def sylvester(dim: int) -> np.ndarray:
    i = np.arange(dim)
    return np.where(np.vectorize(lambda x: x.bit_count() % 2)(i[:, None] & i[None, :]), -1.0, 1.0)


@pytest.mark.parametrize("dim", [1, 2, 4, 32, 64, 256, 1024])
def test_the_transform_is_sylvesters_matrix(dim: int) -> None:
    x = np.random.default_rng(dim).normal(size=dim)
    before = x.copy()
    assert np.allclose(walsh_hadamard(x), sylvester(dim) @ x, atol=1e-10)
    assert np.array_equal(x, before)


def butterflies(x: np.ndarray) -> np.ndarray:
    """The textbook transform: sums and differences of halves."""
    if x.size == 1:
        return x
    low, high = butterflies(x[: x.size // 2]), butterflies(x[x.size // 2 :])
    return np.concatenate([low + high, low - high])


@pytest.mark.parametrize("bits", [14, 15, 16, 17])
def test_long_transforms_go_through_every_index_bit_once(bits: int) -> None:
    """From 2^16 on the lower and the upper bits are done separately. Integers: exact in any order."""
    x = np.random.default_rng(bits).integers(-1000, 1000, 1 << bits).astype(float)
    assert np.array_equal(walsh_hadamard(x), butterflies(x))


def test_narrow_floats_are_rotated_as_doubles() -> None:
    x = np.random.default_rng(8).normal(size=700).astype(np.float32)
    for kind in ROTATIONS:
        rotation = Rotation(bytes(32), 700, kind)
        assert np.array_equal(rotation.forward(x), rotation.forward(x.astype(np.float64)))


@pytest.mark.parametrize(
    ("kind", "dim"),
    [
        *(("hadamard", dim) for dim in (1, 2, 3, 500, 512, 513, 5000, 100_000)),
        *(("hadamard-blocks", dim) for dim in (1, 2, 3, 5, 13, 700, 5000, 10_000, 65_536, 150_000)),
    ],
)
def test_forward_keeps_norms_and_inverse_undoes_it(kind: str, dim: int) -> None:
    rotation = Rotation(bytes(range(32)), dim, kind)
    assert (rotation.block_dim, rotation.padded_dim) == rotation_layout(dim, kind)
    x, y = np.random.default_rng(dim).normal(size=(2, dim))
    before = x.copy()
    forward = rotation.forward(x)
    assert np.array_equal(x, before)
    assert forward.shape == (rotation.padded_dim,)
    assert np.linalg.norm(forward) == pytest.approx(np.linalg.norm(x), rel=1e-12)
    assert np.dot(forward, rotation.forward(y)) == pytest.approx(np.dot(x, y), rel=1e-9, abs=1e-9)
    assert np.allclose(rotation.inverse(forward), x, atol=1e-12)


def test_rows_are_orthonormal() -> None:
    rotation = Rotation(hashlib.sha256(b"rows").digest(), 64)
    matrix = np.array([rotation.forward(row) for row in np.eye(64)])
    assert np.allclose(matrix @ matrix.T, np.eye(64), atol=1e-12)
    assert np.allclose(np.abs(matrix), 1 / 8)


def test_the_signs_are_the_documented_bits() -> None:
    seed = bytes(range(32))
    raw = np.empty(2, np.uint8)
    Keystream(hashlib.sha256(b"sordino/v1/rotation signs\x00" + seed).digest()).fill(raw)
    expected = [-1.0 if raw[i // 8] >> i % 8 & 1 else 1.0 for i in range(13)]
    assert rotation_signs(seed, 13).tolist() == expected


def test_signs_are_balanced_and_depend_on_every_seed() -> None:
    a, b = rotation_signs(bytes(32), 1 << 16), rotation_signs(bytes(31) + b"\x01", 1 << 16)
    # Six standard deviations of 2^16 fair signs; fixed seeds.
    assert abs(a.sum()) < 6 * 256
    assert abs(np.dot(a, b)) < 6 * 256


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError):
        Rotation(bytes(31), 4)
    rotation = Rotation(bytes(32), 5)
    with pytest.raises(ValueError):
        rotation.forward(np.zeros(8))
    with pytest.raises(ValueError):
        rotation.inverse(np.zeros(5))
    for wrong in (np.zeros(5), np.zeros((2, 5)), np.zeros((2, 16))[:, :8]):  # the last would rotate a copy
        with pytest.raises(ValueError, match="contiguous rows of 8"):
            rotation.rotate(wrong)


@given(st.one_of(st.integers(1, 20_000), st.integers(10_000, 1 << 34)))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_blocks_need_no_padding_and_are_more_than_half(dim: int) -> None:
    block_dim, padded_dim = rotation_layout(dim, "hadamard-blocks")
    assert block_dim & (block_dim - 1) == 0
    assert dim / 2 < block_dim <= dim == padded_dim
    assert rotation_layout(dim, "hadamard") == (1 << (dim - 1).bit_length(),) * 2
    kind = default_rotation(dim)
    assert 20 * (rotation_layout(dim, kind)[1] - dim) <= dim


def test_one_block_would_pad_by_half() -> None:
    """The naive layout, the next power of two: 11.1 million coordinates become 16.8 million."""
    assert rotation_layout(11_100_000, "hadamard")[1] == 1 << 24
    assert rotation_layout(11_100_000, "hadamard-blocks") == (1 << 23, 11_100_000)


@pytest.mark.parametrize(
    ("dim", "kind"),
    [(1, "hadamard"), (3, "hadamard-blocks"), (250, "hadamard"), (300, "hadamard-blocks"), (1_018_174, "hadamard")],
)
def test_the_default_kinds(dim: int, kind: str) -> None:
    assert default_rotation(dim) == kind


def test_the_blocks_are_the_documented_transforms() -> None:
    """700 coordinates: the first 512, then the last 512 of what came out, each with signs of its own."""
    seed = hashlib.sha256(b"blocks").digest()
    x = np.random.default_rng(7).normal(size=700)
    signs, matrix = rotation_signs(seed, 1024), sylvester(512) / np.sqrt(512)
    expected = x.copy()
    expected[:512] = matrix @ (signs[:512] * expected[:512])
    expected[188:] = matrix @ (signs[512:] * expected[188:])
    assert np.allclose(Rotation(seed, 700, "hadamard-blocks").forward(x), expected, atol=1e-12)
    # Five coordinates: the signs of the second block of four begin at the second byte.
    five, small = rotation_signs(seed, 12), sylvester(4) / 2
    y = np.arange(1.0, 6.0)
    y[:4] = small @ (five[:4] * y[:4])
    y[1:] = small @ (five[8:12] * y[1:])
    assert np.allclose(Rotation(seed, 5, "hadamard-blocks").forward(np.arange(1.0, 6.0)), y, atol=1e-12)


@pytest.mark.parametrize(
    "heavy", [slice(0, 1), slice(0, 188), slice(400, 401), slice(512, 700), slice(699, 700), slice(0, 700)], ids=str
)
def test_mass_anywhere_has_the_stated_spread(heavy: slice) -> None:
    """All coordinates of many rotations against the sub-Gaussian proxy ||x||^2 / block_dim.

    P(|coordinate| > t) <= 2 exp(-t^2 block_dim / 2 ||x||^2): 64 x 700 coordinates beyond 6.3 of those standard
    deviations have probability 2.2e-4 at most; fixed seeds. And no coordinate's mean square, over the seeds, is beyond
    the proxy by more than chance.
    """
    x = np.zeros(700)
    x[heavy] = np.random.default_rng(3).normal(size=700)[heavy]
    x /= np.linalg.norm(x)
    rotated = np.array([Rotation(bytes([i]) * 32, 700, "hadamard-blocks").forward(x) for i in range(64)])
    assert np.max(np.abs(rotated)) < 6.3 / np.sqrt(512)
    # The mean of 64 squares of a standard normal lies above 2.4 with probability below 1e-9, for each of 700.
    assert np.max(np.mean(rotated**2, axis=0)) < 2.4 / 512


def test_unknown_kinds_are_refused() -> None:
    for kind in ("", "dft", "Hadamard"):
        with pytest.raises(ValueError, match="use one of hadamard, hadamard-blocks"):
            rotation_layout(10, kind)
        with pytest.raises(ValueError, match="unknown rotation"):
            Rotation(bytes(32), 10, kind)
    for kind in ROTATIONS:
        with pytest.raises(ValueError, match="at least 1"):
            rotation_layout(0, kind)
