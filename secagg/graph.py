"""Who shares with whom.

On the complete graph everybody is everybody's neighbour, and everybody, the dealer included, holds one share of each
secret. The k-regular graph of [BBG+20] will stand beside it with the same questions answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from secagg.parameters import RoundParameters


@dataclass(frozen=True)
class CompleteGraph:
    """All members of u1 are neighbours."""

    u1: tuple[int, ...]  # ascending
    parameters: RoundParameters

    def neighbours(self, participant: int) -> tuple[int, ...]:
        """Those with whom the participant exchanges sealed shares and pairwise masks, ascending."""
        return tuple(other for other in self.u1 if other != participant)

    def holders(self, dealer: int) -> tuple[int, ...]:
        """Those who hold a share of the dealer's secrets, ascending. Here: all of u1, the dealer included."""
        return self.u1

    def x(self, holder: int) -> int:
        """Where polynomials are evaluated for this holder: position in sorted u1, plus one."""
        return self._positions[holder] + 1

    @property
    def threshold(self) -> int:
        """Shares that rebuild a secret."""
        return self.parameters.threshold(len(self.u1))

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {member: position for position, member in enumerate(self.u1)}
