"""A message that is small when compressed and huge when it isn't: refused before the coordinator has inflated it.

Anybody can call the port for enrolment. gRPC before 1.82.2, and 1.83.0, inflated all of a message before it looked at
the largest size that is allowed.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest

from tests.support.enrolment_port import port

INFLATED = 200_000_000
BOMB = """
import sys, grpc
address, ca = sys.argv[1:]
channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(open(ca, "rb").read()),
                              [("grpc.max_send_message_length", -1)])
call = channel.unary_unary("/sordino.v1.Enrolment/Enrol", request_serializer=None, response_deserializer=None)
try:
    call(bytes(%d), compression=grpc.Compression.Gzip, timeout=60)
except grpc.RpcError as error:
    print(error.code().name)
"""


def peak_mb() -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1000


@pytest.mark.skipif(sys.platform != "linux", reason="reads its memory from /proc")
async def test_a_compressed_bomb_is_not_inflated(tmp_path: Path) -> None:
    async with port(tmp_path) as where:
        ca = tmp_path / "pinned.pem"
        ca.write_bytes(where.authority.tls.pem)
        await where.nonce()  # all that a first call loads is loaded
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = peak_mb()
        sender = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", BOMB % INFLATED, where.address, ca), stdout=asyncio.subprocess.PIPE
        )
        told, _ = await sender.communicate()
        assert told.decode().strip() == "RESOURCE_EXHAUSTED"
        assert peak_mb() - before < INFLATED / 1e6 / 10
