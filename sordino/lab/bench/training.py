"""Local training of all participants of a round: one after the other, and all at once, within one run.

Wall time, since the point is what several cores gain: on a machine with other work take the smallest of several runs,
or what CPU time says of one core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.datasets import Dataset
from learning.device import chosen_threads, use_threads
from learning.make_task import make_task
from learning.parameters import flatten
from learning.task import BatchedTask, ModelTask, update_rng
from sordino.lab.bench.timing import Spread

MOST_NUMBERS: Final = 1 << 28  # of all updates: 1 GB
_CLIP: Final = 1.0


def run(
    name: str, options: dict[str, object], participants: int, examples: int, threads: int, runs: int
) -> dict[str, Any]:
    """Measure a task on random images.

    Args:
        name, options: of a task for images that trains many at once.
        threads: of `learning.device.use_threads`; 0: as many as there are cores.
        runs: of each way, in turns; one more before them isn't counted.

    Returns:
        figures under the names of `sordino bench training --json`: ``seconds`` and ``cpu_seconds`` (over all threads)
        of the plain loop (``one_by_one``), of ``at_once`` and, for torch, of the loop with several threads in each
        operation (``one_by_one_torch_threads``); ``speedup``, of the smallest seconds, and that of the pairs; ``same``,
        whether both give the same updates up to rounding; and, for torch, ``limits``.

    Raises ValueError: no such task, or one that doesn't train many at once; too much of something.
    """
    task = make_task(name, options)
    if not (isinstance(task, BatchedTask) and isinstance(task, ModelTask) and hasattr(task.options, "classes")):
        raise ValueError(f"--task {name}: it takes no images, or doesn't train many participants at once")
    if participants * task.dim > MOST_NUMBERS:
        raise ValueError(f"{participants} updates of {task.dim} values are too many; the most is {MOST_NUMBERS} in all")
    threads = threads or len(os.sched_getaffinity(0))
    start = task.initial_parameters()
    data = [_images(task.options, examples, seed) for seed in range(participants)]
    updates = np.zeros((participants, task.dim), dtype=np.float32)
    in_torch = hasattr(task, "module")  # numpy's have none

    def rngs() -> list[Any]:
        return [update_rng(0, 1, place) for place in range(participants)]

    def one_by_one() -> None:
        for place, (one, rng) in enumerate(zip(data, rngs(), strict=True)):
            updates[place] = flatten(task.local_update(start, one, rng, _CLIP))

    def with_torch_threads() -> None:
        from learning.tasks.torch_rates import torch_threads

        with torch_threads(threads):
            one_by_one()

    def at_once() -> NDArray[np.float32]:
        found: NDArray[np.float32] = task.local_updates(start, data, rngs(), _CLIP, out=updates)
        return found

    ways: dict[str, Callable[[], object]] = {"one_by_one": one_by_one, "at_once": at_once}
    if in_torch:
        ways["one_by_one_torch_threads"] = with_torch_threads
    before = chosen_threads()
    use_threads(threads)
    try:
        times: dict[str, list[float]] = {way: [] for way in ways}
        one_by_one()
        alone = updates.copy()
        # By norms: rounding may choose another of two pixels that are nearly the maximum, or the other side of a kink.
        # Of 100 participants of femnist-cnn the median distance is 4e-6 of the norm, the largest 1e-3.
        distances = np.linalg.norm(at_once() - alone, axis=1)
        same = bool((distances <= 1e-2 * np.linalg.norm(alone, axis=1)).all())
        cpu: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(runs):
            for way, work in ways.items():
                began, spent = time.perf_counter(), time.process_time()
                work()
                times[way].append(time.perf_counter() - began)
                cpu[way].append(time.process_time() - spent)
    finally:
        use_threads(before)
    spreads = {way: Spread.of(seconds) for way, seconds in times.items()}
    pairs = [slow / fast for slow, fast in zip(times["one_by_one"], times["at_once"], strict=True)]
    return {
        "task": name,
        "options": task.options.to_mapping(),
        "dim": task.dim,
        "participants": participants,
        "examples": examples,
        "threads": threads,
        "seconds": {way: spread.to_json() for way, spread in spreads.items()},
        "cpu_seconds": {way: Spread.of(seconds).to_json() for way, seconds in cpu.items()},
        "speedup": spreads["one_by_one"].minimum / spreads["at_once"].minimum,
        "speedup_of_pairs": Spread.of(pairs).to_json(),
        "same": same,
        "limits": _limits(task, data[0], participants, threads) if in_torch else None,
    }


def _images(options: Any, count: int, seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(
        rng.integers(0, 256, (count, *options.example_shape), dtype=np.uint8), rng.integers(0, options.classes, count)
    )


def _limits(task: Any, data: Dataset, participants: int, threads: int) -> dict[str, Any]:
    """Operations of all gradients of one pass, and how long they take at the rates of bare library calls."""
    from learning.tasks.torch_rates import convolution_rate, matrix_rate, operations_of_a_gradient

    operations = participants * operations_of_a_gradient(task, data)
    found: dict[str, Any] = {"operations": operations}
    for count in sorted({1, threads}):
        matrices, convolutions = matrix_rate(count), convolution_rate(count)
        found[f"threads_{count}"] = {
            "matrix_products_per_s": matrices,
            "convolutions_per_s": convolutions,
            "seconds_at_the_faster": operations / max(matrices, convolutions),
        }
    return found
