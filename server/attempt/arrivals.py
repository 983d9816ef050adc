"""What waits in an attempt's inbox until its turn comes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from secagg.messages import MaskedInput
from server.sessions import Session
from wire import coordinator_pb2 as pb


@dataclass(frozen=True)
class Left:
    """A participant is out."""

    reason: str


@dataclass(frozen=True)
class Said:
    """A message, as bytes, since one of many small parts takes twenty times as much when read."""

    kind: str | None
    written: bytes = field(repr=False)

    def read(self) -> pb.PhaseMessage:
        return pb.PhaseMessage.FromString(self.written)


@dataclass(frozen=True)
class Staged:
    """A whole vector; whoever sent it waits to hear whether it counts."""

    message: MaskedInput
    done: asyncio.Future[bool]

    def settle(self, taken: bool) -> None:
        if not self.done.done():
            self.done.set_result(taken)


@dataclass(frozen=True)
class Back:
    """A participant whose connection broke is here again, and says how many messages of the attempt have reached it."""

    session: Session
    received: int
