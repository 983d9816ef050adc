"""Keys of X25519 and ML-KEM-768 together (docs/protocol.md, *Hybrid keys*). ML-KEM is kyber-py's, after FIPS 203."""

from __future__ import annotations

from functools import lru_cache

from kyber_py.ml_kem import ML_KEM_768

from tests.reference.curves import agreement, x25519_public
from tests.reference.hashing import hkdf_sha256, labelled, labelled_hash

CIPHERTEXT = 1088
WRAPPED = CIPHERTEXT + 32
# Rounds are played again with other sides by the reference: equal keys and coins come back, at 10 ms each.
_remembered = lru_cache(1 << 12)
_keygen = _remembered(ML_KEM_768._keygen_internal)
_encapsulate = _remembered(ML_KEM_768._encaps_internal)
_decapsulate = _remembered(ML_KEM_768.decaps)


class HybridKey:
    """A private key: 32 bytes of X25519, and the 64 bytes d, z."""

    def __init__(self, private: bytes, seed: bytes) -> None:
        self.private = private
        encapsulation, self.decapsulation = _keygen(seed[:32], seed[32:])
        self.public = x25519_public(private) + encapsulation

    def agree(self, public: bytes) -> bytes | None:
        """The X25519 agreement; None for a key that isn't one."""
        return agreement(self.private, public[:32])

    def decapsulate(self, ciphertext: bytes) -> bytes:
        """Some secret, for any ciphertext."""
        return _decapsulate(self.decapsulation, ciphertext)


def mask_key(secret: bytes, private: bytes, round_context: bytes, identity: bytes) -> HybridKey:
    """From the 16 symbols that are shared; ``private``: the X25519 key that follows from them."""
    labels = "sordino/v1/mask-kem-seed-d", "sordino/v1/mask-kem-seed-z"
    return HybridKey(private, b"".join(labelled_hash(label, round_context, identity, secret) for label in labels))


def encapsulate(public: bytes, coins: bytes) -> tuple[bytes, bytes] | None:
    """Secret and ciphertext; None for a key that isn't one."""
    try:
        return _encapsulate(public[32:], coins)
    except ValueError:
        return None


def sends_seed(one: int, other: int) -> bool:
    """The member with the lower position does where the sum of both is even."""
    return one == (min if (one + other) % 2 == 0 else max)(one, other)


def pair_seed(secret: bytes, context: bytes, sender: bytes, receiver: bytes) -> bytes:
    """From the sender's 16 symbols."""
    return labelled_hash("sordino/v1/pair-seed", context, sender, receiver, secret)


def padded(
    seed: bytes, shared: bytes, secret: bytes, ciphertext: bytes, ends: tuple[bytes, bytes], context: bytes
) -> bytes:
    """A seed, encrypted or decrypted; ``ends``: sender and receiver."""
    key = hkdf_sha256(
        shared + secret, context, labelled("sordino/v1/pair-seed-wrapping", *ends, ciphertext, context), 32
    )
    return bytes(a ^ b for a, b in zip(seed, key, strict=True))
