"""A TCP proxy that impairs links: latency, limited bandwidth, lost segments, resets, and a silent cut.

It stands between participants and coordinator and sees TLS bytes. One process may host many proxies, each with its link
conditions; a connection needs two transports, and timers where its conditions delay or reset it.

The proxy works above TCP, so it can't leave a lost segment out of the stream. A lost segment stalls its direction for a
retransmission timeout instead, as on Linux where no later segment reveals the loss: the round trip and at least 200 ms,
doubled each time that the repetition is lost too (RFC 6298). Within a long burst real TCP often repairs a loss in one
round trip, so this link is the harder of the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
import struct
from collections import deque
from typing import Any, Final, cast

from sordino.lab.loadtest.faults import Link

SEGMENT: Final = 1448
"""Bytes of a TCP segment on an Ethernet link, with timestamps."""
LEAST_TIMEOUT_S: Final = 0.2
"""Of a retransmission, in addition to the round trip: Linux's TCP_RTO_MIN."""
_MOST_HELD: Final = 256 * 1024  # bytes in transit in one direction before reading from the sender pauses
_PIECE_S: Final = 0.05  # what a limited link carries in one piece
_LARGEST_PIECE: Final = 16 * 1024
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER with timeout 0: closing sends a RST and drops unsent bytes


UNIMPAIRED: Final = Link(share=0)


class TcpProxy:
    """Forwards connections to a target. Use it from one event loop, without threads."""

    def __init__(self, target: tuple[str, int], link: Link = UNIMPAIRED, *, seed: int = 0) -> None:
        """``target``: host and port; ``seed``: of jitter, losses and resets."""
        self.target, self.loss = target, link.loss
        self.latency_s, self.jitter_s = link.latency_ms / 1000, link.jitter_ms / 1000
        self.bytes_per_s = link.mbit_s * 1e6 / 8
        """In each direction; 0: no limit."""
        self.reset_per_s = link.resets_per_min / 60
        self.delays_bytes = any((self.latency_s, self.jitter_s, self.bytes_per_s, self.loss))
        self.resets = 0
        """Connections reset so far, by the link's rate or by `reset_all`."""
        self.random = random.Random(seed)  # not a secret
        self.links: set[_Link] = set()
        """Open connections, including those that wait for the target."""
        self._server: asyncio.Server | None = None
        self.is_cut = False
        self.restored = asyncio.Event()
        self.restored.set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; returns the port. Raises OSError: the address can't be listened on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Link(self).near, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    def reset_all(self) -> int:
        """Send a RST to both ends of every open connection; returns their number."""
        links = list(self.links)
        for link in links:
            link.interrupt()
        return len(links)

    def cut(self) -> None:
        """From now on a black hole: nothing passes or is refused. Bytes are held, new connections stay unanswered."""
        self.is_cut = True
        self.restored.clear()
        for link in self.links:
            link.hold()

    def restore(self) -> None:
        """After `cut`, everything continues where it stopped."""
        self.is_cut = False
        self.restored.set()
        for link in list(self.links):
            link.go_on()

    async def close(self) -> None:
        """Stop listening and reset open connections."""
        if self._server is not None:
            self._server.close()
        self.restored.set()
        for link in list(self.links):
            link.reset()
        if self._server is not None:
            await self._server.wait_closed()


class _Link:
    """One connection: its two ends, and the bytes in transit between them."""

    def __init__(self, proxy: TcpProxy) -> None:
        self.proxy, self.over = proxy, False
        self.near, self.far = _End(self), _End(self)
        self.near.other, self.far.other = self.far, self.near
        self._connecting: asyncio.Task[None] | None = None
        self._reset_at: asyncio.TimerHandle | None = None

    def accepted(self) -> None:
        self.proxy.links.add(self)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())
        if self.proxy.reset_per_s:
            wait_s = self.proxy.random.expovariate(self.proxy.reset_per_s)
            self._reset_at = asyncio.get_running_loop().call_later(wait_s, self.interrupt)

    async def _connect(self) -> None:
        await self.proxy.restored.wait()
        try:
            await asyncio.get_running_loop().create_connection(lambda: self.far, *self.proxy.target)
        except OSError:
            self.reset()
            return
        if self.over:
            self.far.reset()
        else:
            self.near.watch()

    def interrupt(self) -> None:
        """Reset it because of its conditions, or in a storm."""
        self.proxy.resets += 1
        self.reset()

    def reset(self) -> None:
        """Send a RST to both ends; bytes in transit are lost."""
        self.finish()
        self.near.reset()
        self.far.reset()

    def lost(self, end: _End, error: Exception | None) -> None:
        """An end is gone: close the other one in the same way."""
        if self.over:
            return
        self.finish()
        if error is not None:
            end.other.reset()
        else:
            end.other.close()

    def hold(self) -> None:
        self.near.hold()
        self.far.hold()

    def go_on(self) -> None:
        self.near.go_on()
        self.far.go_on()

    def finish(self) -> None:
        self.over = True
        self.proxy.links.discard(self)
        for timer in (self._reset_at, self.near.timer, self.far.timer):
            if timer is not None:
                timer.cancel()
        if self._connecting is not None and self._connecting is not asyncio.current_task():
            self._connecting.cancel()


