"""The document with which a round begins: the model, and the round's clips where they adapt.

The values of the task's parameters as float32, little-endian, then, only where clips adapt, one float64 for each layer.
Its SHA-256 is the model digest of `secagg.context.RoundConfig`, so participants that got different clips share no key.

A participant that holds the document of the round before may be sent the step from there instead: the scale as float32,
the steps plus 2^19 - 1 packed to 20 bits each (`secagg.packing`), then the clips as above. It knows the step by its
length, and trusts what it makes of it if that has the model's digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mechanisms.clip_rule import ClipRule
from mechanisms.model_step import MOST_STEPS, STEP_BITS, ModelStep
from secagg.masking import word_dtype
from secagg.packing import pack, packed_size, unpack


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
    words = np.ascontiguousarray(vector, dtype="<f4")
    return words.view(np.uint8).data, _written(clips, rule)


def _written(clips: Sequence[float], rule: ClipRule) -> bytes:
    checked = rule.checked(tuple(clips))
    return np.array(checked, dtype="<f8").tobytes() if rule.adaptive else b""


def write_step(step: ModelStep, clips: Sequence[float], rule: ClipRule) -> bytes:
    """A round's step as it travels. Raises ValueError: the clips don't fit the rule."""
    words = (step.steps + np.int32(MOST_STEPS)).view(word_dtype(STEP_BITS))
    return b"".join((np.array(step.scale, dtype="<f4").data, pack(words, STEP_BITS), _written(clips, rule)))


def apply_step(before: bytes, data: bytes, dim: int, rule: ClipRule) -> bytes:
    """The document of a round, from that of the round before and the step between.

    Raises ValueError: one has another length, or what it makes can't be a model.
    """
    old, packed = read_model(before, dim, rule), packed_size(dim, STEP_BITS)
    clips = data[4 + packed :]
    if len(data) != 4 + packed + len(before) - 4 * dim:
        raise ValueError(f"the step has {len(data)} bytes")
    steps = unpack(memoryview(data)[4 : 4 + packed], dim, STEP_BITS).view("<i4")
    steps -= MOST_STEPS
    moved = ModelStep(np.frombuffer(data[:4], dtype="<f4")[0], steps).applied(old.vector)
    vector: bytes = moved.astype("<f4").tobytes()
    return vector + clips


def read_model(data: bytes, dim: int, rule: ClipRule) -> RoundModel:
    """Read a document from the coordinator. Raises ValueError: another length, or clips out of range."""
    if len(data) != model_bytes(dim, rule):
        raise ValueError(f"the model has {len(data)} bytes, not {model_bytes(dim, rule)}")
    vector = np.frombuffer(data, dtype="<f4", count=dim).astype(np.float32, copy=False)
    clips = tuple(np.frombuffer(data, dtype="<f8", offset=4 * dim).tolist()) if rule.adaptive else rule.clips
    return RoundModel(vector, rule.checked(clips))
