"""Splitting one training set over participants, the same way in every process."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from learning.public_random import PublicRandom

PARTITIONS: Final = ("iid", "dirichlet")
FEWEST_EXAMPLES: Final = 5


def partition(
    labels: NDArray[np.int64],
    name: str,
    clients: int,
    alpha: float = 1.0,
    seed: int = 0,
    *,
    fewest_examples: int = FEWEST_EXAMPLES,
) -> list[NDArray[np.int64]]:
    """Split the indices 0..n-1 over participants: each index goes to exactly one.

    ``iid`` deals a shuffled deck, sizes differing by one at most. ``dirichlet`` splits each class by shares
    drawn from the symmetric Dirichlet distribution with parameter alpha, so small alpha means skewed labels
    and unequal sizes; whoever is left with fewer than ``fewest_examples`` then gets some, one at a time,
    from the participant who has most.

    Args:
        labels: int64 (n,); only ``dirichlet`` looks at the values.
        name: one of ``PARTITIONS``.
        clients: number of participants, >= 1; participant u gets the u-th entry of the result.
        alpha: concentration, 0.001 to 1,000,000; ``iid`` ignores it.
        seed: >= 0; the same seed gives the same partition in every process (``partition_digest`` tells).
        fewest_examples: every participant gets at least this many, >= 1.

    Returns:
        Ascending int64 indices for each participant.

    Raises:
        ValueError: an unknown name, a number out of range, or too few examples for so many participants.
    """
    if name not in PARTITIONS:
        raise ValueError(f"unknown partition {name!r}; known partitions: {', '.join(PARTITIONS)}")
    if clients < 1 or fewest_examples < 1:
        raise ValueError(f"{clients} participants with at least {fewest_examples} examples: both must be >= 1")
    if seed < 0:
        raise ValueError(f"the partition's seed is {seed}; it must be >= 0")
    if clients * fewest_examples > len(labels):
        raise ValueError(
            f"{len(labels)} examples are too few for {clients} participants with at least {fewest_examples} "
            "each; take fewer participants or a larger data set"
        )
    rng = PublicRandom(b"partition", seed)
    if name == "iid":
        parts = np.array_split(rng.permutation(len(labels)), clients)
    else:
        if not (math.isfinite(alpha) and 1e-3 <= alpha <= 1e6):
            raise ValueError(f"the Dirichlet parameter alpha is {alpha}; it must be from 0.001 to 1000000")
        parts = _lift_smallest(_dirichlet(labels, clients, alpha, rng), fewest_examples, rng)
    return [np.sort(part).astype(np.int64) for part in parts]


def partition_digest(parts: Sequence[NDArray[np.int64]]) -> str:
    """Return SHA-256 in hex over all parts in order.

    Two machines that compare digests know whether they cut the data alike.
    """
    digest = hashlib.sha256(f"sordino partition 1 {len(parts)}".encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part.astype("<i8", copy=False).tobytes())
    return digest.hexdigest()


def _dirichlet(
    labels: NDArray[np.int64], clients: int, alpha: float, rng: PublicRandom
) -> list[NDArray[np.int64]]:
    pieces: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = rng.shuffled(np.flatnonzero(labels == label))
        shares = rng.dirichlet(alpha, clients)
        cuts = np.floor(np.cumsum(shares)[:-1] * len(members) + 0.5).astype(np.int64)
        for piece, rows in zip(pieces, np.split(members, cuts), strict=True):
            piece.append(rows)
    return [np.concatenate(piece) for piece in pieces]


def _lift_smallest(parts: list[NDArray[np.int64]], fewest: int, rng: PublicRandom) -> list[NDArray[np.int64]]:
    """Move single examples from the largest part to parts below ``fewest``.

    The caller has checked that there are enough for all, so while one part is short another has more than
    ``fewest`` to give.
    """
    lists = [rng.shuffled(part).tolist() for part in parts]
    for receiver in lists:
        while len(receiver) < fewest:
            receiver.append(max(lists, key=len).pop())  # of equals, the first
    return [np.array(rows, dtype=np.int64) for rows in lists]
