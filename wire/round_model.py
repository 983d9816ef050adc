"""The document with which a round begins: the model, and the round's clips where they adapt.

The values of the task's parameters as float32, little-endian, then, only where clips adapt, one float64 for each layer.
Its SHA-256 is the model digest of `secagg.context.RoundConfig`, so participants that got different clips share no key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms.clip_rule import ClipRule


@dataclass(frozen=True)
class RoundModel:
    """Attributes: vector: (d,) float32; clips: one for each layer, data units."""

    vector: NDArray[np.float32]
    clips: tuple[float, ...]


def model_bytes(dim: int, rule: ClipRule) -> int:
    return 4 * dim + (8 * len(rule.layers) if rule.adaptive else 0)


def write_model(vector: NDArray[np.float32], clips: Sequence[float], rule: ClipRule) -> bytes:
    """The document of a round. Raises ValueError: the clips don't fit the rule."""
    return b"".join(_parts(vector, clips, rule))


def model_sha256(vector: NDArray[np.float32], clips: Sequence[float], rule: ClipRule) -> bytes:
    """SHA-256 of the document that `write_model` would make, without making it.

    Raises ValueError: the clips don't fit the rule.
    """
    sha256 = hashlib.sha256()
    for part in _parts(vector, clips, rule):
        sha256.update(part)
    return sha256.digest()


def _parts(vector: NDArray[np.float32], clips: Sequence[float], rule: ClipRule) -> tuple[memoryview, bytes]:
    checked = rule.checked(tuple(clips))
    words = np.ascontiguousarray(vector, dtype="<f4")
    return words.view(np.uint8).data, np.array(checked, dtype="<f8").tobytes() if rule.adaptive else b""


def read_model(data: bytes, dim: int, rule: ClipRule) -> RoundModel:
    """Read a document from the coordinator. Raises ValueError: another length, or clips out of range."""
    if len(data) != model_bytes(dim, rule):
        raise ValueError(f"the model has {len(data)} bytes, not {model_bytes(dim, rule)}")
    vector = np.frombuffer(data, dtype="<f4", count=dim).astype(np.float32, copy=False)
    clips = tuple(np.frombuffer(data, dtype="<f8", offset=4 * dim).tolist()) if rule.adaptive else rule.clips
    return RoundModel(vector, rule.checked(clips))
