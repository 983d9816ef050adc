"""gRPC on loopback with TLS: CPU time of a call, a stream message and a megabyte, client and server together.

The server is a separate process, as in deployment: `python -m sordino.lab.bench.grpc_rates` prints its port and
serves until its standard input closes. It answers with the CPU time it has used so far, so both sides are counted.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import grpc

from runtime.processes import run_event_loop
from sordino.lab.bench.timing import Spread
from wire.certificates import CertificateAuthority, new_key, private_pem
from wire.transport import CHUNK_BYTES

_SERVICE: Final = "bench.Rates"
_UPLOAD_BYTES: Final = 32 << 20
_CALLS: Final = 400


def measure(runs: int) -> list[tuple[str, str, Spread]]:
    """Rows (name, unit, spread over the runs). Raises RuntimeError: the server process didn't start."""
    now, key = datetime.datetime.now(datetime.UTC), new_key()
    authority = CertificateAuthority.make("bench", now)
    certificate = authority.issue_server(key.public_key(), (), now)
    command, root = [sys.executable, "-m", "sordino.lab.bench.grpc_rates"], Path(__file__).resolve().parents[3]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=root, text=True) as server:  # it ends with its input
        assert server.stdin is not None and server.stdout is not None  # noqa: S101, PT018  # pipes
        print(json.dumps([certificate.decode(), private_pem(key).decode()]), file=server.stdin, flush=True)
        port = server.stdout.readline().strip()
        if not port:
            raise RuntimeError("the server for the gRPC rates didn't start")
        return run_event_loop(_measure(f"localhost:{port}", authority.pem, runs))


async def _measure(address: str, tls_ca: bytes, runs: int) -> list[tuple[str, str, Spread]]:
    credentials = grpc.ssl_channel_credentials(root_certificates=tls_ca)
    async with grpc.aio.secure_channel(address, credentials) as channel:
        cpu: Any = channel.unary_unary(f"/{_SERVICE}/Cpu")
        unary: Any = channel.unary_unary(f"/{_SERVICE}/Unary")
        stream: Any = channel.stream_stream(f"/{_SERVICE}/Stream")
        upload: Any = channel.stream_unary(f"/{_SERVICE}/Upload")
        small, chunk = bytes(100), bytes(CHUNK_BYTES)

        async def calls() -> None:
            for _ in range(_CALLS):
                await unary(small)

        async def messages() -> None:
            call = stream()
            for _ in range(_CALLS):
                await call.write(small)
                await call.read()
            await call.done_writing()
            await call.read()

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(_UPLOAD_BYTES // CHUNK_BYTES):
                yield chunk

        async def bytes_up() -> None:
            await upload(chunks())

        rows = []
        for name, unit, work, scale in (
            ("unary call, 100 bytes", "us", calls, 1e6 / _CALLS),
            ("message on a stream and its answer, 100 bytes", "us", messages, 1e6 / _CALLS),
            ("upload in chunks of 256 KiB", "ms/MB", bytes_up, 1e3 / (_UPLOAD_BYTES / 1e6)),
        ):
            spent = []
            for run in range(runs + 1):
                before = time.process_time() + float(await cpu(b""))
                await work()
                after = time.process_time() + float(await cpu(b""))
                if run:
                    spent.append(scale * (after - before))
            rows.append((name, unit, Spread.of(spent)))
        return rows


async def _serve(certificate: bytes, key: bytes) -> None:
    async def unary(request: bytes, _: Any) -> bytes:
        return request

    async def cpu(_: bytes, __: Any) -> bytes:
        return repr(time.process_time()).encode()

    async def stream(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def upload(requests: AsyncIterator[bytes], _: Any) -> bytes:
        total = 0
        async for request in requests:
            total += len(request)
        return total.to_bytes(8, "little")

    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    methods: dict[str, Any] = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Cpu": grpc.unary_unary_rpc_method_handler(cpu),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
        "Upload": grpc.stream_unary_rpc_method_handler(upload),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(key, certificate)]))
    await server.start()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(0)


if __name__ == "__main__":
    run_event_loop(_serve(*(pem.encode() for pem in json.loads(sys.stdin.readline()))))
