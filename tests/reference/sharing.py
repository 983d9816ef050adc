"""Shamir's secret sharing, symbol by symbol, by the textbook ([Sha79]); and the random symbols it needs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import combinations
from math import prod

P = 65521
SYMBOLS = 16  # of a secret, and of a share


class Stream:
    """Random bytes, taken in order; `taken` is what was consumed."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        if self._at + count > len(self._data):
            raise ValueError("the listed randomness is used up")
        self._at += count
        return self._data[self._at - count : self._at]

    @property
    def taken(self) -> bytes:
        return self._data[: self._at]


def listed_bytes(name: str, count: int) -> bytes:
    """Bytes for a vector: SHA-256 of the name and a counter. Random to look at, the same in every run."""
    blocks = (hashlib.sha256(f"sordino test vectors: {name}: {i}".encode()).digest() for i in range(-(-count // 32)))
    return b"".join(blocks)[:count]


def random_symbols(count: int, stream: Stream) -> list[int]:
    """Words of two bytes, little-endian, in order; those from 65521 up are skipped."""
    symbols: list[int] = []
    while len(symbols) < count:
        word = int.from_bytes(stream.take(2), "little")
        if word < P:
            symbols.append(word)
    return symbols


def share(secret: Sequence[int], threshold: int, xs: Sequence[int], stream: Stream) -> list[list[int]]:
    """The share of each holder in ``xs``.

    Coefficients are drawn in the order: that of x for every symbol, that of x^2 for every symbol, and so on.
    """
    if not 2 <= threshold <= len(xs) or len(set(xs)) < len(xs) or not all(1 <= x < P for x in xs):
        raise ValueError("threshold or points out of range")
    if not secret or not all(0 <= symbol < P for symbol in secret):
        raise ValueError("a symbol out of range")
    rows = [list(secret)] + [random_symbols(len(secret), stream) for _ in range(threshold - 1)]
    return [[sum(row[s] * x**power for power, row in enumerate(rows)) % P for s in range(len(secret))] for x in xs]


def lagrange_weight(xs: Sequence[int], i: int) -> int:
    """What the value at ``xs[i]`` counts for the value at 0: the product over j != i of x_j / (x_j - x_i)."""
    others = [x for j, x in enumerate(xs) if j != i]
    return prod(others) * pow(prod(x - xs[i] for x in others), -1, P) % P


def rebuild(xs: Sequence[int], shares: Sequence[Sequence[int]], threshold: int) -> list[int]:
    """The secret from the first ``threshold`` shares."""
    if not 2 <= threshold <= len(xs) or len(set(xs)) < len(xs) or not all(1 <= x < P for x in xs):
        raise ValueError("threshold or points out of range")
    if len(shares) != len(xs) or not all(0 <= symbol < P for row in shares for symbol in row):
        raise ValueError("shares out of range")
    weights = [lagrange_weight(xs[:threshold], i) for i in range(threshold)]
    return [sum(w * row[s] for w, row in zip(weights, shares, strict=False)) % P for s in range(len(shares[0]))]


def value_at(xs: Sequence[int], ys: Sequence[int], x: int) -> int:
    """Of the polynomial of degree len(xs) - 1 through these points, by Lagrange's formula."""
    total = 0
    for i, y in enumerate(ys):
        others = [one for j, one in enumerate(xs) if j != i]
        total += y * prod(x - one for one in others) * pow(prod(xs[i] - one for one in others), -1, P)
    return total % P


def misfits(xs: Sequence[int], shares: Sequence[Sequence[int]], threshold: int) -> set[int] | None:
    """The points whose shares don't lie on the polynomials of the others; None if they can't be identified.

    At most (m - threshold) / 2 of m values of a symbol may be wrong: then the polynomial is unique. All are tried.
    """
    wrong: set[int] = set()
    most = (len(xs) - threshold) // 2
    for symbol in range(len(shares[0])):
        values = [row[symbol] for row in shares]
        choices = (left_out for count in range(most + 1) for left_out in combinations(range(len(xs)), count))
        for left_out in choices:
            kept = [i for i in range(len(xs)) if i not in left_out]
            base, rest = kept[:threshold], kept[threshold:]
            points, known = [xs[i] for i in base], [values[i] for i in base]
            if all(value_at(points, known, xs[i]) == values[i] for i in rest):
                wrong |= {xs[i] for i in left_out}
                break
        else:
            return None
    return wrong if len(xs) - len(wrong) >= threshold else None


def symbol_bytes(symbols: Sequence[int]) -> bytes:
    """Two bytes a symbol, little-endian."""
    return b"".join(symbol.to_bytes(2, "little") for symbol in symbols)


def bytes_symbols(data: bytes) -> list[int]:
    """Inverse of `symbol_bytes`; symbols may be out of range."""
    return [int.from_bytes(data[at : at + 2], "little") for at in range(0, len(data), 2)]
