"""The lottery that chooses a round's cohort if the cohort is smaller than the roster.

After closing a roster version, the authority draws an independent seed for each draw and signs the seeds' Merkle root
with the roster. A draw serves one round or, with epochs, E rounds. It orders the roster by

    SHA-256("sordino/v1/lottery", study, version, draw, seed of the draw, identity).

The cohort of its i-th round, in all attempts, is the i-th C participants in that order (`secagg.context.winners`): with
epochs nobody is in two rounds of one. The coordinator may know all seeds: they are drawn when the list can no longer
change. It can't choose a cohort, redraw one, or replace an absent participant. Collusion is assumed to be fixed before
the seeds are drawn, so the number of colluders in each cohort is hypergeometric
(`secagg.parameters.colluders_in_cohort`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from secagg.commitments import HASH_BYTES, MerkleTree, verify_path
from secagg.encoding import RandomBytes, digest, number

SEED_BYTES: Final = 32
MAX_DRAWS: Final = 1_000_000
MAX_VERSIONS: Final = 4096
"""V: most versions of the roster in a study. Each is a new draw for every round, and A accounts for all of them."""


class InvalidTicket(ValueError):
    """A round's seed isn't the one that the authority drew. The message is one sentence."""


@dataclass(frozen=True)
class Lottery:
    """The part of the lottery under the roster's signature: number of seeds, and their Merkle root (32 bytes)."""

    draws: int  # L: seeds for draws 1 to L
    root: bytes

    def __post_init__(self) -> None:
        if not 1 <= self.draws <= MAX_DRAWS or len(self.root) != HASH_BYTES:
            raise ValueError(f"a lottery has 1 to {MAX_DRAWS} draws and a root of {HASH_BYTES} bytes")

    def drew(self, study: str, version: int, draw: int, ticket: Ticket) -> bool:
        """Whether this ticket's seed is that of a draw, from 1 to L, of this roster version."""
        leaf = _leaf(study, version, draw, ticket.seed)
        return len(ticket.seed) == SEED_BYTES and verify_path(self.root, leaf, draw - 1, self.draws, ticket.path)


@dataclass(frozen=True)
class Ticket:
    """One draw's seed (32 bytes) with its path to the root."""

    seed: bytes
    path: tuple[bytes, ...]


@dataclass(frozen=True)
class Draws:
    """All seeds of one roster version, drawn by the authority and held by the coordinator.

    Raises ValueError: no seeds, too many, or one that hasn't 32 bytes.
    """

    study: str
    version: int
    seeds: tuple[bytes, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.seeds) <= MAX_DRAWS or any(len(seed) != SEED_BYTES for seed in self.seeds):
            raise ValueError(f"a lottery has 1 to {MAX_DRAWS} seeds of {SEED_BYTES} bytes")

    @classmethod
    def draw(cls, study: str, version: int, draws: int, random_bytes: RandomBytes) -> Draws:
        """Fresh seeds; draw them when the roster version is closed."""
        return cls(study, version, tuple(random_bytes(SEED_BYTES) for _ in range(draws)))

    @cached_property
    def _tree(self) -> MerkleTree:
        return MerkleTree(
            [_leaf(self.study, self.version, draw, seed) for draw, seed in enumerate(self.seeds, start=1)]
        )

    @property
    def lottery(self) -> Lottery:
        """For the roster."""
        return Lottery(len(self.seeds), self._tree.root)

    def ticket(self, round_: int, epoch_rounds: int = 1) -> Ticket:
        """Sent to all participants at the beginning of a round; rounds are counted from 1."""
        at = (round_ - 1) // epoch_rounds
        return Ticket(self.seeds[at], self._tree.path(at))


def _leaf(study: str, version: int, draw: int, seed: bytes) -> bytes:
    return digest("sordino/v1/lottery-seed", study.encode(), number(version), number(draw), seed)
