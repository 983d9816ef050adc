"""Gateways and workers in Ray's processes, on this machine or on a cluster.

Gateways are actors of one CPU. On a cluster the gateway N runs on the node that offers the resource `gateway-N`, since
participants reach it there. Workers are tasks: pure, so Ray runs one again whose worker dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog

from runtime.address import ports_from
from runtime.ray_start import cluster_address, start_ray
from secagg.parallel import Parallel
from secagg.roster import Roster
from server.engine.gateway import Gateway, GatewaySetup
from server.study_tables import EngineTable
from wire.gateway_channel import CallPort, FarGateway, Invitation
from wire.process_limits import settle

log = structlog.get_logger()

_LATE_S: Final = 15.0  # a gateway that hasn't started by then waits for a node
_WAITS: Final = "a gateway waits for its node: start one with ray start --resources='{{\"{node}\": 1}}' and a free CPU"
_TASKS_A_WORKER: Final = 4  # so that workers end at about the same time, and little is lost with one


class RayEngine:
    """Ray while a study is served. Raises runtime.ray_start.RayUnavailable: it isn't installed, or doesn't start."""

    def __init__(self, table: EngineTable) -> None:
        self._table = table
        self._ray, self._started = start_ray(table.gateways + max(1, table.workers), table.address)
        self._cluster = bool(cluster_address(table.address))
        self._port = CallPort(self._ray.util.get_node_ip_address() if self._cluster else "127.0.0.1")

    def parallel(self) -> Parallel | None:
        """Workers for what opens a sum; None: threads of this process."""
        if not self._table.workers:
            return None
        return Parallel(self._map, _TASKS_A_WORKER * self._table.workers)

    def _map(self, function: Callable[[Any], Any], arguments: Iterable[Any]) -> Iterator[Any]:
        task = self._ray.remote(num_cpus=1)(function)
        for done in [task.remote(one) for one in arguments]:
            yield self._ray.get(done)

    def gateways(self, setup: GatewaySetup) -> list[Callable[[Roster], FarGateway]]:
        """What starts each gateway; the first listens on the address of the setup, the others on the ports after it."""
        addresses = ports_from(setup.listen, self._table.gateways)
        return [partial(self._gateway, replace(setup, listen=one), number) for number, one in enumerate(addresses)]

    def _gateway(self, setup: GatewaySetup, number: int, roster: Roster) -> FarGateway:
        node = f"gateway-{number}" if self._cluster else ""
        wanted: dict[str, Any] = {"resources": {node: 1}} if node else {}
        actor = self._ray.remote(num_cpus=1, **wanted)(_Actor).remote()

        async def serve(invitation: Invitation) -> str:
            started = asyncio.ensure_future(actor.serve.remote(invitation))
            await asyncio.wait({started}, timeout=_LATE_S)
            if not started.done():
                log.warning(_WAITS.format(node=node) if node else "a gateway waits for a CPU")
            address: str = await started
            return address

        setup = replace(setup, roster=roster)
        return FarGateway(self._port, setup, serve, actor.stop.remote, partial(self._ray.kill, actor))

    def close(self) -> None:
        """End Ray if it was started here."""
        self._port.close()
        if self._started:
            self._ray.shutdown()


class _Actor:
    """A gateway as the whole of a process. It has no method that isn't called from afar: Ray traces each of them."""

    async def serve(self, invitation: Invitation) -> str:
        self._gateway = await Gateway.begin(invitation)
        settle()
        return self._gateway.address

    async def stop(self) -> None:
        await self._gateway.stop()
