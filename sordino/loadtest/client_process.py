"""A client process of a load test: many real participants that share nothing but code, journal and threads.

    python -m sordino.loadtest.client_process HOME BEHAVIOUR --end-with PID

HOME is a host's folder, BEHAVIOUR the JSON of `LoadOptions.behaviour`. Each participant is a host of its own with one
identity: its TLS channel, its study document, roster and models, fetched and verified by itself. What differs from
deployment is the vector, which the parent can compute too, and that a participant leaves where the schedule says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvloop
from numpy.typing import NDArray

from client.configuration import ConfigurationError, load
from client.connection import Channels, Session
from client.data_name import data_name
from client.journal import ClientJournal
from client.keystore import load_identity
from client.participant import Participant, StudyTerms
from client.participant_host import BAD_INPUT, JoinError, ParticipantHost, run_until_told
from client.settings import HostSettings
from learning.datasets import Dataset
from secagg.client_phases import Masking
from secagg.masking import choose_keystream
from sordino.loadtest.options import TASK, LoadOptions
from sordino.loadtest.schedule import Drop, vector
from sordino.logs import configure_logs
from sordino.processes import end_with_parent, step_aside, use_few_arenas
from wire import coordinator_pb2 as pb
from wire.chunks import CHUNK_BYTES, frame
from wire.durable import StorageError

PHASE_OF: Final = {
    "advertise_keys": "AdvertiseKeys",
    "share_keys": "ShareKeys",
    "masked_input": "MaskedInputCollection",
    "consistency": "ConsistencyCheck",
    "unmasking": "Unmasking",
}
_NO_DATA: Final = Dataset(np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.int64))
_FLUSH_S: Final = 0.02  # what was written of a vector that breaks off leaves this process


class Disconnected(Exception):
    """This participant has cut its connection, as planned; a new one is opened at once, for the next round."""


class LoadParticipant(Participant):
    """The real participant with a vector that is known, and planned dropouts."""

    def __init__(self, host: LoadHost, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._host = host
        self._drop: Drop | None = None

    async def _begin(self, session: Session, terms: StudyTerms, message: pb.RoundStart) -> None:
        me = terms.roster.positions[self.identity.public]
        self._drop = self._host.load.drops(message.round, message.attempt).get(me)
        await super()._begin(session, terms, message)

    async def _vector(
        self, terms: StudyTerms, attempt: Any, masking: Masking, clips: tuple[float, ...]
    ) -> NDArray[np.unsignedinteger[Any]]:
        plan = terms.document.plan

        def make() -> NDArray[np.unsignedinteger[Any]]:
            return vector(
                self._host.load.seed,
                attempt.round,
                attempt.attempt,
                self.identity.public,
                dim=plan.padded_dim,
                bits=plan.bits,
            )

        return await self._compute(make)

    async def _send(self, session: Session, attempt: Any, **message: Any) -> None:
        [kind] = message
        drop = self._drop
        if drop is not None and drop.phase == PHASE_OF[kind]:
            if self._host.load.drop_style == "silent":
                return  # the stream stays open; the next round is answered again
            if not drop.within_upload:
                await self._host.cut()
                raise Disconnected
        await super()._send(session, attempt, **message)

    async def _upload(self, session: Session, attempt: Any) -> None:
        if self._drop is None or not self._drop.within_upload:
            await super()._upload(session, attempt)
            return
        under_way = asyncio.Event()
        packed, attempt.packed = attempt.packed, None
        tasks = [
            asyncio.create_task(session.upload_chunks(_first_half(packed, under_way))),
            asyncio.create_task(under_way.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(_FLUSH_S)
            await self._host.cut()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        raise Disconnected


async def _first_half(packed: bytes, under_way: asyncio.Event) -> AsyncIterator[bytes]:
    """Half of a vector in chunks, and then nothing until the call ends."""
    half = memoryview(packed)[: max(1, len(packed) // 2)]
    for start in range(0, len(half), CHUNK_BYTES):
        yield frame(half[start : start + CHUNK_BYTES])
    under_way.set()
    await asyncio.Event().wait()


class LoadHost(ParticipantHost):
    """One participant with everything that is its own."""

    def __init__(
        self, settings: HostSettings, journal: ClientJournal, executor: ThreadPoolExecutor, load: LoadOptions
    ) -> None:
        """Raises `client.participant_host.JoinError`: a key or the task can't be used."""
        self.load = load
        self._channel: Channels | None = None
        super().__init__(settings, journal, executor)

    def _make_participants(self) -> list[Participant]:
        [entry] = self._configuration.participants
        return [
            LoadParticipant(
                self,
                self._configuration,
                load_identity(entry.key),
                self._task,
                _NO_DATA,
                data_name(self._configuration.data, entry.part),
                self._journal,
                self._executor,
                self._documents.fetch,
                self._accept_roster,
            )
        ]

    async def _stay(self, channel: Channels, participant: Participant) -> None:
        self._channel = channel
        while True:
            try:
                await super()._stay(self._channel, participant)
                return
            except Disconnected:
                self._channel = self._open_channel()
            except asyncio.CancelledError:
                await self.cut()
                raise

    async def cut(self) -> None:
        """Close the connection with all that is under way on it, saying nothing."""
        if self._channel is not None:
            await self._channel.close(None)


async def stay_all(hosts: list[LoadHost]) -> None:
    """Until every participant's study has ended. Raises `JoinError`: one of them can't take part."""
    tasks = [asyncio.create_task(host.stay()) for host in hosts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def run(home: Path, load_options: LoadOptions) -> int:
    """Take part with all participants of a host's folder; returns the exit code.

    Raises:
        JoinError: a file can't be used, the study breaks the policy, or the coordinator can't be reached.
    """
    choose_keystream(time.perf_counter)
    settings = load(home).settings()
    if settings.study.task != TASK:
        # These participants send vectors that anybody can compute, without noise: in a study with data they would be
        # counted on for noise that isn't there.
        task = settings.study.task
        raise JoinError(f"{home} is of a study with the task {task!r}: a load test makes a study of its own", BAD_INPUT)
    journal = ClientJournal(settings.host.journal, settings.host.ledger)
    executor = ThreadPoolExecutor(min(2, os.cpu_count() or 1), thread_name_prefix="participant")
    try:
        hosts = [
            LoadHost(replace(settings, participants=(entry,)), journal, executor, load_options)
            for entry in settings.participants
        ]
        return uvloop.run(run_until_told(stay_all(hosts)))
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        journal.close()


def main(arguments: list[str]) -> int:
    """The process: see the module."""
    home, behaviour, _, parent = arguments
    end_with_parent(int(parent))
    configure_logs(lowest=logging.WARNING)  # a line a round from each participant is too much
    use_few_arenas()
    step_aside()  # on one machine with the coordinator, whose loop would else be measured waiting for a processor
    try:
        return run(Path(home), LoadOptions.from_behaviour(behaviour))
    except (JoinError, ConfigurationError, StorageError) as error:
        print(f"client process: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 2)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
