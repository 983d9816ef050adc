"""A client process of a load test: many real participants, each with a connection of its own.

    python -m sordino.lab.loadtest.client_process HOME BEHAVIOUR --end-with PID

HOME is a host's folder, BEHAVIOUR the JSON of `LoadOptions.behaviour`. Each participant is a host of its own with one
identity, a TLS channel and models of its own; study document and roster it fetches and verifies by itself, and so it
does the others' signatures. With ``verify_once`` the roster is held once for all, with the signatures that were found
valid, as it is for the participants of one `sordino join`. Journal and threads are always shared.
What differs from deployment is the vector, which the parent can compute too, and that a participant leaves, is late,
cheats or is away where the schedule says. Whose link is a bad one connects through a proxy in this process. SIGUSR1
brings the storms that have come by then and weren't brought yet (`storms_come`). At its end the process leaves
`CONNECTIONS_FILE` in its folder: what it was told when it could not connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import logging
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from client.connection import Channels
from client.credentials import load_identity
from client.held_data import data_name
from client.host_file import load
from client.journal import ClientJournal
from client.participant import Participant, StudyTerms
from client.participant_host import ParticipantHost, run_until_told
from client.resuming import Line
from client.settings import HostedParticipant, HostSettings
from client.shared_roster import SharedRoster
from client.unreachable import Trouble
from learning.datasets import Dataset
from runtime.failure import Failure, InputFailure
from runtime.logs import configure_logs
from runtime.processes import end_with_parent, run_event_loop, step_aside, use_few_arenas
from secagg.client_phases import Masking
from secagg.masking import choose_keystream
from secagg.roster import Roster
from sordino.lab.loadtest.cheats import messages_of, upload_of
from sordino.lab.loadtest.disturbances import storms_come
from sordino.lab.loadtest.faults import Delay, Storm
from sordino.lab.loadtest.options import CONNECTIONS_FILE, TASK, LoadOptions
from sordino.lab.loadtest.proxy import CALM, TcpProxy
from sordino.lab.loadtest.schedule import Drop, vector
from wire import coordinator_pb2 as pb
from wire.transport import CHUNK_BYTES, frame

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


@functools.lru_cache(maxsize=4)
def _planned(load: LoadOptions, round_: int, attempt: int) -> tuple[dict[int, Drop], dict[int, Delay]]:
    """Once for all participants of the process: each plan takes some thousand hashes."""
    return load.drops(round_, attempt), load.delays(round_, attempt)


class LoadParticipant(Participant):
    """The real participant with a vector that is known, and planned faults."""

    def __init__(self, host: LoadHost, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._host = host
        self._drop: Drop | None = None
        self._delay: Delay | None = None

    async def _begin(self, session: Line, terms: StudyTerms, message: pb.RoundStart) -> None:
        drops, delays = _planned(self._host.load, message.round, message.attempt)
        self._drop, self._delay = drops.get(self._host.me), delays.get(self._host.me)
        await super()._begin(session, terms, message)

    async def _vector(
        self, terms: StudyTerms, attempt: Any, masking: Masking, clips: tuple[float, ...]
    ) -> NDArray[np.unsignedinteger[Any]]:
        if self._host.load.noise:
            return await super()._vector(terms, attempt, masking, clips)
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

    async def _send(self, session: Line, attempt: Any, **message: Any) -> None:
        [(kind, honest)] = message.items()
        drop, delay, phase = self._drop, self._delay, PHASE_OF[kind]
        if drop is not None and drop.phase == phase:
            if self._host.load.drop_style == "silent":
                return  # the stream stays open; the next round is answered again
            if not drop.within_upload:
                await self._leave()
        if delay is not None and delay.phase == phase:
            await asyncio.sleep(delay.seconds)
        contents = [honest] if self._host.cheat is None else messages_of(self._host.cheat, kind, honest)
        if self._host.cheat is not None and kind == "masked_input":
            attempt.packed = upload_of(self._host.cheat, attempt.packed)
        for content in contents:
            await super()._send(session, attempt, **{kind: content})

    async def _leave(self) -> NoReturn:
        """For good, as far as this attempt is concerned: it can't be resumed."""
        self._drop_attempt()
        await self._host.cut()
        raise Disconnected

    async def _upload(self, session: Line, attempt: Any) -> None:
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
            await self._leave()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


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
        self,
        settings: HostSettings,
        journal: ClientJournal,
        executor: ThreadPoolExecutor,
        load: LoadOptions,
        me: int,
        rosters: dict[bytes, SharedRoster],
    ) -> None:
        """
        Args:
            me: position on the roster.
            rosters: of all hosts of the process, by digest.

        Raises:
            runtime.failure.Failure: a key or the task can't be used.
        """
        self.load, self.me, self._rosters = load, me, rosters
        self.cheat = load.cheaters().get(me)
        self.troubles: Counter[str] = Counter()
        """Why the coordinator couldn't be talked to -> how often."""
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
        for begin, end in self.load.presence().stays(self.me):
            if end <= self._now_s():
                continue
            await asyncio.sleep(max(0.0, begin - self._now_s()))
            there = asyncio.create_task(self._be_there(participant))
            try:
                if (await asyncio.wait({there}, timeout=end - self._now_s() if math.isfinite(end) else None))[0]:
                    return there.result()
                await self.cut()  # before it is told to end: nobody says good-bye
            finally:
                there.cancel()
                await asyncio.gather(there, return_exceptions=True)
            self._channel = self._open_channel()
        await asyncio.Event().wait()  # away for the rest of the study

    def _now_s(self) -> float:
        return time.time() - self.load.began_at

    async def _be_there(self, participant: Participant) -> None:
        """Until the study ends, over all planned disconnections."""
        assert self._channel is not None  # noqa: S101  # opened before
        while True:
            try:
                await super()._stay(self._channel, participant)
                return
            except Disconnected:
                self._channel = self._open_channel()
            except asyncio.CancelledError:
                await self.cut()
                raise

    def _kept(self, roster: Roster) -> Roster:
        if not self.load.verify_once:
            return roster
        digest = roster.digest()
        if digest not in self._rosters:
            self._rosters[digest] = SharedRoster.of(roster)
        return self._rosters[digest]

    def _trouble(self, details: str, connected: bool) -> Trouble:
        trouble = super()._trouble(details, connected)
        self.troubles[trouble.words] += 1
        return trouble

    async def cut(self) -> None:
        """Close the connection with all that is under way on it, saying nothing."""
        if self._channel is not None:
            await self._channel.close(None)


