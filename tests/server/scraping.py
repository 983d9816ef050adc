"""Asking a coordinator's HTTP port, and reading what Prometheus would."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from server.http_port import HttpPort
from server.study_file import load
from tests.support.study_in_process import Coordinator


def quietly(folder: Path) -> Any:
    """The study's settings with a free port for HTTP."""
    configuration = load(folder)
    table = configuration.coordinator.model_copy(update={"http_listen": "127.0.0.1:0"})
    return configuration.model_copy(update={"coordinator": table})


@contextlib.asynccontextmanager
async def http_port(where: Coordinator) -> AsyncIterator[HttpPort]:
    """Beside a coordinator under test whose study doesn't run yet; restored and serving."""
    port = HttpPort(quietly(where.folder), fresh_s=0.0)
    where.tell_first(port.metrics.note)  # as `server.coordinator.serve` has it
    await port.open()
    try:
        port.restored(where.study, where.journal)
        port.serving()
        yield port
    finally:
        port.stopping()
        await port.close()


@contextlib.asynccontextmanager
async def bare_port(folder: Path, **options: float) -> AsyncIterator[tuple[HttpPort, Callable[[], Any]]]:
    """A port without a coordinator, and a function that opens a connection to it."""
    port = HttpPort(quietly(folder), **options)
    host, number = (await port.open()).rsplit(":", 1)
    try:
        yield port, functools.partial(asyncio.open_connection, host, int(number))
    finally:
        await port.close()


Answer = tuple[int, dict[str, str], bytes]  # status, headers in lower case, body


def answered(address: str, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


async def ask(port: HttpPort, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of one request."""
    status, named, body = await asyncio.to_thread(answered, port.address, path, method, **headers)
    return status, named, body.decode()


async def stream(address: str, limit: int = 1 << 16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """An open stream, or its refusal, and the status line; tried again as a browser does where it is cut off."""
    while True:
        with contextlib.suppress(ConnectionError):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]), limit=limit)
            writer.write(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            status = await reader.readline()
            if status:
                return reader, writer, status
        await asyncio.sleep(0.05)


class Samples(dict[tuple[str, tuple[tuple[str, str], ...]], float]):
    """Value by name and labels."""

    @classmethod
    def of(cls, text: str) -> Samples:
        families = text_string_to_metric_families(text)
        samples = [one for family in families for one in family.samples]
        return cls({(one.name, tuple(sorted(one.labels.items()))): one.value for one in samples})

    def get_one(self, name: str, **labels: str) -> float | None:
        """None where there is no such sample."""
        return self.get((name, tuple(sorted(labels.items()))))

    def names(self) -> set[str]:
        return {name for name, _ in self}


async def scrape(port: HttpPort) -> tuple[Samples, str]:
    """What /metrics shows."""
    status, headers, text = await ask(port, "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=")
    return Samples.of(text), text
