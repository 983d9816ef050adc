"""Gateways and workers in Ray's processes, on this machine or on a cluster.

Gateways are actors, one CPU each, spread over the nodes. Workers are tasks: pure, so Ray runs one again whose worker
dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from runtime.address import ports_from
from runtime.ray_start import start_ray
from secagg.parallel import Parallel
from secagg.roster import Roster
from server.engine.channel import CallChannel, CallPort, Calls, Invitation
from server.engine.gateway import Gateway, GatewaySetup
from server.engine.links import Process
from server.process_limits import raise_limit, settle
from server.study_tables import EngineTable

_TASKS_A_WORKER: Final = 4  # so that workers end at about the same time, and little is lost with one


class RayEngine:
    """Ray while a study is served. Raises runtime.ray_start.RayUnavailable: it isn't installed, or doesn't start."""

    def __init__(self, table: EngineTable) -> None:
        self._table = table
        self._ray, self._started = start_ray(table.gateways + max(1, table.workers), table.address)
        self._port = CallPort(self._ray.util.get_node_ip_address() if table.address else "127.0.0.1")

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
        return [partial(_FarActor, self._ray, self._port, replace(setup, listen=one)) for one in addresses]

    def close(self) -> None:
        """End Ray if it was started here."""
        self._port.close()
        if self._started:
            self._ray.shutdown()


class _Actor(Gateway):
    """A gateway as the whole of a process."""

    async def serve(self, invitation: Invitation) -> str:
        raise_limit(self.bounds.participants)
        address = await super().serve(invitation)
        settle()
        return address


class _FarActor:
    """`server.engine.links.Process`."""

    def __init__(self, ray: Any, port: CallPort, setup: GatewaySetup, roster: Roster) -> None:
        self._ray, self._port = ray, port
        setup = replace(setup, roster=roster)
        self._actor = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_Actor).remote(setup)
        self._channel: CallChannel | None = None

    async def start(self) -> str:
        invitation, joined = await self._port.invite()
        address: str = await self._actor.serve.remote(invitation)
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
