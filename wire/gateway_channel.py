"""What passes between the coordinator and a gateway: one TCP connection each.

Ray starts and ends gateways; messages don't go through it, since each would cost a millisecond of CPU on either side.
A gateway shows a token of this run, which reached it with the order to start; between machines there is TLS beside it.
Both sides say something all the time, so that one which is cut off is found on either side.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import io
import ipaddress
import pickle
import secrets
import ssl
import struct
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from runtime.key_files import write_key_file
from wire.certificates import CertificateAuthority, new_key, private_pem

Calls: TypeAlias = list[tuple[str, tuple[Any, ...]]]
"""Names of methods of the other side, with arguments, in their order."""

BEAT_S: Final = 2.0
SILENT_S: Final = 10.0
"""After so long without a word the other side counts as gone."""
_AHEAD_BYTES: Final = 1 << 18  # that are read before they are asked for
_TOKEN_BYTES: Final = 32
_MOST_STRANGERS: Final = 64
_LARGE_BYTES: Final = 4096
_HEADER: Final = struct.Struct("<QQ")  # length of the pickle, and number of parts behind it
_NAME: Final = "sordino-engine"


class _Writer(pickle.Pickler):
    """Large `bytes` and arrays travel behind the pickle, each once, and aren't copied."""

    def __init__(self, data: io.BytesIO) -> None:
        super().__init__(data, pickle.HIGHEST_PROTOCOL)
        self.parts: list[Any] = []
        self._places: dict[int, int] = {}  # of parts, by identity

    def persistent_id(self, value: Any) -> tuple[int, str] | None:
        of = type(value)
        if of is bytes and len(value) >= _LARGE_BYTES:
            kind = ""
        elif of is np.ndarray and value.ndim == 1 and value.flags.c_contiguous:
            kind = value.dtype.str
        else:
            return None
        place = self._places.setdefault(id(value), len(self.parts))
        if place == len(self.parts):
            self.parts.append(value.data if kind else value)
        return place, kind


class _Reader(pickle.Unpickler):
    def __init__(self, data: bytes, parts: list[bytes]) -> None:
        super().__init__(io.BytesIO(data))
        self._parts = parts

    def persistent_load(self, at: tuple[int, str]) -> Any:
        part = self._parts[at[0]]
        return np.frombuffer(part, at[1]) if at[1] else part


class CallChannel:
    """Calls in both directions; pickled, since both ends are the same program, and nobody else has the token."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._waited: int | None = None  # beats without the other side's word, while that is waited for
        self._beating = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            self.send([])
            await asyncio.sleep(BEAT_S)
            if self._waited is not None:  # not a timeout of each message: they are many
                self._waited += 1
                if self._waited * BEAT_S >= SILENT_S:
                    self._reader.set_exception(TimeoutError("the other side is silent"))

    def send(self, calls: Calls) -> None:
        """Queue calls; on a connection that has ended they are lost, and `receive` shows that."""
        if not self._writer.is_closing():
            data = io.BytesIO()
            writer = _Writer(data)
            writer.dump(calls)
            head = _HEADER.pack(data.tell(), len(writer.parts))
            sizes = struct.pack(f"<{len(writer.parts)}Q", *(memoryview(one).nbytes for one in writer.parts))
            self._writer.writelines([head, data.getbuffer(), sizes, *writer.parts])

    async def receive(self) -> Calls:
        """The next calls; none of them is a sign of life. Raises OSError, EOFError, TimeoutError: the other is gone."""
        try:
            return await self._receive()
        finally:
            self._waited = None

    async def _receive(self) -> Calls:
        read = self._read
        length, parts = _HEADER.unpack(await read(_HEADER.size))
        data = await read(length)
        sizes = struct.unpack(f"<{parts}Q", await read(8 * parts))
        calls: Calls = _Reader(data, [await read(size) for size in sizes]).load()
        return calls

    async def _read(self, size: int) -> bytes:
        """As `asyncio.StreamReader.readexactly`; each piece that arrives is a sign of life."""
        pieces = []
        while size:
            self._waited = 0
            pieces.append(await self._reader.readexactly(min(size, _AHEAD_BYTES)))
            size -= len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def drain(self) -> None:
        """Until what was sent has left this process, mostly."""
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def close(self) -> None:
        """End it at once, whatever the other side still takes."""
        self._beating.cancel()
        self._writer.transport.abort()


@dataclass(frozen=True)
class Invitation:
    """By which a gateway connects; ``ca``: PEM of the certificate's authority; empty: without TLS."""

    host: str
    port: int
    ca: bytes
    token: bytes = field(repr=False)

    async def accept(self) -> CallChannel:
        """Connect. Raises OSError, TimeoutError: that isn't possible."""
        secure: dict[str, Any] = {}
        if self.ca:
            secure = {"ssl": ssl.create_default_context(cadata=self.ca.decode()), "server_hostname": _NAME}
        async with asyncio.timeout(SILENT_S):
            reader, writer = await asyncio.open_connection(self.host, self.port, limit=_AHEAD_BYTES, **secure)
            writer.write(self.token)
        return CallChannel(reader, writer)


