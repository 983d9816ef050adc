"""Which of a dealer's shares don't lie on the polynomials of the others.

A dealer may commit to shares that fit no polynomial. Whoever holds enough shares can tell, as in the decoding of
Reed-Solomon codes: of m shares with threshold t up to (m - t) / 2 can be wrong and are found.

Source: [WB86], the linear system of Welch and Berlekamp: with a polynomial E that vanishes at the wrong points and
N = E x P, N(x_i) = y_i E(x_i) holds everywhere, and any solution has N / E = P.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from secagg.shamir import PRIME, Symbols


def rotten(xs: Sequence[int], shares: Symbols, threshold: int) -> frozenset[int] | None:
    """Points whose shares are wrong, if so few are that the others can be told from them.

    Args:
        xs: the holders' points, distinct, from 1 to 65520.
        shares: shape (len(xs), s), uint16, symbols below 65521: row i from the holder at ``xs[i]``.
        threshold: as it was when the secret was shared.

    Returns:
        the wrong points, none where all shares fit; None where too many are wrong to say which.
    """
    points = np.asarray(xs, dtype=np.int64)
    wrong: set[int] = set()
    for column in shares.T.astype(np.int64):
        found = _wrong_values(points, column, threshold)
        if found is None:
            return None
        wrong |= found
    return frozenset(wrong) if len(xs) - len(wrong) >= threshold else None


def _wrong_values(xs: NDArray[np.int64], ys: NDArray[np.int64], threshold: int) -> set[int] | None:
    most = (len(xs) - threshold) // 2
    if most < 1:
        return None
    # Unknowns: threshold + most coefficients of N, then the lower `most` of E, whose highest is 1:
    # N(x) - y (e_0 + ... + e_(most-1) x^(most-1)) = y x^most.
    powers = _powers(xs, threshold + most)
    system = np.concatenate([powers, -ys[:, None] * powers[:, :most] % PRIME], axis=1)
    solution = _solve(system, ys * powers[:, most] % PRIME)
    if solution is None:
        return None
    locator = np.append(solution[threshold + most :], 1)
    at_points = np.zeros_like(xs)
    for coefficient in locator[::-1]:
        at_points = (at_points * xs + coefficient) % PRIME
    # Every point that is no zero of E is right if N / E is a polynomial, which too many wrong ones prevent; a zero may
    # be right, too, where fewer than `most` are wrong.
    right = at_points != 0
    fits = _fits(xs, ys, right, threshold)
    if not fits[right].all():
        return None
    return {int(x) for x in xs[~fits]}


def _fits(
    xs: NDArray[np.int64], ys: NDArray[np.int64], right: NDArray[np.bool_], threshold: int
) -> NDArray[np.bool_]:
    """Which values lie on the polynomial through some that are right."""
    chosen = np.flatnonzero(right)[:threshold]
    coefficients = _solve(_powers(xs[chosen], threshold), ys[chosen])
    if coefficients is None or len(chosen) < threshold:
        return np.zeros_like(right)
    values = np.zeros_like(xs)
    for coefficient in coefficients[::-1]:
        values = (values * xs + coefficient) % PRIME
    return np.asarray(values == ys)


def _powers(xs: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    powers = np.ones((len(xs), count), dtype=np.int64)
    for column in range(1, count):
        powers[:, column] = powers[:, column - 1] * xs % PRIME
    return powers


def _solve(matrix: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """One solution modulo p of a linear system, by elimination; None if there is none."""
    rows = np.concatenate([matrix, right[:, None]], axis=1) % PRIME
    unknowns, pivots = matrix.shape[1], []
    at = 0
    for column in range(unknowns):
        candidates = np.flatnonzero(rows[at:, column])
        if not len(candidates):
            continue
        pivot = at + int(candidates[0])
        rows[[at, pivot]] = rows[[pivot, at]]
        rows[at] = rows[at] * pow(int(rows[at, column]), -1, PRIME) % PRIME
        others = np.flatnonzero(rows[:, column])
        others = others[others != at]
        # Products are below 2^32, so int64 holds them.
        rows[others] = (rows[others] - rows[others, column][:, None] * rows[at]) % PRIME
        pivots.append(column)
        at += 1
        if at == len(rows):
            break
    if rows[at:, -1].any():
        return None
    solution = np.zeros(unknowns, dtype=np.int64)
    solution[pivots] = rows[: len(pivots), -1]
    return solution
