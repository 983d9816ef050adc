"""What a participant knows of u1 once it has checked it, and what everybody signs about its subsets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from secagg.context import RoundConfig
from secagg.graph import Graph
from secagg.keys import ShareChannel, consistency_statement, set_digest
from secagg.messages import Advertisement, MaskKeyShare, SelfMaskSeedShare


@dataclass(frozen=True)
class HeldShare:
    """One dealer's pair of shares, as its holder keeps it until it reveals exactly one of them."""

    mask_key: MaskKeyShare
    self_mask_seed: SelfMaskSeedShare


@dataclass(frozen=True)
class Cohort:
    """What a participant knows of u1 once it has checked it."""

    config: RoundConfig
    context: bytes  # cohort_context
    graph: Graph
    me: int
    advertisements: dict[int, Advertisement] = field(repr=False)  # neighbours and oneself

    @property
    def u1(self) -> tuple[int, ...]:
        """Members of u1, ascending."""
        return self.graph.u1

    def identity(self, participant: int) -> bytes:
        """Ed25519 public key of a member."""
        return self.config.roster.identity(participant)

    def channel(self, shared: bytes, sender: int, receiver: int) -> ShareChannel:
        """The sealed channel of one direction."""
        ends = [(self.identity(who), self.advertisements[who].channel_key) for who in (sender, receiver)]
        return ShareChannel(shared, ends[0], ends[1], self.context)


def set_of(config: RoundConfig, context: bytes, name: str, members: Iterable[int]) -> bytes:
    """SHA-256 of a set of participants under its name (u2 or u3): 32 bytes."""
    return set_digest(name, context, [config.roster.identity(member) for member in sorted(members)])


def survivor_statement(config: RoundConfig, context: bytes, u2: frozenset[int], u3: frozenset[int]) -> bytes:
    """The bytes every member of u3 signs in ConsistencyCheck."""
    return consistency_statement(context, set_of(config, context, "u2", u2), set_of(config, context, "u3", u3))
