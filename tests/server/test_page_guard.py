"""Who may see a page on the HTTP port, and how many may stay there."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import stat
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

import server.http_port
from runtime.key_files import KeyFileError
from server.events import Event
from server.http_port import MOST_STREAMS, HttpPort, stays
from server.page_guard import PASSWORD_FILE, password_in
from tests.server.scraping import ask, quietly, stream
from tests.support.commands import says

PIECE = b"data: " + b"x" * (1 << 16) + b"\n\n"


class APage:
    """``/`` and a stream that says something every 20 ms."""

    def note(self, event: Event) -> None:
        pass

    def routes(self) -> Sequence[BaseRoute]:
        form = Route("/form", self._form, methods=["POST"])
        return [Route("/", self._home), Route("/events", self._events), form]

    @contextlib.asynccontextmanager
    async def living(self, app: Starlette) -> AsyncIterator[None]:
        yield

    async def _home(self, request: Request) -> Response:
        return PlainTextResponse("the page")

    async def _form(self, request: Request) -> Response:
        return PlainTextResponse(f"{len(await request.body())}")

    async def _events(self, request: Request) -> Response:
        return StreamingResponse(self._said()) if stays(request) else PlainTextResponse("full", 503)

    async def _said(self) -> AsyncIterator[bytes]:
        while True:
            yield PIECE
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def page_port(folder: Path, state: Path, host: str = "127.0.0.1") -> AsyncIterator[HttpPort]:
    configuration = quietly(folder)
    table = configuration.coordinator.model_copy(update={"http_listen": f"{host}:0", "state": state / "state.sqlite"})
    port = HttpPort(configuration.model_copy(update={"coordinator": table}), APage())
    await port.open()
    try:
        yield port
    finally:
        await port.close()


async def test_on_loopback_it_answers_to_names_of_loopback_alone(study_folder: Path, tmp_path: Path) -> None:
    async with page_port(study_folder, tmp_path) as port:
        for host in (port.address, "localhost", "localhost:1", "[::1]:80", "LOCALHOST"):
            status, headers, body = await ask(port, "/", Host=host)
            assert (status, body) == (200, "the page")
        policy = headers["content-security-policy"]
        says(policy, "default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'")
        assert "unsafe" not in policy
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not [name for name in headers if name.startswith("access-control") or name == "set-cookie"]
        for host in ("elsewhere.example", "127.0.0.1.elsewhere.example", "", "[", "localhost@elsewhere.example"):
            for path in ("/", "/events", "/nothing"):
                status, _, body = await ask(port, path, Host=host)
                assert (status, body) == (403, "Ask for this page by the address it listens on.\n")
        assert (await ask(port, "/healthz", Host="elsewhere.example"))[0] == 200  # as it always did
        assert (await ask(port, "/nothing"))[0] == 404
        assert (await ask(port, "/", "POST"))[0] == 405
        assert not (tmp_path / PASSWORD_FILE).exists()


async def test_elsewhere_it_asks_for_the_password(study_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / PASSWORD_FILE
    for _ in range(2):  # the second start uses the password of the first
        async with page_port(study_folder, tmp_path, "0.0.0.0") as port:
            port.address = port.address.replace("0.0.0.0", "127.0.0.1")
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            password = file.read_text().strip()
            assert len(password) == 22
            for given in ("", "Basic", "Basic é", "Basic " + basic("x", "wrong"), "Bearer " + password):
                for path in ("/", "/events", "/nothing"):
                    status, headers, body = await ask(port, path, Authorization=given.encode("utf-8").decode("latin-1"))
                    assert status == 401
                    says(body, PASSWORD_FILE)
                    assert password not in body + str(headers)
                    assert headers["www-authenticate"].startswith("Basic ")
            for path in ("/metrics", "/healthz", "/readyz"):
                assert (await ask(port, path))[0] in (200, 503)
            allowed = {"Authorization": "Basic " + basic("anybody", password), "Host": "elsewhere.example"}
            assert (await ask(port, "/", **allowed))[::2] == (200, "the page")
    file.chmod(0o644)
    with pytest.raises(KeyFileError, match=PASSWORD_FILE):
        async with page_port(study_folder, tmp_path, "0.0.0.0"):
            pass


def basic(name: str, password: str) -> str:
    return base64.b64encode(f"{name}:{password}".encode()).decode()


async def test_a_hundred_streams_are_bounded_and_the_port_continues(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.http_port, "CONNECTION_S", 1.0)
    monkeypatch.setattr(server.http_port, "CONNECTIONS_A_SECOND", 500.0)
    async with page_port(study_folder, tmp_path) as port:
        asked = await asyncio.gather(*(stream(port.address) for _ in range(100)))
        taken = [one for one in asked if b" 200 " in one[2]]
        refused = [one for one in asked if b" 503 " in one[2]]
        assert (len(taken), len(refused)) == (MOST_STREAMS, 100 - MOST_STREAMS)
        for reader, _, _ in refused:
            assert (await reader.read()).endswith(b"\r\n\r\nfull")
        following = [asyncio.create_task(read_on(reader)) for reader, _, _ in taken[1:]]
        await asyncio.sleep(1.5)  # longer than any other connection lasts
        assert (await ask(port, "/healthz"))[0] == 200
        assert not [one for one in following if one.done()]
        # The first one reads nothing of what comes, so it is cut off, and there is room for one more.
        async with asyncio.timeout(60):
            while True:
                _, one_more, status = await stream(port.address)
                if b" 200 " in status:
                    break
                one_more.close()
                await asyncio.sleep(0.2)
        assert not [one for one in following if one.done()]
        began = time.monotonic()
    assert time.monotonic() - began < server.http_port.SHUTDOWN_S
    assert all(one is None for one in await asyncio.gather(*following))
    one_more.close()


async def read_on(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 20):
            pass


async def test_a_stranger_holds_no_stream(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.http_port, "CONNECTION_S", 0.5)
    async with page_port(study_folder, tmp_path, "0.0.0.0") as port:
        reader, writer, status = await stream(port.address)
        assert b" 401 " in status
        await asyncio.wait_for(reader.read(), 5)
        writer.close()


async def test_a_form_is_as_short_as_any_request(
    study_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with page_port(study_folder, tmp_path) as port:
        for length, answered in ((100, True), (3800, True), (8000, False), (10**9, False)):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port.address.rpartition(":")[2]))
            writer.write(f"POST /form HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode())
            for _ in range(8):
                await asyncio.sleep(0.02)
                if not writer.is_closing():
                    writer.write(b"x" * min(length // 8 + 1, 2000))
            said = b""
            with contextlib.suppress(ConnectionError):
                said = await asyncio.wait_for(reader.read(), 5)
            assert said.endswith(f"\r\n\r\n{length}".encode()) == answered
            writer.close()
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("content", [b"", b"\n"])
def test_an_empty_password_lets_nobody_in(tmp_path: Path, content: bytes) -> None:
    """A crash while it was made leaves an empty file."""
    path = tmp_path / PASSWORD_FILE
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyFileError, match="is empty"):
        password_in(path)
