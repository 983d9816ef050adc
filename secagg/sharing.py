"""Degree and threshold of the k-regular graph, computed exactly in integers.

Members of u1 stand on a ring in a pseudorandom order; each shares with the k/2 before and the k/2 after it. Both sides
compute k and the threshold t themselves, on different machines, so nothing here uses floating point: probabilities are
hypergeometric and compared as integers.

Sources: [BBG+20]; for `CURIOUS` and `SEMI_MALICIOUS` the selection rule of the federated-compute library, which gives
the same numbers for the same input. `MALICIOUS` is our rule. docs/graph.md derives all three.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from secagg.errors import InvalidParameters

CURIOUS: Final = "curious"
"""The coordinator follows the protocol and reads everything it receives."""
SEMI_MALICIOUS: Final = "semi-malicious"
"""Honest until the keys are exchanged; then it may request different shares from different members."""
MALICIOUS: Final = "malicious"
"""It may re-draw the ring by leaving members out, and chooses the dropouts after it has seen the ring."""
ADVERSARIES: Final = (CURIOUS, SEMI_MALICIOUS, MALICIOUS)

SIGMA: Final = 40
"""A round is insecure with probability at most 2^-SIGMA."""
ETA: Final = 20
"""Random dropouts leave a member with fewer than t neighbours with probability at most 2^-ETA."""
GRINDING: Final = 80
"""A malicious coordinator tries at most 2^GRINDING rings for one round."""

LARGEST_PUBLISHED: Final = 10**6
"""Largest number of members in the published rule."""


@dataclass(frozen=True)
class Sharing:
    """Neighbours of each member, each of which holds one share of each of its secrets; and shares that rebuild one."""

    degree: int  # k, even on the k-regular graph
    threshold: int  # t


@dataclass(frozen=True)
class Conditions:
    """Conditions at one degree, up to the allowed probabilities: the reasons for k and t."""

    corrupt: int  # t1: upper bound of the colluding neighbours of any member
    answering: int  # t2: lower bound of the neighbours of any member that outlast random drops
    threshold: int  # the smallest that is safe with ``corrupt``; feasible if at most ``answering``


@lru_cache(maxsize=1024)
def k_regular(
    members: int,
    colluders: int,
    drops: int,
    adversary: str,
    *,
    sigma: int = SIGMA,
    eta: int = ETA,
    grinding: int = GRINDING,
) -> Sharing | None:
    """The smallest safe even degree, and its threshold; None if no degree below ``members`` - 1 is safe.

    Also None beyond the published limits: 10^6 members, and A + D (`CURIOUS`) or A + 2 D (the others) at most 0.9 n.
    For small rings the rule is weak: without colluders and drops it returns (2, 2). Rounds use the complete graph there
    (`secagg.parameters.SMALL_COHORT`).

    Args:
        members: n = |u1|.
        colluders: A, members that collude with the coordinator, at places on the ring that they didn't choose.
        drops: D, members that may drop out in a round.
        adversary: one of `ADVERSARIES`.
        sigma: a round is insecure with probability at most 2^-sigma.
        eta: too few neighbours of some member outlast random drops with probability at most 2^-eta.
        grinding: `MALICIOUS` only: the bounds hold for a coordinator that tries at most 2^grinding rings.

    Raises:
        InvalidParameters: an argument lies outside its range.
    """
    _check(members, colluders, drops, adversary)
    if sigma < 0 or eta < 0 or grinding < 0:
        raise InvalidParameters("sigma, eta and grinding are whole numbers of bits, not negative")
    # The published limits; beyond them the graph would hardly be sparse.
    if members > LARGEST_PUBLISHED or 10 * (colluders + (1 if adversary == CURIOUS else 2) * drops) > 9 * members:
        return None
    degree = connected_degree(members, colluders, drops, adversary, sigma=sigma, grinding=grinding)
    while degree < members - 1:
        at = conditions(members, colluders, drops, adversary, degree, sigma=sigma, eta=eta, grinding=grinding)
        # Without corrupt members the published rule requires one answer, although t is 2.
        missing = (at.corrupt + 1 if adversary == CURIOUS else at.threshold) - at.answering
        if missing <= 0:
            return Sharing(degree, at.threshold)
        # No degree in between can pass: one place more adds at most one answer, and t never falls; if t is half the
        # degree, two places more gain at most one.
        degree += missing + missing % 2 if adversary == CURIOUS else 2 * missing
    return None


def connected_degree(
    members: int, colluders: int, drops: int, adversary: str, *, sigma: int = SIGMA, grinding: int = GRINDING
) -> int:
    """The smallest even degree at which the honest survivors stay connected, except with probability 2^-sigma / 2.

    Found by doubling and bisection: a longer window contains the honest members of a shorter one and perhaps more, so
    whatever empties it also empties the shorter one (`cut_chance` falls with k), and there are fewer pairs of them.
    """
    _check(members, colluders, drops, adversary)
    bits = _security(sigma, adversary, grinding)

    def holds(degree: int) -> bool:
        if degree > colluders + drops or degree >= members - 1:
            return True
        if adversary == MALICIOUS:
            return _rare(members, colluders, degree, degree - drops, cut_pairs(members, degree), bits)
        ways = cut_pairs(members, degree) * math.comb(colluders + drops, degree)
        return ways << bits < math.comb(members, degree)

    # In pairs of neighbours, from below: high degrees have the longest numbers.
    low = drops // 2 + 1 if adversary == MALICIOUS else 1
    step = 1
    while not holds(2 * (low + step - 1)):
        low, step = low + step, 2 * step
    return 2 * (low + bisect_left(range(low, low + step - 1), True, key=lambda half: holds(2 * half)))


def conditions(
    members: int,
    colluders: int,
    drops: int,
    adversary: str,
    degree: int,
    *,
    sigma: int = SIGMA,
    eta: int = ETA,
    grinding: int = GRINDING,
) -> Conditions:
    """Corrupt and answering neighbours at a degree below ``members`` - 1, and the resulting threshold."""
    _check(members, colluders, drops, adversary)
    corrupt = exceeded_rarely(members, colluders, degree, _security(sigma, adversary, grinding))
    # 2 t > k + corrupt neighbours, or two disjoint sets of honest neighbours could open both secrets of one member.
    # Published as ceil((corrupt + k - 1.25) / 2) + 1: equal for integers. A curious coordinator asks one set only.
    threshold = corrupt + 1 if adversary == CURIOUS else (degree + corrupt) // 2 + 1
    return Conditions(corrupt, degree - exceeded_rarely(members, drops, degree, eta), max(threshold, 2))


def published(members: int, adversarial: float, dropout: float, adversary: str) -> Sharing | None:
    """The published rule for fractions of the members; None if it uses the complete graph.

    A = floor(adversarial x n) and D = floor(dropout x n), of the decimal values. Raises InvalidParameters: an argument
    is out of range, or the adversary is `MALICIOUS`: no rule is published for it.
    """
    if members < 1 or not 0 <= adversarial < 1 or not 0 <= dropout < 1:
        raise InvalidParameters("adversarial and dropout are shares in [0, 1) of at least 1 member")
    if adversary not in (CURIOUS, SEMI_MALICIOUS):
        raise InvalidParameters(f"rules are published for {CURIOUS} and {SEMI_MALICIOUS}, not for {adversary}")
    gamma, delta = Fraction(repr(float(adversarial))), Fraction(repr(float(dropout)))
    weight = 1 if adversary == CURIOUS else 2
    if gamma + weight * delta > Fraction(9, 10):  # of the fractions, not of the rounded counts
        return None
    return k_regular(members, math.floor(gamma * members), math.floor(delta * members), adversary)


def cut_pairs(members: int, degree: int) -> int:
    """Pairs of windows of k/2 places on a ring with members between them on both sides: n(n - k - 1)/2."""
    return members * max(members - degree - 1, 0) // 2


def cut_chance(members: int, colluders: int, drops: int, degree: int, adversary: str) -> Fraction:
    """Probability that one given pair of windows, k places in all, can be emptied.

    `MALICIOUS`: at most ``drops`` honest members stand there, and the coordinator makes them drop out. Otherwise drops
    are random like colluders, and each of the k members must be one of the two.
    """
    if adversary == MALICIOUS:
        favourable = tail(members, colluders, degree, degree - drops)
    else:
        favourable = math.comb(min(colluders + drops, members), degree)
    return Fraction(favourable, math.comb(members, degree))


def tail(members: int, marked: int, drawn: int, least: int) -> int:
    """Number of the C(members, drawn) draws that contain at least ``least`` of the ``marked`` members."""
    return sum(term for _, term in _from_the_top(members, marked, drawn, max(least, 0)))


def exceeded_rarely(members: int, marked: int, drawn: int, bits: int) -> int:
    """The smallest t with members x Pr[Hypergeometric(members, marked, drawn) > t] <= 2^-bits."""
    found = _HypergeometricBounds.of(members, marked, drawn, bits).quantile(members << bits)
    if found is not None:
        return found
    allowed = math.comb(members, drawn) >> bits  # an integer is at most x where it is at most floor(x)
    beyond = 0
    for value, term in _from_the_top(members, marked, drawn, 0):
        beyond += term
        if beyond * members > allowed:
            return value
    raise AssertionError("all values together have probability 1")


def _rare(members: int, marked: int, drawn: int, least: int, factor: int, bits: int) -> bool:
    """Whether factor x Pr[Hypergeometric(members, marked, drawn) >= least] <= 2^-bits."""
    found = _HypergeometricBounds.of(members, marked, drawn, bits).rare(least, factor << bits)
    if found is not None:
        return found
    return factor * tail(members, marked, drawn, least) << bits <= math.comb(members, drawn)


@dataclass(frozen=True)
class _HypergeometricBounds:
    """Lower and upper bounds of hypergeometric probabilities, at a precision of a few hundred bits.

    With thousands of draws the exact terms have thousands of bits. If both bounds give the same answer, it is exact;
    otherwise the answer is None, and the exact terms decide.
    """

    mode: int
    above: tuple[tuple[int, int], ...]
    """(lower, upper) bounds of the terms at mode, mode + 1, ...; the unit makes the mode's term a power of two."""
    rest: int
    """Upper bound of the sum of all later terms."""
    whole: tuple[int, int]

    @classmethod
    def of(cls, members: int, marked: int, drawn: int, bits: int) -> _HypergeometricBounds:
        """Precise enough for probabilities near 2^-bits / members^2."""
        unmarked, top, bottom = members - marked, min(marked, drawn), max(0, drawn - members + marked)
        mode = (drawn + 1) * (marked + 1) // (members + 2)
        one = 1 << (bits + 2 * members.bit_length() + 64)
        above = [(one, one)]
        low = high = one
        for value in range(mode, top):
            times, over = (marked - value) * (drawn - value), (value + 1) * (unmarked - drawn + value + 1)
            low, high = low * times // over, -(-high * times // over)
            above.append((low, high))
            if high == 1:  # and so are all that follow
                break
        rest = top - mode + 1 - len(above)
        below_low = below_high = 0
        low = high = one
        for value in range(mode, bottom, -1):
            times, over = value * (unmarked - drawn + value), (marked - value + 1) * (drawn - value + 1)
            low, high = low * times // over, -(-high * times // over)
            below_low, below_high = below_low + low, below_high + high
            if high == 1:
                below_high += value - 1 - bottom
                break
        whole_low = below_low + sum(low for low, _ in above)
        whole_high = below_high + sum(high for _, high in above) + rest
        return cls(mode, tuple(above), rest, (whole_low, whole_high))

    def quantile(self, factor: int) -> int | None:
        """The smallest t with factor x Pr[> t] <= 1."""
        beyond_low, beyond_high = 0, self.rest
        for place in range(len(self.above) - 1, -1, -1):
            low, high = self.above[place]
            beyond_low, beyond_high = beyond_low + low, beyond_high + high
            if beyond_low * factor > self.whole[1]:
                return self.mode + place
            if beyond_high * factor > self.whole[0]:
                return None
        return None

    def rare(self, least: int, factor: int) -> bool | None:
        """Whether factor x Pr[>= least] <= 1."""
        place = max(least - self.mode, 0)
        if sum(low for low, _ in self.above[place:]) * factor > self.whole[1]:
            return False
        beyond = sum(high for _, high in self.above[place:]) + self.rest
        return True if least > self.mode and beyond * factor <= self.whole[0] else None


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


def _security(sigma: int, adversary: str, grinding: int) -> int:
    """Bits for each of the two failures: no connection, too many corrupt neighbours."""
    return sigma + 1 + (grinding if adversary == MALICIOUS else 0)


def _check(members: int, colluders: int, drops: int, adversary: str) -> None:
    if members < 1 or not 0 <= colluders < members or not 0 <= drops < members:
        raise InvalidParameters("colluders and drops are whole numbers from 0 to members - 1")
    if adversary not in ADVERSARIES:
        raise InvalidParameters(f"adversary must be one of {', '.join(ADVERSARIES)}, not {adversary}")
