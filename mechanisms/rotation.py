"""The randomised Hadamard rotation: spread an update evenly over its coordinates before it is rounded.

x -> H D x / sqrt(b) in a block of b coordinates, with H the Walsh-Hadamard matrix of order b, a power of two, in
Sylvester order, and D a diagonal of signs from a public seed. Orthonormal, hence norms and sums are kept; both sides
build the same one. Source: [KLS21] Algorithm 1, which has a single block. The seed needs no secrecy: the privacy bound
holds for every rotation.

Kinds, named in the plan: "hadamard" is one block, the next power of two, with zeros appended. "hadamard-blocks"
needs no padding, so that 11.1 million coordinates don't become 16.8 million: b is the largest power of two that fits,
the first b coordinates are rotated, then the last b, with signs of their own. The two blocks overlap and cover all.

Flatness of "hadamard-blocks" (ours): a coordinate before the last block is the sum over the first one of
+-x_i / sqrt(b) with independent fair signs, hence sub-Gaussian with variance proxy at most ||x||^2 / b. A coordinate of
the last block is such a sum too, over what the first rotation left there, whose norm is at most ||x||, with signs that
are independent of it: the same proxy. This is what wrapping is planned with; b is more than half the length.

The signs are bits of a ChaCha20 keystream: key SHA-256(label || seed), zero nonce, block 0 on; coordinate i
takes bit i % 8 (least significant first) of byte i // 8; 0 means +1 and 1 means -1. Those of the second block begin at
the next whole byte.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.randomness import Keystream

SEED_BYTES: Final = 32
_LABEL: Final = b"sordino/v1/rotation signs\x00"
# Radix of one pass. Dense +-1 blocks go through the matrix product, which beats butterflies by far in numpy.
_RADIX_BITS: Final = 5
# Coordinates that pass through the lower bits at a time, with as much scratch again: half a level-2 cache.
_CACHED: Final = 1 << 15
# Coordinates of one step through the upper bits.
_STRIPE: Final = 1 << 16
# The eight signs of each byte of a stream.
_SIGNS: Final = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), -1.0, 1.0)

ROTATIONS: Final = ("hadamard", "hadamard-blocks")

# A longer tail of zeros costs every upload more than a second rotation costs its sender.
_MOST_PADDING: Final = Fraction(1, 20)


def rotation_layout(dim: int, kind: str) -> tuple[int, int]:
    """Block length and padded length of a rotation; a function of its arguments alone.

    Returns (block_dim, padded_dim): a power of two, and how many coordinates come out of ``dim``.

    Raises ValueError: ``dim`` < 1 or an unknown kind.
    """
    if dim < 1:
        raise ValueError("dim must be at least 1")
    whole = 1 << (dim - 1).bit_length()
    if kind == "hadamard":
        return whole, whole
    if kind != "hadamard-blocks":
        raise ValueError(f"unknown rotation {kind!r}; use one of {', '.join(ROTATIONS)}")
    return (whole if whole == dim else whole // 2), dim


def default_rotation(dim: int) -> str:
    """The kind for ``dim`` coordinates: one block unless that means more than 5 % of padding."""
    whole, _ = rotation_layout(dim, "hadamard")
    return "hadamard" if whole - dim <= _MOST_PADDING * dim else "hadamard-blocks"


def _sign_bits(seed: bytes, dim: int) -> NDArray[np.uint8]:
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a rotation seed has {SEED_BYTES} bytes, not {len(seed)}")
    packed = np.empty((dim + 7) // 8, np.uint8)
    Keystream(hashlib.sha256(_LABEL + seed).digest()).fill(packed)
    return packed


@lru_cache(maxsize=8)
def _hadamard(bits: int) -> NDArray[np.float64]:
    matrix = np.ones((1, 1))
    for _ in range(bits):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    matrix.setflags(write=False)
    return matrix


class _Signs:
    """The diagonal D / sqrt(block_dim) of one block. Its signs stay packed: doubles would be 64 times longer."""

    def __init__(self, packed: NDArray[np.uint8], block_dim: int) -> None:
        self._packed, self._scaled = packed, _SIGNS * (1 / math.sqrt(block_dim))

    def of(self, start: int, size: int) -> NDArray[np.float64]:
        """(size,) of its entries, from ``start`` on, a multiple of 8."""
        eights = self._scaled.take(self._packed[start // 8 : (start + size + 7) // 8], axis=0)
        return eights.reshape(-1)[:size]


def _transform(result: NDArray[np.float64], block_dim: int, signs: _Signs | None = None) -> None:
    """Transform each block b of ``result`` in place: H b, not normalised, in Sylvester order H[i, j] = (-1)^popcount(i
    & j); with the ``signs`` of one block H D b / sqrt(block_dim).

    Runs of 2^15 coordinates, of one block or of several short ones, go through the lower index bits while they are in
    cache: each is copied out before it is written. A longer block then goes through the upper bits stripe by stripe.
    The sums are those of one pass after another over the whole, to the last bit.
    """
    low_bits = min(block_dim, _CACHED).bit_length() - 1
    scratch = np.empty(min(result.size, _CACHED)), np.empty(min(result.size, _CACHED))
    for start in range(0, result.size, _CACHED):
        out = result[start : start + _CACHED]
        source, spare = scratch[0][: out.size], scratch[1][: out.size]
        if signs is None:
            source[:] = out
        else:
            np.multiply(out, signs.of(start, out.size), out=source)
        inner, left = 1, low_bits
        while left:
            bits = min(_RADIX_BITS, left)
            left -= bits
            source, spare = _one_pass(source, bits, inner, out if not left else spare), source
            inner <<= bits
        if not low_bits:
            out[:] = source
    inner = 1 << low_bits
    while inner < block_dim:
        bits = min(_RADIX_BITS, (block_dim // inner).bit_length() - 1)
        width = _STRIPE >> bits
        for rows in result.reshape(-1, 1 << bits, inner):
            for column in range(0, inner, width):
                stripe = rows[:, column : column + width]
                stripe[:] = _hadamard(bits) @ stripe
        inner <<= bits


def _one_pass(source: NDArray[np.float64], bits: int, inner: int, out: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mix ``bits`` index bits above the ``inner`` ones that are done; from ``source`` to ``out``, which it returns."""
    if inner == 1:
        np.matmul(source.reshape(-1, 1 << bits), _hadamard(bits), out=out.reshape(-1, 1 << bits))
    else:
        np.matmul(_hadamard(bits), source.reshape(-1, 1 << bits, inner), out=out.reshape(-1, 1 << bits, inner))
    return out


