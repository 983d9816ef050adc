"""Keys: identities (Ed25519), agreements (X25519, or with ML-KEM-768) and all that is derived or signed with them.

Each derived key is bound to its purpose, to both parties in their roles and to the context of the attempt. Each signed
statement starts with its own label, so a signature for one purpose is invalid for any other.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

from secagg.encoding import RandomBytes, digest, digest_of_rows, encode, number
from secagg.errors import InvalidKey

if TYPE_CHECKING:
    from hashlib import _Hash

KEY_BYTES: Final = 32
KEM_SEED_BYTES: Final = 64
KEM_CIPHERTEXT_BYTES: Final = 1088
HYBRID_KEY_BYTES: Final = KEY_BYTES + 1184
# Every channel key encrypts exactly one message, so the nonce may be constant.
ZERO_NONCE: Final = bytes(12)


class IdentityKey:
    """A participant's long-lived Ed25519 key. Hides itself in repr."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls, random_bytes: RandomBytes) -> IdentityKey:
        """A fresh identity from 32 random bytes."""
        return cls(Ed25519PrivateKey.from_private_bytes(random_bytes(KEY_BYTES)))

    def sign(self, message: bytes) -> bytes:
        """Ed25519 signature, 64 bytes."""
        return self._private.sign(message)

    def __repr__(self) -> str:
        return f"IdentityKey({self.public.hex()[:12]}…)"


class AgreementKey:
    """A key of one attempt: X25519, or X25519 and ML-KEM-768. Hides itself in repr."""

    def __init__(self, private: bytes, kem_seed: bytes = b"") -> None:
        """Args: private: 32 bytes; kem_seed: 64 bytes (d, then z, in FIPS 203) of a hybrid key."""
        self._private = X25519PrivateKey.from_private_bytes(private)
        self.public = self._private.public_key().public_bytes_raw()
        self._kem = None
        if kem_seed:
            self._kem = MLKEM768PrivateKey.from_seed_bytes(kem_seed)
            self.public += self._kem.public_key().public_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """The X25519 shared secret with a public key of the same kind, 32 bytes.

        Raises InvalidKey: wrong length, or a low-order point, whose result is all zero for any of our keys.
        """
        try:
            if len(public) != len(self.public):
                raise ValueError
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(public[:KEY_BYTES]))
        except ValueError as error:
            raise InvalidKey("the public key is of low order or not 32 bytes long") from error
        if not any(shared):
            raise InvalidKey("the agreement is all zero")
        return shared

    def secrets(self) -> tuple[bytes, bytes]:
        """The private key and the seed that it was made from, as the arguments of this class."""
        return self._private.private_bytes_raw(), b"" if self._kem is None else self._kem.private_bytes_raw()

    def decapsulate(self, ciphertext: bytes) -> bytes:
        """The ML-KEM-768 secret in 1,088 bytes, 32 bytes; of any other such ciphertext a pseudorandom value."""
        assert self._kem is not None  # of a hybrid key
        return self._kem.decapsulate(ciphertext)

    def __repr__(self) -> str:
        return f"AgreementKey({self.public.hex()[:12]}…)"


def encapsulate(public: bytes) -> tuple[bytes, bytes]:
    """An ML-KEM-768 secret, 32 bytes, and its ciphertext, for the owner of a hybrid public key.

    Randomness comes from the library's own generator. Raises InvalidKey: the key's second part isn't valid (FIPS 203,
    section 7.2).
    """
    try:
        return MLKEM768PublicKey.from_public_bytes(public[KEY_BYTES:]).encapsulate()
    except ValueError as error:
        raise InvalidKey("the ML-KEM part of the public key is invalid") from error


def is_kem_key(public: bytes) -> bool:
    """Whether these 1,184 bytes are an ML-KEM-768 public key (FIPS 203, section 7.2)."""
    try:
        MLKEM768PublicKey.from_public_bytes(public)
    except ValueError:
        return False
    return True


