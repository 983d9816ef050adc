"""A TCP proxy that impairs links: latency, limited bandwidth, lost segments, resets, and a silent cut.

It stands between participants and coordinator and sees TLS bytes. One process may host many proxies, each with its link
conditions.

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
from typing import Final, TypeAlias

from sordino.lab.loadtest.faults import Link

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

SEGMENT: Final = 1448
"""Bytes of a TCP segment on an Ethernet link, with timestamps."""
LEAST_TIMEOUT_S: Final = 0.2
"""Of a retransmission, in addition to the round trip: Linux's TCP_RTO_MIN."""
_MOST_PIECES: Final = 16  # in transit in one direction before reading from the sender pauses
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
        self.bytes_per_s = link.mbit_s * 1e6 / 8 or math.inf
        """In each direction."""
        self.reset_per_s = link.resets_per_min / 60
        self.resets = 0
        """Connections reset so far, by the link's rate or by `reset_all`."""
        self.random = random.Random(seed)  # not a secret
        self.links: set[_Link] = set()
        """Open connections, including those that wait for the target."""
        self._server: asyncio.Server | None = None
        self.restored = asyncio.Event()
        """Cleared while the link is cut."""
        self.restored.set()

    async def start(self) -> int:
        """Listen on 127.0.0.1; returns the port. Raises OSError: the address can't be listened on."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.links.add(_Link(self, (reader, writer)))

    def reset_all(self) -> int:
        """Send a RST to both ends of every open connection; returns their number."""
        links = list(self.links)
        for link in links:
            link.reset()
        self.resets += len(links)
        return len(links)

    def cut(self) -> None:
        """From now on a black hole: nothing passes or is refused. Bytes are held, new connections stay unanswered."""
        self.restored.clear()

    def restore(self) -> None:
        """After `cut`, everything continues where it stopped."""
        self.restored.set()

    async def close(self) -> None:
        """Stop listening and reset open connections."""
        if self._server is not None:
            self._server.close()
        for link in list(self.links):
            link.reset()
        if self._server is not None:
            await self._server.wait_closed()


class _Link:
    """One connection: its two ends, and the bytes in transit between them."""

    def __init__(self, proxy: TcpProxy, near: Streams) -> None:
        self._proxy, self._ends = proxy, [near]
        self._carrying = asyncio.create_task(self._carry())

    async def _carry(self) -> None:
        """Until both ends have sent their end of file; if one is gone otherwise, the other is reset as well."""
        proxy = self._proxy
        until_reset_s = proxy.random.expovariate(proxy.reset_per_s) if proxy.reset_per_s else None
        try:
            async with asyncio.timeout(until_reset_s) as limit:
                await proxy.restored.wait()
                self._ends.append(await asyncio.open_connection(*proxy.target))
                (from_near, to_near), (from_far, to_far) = self._ends
                async with asyncio.TaskGroup() as both:
                    both.create_task(_Direction(proxy).carry(from_near, to_far))
                    both.create_task(_Direction(proxy).carry(from_far, to_near))
        except* OSError:
            proxy.resets += limit.expired()
            self.reset()
        proxy.links.discard(self)
        for _, to_end in self._ends:
            to_end.close()

    def reset(self) -> None:
        """Send a RST to both ends; bytes in transit are lost."""
        self._proxy.links.discard(self)
        for _, to_end in self._ends:
            with contextlib.suppress(OSError, AttributeError):
                to_end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            to_end.transport.abort()
        self._carrying.cancel()


class _Direction:
    """From one end of a connection to the other: pieces arrive in order, as late as the link's conditions say."""

    def __init__(self, proxy: TcpProxy) -> None:
        self._proxy = proxy
        self._in_transit: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MOST_PIECES)
        """Arrival time and piece; an empty one is the end of file."""
        self._free_at = 0.0  # when the direction can carry more
        self._until_loss: int | None = None  # segments

    async def carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Until the end of file. Raises ExceptionGroup of OSError: an end is gone."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._take(source))
            both.create_task(self._deliver(sink))

    async def _take(self, source: asyncio.StreamReader) -> None:
        """Read pieces, each as long as the direction is free for it."""
        proxy, now = self._proxy, asyncio.get_running_loop().time
        size = int(min(_LARGEST_PIECE, max(SEGMENT, proxy.bytes_per_s * _PIECE_S)))
        piece, last_at = b"more", 0.0
        while piece:
            await proxy.restored.wait()
            piece = await source.read(size)
            self._free_at = max(self._free_at, now()) + self._stall_s(len(piece)) + len(piece) / proxy.bytes_per_s
            last_at = max(last_at, self._free_at + proxy.latency_s + proxy.jitter_s * proxy.random.random())
            await self._in_transit.put((last_at, piece))
            await _sleep_until(self._free_at - _PIECE_S)

    async def _deliver(self, sink: asyncio.StreamWriter) -> None:
        """Write each piece when its time has come."""
        piece = b"more"
        while piece:
            arrives_at, piece = await self._in_transit.get()
            await _sleep_until(arrives_at)
            await self._proxy.restored.wait()
            if sink.is_closing():  # lost: the other direction reads the reason
                return
            sink.write(piece)
            await sink.drain()
        sink.write_eof()

    def _stall_s(self, size: int) -> float:
        """Seconds for which losses among the segments of a piece stall its direction."""
        proxy = self._proxy
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


async def _sleep_until(at: float) -> None:
    """On the loop's clock; returns at once where that has passed."""
    if (left_s := at - asyncio.get_running_loop().time()) > 0:
        await asyncio.sleep(left_s)
