"""A whole study with cheating participants in it, and everything that is seen of it.

The coordinator is the real one, the honest participants run what `sordino join` runs. Nothing waits for a clock: honest
messages are held back until the cheat has arrived, so no phase ends before it. Where silence is the cheat, the
coordinator's clock is put forward once all others have answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import grpc
from numpy.typing import NDArray
from structlog.testing import capture_logs

import server.cohort_wait
from client.credentials import load_identity
from client.host_file import load
from client.settings import HostSettings
from learning import datasets
from mechanisms import plan
from mechanisms.encoder import Encoder
from runtime.failure import ExitCode, Failure
from secagg import client_phases
from server.attempt import attempt
from server.attempt.inbox import Inbox
from server.attempt.steps import Said
from server.attempt.uploads import Uploads
from server.engine import gateway
from server.engine.gateway import VectorsOfGateway
from tests.adversary.cheating_participant import CHECK, UNMASK, Cheat, Cheater
from tests.adversary.script import Naive, Places
from tests.support import study_in_process
from tests.support.host_in_process import host
from tests.support.study_in_process import Coordinator, coordinator, identities
from wire import coordinator_pb2 as pb
from wire.records.transcript import read_transcript

STUCK_S = 20.0  # a study in which nothing happens for this long hangs
STUCK_NAIVE_S = 2.0  # on a naive side, which may well hang
LOOK_S = 0.05  # between two looks; counted as no more even if a busy machine takes longer
GONE_S = 3600.0  # by how much a clock is put forward
BUDGET_REACHED = "budget reached"
Vector = NDArray[Any]


@dataclass(frozen=True)
class Off(Naive):
    """`Naive` for the coordinator's rooms: without a check a study may hang, and the wait for that is short."""

    patience_s: float = STUCK_NAIVE_S

    def patient(self) -> Naive | None:
        if self.patience_s == STUCK_S:
            return None
        return replace(self, patience_s=STUCK_S, also=tuple(one.patient() or one for one in self.also))

    @contextlib.contextmanager
    def switched_off(self) -> Iterator[None]:
        token = _patience_s.set(self.patience_s)
        try:
            with super().switched_off():
                yield
        finally:
            _patience_s.reset(token)


_patience_s: ContextVar[float] = ContextVar("patience_s", default=STUCK_S)


@dataclass
class Opened:
    """A sum that a coordinator opened."""

    u3: frozenset[int]
    total: Vector  # without the noise that was taken back
    answered: frozenset[int] = frozenset()  # participants that took noise back


