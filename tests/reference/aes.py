"""AES used one block at a time: counter-mode keystreams and AES-GCM built from the block cipher ([SP 800-38D])."""

from __future__ import annotations

from functools import lru_cache

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes


def encrypt_blocks(key: bytes, blocks: list[bytes]) -> list[bytes]:
    """AES of each block by itself (16, 24 or 32 bytes of key)."""
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    joined = cipher.update(b"".join(blocks))
    return [joined[at : at + 16] for at in range(0, len(joined), 16)]


def keystream(key: bytes, length: int) -> bytes:
    """AES(00^12 || 2) || AES(00^12 || 3) || ..., the counter in 4 bytes, big-endian."""
    count = -(-length // 16)
    assert count <= 2**32 - 2
    counters = [bytes(12) + counter.to_bytes(4, "big") for counter in range(2, 2 + count)]
    return b"".join(encrypt_blocks(key, counters))[:length]


def gf128_times(x: int, y: int) -> int:
    """[SP 800-38D] Algorithm 1: bit 0 of the specification is the highest bit of the integer."""
    z, v = 0, y
    for i in range(128):
        if x >> (127 - i) & 1:
            z ^= v
        v = (v >> 1) ^ (0xE1 << 120 if v & 1 else 0)
    return z


def ghash(h: bytes, data: bytes) -> bytes:
    """[SP 800-38D] Algorithm 2, over whole blocks."""
    y = 0
    for at in range(0, len(data), 16):
        y = gf128_times(y ^ int.from_bytes(data[at : at + 16], "big"), int.from_bytes(h, "big"))
    return y.to_bytes(16, "big")


@lru_cache(1 << 12)  # who opens needs it again, and so do the same rounds with other sides by the reference
def _tag(key: bytes, ciphertext: bytes, associated: bytes) -> bytes:
    """The tag for the all-zero nonce of 12 bytes; block 1 of the counter masks it."""
    h, first = encrypt_blocks(key, [bytes(16), bytes(15) + b"\x01"])
    padded = b"".join(part + bytes(-len(part) % 16) for part in (associated, ciphertext))
    lengths = (8 * len(associated)).to_bytes(8, "big") + (8 * len(ciphertext)).to_bytes(8, "big")
    return bytes(a ^ b for a, b in zip(ghash(h, padded + lengths), first, strict=True))


def gcm_seal(key: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """Ciphertext and tag under the all-zero nonce."""
    ciphertext = bytes(a ^ b for a, b in zip(plaintext, keystream(key, len(plaintext)), strict=True))
    return ciphertext + _tag(key, ciphertext, associated)


def gcm_open(key: bytes, sealed: bytes, associated: bytes) -> bytes | None:
    """The plaintext, or None if the tag is wrong."""
    if len(sealed) < 16 or _tag(key, sealed[:-16], associated) != sealed[-16:]:
        return None
    return bytes(a ^ b for a, b in zip(sealed[:-16], keystream(key, len(sealed) - 16), strict=True))
