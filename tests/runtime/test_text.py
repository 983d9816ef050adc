"""What the other side says stays text on a person's terminal, and only the authority's word ends a join."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

import client.joining.joining
from client.connection import open_channel
from client.enrolment import EnrolmentRefused, ask, look
from client.joining.joining import join_by_code
from client.joining.options import JoinOptions
from runtime.failure import ExitCode, Failure
from runtime.text import LONGEST, clock_text, duration, peer_text, printable
from sordino.cli import _tell
from tests.support.enrolment_port import Authority, port_in_thread
from wire import coordinator_pb2 as pb
from wire.certificates import new_key, private_pem
from wire.enrolment import read_request

EVIL = "\x1b[2K\rJoined clinic as laptop;\x9b8m\u202e " + "x" * 5000


def is_harmless(text: str) -> bool:
    return all(one.isprintable() for one in text) and len(text) < LONGEST + 100


def test_text_of_a_peer() -> None:
    assert peer_text("no such thing: é ü 中") == "no such thing: é ü 中"
    assert peer_text("two\n lines\x1b[2J") == "two lines?[2J"
    assert len(peer_text("x" * 10_000)) == LONGEST
    assert printable("two\nlines\x00\x9b\u202e\r") == "two\nlines????"


@contextlib.asynccontextmanager
async def stranger(method: str, answer: Callable[[bytes, Any], Any]) -> AsyncIterator[tuple[str, bytes]]:
    """A server that gives this answer: its address and certificate authority."""
    authority, key = Authority(), new_key()
    certificate = authority.tls.issue_server(key.public_key(), (), datetime.datetime.now(datetime.UTC))
    server = grpc.aio.server()
    methods = {method: grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("sordino.v1.Enrolment", methods),))
    number = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(private_pem(key), certificate)]))
    await server.start()
    try:
        yield f"localhost:{number}", authority.tls.pem
    finally:
        await server.stop(0.1)


def test_a_coordinator_that_writes_escape_sequences() -> None:
    async def aborts(_: bytes, context: Any) -> None:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, EVIL[:2000])

    async def refuses(_: bytes, __: Any) -> bytes:
        return pb.EnrolAnswer(status=pb.ENROL_STATUS_REFUSED, reason=EVIL).SerializeToString()

    async def scenario() -> None:
        async with stranger("Describe", aborts) as (address, _):
            with pytest.raises(EnrolmentRefused) as error:
                await look(address, bytes(16))
            assert is_harmless(str(error.value))
        async with stranger("Enrol", refuses) as (address, ca), open_channel(address, ca) as channel:
            answer = await ask(channel, address, b"request")
            assert is_harmless(answer.reason)

    asyncio.run(scenario())


def test_no_error_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _tell(Failure(ExitCode.NETWORK, f"first\n{EVIL}", f"try {EVIL}"), ["join"])
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert "\r" not in told
    assert told.startswith("sordino join: first\n")


def test_only_the_authority_ends_a_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator's bare word keeps folder and request; the same command continues once it says something else."""
    authority, home = Authority(), tmp_path / "home"
    (tmp_path / "port").mkdir()
    answers: list[Callable[[bytes], bytes]] = [
        lambda _: b"",
        lambda _: b"no answer",
        lambda data: Authority().answer(read_request(data), accepted=False, reason=EVIL[:100]),
        lambda data: authority.answer(read_request(data)),  # it accepts
    ]

    async def refuses(channel: Any, address: str, data: bytes) -> pb.EnrolAnswer:
        return pb.EnrolAnswer(status=pb.ENROL_STATUS_REFUSED, reason="never\x1b[2K", answer=answers[0](data))

    def joined(code: str, host: Path) -> Path:
        options = JoinOptions(address=where.address, code=code, home=host, agreed=True)
        return asyncio.run(join_by_code(options, lambda _: None))

    def ends(code: str, host: Path) -> str:
        with pytest.raises(Failure) as error:
            joined(code, host)
        return error.value.message

    with port_in_thread(tmp_path / "port", authority) as (where, _):
        code = authority.code().to_text()
        with monkeypatch.context() as patched:
            patched.setattr(client.joining.joining, "ask", refuses)
            while answers:
                told = ends(code, home)
                assert "without the authority's signature: never" in told
                assert "are kept" in told
                assert "no further use" not in told
                answers.pop(0)
        assert joined(code, home) == home
        answers.append(lambda data: authority.answer(read_request(data), accepted=False, reason="enough of them"))
        monkeypatch.setattr(client.joining.joining, "ask", refuses)
        told = ends(authority.code().to_text(), tmp_path / "another")
        assert "not joined: enough of them. The study's authority has signed this refusal" in told
        assert "no further use" in told


def test_times_for_people() -> None:
    times = (0.4, 9.99, 119, 120, 7199, 7200, 3 * 86_400)
    assert [*map(duration, times)] == ["0.4 s", "10 s", "119 s", "2 minutes", "120 minutes", "2 hours", "3 days"]
    assert [*map(clock_text, (0.4, 99, 187, 7500))] == ["0:00", "1:39", "3:07", "2:05:00"]
