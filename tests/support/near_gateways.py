"""Gateways in the test's own event loop: what passes between the two sides is pickled, as between processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

from secagg.roster import Roster
from server.engine.channel import CallPort, Calls, FarGateway, Invitation
from server.engine.gateway import Gateway, GatewaySetup
from server.engine.links import Gateways, Process
from server.session_port import read_certificate
from server.study import Study
from server.study_file import StudyConfiguration

COUNT = int(os.environ.get("SORDINO_TEST_GATEWAYS", "0"))
"""Of every coordinator that tests serve in their own process, and in processes of `running_study` (of Ray there)."""


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
        self._heard.put_nowait(pickle.loads(pickle.dumps(calls, pickle.HIGHEST_PROTOCOL)))

    async def room(self) -> None:
        """Always."""

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


class DistantGateway(NearGateway):
    """Over the connection that gateways of other processes have. At first `kill` only cuts it, without a sign."""

    def __init__(self, setup: GatewaySetup) -> None:
        super().__init__(setup)
        self._connected = asyncio.Event()
        self._connected.set()
        self._relays: list[asyncio.Task[None]] = []
        self._call_port = CallPort("127.0.0.1")
        self._far = FarGateway(self._call_port, self._serve, self.gateway.stop, super().kill)

    async def start(self) -> str:
        self._hearing = asyncio.create_task(asyncio.sleep(0))
        self.address = await self._far.start()
        return self.address

    async def _serve(self, invitation: Invitation) -> str:
        async def between(here: asyncio.StreamReader, there: asyncio.StreamWriter) -> None:
            reader, writer = await asyncio.open_connection(invitation.host, invitation.port)
            self._relays = [asyncio.create_task(self._pass_on(*ends)) for ends in ((here, writer), (reader, there))]

        relay = await asyncio.start_server(between, invitation.host, 0)
        return await self.gateway.serve(replace(invitation, port=relay.sockets[0].getsockname()[1]))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._connected.wait()
            writer.write(data)
        writer.close()

    def hear(self, calls: Calls) -> None:
        self._far.hear(calls)

    def room(self) -> Awaitable[None]:
        return self._far.room()

    async def said(self) -> Calls:
        return await self._far.said()

    async def stop(self) -> None:
        await self._far.stop()

    def kill(self) -> None:
        if self._connected.is_set():
            self._connected.clear()
            return
        self._far.kill()
        self._call_port.close()
        for one in self._relays:
            one.cancel()


def near_gateways(
    study: Study,
    configuration: StudyConfiguration,
    count: int,
    connections: int,
    made: list[NearGateway],
    kind: type[NearGateway] = NearGateway,
) -> Gateways:
    """Gateways of a study, not open yet; those that are started are put in ``made``."""
    certificate = read_certificate(configuration.coordinator)
    setup = GatewaySetup(study.terms.study, study.roster, study.bounds, "127.0.0.1:0", certificate, connections)

    def start(number: int, roster: Roster) -> Process:
        before = made[number] if number < len(made) else None  # one that takes its place takes its port
        listen = setup.listen if before is None else before.address
        made.append(kind(replace(setup, listen=listen, roster=roster)))
        return made[-1]

    starts: list[Callable[[Roster], Process]] = [partial(start, number) for number in range(count)]
    return Gateways(study, starts)
