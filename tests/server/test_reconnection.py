"""Participants that come back in the middle of an attempt, and what those get that lie about it."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from client.connection import CHANNEL_OPTIONS, open_session
from secagg.messages import Messages
from secagg.roster import Roster, RosterEntry
from server import service
from server.attempt.outgoing import Outgoing
from server.attempt.reconnection_slots import MOST_RETURNS, MOST_UNREAD, ReconnectionSlots
from server.attempt.returns import MOST_PROOFS, Returns
from server.session_port import SERVER_OPTIONS
from server.sessions import Session, Sessions
from tests.support.study_in_process import (
    PARTICIPANTS,
    Coordinator,
    Peer,
    coordinator,
    identities,
    make_folder,
    playing,
    until,
)
from wire import coordinator_pb2 as pb, transport
from wire.transport import frame

KEPT_S = 3600.0  # a place that is given up here is given up for another reason


class Returning(Peer):
    """Opens a new session in ShareKeys of each round, and does there what the round says."""

    acts: tuple[Callable[[Any, pb.CohortKeys], Awaitable[None]], ...] = ()

    async def on_cohort_keys(self, message: pb.CohortKeys) -> None:
        if message.round <= len(self.acts):
            await self.acts[message.round - 1](self, message)
        else:
            await super().on_cohort_keys(message)

    async def answer(self, message: pb.CohortKeys) -> None:
        await super().on_cohort_keys(message)

    async def come_back(self, ready: pb.Ready) -> None:
        """The old session stays open at this end: the coordinator replaces it."""
        assert self.channel is not None
        self.session = await open_session(self.channel, self.identity, "places")
        await self.session.send(pb.ParticipantMessage(ready=ready))

    async def play(self) -> str | None:
        while True:
            session = self.session
            reason = await super().play()
            if reason is not None or self.session is session:
                return reason

    def resume(self, received: int) -> pb.Ready:
        return pb.Ready(resume=pb.Resume(round=self.number[0], attempt=self.number[1], received=received))


async def rightly(peer: Returning, message: pb.CohortKeys) -> None:
    """It had read this message when its connection broke, and not answered: the answer counts on the new session."""
    peer.session = await open_session(peer.channel, peer.identity, "places")  # type: ignore[arg-type]
    with pytest.raises(grpc.aio.AioRpcError, match="on this session"):  # it hasn't asked for its place
        await peer.upload_unread([frame(b"early")])
    await peer.answer(message)  # nor does this count
    peer.on_resumed = lambda told: peer.session.send(peer.said)  # type: ignore[attr-defined, union-attr]
    await peer.session.send(pb.ParticipantMessage(ready=peer.resume(received=2)))


async def lacking(peer: Returning, message: pb.CohortKeys) -> None:
    """It says that it hasn't got this message: the same bytes again."""
    peer.first = message.SerializeToString()  # type: ignore[attr-defined]
    peer.acts = (*peer.acts[:1], again_the_same)
    await peer.come_back(peer.resume(received=1))


async def again_the_same(peer: Returning, message: pb.CohortKeys) -> None:
    assert peer.first == message.SerializeToString()  # type: ignore[attr-defined]
    peer.first = b"compared"  # type: ignore[attr-defined]
    await peer.answer(message)


def claims(received: int) -> Callable[[Returning, pb.CohortKeys], Awaitable[None]]:
    async def act(peer: Returning, message: pb.CohortKeys) -> None:
        await peer.come_back(peer.resume(received))

    return act


async def of_another_attempt(peer: Returning, message: pb.CohortKeys) -> None:
    await peer.come_back(pb.Ready(resume=pb.Resume(round=peer.number[0], attempt=7, received=2)))


async def without_a_word(peer: Returning, message: pb.CohortKeys) -> None:
    await peer.come_back(pb.Ready())


async def says_it_twice(peer: Returning, message: pb.CohortKeys) -> None:
    """What was taken before the break is said once more after it."""
    await peer.answer(message)
    for _ in range(200):  # until it was taken
        if peer.where.study._attempt._inbox.messages[peer.position] == 2:  # type: ignore[union-attr]
            break
        await asyncio.sleep(0.01)
    said, masks = peer.said, peer.on_neighbour_shares  # type: ignore[attr-defined]

    async def not_here(message: pb.NeighbourShares) -> None:
        """On the old session, where all have answered meanwhile: it says that it hasn't received it."""

    async def on_resumed(told: pb.Resumed) -> None:
        assert told.received == 2
        peer.on_neighbour_shares = masks  # type: ignore[method-assign]
        await peer.session.send(said)  # type: ignore[union-attr]

    peer.on_neighbour_shares, peer.on_resumed = not_here, on_resumed  # type: ignore[method-assign, attr-defined]
    await peer.come_back(peer.resume(received=2))


