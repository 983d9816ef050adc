"""Where private randomness comes from, and the stream that is made of it.

The core never asks the operating system by itself: the caller passes a function ``n -> n random
bytes`` (``os.urandom`` in deployment, a keyed deterministic stream in tests; no default anywhere). Bulk
randomness is the ChaCha20 keystream of a fresh 256-bit key, one key per call: nothing is shared between
calls, threads or forked processes, and there is no seed to guess. ChaCha20 rather than AES because it is fast
without special instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

RandomBytes = Callable[[int], bytes]
"""``random_bytes(n)`` returns ``n`` fresh uniform bytes."""

KEY_BYTES: Final = 32
_ZEROS: Final = bytes(1 << 16)


class RandomnessFailed(RuntimeError):
    """The source of randomness returned something else than it was asked for. Nothing may be sent."""


class Keystream:
    """The ChaCha20 keystream of one key, zero nonce, from block 0 on. ``key``: 32 bytes, used for this stream only."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise RandomnessFailed(f"a key of {KEY_BYTES} bytes is needed, got {len(key)}")
        self._encryptor = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def fill(self, out: NDArray[np.uint8]) -> None:
        """Overwrite ``out`` (contiguous uint8, any length) with the next bytes of the stream."""
        view = out.data
        for start in range(0, len(view), len(_ZEROS)):
            target = view[start : start + len(_ZEROS)]
            self._encryptor.update_into(memoryview(_ZEROS)[: len(target)], target)

    def __repr__(self) -> str:
        return "Keystream(<secret>)"


def fresh_keystream(random_bytes: RandomBytes) -> Keystream:
    """A keystream under a key drawn now from ``random_bytes``.

    Raises RandomnessFailed: the source returned a wrong length.
    """
    return Keystream(bytes(random_bytes(KEY_BYTES)))


def uniform_below(bound: int, source: Keystream) -> int:
    """An integer exactly uniform on [0, bound), by rejection on the bits that ``bound - 1`` needs.

    Raises ValueError: ``bound`` < 1.
    """
    if bound < 1:
        raise ValueError("bound must be at least 1")
    bits = (bound - 1).bit_length()
    raw = np.empty((bits + 7) // 8, np.uint8)
    while True:
        source.fill(raw)
        candidate = int.from_bytes(raw.tobytes(), "little") & ((1 << bits) - 1)
        if candidate < bound:
            return candidate
