"""Strangers at the coordinator's ports: held calls, silent connections, bombs and bursts keep no other caller out, and
the coordinator's process has room for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import os
import platform
import re
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import pytest

import wire.open_calls
import wire.process_limits
from client.connection import SERVICE, open_session
from client.credentials import load_identity
from client.host_file import load
from secagg.keys import IdentityKey
from server import enrolment
from server.peer_certificate import most_calls
from server.session_port import make_session_server
from tests.support import enrolment_port
from tests.support.enrolment_port import port
from tests.support.issued_certificates import tls_authority_of
from tests.support.study_in_process import Coordinator, Peer, coordinator, make_folder, playing, until
from wire import coordinator_pb2 as pb, process_limits
from wire.certificates import host_uri, identity_uri, new_key, private_pem
from wire.ending import ROUNDS_DONE
from wire.open_calls import Caller, OpenCalls, PeerRates, address_of
from wire.process_limits import PortBounds

DESCRIBE = pb.DescribeRequest(protocol_version=1).SerializeToString()
ALONE = ("grpc.use_local_subchannel_pool", 1)


@contextlib.asynccontextmanager
async def held(
    address: str, credentials: grpc.ChannelCredentials, method: str, connections: int, each: int
) -> AsyncIterator[list[Any]]:
    """Calls whose headers are sent and whose message never is."""
    channels = [grpc.aio.secure_channel(address, credentials, options=[ALONE]) for _ in range(connections)]
    calls = [
        channel.stream_stream(method, request_serializer=None, response_deserializer=None)()
        for channel in channels
        for _ in range(each)
    ]
    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        yield calls
    finally:
        for call in calls:
            call.cancel()
        for channel in channels:
            await channel.close()


async def codes(calls: list[Any]) -> set[grpc.StatusCode]:
    async with asyncio.timeout(30):
        return set(await asyncio.gather(*(call.code() for call in calls)))


# ---------------------------------------------------------------- enrolment


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port for enrolment that waits half a second for a message."""
    monkeypatch.setattr(wire.open_calls, "FIRST_MESSAGE_S", 0.5)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("method", ["Describe", "Enrol", "Challenge", "Pending"])
