"""The honest participants as `client.visits` runs them: made anew for each message, as Flower's nodes are.

What lies between them and the coordinator, a Flower grid elsewhere, is the coordinator's: it hands on every message and
every document that it is told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
from structlog.testing import capture_logs

from client import visits
from client.behaviour import chunks_of
from client.connection import Channels, DocumentMismatch, DocumentUnavailable, open_session
from client.credentials import load_certificate, load_identity
from client.resuming import COUNTED
from client.saved_phases import InvalidState
from client.visits import Home, Visit
from runtime.failure import Failure
from tests.adversary.watched_clients import LENIENT, Client, Observed
from tests.support.host_in_process import settings_of
from wire import coordinator_pb2 as pb

if TYPE_CHECKING:
    from tests.adversary.cheating_coordinator import CheatingCoordinator

LARGEST = 1 << 24


@contextlib.asynccontextmanager
async def visiting(coordinator: CheatingCoordinator, **settings: dict[str, Any]) -> AsyncIterator[None]:
    """As `tests.adversary.watched_clients.joined`; the participants share the journal, one visit at a time."""
    tables = {**settings, "policy": {**LENIENT, **settings.get("policy", {})}}
    configured = settings_of(coordinator.public.folder, coordinator.journal, coordinator.address, **tables)
    hosted = {load_identity(one.key).public: one for one in configured.participants}
    certificate = load_certificate(configured.coordinator.certificate, configured.coordinator.key)
    channels = Channels(configured.coordinator.address, configured.coordinator.ca.read_bytes(), certificate)
    turn = asyncio.Lock()
    with capture_logs() as logs:
        coordinator.logs = logs
        tasks = []
        for who in sorted(coordinator.honest):
            one = dataclasses.replace(configured, participants=(hosted[coordinator.keys[who].public],))
            states = coordinator.journal.with_name("states.sqlite")
            home = Home(one, load_identity(one.participants[0].key), states)
            tasks.append(asyncio.create_task(_stay(coordinator, coordinator.clients[who], home, channels, turn)))
        coordinator.client_task = asyncio.ensure_future(asyncio.gather(*tasks, return_exceptions=True))  # type: ignore[assignment]
        try:
            await coordinator.ready()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await channels.close(grace=0.1)


async def _stay(
    coordinator: CheatingCoordinator, client: Client, home: Home, channels: Channels, turn: asyncio.Lock
) -> None:
    while True:
        with contextlib.suppress(grpc.aio.AioRpcError):
            session = await open_session(channels.current(), home.identity, home.settings.study.name)
            await session.send(pb.ParticipantMessage(ready=pb.Ready()))
            await _Node(coordinator, client, home, turn).attend(session)
        await asyncio.sleep(0.01)


class _Node:
    def __init__(self, coordinator: CheatingCoordinator, client: Client, home: Home, turn: asyncio.Lock) -> None:
        self._coordinator, self._client, self._home, self._turn = coordinator, client, home, turn
        self._start, self._sealed, self._packed = b"", b"", b""

    async def attend(self, session: Any) -> None:
        async for message in session.messages():
            kind = message.WhichOneof("message")
            try:
                if kind == "upload_credit" and self._packed:
                    packed, self._packed = self._packed, b""
                    self._client.sent += 1  # as arrived counts it
                    self._client.arrived += 1
                    with contextlib.suppress(Exception):
                        await session.upload(chunks_of(packed))
                elif kind in COUNTED:
                    await self._visit(session, message, getattr(message, kind))
            finally:
                self._client.handled += 1
                self._coordinator.changed.set()

    async def _visit(self, session: Any, message: pb.CoordinatorMessage, content: Any) -> None:
        welcome = session.welcome
        named = [welcome.study_sha256, welcome.roster_sha256]
        start = content if isinstance(content, pb.RoundStart) else pb.RoundStart.FromString(self._start)
        named.append(start.roster_sha256)
        documents = []
        model = None
        for digest in filter(None, named):
            with contextlib.suppress(DocumentUnavailable, DocumentMismatch):
                documents.append(await session.download(digest, LARGEST))
        if isinstance(content, pb.NeighbourShares):
            with contextlib.suppress(DocumentUnavailable, DocumentMismatch, ValueError):
                model = np.frombuffer(await session.download(start.model_sha256, LARGEST), "<f4")  # bound and all
        clips = self._coordinator.public.document.plan.clipping.clips
        history = b""
        with contextlib.suppress(DocumentUnavailable):
            history = await session.history(1)
        visit = Visit(
            message.SerializeToString(), welcome.study_sha256, welcome.roster_sha256, documents, history, model, clips
        )
        given = self._start, self._sealed
        self._start = self._sealed = b""
        observed = Observed(self._coordinator, self._client)
        try:
            async with self._turn:
                found = await asyncio.to_thread(visits.answer, self._home, visit, *given, lambda one: one, observed)
        except (Failure, InvalidState, ValueError) as error:
            # What it would have said stays here, as the grid gets an error instead.
            self._client.faults.append(f"{type(error).__name__}: {error}")
            self._client.arrived = self._client.sent
            return
        self._start, self._sealed, self._packed = found.start, found.sealed, found.upload
        for raw in found.messages:
            await session.send(pb.ParticipantMessage.FromString(raw))
