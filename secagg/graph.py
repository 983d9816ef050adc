"""Graphs of shares: the complete graph, and the k-regular one of [BBG+20] for larger cohorts.

Both have the same interface. On the complete graph all members are neighbours, and every member, including the dealer,
holds one share of each secret. On the k-regular graph the members stand on a ring in a pseudorandom order derived from
the cohort_context, which nobody chooses. Each member's neighbours are the degree / 2 next ones on either side, and only
they hold its shares.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Collection
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from secagg.encoding import encode
from secagg.parameters import RoundParameters
from secagg.sharing import Sharing

_RING_KEY_BYTES: Final = 16


class Graph(ABC):
    """Members of u1, and the sharing that both sides compute from their number."""

    complete: bool

    def __init__(self, u1: tuple[int, ...], sharing: Sharing) -> None:
        """Args: members, ascending; degree and threshold for this number of members."""
        self.u1 = u1
        self.degree, self.threshold = sharing.degree, sharing.threshold

    def position(self, member: int) -> int:
        """Position in sorted u1, from 0; KeyError if it is not a member."""
        at = bisect_left(self.u1, member)
        if at == len(self.u1) or self.u1[at] != member:
            raise KeyError(member)
        return at

    def x(self, holder: int) -> int:
        """The holder's point, at which polynomials are evaluated: position in sorted u1, plus one."""
        return self.position(holder) + 1

    @abstractmethod
    def neighbours(self, member: int) -> tuple[int, ...]:
        """Members with which this one exchanges sealed shares and pairwise masks, ascending."""

    @abstractmethod
    def holders(self, dealer: int) -> tuple[int, ...]:
        """Members that hold a share of the dealer's secrets, ascending."""

    @abstractmethod
    def xs(self, dealer: int) -> NDArray[np.uint16]:
        """`x` of each of its holders, in their order."""

    @abstractmethod
    def places(self, holder: int) -> dict[int, int]:
        """Dealer of whose secrets the member holds shares -> the member's place among that dealer's holders."""

    @abstractmethod
    def dealers(self, holder: int, among: Collection[int]) -> tuple[int, ...]:
        """Members of a set whose shares this one holds, ascending."""

    def tabulate(self) -> None:  # noqa: B027  # by default there is nothing to precompute
        """Precompute the answers for all members, for a coordinator."""


class CompleteGraph(Graph):
    """All members of u1 are neighbours; each holds a share of every member's secrets, its own included."""

    complete = True

    def neighbours(self, member: int) -> tuple[int, ...]:
        at = self.position(member)
        return self.u1[:at] + self.u1[at + 1 :]

    def holders(self, dealer: int) -> tuple[int, ...]:
        return self.u1

    def xs(self, dealer: int) -> NDArray[np.uint16]:
        """From 1 to the number of members."""
        return np.arange(1, len(self.u1) + 1, dtype=np.uint16)

    def places(self, holder: int) -> dict[int, int]:
        """The same with every dealer."""
        return dict.fromkeys(self.u1, self.position(holder))

    def dealers(self, holder: int, among: Collection[int]) -> tuple[int, ...]:
        return tuple(sorted(among))


class HararyGraph(Graph):
    """A ring on which each member is connected to the degree / 2 next ones on either side ([BBG+20] section 4).

    Deviation: there the coordinator draws the ring. Here members are ordered by 16-byte keys, the output of SHAKE-256
    over the cohort_context, one for each member in ascending order. A coordinator can change the order only by changing
    u1 (docs/graph.md bounds the number of its tries).
    """

    complete = False

    def __init__(self, u1: tuple[int, ...], sharing: Sharing, cohort_context: bytes) -> None:
        """Args: as of `Graph`, with an even degree below ``len(u1)``; the 32 bytes that name the cohort."""
        super().__init__(u1, sharing)
        if sharing.degree % 2 or not 2 <= sharing.degree < len(u1):
            raise ValueError(f"no ring of {len(u1)} has the degree {sharing.degree}")
        drawn = hashlib.shake_256(encode("sordino/v1/ring", cohort_context)).digest(_RING_KEY_BYTES * len(u1))
        keys = np.frombuffer(drawn, dtype=">u8").reshape(-1, 2)
        ring = np.lexsort((keys[:, 1], keys[:, 0]))
        on_ring = np.empty_like(ring)
        on_ring[ring] = np.arange(len(ring))
        # 16 bits suffice: a cohort has fewer than 65521 members. A benchmark holds one graph for each of them.
        self._ring, self._on_ring = ring.astype(np.uint16), on_ring.astype(np.uint16)
        self._own: tuple[int, tuple[int, ...]] = (-1, ())  # the last position asked for, and its neighbours
        self._rows: list[tuple[int, ...]] = []
        self._places: list[list[int]] = []
        half = sharing.degree // 2
        self._steps = np.concatenate([np.arange(-half, 0), np.arange(1, half + 1)])

    def neighbours(self, member: int) -> tuple[int, ...]:
        """The degree / 2 next on either side of the ring."""
        at = self.position(member)
        if self._rows:
            return self._rows[at]
        if self._own[0] != at:  # a participant asks for its own repeatedly
            self._own = (at, self._members(self._around(at)))
        return self._own[1]

    def tabulate(self) -> None:
        """Compute the neighbours of all members at once, for a coordinator, which needs them all."""
        at = (self._on_ring.astype(np.int64)[:, None] + self._steps) % len(self.u1)
        table = np.sort(self._ring[at])
        # By holder and, within it, by dealer: the holder's place in the dealer's row.
        order = np.argsort(table, axis=None, kind="stable")
        self._places = [row.tolist() for row in (order % self.degree).reshape(table.shape)]
        self._rows = [self._members(row) for row in table]

    def holders(self, dealer: int) -> tuple[int, ...]:
        """Its neighbours; no share stays with the dealer."""
        return self.neighbours(dealer)

    def xs(self, dealer: int) -> NDArray[np.uint16]:
        """Points of its neighbours."""
        return self._around(self.position(dealer)) + np.uint16(1)

    def places(self, holder: int) -> dict[int, int]:
        """For each neighbour, the number of that neighbour's neighbours before the member."""
        at = self.position(holder)
        if self._rows:
            return dict(zip(self._rows[at], self._places[at], strict=True))
        dealers = self._around(at)
        theirs = self._ring[(self._on_ring[dealers].astype(np.int64)[:, None] + self._steps) % len(self.u1)]
        before = (theirs < at).sum(axis=1).tolist()
        return dict(zip(self._members(dealers), before, strict=True))

    def dealers(self, holder: int, among: Collection[int]) -> tuple[int, ...]:
        return tuple(dealer for dealer in self.neighbours(holder) if dealer in among)

    @cached_property
    def ring(self) -> tuple[int, ...]:
        """Members in the order of the ring."""
        return self._members(self._ring)

    def _around(self, position: int) -> NDArray[np.uint16]:
        """Positions in u1 of the neighbours, ascending."""
        return np.sort(self._ring[(int(self._on_ring[position]) + self._steps) % len(self.u1)])

    def _members(self, positions: NDArray[np.uint16]) -> tuple[int, ...]:
        return tuple(self.u1[at] for at in positions.tolist())


def graph_of(u1: tuple[int, ...], parameters: RoundParameters, cohort_context: bytes) -> Graph:
    """The graph on which this cohort shares; both sides compute it. The cohort_context fixes the ring."""
    sharing = parameters.sharing(len(u1))
    if sharing.degree == len(u1) - 1:
        return CompleteGraph(u1, sharing)
    return HararyGraph(u1, sharing, cohort_context)
