"""X25519 in Python's integers ([RFC 7748]); Ed25519 from the library ([RFC 8032])."""

from __future__ import annotations

from functools import lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

P = 2**255 - 19
A24 = 121665
BASE_POINT = (9).to_bytes(32, "little")


@lru_cache(1 << 12)
def x25519(scalar: bytes, u: bytes) -> bytes:
    """[RFC 7748] section 5: decode both, climb the Montgomery ladder, encode the result."""
    k = int.from_bytes(scalar, "little")
    k &= ~7  # the three lowest bits
    k &= (1 << 255) - 1
    k |= 1 << 254
    x_1 = int.from_bytes(u, "little") & ((1 << 255) - 1)

    x_2, z_2, x_3, z_3, swap = 1, 0, x_1, 1, 0
    for t in reversed(range(255)):
        k_t = (k >> t) & 1
        if swap ^ k_t:
            x_2, x_3, z_2, z_3 = x_3, x_2, z_3, z_2
        swap = k_t
        a, b = x_2 + z_2, x_2 - z_2
        aa, bb = a * a % P, b * b % P
        e = aa - bb
        da, cb = (x_3 - z_3) * a % P, (x_3 + z_3) * b % P
        x_3 = (da + cb) ** 2 % P
        z_3 = x_1 * (da - cb) ** 2 % P
        x_2 = aa * bb % P
        z_2 = e * (aa + A24 * e) % P
    if swap:
        x_2, z_2 = x_3, z_3
    return (x_2 * pow(z_2, P - 2, P) % P).to_bytes(32, "little")


def x25519_public(scalar: bytes) -> bytes:
    return x25519(scalar, BASE_POINT)


def agreement(scalar: bytes, u: bytes) -> bytes | None:
    """The shared secret; None for a key of another length than 32 bytes and for an all-zero result."""
    if len(u) != 32:
        return None
    shared = x25519(scalar, u)
    return None if shared == bytes(32) else shared


def ed25519_public(seed: bytes) -> bytes:
    """The public key of a 32-byte seed."""
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def ed25519_sign(seed: bytes, message: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(seed).sign(message)


def ed25519_valid(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the signature verifies; anything malformed doesn't."""
    if len(public) != 32 or len(signature) != 64:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