def key_parts(public: bytes) -> tuple[bytes, ...]:
    """The public keys in an advertised one, none of which may be advertised twice."""
    return (public[:KEY_BYTES], public[KEY_BYTES:]) if len(public) > KEY_BYTES else (public,)


# Coordinates of the points of order 1, 2, 4 and 8 on the curve and its twist, those that are not reduced included
# (RFC 7748 leaves them valid): 0, 1, -1 and both of order 8, modulo p = 2^255 - 19.
_P: Final = 2**255 - 19
_ORDER_EIGHT: Final = (
    0x00B8495F16056286FDB1329CEB8D09DA6AC49FF1FAE35616AEB8413B7C7AEBE0,
    0x57119FD0DD4E22D8868E1C58C45C44045BEF839C55B1D0B1248C50A3BC959C5F,
)
_LOW_ORDER: Final = frozenset(u.to_bytes(KEY_BYTES, "little") for u in (0, 1, _P - 1, _P, _P + 1, *_ORDER_EIGHT))


def is_low_order(public: bytes) -> bool:
    """Whether agreements with this X25519 key are all zero, or its length is wrong: honest neighbours would abort."""
    if len(public) != KEY_BYTES:
        return True
    return public[:-1] + bytes([public[-1] & 0x7F]) in _LOW_ORDER  # the top bit is ignored


_BLOCK_BYTES: Final = 64  # of SHA-256
_INNER_PAD: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD: Final = bytes(byte ^ 0x5C for byte in range(256))
# An HMAC from copies of this takes 1.2 us where `hmac.digest` takes 2.2, since OpenSSL looks the hash up each time.
_SHA256: Final = hashlib.sha256()


def _hmac_states(key: bytes) -> tuple[_Hash, _Hash]:
    """HMAC-SHA256 (RFC 2104) after the key: the inner and the outer hash."""
    if len(key) > _BLOCK_BYTES:
        key = hashlib.sha256(key).digest()
    padded = key.ljust(_BLOCK_BYTES, b"\0")
    inner, outer = _SHA256.copy(), _SHA256.copy()
    inner.update(padded.translate(_INNER_PAD))
    outer.update(padded.translate(_OUTER_PAD))
    return inner, outer


@lru_cache(maxsize=16)
def _salted(salt: bytes) -> tuple[_Hash, _Hash]:
    """HMAC states of a salt, which is public and common to all keys of an attempt. Copy them, never update them."""
    return _hmac_states(salt)


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """HKDF-SHA256 (RFC 5869) for at most 32 bytes of output; the salt is public."""
    if not 1 <= length <= 32:
        raise ValueError("at most 32 bytes")
    fresh_inner, fresh_outer = _salted(salt)
    inner, outer = fresh_inner.copy(), fresh_outer.copy()
    inner.update(secret)
    outer.update(inner.digest())
    inner, outer = _hmac_states(outer.digest())  # keyed with the pseudorandom key
    inner.update(info + b"\x01")
    outer.update(inner.digest())
    return outer.digest()[:length]


# ---------------------------------------------------------------- the two Shamir secrets


def secret_bytes(symbols: NDArray[np.uint16]) -> bytes:
    """Symbols of a secret or share as bytes: two each, little-endian."""
    return symbols.astype("<u2", copy=False).tobytes()


def mask_private_key(symbols: NDArray[np.uint16], round_context: bytes, identity: bytes) -> bytes:
    """X25519 private key, 32 bytes: the hash of a secret of 16 uniform symbols below 65521 (255.99 bits)."""
    return digest("sordino/v1/mask-private-key", round_context, identity, secret_bytes(symbols))


def mask_key_of(
    symbols: NDArray[np.uint16], round_context: bytes, identity: bytes, *, hybrid: bool = False
) -> AgreementKey:
    """A participant's mask key, from the secret that it shares."""
    private = mask_private_key(symbols, round_context, identity)
    if not hybrid:
        return AgreementKey(private)
    labels = "sordino/v1/mask-kem-seed-d", "sordino/v1/mask-kem-seed-z"
    seed = b"".join(digest(label, round_context, identity, secret_bytes(symbols)) for label in labels)
    return AgreementKey(private, seed)


