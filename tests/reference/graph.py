"""Who shares with whom: everybody with everybody, or each with the next few on a ring ([BBG+20] section 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tests.reference.hashing import labelled

KEY_BYTES = 16


def ring_order(u1: Sequence[int], context: bytes) -> list[int]:
    """Members by 16 bytes each of one SHAKE-256 over the context, dealt out in the order of u1."""
    drawn = hashlib.shake_256(labelled("sordino/v1/ring", context)).digest(KEY_BYTES * len(u1))
    key_of = {who: drawn[KEY_BYTES * i : KEY_BYTES * (i + 1)] for i, who in enumerate(u1)}
    return sorted(u1, key=key_of.__getitem__)


class Graph:
    """Complete where the degree is everybody else."""

    def __init__(self, u1: Sequence[int], degree: int, context: bytes) -> None:
        """Args: members, ascending; neighbours of each."""
        self.u1, self.degree = list(u1), degree
        self.complete = degree == len(u1) - 1
        if not self.complete and (degree % 2 or not 2 <= degree < len(u1)):
            raise ValueError("no such ring")
        self.ring = list(u1) if self.complete else ring_order(u1, context)

    def neighbours(self, who: int) -> list[int]:
        """Ascending, without oneself."""
        if self.complete:
            return [one for one in self.u1 if one != who]
        at, count = self.ring.index(who), len(self.ring)
        found = []
        for step in range(1, self.degree // 2 + 1):
            found += [self.ring[(at - step) % count], self.ring[(at + step) % count]]
        return sorted(found)

    def holders(self, dealer: int) -> list[int]:
        """Who holds a share of its secrets, ascending; the dealer only on the complete graph."""
        return list(self.u1) if self.complete else self.neighbours(dealer)

    def dealers(self, holder: int) -> list[int]:
        """Whose shares it holds, ascending."""
        return [dealer for dealer in self.u1 if holder in self.holders(dealer)]

    def x(self, holder: int) -> int:
        """Position in u1, plus one, on either graph."""
        return self.u1.index(holder) + 1

    def place(self, dealer: int, holder: int) -> int:
        """Position among the dealer's holders, from 0: its pair of commitments."""
        return self.holders(dealer).index(holder)
