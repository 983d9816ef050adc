"""Vectors modulo 2^B: masks as words of a keystream ([BIK+17] section 4), and the packed form on the wire."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd

from tests.reference.aes import keystream

LARGEST_BITS = 62


def word_bytes(bits: int) -> int:
    """Bytes of a value's word: the smallest of 1, 2, 4 and 8 that holds B bits."""
    if not 1 <= bits <= LARGEST_BITS:
        raise ValueError("bits out of range")
    return min(size for size in (1, 2, 4, 8) if bits <= 8 * size)


def mask(key: bytes, dim: int, bits: int) -> list[int]:
    """The words of the keystream, little-endian, each modulo 2^B."""
    size = word_bytes(bits)
    stream = keystream(key, size * dim)
    return [int.from_bytes(stream[size * i : size * (i + 1)], "little") % 2**bits for i in range(dim)]


def add_masks(vector: Sequence[int], masks: Iterable[tuple[bytes, int]], bits: int) -> list[int]:
    """The vector with each mask added (+1) or subtracted (-1)."""
    total = list(vector)
    for key, sign in masks:
        words = mask(key, len(total), bits)
        total = [(value + sign * word) % 2**bits for value, word in zip(total, words, strict=True)]
    return total


def add_vectors(vectors: Iterable[Sequence[int]], dim: int, bits: int) -> list[int]:
    total = [0] * dim
    for vector in vectors:
        total = [(a + b) % 2**bits for a, b in zip(total, vector, strict=True)]
    return total


def packed_bytes(dim: int, bits: int) -> int:
    """ceil(d B / 8)."""
    return -(-dim * bits // 8)


def pack(values: Sequence[int], bits: int) -> bytes:
    """Planar: groups of G values, one from each plane, fill W words; the words are laid out in planes as well."""
    width = 8 * word_bytes(bits)
    if not all(0 <= value < 2**bits for value in values):
        raise ValueError("a value does not fit")
    group, words = width // gcd(bits, width), bits // gcd(bits, width)
    groups = len(values) // group
    planes = [[0] * groups for _ in range(words)]
    for j in range(groups):
        joined = sum(values[g * groups + j] << (g * bits) for g in range(group))
        for k in range(words):
            planes[k][j] = (joined >> (k * width)) % 2**width
    packed = b"".join(word.to_bytes(width // 8, "little") for plane in planes for word in plane)
    rest = values[group * groups :]
    tail = sum(value << (i * bits) for i, value in enumerate(rest))
    return packed + tail.to_bytes(packed_bytes(len(rest), bits), "little")


def unpack(data: bytes, dim: int, bits: int) -> list[int]:
    """Inverse of `pack`; refuses a wrong length and unused bits that are set."""
    width = 8 * word_bytes(bits)
    if len(data) != packed_bytes(dim, bits):
        raise ValueError("wrong length")
    group, words = width // gcd(bits, width), bits // gcd(bits, width)
    groups, rest = divmod(dim, group)
    values = [0] * dim
    for j in range(groups):
        joined = 0
        for k in range(words):
            at = (k * groups + j) * width // 8
            joined |= int.from_bytes(data[at : at + width // 8], "little") << (k * width)
        for g in range(group):
            values[g * groups + j] = (joined >> (g * bits)) % 2**bits
    tail = int.from_bytes(data[words * groups * width // 8 :], "little")
    if tail >= 2 ** (rest * bits):
        raise ValueError("unused bits are set")
    for i in range(rest):
        values[group * groups + i] = (tail >> (i * bits)) % 2**bits
    return values
