"""Reproducible public randomness: partitions and batch orders. No key, mask or noise ever comes from it.

Not numpy's generators: numpy doesn't promise the same samples for a seed across its versions, and two sides must cut a
data set alike; and loading ``numpy.random`` costs every client process 7 MB. SHAKE-256 of the seed gives the same words
everywhere.
"""

from __future__ import annotations

import hashlib
import math
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray


class Shuffler(Protocol):
    """What local training needs of a source: an order of n examples. numpy's Generator is one, too."""

    def permutation(self, n: int, /) -> NDArray[np.int64]:
        """The numbers 0..n-1 in a random order."""


class PublicRandom:
    """A stream of uniform words named by a seed."""

    def __init__(self, *seed: int | bytes) -> None:
        """Args: numbers >= 0 or byte strings; different sequences of them name independent streams."""
        hasher = hashlib.sha256(b"sordino/v1/public-random")
        for part in seed:
            if isinstance(part, int):
                if part < 0:
                    raise ValueError(f"a seed is a number >= 0, not {part}")
                part = b"n" + part.to_bytes((part.bit_length() + 7) // 8, "little")
            else:
                part = b"b" + part
            hasher.update(len(part).to_bytes(8, "little") + part)
        self._seed = hasher.digest()
        self._calls = 0

    def words(self, count: int) -> NDArray[np.uint64]:
        """``count`` uniform 64-bit words."""
        self._calls += 1
        data = hashlib.shake_256(self._seed + self._calls.to_bytes(8, "little")).digest(8 * count)
        return np.frombuffer(data, dtype="<u8").astype(np.uint64)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Uniform on (0, 1): multiples of 2^-53, a half step off zero."""
        return ((self.words(count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def permutation(self, n: int) -> NDArray[np.int64]:
        """The numbers 0..n-1 in a random order (ties among 64-bit words are out of reach)."""
        return np.argsort(self.words(n), kind="stable").astype(np.int64)

    def shuffled(self, values: ArrayLike) -> NDArray[np.int64]:
        array = np.asarray(values, dtype=np.int64)
        return array[self.permutation(len(array))]

    def gamma(self, shape: float, count: int) -> NDArray[np.float64]:
        """Gamma variates of scale 1 (Marsaglia and Tsang 2000, with their boost below shape 1), as logarithms.

        Logarithms, since a small shape gives values below the smallest float.
        """
        boost = -np.log(self.uniform(count)) / shape if shape < 1 else np.zeros(count)
        d = (shape + 1 if shape < 1 else shape) - 1 / 3
        c = 1 / math.sqrt(9 * d)
        result = np.empty(count)
        missing = np.arange(count)
        while missing.size:
            u, v, w = self.uniform(missing.size), self.uniform(missing.size), self.uniform(missing.size)
            normal = np.sqrt(-2 * np.log(u)) * np.cos(2 * math.pi * v)  # Box-Muller
            cube = (1 + c * normal) ** 3
            positive = cube > 0
            safe = np.where(positive, cube, 1.0)
            accepted = positive & (np.log(w) < normal**2 / 2 + d - d * safe + d * np.log(safe))
            result[missing[accepted]] = math.log(d) + np.log(safe[accepted])
            missing = missing[~accepted]
        return result - boost

    def dirichlet(self, alpha: float, count: int) -> NDArray[np.float64]:
        """Shares of the symmetric Dirichlet distribution; (count,), they sum to 1."""
        logarithms = self.gamma(alpha, count)
        weights = np.exp(logarithms - logarithms.max())
        shares: NDArray[np.float64] = weights / weights.sum()
        return shares
