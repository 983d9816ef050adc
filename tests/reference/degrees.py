"""Degree and threshold of the k-regular graph, directly by its conditions, one even degree after the other.

Of n members on the ring A collude and D leave. With Hyp(n, m, k) the number of m marked members among k drawn without
replacement, and sigma = 40, eta = 20, a degree k < n - 1 is safe if

  * the honest members that stay remain connected, except with small probability: a cut needs two gaps of k / 2 places
    each without any of them, with members between the gaps on both sides; there are n (n - k - 1) / 2 such pairs;
  * no member has more corrupt neighbours than t1, except with n Pr[Hyp(n, A, k) > t1] <= 2^-s;
  * no member has fewer neighbours that stay than t2, except with n Pr[Hyp(n, D, k) > k - t2] <= 2^-eta;
  * the threshold t that follows from t1 is at most t2.

A curious or semi-malicious coordinator leaves dropouts to chance (s = 41); a malicious one chooses them and tries up to
2^80 rings (s = 121). The graph is complete if A + D (curious) or A + 2 D (the others) exceeds 9/10 of n, and beyond
10^6 members.
"""

from __future__ import annotations

from fractions import Fraction
from math import comb

SIGMA, ETA, GRINDING = 40, 20, 80


def hypergeometric(n: int, marked: int, drawn: int, value: int) -> Fraction:
    """Pr[exactly ``value`` of the marked are drawn]."""
    if not 0 <= value <= drawn:
        return Fraction(0)
    return Fraction(comb(marked, value) * comb(n - marked, drawn - value), comb(n, drawn))


def at_least(n: int, marked: int, drawn: int, least: int) -> Fraction:
    """Pr[``least`` or more of the marked are drawn]."""
    return sum((hypergeometric(n, marked, drawn, value) for value in range(max(least, 0), drawn + 1)), Fraction(0))


def exceeded_rarely(n: int, marked: int, drawn: int, bits: int) -> int:
    """The smallest t with n Pr[more than t] <= 2^-bits."""
    t, more = drawn, Fraction(0)
    while t > 0:
        more += hypergeometric(n, marked, drawn, t)
        if n * more > Fraction(1, 2**bits):
            break
        t -= 1
    return t


def connected(n: int, colluders: int, drops: int, adversary: str, degree: int, bits: int) -> bool:
    """The first condition, except with a probability of 2^-bits."""
    ways = Fraction(n * (n - degree - 1), 2)
    if adversary == "malicious":
        # The honest members among the k are made to leave: at most `drops`.
        return ways * at_least(n, colluders, degree, degree - drops) <= Fraction(1, 2**bits)
    either = colluders + drops
    emptied = Fraction(comb(either, degree), comb(n, degree)) if either <= n else Fraction(1)
    return ways * emptied < Fraction(1, 2**bits) or degree > either


def k_regular(
    n: int, colluders: int, drops: int, adversary: str, sigma: int = SIGMA, eta: int = ETA, grinding: int = GRINDING
) -> tuple[int, int] | None:
    """The smallest even degree that will do, and its threshold; None for the complete graph."""
    assert adversary in ("curious", "semi-malicious", "malicious")
    if n > 10**6 or colluders + drops * (1 if adversary == "curious" else 2) > Fraction(9, 10) * n:
        return None
    bits = sigma + 1 + (grinding if adversary == "malicious" else 0)
    for degree in range(2, n - 1, 2):
        if not connected(n, colluders, drops, adversary, degree, bits):
            continue
        corrupt = exceeded_rarely(n, colluders, degree, bits)
        staying = degree - exceeded_rarely(n, drops, degree, eta)
        threshold = corrupt + 1 if adversary == "curious" else (degree + corrupt) // 2 + 1
        if threshold <= staying:
            return degree, max(threshold, 2)  # shares at threshold 1 would be the secret
    return None
