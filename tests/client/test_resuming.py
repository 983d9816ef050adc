"""Connections that break within an attempt: no participant drops out, nothing is sent twice, the sum is right."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import grpc
import numpy as np
import pytest
from structlog.testing import capture_logs

import client.behaviour
import client.connection
import client.participant_host
import client.unreachable
import server.sessions
from client.behaviour import Behaviour, Encoding, Words
from client.connection import Channels
from client.log_lines import RoundLines
from client.participant import Participant
from client.resuming import ResumableSession
from secagg.keys import IdentityKey
from sordino.lab.loadtest.proxy import TcpProxy
from tests.support.host_in_process import Story, host, record, rows_of, settings_of
from tests.support.study_in_process import PARTICIPANTS, Coordinator, coordinator, make_folder
from wire import coordinator_pb2 as pb
from wire.records.ledger_totals import DAY_S
from wire.transport import frame

SAID = ("advertise_keys", "share_keys", "masked_input", "consistency", "unmasking")
TOLD = ("round_start", "cohort_keys", "neighbour_shares", "upload_credit", "survivor_sets", "unmasking_request")
ARRIVED = "all of an upload but its end"
SENDING = "sending"  # a participant's message isn't written yet: it is surely lost, others by chance
MOMENTS = (*SAID, "upload", ARRIVED, *TOLD, SENDING)  # one in each round
PIECE = 64  # of a vector, so that it has many


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("resuming") / "study", rounds=len(MOMENTS), name="breaks")


def pieces(packed: bytes) -> Iterator[bytes]:
    return (frame(packed[at : at + PIECE]) for at in range(0, len(packed), PIECE))


@dataclass
class Breaks:
    """Seven participants behind a proxy, all on one connection, which is reset at named moments."""

    proxy: TcpProxy
    at: dict[int, str]  # round -> moment
    done: set[int] = field(default_factory=set)
    story: Story = field(default_factory=Story)
    sent: dict[Any, list[bytes]] = field(default_factory=lambda: defaultdict(list))  # by participant, attempt and kind
    vectors: dict[Any, Any] = field(default_factory=dict)  # round, identity
    totals: dict[int, Any] = field(default_factory=dict)
    host: Any = None
    counts: dict[Any, int] = field(default_factory=lambda: defaultdict(int))

    def reach(self, round_: int, moment: str) -> None:
        """Count participants that reach a moment; at the third one all connections break."""
        self.counts[round_, moment] += 1
        if self.at.get(round_) == moment and self.counts[round_, moment] == 3 and round_ not in self.done:
            self.done.add(round_)
            assert self.proxy.reset_all() == 1

    def watch_coordinator(self, where: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
        record(where, self.story)
        study = where.study
        phase_message, finish, upload = study.phase_message, study._finish, study.upload
        send = server.sessions.Session.send

        def on_phase(session: Any, message: pb.PhaseMessage, size: int) -> None:
            phase_message(session, message, size)
            self.reach(message.round, message.WhichOneof("message") or "")

        def on_send(session: Any, data: bytes) -> None:
            message = pb.CoordinatorMessage.FromString(data)
            kind = message.WhichOneof("message") or ""
            send(session, data)
            if kind in TOLD:
                self.reach(getattr(message, kind).round, kind)

        async def on_finish(attempt: Any, completed: Any, began: float) -> None:
            self.totals[attempt.config.round] = completed
            await finish(attempt, completed, began)

        async def on_upload(session: Any, chunks: Any) -> bytes:
            round_, uploads = study._attempt.config.round, study._attempt._uploads
            doomed = self.at.get(round_) == ARRIVED and round_ not in self.done

            async def watched() -> AsyncIterator[bytes]:
                async for one in chunks:
                    yield one
                    self.reach(round_, "upload")
                    if doomed and len(uploads._offers[session.participant].staged) == uploads.size:
                        self.reach(round_, ARRIVED)
                        await asyncio.Event().wait()  # its end is lost, and gRPC cancels the call

            return await upload(session, watched())

        study.phase_message, study._finish, study.upload = on_phase, on_finish, on_upload  # type: ignore[method-assign]
        monkeypatch.setattr(server.sessions.Session, "send", on_send)

    def watch_participants(self, monkeypatch: pytest.MonkeyPatch) -> None:
        send = ResumableSession.send
        raw = client.connection.Session.send

        async def on_send(line: Any, message: pb.ParticipantMessage) -> None:
            if message.WhichOneof("message") == "phase":
                phase = message.phase
                self.counts["made", line, phase.round, phase.attempt, phase.WhichOneof("message")] += 1
            await send(line, message)

        async def on_raw(session: Any, message: pb.ParticipantMessage) -> None:
            if message.WhichOneof("message") == "phase":
                phase = message.phase
                key = session.of, phase.round, phase.attempt, phase.WhichOneof("message")
                self.sent[key].append(message.SerializeToString())
                self.reach(phase.round, SENDING)
            await raw(session, message)

        opened = client.participant_host.open_session

        async def open_session(channel: Any, identity: Any, study: str) -> Any:
            session = await opened(channel, identity, study)
            session.of = identity.public
            return session

        monkeypatch.setattr(client.participant_host, "open_session", open_session)
        monkeypatch.setattr(ResumableSession, "send", on_send)
        monkeypatch.setattr(client.connection.Session, "send", on_raw)
        monkeypatch.setattr(client.behaviour, "frames", pieces)


class _Masks(Behaviour):
    """The honest participant; notes the vector of each round."""

    def __init__(self, vectors: dict[tuple[int, bytes], Any], identity: bytes) -> None:
        self._vectors, self._identity = vectors, identity

    async def mask(self, encoding: Encoding, encode: Callable[[], Awaitable[Words]]) -> Words:
        made = await encode()
        key = encoding.number[0], self._identity
        assert key not in self._vectors  # noise is drawn once
        self._vectors[key] = made.copy()
        return made


@contextlib.asynccontextmanager
async def breaking(
    folder: Path, work: Path, monkeypatch: pytest.MonkeyPatch, at: dict[int, str], **deadlines: float
) -> AsyncIterator[tuple[Coordinator, Breaks]]:
    async with coordinator(folder, work / "state.sqlite", deadlines=deadlines) as where:
        target, _, port = where.address.rpartition(":")
        proxy = TcpProxy((target, int(port)))
        try:
            breaks = Breaks(proxy, at)
            breaks.watch_coordinator(where, monkeypatch)
            breaks.watch_participants(monkeypatch)
            address = f"localhost:{await proxy.start()}"
            where.start()
            settings = settings_of(folder, work / "journal.sqlite", address)
            async with host(settings, behaviours=lambda one: _Masks(breaks.vectors, one)) as breaks.host:
                yield where, breaks
        finally:
            await proxy.close()


def check(where: Coordinator, breaks: Breaks) -> None:
    """Nothing was counted twice, repeated messages are identical, and the sums are those of the vectors."""
    taken = [(who, one.round, one.attempt, one.WhichOneof("message")) for who, one in breaks.story.messages]
    assert len(taken) == len(set(taken))
    assert all(len(set(said)) == 1 for said in breaks.sent.values())
    assert all(count == 1 for key, count in breaks.counts.items() if key[0] == "made")
    roster = where.study.roster
    for round_, completed in breaks.totals.items():
        mask = (1 << where.study._plan.bits) - 1
        inputs = [breaks.vectors[round_, roster.identity(who)].astype(np.uint64) for who in completed.u3]
        assert np.array_equal(sum(inputs) & np.uint64(mask), completed.total.astype(np.uint64))


@pytest.mark.long
async def test_at_every_moment(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All messages under way are lost, in both directions, in each phase and within the uploads."""
    monkeypatch.setattr(client.participant_host, "STEADY_S", 0.0)  # rounds are so short that it looks like a bad link

    at = dict(enumerate(MOMENTS, 1))
    async with breaking(folder, tmp_path, monkeypatch, at, resume_s=20.0) as (where, breaks):
        await where.finish()
    assert where.of("participant_dropped") == []
    assert where.of("attempt_aborted") == []
    assert [one["u3"] for one in where.of("round_completed")] == [PARTICIPANTS] * len(MOMENTS)
    assert breaks.done == set(at)
    check(where, breaks)
    assert any(len(said) > 1 for said in breaks.sent.values())  # else nothing was lost, and nothing was tested
    resumed = defaultdict(set)
    for event in where.of("participant_resumed"):
        resumed[event["round"]].add(event["participant"])
    few = {"unmasking": 0, "unmasking_request": 1}  # the round ends as soon as enough have answered
    assert all(len(resumed[round_]) >= few.get(moment, 5) for round_, moment in at.items()), dict(resumed)


