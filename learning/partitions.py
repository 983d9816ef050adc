"""Splitting one training set over participants, the same way in every process."""

from __future__ import annotations

import hashlib
import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.data_names import PARTITIONS
from learning.datasets import Dataset, count_examples, load_labels, load_users
from learning.public_random import PublicRandom

FEWEST_EXAMPLES: Final = 5
SHARDS: Final = 2  # of [MMR+17], section 3


def partition(
    labels: NDArray[np.int64],
    name: str,
    clients: int,
    alpha: float = 1.0,
    seed: int = 0,
    *,
    shards: int = SHARDS,
    users: NDArray[np.integer[Any]] | None = None,
) -> list[NDArray[np.int64]]:
    """Split the indices 0..n-1 over participants: each index goes to one of them, ``natural`` also leaves some out.

    ``iid`` deals a shuffled deck, sizes differing by one at most. ``dirichlet`` splits each class by shares drawn from
    the symmetric Dirichlet distribution with parameter alpha, so small alpha means skewed labels and unequal sizes; a
    participant with fewer than `FEWEST_EXAMPLES` then gets some, one at a time, from the largest part. ``shards``
    sorts by label, cuts that into clients x shards runs of equal length, give or take one, and deals ``shards`` of them
    to each participant ([MMR+17], section 3, "pathological non-IID": two shards each). ``natural`` gives participant u
    all examples of the u-th user that has `FEWEST_EXAMPLES`; of more such users than participants the seed chooses.
    No participant holds examples of two users.

    Args:
        labels: int64 (n,); only ``dirichlet`` and ``shards`` look at the values, the others take (n, L) too.
        name: one of ``PARTITIONS``.
        clients: number of participants, >= 1; participant u gets the u-th entry of the result.
        alpha: concentration, 0.001 to 1,000,000; only ``dirichlet`` looks at it.
        seed: >= 0; the same seed gives the same partition in every process.
        shards: runs of each participant, >= 1; only ``shards`` looks at it.
        users: (n,) the user of each example, as numbers; ``natural`` needs it, the others ignore it.

    Returns ascending int64 indices for each participant.

    Raises ValueError: an unknown name, a number out of range, or too few examples for that many participants.
    """
    if name not in PARTITIONS:
        raise ValueError(f"unknown partition {name!r}; known partitions: {', '.join(PARTITIONS)}")
    for what, number, least in (("number of participants", clients, 1), ("seed", seed, 0)):
        if number < least or number != int(number):
            raise ValueError(f"the partition's {what} is {number}; it must be a whole number from {least}")
    if users is not None and len(users) != len(labels):
        raise ValueError(f"there are {len(users)} users for {len(labels)} labels; each example has one of each")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("some labels aren't finite: leave their examples out")
    if clients * FEWEST_EXAMPLES > len(labels):
        raise ValueError(
            f"{len(labels)} examples are too few for {clients} participants with at least {FEWEST_EXAMPLES} "
            "each; take fewer participants or a larger data set"
        )
    if name in ("dirichlet", "shards") and labels.ndim != 1:
        raise ValueError(
            f"the partition {name!r} goes by one label an example, and here each has {labels.shape[1]}: use iid"
            + (" or natural" if users is not None else "")
        )
    rng = PublicRandom(b"partition", seed)
    if name == "iid":
        parts = np.array_split(rng.permutation(len(labels)), clients)
    elif name == "shards":
        parts = _shards(labels, clients, shards, rng)
    elif name == "natural":
        parts = _natural(users, clients, rng)
    else:
        if not (math.isfinite(alpha) and 1e-3 <= alpha <= 1e6):
            raise ValueError(f"the Dirichlet parameter alpha is {alpha}; it must be from 0.001 to 1000000")
        parts = _lift_smallest(_dirichlet(labels, clients, alpha, rng), rng)
    return [np.sort(part).astype(np.int64) for part in parts]


def cut_dataset(
    dataset: str, name: str, parts: int, alpha: float = 1.0, seed: int = 0, shards: int = SHARDS
) -> list[NDArray[np.int64]]:
    """Return the training rows of each participant, see `partition`, reading no more of the set than that needs.

    Raises learning.blocks.DatasetError: the set can't be loaded; ValueError: it can't be cut in this way.
    """
    users = None
    if name in ("dirichlet", "shards"):
        labels = load_labels(dataset)
        if labels.ndim != 1:
            users = load_users(dataset)  # the refusal says whether ``natural`` would do
    else:
        labels = np.broadcast_to(np.int64(0), count_examples(dataset))
        users = load_users(dataset) if name == "natural" else None
    return partition(labels, name, parts, alpha, seed, shards=shards, users=users)


