"""What a participant, or anybody who reaches the port of the gateways, can take of a coordinator with gateways."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import wire.gateway_channel
from secagg.messages import CONSISTENCY_CHECK, ConsistencySignature
from server.engine.gateway import CALLS_AT_ONCE, MOST_CALLS, Gateway, GatewaySetup
from server.engine.links import Link, RemoteSession, UploadsAtGateways
from server.session_port import Certificate
from tests.support.attempts_in_memory import make_config
from wire import coordinator_pb2 as pb
from wire.gateway_channel import CallChannel, CallPort, Calls
from wire.process_limits import PortBounds


def a_gateway() -> Gateway:
    """That nothing is connected to."""
    certificate = Certificate(b"", b"", b"")
    return Gateway(GatewaySetup("study", make_config(3).roster, PortBounds(3, 1, 1000), "", certificate, 9))


def session(participant: int) -> Any:
    return SimpleNamespace(participant=participant, token=os.urandom(4), strays=0)


async def named(gateway: Gateway, name: str) -> Calls:
    """Of what it says next."""
    return [call for call in await asyncio.wait_for(gateway.said(), 5) if call[0] == name]


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[CallChannel, CallChannel]]:
    """The coordinator's end of a connection, and the gateway's."""
    port = CallPort("127.0.0.1")
    invitation, joined = await port.invite()
    there = await invitation.accept()
    here = await joined
    try:
        yield here, there
    finally:
        for one in (here, there, port):
            one.close()


async def heard(channel: CallChannel) -> Calls:
    while not (calls := await channel.receive()):
        continue  # signs of life
    return calls


async def test_requests_that_are_let_go_of_dont_pile_up() -> None:
    """Each made-up `held` is another answer, as large as the model, that the coordinator holds until it is sent."""
    gateway, mine = a_gateway(), session(0)
    for number in range(20):
        asking = asyncio.create_task(gateway.requested(mine, pb.DocumentRequest(sha256=b"model", held=bytes([number]))))
        await asyncio.sleep(0.01)
        asking.cancel()
    theirs = asyncio.create_task(gateway.requested(session(1), pb.DocumentRequest(sha256=b"model")))
    await asyncio.sleep(0.01)
    [(_, (first,))] = await named(gateway, "requested")
    gateway.answer(first, b"step", True)
    await asyncio.sleep(0.01)
    [(_, (second,))] = await named(gateway, "requested")
    gateway.answer(second, b"whole", True)
    assert await asyncio.wait_for(theirs, 5) == b"whole"


async def test_only_what_stays_the_same_is_answered_from_memory() -> None:
    """A history that was given before is too short for who comes later: it looks as if a version were withheld."""
    gateway = a_gateway()
    for request, stays in ((pb.DocumentRequest(history_after=1), False), (pb.DocumentRequest(sha256=b"study"), True)):
        for number, again in enumerate((False, stays)):
            asking = asyncio.create_task(gateway.requested(session(number), request))
            await asyncio.sleep(0)
            if not again:
                [(_, (written,))] = await named(gateway, "requested")
                gateway.answer(written, b"%d" % number, stays)
            assert await asking == (b"0" if stays else b"%d" % number)


async def test_messages_wait_at_their_senders_while_the_coordinator_is_behind() -> None:
    gateway = a_gateway()
    for _ in range(MOST_CALLS + 1):
        gateway.refusal(session(0), pb.Refusal(), 9)
    reading = asyncio.create_task(gateway.room())
    await asyncio.sleep(0)
    assert not reading.done()
    assert len(await gateway.said()) == CALLS_AT_ONCE + 1  # and figures: more would keep it from everything else
    await asyncio.wait_for(reading, 1)


def takes_all(participant: int, message: ConsistencySignature) -> None:
    """As a check of a phase."""


async def test_a_participant_has_one_message_checked_however_often_it_returns() -> None:
    gateway = a_gateway()
    await gateway.check((1, 1), CONSISTENCY_CHECK, pickle.dumps(takes_all), False)
    message = pb.PhaseMessage(round=1, attempt=1, consistency=pb.ConsistencySignature(signature=bytes(64)))
    for _ in range(3):
        gateway.phase_message(session(0), message, 9)
    while not gateway._calls[0].name:
        await asyncio.sleep(0.01)
    assert [name for name, _ in await gateway.said()] == ["checked", "said", "said", "figures"]


async def test_a_port_for_gateways_holds_few_strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is an open file, of which the coordinator has few."""
    monkeypatch.setattr(wire.gateway_channel, "_MOST_STRANGERS", 4)
    port = CallPort("127.0.0.1")
    invitation, joined = await port.invite()
    strangers = [await asyncio.open_connection(invitation.host, invitation.port) for _ in range(10)]
    ended = [asyncio.create_task(reader.read()) for reader, _ in strangers]
    await asyncio.wait(ended, timeout=0.5)
    assert [one.done() for one in ended] == [True] * 6 + [False] * 4
    there = await asyncio.wait_for(invitation.accept(), 5)  # who was invited comes in all the same
    here = await asyncio.wait_for(joined, 5)
    for channel in (here, there):
        channel.close()
    for one, (_, writer) in zip(ended, strangers, strict=True):
        one.cancel()
        writer.close()
    port.close()


async def test_silence_in_the_midst_of_a_message_is_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire.gateway_channel, "BEAT_S", 0.05)
    monkeypatch.setattr(wire.gateway_channel, "SILENT_S", 0.2)
    async with connected() as (here, there):
        there._beating.cancel()
        there._writer.write(wire.gateway_channel._HEADER.pack(1000, 0) + bytes(10))
        with pytest.raises(TimeoutError, match="silent"):
            await asyncio.wait_for(heard(here), 5)


async def test_large_parts_of_calls_travel_once_and_uncopied(monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = os.urandom(600_000), b"small"
    values, table = np.arange(5000, dtype=np.uint32), np.arange(6.0).reshape(2, 3)
    sent: list[Any] = []
    async with connected() as (here, there):
        write = there._writer.writelines
        monkeypatch.setattr(there._writer, "writelines", lambda parts: (sent.extend(parts), write(parts)))
        there.send([("first", (large, values)), ("second", (large, table, small))])
        (first, (one, found)), (second, (other, matrix, little)) = await heard(here)
    assert (first, second, one, little) == ("first", "second", large, small)
    assert other is one
    assert sum(part is large for part in sent) == 1
    np.testing.assert_array_equal(found, values, strict=True)
    np.testing.assert_array_equal(matrix, table, strict=True)


async def test_an_ended_session_counts_as_unread_until_its_gateway_says_otherwise() -> None:
    """Else a participant that goes from gateway to gateway would leave unread messages at each."""
    far: Any = SimpleNamespace(hear=lambda calls: None)
    link = Link(far, SimpleNamespace(sessions=SimpleNamespace(by_token=lambda token: None)))  # type: ignore[arg-type]
    one = RemoteSession(b"identity", 0, "host", b"token", far=link)
    one.cut_off()
    assert one.writing
    link.lost(b"token", "replaced", True)
    assert one.writing
    link.written(b"token")
    assert not one.writing


async def test_gateways_that_start_one_by_one_share_the_credits() -> None:
    links: list[Any] = []
    given: list[int] = []
    attempt: Any = SimpleNamespace(config=make_config(3), grant_credit=None, upload_failed=None)
    uploads = UploadsAtGateways(1, attempt, 64, lambda: links, 4)
    for _ in range(4):
        links.append(SimpleNamespace(call=lambda *call: given.append(call[-1])))
        uploads.begin(links[-1])
    assert given == [16] * 4
