"""Gateways in the test's own event loop: what passes between the two sides is pickled, as between processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from secagg.roster import Roster
from server.engine.channel import Calls
from server.engine.gateway import Gateway, GatewaySetup
from server.engine.links import Gateways, Process
from server.session_port import read_certificate
from server.study import Study
from server.study_file import StudyConfiguration

COUNT = int(os.environ.get("SORDINO_TEST_GATEWAYS", "0"))
"""Of every coordinator that tests serve in their own process."""


class NearGateway:
    """A `Process` that is none."""

    def __init__(self, setup: GatewaySetup) -> None:
        self.gateway = Gateway(pickle.loads(pickle.dumps(setup)))
        self._killed = asyncio.Event()
        self._heard: asyncio.Queue[Calls] = asyncio.Queue()

    async def start(self) -> str:
        self.address = await self.gateway.start()
        self._hearing = asyncio.create_task(self._hear_all())
        return self.address

    def hear(self, calls: Calls) -> None:
        self._heard.put_nowait(pickle.loads(pickle.dumps(calls)))

    async def _hear_all(self) -> None:
        while True:
            await self.gateway.hear(await self._heard.get())

    async def said(self) -> Calls:
        said, killed = (asyncio.ensure_future(one) for one in (self.gateway.said(), self._killed.wait()))
        try:
            await asyncio.wait({said, killed}, return_when=asyncio.FIRST_COMPLETED)
            if killed.done():
                raise ConnectionError("killed")
            calls: Calls = pickle.loads(pickle.dumps(said.result()))
            return calls
        finally:
            said.cancel()
            killed.cancel()

    async def stop(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                while not self._heard.empty() and not self._hearing.done():
                    await asyncio.sleep(0)
                await self.gateway.stop()
        self._hearing.cancel()

    def kill(self) -> None:
        """Its connections break at once, and nothing more is said or heard."""
        self._killed.set()
        self._hearing.cancel()
        self.gateway.end_attempt()
        port: Any = self.gateway._port
        if port is not None:
            asyncio.get_running_loop().create_task(port._server.stop(0))


def near_gateways(
    study: Study, configuration: StudyConfiguration, count: int, connections: int, made: list[NearGateway]
) -> Gateways:
    """Gateways of a study, not open yet; those that are started are put in ``made``."""
    certificate = read_certificate(configuration.coordinator)
    setup = GatewaySetup(study.terms.study, study.roster, study.bounds, "127.0.0.1:0", certificate, connections)

    def start(number: int, roster: Roster) -> Process:
        before = made[number] if number < len(made) else None  # one that takes its place takes its port
        listen = setup.listen if before is None else before.address
        made.append(NearGateway(replace(setup, listen=listen, roster=roster)))
        return made[-1]

    starts: list[Callable[[Roster], Process]] = [partial(start, number) for number in range(count)]
    return Gateways(study, starts)