class Rotation:
    """One public rotation of R^dim into R^padded_dim and back. Immutable; safe to share between threads.

    ``seed``: 32 public bytes. ``dim``, ``block_dim``, ``padded_dim``: lengths of the input, of one block and of the
    output.

    Raises ValueError: the seed has another length, ``dim`` < 1 or an unknown kind.
    """

    def __init__(self, seed: bytes, dim: int, kind: str = "hadamard") -> None:
        self.dim = dim
        self.block_dim, self.padded_dim = rotation_layout(dim, kind)
        starts = [0] if self.block_dim == self.padded_dim else [0, self.padded_dim - self.block_dim]
        step = (self.block_dim + 7) // 8
        packed = _sign_bits(seed, 8 * step * len(starts))
        self._blocks = [
            (start, _Signs(packed[step * at : step * (at + 1)], self.block_dim)) for at, start in enumerate(starts)
        ]

    def diagonals(self) -> list[tuple[int, NDArray[np.float64]]]:
        """First coordinate and D / sqrt(block_dim), (block_dim,), of each block, in the order of `forward`."""
        return [(first, signs.of(0, self.block_dim)) for first, signs in self._blocks]

    def forward(self, vector: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """(dim,) -> (padded_dim,) float64, norm unchanged."""
        if vector.shape != (self.dim,):
            raise ValueError(f"expected {self.dim} values")
        rotated = np.zeros(self.padded_dim)
        rotated[: self.dim] = vector
        self.rotate(rotated)
        return rotated

    def rotate(self, padded: NDArray[np.float64]) -> None:
        """`forward` in place: (padded_dim,) with zeros from ``dim`` on, or each row of (n, padded_dim); contiguous.

        Several short rows go through the cache together, which changes the order of additions.

        Raises ValueError: rows of another length, or not contiguous, which couldn't be rotated in place.
        """
        if padded.shape[-1:] != (self.padded_dim,) or not padded.flags.c_contiguous:
            raise ValueError(f"expected contiguous rows of {self.padded_dim} values")
        rows = padded.reshape(-1, self.padded_dim)
        if len(rows) == 1 or self.block_dim > _CACHED:
            for row in rows:
                for first, signs in self._blocks:
                    _transform(row[first : first + self.block_dim], self.block_dim, signs)
            return
        for first, diagonal in self.diagonals():
            source = rows[:, first : first + self.block_dim] * diagonal
            _transform(source.reshape(-1), self.block_dim)
            rows[:, first : first + self.block_dim] = source

    def inverse(self, rotated: NDArray[np.floating[Any] | np.int64]) -> NDArray[np.float64]:
        """(padded_dim,) -> (dim,) float64: undo `forward`, drop the padding."""
        if rotated.shape != (self.padded_dim,):
            raise ValueError(f"expected {self.padded_dim} values")
        back = rotated.astype(np.float64)
        for first, signs in reversed(self._blocks):
            block = back[first : first + self.block_dim]
            _transform(block, self.block_dim)
            for start in range(0, self.block_dim, _CACHED):
                part = block[start : start + _CACHED]
                part *= signs.of(start, part.size)
        return back[: self.dim]
