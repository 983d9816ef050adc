"""Engines that work through a round's shards of participants: this process, several, or Ray's workers.

Each yields its results in the order of the assignments. An engine's processes or actors load task and data once, and
end with its context.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from typing import Any, Final, TypeAlias, TypeVar

from learning.device import use_threads
from runtime.processes import end_with_parent, one_thread_each
from runtime.ray_start import RayUnavailable, start_ray
from sordino.lab.simulation.participants import Assignment, Participants, Shard
from sordino.lab.simulation.settings import RAY, SimulationError, SimulationSettings

Engine: TypeAlias = Callable[[Sequence[Assignment]], Iterator[Shard]]
_AHEAD: Final = 2  # shards that wait for each worker
_T = TypeVar("_T")


def engine(settings: SimulationSettings, participants: Participants) -> AbstractContextManager[Engine]:
    """The engine that the settings ask for; ``participants``: of this process.

    Raises SimulationError, when it is entered: Ray isn't installed, or doesn't start.
    """
    if settings.engine == RAY:
        return _ray_workers(settings)
    return nullcontext(partial(map, participants.work)) if settings.workers == 1 else _processes(settings)


def _in_order(
    assignments: Sequence[Assignment], workers: int, submit: Callable[[Assignment], _T], taken: Callable[[_T], Shard]
) -> Iterator[Shard]:
    """Yield results in the given order, a few shards ahead of what is taken: models and sums may be long."""
    waiting: deque[_T] = deque()
    for assignment in assignments:
        waiting.append(submit(assignment))
        if len(waiting) >= _AHEAD * workers:
            yield taken(waiting.popleft())
    while waiting:
        yield taken(waiting.popleft())


_here: Participants | None = None  # of a worker process


def _begin(settings: SimulationSettings, parent: int) -> None:
    global _here
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent handles it
    use_threads(settings.threads_here)
    _here = Participants(settings)


def _work(assignment: Assignment) -> Shard:
    assert _here is not None  # noqa: S101  # begun with the process
    return _here.work(assignment)


@contextmanager
def _processes(settings: SimulationSettings) -> Iterator[Engine]:
    one_thread_each()
    # Not by fork: libraries that run threads don't survive it.
    pool = ProcessPoolExecutor(settings.workers, get_context("spawn"), _begin, (settings, os.getpid()))

    def work(assignments: Sequence[Assignment]) -> Iterator[Shard]:
        return _in_order(assignments, settings.workers, lambda one: pool.submit(_work, one), Future.result)

    try:
        yield work
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def _ray_workers(settings: SimulationSettings) -> Iterator[Engine]:
    """Actors of one CPU each, on this machine or on the cluster that ``RAY_ADDRESS`` names.

    The round's model is put into Ray's store once and read by all; an actor returns the sum of a shard, not its
    updates. Noise is drawn where an update is encoded, from that machine's operating system. Ray is started if it isn't
    running, and then ended again.
    """
    try:
        ray, started = start_ray(settings.workers)
    except RayUnavailable as error:
        raise SimulationError(str(error)) from error
    # Each actor works through its queue in order; restarts would play a shard twice, which is harmless: nothing of
    # the first time was used.
    actor = ray.remote(num_cpus=1, max_restarts=2, max_task_retries=2)(Participants)
    actors: list[Any] = [actor.remote(settings) for _ in range(settings.workers)]

    def work(assignments: Sequence[Assignment]) -> Iterator[Shard]:
        if not assignments:
            return
        model = ray.put(assignments[0].parameters)  # the same for all shards of a round
        turns = itertools.cycle(actors)

        def submit(one: Assignment) -> Any:
            return next(turns).work_on.remote(replace(one, parameters={}), model)

        try:
            yield from _in_order(assignments, len(actors), submit, ray.get)
        except ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None

    try:
        yield work
    finally:
        for one in actors:
            ray.kill(one)
        if started:
            ray.shutdown()
