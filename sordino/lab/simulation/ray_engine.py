"""Participants in Ray's workers, on this machine or on the cluster that ``RAY_ADDRESS`` names.

An actor for each worker loads task and data once. The round's model is put into Ray's store once and read by all; an
actor returns the sum of a shard, not its updates. Noise is drawn where an update is encoded, from that machine's
operating system.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from runtime.ray_start import RayUnavailable, start_ray
from sordino.lab.simulation.participants import Assignment, Participants, Shard, in_order
from sordino.lab.simulation.settings import SimulationError, SimulationSettings


class RayWorkers:
    """Actors that run participants. Ray is started if it isn't running, and then ended again by ``close``.

    ``workers``: actors, of one CPU each.

    Raises SimulationError: Ray isn't installed, or doesn't start.
    """

    def __init__(self, settings: SimulationSettings, workers: int) -> None:
        try:
            self._ray, self._started = start_ray(workers)
        except RayUnavailable as error:
            raise SimulationError(str(error)) from error
        # Each actor works through its queue in order; restarts would play a shard twice, which is harmless: nothing of
        # the first time was used.
        actor = self._ray.remote(num_cpus=1, max_restarts=2, max_task_retries=2)(Participants)
        self._actors: list[Any] = [actor.remote(settings) for _ in range(workers)]

    def run(self, assignments: Sequence[Assignment]) -> Iterator[Shard]:
        """Deal out in turn; results in the given order."""
        if not assignments:
            return
        ray = self._ray
        model = ray.put(assignments[0].parameters)  # the same for all shards of a round
        actors = itertools.cycle(self._actors)

        def submit(one: Assignment) -> Any:
            return next(actors).work_on.remote(replace(one, parameters={}), model)

        try:
            yield from in_order(assignments, len(self._actors), submit, ray.get)
        except ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None

    def close(self) -> None:
        """End the actors, and Ray if it was started here."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []
        if self._started:
            self._ray.shutdown()