class CallPort:
    """Where gateways connect to."""

    def __init__(self, host: str) -> None:
        """Args: host: an address of this machine that the gateways reach."""
        self._host, self._ca, self._context = host, b"", None
        if not ipaddress.ip_address(host).is_loopback:
            self._ca, self._context = _certificate()
        self._server: asyncio.Server | None = None
        self._awaited: dict[bytes, asyncio.Future[CallChannel]] = {}
        self._strangers: dict[asyncio.StreamWriter, None] = {}  # that have shown no token yet, oldest first

    async def invite(self) -> tuple[Invitation, asyncio.Future[CallChannel]]:
        """For one gateway, and what it connects on."""
        if self._server is None:
            self._server = await asyncio.start_server(
                self._connected,
                self._host,
                0,
                limit=_AHEAD_BYTES,
                ssl=self._context,
                ssl_handshake_timeout=SILENT_S if self._context else None,
            )
        token = secrets.token_bytes(_TOKEN_BYTES)
        self._awaited[token] = asyncio.get_running_loop().create_future()
        port = self._server.sockets[0].getsockname()[1]
        return Invitation(self._host, port, self._ca, token), self._awaited[token]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        token = b""
        if self._awaited:
            while len(self._strangers) >= _MOST_STRANGERS:  # files are few; who was invited shows its token at once
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.transport.abort()
            self._strangers[writer] = None
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                async with asyncio.timeout(SILENT_S):
                    token = await reader.readexactly(_TOKEN_BYTES)
            self._strangers.pop(writer, None)
        awaited = self._awaited.pop(token, None)
        if awaited is None or awaited.done():
            writer.transport.abort()
        else:
            awaited.set_result(CallChannel(reader, writer))

    def close(self) -> None:
        if self._server is not None:
            self._server.close()


class FarGateway:
    """A gateway in another process, as `server.engine.links.Process`; what starts and ends the process is given."""

    def __init__(
        self,
        port: CallPort,
        setup: Any,
        serve: Callable[[Invitation], Awaitable[str]],
        stop: Callable[[], Awaitable[None]],
        kill: Callable[[], None],
    ) -> None:
        """Args: setup: what the gateway begins with, told over the connection: Ray would keep it on its head's disk."""
        self._port, self._setup, self._serve, self._stop, self._kill = port, setup, serve, stop, kill
        self._channel: CallChannel | None = None

    async def start(self) -> str:
        """HOST:PORT of its sessions. Raises what starting it raises."""
        invitation, joined = await self._port.invite()

        async def set_up() -> None:
            self._channel = await joined
            self._channel.send([("begin", (self._setup,))])

        telling = asyncio.create_task(set_up())
        try:
            return await self._serve(invitation)
        finally:
            telling.cancel()

    def hear(self, calls: Calls) -> None:
        self._connected.send(calls)

    def room(self) -> Awaitable[None]:
        return self._connected.drain()

    async def said(self) -> Calls:
        return await self._connected.receive()

    async def stop(self) -> None:
        await self._connected.drain()
        await self._stop()

    def kill(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._kill()

    @property
    def _connected(self) -> CallChannel:
        assert self._channel is not None  # noqa: S101  # started
        return self._channel


def _certificate() -> tuple[bytes, ssl.SSLContext]:
    """A certificate of this run: PEM of its authority, and what a server needs."""
    now, key = datetime.datetime.now(datetime.UTC), new_key()
    authority = CertificateAuthority.make(_NAME, now)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:  # the library takes keys from files only
        chain, secret = Path(folder) / "chain.pem", Path(folder) / "key.pem"
        chain.write_bytes(authority.issue_server(key.public_key(), (_NAME,), now))
        write_key_file(secret, private_pem(key))
        context.load_cert_chain(chain, secret)
    return authority.pem, context
