"""What Flower's messages carry: one record of bytes each way, beside the app's own records where it trains.

Of those a study knows the arrays as one vector of float32 (`learning.parameters.flatten`), and a digest of the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from learning.parameters import shapes_of, views
from learning.tasks.flower_arrays import ROUND_KEY, Arrays, arrays_of

RECORD: Final = "sordino"
MESSAGE_TYPE: Final = "train"  # the one type whose mods every app with a model runs
Vector = NDArray[np.float32]


class _Record:
    def to_record(self) -> ConfigRecord:
        return ConfigRecord({one.name: getattr(self, one.name) for one in fields(self)})  # type: ignore[arg-type]

    @classmethod
    def read(cls, content: RecordDict) -> Self | None:
        """None: there is no such record. Raises ValueError: it has other fields, or other types."""
        record = content.get(RECORD)
        if not isinstance(record, ConfigRecord):
            return None
        blank = cls()
        given: dict[str, Any] = {one.name: record.get(one.name) for one in fields(cls)}  # type: ignore[arg-type]
        for name, value in given.items():
            items = value if isinstance(value, list) else [value]
            wanted = float if name == "clips" else bytes
            if type(value) is not type(getattr(blank, name)) or not all(isinstance(one, wanted) for one in items):
                raise ValueError(f"the record {RECORD!r} is of another version of sordino: {name} doesn't fit")
        return cls(**given)


@dataclass
class Down(_Record):
    """To a node: a challenge, or a serialised `CoordinatorMessage` with the documents that it needs."""

    nonce: bytes = b""
    message: bytes = b""
    study_sha256: bytes = b""
    roster_sha256: bytes = b""
    documents: list[bytes] = field(default_factory=list)
    history: bytes = b""
    clips: list[float] = field(default_factory=list)


@dataclass
class Up(_Record):
    """From a node: the answer to a challenge, or serialised `ParticipantMessage`s, with the packed vector, signed."""

    opened: bytes = b""
    proof: bytes = b""
    messages: list[bytes] = field(default_factory=list)
    upload: bytes = b""
    signature: bytes = b""

    def parts(self) -> list[bytes]:
        """What `client.visits.sign_answer` signs."""
        return [*self.messages, self.upload]


@dataclass
class Kept(_Record):
    """In a node's context: what `client.visits.answer` says to keep."""

    start: bytes = b""
    sealed: bytes = b""


def to_record(vector: Vector, like: Arrays) -> ArrayRecord:
    """The inverse of `learning.parameters.flatten`, with the names, shapes and types of ``like``."""
    parts = views(vector, shapes_of(like))
    return ArrayRecord({name: Array(part.astype(like[name].dtype)) for name, part in parts.items()})


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
