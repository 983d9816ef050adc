"""The randomised Hadamard rotation: spread an update evenly over its coordinates before it is rounded.

x -> H D x / sqrt(b) in each block of b coordinates, with H the Walsh-Hadamard matrix of order b, a power of
two, in Sylvester order, and D a diagonal of signs from a public seed (zeros appended at the end). Orthonormal,
hence norms and sums are kept; both sides build the same one. Source: [KLS21] Algorithm 1, which has a single
block. The seed needs no secrecy: the privacy bound holds for every rotation.

Kinds, named in the plan: "hadamard" is one block, the next power of two; "hadamard-blocks" is several equal
ones, so that 11.1 million coordinates need not become 16.8 million.

Flatness holds within each block. A rotated coordinate is the sum over its block of +-x_i / sqrt(b) with
independent fair signs, hence sub-Gaussian with variance proxy ||x_block||^2 / b <= ||x||^2 / b. This is the bound
that wrapping is planned with, and it is tight only if all of x lies in one block; mass that is spread evenly
over the blocks gives ||x||^2 / padded_dim, as one block would.

The signs are bits of a ChaCha20 keystream: key SHA-256(label || seed), zero nonce, block 0 on; coordinate i
takes bit i % 8 (least significant first) of byte i // 8; 0 means +1 and 1 means -1. The coordinates count
through all blocks.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.randomness import Keystream

SEED_BYTES: Final = 32
_LABEL: Final = b"sordino/v1/rotation signs\x00"
# Radix of one pass. Dense +-1 blocks go through the matrix product, which beats butterflies by far in numpy.
_RADIX_BITS: Final = 5

ROTATIONS: Final = ("hadamard", "hadamard-blocks")

# One block beyond this share of padding would cost more than a looser wrap bound does.
_MOST_PADDING_OF_ONE_BLOCK: Final = Fraction(1, 20)
# 2^17 doubles are 1 MiB, a level-2 cache; a coordinate of n clients' sum has variance at most (n clip)^2 / 2^17.
_LARGEST_BLOCK: Final = 1 << 17
# Below that no block is flat enough to be worth less padding of so few coordinates.
_SMALL_BLOCK: Final = 1 << 8
_LONG: Final = 10_000


def padded_dimension(dim: int) -> int:
    """The smallest power of two that is at least ``dim`` (>= 1)."""
    if dim < 1:
        raise ValueError("dim must be at least 1")
    return 1 << (dim - 1).bit_length()


def rotation_layout(dim: int, kind: str) -> tuple[int, int]:
    """Block length and padded length of a rotation; a function of its arguments alone.

    Args:
        dim: length before padding, >= 1.
        kind: "hadamard": one block, the next power of two. "hadamard-blocks": equal blocks, the largest power of
            two up to 2^17 whose multiples pad ``dim`` by at most 1 % (from 10,000 on; never shorter than dim / 200,
            up to that cap), else by at most 5 % or, if none of 256 or more does, by the least that those can.

    Returns:
        (block_dim, padded_dim): a power of two, and the least multiple of it that is at least ``dim``.

    Raises:
        ValueError: ``dim`` < 1 or an unknown kind.
    """
    whole = padded_dimension(dim)
    if kind == "hadamard":
        return whole, whole
    if kind != "hadamard-blocks":
        raise ValueError(f"unknown rotation {kind!r}; use one of {', '.join(ROTATIONS)}")
    allowed, shortest = (dim // 100, 1) if dim >= _LONG else (dim // 20, min(_SMALL_BLOCK, whole))
    block = longest = min(whole, _LARGEST_BLOCK)
    while block > shortest and -dim % block > allowed:
        block //= 2
    while block < longest and -dim % (2 * block) == -dim % block:
        block *= 2  # nothing gained by the last halvings
    return block, dim + -dim % block


def default_rotation(dim: int) -> str:
    """The kind for ``dim`` coordinates: one block unless that means more than 5 % of padding."""
    whole, _ = rotation_layout(dim, "hadamard")
    return "hadamard" if whole - dim <= _MOST_PADDING_OF_ONE_BLOCK * dim else "hadamard-blocks"


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
        kind: see `rotation_layout`.

    Attributes:
        dim, block_dim, padded_dim: lengths of the input, of one block and of the output.

    Raises:
        ValueError: the seed has another length, ``dim`` < 1 or an unknown kind.
    """

    def __init__(self, seed: bytes, dim: int, kind: str = "hadamard") -> None:
        self.dim = dim
        self.block_dim, self.padded_dim = rotation_layout(dim, kind)
        self._signs = rotation_signs(seed, self.padded_dim) / math.sqrt(self.block_dim)

    def forward(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """(dim,) -> (padded_dim,), norm unchanged."""
        if vector.shape != (self.dim,):
            raise ValueError(f"expected {self.dim} values")
        padded = np.zeros(self.padded_dim)
        np.multiply(vector, self._signs[: self.dim], out=padded[: self.dim])
        for block in padded.reshape(-1, self.block_dim):
            block[:] = walsh_hadamard(block)
        return padded

    def inverse(self, rotated: NDArray[np.float64]) -> NDArray[np.float64]:
        """(padded_dim,) -> (dim,): undo `forward`, drop the padding."""
        if rotated.shape != (self.padded_dim,):
            raise ValueError(f"expected {self.padded_dim} values")
        back = np.empty(self.padded_dim)
        for block, source in zip(back.reshape(-1, self.block_dim), rotated.reshape(-1, self.block_dim), strict=True):
            block[:] = walsh_hadamard(source)
        back *= self._signs
        return back[: self.dim]