async def stay_all(hosts: list[LoadHost]) -> None:
    """Until every participant's study has ended. Raises `Failure`: one of them can't take part."""
    tasks = [asyncio.create_task(host.stay()) for host in hosts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Company:
    """All participants of a process, and the proxies before those whose link is not this machine's own."""

    def __init__(
        self, settings: HostSettings, journal: ClientJournal, executor: ThreadPoolExecutor, load: LoadOptions
    ) -> None:
        self._settings, self._journal, self._executor, self._load = settings, journal, executor, load
        self._proxies: dict[int, TcpProxy] = {}
        self._ports: dict[int, int] = {}
        self._study = _study_folder(settings)
        self._brought = 0
        """Storms that have come here."""
        self._hosts: list[LoadHost] = []
        self._rosters: dict[bytes, SharedRoster] = {}

    async def stay(self) -> None:
        """As `stay_all`."""
        positions = _positions(self._settings)
        me = [positions[load_identity(entry.key).public] for entry in self._settings.participants]
        await self._open_proxies(frozenset(me))
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._strike)
        # What has come earlier is over: nobody is connected, and `main` lets the signal go.
        self._brought = storms_come(self._study)
        self._hosts = [
            LoadHost(self._settings_of(entry, who), self._journal, self._executor, self._load, who, self._rosters)
            for who, entry in zip(me, self._settings.participants, strict=True)
        ]
        try:
            await stay_all(self._hosts)
        finally:
            await asyncio.gather(*(proxy.close() for proxy in self._proxies.values()), return_exceptions=True)

    def told(self) -> dict[str, Any]:
        """Figures of its connections."""
        troubles = sum((host.troubles for host in self._hosts), Counter[str]())
        resets = sum(proxy.resets for proxy in self._proxies.values())
        return {"troubles": dict(troubles.most_common()), "resets": resets}

    async def _open_proxies(self, mine: frozenset[int]) -> None:
        load, linked = self._load, self._load.linked()
        needed = mine & frozenset(linked).union(*(load.struck(storm) for storm in load.storms))
        host, _, port = self._settings.coordinator.address.rpartition(":")
        for who in sorted(needed):
            weather = linked[who].weather if who in linked else CALM
            proxy = self._proxies[who] = TcpProxy((host, int(port)), weather, seed=load.seed * 100_003 + who)
            self._ports[who] = await proxy.start()

    def _settings_of(self, entry: HostedParticipant, who: int) -> HostSettings:
        settings = replace(self._settings, participants=(entry,))
        if who not in self._ports:
            return settings
        address = f"localhost:{self._ports[who]}"
        return replace(settings, coordinator=replace(settings.coordinator, address=address))

    def _strike(self) -> None:
        before, self._brought = self._brought, storms_come(self._study)
        for storm in self._load.storms[before : self._brought]:
            self._bring(storm)

    def _bring(self, storm: Storm) -> None:
        loop = asyncio.get_running_loop()
        for who in self._load.struck(storm) & self._proxies.keys():
            proxy = self._proxies[who]
            if storm.for_s:
                proxy.cut()
                loop.call_later(storm.for_s, proxy.restore)
            else:
                proxy.reset_all()