def self_mask_seed(symbols: NDArray[np.uint16], cohort_context: bytes, identity: bytes) -> bytes:
    """Seed of the self mask from the shared secret: 32 bytes."""
    return digest("sordino/v1/self-mask-seed", cohort_context, identity, secret_bytes(symbols))


def seed_commitment(seed: bytes, cohort_context: bytes, identity: bytes) -> bytes:
    """The dealer's commitment to its self-mask seed: 32 bytes; hiding, since the seed has 256 bits of entropy."""
    return digest("sordino/v1/self-mask-seed-commitment", cohort_context, identity, seed)


def noise_commitment(seed: bytes, part: int, cohort_context: bytes, identity: bytes) -> bytes:
    """A participant's commitment to the seed of one part of its noise, from 0: 32 bytes; hiding, as above."""
    return digest("sordino/v1/noise-commitment", cohort_context, identity, number(part), seed)


def _end(identity: bytes, public: bytes) -> tuple[bytes, bytes]:
    """One of the two parties to a key. The cohort context, which is in every key, binds both parts of a hybrid key."""
    return identity, public[:KEY_BYTES]


def pairwise_mask_key(
    shared: bytes,
    low: tuple[bytes, bytes],
    high: tuple[bytes, bytes],
    bits: int,
    dim: int,
    cohort_context: bytes,
    vector: str = "input",
) -> bytes:
    """AES-128 key of the mask that two participants share.

    Args:
        shared: their X25519 agreement; where keys are hybrid the pair's seed.
        low, high: (identity, public mask key) of the participant with the smaller and the larger identity.
        vector: name of the vector; several vectors of one attempt thus never share a stream.
    """
    ends = (*_end(*low), *_end(*high))
    info = encode("sordino/v1/pairwise-mask", vector.encode(), *ends, number(bits), number(dim), cohort_context)
    return hkdf(shared, cohort_context, info, 16)


def self_mask_key(
    seed: bytes, identity: bytes, bits: int, dim: int, cohort_context: bytes, vector: str = "input"
) -> bytes:
    """AES-128 key of a participant's self mask."""
    info = encode("sordino/v1/self-mask", vector.encode(), identity, number(bits), number(dim), cohort_context)
    return hkdf(seed, cohort_context, info, 16)


# ---------------------------------------------------------------- seeds of pairs, where keys are hybrid

WRAPPED_BYTES: Final = KEM_CIPHERTEXT_BYTES + 32


def sends_seed(one: int, other: int) -> bool:
    """Whether the first of two participants, by position in the roster, makes the seed of their mask: one of them does,
    and everybody for half of its pairs.
    """
    return (one < other) == ((one + other) % 2 == 0)


def pair_seed(symbols: NDArray[np.uint16], cohort_context: bytes, sender: bytes, receiver: bytes) -> bytes:
    """The seed of a pair's mask, 32 bytes, from the sender's shared secret and both identities."""
    return digest("sordino/v1/pair-seed", cohort_context, sender, receiver, secret_bytes(symbols))


def wrap_seed(
    seed: bytes, shared: bytes, public: bytes, sender: bytes, receiver: bytes, cohort_context: bytes
) -> bytes:
    """A pair's seed for its receiver: a ciphertext and the encrypted seed, 1,120 bytes.

    Args:
        shared: X25519 agreement of both mask keys. public: the receiver's mask key. sender, receiver: identities.

    Raises InvalidKey: as `encapsulate`.
    """
    secret, ciphertext = encapsulate(public)
    return ciphertext + _xor(seed, _wrapping_key(shared + secret, ciphertext, sender, receiver, cohort_context))