@dataclass
class Stage:
    """A study with cheats in it, during and after its run."""

    where: Coordinator = None  # type: ignore[assignment]
    cheaters: dict[int, Cheater] = field(default_factory=dict)
    honest: list[int] = field(default_factory=list)
    vectors: dict[tuple[int, int, int], Vector] = field(default_factory=dict)  # round, attempt, participant
    noise_seeds: dict[tuple[int, int, int], tuple[bytes, ...]] = field(default_factory=dict)  # of the same
    bits: int = 0
    opened: dict[tuple[int, int], Opened] = field(default_factory=dict)
    ended: str = ""
    logs: list[Any] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    arrived: Counter[int] = field(default_factory=Counter)
    inbox: int = 0  # longest
    outbox: int = 0
    uploaded: Counter[int] = field(default_factory=Counter)  # bytes read of one upload, at most
    hosts_ended: list[str] = field(default_factory=list)
    on_record: dict[int, dict[bytes, str]] = field(default_factory=dict)  # transcript of a round: who is excluded
    clock_s: float = 0.0
    signed: set[tuple[int, int]] = field(default_factory=set)  # (round, who): a message to ConsistencyCheck has come
    silent: frozenset[int] = frozenset()
    activity: int = 0

    @property
    def events(self) -> list[dict[str, Any]]:
        return self.where.events

    def of(self, kind: str, **wanted: Any) -> list[dict[str, Any]]:
        return self.where.of(kind, **wanted)

    def cheated(self, round_: int, kind: str) -> bool:
        """Tell whether every cheat of a phase has been done and has reached the coordinator."""
        if kind == UNMASK and any(cheater.returning for cheater in self.cheaters.values()):
            return False  # the next round is with them
        for who, cheater in self.cheaters.items():
            if round_ not in cheater.cheat.rounds or kind not in cheater.cheat.kinds():
                continue
            silent = who in self.silent and (round_, CHECK) in cheater.cheated
            if kind == UNMASK and silent and self.arrived[who] >= cheater.owed and (round_, who) not in self.signed:
                continue  # a participant that has not signed is not asked for shares
            if (round_, kind) not in cheater.cheated and who in self.present(round_):
                return False
            if self.arrived[who] < cheater.owed and not self.lost(who) and not cheater.left_unsent:
                return False
        return True

    def present(self, round_: int) -> frozenset[int]:
        """Return the participants that are still in the attempt."""
        running = self.where.study._attempt
        return frozenset() if running is None else frozenset(running._alive)

    def lost(self, who: int) -> bool:
        """Tell whether a participant has no session now."""
        return self.where.study.sessions.get(who) is None

    def contribution(self, round_: int, attempt: int, who: int) -> Vector:
        """Return what a participant's vector is in the opened sum: without the noise that it takes back, if it does."""
        key, opened = (round_, attempt, who), self.opened[round_, attempt]
        if who not in opened.answered:
            return self.vectors[key]
        encoder, survivors = Encoder(self.where.study._plan, bytes(32)), len(opened.u3)
        released = encoder.plan.released_parts(survivors)
        seeds = [seed for part, seed in enumerate(self.noise_seeds[key]) if released >> part & 1]
        return encoder.without_surplus(self.vectors[key], survivors, [seeds])

    def identity(self, who: int) -> bytes:
        return bytes(self.where.study.roster.entries[who].identity)


async def play(
    places: Places,
    cheats: Mapping[int, Cheat],
    *,
    participants: int = 7,
    rounds: int = 2,
    silent: frozenset[int] = frozenset(),
    stall_s: float | None = None,
    study: Mapping[str, Any] | None = None,
    coordinator_table: Mapping[str, Any] | None = None,
) -> Stage:
    """Run a study to its end with these cheats, by position in the roster.

    Args:
        silent: participants for which the coordinator's clock is put forward when it waits for no others.
        stall_s: longest wait for a chunk of a cheat's upload; None leaves it. Honest uploads have no such limit, so
            that none is dropped on a busy machine.
        study: options of the study, beside those below.
    """
    fewest = (participants + 2) // 2 + 1
    options = {
        **{"participants": participants, "rounds": rounds, "task": "synthetic", "task_options": {"dim": 8}},
        **{"min_survivors": fewest, "quorum": fewest},
        **(study or {}),
    }
    # A study's name stands for its options.
    name = "study-" + hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()[:12]
    folder = places.study(name, **options)
    work, stage = places.work(), Stage(silent=silent)
    tables = {"coordinator": {"max_attempts": 2, **(coordinator_table or {})}}
    with capture_logs() as stage.logs, _watched(stage, stall_s):
        async with contextlib.AsyncExitStack() as stack:
            # Cutting the connection is a dropout at once; tests/server/test_reconnection.py has those that come back.
            tables["deadlines"] = {"resume_s": 0.0, **tables.get("deadlines", {})}
            stage.where = await stack.enter_async_context(coordinator(folder, work / "state.sqlite", **tables))
            await stack.enter_async_context(_listening(stage))
            keys = identities(folder)
            homes = {load_identity(one.key).public: home for home in _homes(folder) for one in _load(home).participants}
            stage.honest = [who for who in range(participants) if who not in cheats]
            for who, cheat in cheats.items():
                home = homes[keys[who].public]
                stage.cheaters[who] = Cheater(stage.where, keys[who], stage=stage, cheat=cheat, me=who, home=home)
            honest = {keys[who].public for who in stage.honest}
            settings = [_settings(home, work, stage.where.address, honest) for home in _homes(folder)]
            hosts = [await stack.enter_async_context(host(one)) for one in settings if one.participants]
            await stack.enter_async_context(_cheating(stage))
            stage.where.start()
            await _until_over(stage)
            if stage.ended in ("rounds done", BUDGET_REACHED):
                stage.hosts_ended = await _ended(hosts)
    for path in sorted((work / "transcripts").glob("round-*.transcript")):
        transcript = read_transcript(path.read_bytes())
        stage.on_record[transcript.round] = {one.identity: one.reason for one in transcript.excluded}
    return stage


