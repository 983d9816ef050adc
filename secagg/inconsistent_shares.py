"""Which of a dealer's shares don't lie on the polynomials of the others.

A dealer may commit to shares that fit no polynomial. The decoding of Reed-Solomon codes detects this: of m shares with
threshold t, up to (m - t) / 2 wrong ones are found.

The 16 symbols of a share are first added up with public weights, so one decoding covers all of them. With enough tries
a dealer can make wrong symbols add up to the right value. Then the rebuilt secret isn't the dealer's, which the caller
detects, and only the dealer's own round is lost.

Source: [Gao03]: with g the product of all x - x_i and h the polynomial through all points, the Euclidean algorithm on g
and h stops at a remainder r = u g + v h of degree below (m + t) / 2; then v vanishes at the wrong points and r / v is
the polynomial. It takes on the order of m^2 steps, 30 ms for a thousand shares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from secagg.shamir import PRIME, Symbols

Polynomial: TypeAlias = NDArray[np.int64]  # coefficients modulo p, of x^0 first; the last is not 0


def inconsistent_points(xs: Sequence[int], shares: Symbols, threshold: int) -> frozenset[int] | None:
    """Points whose shares are wrong, if they are few enough to be identified.

    Args:
        xs: the holders' points, distinct, from 1 to 65520.
        shares: shape (len(xs), s), uint16, symbols below 65521: row i from the holder at ``xs[i]``.
        threshold: as it was when the secret was shared.

    Returns:
        the wrong points, empty if all shares fit; None if too many shares are wrong to identify them, or too few shares
        are present to detect a wrong one.
    """
    points = np.asarray(xs, dtype=np.int64)
    most = (len(points) - threshold) // 2
    if most < 1:
        return None
    seed = b"sordino, weights of columns" + shares.astype("<u2").tobytes()
    drawn = hashlib.shake_256(seed).digest(8 * shares.shape[1])
    weights = (np.frombuffer(drawn, dtype="<u8") % np.uint64(PRIME)).astype(np.int64)
    values = (shares.astype(np.int64) * weights % PRIME).sum(axis=1) % PRIME
    polynomial = _decode(points, values, threshold)
    if polynomial is None:
        return None
    wrong = points[_at(polynomial, points) != values]
    return frozenset(wrong.tolist()) if len(wrong) <= most else None


def _decode(xs: NDArray[np.int64], ys: NDArray[np.int64], threshold: int) -> Polynomial | None:
    """The polynomial of degree below ``threshold`` on which all but (m - threshold) / 2 points lie."""
    above, remainder = _vanishing(xs), _through(xs, ys)
    before, multiplier = np.zeros(0, dtype=np.int64), np.ones(1, dtype=np.int64)
    while 2 * len(remainder) > len(xs) + threshold + 1:  # its degree is (m + t) / 2 or more
        quotient, rest = _divide(above, remainder)
        before, multiplier = multiplier, _subtract(before, _product(quotient, multiplier))
        above, remainder = remainder, rest
    if not len(multiplier):
        return None
    found, rest = _divide(remainder, multiplier)
    return None if len(rest) or len(found) > threshold else found


def _vanishing(xs: NDArray[np.int64]) -> Polynomial:
    """The product of all x - x_i."""
    product = np.zeros(len(xs) + 1, dtype=np.int64)
    product[0] = 1
    for degree, x in enumerate(xs.tolist()):
        product[1 : degree + 2] = (product[: degree + 1] - x * product[1 : degree + 2]) % PRIME
        product[0] = -x * product[0] % PRIME
    return product


def _through(xs: NDArray[np.int64], ys: NDArray[np.int64]) -> Polynomial:
    """The polynomial through all points, by Newton's divided differences."""
    inverses, differences = _inverses(), ys.copy()
    for step in range(1, len(xs)):
        spans = inverses[(xs[step:] - xs[:-step]) % PRIME]
        differences[step:] = (differences[step:] - differences[step - 1 : -1]) % PRIME * spans % PRIME
    polynomial = np.zeros(len(xs), dtype=np.int64)
    for degree, at in enumerate(range(len(xs) - 1, -1, -1)):
        # times x - x_at, plus the next difference
        polynomial[1 : degree + 1] = (polynomial[:degree] - xs[at] * polynomial[1 : degree + 1]) % PRIME
        polynomial[0] = (differences[at] - xs[at] * polynomial[0]) % PRIME
    return _trimmed(polynomial)


def _at(polynomial: Polynomial, xs: NDArray[np.int64]) -> NDArray[np.int64]:
    values = np.zeros_like(xs)
    for coefficient in polynomial[::-1].tolist():
        values = (values * xs + coefficient) % PRIME
    return values


def _divide(dividend: Polynomial, divisor: Polynomial) -> tuple[Polynomial, Polynomial]:
    rest, size = dividend.copy(), len(divisor)
    quotient = np.zeros(max(0, len(dividend) - size + 1), dtype=np.int64)
    inverse = int(_inverses()[divisor[-1]])
    for at in range(len(quotient) - 1, -1, -1):
        factor = int(rest[at + size - 1]) * inverse % PRIME
        quotient[at] = factor
        if factor:
            rest[at : at + size] = (rest[at : at + size] - factor * divisor) % PRIME
    return _trimmed(quotient), _trimmed(rest[: size - 1])


def _product(one: Polynomial, other: Polynomial) -> Polynomial:
    if len(one) > len(other):
        one, other = other, one
    product = np.zeros(max(0, len(one) + len(other) - 1) if len(one) else 0, dtype=np.int64)
    for at, coefficient in enumerate(one.tolist()):
        product[at : at + len(other)] = (product[at : at + len(other)] + coefficient * other) % PRIME
    return _trimmed(product)


def _subtract(one: Polynomial, other: Polynomial) -> Polynomial:
    difference = np.zeros(max(len(one), len(other)), dtype=np.int64)
    difference[: len(one)] = one
    difference[: len(other)] -= other
    return _trimmed(difference % PRIME)


def _trimmed(polynomial: Polynomial) -> Polynomial:
    """Remove leading zeros; the zero polynomial has no coefficient."""
    used = np.flatnonzero(polynomial)
    return polynomial[: used[-1] + 1] if len(used) else polynomial[:0]


@cache
def _inverses() -> NDArray[np.int64]:
    """Inverse of every number modulo p; 0 at 0. 17 generates the group, so its powers from both ends are inverses."""
    powers = [1]
    for _ in range(PRIME - 2):
        powers.append(powers[-1] * 17 % PRIME)
    table = np.zeros(PRIME, dtype=np.int64)
    table[powers] = [powers[-at] if at else 1 for at in range(PRIME - 1)]
    return table
