"""Small files in the exact formats of published sets, for the tests that read them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CIFAR_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def cifar_rows(seed: int, count: int = 7) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """(count, 3072) bytes as CIFAR-10 orders them, and classes."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 3072), dtype=np.uint8), rng.integers(0, 10, count)


def write_cifar_binary(folder: Path) -> None:
    """The six files of the binary version."""
    for seed, name in enumerate(CIFAR_BATCHES):
        rows, labels = cifar_rows(seed)
        records = np.concatenate([labels[:, None].astype(np.uint8), rows], axis=1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())


def write_cifar_pickles(folder: Path) -> None:
    """The six files of the Python version."""
    for seed, name in enumerate(CIFAR_BATCHES):
        (folder / name).write_bytes(python2_batch(*cifar_rows(seed)))


def python2_batch(rows: NDArray[np.uint8], labels: Sequence[int] | NDArray[np.int64]) -> bytes:
    """A batch as Python 2 with numpy 1 pickled it, opcode for opcode: protocol 2, byte strings."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + text(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text(b"b") + b"\x87R"
    shape = number(rows.shape[0]) + number(rows.shape[1]) + b"\x86"
    array += b"(" + number(1) + shape + dtype + b"\x89" + text(rows.tobytes()) + b"tb"
    classes = b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    files = b"](" + text(b"leptodactylus_pentadactylus_s_000004.png") * len(rows) + b"e"
    pairs = text(b"batch_label") + text(b"training batch 1 of 5") + text(b"labels") + classes
    pairs += text(b"data") + array + text(b"filenames") + files
    return b"\x80\x02}(" + pairs + b"u."


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
