"""Digests of models and of partitions, by which two processes or two releases are compared."""

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from learning.parameters import Parameters, flatten


def parameters_digest(parameters: Parameters) -> bytes:
    """SHA-256 (32 bytes) over names, shapes and little-endian float32 values, in order."""
    layout = json.dumps([[name, list(array.shape)] for name, array in parameters.items()])
    return hashlib.sha256(layout.encode() + flatten(parameters).astype("<f4").tobytes()).digest()


def partition_digest(parts: Sequence[np.ndarray]) -> str:
    """SHA-256 in hex over all parts in order."""
    digest = hashlib.sha256(f"sordino partition 1 {len(parts)}".encode())
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part.astype("<i8").tobytes())
    return digest.hexdigest()
