"""Rings of a few members, for tests: the real rule uses the complete graph below 64.

What the real rule makes almost certain is certain here. A plan has a ring for some sizes of u1 only, with

    degree > A + drops       the honest members of u3 stay connected, whichever members drop out
    2 threshold > degree + corrupt neighbours of any member
"""

from __future__ import annotations

from dataclasses import dataclass

from secagg.parameters import HARARY, RoundParameters
from secagg.sharing import Sharing

Rings = tuple[tuple[int, int, int], ...]  # members of u1, degree, threshold


@dataclass(frozen=True, kw_only=True)
class SmallRings(RoundParameters):
    """A plan with rings for stated sizes of u1, and the complete graph for others."""

    graph: str = HARARY
    rings: Rings = ()

    def sharing(self, u1: int) -> Sharing:
        for members, degree, threshold in self.rings:
            if members == u1:
                return Sharing(degree, threshold)
        return super().sharing(u1)


def safe_rings(cohort: int, min_survivors: int, colluders: int = 2) -> Rings:
    """Make rings for every size of u1, even if all colluders are neighbours of one member and as many drop as may."""
    rings = []
    for members in range(min_survivors, cohort + 1):
        degree = (colluders + members - min_survivors) // 2 * 2 + 2
        threshold = (degree + colluders) // 2 + 1
        if threshold <= degree < members - 1:
            rings.append((members, degree, threshold))
    return tuple(rings)


# Places on a ring of 14, with degree 6 and threshold 5, at which colluders and a dropout cut it in two:
#
#     place     0      1 2  3 4 5 6  7       8 9  10 11 12 13
#               drops  A A  near     victim  A A  far
#
# Members share with three places on either side. No member has more than two of the four colluders as neighbours, so
# the threshold is high enough; neither one drop nor four colluders and one drop cut the ring (4 + 1 < 6).
CUT: Rings = ((14, 6, 5),)
CUT_COLLUDERS = (1, 2, 8, 9)
CUT_DROPS, CUT_NEAR, CUT_VICTIM, CUT_FAR = 0, (3, 4, 5, 6), 7, (10, 11, 12, 13)