async def leaves(peer: Returning, message: pb.CohortKeys) -> None:
    assert peer.session is not None
    await peer.session.leave()
    await peer.come_back(pb.Ready())


LIES = {  # what the culprit does, and why it is dropped
    claims(3): "can't have received what it says",
    claims(2**32 - 1): "can't have received what it says",
    of_another_attempt: "replaced by a newer connection",
    without_a_word: "replaced by a newer connection",
    says_it_twice: "sent more bytes than an attempt has",  # counted over both sessions
    leaves: "stopped on purpose",
}


async def rounds_with(where: Coordinator, folder: Path, acts: tuple[Any, ...]) -> Returning:
    keys = identities(folder)
    first = Returning(where, keys[0])
    first.acts = acts
    honest = first.say

    async def say(kind: str, content: Any) -> None:
        first.said = first.wrap(**{kind: content})  # type: ignore[attr-defined]
        await honest(kind, content)

    first.say = say  # type: ignore[method-assign]
    await where.play([first, *(Peer(where, key) for key in keys[1:])])
    return first


async def test_back_on_another_session(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "study", name="places", rounds=2)
    async with coordinator(folder, tmp_path / "s.sqlite", deadlines={"resume_s": KEPT_S}) as where:
        peer = await rounds_with(where, folder, (rightly, lacking))
        assert peer.first == b"compared"  # type: ignore[attr-defined]
        assert [one.received for one in peer.heard("resumed")] == [1, 1]
        assert [one["reason"] for one in where.of("participant_dropped")] == []
        assert [one["u3"] for one in where.of("round_completed")] == [PARTICIPANTS] * 2


async def test_lies_about_what_was_received(tmp_path: Path) -> None:
    """One in each round; the others go on, and in the next round the liar is there again."""
    folder = make_folder(tmp_path / "study", name="places", rounds=len(LIES))
    async with coordinator(folder, tmp_path / "s.sqlite", deadlines={"resume_s": KEPT_S}) as where:
        await rounds_with(where, folder, tuple(LIES))
        dropped = where.of("participant_dropped")
        assert [(one["round"], one["participant"]) for one in dropped] == [(n, 0) for n in range(1, len(LIES) + 1)]
        for one, reason in zip(dropped, LIES.values(), strict=True):
            assert reason in one["reason"]
        assert [one["u1"] for one in where.of("round_completed")] == [PARTICIPANTS] * len(LIES)
        assert where.of("participant_excluded") == []


class Misses(Peer):
    """Cut off instead of uploading; back when the others' sum is being opened, it hears that it isn't charged."""

    async def on_upload_credit(self, message: pb.UploadCredit) -> None:
        assert self.session is not None
        self.session.close()
        await self.where.wait_for("survivors_frozen")
        raise EOFError

    async def play(self) -> str | None:
        with contextlib.suppress(EOFError):
            await super().play()
        await self.connect()
        return await super().play()


async def test_a_proof_is_told_to_who_comes_back_for_it(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "study", name="places", rounds=1)

    Slow.go = asyncio.Event()
    async with coordinator(folder, tmp_path / "s.sqlite", deadlines={"resume_s": 0.05}) as where:
        keys = identities(folder)
        peers = [Misses(where, keys[0]), *(Slow(where, key) for key in keys[1:])]
        async with playing(peers):
            where.start()
            await where.wait_for("survivors_frozen")
            await until(lambda: peers[0].heard("survivor_proof"))
            Slow.go.set()
            await where.finish()


class Gone(Peer):
    """Cuts its connection when it may upload, and stays away."""

    async def on_upload_credit(self, _: pb.UploadCredit) -> None:
        assert self.session is not None
        self.session.close()
        raise EOFError

    async def play(self) -> str | None:
        with contextlib.suppress(EOFError):
            await super().play()
        return None


