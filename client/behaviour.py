"""Hooks for what a participant says, when, and what it masks: a load test and tests of attacks and crashes use them.

The default changes nothing, and no other one is passed outside `sordino.lab` and the tests. A hook replaces a step of
the participant and is given the honest step, so that it can do something before it, after it or in its place. Checks,
durable writes and charges are not steps: no hook can skip them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.encoder import Encoder
from mechanisms.plan import Plan
from wire.transport import frames

Number = tuple[int, int]  # round, attempt
Words = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class Encoding:
    """How the vector of an attempt is made.

    Attributes:
        context: public seed of the rotation, 32 bytes: the attempt's cohort context.
        clips: L2 norms of the round, one for each layer, data units.
    """

    number: Number
    plan: Plan
    context: bytes
    clips: tuple[float, ...]

    def encoder(self) -> Encoder:
        """May take a quarter of a second, for the tables of the noise."""
        return Encoder(self.plan, self.context, self.clips)


async def chunks_of(packed: bytes | bytearray, offset: int = 0) -> AsyncIterator[bytes]:
    """A packed vector from an offset on, in framed chunks."""
    for one in frames(packed[offset:] if offset else packed):
        yield one


class Behaviour:
    """The honest participant: each hook takes the honest step and nothing else."""

    __slots__ = ()

    async def attend(self, stay: Callable[[], Awaitable[None]], cut: Callable[[], Awaitable[None]]) -> None:
        """The whole time in which the participant takes part.

        Args:
            stay: stays connected until the study ends; may be cancelled, and called again afterwards.
            cut: closes its connections at once, without a farewell; the next session gets a new connection.
        """
        await stay()

    async def say(self, number: Number, kind: str, content: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        """One message.

        Args:
            kind: ``ready`` (number (0, 0), once a session), ``refusal``, or a field of ``PhaseMessage``.
            content: its content, a protobuf message.
        """
        await send(content)

    async def mask(self, encoding: Encoding, encode: Callable[[], Awaitable[Words]]) -> Words:
        """What is masked, words below 2^B of shape (padded_dim,); ``encode`` waits for training and adds the noise."""
        return await encode()

    async def upload(
        self,
        number: Number,
        packed: bytes | bytearray,
        offset: int,
        send: Callable[[AsyncIterator[bytes]], Awaitable[bool]],
    ) -> bool:
        """One upload of the masked vector, from the offset where the coordinator's copy ends.

        Args:
            send: sends framed chunks; whether the coordinator has counted them, False where the connection broke.
        """
        return await send(chunks_of(packed, offset))

    def handled(self, fault: Exception | None) -> None:
        """A message of the coordinator was handled, or a fault ended its handling."""

    def away(self, reason: str) -> None:
        """The coordinator couldn't be reached, or ended the session; the reason as it is shown."""


HONEST: Final = Behaviour()
