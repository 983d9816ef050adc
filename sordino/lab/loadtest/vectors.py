"""The vectors of a load test: pure functions of the seed, so the sum of any set of survivors is known exactly.

The vectors come from a keystream made here, without `secagg.masking`, which the load test checks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from sordino.lab.loadtest.faults import digest

Words: TypeAlias = NDArray[np.unsignedinteger[Any]]
_BLOCK: Final = 16


def vector(seed: int, round_: int, attempt: int, identity: bytes, *, dim: int, bits: int) -> Words:
    """One participant's vector: uniform modulo 2^bits, words of the smallest type that holds ``bits`` bits.

    Args:
        identity: the participant's public key, 32 bytes.
        dim: of the vector that is sent, padding included.
    """
    dtype = words_of(bits)
    key = digest(b"vector", seed, round_, attempt, identity)[:16]
    size = dim * dtype.itemsize
    stream = np.empty(size + _BLOCK, dtype=np.uint8)  # update_into requires room for one block more
    Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK))).encryptor().update_into(bytes(size), stream.data)
    words: Words = stream[:size].view(dtype)
    words &= dtype.type((1 << bits) - 1)
    return words


def words_of(bits: int) -> np.dtype[Any]:
    """The smallest little-endian unsigned word that holds ``bits`` bits, 1 to 62."""
    return np.dtype(f"<u{next(size for size in (1, 2, 4, 8) if 8 * size >= bits)}")


def plain_sum(seed: int, round_: int, attempt: int, identities: Iterable[bytes], *, dim: int, bits: int) -> Words:
    """The sum of these participants' vectors modulo 2^bits, without any mask."""
    dtype = words_of(bits)
    total: Words = np.zeros(dim, dtype=dtype)
    for identity in identities:
        total += vector(seed, round_, attempt, identity, dim=dim, bits=bits)  # wraps at the word, a multiple of 2^bits
    total &= dtype.type((1 << bits) - 1)
    return total


def sum_digest(total: Words) -> str:
    """SHA-256 of the words, hexadecimal: the field ``sum_sha256`` of `server.events.RoundCompleted`."""
    return hashlib.sha256(total.tobytes()).hexdigest()