class _End(asyncio.Protocol):
    """One end of a connection, and the direction from it to the other end."""

    other: _End

    def __init__(self, link: _Link) -> None:
        self.link = link
        self.transport: asyncio.Transport | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.ended = False
        """This end has sent its end of file."""
        self.in_transit: deque[tuple[float, Any]] = deque()  # arrival time and piece; None: end of file
        self._held = 0  # bytes in transit
        self._free_at = 0.0  # when the direction can carry more
        self._last_at = 0.0  # when the last piece arrives
        self._until_loss: int | None = None  # segments
        self._reasons = 0  # why reading from this end is paused
        self._on_hold = False

    # ---- called by asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        raw = transport.get_extra_info("socket")
        with contextlib.suppress(OSError, AttributeError):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.link.over:
            self.reset()
            return
        if self is self.link.near:
            self.link.accepted()

    def data_received(self, data: bytes) -> None:
        to, proxy = self.other.transport, self.link.proxy
        if self.link.over:
            return
        if to is None or self.in_transit or proxy.is_cut or proxy.delays_bytes:
            self._send_later(data)
        else:
            to.write(data)

    def eof_received(self) -> bool:
        self.ended = True
        if self.in_transit or self.link.proxy.is_cut or self.other.transport is None:
            self.in_transit.append((self._last_at, None))
        else:
            self._deliver(None)
        return True  # keeps the other direction open

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.link.lost(self, exc)

    def pause_writing(self) -> None:
        self.other.pause()

    def resume_writing(self) -> None:
        self.other.resume()

    # ---- called by the proxy ----

    def pause(self) -> None:
        """Pause reading from this end, for one more reason."""
        self._reasons += 1
        if self._reasons == 1 and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Drop one reason; reading continues when none is left."""
        self._reasons -= 1
        if self._reasons == 0 and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def hold(self) -> None:
        """Deliver nothing from this end, and read nothing more."""
        if not self._on_hold:
            self._on_hold = True
            self.pause()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def go_on(self) -> None:
        """After `hold`."""
        if self._on_hold:
            self._on_hold = False
            self.resume()
        self.watch()

    def reset(self) -> None:
        self.in_transit.clear()
        if self.transport is not None:
            raw = self.transport.get_extra_info("socket")
            with contextlib.suppress(OSError, AttributeError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()

    def close(self) -> None:
        """Close once all written bytes are sent."""
        if self.transport is not None:
            self.transport.close()

    def _send_later(self, data: bytes) -> None:
        """Cut data into pieces, each with its arrival time."""
        proxy, now = self.link.proxy, asyncio.get_running_loop().time()
        size = _LARGEST_PIECE
        if proxy.bytes_per_s:
            size = int(min(size, max(SEGMENT, proxy.bytes_per_s * _PIECE_S)))
        view = memoryview(data)
        for start in range(0, len(view), size):
            piece = view[start : start + size]
            self._free_at = max(self._free_at, now) + self._stall_s(len(piece))
            if proxy.bytes_per_s:
                self._free_at += len(piece) / proxy.bytes_per_s
            jitter_s = proxy.random.random() * proxy.jitter_s if proxy.jitter_s else 0.0
            self._last_at = max(self._last_at, self._free_at + proxy.latency_s + jitter_s)
            self.in_transit.append((self._last_at, piece))
        before, self._held = self._held, self._held + len(data)
        if before <= _MOST_HELD < self._held:
            self.pause()
        if self.timer is None:
            self.watch()

    def _stall_s(self, size: int) -> float:
        """Seconds for which losses among the segments of a piece stall its direction."""
        proxy = self.link.proxy
        if not proxy.loss:
            return 0.0
        stall_s, segments = 0.0, -(-size // SEGMENT)
        while True:
            if self._until_loss is None:  # geometric: segments that pass before the next loss
                draw = 1.0 - proxy.random.random()
                self._until_loss = int(math.log(draw) / math.log1p(-proxy.loss))
            if self._until_loss >= segments:
                self._until_loss -= segments
                return stall_s
            segments -= self._until_loss + 1
            self._until_loss = None
            timeout_s = LEAST_TIMEOUT_S + 2 * proxy.latency_s
            stall_s += timeout_s
            while proxy.random.random() < proxy.loss:
                timeout_s *= 2
                stall_s += timeout_s

    def watch(self) -> None:
        """Set the timer for the next piece, at the earliest now."""
        is_open = self.other.transport is not None and not self.link.proxy.is_cut
        if self.in_transit and self.timer is None and is_open:
            self.timer = asyncio.get_running_loop().call_at(self.in_transit[0][0], self._arrive)

    def _arrive(self) -> None:
        """Write all pieces whose time has come."""
        self.timer = None
        if self.link.proxy.is_cut:
            return
        now, before = asyncio.get_running_loop().time(), self._held
        while self.in_transit and self.in_transit[0][0] <= now + 0.0005 and not self.link.over:
            piece = self.in_transit.popleft()[1]
            if piece is not None:
                self._held -= len(piece)
            self._deliver(piece)
        if before > _MOST_HELD >= self._held:
            self.resume()
        self.watch()

    def _deliver(self, piece: Any) -> None:
        to = self.other.transport
        if to is None or to.is_closing():
            return
        if piece is not None:
            to.write(piece)
        elif self.other.ended and not self.other.in_transit:  # both ends have sent theirs
            self.link.finish()
            to.close()
            self.close()
        elif to.can_write_eof():
            to.write_eof()
