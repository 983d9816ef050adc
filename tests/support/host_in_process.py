"""The real client without its process, and a real coordinator that may lie.

A lie is a function (participant, message) -> messages to send instead; it sees every message of the coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import server.sessions
from client.behaviour import HONEST, Behaviour
from client.host_file import load
from client.journal import ClientJournal
from client.participant_host import ParticipantHost
from client.settings import HostSettings
from runtime.failure import ExitCode, Failure
from tests.support.study_in_process import Coordinator, coordinator
from wire import coordinator_pb2 as pb
from wire.records.ledger import read_ledger
from wire.records.ledger_rows import LedgerEntry

Lie = Callable[[int, pb.CoordinatorMessage], Iterable[pb.CoordinatorMessage]]
PATIENCE_S = 60.0


@dataclass
class Story:
    """What a coordinator received from the participants of one host, and how the host ended."""

    sent: list[tuple[int, str]] = field(default_factory=list)  # participant, kind of phase message or "upload"
    messages: list[tuple[int, pb.PhaseMessage]] = field(default_factory=list)
    refusals: list[tuple[int, int]] = field(default_factory=list)  # participant, code
    logs: list[dict[str, Any]] = field(default_factory=list)
    ended: int | Failure | None = None
    ready: set[int] = field(default_factory=set)
    events: list[dict[str, Any]] = field(default_factory=list)
    journal: Path = Path()

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The coordinator's events of a kind."""
        return [event for event in self.events if event["kind"] == kind]

    def rows(self) -> list[LedgerEntry]:
        """Of the host's ledger."""
        return rows_of(ledger_of(self.journal))

    def kinds(self) -> set[str]:
        return {kind for _, kind in self.sent}

    def codes(self) -> set[int]:
        return {code for _, code in self.refusals}

    def reasons(self) -> set[str]:
        return {str(entry["reason"]) for entry in self.logs if "reason" in entry}

    def told(self) -> str:
        """Return the host's whole log as one text."""
        return "\n".join(str(entry) for entry in self.logs)


Play = Callable[..., Story]  # `play` with a test's own folders, as the fixture `played` of tests/client gives it


def on(kind: str, change: Callable[[int, Any], Iterable[pb.CoordinatorMessage] | None]) -> Lie:
    """A lie about one kind of message.

    ``change``: (participant, a copy of the content) -> None, and the changed copy is sent; or the messages to send.
    """

    def lie(participant: int, message: pb.CoordinatorMessage) -> Iterable[pb.CoordinatorMessage]:
        if message.WhichOneof("message") != kind:
            return [message]
        other = pb.CoordinatorMessage()
        other.CopyFrom(message)
        instead = change(participant, getattr(other, kind))
        return [other] if instead is None else instead

    return lie


def ledger_of(journal: Path) -> Path:
    """Return the host's ledger; the coordinator's may be in the same folder."""
    return journal.with_name("spent.sqlite")


def rows_of(ledger: Path) -> list[LedgerEntry]:
    """Return all rows of a ledger that may be written to meanwhile."""
    rows: dict[int, LedgerEntry] = {}
    read_ledger(ledger, lambda row: rows.update({row.number: row.entry}))
    return [rows[number] for number in sorted(rows)]


def settings_of(folder: Path, journal: Path, address: str = "localhost:1", **changes: dict[str, Any]) -> HostSettings:
    """Return host.toml of the only host, with tables changed by keyword."""
    settings = load(folder / "hosts" / "host-01").settings()
    files = {"journal": journal, "ledger": ledger_of(journal)}
    tables: dict[str, dict[str, Any]] = {"host": files, "coordinator": {"address": address}}
    for name, change in changes.items():
        tables.setdefault(name, {}).update(change)
    changed = {
        name: {**getattr(settings, name), **change} if name == "task" else replace(getattr(settings, name), **change)
        for name, change in tables.items()
    }
    return replace(settings, **changed)


@contextlib.asynccontextmanager
async def host(
    settings: HostSettings,
    watch: Callable[[ParticipantHost], None] | None = None,
    *,
    behaviours: Callable[[bytes], Behaviour] = lambda identity: HONEST,
) -> AsyncIterator[asyncio.Task[int]]:
    """Run the client until the block ends; ``watch`` gets it before it runs."""
    journal = ClientJournal(settings.host.journal, settings.host.ledger)
    executor, trainer = ThreadPoolExecutor(2), ThreadPoolExecutor(2)
    try:
        one = ParticipantHost(settings, journal, executor, trainer, behaviours=behaviours)
        if watch is not None:
            watch(one)
        task = asyncio.create_task(one.run())
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    finally:
        trainer.shutdown()
        executor.shutdown()
        journal.close()


def record(where: Coordinator, story: Story) -> None:
    """Record what arrives before the coordinator handles it."""
    study = where.study
    phase_message, refusal, upload = study.phase_message, study.refusal, study.upload
    set_ready = study.sessions.set_ready

    def on_phase(session: Any, message: pb.PhaseMessage, size: int) -> None:
        story.sent.append((session.participant, message.WhichOneof("message") or "nothing"))
        story.messages.append((session.participant, message))
        phase_message(session, message, size)

    def on_refusal(session: Any, message: pb.Refusal, size: int) -> None:
        story.refusals.append((session.participant, message.code))
        refusal(session, message, size)

    async def on_upload(session: Any, chunks: Any) -> bytes:
        story.sent.append((session.participant, "upload"))
        return await upload(session, chunks)

    def on_ready(session: Any) -> None:
        story.ready.add(session.participant)
        set_ready(session)

    study.phase_message, study.refusal, study.upload = on_phase, on_refusal, on_upload  # type: ignore[method-assign]
    study.sessions.set_ready = on_ready  # type: ignore[method-assign]


def play(
    folder: Path,
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    lie: Lie | None = None,
    *,
    prepare: Callable[[Coordinator], None] | None = None,
    attempts: int = 1,
    tables: Mapping[str, dict[str, Any]] | None = None,
    **settings: dict[str, Any],
) -> Story:
    """Run a study with one attempt per round and all participants on one host, until both sides end.

    Args:
        prepare: called with the coordinator before it starts.
        tables: overrides of study.toml; other keyword arguments override host.toml.
    """
    story = Story(journal=work / "journal.sqlite")
    if lie is not None:
        honest = server.sessions.Session.send

        def send(session: server.sessions.Session, message: bytes) -> None:
            for one in lie(session.participant, pb.CoordinatorMessage.FromString(message)):
                honest(session, one.SerializeToString())

        monkeypatch.setattr(server.sessions.Session, "send", send)

    async def scenario() -> None:
        async with coordinator(
            folder, work / "state.sqlite", coordinator={"max_attempts": attempts}, **(tables or {})
        ) as where:
            record(where, story)
            if prepare is not None:
                prepare(where)
            where.start()
            async with host(settings_of(folder, story.journal, where.address, **settings)) as task:
                async with asyncio.timeout(PATIENCE_S):
                    try:
                        story.ended = await task
                    except Failure as error:
                        # Code 5: the coordinator has announced that it gives up; here a normal end.
                        story.ended = 0 if error.code == ExitCode.STUDY else error
            story.events = where.events

    with capture_logs() as logs:
        asyncio.run(scenario())
    story.logs = logs
    return story
