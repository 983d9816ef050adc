"""The rotation is orthonormal, inverts, is the documented one, and is drawn from the public seed."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from mechanisms.randomness import Keystream
from mechanisms.rotation import Rotation, padded_dimension, rotation_signs, walsh_hadamard


def sylvester(dim: int) -> np.ndarray:
    i = np.arange(dim)
    return np.where(np.vectorize(lambda x: x.bit_count() % 2)(i[:, None] & i[None, :]), -1.0, 1.0)


@pytest.mark.parametrize("dim", [1, 2, 4, 32, 64, 256, 1024])
def test_the_transform_is_sylvesters_matrix(dim: int) -> None:
    x = np.random.default_rng(dim).normal(size=dim)
    before = x.copy()
    assert np.allclose(walsh_hadamard(x), sylvester(dim) @ x, atol=1e-10)
    assert np.array_equal(x, before)


def test_the_transform_is_exact_on_small_integers() -> None:
    x = np.random.default_rng(0).integers(-1000, 1000, 1 << 14).astype(float)
    assert np.array_equal(walsh_hadamard(walsh_hadamard(x)), x * (1 << 14))


@pytest.mark.parametrize("dim", [1, 2, 3, 500, 512, 513, 5000, 100_000])
def test_forward_keeps_norms_and_inverse_undoes_it(dim: int) -> None:
    rotation = Rotation(bytes(range(32)), dim)
    x, y = np.random.default_rng(dim).normal(size=(2, dim))
    forward = rotation.forward(x)
    assert forward.shape == (padded_dimension(dim),) == (rotation.padded_dim,)
    assert np.linalg.norm(forward) == pytest.approx(np.linalg.norm(x), rel=1e-12)
    assert np.dot(forward, rotation.forward(y)) == pytest.approx(np.dot(x, y), rel=1e-9, abs=1e-9)
    assert np.allclose(rotation.inverse(forward), x, atol=1e-12)


def test_rows_are_orthonormal() -> None:
    rotation = Rotation(hashlib.sha256(b"rows").digest(), 64)
    matrix = np.array([rotation.forward(row) for row in np.eye(64)])
    assert np.allclose(matrix @ matrix.T, np.eye(64), atol=1e-12)
    assert np.allclose(np.abs(matrix), 1 / 8)


def test_a_spike_is_spread_evenly() -> None:
    spike = np.zeros(1000)
    spike[17] = 3.0
    assert np.allclose(np.abs(Rotation(bytes(32), 1000).forward(spike)), 3 / 32)


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
        rotation_signs(bytes(31), 4)
    with pytest.raises(ValueError):
        padded_dimension(0)
    with pytest.raises(ValueError):
        walsh_hadamard(np.zeros(3))
    with pytest.raises(ValueError):
        walsh_hadamard(np.zeros(0))
    rotation = Rotation(bytes(32), 5)
    with pytest.raises(ValueError):
        rotation.forward(np.zeros(8))
    with pytest.raises(ValueError):
        rotation.inverse(np.zeros(5))
