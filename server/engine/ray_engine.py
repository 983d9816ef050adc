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
from server.engine.gateway import Calls, Gateway, GatewaySetup
from server.engine.links import Far
from server.process_limits import raise_limit, settle
from server.study_tables import EngineTable

_TASKS_A_WORKER: Final = 4  # so that workers end at about the same time, and little is lost with one


class RayEngine:
    """Ray while a study is served. Raises runtime.ray_start.RayUnavailable: it isn't installed, or doesn't start."""

    def __init__(self, table: EngineTable) -> None:
        self._table = table
        self._ray, self._started = start_ray(table.gateways + max(1, table.workers), table.address)

    def parallel(self) -> Parallel | None:
        """Workers for what opens a sum; None: threads of this process."""
        if not self._table.workers:
            return None
        return Parallel(self._map, _TASKS_A_WORKER * self._table.workers)

    def _map(self, function: Callable[[Any], Any], arguments: Iterable[Any]) -> Iterator[Any]:
        task = self._ray.remote(num_cpus=1)(function)
        for done in [task.remote(one) for one in arguments]:
            yield self._ray.get(done)

    def gateways(self, setup: GatewaySetup) -> list[Callable[[], Far]]:
        """What starts each gateway; the first listens on the address of the setup, the others on the ports after it."""
        addresses = ports_from(setup.listen, self._table.gateways)
        return [partial(_FarActor, self._ray, replace(setup, listen=one)) for one in addresses]

    def close(self) -> None:
        """End Ray if it was started here."""
        if self._started:
            self._ray.shutdown()


class _Actor(Gateway):
    """A gateway as the whole of a process."""

    async def start(self) -> str:
        raise_limit(self.bounds.participants)
        address = await super().start()
        settle()
        return address


class _FarActor:
    """`server.engine.links.Far`."""

    def __init__(self, ray: Any, setup: GatewaySetup) -> None:
        self._ray = ray
        self._actor = ray.remote(num_cpus=1, scheduling_strategy="SPREAD", max_concurrency=1000)(_Actor).remote(setup)

    async def start(self) -> str:
        address: str = await self._actor.start.remote()
        return address

    def hear(self, calls: Calls) -> None:
        self._actor.hear.remote(calls)

    async def said(self) -> Calls:
        calls: Calls = await self._actor.said.remote()
        return calls

    async def stop(self) -> None:
        await self._actor.stop.remote()

    def kill(self) -> None:
        self._ray.kill(self._actor)