async def test_a_call_to_enrol_without_its_message_ends(tmp_path: Path, method: str) -> None:
    async with enrolment_port.port(tmp_path) as where:
        credentials = grpc.ssl_channel_credentials(where.authority.tls.pem)
        async with held(where.address, credentials, f"/sordino.v1.Enrolment/{method}", 5, 8) as calls:
            # Served by the message, as gRPC does it for a unary method, they would stay.
            assert await codes(calls) <= {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
            assert await where.nonce()


async def test_one_address_does_not_keep_out_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More calls than the port ever takes; without a bound for each address no other caller would be answered."""
    monkeypatch.setattr(enrolment, "MOST_CALLS", 100)
    seen: list[str] = []

    def address_of(peer: str) -> str:
        seen.append(peer)
        return "honest" if peer == seen[0] else "attacker"

    monkeypatch.setattr(enrolment, "address_of", address_of)
    async with enrolment_port.port(tmp_path) as where:
        await where.nonce()
        credentials = grpc.ssl_channel_credentials(where.authority.tls.pem)
        method = "/sordino.v1.Enrolment/Enrol"
        async with held(where.address, credentials, method, 14, 8) as calls:
            await until(lambda: sum(call.done() for call in calls) >= len(calls) - enrolment.OPEN_CALLS)
            assert sum(call.done() for call in calls) == len(calls) - enrolment.OPEN_CALLS
            assert (await where.method("Describe", pb.Description)(DESCRIBE, timeout=5)).newest
            assert await where.pending() == []


async def test_joiners_at_its_own_address_do_not_keep_out_the_authority(tmp_path: Path) -> None:
    async with enrolment_port.port(tmp_path) as where:
        credentials = grpc.ssl_channel_credentials(where.authority.tls.pem)
        async with held(where.address, credentials, "/sordino.v1.Enrolment/Enrol", 10, 8) as calls:
            await until(lambda: any(call.done() for call in calls))  # the bound is reached
            assert await where.pending() == []


# ---------------------------------------------------------------- sessions


@pytest.mark.parametrize(("participants", "answer_s"), [(7, 20), (1_000, 20), (10_000, 200)])
def test_a_machine_with_thousands_of_participants_may_answer_pings_later(
    participants: int, answer_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 20 s a load test of 10,000 lost hundreds of sessions in each phase."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(grpc.aio, "server", lambda **options: given.update(options) or mock.Mock())
    front = mock.Mock(bounds=PortBounds(participants, 1, 1_000))
    make_session_server(front, 64)
    assert [value for name, value in given["options"] if name == "grpc.keepalive_timeout_ms"] == [1000 * answer_s]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("held") / "study", hosts=2)


def credentials_of(folder: Path, uri: str) -> grpc.ChannelCredentials:
    key = new_key()
    chain = tls_authority_of(folder).issue_client(key.public_key(), uri, datetime.datetime.now(datetime.UTC), 90)
    return grpc.ssl_channel_credentials((folder / "tls/ca.pem").read_bytes(), private_pem(key), chain)


async def can_open(where: Coordinator, folder: Path) -> bool:
    """The first participant of the first host, with that host's own certificate."""
    home = folder / "hosts/host-01"
    async with where.channel() as channel:
        session = await open_session(channel, load_identity(load(home).participants[0].key), "seven")
        session.close()
    return True


@pytest.mark.parametrize("uri", [identity_uri(IdentityKey.generate(bytes).public), host_uri("host-99")])
@pytest.mark.parametrize("method", ["Session", "Upload", "Download", "Nothing"])
async def test_a_certificate_off_the_roster_opens_no_call(folder: Path, tmp_path: Path, uri: str, method: str) -> None:
    async with (
        coordinator(folder, tmp_path / "state.sqlite") as where,
        held(where.address, credentials_of(folder, uri), SERVICE + method, 4, 8) as calls,
    ):
        # At once: waiting for the handshake's or the message's time would be DEADLINE_EXCEEDED.
        wanted = grpc.StatusCode.UNIMPLEMENTED if method == "Nothing" else grpc.StatusCode.PERMISSION_DENIED
        assert await codes(calls) == {wanted}
        assert await can_open(where, folder)


async def test_a_participant_that_holds_calls_keeps_out_no_other_host(folder: Path, tmp_path: Path) -> None:
    async with coordinator(folder, tmp_path / "state.sqlite") as where:
        many = most_calls(where.study.bounds.participants) // 8 + 1
        async with held(
            where.address, credentials_of(folder, host_uri("host-02")), SERVICE + "Download", many, 8
        ) as on:
            bound = 3 * sum(entry.host == "host-02" for entry in where.study.roster.entries) + 8
            await until(lambda: sum(call.done() for call in on) >= len(on) - bound)
            assert sum(call.done() for call in on) == len(on) - bound
            assert await can_open(where, folder)


async def test_a_host_of_all_participants_has_the_calls_it_needs(folder: Path, tmp_path: Path) -> None:
    """Each with a session, an upload and a download at the same time."""
    async with coordinator(folder, tmp_path / "state.sqlite") as where:
        uri = host_uri("host-01")
        needed = 3 * sum(entry.host == "host-01" for entry in where.study.roster.entries)
        async with held(where.address, credentials_of(folder, uri), SERVICE + "Session", 1, needed) as calls:
            assert await can_open(where, folder)
            assert not any(call.done() for call in calls)


class _Context:
    """A call whose caller takes no answers."""

    def __init__(self) -> None:
        self.aborted: Any = None
        self.ended: list[Any] = []

    def peer(self) -> str:
        return "ipv4:192.0.2.1:1"

    def add_done_callback(self, callback: Any) -> None:
        self.ended.append(callback)

    async def write(self, _: Any) -> None:
        await asyncio.Event().wait()

    async def abort(self, code: grpc.StatusCode, reason: str) -> None:
        self.aborted = code
        raise grpc.aio.AbortError(reason)


async def test_an_answer_that_nobody_takes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def documents(request: bytes, _: Any) -> AsyncIterator[bytes]:
        yield request

    async def found(_: Any) -> Any:
        return grpc.unary_stream_rpc_method_handler(documents)

    async def only() -> AsyncIterator[bytes]:
        yield b"which"

    class Details:
        method = "/any/Download"

    monkeypatch.setattr(wire.open_calls, "WRITE_S", 0.05)
    calls, context = OpenCalls(lambda *_: Caller("one", 1)), _Context()
    handler = await calls.intercept_service(found, Details())
    with pytest.raises(grpc.aio.AbortError):
        await handler.stream_stream(only(), context)
    assert context.aborted == grpc.StatusCode.DEADLINE_EXCEEDED
    assert calls.total == 1
    for callback in context.ended:
        callback(context)
    assert calls.total == 0


# ---------------------------------------------------------------- connections


_STRANGERS = """
import socket, sys, time
held = []
for _ in range(400):
    try:
        held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5))
    except OSError:
        pass
print(len(held), flush=True)
time.sleep(120)
"""


@contextlib.contextmanager
def may_open_only(more: int) -> Iterator[None]:
    """For this process: files beside those that are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_strangers_connections_do_not_end_a_study(tmp_path: Path) -> None:
    """More TCP connections than the process may open files; without a bound the ledger can't be opened any more."""
    study = make_folder(tmp_path / "long", rounds=8)
    async with coordinator(study, tmp_path / "state.sqlite", connections=32) as where, playing(where.peers()):
        where.start()
        await where.wait_for("round_completed", round=1)
        with may_open_only(150):
            strangers = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _STRANGERS, where.address.rpartition(":")[2], stdout=asyncio.subprocess.PIPE
            )
            assert strangers.stdout is not None
            try:
                assert int(await strangers.stdout.readline()) > 150
                assert (await where.finish()).reason == ROUNDS_DONE
            finally:
                strangers.kill()
                await strangers.wait()
        assert len(where.of("round_completed")) == 8