def _homes(folder: Path) -> list[Path]:
    return sorted((folder / "hosts").iterdir())


async def _until_over(stage: Stage) -> None:
    running = stage.where.running
    assert running is not None
    seen, idle_looks = -1, 0
    while not running.done():
        await asyncio.wait({running}, timeout=LOOK_S)
        active = stage.activity + sum(event["kind"] not in _IDLE for event in stage.events)
        if active != seen:
            seen, idle_looks = active, 0
            continue
        idle_looks += 1
        if idle_looks * LOOK_S > _patience_s.get():
            stage.ended = "hang"
            return
    try:
        stage.ended = running.result().reason
    except Exception as error:
        stage.ended = f"crash: {type(error).__name__}: {error}"


_IDLE = ("phase_progress", "waiting_for_participants", "waiting_for_enrolment")


@contextlib.asynccontextmanager
async def _cheating(stage: Stage) -> AsyncIterator[None]:
    cheaters = list(stage.cheaters.values())
    await asyncio.gather(*(one.connect() for one in cheaters))
    tasks = [asyncio.create_task(one.play()) for one in cheaters]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, grpc.aio.AioRpcError):
                stage.faults.append(f"the script itself failed: {type(result).__name__}: {result}")
        await asyncio.gather(*(one.close() for one in cheaters))


async def _ended(hosts: list[asyncio.Task[int]]) -> list[str]:
    """Return how the hosts ended that did not end well."""
    done, waiting = await asyncio.wait(hosts, timeout=_patience_s.get())
    errors = [error for task in done if (error := task.exception()) is not None]
    bad = [str(one) for one in errors if not (isinstance(one, Failure) and one.code == ExitCode.STUDY)]
    return ["it is still waiting"] * bool(waiting) + bad


def _settings(home: Path, work: Path, address: str, honest: set[bytes]) -> HostSettings:
    settings = _load(home).settings()
    return replace(
        settings,
        host=replace(settings.host, journal=work / f"{home.name}.sqlite", ledger=work / home.name / "spent.sqlite"),
        coordinator=replace(settings.coordinator, address=address),
        participants=tuple(one for one in settings.participants if load_identity(one.key).public in honest),
    )


# ---------------------------------------------------------------- observation


@contextlib.contextmanager
def _watched(stage: Stage, stall_s: float | None) -> Iterator[None]:
    """Note what is masked, opened and queued."""
    mask, run, put = client_phases.Masking.mask, attempt.Attempt.run, Inbox.put_message
    without_surplus = Encoder.without_surplus

    def noting_mask(self: Any, vector: Vector) -> Any:
        config = self._cohort.config
        key = config.round, config.attempt, self._cohort.me
        stage.vectors[key], stage.noise_seeds[key] = vector.copy(), self.noise_seeds
        stage.bits = config.parameters.bits
        return mask(self, vector)

    async def noting_run(self: Any) -> Any:
        completed = await run(self)
        number = self.config.round, self.config.attempt
        stage.opened[number] = Opened(completed.u3, completed.total.copy(), frozenset(completed.noise_seeds))
        return completed

    def noting_total(self: Any, *given: Any) -> Vector:
        [*_, opened] = stage.opened.values()
        opened.total = without_surplus(self, *given)
        return opened.total.copy()

    def noting_put(self: Any, participant: int, arrival: Any, size: int) -> None:
        put(self, participant, arrival, size)
        stage.inbox = max(stage.inbox, len(self._queue))

    changes = [
        (client_phases.Masking, "mask", noting_mask),
        (attempt.Attempt, "run", noting_run),
        (Encoder, "without_surplus", noting_total),
        (Inbox, "put_message", noting_put),
        (attempt, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + stage.clock_s)),
        (attempt, "PROGRESS_INTERVAL_S", 0.05),
        (server.cohort_wait, "RETURN_S", 0.2),
        # Half of what a study costs is the same every time: its files, its noise, examples that no test looks at.
        (datasets, "_read_subset", _subset),
        (plan, "calibrate", _noise),
        (study_in_process, "load_host", _load),
    ]
    if stall_s is not None:
        for place in (attempt, gateway):
            changes.append((place, "Uploads", lambda *given: _uploads(stage, stall_s, *given)))
    logger, handler = logging.getLogger(), _Faults(stage)
    logger.addHandler(handler)
    with contextlib.ExitStack() as stack:
        stack.callback(logger.removeHandler, handler)
        for place, name, value in changes:
            stack.enter_context(mock.patch.object(place, name, value))
        yield


