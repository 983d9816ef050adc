"""Cutting a data set over participants by its name, looking at no more of it than the partition needs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from learning.datasets import count_examples, load_labels, load_users
from learning.partitions import SHARDS, partition


def cut_dataset(
    dataset: str, name: str, parts: int, alpha: float = 1.0, seed: int = 0, shards: int = SHARDS
) -> list[NDArray[np.int64]]:
    """Training rows of each participant; see ``learning.partitions.partition``.

    Raises:
        learning.datasets.DatasetError: the set can't be loaded.
        ValueError: it can't be cut so.
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
