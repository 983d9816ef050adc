"""Shamir secret sharing of short symbol vectors over the prime field of 65521 elements ([Sha79]).

A secret is a vector of symbols below 65521, each shared by a separate polynomial of degree threshold - 1 whose value at
0 is the symbol; the share of holder x is the vector of the values at x. Any ``threshold`` shares give the secret; fewer
are independent of it. Sixteen uniform symbols carry 255.9 bits; callers hash them to key bytes.

Nothing here detects a wrong share: callers check the rebuilt secret against its public key or commitment.
Running times depend on sizes only up to what BLAS and integer division do; they are not constant by proof.
"""

from collections.abc import Sequence
from functools import lru_cache
from operator import index
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from secagg.encoding import RandomBytes

Symbols: TypeAlias = NDArray[np.uint16]
_Unsigned = TypeVar("_Unsigned", np.uint32, np.uint64)

PRIME: Final = 65521  # the largest prime below 2^16: a symbol fits two bytes
SYMBOLS: Final = 16  # in one secret

# Why floating point is exact here. A product of two symbols is at most (p - 1)^2 < 2^32, and a sum of t of them, with
# t < p, is below 2^16 * 2^32 = 2^48 < 2^53. Every partial sum is thus an integer that float64 holds exactly: BLAS may
# add in any order and fuse multiplications with additions, and the result is the integer itself.
_EXACT_BELOW: Final = 2**53
assert (PRIME - 1) * (PRIME - 1) ** 2 < _EXACT_BELOW

# Elements of 4 or 8 bytes that one step of a long computation holds: about the level-2 cache, and far fewer than the
# shares of a thousand dealers.
_BLOCK_ELEMENTS: Final = 1 << 17

# Up to this many inverses, Python's pow is faster than thirty multiplications of arrays.
_FEW: Final = 256

# Each pass of the rejection misses a word with probability 15 / 65536, so a sound source does not see a fourth or fifth
# pass; a broken one must not block the caller.
_MAX_PASSES: Final = 32


def random_symbols(count: int, random_bytes: RandomBytes) -> Symbols:
    """Draw symbols that are uniform below 65521 and independent.

    Little-endian 16-bit words of the source are taken in order and those from 65521 up are discarded; taking them
    modulo 65521 instead would make the 15 smallest symbols twice as likely as the others.

    Args:
        random_bytes: called for exactly the bytes that are still missing.

    Returns:
        shape (count,), uint16.

    Raises:
        ValueError: ``count`` is negative, or the source returned the wrong number of bytes, or is evidently not random.
    """
    if count < 0:
        raise ValueError(f"cannot draw {count} symbols")
    symbols = np.empty(count, dtype=np.uint16)
    filled = 0
    for _ in range(_MAX_PASSES):
        if filled == count:
            return symbols
        wanted = 2 * (count - filled)
        drawn = random_bytes(wanted)
        if len(drawn) != wanted:
            raise ValueError(f"the random source returned {len(drawn)} bytes instead of {wanted}")
        words = np.frombuffer(drawn, dtype="<u2")
        accepted = words[words < PRIME]
        symbols[filled : filled + accepted.size] = accepted
        filled += accepted.size
    raise ValueError(f"the random source gave hardly any word below {PRIME}")


def split(secret: Symbols, threshold: int, xs: Sequence[int], random_bytes: RandomBytes) -> Symbols:
    """Share a secret, or several at once, among the holders at the points ``xs``.

    Source: [Sha79], with fresh uniform coefficients for every symbol, the highest one included (it may be 0).

    Args:
        secret: symbols below 65521, shape (s,) or (..., s), uint16.
        threshold: shares that give the secret back, from 2 to len(xs).
        xs: the holders' points, distinct, from 1 to 65520.

    Returns:
        shape (len(xs), ..., s), uint16: row i is the share of the holder at ``xs[i]``.

    Raises:
        ValueError: an argument has the wrong type, shape or range.
    """
    points = _checked_points(xs)
    _check_threshold(threshold, len(points), "holders")
    secrets = _checked_symbols(secret, "a secret")
    if secrets.ndim == 0 or secrets.size == 0:
        raise ValueError("a secret has at least one symbol")

    coefficients = np.empty((threshold, secrets.size), dtype=np.float64)
    coefficients[0] = secrets.reshape(-1)
    fresh = random_symbols((threshold - 1) * secrets.size, random_bytes)
    coefficients[1:] = fresh.reshape(threshold - 1, secrets.size)
    shares = _modulo(_powers(points, threshold) @ coefficients)
    return shares.reshape(len(points), *secrets.shape)