@pytest.mark.parametrize(
    ("participants", "files", "enrolment_too"), [(7, 1024, True), (7, 256, True), (1000, 1024, True), (50, 300, False)]
)
def test_ports_leave_the_process_its_own_files(participants: int, files: int, enrolment_too: bool) -> None:
    sessions, strangers = process_limits.share_out(participants, files, enrolment=enrolment_too)
    assert sessions + strangers <= files - process_limits.OWN_FILES
    assert sessions > 0
    assert (strangers > 0) == enrolment_too


# ---------------------------------------------------------------- rates of addresses


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.7:50312", "192.0.2.7"),
        ("ipv6:%5B2001:db8:1:2:3::4%5D:50312", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2:ffff::9]:1", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:1", "192.0.2.7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "fe80::/64"),
        ("unix:/run/socket", "unix:/run/socket"),
        ("ipv4:nonsense", "ipv4:nonsense"),
    ],
)
def test_addresses(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_a_burst_and_then_the_rate() -> None:
    now = [0.0]
    rates = PeerRates(2.0, 5.0, lambda: now[0])
    assert [rates.allow("a") for _ in range(7)] == [True] * 5 + [False] * 2
    assert rates.allow("b")
    now[0] += 1.0
    assert [rates.allow("a") for _ in range(3)] == [True, True, False]
    now[0] += 1e6
    assert [rates.allow("a") for _ in range(6)] == [True] * 5 + [False]


def test_memory_is_bounded_and_whoever_calls_now_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire.open_calls, "MOST_PEERS", 10)
    rates = PeerRates(1e-9, 1.0, lambda: 0.0)
    assert rates.allow("busy")
    for number in range(50):
        rates.allow(f"other {number}")
        assert not rates.allow("busy")
    assert len(rates) == 10


# ---------------------------------------------------------------- a message that is small when compressed


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


# ---------------------------------------------------------------- the process itself


SETTLED = """
import gc
from wire import process_limits
process_limits.settle()
assert gc.isenabled() and gc.get_freeze_count() > 1000
# A walk through everything would come after 700 x 10 x 10 new objects.
walks = []
gc.callbacks.append(lambda phase, info: walks.append(info["generation"]))
kept = [[number] for number in range(300_000)]
assert 1 in walks and 2 not in walks, set(walks)
process_limits.tidy()
assert walks[-1] == 2
class Cycle: pass
one = Cycle(); one.itself = one
del one
assert gc.collect() > 0
process_limits.tidy()
before = process_limits.resident_mb()
blocks = [bytearray(b"x" * 400_000) for _ in range(100)]
del blocks
small = [bytearray(b"x" * 100_000) for _ in range(400)]
full = process_limits.resident_mb()
del small[::2]
print(before, full, process_limits.resident_mb())
"""


def test_few_walks_and_no_holes() -> None:
    done = subprocess.run([sys.executable, "-c", SETTLED], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    before, full, half = map(float, done.stdout.split())
    assert 5 < before < 100_000
    if platform.libc_ver()[0] == "glibc":
        assert full - before > 35
        # Every other block is free, in the middle of the others; 40 MB were, less 20 MB.
        assert half - before < 0.6 * (full - before)


async def test_refused_calls_leave_nothing(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers' cycles are collected within an attempt or a wait: the collector by itself would come much later."""
    monkeypatch.setattr(wire.process_limits, "REFUSALS_PER_WALK", 10)
    walks: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            walks.append(info["collected"])

    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        stranger = IdentityKey.generate(os.urandom)
        gc.collect()
        gc.disable()
        gc.callbacks.append(note)
        try:
            for _ in range(25):
                with pytest.raises(grpc.aio.AioRpcError):
                    await Peer(where, stranger).connect()
        finally:
            gc.callbacks.remove(note)
            gc.enable()
    assert len(walks) == 2
    assert min(walks) > 10  # cycles of ten refused calls and more


async def test_only_between_attempts(study_folder: Path, tmp_path: Path) -> None:
    under_way: list[bool] = []
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        where.study._between_attempts = lambda: under_way.append(where.study._attempt is not None)
        await where.play()
    assert under_way == [False, False]


async def test_calls_of_the_whole_study_wait_for_a_busy_coordinator() -> None:
    """Thousands of downloads begin at once. gRPC by itself cancels some where more than 1,000 wait."""
    bounds = PortBounds(participants=1000, largest_host=1000, control_bytes=0)

    async def answer(_request: bytes, _context: Any) -> bytes:
        return b"document"

    made = grpc.aio.server(options=bounds.options())
    method = grpc.unary_unary_rpc_method_handler(answer)
    made.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("Busy", {"Answer": method})])
    port = made.add_insecure_port("127.0.0.1:0")
    await made.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        calls = [channel.unary_unary("/Busy/Answer")(b"") for _ in range(2 * bounds.participants)]
        await asyncio.sleep(0)  # all are begun
        time.sleep(0.5)  # the coordinator is busy with something else
        assert await codes(calls) == {grpc.StatusCode.OK}
    await made.stop(None)
