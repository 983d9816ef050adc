"""A TCP proxy with weather: latency, a narrow link, lost segments, resets, and a cut that says nothing.

It stands between participants and coordinator and sees what TLS shows: bytes. One process may host many, each with a
weather of its own; nothing runs for a connection but its two transports, and timers where the weather asks for them.

What is weather here happens above TCP, so a lost segment can't be left out of the stream. It stalls its direction for a
retransmission timeout instead, as Linux has it where no later segment reveals the loss: the round trip and 200 ms at
least, doubled for each time that the repetition is lost too (RFC 6298). Within a long burst real TCP often repairs a
loss in one round trip, so this is the harder link of the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
import struct
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, cast

SEGMENT: Final = 1448
"""Bytes of a TCP segment on an Ethernet link, with timestamps."""
LEAST_TIMEOUT_S: Final = 0.2
"""Of a retransmission, beside the round trip: what Linux takes (TCP_RTO_MIN)."""
_MOST_HELD: Final = 256 * 1024  # bytes on the way in one direction, before the sender's end is read no more
_PIECE_S: Final = 0.05  # what a narrow link carries at once
_LARGEST_PIECE: Final = 16 * 1024
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER with no time: closing sends a RST and drops what is unsent


@dataclass(frozen=True)
class Weather:
    """How a link is.

    Attributes:
        latency_s: one way.
        jitter_s: added to it, uniform from 0; nothing overtakes.
        bytes_per_s: in each direction; None has no limit.
        loss: probability that a segment is lost, in [0, 1); see the module.
        reset_per_s: rate at which a connection is reset, in both directions, at moments drawn by themselves.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    loss: float = 0.0
    reset_per_s: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError: a figure outside its range."""
        if not 0 <= self.loss < 1:
            raise ValueError("the loss of a link is a share from 0 to below 1")
        if min(self.latency_s, self.jitter_s, self.reset_per_s) < 0:
            raise ValueError("latency, jitter and resets of a link are 0 or more")
        if self.bytes_per_s is not None and not self.bytes_per_s > 0:
            raise ValueError("bytes a second of a link must be above 0, or left out for no limit")

    @property
    def holds_bytes_up(self) -> bool:
        """Whether bytes take any time at all."""
        return self.latency_s > 0 or self.jitter_s > 0 or self.bytes_per_s is not None or self.loss > 0


CALM: Final = Weather()


class TcpProxy:
    """Passes connections on to a target. Use from one event loop; no threads."""

    def __init__(self, target: tuple[str, int], weather: Weather = CALM, *, seed: int = 0) -> None:
        """
        Args:
            target: host and port.
            seed: of jitter, losses and resets.
        """
        self.target, self.weather = target, weather
        self.accepted = 0
        """Connections so far."""
        self.resets = 0
        """Connections reset so far, by the weather or `reset_all`."""
        self.random = random.Random(seed)  # weather, not a secret
        self.links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self.is_cut = False
        self.restored = asyncio.Event()
        self.restored.set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; returns the port.

        Raises:
            OSError: the address can't be listened on.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Link(self).near, host, port)
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def open_connections(self) -> int:
        """How many pass through at the moment, with those that wait for the target."""
        return len(self.links)

    def reset_all(self) -> int:
        """Send a RST on every open connection, to both ends; returns how many there were."""
        links = list(self.links)
        for link in links:
            link.break_off()
        return len(links)

    def cut(self) -> None:
        """From now on a black hole: nothing passes or is refused. Bytes are held, new connections are left hanging."""
        self.is_cut = True
        self.restored.clear()
        for link in self.links:
            link.hold()

    def restore(self) -> None:
        """After `cut`, everything goes on where it was."""
        self.is_cut = False
        self.restored.set()
        for link in list(self.links):
            link.go_on()

    async def close(self) -> None:
        """Stop listening and reset what is open."""
        if self._server is not None:
            self._server.close()
        self.restored.set()
        for link in list(self.links):
            link.reset()
        if self._server is not None:
            await self._server.wait_closed()


class _Link:
    """One connection: its two ends, and what is on the way between them."""

    def __init__(self, proxy: TcpProxy) -> None:
        self.proxy, self.over = proxy, False
        self.near, self.far = _End(self), _End(self)
        self.near.other, self.far.other = self.far, self.near
        self._connecting: asyncio.Task[None] | None = None
        self._reset_at: asyncio.TimerHandle | None = None

    def accepted(self) -> None:
        """The near end is there."""
        self.proxy.accepted += 1
        self.proxy.links.add(self)
        self._connecting = asyncio.get_running_loop().create_task(self._connect())
        if rate := self.proxy.weather.reset_per_s:
            wait_s = self.proxy.random.expovariate(rate)
            self._reset_at = asyncio.get_running_loop().call_later(wait_s, self.break_off)

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

    def break_off(self) -> None:
        """Reset it as weather, or as a storm."""
        self.proxy.resets += 1
        self.reset()

    def reset(self) -> None:
        """Both ends get a RST, and what was on the way is lost."""
        self.finish()
        self.near.reset()
        self.far.reset()

    def lost(self, end: _End, error: Exception | None) -> None:
        """An end is gone: the other one goes the same way."""
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
        """This end has said that no more will come."""
        self.on_the_way: deque[tuple[float, Any]] = deque()  # when it arrives, and what; None for the end
        self._held = 0  # bytes on the way
        self._free_at = 0.0  # when the direction carries more
        self._last_at = 0.0  # when what was sent last arrives
        self._until_loss: int | None = None  # segments
        self._reasons = 0  # for which nothing is read from here
        self._on_hold = False

    # ---- of asyncio --------------------------------------------------------------------------

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
        if to is None or self.on_the_way or proxy.is_cut or proxy.weather.holds_bytes_up:
            self._send_on_its_way(data)
        else:
            to.write(data)

    def eof_received(self) -> bool:
        self.ended = True
        if self.on_the_way or self.link.proxy.is_cut or self.other.transport is None:
            self.on_the_way.append((self._last_at, None))
        else:
            self._deliver(None)
        return True  # the other direction may go on

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.link.lost(self, exc)

    def pause_writing(self) -> None:
        self.other.pause()

    def resume_writing(self) -> None:
        self.other.resume()

    # ---- of the proxy ------------------------------------------------------------------------

    def pause(self) -> None:
        """Read no more from here, for one reason more."""
        self._reasons += 1
        if self._reasons == 1 and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """One reason less."""
        self._reasons -= 1
        if self._reasons == 0 and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def hold(self) -> None:
        """Nothing goes on from here, and nothing more is taken."""
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
        """Close with a RST."""
        self.on_the_way.clear()
        if self.transport is not None:
            raw = self.transport.get_extra_info("socket")
            with contextlib.suppress(OSError, AttributeError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.transport.abort()

    def close(self) -> None:
        """Close once all that was written has gone."""
        if self.transport is not None:
            self.transport.close()

    def _send_on_its_way(self, data: bytes) -> None:
        """In pieces, each with the moment at which it arrives."""
        weather, now = self.link.proxy.weather, asyncio.get_running_loop().time()
        size = _LARGEST_PIECE
        if weather.bytes_per_s is not None:
            size = int(min(size, max(SEGMENT, weather.bytes_per_s * _PIECE_S)))
        view = memoryview(data)
        for start in range(0, len(view), size):
            piece = view[start : start + size]
            self._free_at = max(self._free_at, now) + self._stall_s(len(piece), weather)
            if weather.bytes_per_s is not None:
                self._free_at += len(piece) / weather.bytes_per_s
            jitter_s = self.link.proxy.random.random() * weather.jitter_s if weather.jitter_s else 0.0
            self._last_at = max(self._last_at, self._free_at + weather.latency_s + jitter_s)
            self.on_the_way.append((self._last_at, piece))
        before, self._held = self._held, self._held + len(data)
        if before <= _MOST_HELD < self._held:
            self.pause()
        if self.timer is None:
            self.watch()

    def _stall_s(self, size: int, weather: Weather) -> float:
        """How long losses among the segments of a piece hold its direction up."""
        if weather.loss <= 0:
            return 0.0
        stall_s, segments = 0.0, -(-size // SEGMENT)
        while True:
            if self._until_loss is None:  # geometric: how many get through before the next one is lost
                draw = 1.0 - self.link.proxy.random.random()
                self._until_loss = int(math.log(draw) / math.log1p(-weather.loss))
            if self._until_loss >= segments:
                self._until_loss -= segments
                return stall_s
            segments -= self._until_loss + 1
            self._until_loss = None
            timeout_s = LEAST_TIMEOUT_S + 2 * weather.latency_s
            stall_s += timeout_s
            while self.link.proxy.random.random() < weather.loss:
                timeout_s *= 2
                stall_s += timeout_s

    def watch(self) -> None:
        """Wake when the next piece arrives, at the earliest now."""
        is_open = self.other.transport is not None and not self.link.proxy.is_cut
        if self.on_the_way and self.timer is None and is_open:
            self.timer = asyncio.get_running_loop().call_at(self.on_the_way[0][0], self._arrive)

    def _arrive(self) -> None:
        """Whatever has arrived is written."""
        self.timer = None
        if self.link.proxy.is_cut:
            return
        now, before = asyncio.get_running_loop().time(), self._held
        while self.on_the_way and self.on_the_way[0][0] <= now + 0.0005 and not self.link.over:
            piece = self.on_the_way.popleft()[1]
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
        elif self.other.ended and not self.other.on_the_way:  # both have said so
            self.link.finish()
            to.close()
            self.close()
        elif to.can_write_eof():
            to.write_eof()
