"""Small files in the exact formats of published sets, for the tests that read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CIFAR_BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")


def cifar_rows(seed: int, count: int = 7) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(count, 3072) bytes as CIFAR-10 orders them, and classes."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 3072), dtype=np.uint8), rng.integers(0, 10, count)


def write_cifar(folder: Path) -> None:
    """The six files of the binary version."""
    for seed, name in enumerate(CIFAR_BATCHES):
        rows, labels = cifar_rows(seed)
        records = np.concatenate([labels[:, None].astype(np.uint8), rows], axis=1)
        (folder / name).write_bytes(records.tobytes())


def write_leaf(path: Path, users: Mapping[str, tuple[list[list[float]], list[int]]]) -> None:
    """A file of LEAF's JSON."""
    body = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "hierarchies": [],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body))
