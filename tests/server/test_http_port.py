"""The port for metrics and health: what it answers, when, and what strangers can't do to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import signal
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest

import server.http_port
from runtime.failure import NetworkFailure
from server import coordinator as process
from server.events import Pausing
from server.http_port import MOST_CONNECTIONS, MOST_HEADER_BYTES, HttpPort
from tests.server.scraping import ask, bare_port, quietly, scrape
from tests.support.commands import says
from tests.support.study_in_process import coordinator, until


async def test_ready_once_the_study_is_served_and_no_longer_when_it_stops(study_folder: Path, tmp_path: Path) -> None:
    async def readiness(port: HttpPort) -> tuple[int, Any]:
        status, headers, body = await ask(port, "/readyz")
        assert headers["content-type"] == "application/json"
        return status, json.loads(body)

    port = HttpPort(quietly(study_folder), fresh_s=0.0)
    handlers = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    await port.open()
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == handlers
    try:
        status, body = await readiness(port)
        assert (status, body["ready"], body["reason"]) == (503, False, "the coordinator is starting")
        assert (await ask(port, "/healthz"))[0] == 200
        shown, _ = await scrape(port)
        assert (shown.get_one("sordino_ready"), shown.get_one("sordino_phase", phase="Starting")) == (0, 1)
        # A counter of 0 before the journal is read would count a study's rounds again after each start.
        assert "sordino_rounds_completed_total" not in shown.names()
        async with coordinator(study_folder, tmp_path / "state.sqlite", deadlines={"connect_s": 20.0}) as where:
            where.tell_first(port.metrics.note)
            port.restored(where.study, where.journal)
            assert (await readiness(port))[0] == 503  # its session port isn't open yet
            port.serving()
            assert (await readiness(port))[0] == 200
            where.start()
            await where.wait_for("waiting_for_participants")
            status, body = await readiness(port)
            assert status == 200
            says(body.pop("waiting_for"), "Round 1: 0 of 7 connected, 5 needed, ", "then the attempt is aborted")
            assert body == {
                "ready": True,
                "study": "seven",
                "round": 1,
                "attempt": 1,
                "phase": "Connecting",
                "connected": 0,
                "needed": 5,
            }
            where.journal._store._connection.execute("PRAGMA query_only = 1")  # as a full disk: nothing is taken
            where.journal.emit(Pausing(round=1, left_s=1.0))
            await until(lambda: where.journal.failure is not None)
            status, body = await readiness(port)
            assert (status, body["ready"]) == (503, False)
            assert body["reason"] == "the journal can't be written"  # and nothing of where it lies
            shown, _ = await scrape(port)
            assert (shown.get_one("sordino_ready"), shown.get_one("sordino_storage_writable")) == (0, 0)
            where.journal._store._connection.execute("PRAGMA query_only = 0")
            where.journal.emit(Pausing(round=1, left_s=1.0))
            await until(lambda: where.journal.failure is None)
            assert (await readiness(port))[0] == 200
            port.stopping()
            status, body = await readiness(port)
            assert (status, body["reason"]) == (503, "the coordinator is stopping")
    finally:
        await port.close()


async def test_what_it_answers_and_what_not(study_folder: Path) -> None:
    async with bare_port(study_folder) as (port, _):
        for path in ("/metrics", "/healthz", "/readyz"):
            for method in ("POST", "PUT", "DELETE", "OPTIONS"):
                assert (await ask(port, path, method))[0] == 405
            status, headers, body = await ask(port, path, "HEAD", Origin="http://elsewhere.example")
            assert status in (200, 503)
            assert body == ""
            assert not {name for name in headers if name.startswith("access-control") or name == "set-cookie"}
            assert "server" not in headers
        for path in ("/", "/metrics/", "/favicon.ico", "/docs", "/../etc/passwd"):
            assert (await ask(port, path, Host="elsewhere.example"))[0] == 404


async def test_strangers_hold_nothing(study_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence, headers without end, and unread answers: each connection ends, and the port continues."""
    monkeypatch.setattr(server.http_port, "CONNECTION_S", 0.6)
    async with bare_port(study_folder) as (port, connect):
        opened = [await connect() for _ in range(MOST_CONNECTIONS)]
        for _, writer in opened[::2]:
            writer.write(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        began = time.monotonic()
        one_more, _ = await connect()
        assert await ended(one_more)  # at once: the places are taken
        assert time.monotonic() - began < server.http_port.CONNECTION_S / 2
        assert all(await asyncio.gather(*(ended(reader) for reader, _ in opened)))
        assert time.monotonic() - began < 5
        assert (await ask(port, "/healthz"))[0] == 200
        reader, writer = await connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * (3 * MOST_HEADER_BYTES))
        assert b" 400 " in await reader.read(1000)
        for _, one in opened:
            one.close()


