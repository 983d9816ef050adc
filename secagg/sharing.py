"""How many neighbours, and how many shares, on the k-regular graph: exact, from whole numbers alone.

Members of u1 stand on a ring in an order that nobody chose; each shares with the k/2 before and the k/2 after it. Both
sides compute k and the threshold t by themselves, on different machines, so nothing here depends on floating point:
probabilities are hypergeometric, and are compared as integers.

Sources: [BBG+20]; for `CURIOUS` and `SEMI_MALICIOUS` the selection rule of the federated-compute library, which picks
the same numbers for the same input. `MALICIOUS` is ours. docs/graph.md derives all three.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from secagg.errors import InvalidParameters

CURIOUS: Final = "curious"
"""The coordinator follows the protocol and looks at everything."""
SEMI_MALICIOUS: Final = "semi-malicious"
"""Honest until the keys are exchanged; afterwards it may ask different members for different shares."""
MALICIOUS: Final = "malicious"
"""It may re-pick the ring by leaving members out, and chooses who drops out once it has seen the ring."""
ADVERSARIES: Final = (CURIOUS, SEMI_MALICIOUS, MALICIOUS)

SIGMA: Final = 40
"""A round is insecure with probability at most 2^-SIGMA."""
ETA: Final = 20
"""Random dropouts leave some member with fewer than t neighbours with probability at most 2^-ETA."""
GRINDING: Final = 80
"""A malicious coordinator tries at most 2^GRINDING rings for one round."""

LARGEST_PUBLISHED: Final = 10**6
"""Members up to which the published rule is stated."""


@dataclass(frozen=True)
class Sharing:
    """Neighbours of each member, all of whom hold one share of each of its secrets; and shares that rebuild one."""

    degree: int  # k, even on the k-regular graph
    threshold: int  # t


@lru_cache(maxsize=1024)
def k_regular(
    members: int, colluders: int, drops: int, adversary: str, *, sigma: int = SIGMA, eta: int = ETA
) -> Sharing | None:
    """The smallest even degree that is safe, and its threshold; None where no degree below ``members`` - 1 is.

    Small rings make the rule say little: with no colluder and no drop it returns (2, 2). Whoever runs a round uses
    the complete graph there (`secagg.parameters.SMALL_COHORT`).

    Args:
        members: n = |u1|.
        colluders: A, members that collude with the coordinator, on places of the ring that they didn't choose.
        drops: D, members that may drop out in a round.
        adversary: one of `ADVERSARIES`.
        sigma: a round is insecure with probability at most 2^-sigma.
        eta: for some member too few neighbours survive random drops with probability at most 2^-eta.

    Raises:
        InvalidParameters: an argument lies outside its range.
    """
    if members < 1 or not 0 <= colluders < members or not 0 <= drops < members:
        raise InvalidParameters("colluders and drops are whole numbers from 0 to members - 1")
    if adversary not in ADVERSARIES:
        raise InvalidParameters(f"adversary must be one of {', '.join(ADVERSARIES)}, not {adversary}")
    if sigma < 0 or eta < 0:
        raise InvalidParameters("sigma and eta are whole numbers of bits, not negative")
    security = sigma + 1 + (GRINDING if adversary == MALICIOUS else 0)  # half for connectivity, half for privacy
    degree = _connected_degree(members, colluders, drops, adversary, security)
    while degree < members - 1:
        corrupt = exceeded_rarely(members, colluders, degree, security)
        answers = degree - exceeded_rarely(members, drops, degree, eta)
        threshold = _threshold(degree, corrupt, adversary)
        if threshold <= answers:
            return Sharing(degree, threshold)
        # One neighbour more answers at most one share more, and never lowers t; where t follows half the degree, it
        # takes two. So nothing below this passes (one place more adds at most one to either count and takes none).
        missing = threshold - answers
        degree += missing + missing % 2 if adversary == CURIOUS else 2 * missing
    return None


def published(members: int, adversarial: float, dropout: float, adversary: str) -> Sharing | None:
    """What the published rule gives for shares of the members; None where it takes the complete graph.

    A = floor(adversarial x n) and D = floor(dropout x n), of the decimals as they are written. For `MALICIOUS`, which
    nobody has published, our rule under the guard of `SEMI_MALICIOUS`.

    Raises:
        InvalidParameters: an argument lies outside its range.
    """
    if members < 1 or not 0 <= adversarial < 1 or not 0 <= dropout < 1:
        raise InvalidParameters("adversarial and dropout are shares in [0, 1) of at least 1 member")
    gamma, delta = Fraction(repr(float(adversarial))), Fraction(repr(float(dropout)))
    weight = 1 if adversary == CURIOUS else 2
    if members > LARGEST_PUBLISHED or gamma + weight * delta > Fraction(9, 10):
        return None
    return k_regular(members, math.floor(gamma * members), math.floor(delta * members), adversary)


def cut_pairs(members: int, degree: int) -> int:
    """Pairs of windows of k/2 places on a ring that leave somebody between them on both sides: n(n - k - 1)/2."""
    return members * max(members - degree - 1, 0) // 2


def cut_chance(members: int, colluders: int, drops: int, degree: int, adversary: str) -> Fraction:
    """Probability that one given pair of windows, k places in all, can be emptied.

    `MALICIOUS`: at most ``drops`` honest members stand there, and the coordinator makes them drop out. Otherwise drops
    are as random as colluders are, and all of the k must be either.
    """
    if adversary == MALICIOUS:
        favourable = tail(members, colluders, degree, degree - drops)
    else:
        favourable = math.comb(min(colluders + drops, members), degree)
    return Fraction(favourable, math.comb(members, degree))


def tail(members: int, marked: int, drawn: int, least: int) -> int:
    """How many of the C(members, drawn) ways to draw have at least ``least`` of the ``marked`` members in them."""
    return sum(term for _, term in _from_the_top(members, marked, drawn, max(least, 0)))


def exceeded_rarely(members: int, marked: int, drawn: int, bits: int) -> int:
    """The smallest t with members x Pr[Hypergeometric(members, marked, drawn) > t] <= 2^-bits."""
    allowed = math.comb(members, drawn) >> bits  # an integer is at most x where it is at most floor(x)
    beyond = 0
    for value, term in _from_the_top(members, marked, drawn, 0):
        beyond += term
        if beyond * members > allowed:
            return value
    raise AssertionError("all values together have probability 1")


def _threshold(degree: int, corrupt: int, adversary: str) -> int:
    if adversary == CURIOUS:
        return max(corrupt + 1, 2)
    # 2 t > k + corrupt neighbours, or two disjoint halves of the honest neighbours could open both secrets of one
    # member. Published as ceil((corrupt + k - 1.25) / 2) + 1: the same for whole numbers.
    return max((degree + corrupt) // 2 + 1, 2)


def _connected_degree(members: int, colluders: int, drops: int, adversary: str, security: int) -> int:
    """The smallest even degree at which no pair of windows can be emptied, but for probability 2^-security.

    Found by bisection: a longer window holds the shorter one's honest members and perhaps one more, so whatever
    empties it empties the shorter one (`cut_chance` falls with k), and there are fewer pairs.
    """

    def holds(degree: int) -> bool:
        if degree > colluders + drops:
            return True
        pairs = cut_pairs(members, degree)
        ways = math.comb(members, degree)
        if adversary == MALICIOUS:
            if degree <= drops:
                return False
            return (pairs * tail(members, colluders, degree, degree - drops) << security) <= ways
        return (pairs * math.comb(colluders + drops, degree) << security) < ways

    low, high = 1, (colluders + drops) // 2 + 1  # in pairs of neighbours; the last holds
    while low < high:
        middle = (low + high) // 2
        if holds(2 * middle):
            high = middle
        else:
            low = middle + 1
    return 2 * low


def _from_the_top(members: int, marked: int, drawn: int, least: int) -> Iterator[tuple[int, int]]:
    """(j, C(marked, j) C(members - marked, drawn - j)) for j from the largest possible down to ``least``."""
    unmarked = members - marked
    value = min(marked, drawn)
    last = max(least, drawn - unmarked)
    if value < last:
        return
    term = math.comb(marked, value) * math.comb(unmarked, drawn - value)
    while True:
        yield value, term
        if value == last:
            return
        term = term * (value * (unmarked - drawn + value)) // ((marked - value + 1) * (drawn - value + 1))
        value -= 1