def _shards(labels: NDArray[np.int64], clients: int, shards: int, rng: PublicRandom) -> list[NDArray[np.int64]]:
    if not 1 <= shards <= len(labels) // clients:
        raise ValueError(
            f"{shards} shards for each of {clients} participants: use 1 to {len(labels) // clients}, as there are "
            f"{len(labels)} examples"
        )
    smallest = len(labels) // (clients * shards)
    if shards * smallest < FEWEST_EXAMPLES:
        raise ValueError(
            f"{shards} shards of {smallest} examples are fewer than {FEWEST_EXAMPLES} for a participant; take fewer "
            "participants, fewer shards or a larger data set"
        )
    runs = np.array_split(np.argsort(labels, kind="stable"), clients * shards)
    deal = rng.permutation(clients * shards).reshape(clients, shards)
    return [np.concatenate([runs[run] for run in hand]) for hand in deal]


def _natural(users: NDArray[np.integer[Any]] | None, clients: int, rng: PublicRandom) -> list[NDArray[np.int64]]:
    if users is None:
        raise ValueError("the partition 'natural' needs a data set that says whose each example is, and this doesn't")
    numbers, counts = np.unique(users, return_counts=True)
    eligible = numbers[counts >= FEWEST_EXAMPLES]
    if len(eligible) < clients:
        raise ValueError(
            f"{len(eligible)} of the data set's {len(numbers)} users have {FEWEST_EXAMPLES} examples or more, too few "
            f"for {clients} participants: take at most {len(eligible)}"
        )
    if len(eligible) > clients:
        eligible = np.sort(eligible[rng.permutation(len(eligible))[:clients]])
    order = np.argsort(users, kind="stable").astype(np.int64)
    ends = np.cumsum(counts)
    at = np.searchsorted(numbers, eligible)
    return [order[ends[user] - counts[user] : ends[user]] for user in at]


def _dirichlet(labels: NDArray[np.int64], clients: int, alpha: float, rng: PublicRandom) -> list[NDArray[np.int64]]:
    pieces: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        members = rng.shuffled(np.flatnonzero(labels == label))
        shares = rng.dirichlet(alpha, clients)
        cuts = np.floor(np.cumsum(shares)[:-1] * len(members) + 0.5).astype(np.int64)
        for piece, rows in zip(pieces, np.split(members, cuts), strict=True):
            piece.append(rows)
    return [np.concatenate(piece) for piece in pieces]


def _lift_smallest(parts: list[NDArray[np.int64]], rng: PublicRandom) -> list[NDArray[np.int64]]:
    """Move single examples from the largest part to parts below `FEWEST_EXAMPLES`.

    The caller has checked that there are enough for all, so a larger part can always give.
    """
    lists = [rng.shuffled(part).tolist() for part in parts]
    for receiver in lists:
        while len(receiver) < FEWEST_EXAMPLES:
            receiver.append(max(lists, key=len).pop())  # of equals, the first
    return [np.array(rows, dtype=np.int64) for rows in lists]


def hold_out(data: Dataset, share: float) -> tuple[Dataset, Dataset]:
    """(to train on, to evaluate on): a share of the examples, chosen by their content.

    The same examples are held out in every round, after every restart and in every order; equal ones are on the same
    side. Of two or more different examples at least one is held out, and one is left.

    Args:
        share: in (0, 1).
    """
    count = min(max(round(share * len(data)), 1), len(data) - 1)
    if count < 1:
        return data, data.take([])
    digests = np.array([_digest(*row) for row in zip(data.features, data.labels, strict=True)], "V32")
    _, group, sizes = np.unique(digests, return_inverse=True, return_counts=True)  # in their order
    ends = np.cumsum(sizes)[:-1]  # examples held out with so many groups: one at least is left
    groups = 1 + int(np.argmin(np.abs(ends - count))) if len(ends) else 0
    held = group < groups
    return data.take(np.flatnonzero(~held)), data.take(np.flatnonzero(held))


def _digest(*parts: NDArray[Any]) -> bytes:
    """Of an example: the same whatever kind of numbers holds it."""
    return hashlib.sha256(b"".join(np.asarray(part, "<f8").tobytes() for part in parts)).digest()
