"""The messages of the five phases, as types of the core; wire/codec.py maps them to protobuf.

A participant is an int: its position in the roster. Every type is immutable. Only `RevealedShare` holds secrets, and
hides them in repr.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np

from secagg.encoding import digest, number
from secagg.shamir import SYMBOLS

Message = TypeVar("Message")

SALT_BYTES: Final = 16
NOISE_SEED_BYTES: Final = 32
SHARE_BYTES: Final = 2 * SYMBOLS
# salt and share of the mask key, salt and share of the self-mask seed, and the AES-GCM tag
CIPHERTEXT_BYTES: Final = 2 * (SALT_BYTES + SHARE_BYTES) + 16

# The two kinds of share: rows of a dealer's pair of secrets, and of every pair of commitments.
MASK_KEY: Final = 0
SELF_MASK_SEED: Final = 1
KIND_LABELS: Final = (b"mask key", b"self-mask seed")

ADVERTISE_KEYS: Final = "AdvertiseKeys"
SHARE_KEYS: Final = "ShareKeys"
MASKED_INPUT: Final = "MaskedInputCollection"
CONSISTENCY_CHECK: Final = "ConsistencyCheck"
UNMASKING: Final = "Unmasking"
PHASES: Final = (ADVERTISE_KEYS, SHARE_KEYS, MASKED_INPUT, CONSISTENCY_CHECK, UNMASKING)


@dataclass(frozen=True)
class Advertisement:
    """AdvertiseKeys, participant to coordinator and on to its neighbours."""

    mask_key: bytes
    channel_key: bytes
    signature: bytes

    def digest(self) -> bytes:
        """SHA-256 that stands for this advertisement in messages to members that are not neighbours."""
        return digest("sordino/v1/advertisement", self.mask_key, self.channel_key, self.signature)


@dataclass(frozen=True)
class CohortKeys:
    """ShareKeys, coordinator to participant: u1 ascending; advertisements of it and its neighbours in full."""

    members: tuple[tuple[int, Advertisement | bytes], ...]


@dataclass(frozen=True)
class SealedShares:
    """ShareKeys, participant to coordinator."""

    ciphertexts: tuple[bytes, ...]  # one for each neighbour, ascending
    leaves: tuple[bytes, ...]  # two for each holder, ascending: mask key, then self-mask seed
    seed_commitment: bytes
    signature: bytes
    wrapped: tuple[bytes, ...] = ()  # hybrid: one for each neighbour to which it sends the pair's seed, ascending


class DealtShare(NamedTuple):  # a round of 1,000 makes 100,000: a dataclass takes four times as long
    """One dealer's sealed shares for one receiver, with the dealer's signed commitments."""

    dealer: int
    ciphertext: bytes
    root: bytes
    path: bytes  # siblings from the receiver's pair of leaves up, 32 bytes each
    seed_commitment: bytes
    signature: bytes
    wrapped: bytes = b""  # hybrid: if the dealer sends the receiver the pair's seed
    pair: bytes = b""  # then also the node of the two commitments, 32 bytes: the dealer's tree covers both


@dataclass(frozen=True)
class NeighbourShares:
    """MaskedInputCollection, coordinator to participant: from its neighbours in u2, ascending, and all of u2."""

    shares: tuple[DealtShare, ...]
    u2: bytes  # bitmap over u1


@dataclass(frozen=True)
class MaskedInput:
    """MaskedInputCollection, participant to coordinator: the upload and a signature over its SHA-256.

    The upload is the packed vector, followed by a commitment of 32 bytes to each noise seed.
    """

    packed: bytes = field(repr=False)
    sha256: bytes
    signature: bytes


@dataclass(frozen=True)
class SurvivorSets:
    """ConsistencyCheck, coordinator to participant: bitmaps over u1. Without that phase, the unmasking request."""

    u2: bytes
    u3: bytes


@dataclass(frozen=True)
class ConsistencySignature:
    """ConsistencyCheck, participant to coordinator."""

    signature: bytes


@dataclass(frozen=True)
class UnmaskingRequest:
    """Unmasking, coordinator to participant: signatures over u2 and u3, ascending by signer; all, in a large cohort.

    On the k-regular graph also the digest and signature of the upload of each neighbour in u3 that is not among these
    signers, ascending. They prove which u2 that neighbour masked with.
    """

    signatures: tuple[tuple[int, bytes], ...]
    uploads: tuple[tuple[bytes, bytes], ...] = ()


def request_digest(message: UnmaskingRequest | SurvivorSets) -> bytes:
    """SHA-256 of the message that requested shares: 32 bytes."""
    if isinstance(message, SurvivorSets):
        return digest("sordino/v1/unsigned-unmasking-request", message.u2, message.u3)
    fields = [part for signer, sig in message.signatures for part in (signer.to_bytes(8, "little"), sig)]
    uploads = [part for upload in message.uploads for part in upload]
    return digest("sordino/v1/unmasking-request", number(len(message.signatures)), *fields, *uploads)


@dataclass(frozen=True)
class RevealedShare:
    """A share, 16 symbols of two bytes, little-endian, and the 16 bytes of salt of its commitment."""

    share: bytes = field(repr=False)
    salt: bytes = field(repr=False)


@dataclass(frozen=True)
class SelfMaskSeedShare(RevealedShare):
    """For a dealer in u3."""


@dataclass(frozen=True)
class MaskKeyShare(RevealedShare):
    """For a dealer in u2 that is not in u3."""


@dataclass(frozen=True)
class UnmaskingReply:
    """Unmasking, participant to coordinator: one entry for each dealer in u2 whose shares it holds, ascending.

    The position identifies the dealer, so a reply cannot contain two shares of one dealer. None means that the dealer's
    message failed its check. The seeds of noise are its own: those that this number of survivors makes surplus.
    """

    shares: tuple[SelfMaskSeedShare | MaskKeyShare | None, ...]
    noise_seeds: tuple[bytes, ...] = field(default=(), repr=False)  # 32 bytes each


@dataclass(frozen=True, slots=True)
class Subset:
    """A subset of u1 as a bitmap: n / 8 bytes; a Python set of n numbers takes about 50 n bytes.

    Raises ValueError: wrong length, or unused bits set.
    """

    bitmap: bytes
    u1: tuple[int, ...] = field(repr=False)  # ascending

    def __post_init__(self) -> None:
        if len(self.bitmap) != (len(self.u1) + 7) // 8:
            raise ValueError("the bitmap doesn't have one bit for each member of u1")
        if self._bits >> len(self.u1):
            raise ValueError("unused bits of the bitmap are set")

    @property
    def _bits(self) -> int:
        return int.from_bytes(self.bitmap, "little")

    def __contains__(self, member: object) -> bool:
        if not isinstance(member, int):
            return False
        at = bisect_left(self.u1, member)
        if at == len(self.u1) or self.u1[at] != member:
            return False
        return bool(self.bitmap[at >> 3] >> (at & 7) & 1)

    def __len__(self) -> int:
        return self._bits.bit_count()

    def __le__(self, other: Subset) -> bool:
        return self._bits & ~other._bits == 0

    def __iter__(self) -> Iterator[int]:
        bits = np.unpackbits(np.frombuffer(self.bitmap, dtype=np.uint8), count=len(self.u1), bitorder="little")
        return (self.u1[at] for at in np.flatnonzero(bits).tolist())


def to_bitmap(members: frozenset[int], u1: tuple[int, ...]) -> bytes:
    """A subset of u1 as bits in the order of u1, least significant first, unused bits zero."""
    bits = np.fromiter((member in members for member in u1), dtype=np.uint8, count=len(u1))
    return np.packbits(bits, bitorder="little").tobytes()


class Messages(Mapping[int, Message], Generic[Message]):
    """Receiver -> message, each made when it is read: all of them at once could fill the memory."""

    def __init__(
        self,
        receivers: tuple[int, ...],
        make: Callable[[int], Message],
        only: Callable[[Collection[int]], Callable[[int], Message]] | None = None,
    ) -> None:
        """
        Args:
            receivers: ascending.
            make: makes the message for one of them, here or in another process.
            only: gives what makes the messages for some of them, without what only others need; where that is much.
        """
        self._receivers, self.make, self.only = dict.fromkeys(receivers), make, only

    def __getitem__(self, receiver: int) -> Message:
        if receiver not in self._receivers:
            raise KeyError(receiver)
        return self.make(receiver)

    def __iter__(self) -> Iterator[int]:
        return iter(self._receivers)

    def __len__(self) -> int:
        return len(self._receivers)
