"""Hooks for what a participant sends, when, and what it masks, for load tests and tests of attacks and crashes.

The default changes nothing, and only `sordino.lab` and the tests pass another one. A hook replaces a step of the
participant and gets the honest step, so it can act before it, after it or instead of it. Checks, durable writes and
charges are not steps: no hook can skip them.
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
    """Parameters of the vector of an attempt.

    Attributes:
        context: public seed of the rotation, 32 bytes: the attempt's cohort context.
        clips: L2 norms of the round, one for each layer, data units.
    """

    number: Number
    plan: Plan
    context: bytes
    clips: tuple[float, ...]

    def encoder(self) -> Encoder:
        """Makes tables for the noise, which may take a quarter of a second."""
        return Encoder(self.plan, self.context, self.clips)


async def chunks_of(packed: bytes | bytearray, offset: int = 0) -> AsyncIterator[bytes]:
    """A packed vector from an offset, in framed chunks."""
    for one in frames(packed[offset:] if offset else packed):
        yield one


class Behaviour:
    """The honest participant: each hook takes only the honest step."""

    __slots__ = ()

    async def attend(self, stay: Callable[[], Awaitable[None]], cut: Callable[[], Awaitable[None]]) -> None:
        """The participant's whole time in the study.

        Args:
            stay: stays connected until the study ends; may be cancelled and called again.
            cut: closes the connections at once, without a farewell; the next session opens a new one.
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
        """The words to mask, below 2^B, shape (padded_dim,); ``encode`` waits for training and adds the noise."""
        return await encode()

    async def upload(
        self,
        number: Number,
        packed: bytes | bytearray,
        offset: int,
        send: Callable[[AsyncIterator[bytes]], Awaitable[bool]],
    ) -> bool:
        """One upload of the masked vector, from the offset where the coordinator's copy ends.

        ``send``: sends framed chunks; returns whether the coordinator counted them, False if the connection broke.
        """
        return await send(chunks_of(packed, offset))

    def handled(self, fault: Exception | None) -> None:
        """Called when a message of the coordinator was handled, or a fault ended its handling."""

    def away(self, reason: str) -> None:
        """Called when the coordinator was unreachable or ended the session, with the shown reason."""


HONEST: Final = Behaviour()
