"""Gateways in the test's own event loop, over the connections that those in other processes have."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from secagg.roster import Roster
from server.engine.gateway import Gateway, GatewaySetup
from server.engine.links import Gateways
from server.session_port import read_certificate
from server.study import Study
from server.study_file import StudyConfiguration
from wire.gateway_channel import CallPort, FarGateway, Invitation

COUNT = int(os.environ.get("SORDINO_TEST_GATEWAYS", "0"))
"""Of every coordinator that tests serve in their own process, and in processes of `running_study` (of Ray there)."""


class NearGateway(FarGateway):
    """One whose process is the test's own."""

    gateway: Gateway

    def __init__(self, setup: GatewaySetup) -> None:
        self._call_port = CallPort("127.0.0.1")
        super().__init__(self._call_port, setup, self.serve, self.end, self.break_off)

    async def start(self) -> str:
        self.address = await super().start()
        return self.address

    async def serve(self, invitation: Invitation) -> str:
        self.gateway = await Gateway.begin(invitation)
        return self.gateway.address

    async def end(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.0):
                await self.gateway.stop()

    def break_off(self) -> None:
        """Its connections break at once, and nothing more is said or heard."""
        self._call_port.close()
        self.gateway.end_attempt()
        port: Any
        port, self.gateway._port = self.gateway._port, None  # where two stops of one server meet, gRPC crashes
        if port is not None:
            asyncio.get_running_loop().create_task(port._server.stop(0))


class DistantGateway(NearGateway):
    """At first `kill` only cuts it off, without a sign."""

    def __init__(self, setup: GatewaySetup) -> None:
        super().__init__(setup)
        self._joined = asyncio.Event()
        self._joined.set()
        self._relays: list[asyncio.Task[None]] = []

    async def serve(self, invitation: Invitation) -> str:
        async def between(here: asyncio.StreamReader, there: asyncio.StreamWriter) -> None:
            reader, writer = await asyncio.open_connection(invitation.host, invitation.port)
            self._relays = [asyncio.create_task(self._pass_on(*ends)) for ends in ((here, writer), (reader, there))]

        relay = await asyncio.start_server(between, invitation.host, 0)
        return await super().serve(replace(invitation, port=relay.sockets[0].getsockname()[1]))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            await self._joined.wait()
            writer.write(data)
        writer.close()

    def kill(self) -> None:
        if self._joined.is_set():
            self._joined.clear()
            return
        super().kill()
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

    def start(number: int, roster: Roster) -> FarGateway:
        before = made[number] if number < len(made) else None  # one that takes its place takes its port
        listen = setup.listen if before is None else before.address
        made.append(kind(replace(setup, listen=listen, roster=roster)))
        return made[-1]

    starts: list[Callable[[Roster], FarGateway]] = [partial(start, number) for number in range(count)]
    return Gateways(study, starts)
