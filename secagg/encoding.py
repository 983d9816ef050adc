"""Labelled fields as bytes that are unambiguous, and their SHA-256: the input of every hash, signature and key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np

RandomBytes = Callable[[int], bytes]
"""Number of bytes -> random bytes: from the operating system, or a deterministic source in tests."""


def encode(label: str, *fields: bytes) -> bytes:
    """Join a domain label (ASCII, ``sordino/v1/...``) and fields such that different inputs give different bytes.

    Returns:
        The label, the number of fields and the fields, each preceded by its length (8 bytes, little-endian).
    """
    parts = [_head(label, len(fields))]
    for field in fields:
        length = len(field)
        parts += (_LENGTHS[length] if length < 2048 else number(length), field)
    return b"".join(parts)


@lru_cache(maxsize=1024)  # one for each purpose and each size of a set
def _head(label: str, fields: int) -> bytes:
    name = label.encode("ascii")
    return number(len(name)) + name + number(fields)


def digest(label: str, *fields: bytes) -> bytes:
    """SHA-256 of `encode`: 32 bytes."""
    return hashlib.sha256(encode(label, *fields)).digest()


def digest_of_rows(label: str, *fields: bytes, rows: bytes) -> bytes:
    """`digest` of some fields and of ``rows``, many fields of 32 bytes, concatenated; fast for thousands of them."""
    cells = np.frombuffer(rows, dtype=np.uint8).reshape(-1, 32)
    written = np.empty((len(cells), 40), dtype=np.uint8)
    written[:, :8] = np.frombuffer(number(32), dtype=np.uint8)
    written[:, 8:] = cells
    first = [part for field in fields for part in (number(len(field)), field)]
    return hashlib.sha256(b"".join((_head(label, len(fields) + len(cells)), *first, written.tobytes()))).digest()


def number(value: int) -> bytes:
    """A counter as a field: 8 bytes, little-endian."""
    return value.to_bytes(8, "little")


_LENGTHS: Final = [number(length) for length in range(2048)]  # as long as a hybrid key, and a wrapped seed
