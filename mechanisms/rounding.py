"""Conditional stochastic rounding to integers, with a norm bound that holds with probability 1.

Every coordinate goes up or down at random so that its mean is exact; the whole vector is redrawn until its
exact integer norm meets the bound that the accountant uses. Source: [KLS21] Algorithm 1 and Proposition 22.
For beta = 0 the bound is the worst case; it is checked all the same, because the input's norm is only known
in floating point.

How many draws a vector needs depends on its norm, and who waits for it could see that. So two are always made, and the
first that meets the bound is taken by arithmetic that is the same for both; only a third is visible.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.randomness import Keystream, RandomBytes, fresh_keystream

# A try succeeds with probability >= 1 - beta ([KLS21] Prop. 22); the plan keeps beta <= 0.9: 1000 tries fail
# with probability below 2^-150, which then is a broken input and not bad luck.
MOST_TRIES: Final = 1000
ALWAYS_DRAWN: Final = 2
# sqrt of the largest squared norm that is added up in int64 with room to spare.
LARGEST_NORM: Final = 2.0**31
"""Above it a vector is refused; values must be below 2^31 - 1, too, so that sums in `_Scratch.round` don't overflow.
Plans keep below `LARGEST_PLANNED_NORM`, so that no clipped update comes near."""
LARGEST_PLANNED_NORM: Final = LARGEST_NORM * (1 - 2.0**-20)
_BLOCK: Final = 1 << 15
_WORD: Final = 2.0**53


class RoundingFailed(RuntimeError):
    """No rounding met the norm bound. The vector must not be sent."""


def _settle(chance: float, source: Keystream) -> bool:
    """An exact Bernoulli(chance), chance < 1, for what a first word leaves open; never for 0 or less.

    A word is drawn in any case, so that the time doesn't tell whether there is a rest.
    """
    raw = np.empty(8, np.uint8)
    while True:
        source.fill(raw)
        word = int.from_bytes(raw.tobytes(), "little") >> 11
        chance = chance * _WORD - word  # exact: a power of two, then neighbours of like size
        if not 0.0 < chance < 1.0:
            return chance > 0.0


class _Scratch:
    """What rounding one block needs beside its input and output. Made once: fresh pages cost more than the work."""

    def __init__(self, size: int) -> None:
        self.scaled = np.empty(size)
        self.words = np.empty(size, np.uint32)
        self.low = np.empty(size, np.uint32)

    def round(self, values: NDArray[np.float64], source: Keystream, out: NDArray[np.int64]) -> int:
        """Round ``values`` (m,), finite and below 2^31 - 1 in size, to a neighbouring integer in ``out``, without bias.

        Integers stay as they are. A value v is rounded to floor(v + U), U uniform on [0, 1), which has mean v, and U is
        drawn as far as needed. v 2^32 is an integer q and a rest r in (-1, 1), split exactly by cutting towards
        zero. With w, the first 32 bits of U, floor((q + w) / 2^32) is the result whatever follows, unless q + w lies at
        an edge: where its low bits are all ones, r > 0 carries it over with chance r; where they are all zeros, r < 0
        takes one away with chance -r. Either edge has chance 2^-32, and further bits decide. No float generator and no
        rounded probability anywhere.

        Returns the exact squared norm of ``out``.
        """
        size = values.size
        scaled, words, low = self.scaled[:size], self.words[:size], self.low[:size]
        np.multiply(values, 2.0**32, out=scaled)  # exact, as every power of two
        out[:] = scaled
        source.fill(words.view(np.uint8))
        out += words
        np.copyto(low, out, casting="unsafe")  # keeps the low 32 bits
        low += np.uint32(1)
        if low.min() <= 1:
            for i in np.flatnonzero(low <= 1):
                rest = math.modf(scaled[i])[0]
                if low[i] == 0:
                    out[i] += _settle(rest, source)
                else:
                    out[i] -= _settle(-rest, source)
        out >>= 32
        whole = scaled
        whole[:] = out
        # A sum of squares of integers that comes out below 2^53 was exact at each step, in any order: a step that
        # was not had a result of 2^53 or more, and from there sums don't come down.
        square = float(np.dot(whole, whole))
        return int(square) if square < _WORD else squared_norm(out)

    def round_all(self, values: NDArray[np.float64], source: Keystream, out: NDArray[np.int64]) -> int:
        """`round` of a vector of any length, block by block."""
        blocks = [slice(start, start + _BLOCK) for start in range(0, values.size, _BLOCK)]
        return sum(self.round(values[block], source, out[block]) for block in blocks)

    def round_rows(self, rows: NDArray[np.float64], source: Keystream, out: NDArray[np.int64]) -> NDArray[np.int64]:
        """`round` of each row. Returns the exact squared norms, below 2^62, (n,).

        Long rows come with theirs; short ones share blocks, and are squared together.
        """
        if rows.shape[1] < _BLOCK:
            self.round_all(rows.reshape(-1), source, out.reshape(-1))
            return np.asarray(np.einsum("ij,ij->i", out, out))
        return np.array([self.round_all(row, source, found) for row, found in zip(rows, out, strict=True)], np.int64)


def squared_norm(vector: NDArray[np.int64]) -> int:
    """The exact squared Euclidean norm; the caller makes sure that it fits int64."""
    return int(np.dot(vector, vector))


def conditional_round(
    values: NDArray[np.float64],
    squared_limit: int,
    random_bytes: RandomBytes,
    most_tries: int = MOST_TRIES,
    *,
    keep: bool = True,
) -> NDArray[np.int64]:
    """Round stochastically, redrawing the whole vector until its squared norm is at most ``squared_limit``.

    Args:
        values: (d,), grid units.
        squared_limit: the accountant's bound on the squared norm of the result, grid units.
        random_bytes: source of a fresh key; all tries draw on one stream.
        most_tries: cap on the draws that count.
        keep: False gives zeros, by the same work.

    Returns (d,) int64 whose exact squared norm is at most ``squared_limit``: always, not just likely.

    Raises RoundingFailed: no try met the limit, or the input is not finite or far too long to be meant.
    """
    with np.errstate(over="ignore"):
        norm = math.sqrt(np.dot(values, values))  # infinite or NaN if any value is; never below the largest of them
    if not norm + math.sqrt(values.size) < LARGEST_NORM:
        raise RoundingFailed("the vector is too long for exact 64-bit norms")
    source = fresh_keystream(random_bytes)
    scratch = _Scratch(min(values.size, _BLOCK))
    rounded, second = np.empty(values.size, np.int64), np.empty(values.size, np.int64)
    meets = scratch.round_all(values, source, rounded) <= squared_limit
    second_meets = scratch.round_all(values, source, second) <= squared_limit and most_tries > 1
    if not (meets or second_meets):
        for _ in range(most_tries - ALWAYS_DRAWN):
            if meets := scratch.round_all(values, source, rounded) <= squared_limit:
                break
        else:
            raise RoundingFailed(f"no rounding within the norm bound in {most_tries} tries; was the update clipped?")
    rounded *= np.int64(keep and meets)
    second *= np.int64(keep and not meets)
    rounded += second
    return rounded


def conditional_round_rows(
    values: NDArray[np.float64],
    squared_limit: int,
    random_bytes: RandomBytes,
    most_tries: int = MOST_TRIES,
    *,
    out: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """`conditional_round` of each row by itself, all under one key: rows above the limit alone are drawn again.

    ``values``: (n, d), contiguous, grid units; ``squared_limit`` is that of one row. Returns (n, d) int64, in ``out``
    if it is given, contiguous: the same law as n calls; of a single row the same values from the same random bytes.

    Raises RoundingFailed: as there, for any of the rows; ValueError: ``out`` isn't contiguous.
    """
    if out is not None and not out.flags.c_contiguous:
        raise ValueError("rows are rounded to contiguous memory")
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", values, values))
    if not np.all(norms + math.sqrt(values.shape[1]) < LARGEST_NORM):
        raise RoundingFailed("a vector is too long for exact 64-bit norms")
    source = fresh_keystream(random_bytes)
    rounded = np.empty(values.shape, np.int64) if out is None else out
    scratch = _Scratch(min(values.size, _BLOCK))
    left = np.arange(len(values))
    for _ in range(most_tries):
        some = left.size < len(values)
        rows, found = (values[left], rounded[left]) if some else (values, rounded)
        squares = scratch.round_rows(rows, source, found)
        if some:
            rounded[left] = found
        left = left[squares > squared_limit]
        if not left.size:
            return rounded
    raise RoundingFailed(f"no rounding within the norm bound in {most_tries} tries; was the update clipped?")