def combine(xs: Sequence[int], shares: Symbols, threshold: int) -> Symbols:
    """Rebuild a secret, or several with the same holders, from the first ``threshold`` shares given.

    Args:
        xs: the points of the holders that sent shares, distinct, from 1 to 65520.
        shares: shape (len(xs), ..., s), uint16, row i from the holder at ``xs[i]``; symbols below 65521.
        threshold: that of `split`.

    Returns:
        shape (..., s), uint16: the secret, if these shares are right.

    Raises:
        ValueError: too few shares, or an argument has the wrong type, shape or range.
    """
    points = _checked_points(xs)
    _check_threshold(threshold, len(points), "shares")
    symbols = _checked_symbols(shares, "a share")
    if symbols.ndim < 2 or symbols.shape[0] != len(points):
        raise ValueError(f"{len(points)} holders need the same number of rows of shares, not shape {symbols.shape}")
    used = symbols[:threshold]
    weights = lagrange_at_zero(points[:threshold]).astype(np.float64)
    columns = used.reshape(threshold, -1)
    secret = np.empty(columns.shape[1], dtype=np.uint16)
    step = max(1, _BLOCK_ELEMENTS // threshold)
    for start in range(0, secret.size, step):
        secret[start : start + step] = _modulo(weights @ columns[:, start : start + step].astype(np.float64))
    return secret.reshape(used.shape[1:])


def combine_each(xs: ArrayLike, shares: Symbols) -> Symbols:
    """Rebuild many secrets, each from its own holders; every given share is used.

    Args:
        xs: shape (m, t), integers: row i holds the distinct points of the holders of secret i, with t the threshold.
        shares: shape (m, t, s), uint16, symbols below 65521: rows as in ``xs``.

    Returns:
        shape (m, s), uint16.

    Raises:
        ValueError: an argument has the wrong type, shape or range.
    """
    weights = lagrange_at_zero(xs).astype(np.float64)
    symbols = _checked_symbols(shares, "a share")
    if weights.ndim != 2 or symbols.ndim != 3 or symbols.shape[:2] != weights.shape:
        raise ValueError(f"points of shape {weights.shape} do not fit shares of shape {symbols.shape}")
    return _modulo(np.matmul(weights[:, None, :], symbols.astype(np.float64))[:, 0, :])


def lagrange_at_zero(xs: ArrayLike) -> NDArray[np.int64]:
    """Weights, int64, with which values at ``xs`` add up to the polynomial's value at 0: products of x_j / (x_j - x_i).

    Args:
        xs: shape (t,), or (..., t) for many sets of points at once: integers from 1 to 65520, distinct in a set.

    Raises:
        ValueError: a point lies outside the range or is repeated, or a set is empty.
    """
    points = np.asarray(xs)
    if points.ndim == 0 or points.size == 0:
        raise ValueError("a set of points has at least one point")
    if points.dtype.kind not in "iu":
        raise ValueError(f"points must be integers, not {points.dtype}")
    if points.min() < 1 or points.max() >= PRIME:
        raise ValueError(f"points must lie between 1 and {PRIME - 1}")
    count = points.shape[-1]
    if count >= PRIME:
        raise ValueError(f"{count} points cannot be distinct below {PRIME}")
    rows = points.reshape(-1, count).astype(np.uint32)
    weights = np.empty(rows.shape, dtype=np.int64)
    step = max(1, _BLOCK_ELEMENTS // count**2)
    for start in range(0, len(rows), step):
        weights[start : start + step] = _weights(rows[start : start + step])
    return weights.reshape(points.shape)


def _weights(points: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Lagrange weights at 0 of some sets of points, shape (m, t) to (m, t)."""
    differences = points[:, None, :] + (np.uint32(PRIME) - points[:, :, None])  # x_j - x_i at [:, i, j], plus p
    np.subtract(differences, np.uint32(PRIME), out=differences, where=differences >= PRIME)
    # Put x_i itself where i = j: then the product along j is x_i times the product of the differences, and the weight
    # is (product of all x_j) / that.
    diagonal = np.arange(points.shape[1])
    differences[:, diagonal, diagonal] = points
    divisors = _product(differences)
    if not divisors.all():
        raise ValueError("points must be distinct")
    return _times(_product(points)[:, None], _inverse(divisors))


def _times(left: NDArray[np.uint32], right: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Multiply modulo p. A product is at most (p - 1)^2 < 2^32, so 32 bits hold it."""
    return _reduced(left * right)


def _reduced(values: NDArray[_Unsigned]) -> NDArray[_Unsigned]:
    """Reduce modulo p, in place. Subtracting a multiple of the quotient is several times quicker than %: numpy divides
    by a constant with vector instructions.
    """
    prime = values.dtype.type(PRIME)
    quotient = values // prime
    quotient *= prime
    values -= quotient
    return values


def _product(factors: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Multiply along the last axis modulo p, halving it again and again."""
    while (size := factors.shape[-1]) > 1:
        half = size // 2
        merged = _times(factors[..., :half], factors[..., half : 2 * half])
        factors = np.concatenate([merged, factors[..., 2 * half :]], axis=-1) if size % 2 else merged
    return factors[..., 0]


def _inverse(values: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Invert modulo p: few one by one, many at once by Fermat's theorem, a^(p - 2)."""
    if values.size <= _FEW:
        inverses = [pow(value, -1, PRIME) for value in values.reshape(-1).tolist()]
        return np.array(inverses, dtype=np.uint32).reshape(values.shape)
    result = np.ones_like(values)
    square = values
    exponent = PRIME - 2
    while exponent:
        if exponent & 1:
            result = _times(result, square)
        square = _times(square, square)
        exponent >>= 1
    return result


@lru_cache(maxsize=2)
def _powers(points: tuple[int, ...], threshold: int) -> NDArray[np.float64]:
    """Return the Vandermonde matrix x_i^j mod p, shape (len(points), threshold).

    On the complete graph all participants of a process share it. Two are kept: 5 MB each at n = 1000.
    """
    columns = np.ones((threshold, len(points)), dtype=np.uint32)
    if threshold > 1:
        columns[1] = points
    done = 2
    while done < threshold:  # x^done, x^(done + 1), ... from x, x^2, ... by one multiplication with x^(done - 1)
        more = min(done - 1, threshold - done)
        columns[done : done + more] = _times(columns[1 : 1 + more], columns[done - 1])
        done += more
    matrix = columns.T.astype(np.float64)
    matrix.flags.writeable = False
    return matrix


def forget_tables() -> None:
    """Delete the cached powers of points, for benchmarks of many participants in one process."""
    _powers.cache_clear()


def _modulo(values: NDArray[np.float64]) -> Symbols:
    """Reduce exact integers, from 0 to 2^53, modulo p."""
    return _reduced(values.astype(np.uint64)).astype(np.uint16)


def _checked_points(xs: Sequence[int]) -> tuple[int, ...]:
    try:
        points = tuple(index(x) for x in xs)
    except TypeError as error:
        raise ValueError("holders' points must be integers") from error
    if len(set(points)) != len(points):
        raise ValueError("holders' points must be distinct")
    if not all(1 <= x < PRIME for x in points):
        raise ValueError(f"holders' points must lie between 1 and {PRIME - 1}")
    return points


def _check_threshold(threshold: int, available: int, what: str) -> None:
    if threshold < 2:
        raise ValueError(f"a threshold of {threshold} hides nothing; it must be at least 2")
    if threshold > available:
        raise ValueError(f"threshold {threshold} exceeds the {available} {what} there are")


def _checked_symbols(values: NDArray[Any], what: str) -> Symbols:
    if values.dtype != np.uint16:
        raise ValueError(f"{what} consists of uint16 symbols, not {values.dtype}")
    if values.size and values.max() >= PRIME:
        raise ValueError(f"{what} has a symbol of {PRIME} or more")
    return values