def _uploads(stage: Stage, stall_s: float, size: int, credits: int, grant: Any, expired: Any) -> Uploads:
    """Make an attempt's uploads, in which only a cheat can stall."""

    def expired_of_cheats(participant: int, reason: str) -> None:
        if participant in stage.cheaters:
            expired(participant, reason)

    made = Uploads(size, credits, grant, expired_of_cheats, stall_s=stall_s)
    patient = replace(made, stall_s=STUCK_S)  # over the same offers
    stage_of_all = made.stage

    async def stage_upload(participant: int, chunks: AsyncIterator[bytes]) -> Any:
        return await (stage_of_all if participant in stage.cheaters else patient.stage)(participant, chunks)

    made.stage = stage_upload  # type: ignore[method-assign]
    return made


_subset, _noise, _load = cache(datasets._read_subset), cache(plan.calibrate), cache(load)


class _Faults(logging.Handler):
    """Errors in the log, except calls that were cancelled at the end."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(logging.ERROR)
        self._stage = stage

    def emit(self, record: logging.LogRecord) -> None:
        if not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)):
            told = f": {record.exc_info[1]!r}" if record.exc_info else ""
            self._stage.faults.append(record.getMessage() + told)


@contextlib.asynccontextmanager
async def _listening(stage: Stage) -> AsyncIterator[None]:
    """Count what arrives, hold honest messages back until the cheat's, put the clock forward, measure queues."""
    study = stage.where.study
    said, refusal, upload, far_upload = study.said, study.refusal, study.upload, VectorsOfGateway.upload
    held: list[tuple[Any, tuple[int, int], Said, int]] = []

    def on_said(session: Any, number: tuple[int, int], message: Said, size: int) -> None:
        kind = message.kind or ""
        stage.activity += session.participant in stage.honest
        if session.participant in stage.honest and not stage.cheated(number[0], kind):
            held.append((session, number, message, size))
            return
        said(session, number, message, size)
        stage.arrived[session.participant] += 1
        if kind == CHECK:
            stage.signed.add((number[0], session.participant))

    def on_refusal(session: Any, message: pb.Refusal, size: int) -> None:
        refusal(session, message, size)
        stage.arrived[session.participant] += 1

    async def counted(participant: int, chunks: Any) -> AsyncIterator[bytes]:
        read = 0
        async for chunk in chunks:
            read += len(chunk)
            stage.uploaded[participant] = max(stage.uploaded[participant], read)
            yield chunk

    async def on_upload(session: Any, chunks: Any) -> bytes:
        return bytes(await upload(session, counted(session.participant, chunks)))

    async def on_far_upload(self: VectorsOfGateway, participant: int, chunks: Any) -> bytes:
        return await far_upload(self, participant, counted(participant, chunks))

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.003)
            for one in [o for o in held if stage.cheated(o[1][0], o[2].kind or "")]:
                held.remove(one)
                said(*one)
            sessions = list(study.sessions._by_participant.values())
            stage.outbox = max([stage.outbox, *(one.outbox.qsize() for one in sessions)])
            running = study._attempt
            if running is not None and running._waiting and running._waiting <= stage.silent and not held:
                stage.clock_s += GONE_S
                await asyncio.sleep(0.06)

    study.said, study.refusal, study.upload = on_said, on_refusal, on_upload  # type: ignore[method-assign]
    task = asyncio.create_task(watch())
    try:
        with mock.patch.object(VectorsOfGateway, "upload", on_far_upload):
            yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
