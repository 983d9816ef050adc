"""The randomised Hadamard rotation: spread an update evenly over its coordinates before it is rounded.

x -> H D x / sqrt(d), with H the Walsh-Hadamard matrix in Sylvester order, D a diagonal of signs from a public
seed and d the next power of two (zeros appended). Orthonormal, hence norms and sums are kept; both sides
build the same one. Source: [KLS21] Algorithm 1. The seed needs no secrecy: the privacy bound holds for every
rotation.

The signs are bits of a ChaCha20 keystream: key SHA-256(label || seed), zero nonce, block 0 on; coordinate i
takes bit i % 8 (least significant first) of byte i // 8; 0 means +1 and 1 means -1.
"""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.randomness import Keystream

SEED_BYTES: Final = 32
_LABEL: Final = b"sordino/v1/rotation signs\x00"
# Radix of one pass. Dense +-1 blocks go through the matrix product, which beats butterflies by far in numpy.
_RADIX_BITS: Final = 5


def padded_dimension(dim: int) -> int:
    """The smallest power of two that is at least ``dim`` (>= 1)."""
    if dim < 1:
        raise ValueError("dim must be at least 1")
    return 1 << (dim - 1).bit_length()


def rotation_signs(seed: bytes, dim: int) -> NDArray[np.float64]:
    """The diagonal of D: (dim,) of +1.0 and -1.0, from a public 32-byte ``seed``."""
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a rotation seed has {SEED_BYTES} bytes, not {len(seed)}")
    raw = np.empty((dim + 7) // 8, np.uint8)
    Keystream(hashlib.sha256(_LABEL + seed).digest()).fill(raw)
    bits = np.unpackbits(raw, count=dim, bitorder="little")
    return np.where(bits, -1.0, 1.0)


@lru_cache(maxsize=8)
def _hadamard(bits: int) -> NDArray[np.float64]:
    matrix = np.ones((1, 1))
    for _ in range(bits):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    matrix.setflags(write=False)
    return matrix


def walsh_hadamard(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    """H x, not normalised, in Sylvester order: H[i, j] = (-1)^popcount(i & j).

    Args:
        vector: (d,) with d a power of two.

    Returns:
        A new (d,) array.
    """
    dim = vector.shape[0]
    if vector.ndim != 1 or dim & (dim - 1) or not dim:
        raise ValueError("the length must be a power of two")
    left = dim.bit_length() - 1
    result = vector.astype(np.float64, copy=True)
    inner = 1
    while left:
        bits = min(_RADIX_BITS, left)
        block = _hadamard(bits)
        if inner == 1:
            result = (result.reshape(-1, 1 << bits) @ block).reshape(dim)
        else:
            result = np.matmul(block, result.reshape(-1, 1 << bits, inner)).reshape(dim)
        inner <<= bits
        left -= bits
    return result


class Rotation:
    """One public rotation of R^dim into R^padded_dim and back.

    Args:
        seed: 32 public bytes.
        dim: length of the vectors before padding.
    """

    def __init__(self, seed: bytes, dim: int) -> None:
        self.dim = dim
        self.padded_dim = padded_dimension(dim)
        self._signs = rotation_signs(seed, self.padded_dim) / math.sqrt(self.padded_dim)

    def forward(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """(dim,) -> (padded_dim,), norm unchanged."""
        if vector.shape != (self.dim,):
            raise ValueError(f"expected {self.dim} values")
        padded = np.zeros(self.padded_dim)
        np.multiply(vector, self._signs[: self.dim], out=padded[: self.dim])
        return walsh_hadamard(padded)

    def inverse(self, rotated: NDArray[np.float64]) -> NDArray[np.float64]:
        """(padded_dim,) -> (dim,): undo `forward`, drop the padding."""
        if rotated.shape != (self.padded_dim,):
            raise ValueError(f"expected {self.padded_dim} values")
        back = walsh_hadamard(rotated)[: self.dim]
        back *= self._signs[: self.dim]
        return back
