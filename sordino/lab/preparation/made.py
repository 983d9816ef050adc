"""A set that was made, and the public split of a set that has no test part of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.blocks import Block, Blocks, Part
from learning.public_random import PublicRandom

HELD_OUT: Final = 0.1
SPLIT_SEED: Final = 1


@dataclass(frozen=True)
class Made:
    """A set that was made.

    Attributes:
        how: sentences for the manifest: what was done, and every constant.
    """

    blocks: Blocks
    how: tuple[str, ...]
    further: Mapping[str, Any] = field(default_factory=dict)


def in_memory(parts: Mapping[Part, Sequence[Block]], identity: str) -> Blocks:
    """Blocks that are held already."""
    return Blocks(
        {part: partial(iter, [one for one in blocks if one.count]) for part, blocks in parts.items()}, identity
    )


def by_user(users: Sequence[Any] | NDArray[Any], features: NDArray[Any], labels: NDArray[np.int64]) -> list[Block]:
    """A block for each user, in the users' order, numbers before words; rows of a user keep theirs."""
    keys = np.asarray(users)
    ordered = sorted(set(keys.tolist()), key=lambda one: (isinstance(one, str), one))
    found = ((user, np.flatnonzero(keys == user)) for user in ordered)
    return [Block.of(features[rows], labels[rows], str(user)) for user, rows in found]


def hold_out_users(blocks: Blocks, name: str) -> tuple[Blocks, str]:
    """Both parts, split by user: a tenth of them, chosen by a public seed, is for testing; and a sentence about it.

    A set without users has no test part then.
    """
    train = blocks.parts["train"]
    users = list(dict.fromkeys(block.user for block in train()))
    if None in users or len(users) < 2:
        return blocks, "no test part is published, and without users there is none to hold out"
    count = math.ceil(HELD_OUT * len(users))
    order = PublicRandom(b"held-out users", name.encode(), SPLIT_SEED).permutation(len(users))
    chosen = {users[at] for at in order[:count]}
    parts: dict[Part, Callable[[], Iterator[Block]]] = {
        "train": lambda: (block for block in train() if block.user not in chosen),
        "test": lambda: (block for block in train() if block.user in chosen),
    }
    return Blocks(parts, blocks.identity), (
        f"no test part is published: {count} of {len(users)} users, chosen by the public seed {SPLIT_SEED}, are held "
        "out with all their examples"
    )


def hold_out_rows(blocks: Iterable[Block], name: str, share: float) -> tuple[Blocks, str]:
    """Both parts, each user's rows split: for sets of so few users that none can be spared; and a sentence about it."""
    parts: dict[Part, list[Block]] = {"train": [], "test": []}
    for number, block in enumerate(blocks):
        order = PublicRandom(b"held-out rows", name.encode(), SPLIT_SEED, number).permutation(block.count)
        cut = round(share * block.count)
        pieces: dict[Part, NDArray[np.int64]] = {"test": order[:cut], "train": order[cut:]}
        for part, rows in pieces.items():
            rows = np.sort(rows)
            parts[part].append(Block.of(block.features()[rows], block.labels()[rows], block.user))
    return in_memory(parts, name), (
        f"no test part is published: of each user {share:.0%} of the examples, chosen by the public seed {SPLIT_SEED}, "
        "are held out"
    )
