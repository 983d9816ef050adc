"""What a participant's phases share: the base class, u1 once it has checked it, and the shares it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from secagg.context import RoundConfig
from secagg.encoding import RandomBytes
from secagg.errors import CoordinatorMisbehaved
from secagg.graph import Graph
from secagg.keys import ShareChannel
from secagg.messages import (
    MASK_KEY,
    SALT_BYTES,
    SELF_MASK_SEED,
    SHARE_BYTES,
    Advertisement,
    MaskKeyShare,
    SelfMaskSeedShare,
)

_PART_BYTES: Final = SALT_BYTES + SHARE_BYTES


class ClientPhase:
    """A phase is left once, whether its checks pass or fail."""

    name: str
    _left = False

    def _leave(self, message: object = None, wanted: type[object] = object) -> None:
        if self._left:
            raise CoordinatorMisbehaved(self.name, "this phase is over for this participant")
        self._left = True
        if not isinstance(message, wanted):
            raise CoordinatorMisbehaved(self.name, f"{type(message).__name__} is not what this phase waits for")


@dataclass(frozen=True, slots=True)
class HeldShare:
    """One dealer's pair of shares. The holder keeps it until it reveals exactly one of the two."""

    sealed: bytes = field(repr=False)  # the plaintext: salt and share of the mask key, then of the seed

    @classmethod
    def of(cls, salts: tuple[bytes, ...], shares: tuple[bytes, ...]) -> HeldShare:
        """From 16 and 32 bytes of each kind."""
        return cls(b"".join((salts[MASK_KEY], shares[MASK_KEY], salts[SELF_MASK_SEED], shares[SELF_MASK_SEED])))

    def salt_and_share(self, kind: int) -> tuple[bytes, bytes]:
        """Of one kind: 16 bytes, and 16 symbols of two bytes, little-endian."""
        at = kind * _PART_BYTES
        return self.sealed[at : at + SALT_BYTES], self.sealed[at + SALT_BYTES : at + _PART_BYTES]

    @property
    def mask_key(self) -> MaskKeyShare:
        """To be revealed for a dealer that is not in u3."""
        salt, share = self.salt_and_share(MASK_KEY)
        return MaskKeyShare(share, salt)

    @property
    def self_mask_seed(self) -> SelfMaskSeedShare:
        """To be revealed for a dealer in u3."""
        salt, share = self.salt_and_share(SELF_MASK_SEED)
        return SelfMaskSeedShare(share, salt)


@dataclass(frozen=True)
class Cohort:
    """u1 as a participant knows it, after its checks."""

    config: RoundConfig
    context: bytes  # cohort_context
    graph: Graph
    me: int
    advertisements: dict[int, Advertisement] = field(repr=False)  # of the neighbours and its own
    random_bytes: RandomBytes = field(repr=False)  # source of what is drawn later in the attempt

    @property
    def u1(self) -> tuple[int, ...]:
        return self.graph.u1

    def identity(self, participant: int) -> bytes:
        return self.config.roster.identity(participant)

    @property
    def hybrid(self) -> bool:
        return self.config.parameters.hybrid

    def channel(
        self, shared: bytes, sender: int, receiver: int, ciphertext: bytes = b"", wrapped: bytes = b""
    ) -> ShareChannel:
        """The sealed channel of one direction; arguments as `secagg.keys.ShareChannel`."""
        ends = [(self.identity(who), self.advertisements[who].channel_key) for who in (sender, receiver)]
        return ShareChannel(shared, ends[0], ends[1], self.context, ciphertext, wrapped)
