"""Threads for long arithmetic, lent by the caller: this package starts none of its own."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Parallel:
    """A way to run a function on several arguments at once.

    ``map`` is as `concurrent.futures.Executor.map` of a pool with ``width`` threads that isn't the one the caller
    itself runs in: a pool that waits for itself never ends.
    """

    map: Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
    width: int
