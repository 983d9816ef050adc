"""What Flower's messages carry: one record of bytes each way, beside the app's own records where it trains."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from flwr.app import ConfigRecord, RecordDict

RECORD: Final = "sordino"
MESSAGE_TYPE: Final = "train"  # the one type whose mods every app with a model runs


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
