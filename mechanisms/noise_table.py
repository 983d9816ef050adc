"""Condensed lookup tables: draw from integer weights exactly, at about one gather a sample.

A table of 65,536 cells gives each value floor(65536 w / sum w) cells, and a uniform 16-bit word selects a cell. The few
words behind the last full cell redraw from the remainders, which are again integer weights over a known sum, so the
next table has the same form. Bisection with an exactly uniform big integer settles what the last table leaves open.
Every step is exact: given uniform bits the law *equals* w / sum(w).

Source: the condensed tables of [MTW04], made exact by recursion on integers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mechanisms.randomness import Keystream, uniform_below

CELLS: Final = 1 << 16
BLOCK: Final = 1 << 16
_DEPTH: Final = 4


class Scratch:
    """Room for blocks of up to ``size`` draws, made once for a vector: fresh arrays would cost a tenth of the time."""

    def __init__(self, size: int) -> None:
        self.words = np.empty(size, np.uint16)
        self.index = np.empty(size, np.intp)
        self.left_over = np.empty(size, np.bool_)


class NoiseTable:
    """A symmetric law on step * {-J .. J}, proportional to the integers ``half[|y|]``.

    Args:
        half: weights of y = 0, 1, ..., J; none negative, the first one positive.
        step: distance of neighbouring values, >= 1.
        dtype: of the values that are drawn: int16 or int32, wide enough for J * step.
        depth: number of lookup tables before bisection.

    Attributes:
        values: (2 J + 1,) the support, ascending, of ``dtype``.
        lookups: the tables, each (array of 65,536 values, number of full cells).
        cumulative: running sums of the weights left for bisection, one for each of ``values``.
    """

    def __init__(self, half: Sequence[int], step: int, dtype: DTypeLike = np.int32, depth: int = _DEPTH) -> None:
        if not half or half[0] <= 0 or min(half) < 0 or step < 1 or depth < 1:
            raise ValueError("a table needs weights that are not negative, the first positive, and step, depth >= 1")
        reach = len(half) - 1
        if reach * step > np.iinfo(dtype).max:
            raise ValueError(f"the support does not fit values of {np.dtype(dtype)}")
        self.values: NDArray[np.signedinteger] = (np.arange(-reach, reach + 1) * step).astype(dtype)
        self.lookups: list[tuple[NDArray[np.signedinteger], int]] = []
        weights = [*half[:0:-1], *half]
        for _ in range(depth):
            total = sum(weights)
            cells = [w * CELLS // total for w in weights]
            weights = [w * CELLS % total for w in weights]
            full = sum(cells)
            table: NDArray[np.signedinteger] = np.zeros(CELLS, dtype)
            table[:full] = np.repeat(self.values, cells)
            self.lookups.append((table, full))
            if full == CELLS:
                break
        self.cumulative: list[int] = list(accumulate(weights))

    def draw(self, noise: NDArray[np.signedinteger], source: Keystream, scratch: Scratch) -> None:
        """Independent draws into ``noise``, (m,) of the table's dtype, contiguous, m at most the scratch's size."""
        size = noise.size
        words, index, left_over = scratch.words[:size], scratch.index[:size], scratch.left_over[:size]
        source.fill(words.view(np.uint8))
        index[:] = words  # take() wants intp; widening once here beats letting it convert
        table, full = self.lookups[0]
        table.take(index, mode="wrap", out=noise)
        if full < CELLS:
            np.greater_equal(words, full, out=left_over)
            self._settle(noise, left_over.nonzero()[0], source)

    def _settle(self, noise: NDArray[np.signedinteger], todo: NDArray[np.intp], source: Keystream) -> None:
        """Redraw the entries ``todo`` of ``noise`` from the remainders."""
        for table, full in self.lookups[1:]:
            if not todo.size:
                return
            words = np.empty(todo.size, np.uint16)
            source.fill(words.view(np.uint8))
            noise[todo] = table[words]
            todo = todo[words >= full]
        for i in todo:
            noise[i] = self.values[bisect_right(self.cumulative, uniform_below(self.cumulative[-1], source))]
