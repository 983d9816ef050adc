"""Uploads: staged whole before they count, and only as many at a time as there are credits.

A participant offers the digest of its vector, and uploads when it gets a free credit. Memory for staged vectors is
therefore bounded by credits x vector size, however many participants upload and however slowly.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Final, cast

from secagg.messages import MaskedInput
from server.sessions import CLOSED
from wire.transport import InvalidChunk, unframe

MOST_STREAMS: Final = 16
"""In which one vector may arrive, where connections break."""
_LEFT: Final = "the participant left the attempt during its upload"
_ELSEWHERE: Final = "the upload goes on in another stream"
# Vectors of millions of values are staged by fewer at a time, so that a large model doesn't need 64 times its memory.
_MOST_STAGED_BYTES: Final = 96 << 20
_FEWEST_CREDITS: Final = 4


def most_credits(wanted: int, size: int) -> int:
    """Uploads of ``size`` bytes that are held in memory at once."""
    return min(wanted, max(_FEWEST_CREDITS, _MOST_STAGED_BYTES // size))


class UploadRefused(Exception):
    """The upload can't be taken; the text is safe to send."""


class UnexpectedUpload(UploadRefused):
    """No vector is expected from this participant now: a late one, or a second stream. Discarded unread."""


class BrokenUpload(UploadRefused):
    """The stream ended too early. No proof of anything: to gRPC a connection that breaks can look like this."""


class MalformedUpload(UploadRefused):
    """A stream that is no vector, wherever it ends: no honest participant sends one."""


@dataclass(eq=False)
class Offer:
    """A signed digest that waits for its vector."""

    participant: int
    sha256: bytes
    signature: bytes
    granted: bool = False
    stream: object | None = None  # the one under way
    streams: int = 0
    broken: bool = False  # the last one ended too early
    complete: bool = False
    staged: bytearray = field(default_factory=bytearray, repr=False)  # so far, while the credit is held
    granted_at: float = 0.0  # by the loop's clock
    begin: asyncio.TimerHandle | None = None  # runs while the credit is held and no stream is there
    patience: asyncio.Timeout | None = None  # of the stream under way


@dataclass(frozen=True)
class Staged:
    """A whole vector; its upload waits until it is known whether it counts."""

    message: MaskedInput
    done: asyncio.Future[bool]

    def settle(self, taken: bool) -> None:
        if not self.done.done():
            self.done.set_result(taken)


