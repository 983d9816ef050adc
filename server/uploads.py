"""Uploads: staged whole before they count, and only as many at a time as there are credits.

A participant offers the digest of its vector; when a credit is free it is told to send. Memory for staged vectors is
therefore bounded by credits x vector size, however many participants upload and however slowly.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from wire.chunks import InvalidChunk, unframe


class UploadRefused(Exception):
    """The upload can't be taken; the text is safe to send."""


@dataclass(eq=False)
class Offer:
    """A signed digest that waits for its vector."""

    participant: int
    sha256: bytes
    signature: bytes
    granted: bool = False
    uploading: bool = False


@dataclass(eq=False)
class Uploads:
    """Credits and offers of one attempt."""

    size: int  # bytes of a complete vector
    credits: int
    grant: Callable[[int], None]  # tells a participant to send
    stall_s: float = 30.0  # longest wait for the next chunk, and for the first after a grant
    _offers: dict[int, Offer] = field(default_factory=dict)
    _waiting: deque[Offer] = field(default_factory=deque)
    _in_use: int = 0

    def offer(self, participant: int, sha256: bytes, signature: bytes) -> None:
        """Queue a checked offer for a credit.

        Raises:
            UploadRefused: this participant has offered before.
        """
        if participant in self._offers:
            raise UploadRefused("a vector was offered before in this attempt")
        offer = Offer(participant, sha256, signature)
        self._offers[participant] = offer
        self._waiting.append(offer)
        self._pump()

    def forget(self, participant: int) -> None:
        """The participant is gone or done: its credit goes to the next one. It can't offer again."""
        offer = self._offers.get(participant)
        if offer is not None and offer.granted:
            offer.granted = False
            self._in_use -= 1
        elif offer is not None and offer in self._waiting:
            self._waiting.remove(offer)
        self._pump()

    def _pump(self) -> None:
        while self._waiting and self._in_use < self.credits:
            offer = self._waiting.popleft()
            offer.granted = True
            self._in_use += 1
            self.grant(offer.participant)

    async def stage(self, participant: int, chunks: AsyncIterator[bytes]) -> tuple[Offer, bytes]:
        """Read one whole vector.

        Raises:
            UploadRefused: no credit, a second stream, a malformed chunk, another length than announced, or a stall.
        """
        offer = self._offers.get(participant)
        if offer is None or not offer.granted or offer.uploading:
            raise UploadRefused("no upload is expected from this participant now")
        offer.uploading = True
        staged = bytearray()
        iterator = aiter(chunks)
        while True:
            try:
                message = await asyncio.wait_for(anext(iterator), self.stall_s)
                staged += unframe(message)
            except StopAsyncIteration:
                break
            except TimeoutError as error:
                raise UploadRefused(f"nothing arrived for {self.stall_s:.0f} s") from error
            except InvalidChunk as error:
                raise UploadRefused(str(error)) from error
            if not offer.granted:
                raise UploadRefused("the participant left the attempt during its upload")
            if len(staged) > self.size:
                raise UploadRefused(f"the vector is longer than {self.size} bytes")
        if len(staged) != self.size:
            raise UploadRefused(f"the vector has {len(staged)} bytes, not {self.size}")
        return offer, bytes(staged)