async def test_without_a_place_they_all_drop_out(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The naive coordinator: with resume_s = 0 the same break ends the attempt."""
    async with breaking(folder, tmp_path, monkeypatch, {1: "share_keys"}, resume_s=0.0) as (where, breaks):
        await where.wait_for("attempt_aborted", round=1)
        await where.wait_for("round_completed", round=1)  # the next attempt has all of them again
    dropped = where.of("participant_dropped", round=1, attempt=1)
    assert {one["reason"] for one in dropped} == {"connection closed"}
    assert len(dropped) > 2
    assert where.of("participant_resumed") == []
    check(where, breaks)


async def test_a_stopped_host_is_not_waited_for(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM cancels the host: it announces that, and its slot isn't kept for an hour."""
    async with breaking(folder, tmp_path, monkeypatch, {}, resume_s=3600.0) as (where, breaks):
        await where.wait_for("phase_started", round=1, phase="MaskedInputCollection")
        breaks.host.cancel()
        await where.wait_for("attempt_aborted", round=1)
    assert {one["reason"] for one in where.of("participant_dropped")} == {"stopped on purpose"}


# ---------------------------------------------------------------- a coordinator that lies about what it has


class FakeSession:
    """Notes what is sent."""

    def __init__(self) -> None:
        self.sent: list[pb.ParticipantMessage] = []

    async def send(self, message: pb.ParticipantMessage) -> None:
        self.sent.append(message)


def said(kind: str) -> pb.ParticipantMessage:
    content = {"advertise_keys": pb.Advertisement(mask_key=b"m"), "share_keys": pb.SealedShares(signature=b"s")}[kind]
    return pb.ParticipantMessage(phase=pb.PhaseMessage(round=1, attempt=2, **{kind: content}))


async def broken_line() -> tuple[ResumableSession, FakeSession]:
    """A participant that has said two things in attempt (1, 2), and is on its second session."""
    line, first, second = ResumableSession(), FakeSession(), FakeSession()
    assert line.attach(first) == pb.Ready()  # type: ignore[arg-type]
    await line.heard("round_start", pb.RoundStart(round=1, attempt=2))
    await line.send(said("advertise_keys"))
    await line.heard("cohort_keys", pb.CohortKeys(round=1, attempt=2))
    await line.heard("upload_credit", pb.UploadCredit(round=1, attempt=2))  # not counted
    line.detach(first)  # type: ignore[arg-type]
    await line.send(said("share_keys"))  # made without a session
    assert [one.phase.WhichOneof("message") for one in first.sent] == ["advertise_keys"]
    assert line.attach(second) == pb.Ready(resume=pb.Resume(round=1, attempt=2, received=2))  # type: ignore[arg-type]
    return line, second


@pytest.mark.parametrize(("received", "again"), [(0, None), (1, ["share_keys"]), (2, []), (3, None), (2**32 - 1, None)])
async def test_it_says_again_what_is_lacking_and_no_more(received: int, again: list[str] | None) -> None:
    line, session = await broken_line()
    taken = not await line.heard("resumed", pb.Resumed(round=1, attempt=2, received=received))
    assert taken == (again is not None)  # else the participant refuses to go on
    assert session.sent == [said(kind) for kind in again or ()]
    if taken:  # once
        assert await line.heard("resumed", pb.Resumed(round=1, attempt=2, received=received))
        assert len(session.sent) == len(again or ())


@pytest.mark.parametrize("number", [(1, 1), (2, 1), (1, 3)])
async def test_another_attempt_is_not_resumed(number: tuple[int, int]) -> None:
    line, session = await broken_line()
    assert await line.heard("resumed", pb.Resumed(round=number[0], attempt=number[1], received=1))
    await line.send(said("share_keys"))
    assert session.sent == []


async def test_a_refusal_is_said_as_soon_as_it_is_heard() -> None:
    """The coordinator ignores a refusal before its answer."""
    line, session = await broken_line()
    refusal = pb.ParticipantMessage(refusal=pb.Refusal(round=1, attempt=2, code=pb.REFUSAL_CODE_LOCAL_FAILURE))
    await line.send(refusal)
    assert session.sent == []
    assert not await line.heard("resumed", pb.Resumed(round=1, attempt=2, received=1))
    assert session.sent == [refusal]
    assert line.number is None


def beat_often(monkeypatch: pytest.MonkeyPatch, answer_s: float) -> None:
    monkeypatch.setattr(client.connection, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(client.connection, "HEARTBEAT_ANSWER_S", answer_s)


async def no_write(_: pb.ParticipantMessage) -> None:
    """Lose a message."""


def session_of(read: Callable[[], Awaitable[Any]], write: Any = no_write) -> client.connection.Session:
    """A session whose stream is these two functions."""
    call: Any = SimpleNamespace(read=read, write=write, cancel=lambda: None)
    return client.connection.Session(call, None, pb.Welcome())  # type: ignore[arg-type]


def lonely() -> Any:
    """A participant that nothing but the test talks to, with room for two messages."""
    study: Any = mock.Mock(lines=RoundLines(dict))
    made: Any = Participant(IdentityKey.generate(os.urandom), mock.Mock(), study, mock.Mock())
    made._inbox = asyncio.Queue(2)
    return made


async def test_what_there_was_no_room_for_has_not_been_heard() -> None:
    """A session ends while a message waits behind others: the participant requests it again."""
    participant = lonely()
    told = [
        pb.CoordinatorMessage(round_start=pb.RoundStart(round=1, attempt=2)),
        pb.CoordinatorMessage(upload_credit=pb.UploadCredit(round=1, attempt=2)),
        pb.CoordinatorMessage(cohort_keys=pb.CohortKeys(round=1, attempt=2)),
    ]

    async def messages() -> AsyncIterator[pb.CoordinatorMessage]:
        for message in told:
            yield message

    session: Any = SimpleNamespace(messages=messages)
    listening = asyncio.create_task(participant._listen(session))
    await asyncio.sleep(0.01)
    assert participant._inbox.full()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    ready = participant._session.attach(FakeSession())
    assert ready == pb.Ready(resume=pb.Resume(round=1, attempt=2, received=1))


async def test_the_end_of_a_study_is_heard_after_a_long_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator has ended by then and answers no heartbeat, but the session ended with StudyEnd."""
    beat_often(monkeypatch, 0.05)
    told: list[Any] = [
        pb.CoordinatorMessage(round_start=pb.RoundStart(round=1, attempt=1)),
        pb.CoordinatorMessage(study_end=pb.StudyEnd(reason="rounds done")),
        grpc.aio.EOF,
    ]

    async def read() -> Any:
        await asyncio.sleep(0)
        return told.pop(0)

    async def training(*_: Any) -> Any:
        await asyncio.sleep(0.5)

    participant = lonely()
    participant._guarded = training
    session = session_of(read)
    assert await participant.take_part(session, SimpleNamespace(study_sha256=b"")) == "rounds done"
    await participant.close()


async def test_answers_that_wait_behind_others_are_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """During a long training the queue of messages is full; the coordinator is alive."""
    beat_often(monkeypatch, 0.05)

    async def read() -> Any:
        await asyncio.sleep(0)
        return pb.CoordinatorMessage(round_end=pb.RoundEnd(round=1, attempt=1))

    session = session_of(read)
    beating = asyncio.create_task(session.beat())
    assert not (await asyncio.wait({beating}, timeout=0.5))[0]
    beating.cancel()
    session.close()


async def test_a_silent_coordinator_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers only the first three heartbeats."""
    beat_often(monkeypatch, 0.2)
    answers, heartbeats = asyncio.Queue[Any](), list[pb.ParticipantMessage]()

    async def write(message: pb.ParticipantMessage) -> None:
        assert message.WhichOneof("message") == "heartbeat"
        heartbeats.append(message)
        if len(heartbeats) < 4:
            answers.put_nowait(pb.CoordinatorMessage(heartbeat=pb.Heartbeat()))

    session = session_of(answers.get, write)
    with pytest.raises(TimeoutError):
        await session.beat()
    assert len(heartbeats) == 4
    session.close()


def test_a_thousand_do_not_return_together() -> None:
    """From the first retry on, only a small share returns at any time."""
    hour = 3600.0
    for failures, away_s, longest in (
        (1, 0.0, 0.2),
        (2, 1.0, 0.5),
        (3, 2.0, 1.0),
        (9, 60.0, 2.0),
        (60, hour, 177.0),
        (60, 100 * hour, hour),
    ):
        waits = sorted(client.participant_host._backoff_s(failures, away_s) for _ in range(1000))
        assert 0.2 * longest < waits[0]
        assert waits[-1] <= longest
        tenth = longest / 20
        most = max(sum(begin <= wait < begin + tenth for wait in waits) for begin in np.arange(0, longest, tenth))
        assert most < 180  # 100 on the mean where half of the time is used: 8 standard deviations


# ---------------------------------------------------------------- without its coordinator for a day


async def test_a_day_and_back(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits pass at once, and the coordinator doesn't answer until they sum to a day."""
    waits: list[float] = []
    cuts: list[float] = []
    is_connected, rest, cut = client.participant_host.is_connected, Participant.rest, Channels.cut

    async def no_answer(channel: Any, within_s: float) -> bool:
        if sum(waits) >= DAY_S:
            return await is_connected(channel, within_s)
        await asyncio.sleep(0)
        raise TimeoutError

    async def at_once(self: Participant, seconds: float) -> None:
        if seconds:
            waits.append(seconds)
        await rest(self, 0)

    async def counted(self: Channels) -> None:
        cuts.append(sum(waits))
        await cut(self)

    monkeypatch.setattr(client.participant_host, "is_connected", no_answer)
    monkeypatch.setattr(Participant, "rest", at_once)
    monkeypatch.setattr(Channels, "cut", counted)
    clock = SimpleNamespace(monotonic=lambda: sum(waits), time=time.time, perf_counter=time.perf_counter)
    monkeypatch.setattr(client.participant_host, "time", clock)
    monkeypatch.setattr(client.unreachable, "time", clock)
    journal = tmp_path / "journal.sqlite"

    with capture_logs() as logs:
        async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
            where.start()
            settings = settings_of(study_folder, journal, where.address, coordinator={"give_up_s": 0.0})
            alone = replace(settings, participants=settings.participants[:1])
            async with host(alone) as task, asyncio.timeout(60):
                while not where.study.sessions.ready():
                    assert not task.done()
                    await asyncio.sleep(0.01)
    at = [sum(waits[:count]) for count in range(len(waits))]
    for away, wait in zip(at, waits, strict=True):
        assert wait <= max(2.0, away / 20)  # a coordinator that is only restarted has its participants back at once
        assert away < 5 or wait >= min(1800.0, max(1.0, (away - 60) / 40))
    assert DAY_S <= sum(waits) < DAY_S * 21 / 20
    assert len(waits) < 400
    assert [away for away in cuts if away < 60] == []
    assert len(cuts) > 100  # gRPC doesn't try meanwhile
    said = [one["event"] for one in logs if "coordinator" in one["event"]]
    assert [re.sub(r"\d+", "N", one) for one in said] == [
        "coordinator away, trying again until it is stopped",
        "coordinator away for N s, trying again until it is stopped",
        "coordinator away for N minutes, trying again until it is stopped",
        "the coordinator is back",
    ]
    assert rows_of(journal.with_name("spent.sqlite")) == []  # rounds without it cost nothing


async def test_the_first_that_gets_through_wakes_the_others(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven participants of one process, each in its own long wait, on channels that are replaced meanwhile."""
    monkeypatch.setattr(client.participant_host, "QUICK_S", 0.0)
    monkeypatch.setattr(client.participant_host, "RETRY_S", (0.01, 0.02))
    monkeypatch.setattr(client.participant_host, "PART_OF_ABSENCE", 0.3)
    is_connected, cut = client.participant_host.is_connected, Channels.cut
    cuts: list[None] = []
    late: list[None] = []

    async def no_answer(channel: Any, within_s: float) -> bool:
        if len(cuts) >= 5:
            monkeypatch.setattr(client.participant_host, "PART_OF_ABSENCE", 1e6)  # an hour's wait for those that fail
            late.append(None)
            if len(late) > 3:
                return await is_connected(channel, within_s)
        await asyncio.sleep(0)
        raise TimeoutError

    async def counted(self: Channels) -> None:
        cuts.append(None)
        await cut(self)

    monkeypatch.setattr(client.participant_host, "is_connected", no_answer)
    monkeypatch.setattr(Channels, "cut", counted)
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        where.start()
        settings = settings_of(study_folder, tmp_path / "journal.sqlite", where.address, coordinator={"give_up_s": 0.0})
        async with host(settings) as task, asyncio.timeout(60):
            assert await task == 0
        assert all(event["u3"] == PARTICIPANTS for event in where.of("round_completed"))