@dataclass(eq=False)
class Uploads:
    """Credits and offers of one attempt."""

    size: int  # bytes of a complete vector
    credits: int
    grant: Callable[[int], None]  # sends a credit to a participant
    expired: Callable[[int, str], None]  # called with a participant that holds a credit and doesn't begin
    stall_s: float = 30.0  # longest wait for the next chunk, and for the first after a grant
    slowest_bytes_s: float = 16_384.0  # an upload that is slower on the whole gives its credit back, see `_latest`
    _offers: dict[int, Offer] = field(default_factory=dict)
    _waiting: deque[Offer] = field(default_factory=deque)
    _in_use: int = 0

    def offer(self, participant: int, sha256: bytes, signature: bytes) -> None:
        """Queue a checked offer for a credit. Raises `UploadRefused`: this participant has offered before."""
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

    def take_back(self, participant: int) -> None:
        """Its vector is expected elsewhere now; it may be offered here again."""
        self.forget(participant)
        self._offers.pop(participant, None)

    def close(self) -> None:
        """The attempt is over: what is staged is let go of at once, however long its sender would have stayed."""
        self._waiting.clear()
        for offer in self._offers.values():
            self._withdraw(offer)

    def _withdraw(self, offer: Offer) -> None:
        if offer.granted:
            offer.granted = False
            self._in_use -= 1
            offer.staged = bytearray()
        elif offer in self._waiting:
            self._waiting.remove(offer)
        if offer.begin is not None:
            offer.begin.cancel()
        _hurry(offer)

    def _pump(self) -> None:
        while self._waiting and self._in_use < self.credits:
            offer = self._waiting.popleft()
            offer.granted, offer.granted_at = True, asyncio.get_running_loop().time()
            self._in_use += 1
            self._await_stream(offer, offer.granted_at + self.stall_s)
            self.grant(offer.participant)

    def _latest(self, offer: Offer) -> float:
        """Until when the credit is held, with what is here now: one clock for each grant, whatever breaks meanwhile.

        Credits are few: a participant that sends a byte now and then, or returns again and again, would hold one for as
        long as a whole vector may take. Beside the time for its bytes it has `stall_s` to begin, and once more for all
        stalls and breaks.
        """
        return offer.granted_at + 2 * self.stall_s + min(len(offer.staged), self.size) / self.slowest_bytes_s

    def _await_stream(self, offer: Offer, until: float) -> None:
        if offer.begin is not None:
            offer.begin.cancel()
        latest = self._latest(offer)
        reason = self._stalled() if until <= latest else self._too_slow()
        offer.begin = asyncio.get_running_loop().call_at(min(until, latest), self.expired, offer.participant, reason)

    # ------------------------------------------------------------ for a participant whose connection broke

    def complete(self, participant: int) -> bool:
        """Whether its vector is here, whole."""
        offer = self._offers.get(participant)
        return offer is not None and offer.complete

    def broken(self, participant: int) -> bool:
        """Whether its upload ended too early, and hasn't been begun again."""
        offer = self._offers.get(participant)
        return offer is not None and offer.granted and offer.broken

    def again(self, participant: int) -> int | None:
        """It is back: if it holds a credit, the byte from which on its vector is missing. An older stream ends."""
        offer = self._offers.get(participant)
        if offer is None or not offer.granted or offer.complete or offer.begin is None:
            return None
        _hurry(offer)
        offer.stream, offer.broken = None, False
        self._await_stream(offer, asyncio.get_running_loop().time() + self.stall_s)
        return len(offer.staged)

    # ------------------------------------------------------------ the vector

    def _stalled(self) -> str:
        return f"nothing arrived for {self.stall_s:g} s"

    def _too_slow(self) -> str:
        return f"it arrived at less than {self.slowest_bytes_s / 1024:g} KiB a second"

    async def receive(
        self,
        participant: int,
        chunks: AsyncIterator[bytes],
        put: Callable[[int, Staged], Any],
        broken: Callable[[int, str], Any],
        failed: Callable[..., Any],
    ) -> bytes:
        """Stage one vector and hand it on; returns its digest once it counts.

        Args:
            put: is given the whole vector, to be settled.
            broken: is called with the reason where the stream ended too early and must go on soon.
            failed: likewise where the upload broke off for good; ``malformed=True``: it could never have been a vector.

        Raises UploadRefused: not expected, malformed, late, not what was offered, or it doesn't count.
        """
        try:
            offer, packed = await self.stage(participant, chunks)
        except (BrokenUpload, asyncio.CancelledError) as error:
            if self.broken(participant):  # unless another stream has taken its place
                broken(participant, str(error) if isinstance(error, BrokenUpload) else CLOSED)
            raise
        except UnexpectedUpload:
            raise  # of an earlier attempt, or a second stream: it costs its sender nothing here
        except UploadRefused as error:
            failed(participant, str(error), malformed=isinstance(error, MalformedUpload))
            raise
        vector = cast(bytes, packed)  # a bytearray without other references; not copied, to save memory
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        put(participant, Staged(MaskedInput(vector, offer.sha256, offer.signature), done))
        if not await done:
            raise UploadRefused("the vector was not taken")
        return offer.sha256

    async def stage(self, participant: int, chunks: AsyncIterator[bytes]) -> tuple[Offer, bytearray]:
        """Read one whole vector, or what is missing of it.

        Raises:
            UnexpectedUpload: no credit, or a second stream.
            MalformedUpload: a malformed chunk, or more bytes than announced.
            BrokenUpload: fewer bytes than announced.
            UploadRefused: a stall, too many beginnings, or the participant was dropped.
        """
        offer = self._offers.get(participant)
        if offer is None or offer.begin is None or not offer.granted or offer.complete or offer.stream is not None:
            raise UnexpectedUpload("no upload is expected from this participant now")
        offer.begin.cancel()
        offer.streams += 1
        if offer.streams > MOST_STREAMS:
            raise UploadRefused(f"it was begun more than {MOST_STREAMS} times")
        me, staged = object(), offer.staged
        offer.stream, offer.broken = me, False
        try:
            await self._read(offer, me, staged, chunks)
            if offer.granted and len(staged) != self.size:
                raise BrokenUpload(f"the vector has {len(staged)} bytes, not {self.size}")
        except (asyncio.CancelledError, BrokenUpload):
            offer.broken = offer.stream is me
            if offer.broken and offer.granted:
                self._await_stream(offer, math.inf)  # its credit isn't kept for as long as its place may be
            raise
        finally:
            if offer.stream is me:
                offer.stream = None
        if not offer.granted:
            raise UploadRefused(_LEFT)
        offer.complete, offer.staged = True, bytearray()
        return offer, staged  # not copied: there is no other reference

    async def _read(self, offer: Offer, me: object, staged: bytearray, chunks: AsyncIterator[bytes]) -> None:
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        try:
            async with asyncio.timeout_at(min(arrived + self.stall_s, self._latest(offer))) as patience:
                offer.patience = patience
                try:
                    async for message in chunks:  # one that was here already comes before any hurry
                        if offer.stream is not me:
                            raise UnexpectedUpload(_ELSEWHERE)
                        if not offer.granted:
                            raise UploadRefused(_LEFT)
                        arrived = loop.time()
                        staged += unframe(message)
                        patience.reschedule(min(arrived + self.stall_s, self._latest(offer)))
                        if len(staged) > self.size:
                            raise MalformedUpload(f"the vector is longer than {self.size} bytes")
                    if offer.stream is not me:
                        raise UnexpectedUpload(_ELSEWHERE)
                finally:
                    if offer.patience is patience:  # it can't be rescheduled once it has ended
                        offer.patience = None
        except TimeoutError as error:
            if offer.stream is not me:
                raise UnexpectedUpload(_ELSEWHERE) from error
            reason = self._stalled() if loop.time() >= arrived + self.stall_s else self._too_slow()
            raise UploadRefused(reason if offer.granted else _LEFT) from error
        except InvalidChunk as error:
            raise MalformedUpload(str(error)) from error


def _hurry(offer: Offer) -> None:
    """Its reader stops waiting for more."""
    patience, offer.patience = offer.patience, None
    if patience is not None and not patience.expired():
        patience.reschedule(asyncio.get_running_loop().time())
