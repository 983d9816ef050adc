"""A client process of a load test: many real participants, each with a separate connection.

    python -m sordino.lab.loadtest.client_process HOME BEHAVIOUR --end-with PID

HOME is a host's folder, BEHAVIOUR the `LoadOptions` as JSON. Each participant is a separate host with one identity, a
TLS channel and models; it fetches and verifies study document and roster, and verifies the others' signatures. With
``verify_once`` all share one roster and the signatures found valid, as the participants of one `sordino join` do.
Journal and threads are always shared. Two things differ from deployment: the parent can compute the vector too, and a
participant leaves, is late, cheats or is away as scheduled. With ``thin`` much more does (`sordino.lab.loadtest.thin`).
A bad link is a proxy in this process. SIGUSR1 brings the storms that have come and were not brought yet
(`storms_come`). At its end the process writes `CONNECTIONS_FILE`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import itertools
import json
import logging
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from client.behaviour import Behaviour, Encoding, Number, Words, chunks_of
from client.credentials import load_identity
from client.held_data import data_name
from client.host_file import load
from client.journal import ClientJournal
from client.participant_host import ParticipantHost, run_until_stopped
from client.settings import HostedParticipant, HostSettings
from client.study_terms import SharedRoster
from learning.datasets import Dataset
from learning.task_names import SYNTHETIC
from runtime.address import split_address, split_addresses
from runtime.failure import Failure, InputFailure
from runtime.logs import configure_logs
from runtime.processes import end_with_parent, run_event_loop, step_aside, use_few_arenas
from secagg.masking import choose_keystream
from secagg.messages import PHASES
from secagg.roster import Roster
from sordino.lab.loadtest.disturbances import storms_come
from sordino.lab.loadtest.faults import Delay, Drop, messages_of, upload_of
from sordino.lab.loadtest.options import CONNECTIONS_FILE, LoadOptions
from sordino.lab.loadtest.proxy import UNIMPAIRED, TcpProxy
from sordino.lab.loadtest.sums import identities_of, vector
from sordino.lab.loadtest.thin import ThinParticipant, ThinProcess

_KINDS: Final = ("advertise_keys", "share_keys", "masked_input", "consistency", "unmasking")
PHASE_OF: Final = dict(zip(_KINDS, PHASES, strict=True))
_NO_DATA: Final = Dataset(np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.int64))
_FLUSH_S: Final = 0.02  # what was written of a vector that breaks off leaves this process


class Disconnected(Exception):
    """This participant has cut its connection, as planned; a new one is opened at once, for the next round."""


@functools.lru_cache(maxsize=4)
def _planned(load: LoadOptions, round_: int, attempt: int) -> tuple[dict[int, Drop], dict[int, Delay]]:
    """Cached for all participants of the process, because a plan costs some thousand hashes."""
    return load.drops(round_, attempt), load.delays(round_, attempt)


class PlannedBehaviour(Behaviour):
    """A participant with a known vector and planned faults.

    Attributes:
        troubles: why the coordinator couldn't be reached -> how often.
    """

    def __init__(self, load: LoadOptions, me: int, identity: bytes, executor: Executor) -> None:
        """``me``: position on the roster."""
        self._load, self._me, self._identity, self._executor = load, me, identity, executor
        self._cheat = load.cheaters().get(me)
        self.troubles: Counter[str] = Counter()
        self._cut: Callable[[], Awaitable[None]] | None = None

    async def attend(self, stay: Callable[[], Awaitable[None]], cut: Callable[[], Awaitable[None]]) -> None:
        """Stay connected in the planned periods only; a period ends with a cut connection, without a message."""
        self._cut = cut
        for begin, end in self._load.presence().stays(self._me):
            if end <= self._now_s():
                continue
            await asyncio.sleep(max(0.0, begin - self._now_s()))
            present = asyncio.create_task(self._stay(stay))
            try:
                if (await asyncio.wait({present}, timeout=end - self._now_s() if math.isfinite(end) else None))[0]:
                    return present.result()
                await cut()  # before the task is cancelled, which would send a farewell
            finally:
                present.cancel()
                await asyncio.gather(present, return_exceptions=True)
        await asyncio.Event().wait()  # away for the rest of the study

    async def _stay(self, stay: Callable[[], Awaitable[None]]) -> None:
        """Until the study ends, across all planned disconnections."""
        while True:
            with contextlib.suppress(Disconnected):
                return await stay()

    async def say(self, number: Number, kind: str, content: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        phase = PHASE_OF.get(kind)
        if phase is None:  # ready, or a refusal
            await send(content)
            return
        drop, delay = self._plan(number)
        if drop is not None and drop.phase == phase:
            if self._load.drop_style == "silent":
                return  # the stream stays open; the next round is answered again
            if not drop.within_upload:
                await self._disconnect()
        if delay is not None and delay.phase == phase:
            await asyncio.sleep(delay.seconds)
        for one in [content] if self._cheat is None else messages_of(self._cheat, kind, content):
            await send(one)

    async def mask(self, encoding: Encoding, encode: Callable[[], Awaitable[Words]]) -> Words:
        if self._load.noise:
            return await encode()
        dim, bits = encoding.plan.padded_dim, encoding.plan.bits
        make = functools.partial(vector, self._load.seed, *encoding.number, self._identity, dim=dim, bits=bits)
        return await asyncio.get_running_loop().run_in_executor(self._executor, make)

    async def upload(
        self,
        number: Number,
        packed: bytes | bytearray,
        offset: int,
        send: Callable[[AsyncIterator[bytes]], Awaitable[bool]],
    ) -> bool:
        drop, _ = self._plan(number)
        if drop is None or not drop.within_upload:
            return await send(chunks_of(packed if self._cheat is None else upload_of(self._cheat, packed), offset))
        under_way = asyncio.Event()
        sending = asyncio.ensure_future(send(_first_half(packed, under_way)))
        begun = asyncio.create_task(under_way.wait())
        try:
            await asyncio.wait((sending, begun), return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(_FLUSH_S)
            await self._disconnect()
        finally:
            for task in (sending, begun):
                task.cancel()
            await asyncio.gather(sending, begun, return_exceptions=True)

    def away(self, reason: str) -> None:
        self.troubles[reason] += 1

    def _plan(self, number: Number) -> tuple[Drop | None, Delay | None]:
        drops, delays = _planned(self._load, *number)
        return drops.get(self._me), delays.get(self._me)

    async def _disconnect(self) -> NoReturn:
        """Cut the connection; this attempt can't be resumed."""
        assert self._cut is not None  # noqa: S101  # set before any session
        await self._cut()
        # What was cut is in cycles, and a connection is closed when they are collected, which this process seldom does.
        if next(_CUTS) % _CUTS_PER_WALK == 0:
            gc.collect()
        raise Disconnected

    def _now_s(self) -> float:
        return time.time() - self._load.began_at


