"""The load test's TCP proxy: bytes pass whole and in order, and each condition has its stated effect."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from pydantic import ValidationError

from runtime.processes import run_event_loop
from sordino.lab.loadtest.faults import Link
from sordino.lab.loadtest.proxy import LEAST_TIMEOUT_S, UNIMPAIRED, TcpProxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
RUNNERS: list[Callable[[Coroutine[Any, Any, None]], None]] = [asyncio.run, run_event_loop]


@contextlib.asynccontextmanager
async def echo_behind(link: Link = UNIMPAIRED, *, seed: int = 1) -> AsyncIterator[tuple[TcpProxy, int, list[str]]]:
    """A proxy before a server that sends back what it gets; its port, and how connections ended at the server."""
    ends: list[str] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            ends.append("closed")
        except OSError:
            ends.append("reset")
        finally:
            writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = TcpProxy(server.sockets[0].getsockname()[:2], link, seed=seed)
    port = await proxy.start()
    try:
        yield proxy, port, ends
    finally:
        await proxy.close()
        server.close()


async def reached(condition: Callable[[], object]) -> bool:
    for _ in range(200):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return False


async def echoed(streams: Streams, data: bytes) -> float:
    """Seconds that it takes to get back what was sent."""
    began = time.monotonic()
    streams[1].write(data)
    assert await asyncio.wait_for(streams[0].readexactly(len(data)), 10) == data
    return time.monotonic() - began


async def takes(streams: Streams, data: bytes, least_s: float, below_s: float) -> None:
    """A busy machine adds to what a link takes, so one of five tries has to be quick enough, and none too quick."""
    tries = []
    while (not tries or tries[-1] >= below_s) and len(tries) < 5:
        tries.append(await echoed(streams, data))
        assert tries[-1] >= least_s
    assert tries[-1] < below_s, tries


@pytest.mark.parametrize("run", RUNNERS)
@pytest.mark.parametrize(
    "link",
    [UNIMPAIRED, Link(share=1, latency_ms=10, jitter_ms=10, mbit_s=160, loss=0.002)],
    ids=["unimpaired", "impaired"],
)
def test_what_passes_is_whole_and_in_order(run: Callable[..., None], link: Link) -> None:
    async def check() -> None:
        async with echo_behind(link) as (proxy, port, ends):
            sent = os.urandom(1_200_001)
            streams = await asyncio.open_connection("127.0.0.1", port)
            await echoed(streams, sent)
            streams[1].write_eof()
            assert await streams[0].read() == b""  # the end passes as well, in both directions
            assert await reached(lambda: not proxy.links)
            assert (ends, proxy.resets) == (["closed"], 0)
            streams[1].close()

    run(check())


async def test_latency_a_narrow_link_and_losses_take_the_time_they_say() -> None:
    async with echo_behind(Link(share=1, latency_ms=60)) as (_, port, _ends):
        streams = await asyncio.open_connection("127.0.0.1", port)
        await takes(streams, b"x", 0.12, 1)
        await takes(streams, b"x" * 3000, 0.12, 1)
    async with echo_behind(Link(share=1, mbit_s=1.6)) as (_, port, _ends):
        streams = await asyncio.open_connection("127.0.0.1", port)
        # 60,000 bytes at 200,000 a second there; the way back runs beside it, one piece later.
        await takes(streams, bytes(60_000), 0.3, 0.6)
    async with echo_behind(Link(share=1, loss=0.5), seed=3) as (_, port, _ends):
        streams = await asyncio.open_connection("127.0.0.1", port)
        assert await echoed(streams, bytes(3 * 1448)) >= LEAST_TIMEOUT_S


@pytest.mark.parametrize("run", RUNNERS)
def test_a_reset_reaches_both_ends_and_what_was_unsent_is_lost(run: Callable[..., None]) -> None:
    async def check() -> None:
        async with echo_behind(Link(share=1, latency_ms=50)) as (proxy, port, ends):
            streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            for one in streams:
                await echoed(one, b"there")
            streams[0][1].write(b"on its way")
            assert proxy.reset_all() == 3
            for reader, _writer in streams:
                with pytest.raises(ConnectionResetError):
                    await asyncio.wait_for(reader.read(), 5)
            assert await reached(lambda: ends == ["reset"] * 3)
            assert (len(proxy.links), proxy.resets) == (0, 3)
            await echoed(await asyncio.open_connection("127.0.0.1", port), b"back")
        async with echo_behind(Link(share=1, resets_per_min=1200)) as (proxy, port, _ends):  # by itself
            reader, _writer = await asyncio.open_connection("127.0.0.1", port)
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 5)

    run(check())


@pytest.mark.parametrize("run", RUNNERS)
def test_a_cut_holds_everything_until_it_is_restored(run: Callable[..., None]) -> None:
    async def check() -> None:
        async with echo_behind(Link(share=1, latency_ms=10)) as (proxy, port, _ends):
            streams = await asyncio.open_connection("127.0.0.1", port)
            await echoed(streams, b"before")
            streams[1].write(b"under way")
            proxy.cut()
            late = await asyncio.open_connection("127.0.0.1", port)  # the system accepts it, nobody answers
            late[1].write(b"late")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(streams[0].read(1)), 0.1)
            assert len(proxy.links) == 2
            proxy.restore()
            assert await asyncio.wait_for(late[0].readexactly(4), 5) == b"late"
            assert proxy.resets == 0

    run(check())


async def test_a_coordinator_that_is_away_is_a_refused_connection() -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    target = server.sockets[0].getsockname()[:2]
    server.close()
    await server.wait_closed()
    proxy = TcpProxy(target)
    reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.start())
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 5)
    await proxy.close()
    writer.close()


@pytest.mark.parametrize("figures", [{"loss": 1.0}, {"latency_ms": -1}, {"mbit_s": -1}, {"resets_per_min": -1}])
def test_conditions_out_of_range_are_refused(figures: dict[str, float]) -> None:
    [name] = figures
    with pytest.raises(ValidationError, match=name):
        Link(share=1, **figures)