async def test_one_request_a_connection_however_many_are_sent(study_folder: Path) -> None:
    request, answers = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", list[bytes]()
    async with bare_port(study_folder) as (_, connect):
        for sent in (request, request + request[:9], request * 100):
            reader, writer = await connect()
            writer.write(sent)
            with contextlib.suppress(ConnectionResetError):  # the rest was never read
                answers.append(await asyncio.wait_for(reader.read(), 5))
            writer.close()
        assert answers
        for answer in answers:
            assert answer.count(b"HTTP/1.1 200 ") == answer.lower().count(b"connection: close") == 1
        reader, writer = await connect()
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(1000):  # a byte at a time
            if not writer.is_closing() and not reader.at_eof() and reader.exception() is None:
                writer.write(b"G")
                await asyncio.sleep(0.002)
        began = time.monotonic()
        assert await ended(reader)
        assert time.monotonic() - began < server.http_port.CONNECTION_S / 2
        writer.close()


async def test_strangers_are_accepted_at_a_pace(study_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections beyond the rate wait in the kernel, and cost the coordinator's loop nothing."""
    monkeypatch.setattr(server.http_port, "CONNECTIONS_A_SECOND", 20.0)
    monkeypatch.setattr(server.http_port, "BURST", 5)
    answered = [0]
    async with bare_port(study_folder) as (port, connect):

        async def insist() -> None:
            while True:
                with contextlib.suppress(ConnectionError):
                    reader, writer = await connect()
                    writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
                    answered[0] += await reader.read() != b""
                    writer.close()

        strangers = [asyncio.create_task(insist()) for _ in range(8)]
        began = time.monotonic()
        await asyncio.sleep(0.6)
        lasted = time.monotonic() - began
        for one in strangers:
            one.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)
        assert 0 < answered[0] <= 5 + 20 * lasted + 1
        assert (await ask(port, "/healthz"))[0] == 200


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 10) == b""
    except ConnectionResetError:
        return True


async def test_it_closes_within_two_seconds_although_somebody_holds_a_connection(study_folder: Path) -> None:
    async with bare_port(study_folder) as (_, connect):
        _, writer = await connect()
        writer.write(b"GET /metrics HTTP/1.1\r\n")
        await asyncio.sleep(0.05)
        began = time.monotonic()
    assert time.monotonic() - began < server.http_port.SHUTDOWN_S + 0.5
    with pytest.raises(ConnectionRefusedError):
        await connect()
    writer.close()


async def test_many_who_ask_at_once_share_one_rendering(study_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with bare_port(study_folder, fresh_s=60.0) as (port, _):
        rendered, render = [], port.metrics.render

        def counted() -> bytes:
            rendered.append(1)
            return render()

        monkeypatch.setattr(port.metrics, "render", counted)
        answers = await asyncio.gather(*(ask(port, "/metrics") for _ in range(8)))
        assert {status for status, _, _ in answers} == {200}
        assert len(rendered) == 1


async def test_a_port_in_use_ends_the_start_with_a_sentence(study_folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        await says_where_it_cant_listen(study_folder, tmp_path, taken)


@pytest.mark.parametrize("host", ["a..b", "a" * 64 + ".example", "."], ids=len)
async def test_a_name_that_no_host_can_have_ends_the_start_with_the_same_sentence(
    study_folder: Path, tmp_path: Path, host: str
) -> None:
    await says_where_it_cant_listen(study_folder, tmp_path, f"{host}:9464")


async def says_where_it_cant_listen(study_folder: Path, folder: Path, address: str) -> None:
    configuration = quietly(study_folder)
    changed = {"http_listen": address, "state": folder / "state.sqlite"}
    table = configuration.coordinator.model_copy(update=changed)
    says = f"can't listen on {re.escape(address)}: .*change coordinator.http_listen"
    with pytest.raises(NetworkFailure, match=says):
        async with process.served(configuration.model_copy(update={"coordinator": table})):
            pass


async def test_it_writes_no_lines_of_its_own(study_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with bare_port(study_folder) as (port, connect):
            await ask(port, "/metrics")
            await ask(port, "/nothing")
            _, writer = await connect()
            writer.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
            await asyncio.sleep(0.1)
            writer.close()
            for _ in range(20):  # answers to those who have reset the connection
                with socket.create_connection(port.address.split(":")) as gone:
                    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    gone.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await ask(port, "/healthz"))[0] == 200
    assert [record.getMessage() for record in caplog.records] == []