_CUTS = itertools.count(1)  # of all participants of the process
_CUTS_PER_WALK: Final = 16  # of 50 ms each, in a process of five hundred


async def _first_half(packed: bytes | bytearray, under_way: asyncio.Event) -> AsyncIterator[bytes]:
    """Half of a vector in chunks, and then nothing until the call ends."""
    async for chunk in chunks_of(packed[: max(1, len(packed) // 2)]):
        yield chunk
    under_way.set()
    await asyncio.Event().wait()


class ParticipantGroup:
    """All participants of a process, and the proxies of those whose link differs from this machine's."""

    def __init__(self, settings: HostSettings, journal: ClientJournal, executor: Executor, load: LoadOptions) -> None:
        self._settings, self._journal, self._executor, self._load = settings, journal, executor, load
        self._proxies: dict[int, TcpProxy] = {}
        self._ports: dict[int, int] = {}
        self._study = settings.host.journal.parents[2]
        self._brought = 0
        """Storms that have come here."""
        self._behaviours: list[PlannedBehaviour] = []
        self._rosters: dict[bytes, SharedRoster] = {}
        self._thin = ThinProcess(settings, load) if load.thin else None

    async def stay(self) -> None:
        """Until every participant's study has ended. Raises `Failure`: one of them can't take part."""
        positions = {identity: place for place, identity in enumerate(identities_of(self._study))}
        identities = [load_identity(entry.key).public for entry in self._settings.participants]
        await self._open_proxies(frozenset(positions[one] for one in identities))
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._strike)
        # Earlier storms are over: no participant is connected yet, and `main` ignores the signal.
        self._brought = storms_come(self._study)
        hosts = [
            self._host(entry, positions[identity], identity)
            for entry, identity in zip(self._settings.participants, identities, strict=True)
        ]
        tasks = [asyncio.create_task(host.stay()) for host in hosts]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(proxy.close() for proxy in self._proxies.values()), return_exceptions=True)

    def _host(self, entry: HostedParticipant, me: int, identity: bytes) -> ParticipantHost | ThinParticipant:
        """One participant as a host. Raises `Failure`: a key or the task can't be used."""
        settings = replace(self._settings, participants=(entry,))
        if me in self._ports:
            address = f"localhost:{self._ports[me]}"
            settings = replace(settings, coordinator=replace(settings.coordinator, address=address))
        behaviour = PlannedBehaviour(self._load, me, identity, self._executor)
        self._behaviours.append(behaviour)
        if self._thin is not None:
            return ThinParticipant(self._thin, load_identity(entry.key), behaviour)
        return ParticipantHost(
            settings,
            self._journal,
            self._executor,
            held=[(_NO_DATA, data_name(settings.data, entry.part or 0))],
            keep_roster=self._keep_roster if self._load.verify_once else None,
            behaviours=lambda _: behaviour,
        )

    def _keep_roster(self, roster: Roster) -> Roster:
        """One for all hosts of a process, with the signatures that were found valid: of its digest the first."""
        digest = roster.digest()
        if digest not in self._rosters:
            self._rosters[digest] = SharedRoster.of(roster)
        return self._rosters[digest]

    def figures(self) -> dict[str, Any]:
        """Of its connections."""
        troubles = sum((one.troubles for one in self._behaviours), Counter[str]())
        resets = sum(proxy.resets for proxy in self._proxies.values())
        return {"troubles": dict(troubles.most_common()), "resets": resets}

    async def _open_proxies(self, mine: frozenset[int]) -> None:
        load, linked = self._load, self._load.linked()
        needed = mine & frozenset(linked).union(*(load.struck(storm) for storm in load.storms))
        addresses = split_addresses(self._settings.coordinator.address)
        for who in sorted(needed):
            host, port = split_address(addresses[who % len(addresses)])
            link = linked.get(who, UNIMPAIRED)
            proxy = self._proxies[who] = TcpProxy((host, port), link, seed=load.seed * 100_003 + who)
            self._ports[who] = await proxy.start()

    def _strike(self) -> None:
        before, self._brought = self._brought, storms_come(self._study)
        for storm in self._load.storms[before : self._brought]:
            for who in self._load.struck(storm) & self._proxies.keys():
                proxy = self._proxies[who]
                if storm.for_s:
                    proxy.cut()
                    asyncio.get_running_loop().call_later(storm.for_s, proxy.restore)
                else:
                    proxy.reset_all()


def run(home: Path, load_options: LoadOptions) -> int:
    """Take part with all participants of a host's folder; returns the exit code.

    Raises Failure: a file can't be used, the study breaks the policy, or the coordinator can't be reached.
    """
    choose_keystream(time.perf_counter)
    settings = load(home).settings()
    if settings.study.task != SYNTHETIC:
        # These participants send vectors without noise that anyone can compute; a study with data relies on noise.
        task = settings.study.task
        raise InputFailure(f"{home} is of a study with the task {task!r}: a load test makes its own study")
    journal = ClientJournal(settings.host.journal, settings.host.ledger)
    # With a process for each core or more a second thread would only take turns with the first.
    threads = max(1, min(2, (os.cpu_count() or 1) // load_options.processes))
    executor = ThreadPoolExecutor(threads, thread_name_prefix="participant")
    group = ParticipantGroup(settings, journal, executor, load_options)
    # Hundreds of participants share this process: a collection that one of them causes would search all of them.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    try:
        return run_event_loop(run_until_stopped(group.stay()))
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        journal.close()
        (home / CONNECTIONS_FILE).write_text(json.dumps(group.figures()))


def main(arguments: list[str]) -> int:
    home, behaviour, _, parent = arguments
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # a storm before any participant is connected
    end_with_parent(int(parent))
    configure_logs(lowest=logging.WARNING)  # a line a round from each participant is too much
    use_few_arenas()
    step_aside()  # the coordinator on the same machine would otherwise be measured waiting for a processor
    try:
        return run(Path(home), LoadOptions.model_validate_json(behaviour))
    except Failure as error:
        print(f"client process: {error}", file=sys.stderr)
        return int(error.code)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