def unwrap_seed(
    wrapped: bytes, shared: bytes, key: AgreementKey, sender: bytes, receiver: bytes, cohort_context: bytes
) -> bytes:
    """The seed in 1,120 bytes, for the owner of a mask key: some seed, whatever the bytes are."""
    ciphertext, encrypted = wrapped[:KEM_CIPHERTEXT_BYTES], wrapped[KEM_CIPHERTEXT_BYTES:]
    secret = shared + key.decapsulate(ciphertext)
    return _xor(encrypted, _wrapping_key(secret, ciphertext, sender, receiver, cohort_context))


def _wrapping_key(secret: bytes, ciphertext: bytes, sender: bytes, receiver: bytes, cohort_context: bytes) -> bytes:
    info = encode("sordino/v1/pair-seed-wrapping", sender, receiver, ciphertext, cohort_context)
    return hkdf(secret, cohort_context, info, 32)


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).to_bytes(32, "little")


class ShareChannel:
    """Seals and opens the one message in each direction between two neighbours."""

    def __init__(
        self,
        shared: bytes,
        sender: tuple[bytes, bytes],
        receiver: tuple[bytes, bytes],
        cohort_context: bytes,
        ciphertext: bytes = b"",
        wrapped: bytes = b"",
    ) -> None:
        """
        Args:
            shared: the agreement of the channel keys; hybrid: then the encapsulated secret.
            sender, receiver: (identity, public channel key).
            ciphertext: of the encapsulation. wrapped: the pair's wrapped seed, if it travels with the share.
        """
        hybrid = [ciphertext] if ciphertext else []
        info = encode("sordino/v1/share-channel", *_end(*sender), *_end(*receiver), cohort_context, *hybrid)
        self._key = hkdf(shared, cohort_context, info, 32)
        seed = [wrapped] if wrapped else []
        self._associated = encode("sordino/v1/sealed-share", cohort_context, sender[0], receiver[0], *seed)

    def seal(self, plaintext: bytes) -> bytes:
        """AES-256-GCM ciphertext with its tag. Call it only once."""
        return AESGCM(self._key).encrypt(ZERO_NONCE, plaintext, self._associated)

    def open(self, ciphertext: bytes) -> bytes | None:
        """The plaintext, or None if the sender didn't seal this ciphertext for this receiver."""
        try:
            return AESGCM(self._key).decrypt(ZERO_NONCE, ciphertext, self._associated)
        except InvalidTag:
            return None


def session_statement(study: str, identity: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """A participant signs this to open its stream."""
    return encode("sordino/v1/session", study.encode(), identity, client_nonce, server_nonce)


def advertisement_statement(round_context: bytes, identity: bytes, mask_key: bytes, channel_key: bytes) -> bytes:
    """AdvertiseKeys: both keys in their roles; of hybrid keys the SHA-256, for the speed of all who verify it."""
    mask, channel = (hashlib.sha256(one).digest() if len(one) > KEY_BYTES else one for one in (mask_key, channel_key))
    return encode("sordino/v1/advertise-keys", round_context, identity, b"mask", mask, b"channel", channel)


def dealing_statement(cohort_context: bytes, identity: bytes, root: bytes, commitment: bytes) -> bytes:
    """ShareKeys: the root of a dealer's commitments to its shares, and its seed commitment."""
    return encode("sordino/v1/share-keys", cohort_context, identity, root, commitment)


def upload_statement(cohort_context: bytes, identity: bytes, sha256: bytes, u2: bytes) -> bytes:
    """MaskedInputCollection: digests of the upload and of the set it was masked in (`set_digest`)."""
    return encode("sordino/v1/masked-input", cohort_context, identity, sha256, u2)


def consistency_statement(cohort_context: bytes, u2: bytes, u3: bytes) -> bytes:
    """ConsistencyCheck: digests of both sets, the same bytes for every signer."""
    return encode("sordino/v1/consistency-check", cohort_context, u2, u3)


def set_digest(name: str, cohort_context: bytes, identities: list[bytes]) -> bytes:
    """SHA-256 of a set of participants, given in ascending order of identity."""
    return digest_of_rows("sordino/v1/set", name.encode(), cohort_context, rows=b"".join(identities))
