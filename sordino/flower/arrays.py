"""Flower's records as what a study knows: arrays as one vector of float32, and a digest of everything beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from learning.tasks.flower_arrays import ROUND_KEY, Arrays, arrays_of
from sordino.flower.messages import RECORD

Vector = NDArray[np.float32]


def to_vector(arrays: Arrays) -> Vector:
    """(d,) all values, array after array."""
    return np.concatenate([one.astype(np.float32, copy=False).reshape(-1) for one in arrays.values()])


def to_record(vector: Vector, like: Arrays) -> ArrayRecord:
    """The inverse of `to_vector`, with the names, shapes and types of ``like``."""
    made, at = {}, 0
    for name, one in like.items():
        made[name] = Array(vector[at : at + one.size].reshape(one.shape).astype(one.dtype))
        at += one.size
    return ArrayRecord(made)


def forms(arrays: Arrays) -> list[tuple[str, str, list[int]]]:
    """Names, types and shapes, in order."""
    return [(name, one.dtype.str, list(one.shape)) for name, one in arrays.items()]


def digest_beside(content: RecordDict) -> bytes:
    """SHA-256 of all that a node trains with but the values of the model and which number the round has.

    All nodes must agree on it: a coordinator that gave one node another shape or rate would get zeros from the others.
    """
    key, arrays = arrays_of(content)
    others = {name: _plain(one) for name, one in content.items() if name not in (key, RECORD)}
    canonical = json.dumps([key, forms(arrays), others], sort_keys=True, default=bytes.hex)
    return hashlib.sha256(canonical.encode()).digest()


def _plain(record: Any) -> list[Any]:
    """Each value with its type; of the round's number that it is there."""
    held: Mapping[str, Any] = record
    numbered = _has_round(record)
    values = {name: _typed(None if numbered and name == ROUND_KEY else one) for name, one in held.items()}
    return [type(record).__name__, values]


def _typed(value: Any) -> list[Any]:
    inner = [_typed(one) for one in value] if isinstance(value, list) else value
    return [type(value).__name__, inner]


def _has_round(record: Any) -> bool:
    return isinstance(record, ConfigRecord) and type(record.get(ROUND_KEY)) is int


def set_round(content: RecordDict, round_: int) -> None:
    """Replace the round's number, which the digest leaves out, by the protocol's."""
    for one in content.values():
        if _has_round(one):
            one[ROUND_KEY] = round_
