"""Who leaves which round at which phase, and what everybody sends: pure functions of the seed.

Client processes and their parent compute the same without talking to each other, so the parent knows the plain sum of
any set of survivors exactly. The vectors come from a keystream made here with nothing of `secagg.masking`, whose work
is among what is checked.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from secagg.messages import PHASES

Words: TypeAlias = NDArray[np.unsignedinteger[Any]]

PHASE_NAMES: Final[Mapping[str, str]] = {
    "advertise-keys": "AdvertiseKeys",
    "share-keys": "ShareKeys",
    "masked-input": "MaskedInputCollection",
    "consistency-check": "ConsistencyCheck",
    "unmasking": "Unmasking",
}
"""What the command line calls a phase, and what the protocol does."""
ANY: Final = "any"
STYLES: Final = ("disconnect", "silent")

_BLOCK: Final = 16
_LABEL: Final = b"sordino/v1/load test/"


@dataclass(frozen=True)
class Drop:
    """How one participant leaves one attempt."""

    phase: str
    """One of `secagg.messages.PHASES`: it has done everything before, and doesn't answer in this one."""
    within_upload: bool = False
    """With `disconnect` in MaskedInputCollection: the vector is offered, and the connection cut while it travels."""


def dropped_count(clients: int, share: float) -> int:
    """round(share x clients), halves upwards."""
    return math.floor(share * clients + 0.5)


def drops_of(seed: int, round_: int, attempt: int, *, clients: int, share: float, at: str = ANY) -> dict[int, Drop]:
    """Who leaves an attempt, and how.

    Args:
        seed: of the load test.
        clients: participants are numbered 0..clients-1, as in the roster.
        share: of them that leave, in [0, 1].
        at: a name in ``PHASE_NAMES``, or ``any``: each one's phase is drawn.

    Returns:
        Exactly ``dropped_count(clients, share)`` participants.
    """
    draws = {who: digest(b"drop", seed, round_, attempt, who) for who in range(clients)}
    leaving = sorted(draws, key=lambda who: draws[who])[: dropped_count(clients, share)]
    return {who: _drop(digest(b"phase", seed, round_, attempt, who), at) for who in sorted(leaving)}


def _drop(draw: bytes, at: str) -> Drop:
    phase = PHASES[int.from_bytes(draw[:8], "little") % len(PHASES)] if at == ANY else PHASE_NAMES[at]
    return Drop(phase, phase == "MaskedInputCollection" and draw[8] < 128)


def vector(seed: int, round_: int, attempt: int, identity: bytes, *, dim: int, bits: int) -> Words:
    """One participant's vector: uniform modulo 2^bits, words of the smallest type that holds ``bits`` bits.

    Args:
        identity: the participant's public key, 32 bytes.
        dim: of the vector as it travels, padding included.
    """
    dtype = words_of(bits)
    key = digest(b"vector", seed, round_, attempt, identity)[:16]
    size = dim * dtype.itemsize
    stream = np.empty(size + _BLOCK, dtype=np.uint8)  # room for one block more is asked for
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
    """SHA-256 of the words, hexadecimal: what the event ``round_completed`` names."""
    return hashlib.sha256(total.tobytes()).hexdigest()


def digest(purpose: bytes, seed: int, round_: int, attempt: int, who: int | bytes) -> bytes:
    """32 bytes that follow from all of these."""
    name = who if isinstance(who, bytes) else who.to_bytes(8, "little")
    numbers = b"".join(number.to_bytes(16, "little", signed=True) for number in (seed, round_, attempt))
    return hashlib.sha256(_LABEL + purpose + b"\0" + numbers + name).digest()