@pytest.mark.parametrize("rounds", [1, 2])
async def test_a_proof_is_told_after_another_round_and_at_the_end(tmp_path: Path, rounds: int) -> None:
    """Else a participant that is cut off for long, or at the end, has paid for a sum that it isn't in."""
    folder = make_folder(tmp_path / "study", name="places", rounds=rounds)
    async with coordinator(folder, tmp_path / "s.sqlite", deadlines={"resume_s": 0.05}) as where:
        keys = identities(folder)
        await where.play([Gone(where, keys[0]), *(Peer(where, key) for key in keys[1:])])
        assert [one["u3"] for one in where.of("round_completed")] == [PARTICIPANTS - 1] * rounds
        late = Peer(where, keys[0])
        await late.connect()
        assert await late.play() == "rounds done"
        await late.close()
        assert [proof.round for proof in late.heard("survivor_proof")] == [1]


def test_few_proofs_are_held() -> None:
    returns, told = Returns(), list[bytes]()
    for number in range(1, MOST_PROOFS + 2):
        proof = frozenset({bytes([number])}), bytes([number])
        attempt: Any = SimpleNamespace(proof=proof)
        returns.after(attempt)
    for identity in (1, 2, MOST_PROOFS + 1, MOST_PROOFS + 2):
        session: Any = SimpleNamespace(identity=bytes([identity]), send=told.append)
        returns.prove(session, None)
    assert told == [bytes([2]), bytes([MOST_PROOFS + 1])]


class Slow(Peer):
    """Reveals its shares only once ``go`` is set."""

    go: asyncio.Event

    async def on_unmasking_request(self, message: pb.UnmaskingRequest) -> None:
        await self.go.wait()
        await super().on_unmasking_request(message)


# ---------------------------------------------------------------- places, without a network


def session_of(participant: int) -> Session:
    return Session(bytes(32), participant, "host", bytes(32))


async def test_a_place_is_kept_for_its_session_and_its_time() -> None:
    lost: list[tuple[int, str]] = []
    first, stranger = session_of(1), session_of(1)
    places = ReconnectionSlots({1: first}, 0.05, lambda who, why: lost.append((who, why)))
    places.away(stranger, "of no place")
    assert places.get(1) is first
    assert not places.speaks(stranger)
    places.away(first, "connection closed")
    assert places.get(1) is None
    assert not places.back(stranger)  # it hasn't asked
    for _ in range(MOST_RETURNS):
        again = session_of(1)
        assert places.coming(again)
        assert not places.speaks(again)  # not before its turn
        assert places.back(again)
        places.away(again, "connection closed")
    assert not places.coming(session_of(1))
    assert lost == []
    await asyncio.sleep(0.2)
    assert lost == [(1, "connection closed")]
    places.close()

    at_once = ReconnectionSlots({1: first}, 0.0, lambda who, why: lost.append((who, why)))
    at_once.away(first, "the naive way")
    assert lost[1:] == [(1, "the naive way")]


class Unread:
    """The call of a peer that takes nothing, until its connection ends."""

    def __init__(self) -> None:
        self.written = 0
        self.ends, self.said_all = asyncio.Event(), asyncio.Event()

    async def read(self) -> Any:
        await self.said_all.wait()
        return grpc.aio.EOF

    async def write(self, message: bytes) -> None:
        self.written += 1
        await self.ends.wait()


