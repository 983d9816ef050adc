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


class UnexpectedUpload(UploadRefused):
    """No vector is expected from this participant now: a late one, or a second stream. Discarded unread."""


class MalformedUpload(UploadRefused):
    """A stream that is no vector, wherever it ends: no honest participant sends one."""


@dataclass(eq=False)
class Offer:
    """A signed digest that waits for its vector."""

    participant: int
    sha256: bytes
    signature: bytes
    granted: bool = False
    uploading: bool = False
    begin: asyncio.TimerHandle | None = None  # runs from the grant until the first chunk
    patience: asyncio.Timeout | None = None  # of the stream under way


@dataclass(eq=False)
class Uploads:
    """Credits and offers of one attempt."""

    size: int  # bytes of a complete vector
    credits: int
    grant: Callable[[int], None]  # tells a participant to send
    expired: Callable[[int, str], None]  # is told of a participant that holds a credit and doesn't begin
    stall_s: float = 30.0  # longest wait for the next chunk, and for the first after a grant
    slowest_bytes_s: float = 16_384.0  # an upload that is slower on the whole gives its credit back
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
        if offer is not None:
            self._withdraw(offer)
        self._pump()

    def close(self) -> None:
        """The attempt is over: what is staged is let go of at once, however long its sender would have stayed."""
        self._waiting.clear()
        for offer in self._offers.values():
            self._withdraw(offer)

    def _withdraw(self, offer: Offer) -> None:
        if offer.granted:
            offer.granted = False
            self._in_use -= 1
        elif offer in self._waiting:
            self._waiting.remove(offer)
        if offer.begin is not None:
            offer.begin.cancel()
        if offer.patience is not None and not offer.patience.expired():
            offer.patience.reschedule(asyncio.get_running_loop().time())

    def _pump(self) -> None:
        while self._waiting and self._in_use < self.credits:
            offer = self._waiting.popleft()
            offer.granted = True
            self._in_use += 1
            offer.begin = asyncio.get_running_loop().call_later(
                self.stall_s, self.expired, offer.participant, self._stalled()
            )
            self.grant(offer.participant)

    def _stalled(self) -> str:
        return f"nothing arrived for {self.stall_s:g} s"

    def _too_slow(self) -> str:
        return f"it arrived at less than {self.slowest_bytes_s / 1024:g} KiB a second"

    async def stage(self, participant: int, chunks: AsyncIterator[bytes]) -> tuple[Offer, bytearray]:
        """Read one whole vector.

        Raises:
            UnexpectedUpload: no credit, or a second stream.
            MalformedUpload: a malformed chunk, or more bytes than announced.
            UploadRefused: fewer bytes than announced, a stall, or the participant was dropped.
        """
        offer = self._offers.get(participant)
        if offer is None or offer.begin is None or not offer.granted or offer.uploading:
            raise UnexpectedUpload("no upload is expected from this participant now")
        offer.uploading = True
        offer.begin.cancel()
        staged = bytearray()
        loop = asyncio.get_running_loop()
        try:
            arrived, begun = loop.time(), 0.0
            async with asyncio.timeout(self.stall_s) as offer.patience:
                async for message in chunks:
                    arrived = loop.time()
                    begun = begun or arrived
                    staged += unframe(message)
                    # From the first byte on: credits are few, and whoever sends a byte now and then would hold one for
                    # as long as a whole vector may take.
                    latest = begun + self.stall_s + min(len(staged), self.size) / self.slowest_bytes_s
                    offer.patience.reschedule(min(arrived + self.stall_s, latest))
                    if len(staged) > self.size:
                        raise MalformedUpload(f"the vector is longer than {self.size} bytes")
        except TimeoutError as error:
            reason = self._stalled() if loop.time() >= arrived + self.stall_s else self._too_slow()
            if not offer.granted:
                reason = "the participant left the attempt during its upload"
            raise UploadRefused(reason) from error
        except InvalidChunk as error:
            raise MalformedUpload(str(error)) from error
        finally:
            offer.patience = None
        if len(staged) != self.size:
            # No proof of anything: to gRPC a connection that breaks can look like a sender that has ended its stream.
            raise UploadRefused(f"the vector has {len(staged)} bytes, not {self.size}")
        return offer, staged  # not copied: nobody else holds it