def _positions(settings: HostSettings) -> dict[bytes, int]:
    """Identity -> place on the roster, which the load test's own study has beside its hosts."""
    roster = json.loads((_study_folder(settings) / "roster.json").read_text())
    return {bytes.fromhex(entry["identity"]): place for place, entry in enumerate(roster["participants"])}


def _study_folder(settings: HostSettings) -> Path:
    return settings.host.journal.parents[2]


def run(home: Path, load_options: LoadOptions) -> int:
    """Take part with all participants of a host's folder; returns the exit code.

    Raises:
        Failure: a file can't be used, the study breaks the policy, or the coordinator can't be reached.
    """
    choose_keystream(time.perf_counter)
    settings = load(home).settings()
    if settings.study.task != TASK:
        # These participants send vectors that anybody can compute, without noise: in a study with data they would be
        # counted on for noise that isn't there.
        task = settings.study.task
        raise InputFailure(f"{home} is of a study with the task {task!r}: a load test makes its own study")
    journal = ClientJournal(settings.host.journal, settings.host.ledger)
    # With a process for each core or more a second thread would only take turns with the first.
    threads = max(1, min(2, (os.cpu_count() or 1) // load_options.processes))
    executor = ThreadPoolExecutor(threads, thread_name_prefix="participant")
    company = Company(settings, journal, executor, load_options)
    # Hundreds of participants that share a process would be looked through for garbage on behalf of each other.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    try:
        return run_event_loop(run_until_told(company.stay()))
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        journal.close()
        (home / CONNECTIONS_FILE).write_text(json.dumps(company.told()))


def main(arguments: list[str]) -> int:
    """The process: see the module."""
    home, behaviour, _, parent = arguments
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a storm before anybody is connected
    end_with_parent(int(parent))
    configure_logs(lowest=logging.WARNING)  # a line a round from each participant is too much
    use_few_arenas()
    step_aside()  # on one machine with the coordinator, whose loop would else be measured waiting for a processor
    try:
        return run(Path(home), LoadOptions.from_behaviour(behaviour))
    except Failure as error:
        print(f"client process: {error}", file=sys.stderr)
        return int(error.code)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
