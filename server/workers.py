"""The coordinator's threads: what computes, or waits for a disk, never runs on the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, TypeVarTuple

from secagg.parallel import Parallel

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

_MOST_MASK_THREADS: Final = 4  # each but one holds a vector while it works


class Workers:
    """The threads of one study."""

    def __init__(self) -> None:
        cores = min(_MOST_MASK_THREADS, os.cpu_count() or 1)
        self.protocol = ThreadPoolExecutor(1, thread_name_prefix="protocol")  # the core is only ever touched by one
        self._masks = ThreadPoolExecutor(cores, thread_name_prefix="masks")
        # Opens sums, at the protocol's bidding: threads for the masks, or processes elsewhere.
        self.parallel = Parallel(self._masks.map, cores)

    async def compute(self, function: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """In the protocol's thread."""
        return await asyncio.get_running_loop().run_in_executor(self.protocol, function, *arguments)

    def close(self) -> None:
        for executor in (self.protocol, self._masks):
            executor.shutdown(wait=False, cancel_futures=True)


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Await work that a cancellation must not cut off: the task is cancelled when it is done."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