@pytest.mark.parametrize("half_closes", [False, True])
async def test_a_silent_reader_has_few_messages_held(half_closes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC keeps what was handed to it until the connection ends; so the call stays, and the place counts it."""
    roster = Roster("ward", 1, (RosterEntry(bytes(32), "host"),))
    lost: list[str] = []
    study: Any = SimpleNamespace(sessions=Sessions("ward", roster, lambda one, why: places.away(one, why)))
    places = ReconnectionSlots({}, KEPT_S, lambda who, why: lost.append(why))

    async def handshake(*_: Any) -> Session:
        return study.sessions.open(bytes(32))

    async def requests() -> AsyncIterator[bytes]:
        yield b""

    monkeypatch.setattr(service, "_handshake", handshake)
    calls = []
    for count in range(1, MOST_UNREAD + 3):
        context = Unread()
        calls.append((context, asyncio.create_task(service._session(study, requests(), context))))  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        session = study.sessions.get(0)
        taken = places.coming(session)
        assert taken == (count <= MOST_UNREAD + 1)
        if not taken:
            break
        places.back(session)
        for _ in range(10):
            session.send(bytes(100))
        await asyncio.sleep(0.01)
        if half_closes:
            context.said_all.set()
            await asyncio.sleep(0.01)
            assert study.sessions.get(0) is None
            assert session.outbox.qsize() == 1  # that it ends
    assert [one.written for one, _ in calls] == [1] * (MOST_UNREAD + 1) + [0]
    assert [task.done() for _, task in calls] == [False] * len(calls)
    for context, task in calls[:-1]:
        context.ends.set()
        await task
    again = session_of(0)
    assert places.coming(again)  # its connections have ended: nothing is held
    calls[-1][1].cancel()
    await asyncio.gather(calls[-1][1], return_exceptions=True)
    places.close()


async def test_nothing_that_was_sent_is_kept() -> None:
    """Own messages of 100 KiB for 200 participants: what is held is what they are made of."""
    size, people = 100 * 1024, 200

    async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    heard: dict[int, list[bytes]] = {}

    def session_of(who: int) -> Any:
        return SimpleNamespace(far=None, send=lambda message: heard.setdefault(who, []).append(message[:4]))

    outgoing = Outgoing(session_of, set(range(people)), at_once)
    contents = Messages(tuple(range(people)), lambda who: who)
    tracemalloc.start()
    await outgoing.each(contents, lambda who: who.to_bytes(4, "big") + bytes(size))
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * size
    assert held < size
    assert await outgoing.again(7)
    assert heard[7][0] == heard[7][1]
    outgoing.answered(7)
    assert not await outgoing.again(7)  # it has shown that it has it
    for who in contents:
        outgoing.answered(who)
    assert not outgoing._owed


# ---------------------------------------------------------------- pauses, and pings


async def test_a_pause_between_rounds(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "study", name="places", rounds=3)
    async with coordinator(folder, tmp_path / "s.sqlite", study={"pause_s": 0.3}) as where, playing(where.peers()):
        where.start()
        ended = (await where.wait_for("round_completed", round=1))["at"]
        assert (await where.wait_for("attempt_started", round=2))["at"] >= ended + 0.3
        assert len(where.study.sessions) == PARTICIPANTS
        where.study._pace.pause_s = KEPT_S
        told = await where.wait_for("pausing", round=2)
        assert told["left_s"] == KEPT_S
        await where.stop()
        assert where.running is not None
        assert where.running.cancelled()
    assert where.of("participant_dropped") == []
    assert where.of("pausing", round=3) == []


def test_both_ends_agree_on_pings() -> None:
    """Too many pings, and the coordinator closes the connection; too few, and a NAT forgets it."""
    participant, serving = dict(CHANNEL_OPTIONS), dict(SERVER_OPTIONS)
    assert dict(transport.PARTICIPANT_OPTIONS).items() <= participant.items()
    assert dict(transport.COORDINATOR_OPTIONS).items() <= serving.items()
    least = serving["grpc.http2.min_ping_interval_without_data_ms"]
    assert 1.5 * least <= participant["grpc.keepalive_time_ms"] < 30_000
    assert participant["grpc.keepalive_permit_without_calls"] == serving["grpc.keepalive_permit_without_calls"] == 1
    assert transport.HEARTBEAT_S < 60


NAIVE = "grpc.http2.min_recv_ping_interval_without_data_ms"  # gRPC knows no such option, and counts pings by its own


async def silent(options: Sequence[tuple[str, int]], seconds: float) -> bool:
    """Whether a stream that nothing is sent on lives that long, with times twenty times shorter than ours."""

    def shorter(given: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
        return [(name, round(value / 20) if name.endswith("_ms") else value) for name, value in given]

    async def session(requests: Any, context: Any) -> AsyncIterator[bytes]:
        async for _ in requests:
            yield b"here"

    handler = grpc.method_handlers_generic_handler("Any", {"Call": grpc.stream_stream_rpc_method_handler(session)})
    server = grpc.aio.server(options=shorter(options))
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    caller = shorter([*transport.CALLER_OPTIONS, *transport.PARTICIPANT_OPTIONS])
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=caller) as channel:
        call: Any = channel.stream_stream("/Any/Call")()
        await call.write(b"")
        assert await call.read() == b"here"
        reading = asyncio.ensure_future(call.read())
        await asyncio.wait([reading], timeout=seconds)
        lives = not reading.done()
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await server.stop(None)
    return lives


async def test_a_silent_stream_is_kept_open() -> None:
    """For 150 s of ours; under another name of the option it is closed after 100 s (`too_many_pings`)."""
    naive = [
        (NAIVE if name.startswith("grpc.http2.min_") else name, value) for name, value in transport.COORDINATOR_OPTIONS
    ]
    kept, closed = await asyncio.gather(silent(transport.COORDINATOR_OPTIONS, 7.5), silent(naive, 7.5))
    assert kept
    assert not closed
