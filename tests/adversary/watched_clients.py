"""The honest participants as `sordino join` runs them, observed in this process but not changed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from structlog.testing import capture_logs

from client import held_data, participant_host
from client.behaviour import Behaviour, Encoding, Number, Words
from client.credentials import load_identity
from client.host_file import load
from learning import datasets, partitions
from tests.support import host_in_process
from tests.support.host_in_process import host, settings_of

if TYPE_CHECKING:
    from tests.adversary.cheating_coordinator import CheatingCoordinator

LENIENT = {"min_honest_survivors": 1, "min_colluders": 0, "max_epsilon": 1e6}


@dataclass
class Client:
    """One honest participant: what the coordinator received from it, and what it did."""

    position: int
    said: list[tuple[tuple[int, int], str, Any]] = field(default_factory=list)  # (round, attempt), kind, content
    handled: int = 0
    sent: int = 0
    arrived: int = 0
    lost: int = 0  # sessions that ended
    inputs: dict[tuple[int, int], Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)  # what was raised out of the handling of a message
    participant: Any = None  # the client's object; read if the participant turns out to collude

    def kinds(self, number: tuple[int, int] | None = None) -> list[str]:
        """Return the kinds of its messages, in an attempt or in all."""
        return [kind for one, kind, _ in self.said if number in (None, one)]


@contextlib.asynccontextmanager
async def joined(coordinator: CheatingCoordinator, **settings: dict[str, Any]) -> AsyncIterator[None]:
    """Run the honest participants in one client, as `sordino join` does, and wait until they are ready or have left.

    A second client has the same journal; ``settings`` change tables of host.toml.
    """
    tables = {**settings, "policy": {**LENIENT, **settings.get("policy", {})}}
    with mock.patch.object(host_in_process, "load", _loaded_once):
        configured = settings_of(coordinator.public.folder, coordinator.journal, coordinator.address, **tables)
    hosted = {_public_of(one.key): one for one in configured.participants}
    participants = tuple(hosted[coordinator.keys[who].public] for who in sorted(coordinator.honest))
    configured = dataclasses.replace(configured, participants=participants)
    # A participant that was cut off comes back at once rather than after half a second.
    quickly = mock.patch.object(participant_host, "RETRY_S", (0.01, 1.0))
    read_once = mock.patch.object(datasets, "_read_subset", _read_once)
    cut_once = mock.patch.object(held_data, "cut_dataset", _cut_once)
    with quickly, read_once, cut_once, capture_logs() as logs:
        coordinator.logs = logs

        def client_of(identity: bytes) -> Client:
            return coordinator.clients[coordinator.roster.positions[identity]]

        def know(found: Any) -> None:
            for one in found._participants:
                client_of(one.identity.public).participant = one

        def observed(identity: bytes) -> Observed:
            return Observed(coordinator, client_of(identity))

        async with host(configured, know, behaviours=observed) as task:
            coordinator.client_task = task
            ready = asyncio.create_task(coordinator.ready())
            await asyncio.wait({ready, task}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                ready.result()
            else:
                ready.cancel()
            yield
            coordinator.left = coordinator.left or why_it_left(task)


# The same files for every client that is started.
_loaded_once, _read_once, _cut_once = cache(load), cache(datasets._read_subset), cache(partitions.cut_dataset)


@cache
def _public_of(key: Path) -> bytes:
    return load_identity(key).public


def why_it_left(task: asyncio.Task[int]) -> str:
    error = task.exception() if task.done() and not task.cancelled() else None
    return "" if error is None else f"{error}"


class Observed(Behaviour):
    """The honest participant; notes when it has handled a message, how much it sent, and what it masked."""

    def __init__(self, coordinator: CheatingCoordinator, client: Client) -> None:
        self._coordinator, self._client = coordinator, client

    async def say(self, number: Number, kind: str, content: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        self._client.sent += kind != "ready"
        await send(content)

    async def mask(self, encoding: Encoding, encode: Callable[[], Awaitable[Words]]) -> Words:
        words = await encode()
        self._client.inputs[encoding.number] = words.copy()
        return words

    def handled(self, fault: Exception | None) -> None:
        if fault is not None:
            self._client.faults.append(f"{type(fault).__name__}: {fault}")
        self._client.handled += 1
        self._coordinator.changed.set()
