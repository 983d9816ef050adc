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
from server.engine.channel import CallChannel, CallPort, Calls, Invitation
from server.engine.gateway import Gateway, GatewaySetup
from server.engine.links import Process
from server.process_limits import raise_limit, settle
from server.study_tables import EngineTable

log = structlog.get_logger()

_LATE_S: Final = 15.0  # a gateway that hasn't started by then waits for a node
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

    def gateways(self, setup: GatewaySetup) -> list[Callable[[Roster], Process]]:
        """What starts each gateway; the first listens on the address of the setup, the others on the ports after it."""
        addresses = ports_from(setup.listen, self._table.gateways)
        return [
            partial(_FarActor, self._ray, self._port, replace(setup, listen=one), _node(number) if self._cluster else "")
            for number, one in enumerate(addresses)
        ]

    def close(self) -> None:
        """End Ray if it was started here."""
        self._port.close()
        if self._started:
            self._ray.shutdown()


def _node(number: int) -> str:
    """The resource of Ray that the node of a gateway offers: participants reach it at that node's address."""
    return f"gateway-{number}"


class _Actor(Gateway):
    """A gateway as the whole of a process."""

    async def serve(self, invitation: Invitation) -> str:
        raise_limit(self.bounds.participants)
        address = await super().serve(invitation)
        settle()
        return address


class _FarActor:
    """`server.engine.links.Process`."""

    def __init__(self, ray: Any, port: CallPort, setup: GatewaySetup, node: str, roster: Roster) -> None:
        """Args: node: a resource that one node of the cluster offers; empty: any node."""
        self._ray, self._port, self._node = ray, port, node
        setup = replace(setup, roster=roster)
        wanted: dict[str, Any] = {"resources": {node: 1}} if node else {}
        self._actor = ray.remote(num_cpus=1, **wanted)(_Actor).remote(setup)
        self._channel: CallChannel | None = None

    async def start(self) -> str:
        invitation, joined = await self._port.invite()
        started = asyncio.ensure_future(self._actor.serve.remote(invitation))
        await asyncio.wait({started}, timeout=_LATE_S)
        if not started.done():
            log.warning(
                "a gateway waits for its node: start one of the cluster with "
                f"--resources='{{\"{self._node}\": 1}}' and a free CPU"
            )
        address: str = await started
        self._channel = await joined
        return address

    def hear(self, calls: Calls) -> None:
        assert self._channel is not None  # noqa: S101  # started
        self._channel.send(calls)

    async def said(self) -> Calls:
        assert self._channel is not None  # noqa: S101  # started
        return await self._channel.receive()

    async def stop(self) -> None:
        assert self._channel is not None  # noqa: S101  # started
        await self._channel.drain()
        await self._actor.stop.remote()

    def kill(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._ray.kill(self._actor)
