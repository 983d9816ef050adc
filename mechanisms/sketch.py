"""The count-mean sketch: a linear compression before secure aggregation.

L rows of w buckets. In row h, coordinate i has a public bucket j_h(i) and a public sign s_h(i):

    encode: S[h, j_h(i)] += s_h(i) g_i / L        decode the mean of the rows: g'_i = sum_h s_h(i) S[h, j_h(i)]

Linear, so sketches add up under a secure sum and the sum is decoded once. Over the hashes the decoded vector is
unbiased, and coordinate i has variance (||g||^2 - g_i^2) / (L w): what shares a bucket with it in one row,
averaged over L independent rows. Source: [CCKS22], the sparse random projection of its experiments; the sketch
itself is [CCF04]'s, with the mean of the rows in place of their median, which is not linear.

Bucket and sign come from independent streams. With one hash for both, all coordinates of a bucket share a sign,
collisions no longer cancel, and the decoded vector is biased towards the sum of the bucket.

The sketch has E||S||^2 = ||g||^2 / L over the signs, but is not bounded by it: privacy needs a clip of the sketch
itself, chosen near ||g|| / sqrt(L), and accounting for rows x width coordinates, not for those of g.

The hashes are bits of ChaCha20 keystreams with zero nonce, block 0 on, one pair of keys for each row h:
SHA-256(label || h as 4 bytes, little-endian || seed). Coordinate i takes the i-th 64-bit little-endian word of
the row's bucket stream: bucket floor((word >> 24) w / 2^40), each with a probability within 2^-40 of 1 / w. Its sign
is bit i % 8 (least significant first) of byte i // 8 of the row's sign stream: 0 means +1 and 1 means -1.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.randomness import Keystream

SEED_BYTES: Final = 32
LARGEST_WIDTH: Final = 1 << 24
"""More buckets would overflow the 64-bit product that picks one of them."""

_BUCKETS: Final = b"sordino/v1/sketch buckets\x00"
_SIGNS: Final = b"sordino/v1/sketch signs\x00"
# A block's words, buckets and signed values stay in a level-2 cache. A multiple of 8: signs are whole bytes.
_BLOCK: Final = 1 << 15


def sketch_shape(dim: int, rows: int, ratio: float) -> int:
    """The width that compresses ``dim`` coordinates ``ratio`` times into ``rows`` rows, at least 1.

    ``rows`` >= 1; [CCKS22]'s experiments have 15. ``ratio``: coordinates per bucket, positive; below 1 it is no
    compression.

    Raises ValueError: an argument outside its range.
    """
    if dim < 1 or rows < 1:
        raise ValueError("a sketch needs dim and rows of at least 1")
    if not (math.isfinite(ratio) and ratio > 0):
        raise ValueError(f"the compression ratio must be positive and finite, not {ratio}")
    return max(1, int(dim // (rows * ratio)))


class RowHash:
    """Bucket and sign of the coordinates of one row of ``width`` buckets, drawn in order."""

    def __init__(self, seed: bytes, row: int, width: int) -> None:
        tail = row.to_bytes(4, "little") + seed
        self._buckets = Keystream(hashlib.sha256(_BUCKETS + tail).digest())
        self._signs = Keystream(hashlib.sha256(_SIGNS + tail).digest())
        self._width = np.uint64(width)

    def take(self, count: int) -> tuple[NDArray[np.intp], NDArray[np.int8]]:
        """The next ``count`` coordinates: (count,) buckets in [0, width) and (count,) signs +1 and -1.

        All calls but the last take multiples of 8: signs are drawn by the byte.
        """
        words = np.empty(count, "<u8")
        self._buckets.fill(words.view(np.uint8))
        words >>= np.uint64(24)
        words *= self._width
        words >>= np.uint64(40)
        raw = np.empty((count + 7) // 8, np.uint8)
        self._signs.fill(raw)
        signs = np.unpackbits(raw, count=count, bitorder="little").view(np.int8)
        signs *= -2
        signs += 1
        return words.astype(np.intp, copy=False), signs


class CountMeanSketch:
    """One public sketch of R^dim. Both sides build the same one; holds no tables.

    Args:
        seed: 32 public bytes that no party chose.
        dim: length of the vectors, >= 1.
        rows: L >= 1, independent rows.
        width: w in 1..2^24, buckets of a row; ``size`` is rows * width, the length of a sketch.

    Raises ValueError: an argument outside its range.
    """

    def __init__(self, seed: bytes, dim: int, rows: int, width: int) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"a sketch seed has {SEED_BYTES} bytes, not {len(seed)}")
        if dim < 1 or not 1 <= rows < 1 << 32:
            raise ValueError("a sketch needs dim and rows of at least 1, and fewer than 2^32 rows")
        if not 1 <= width <= LARGEST_WIDTH:
            raise ValueError(f"a sketch has 1 to {LARGEST_WIDTH} buckets a row, not {width}; use more rows")
        self._seed, self.dim = seed, dim
        self.rows, self.width, self.size = rows, width, rows * width

    def encode(self, vector: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """(dim,) float16, float32 or float64, finite -> (size,) float64, row after row; linear up to rounding.

        The same bits on every platform: additions in the order of the coordinates, one division at the end.

        Raises ValueError: another length or dtype, a value that is infinite or not a number.
        """
        return self.encode_many(vector[None]).reshape(self.size)

    def encode_many(self, vectors: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """(n, dim) -> (n, size): `encode` of each, to the last bit, with hashes that are drawn once."""
        for vector in vectors:
            self._check(vector, self.dim, "a vector to sketch")
        sketches = np.zeros((len(vectors), self.rows, self.width))
        for row in range(self.rows):
            hashed = self._row(row)
            for start in range(0, self.dim, _BLOCK):
                block = slice(start, min(start + _BLOCK, self.dim))
                buckets, signs = hashed.take(block.stop - start)
                for sketch, vector in zip(sketches, vectors, strict=True):
                    np.add.at(sketch[row], buckets, np.multiply(vector[block], signs, dtype=np.float64))
        sketches /= self.rows
        flat: NDArray[np.float64] = sketches.reshape(len(vectors), self.size)
        return flat

    def decode_mean(self, sketch: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
        """(size,) sketch, or sum or mean of sketches -> (dim,) float64, the unbiased estimate of what went in.

        Raises ValueError: another length or dtype, a value that is infinite or not a number.
        """
        self._check(sketch, self.size, "a sketch to decode")
        table = sketch.reshape(self.rows, self.width)
        hashes = [self._row(row) for row in range(self.rows)]
        vector = np.zeros(self.dim)
        for start in range(0, self.dim, _BLOCK):
            block = vector[start : start + _BLOCK]
            for row, hashed in enumerate(hashes):
                buckets, signs = hashed.take(block.size)
                block += np.multiply(table[row].take(buckets), signs, dtype=np.float64)
        return vector

    def _row(self, row: int) -> RowHash:
        return RowHash(self._seed, row, self.width)

    @staticmethod
    def _check(values: NDArray[np.floating[Any]], size: int, name: str) -> None:
        if values.dtype.kind != "f" or values.dtype.itemsize > 8:
            raise ValueError(f"{name} is an array of float16, float32 or float64, not {values.dtype}")
        if values.shape != (size,):
            raise ValueError(f"{name} has shape {values.shape}, this sketch needs ({size},)")
        if not np.all(np.isfinite(values)):
            raise ValueError(f"{name} holds NaN or infinite values")
