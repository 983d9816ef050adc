"""Engines that run participants: in this process, in several, or in Ray's workers (`ray_engine`)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Protocol

from runtime.processes import end_with_parent, one_thread_each
from sordino.lab.simulation.participants import Assignment, Participants, Shard, in_order
from sordino.lab.simulation.settings import RAY, SimulationSettings


class Engine(Protocol):
    """Runs shards of participants."""

    def run(self, assignments: Sequence[Assignment]) -> Iterator[Shard]:
        """Yield the results in the given order."""

    def close(self) -> None:
        """End the processes."""


class OneProcess:
    """All in this process."""

    def __init__(self, participants: Participants) -> None:
        self._participants = participants

    def run(self, assignments: Sequence[Assignment]) -> Iterator[Shard]:
        return map(self._participants.work, assignments)

    def close(self) -> None:
        """Do nothing."""


_here: Participants | None = None  # of a worker process


def _begin(settings: SimulationSettings, parent: int) -> None:
    global _here
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent handles it
    _here = Participants(settings)


def _work(assignment: Assignment) -> Shard:
    assert _here is not None  # noqa: S101  # begun with the process
    return _here.work(assignment)


class Processes:
    """Several processes, each of which loads task and data once."""

    def __init__(self, settings: SimulationSettings, workers: int) -> None:
        one_thread_each()
        # Not by fork: libraries that run threads don't survive it.
        context = get_context("spawn")
        self._workers = workers
        self._pool = ProcessPoolExecutor(workers, context, _begin, (settings, os.getpid()))

    def run(self, assignments: Sequence[Assignment]) -> Iterator[Shard]:
        return in_order(
            assignments, self._workers, lambda one: self._pool.submit(_work, one), lambda future: future.result()
        )

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def make_engine(settings: SimulationSettings, participants: Participants) -> Engine:
    """The engine that the settings ask for. Raises SimulationError: Ray isn't installed."""
    if settings.engine == RAY:
        from sordino.lab.simulation.ray_engine import RayWorkers

        return RayWorkers(settings, settings.workers)
    return OneProcess(participants) if settings.workers == 1 else Processes(settings, settings.workers)
