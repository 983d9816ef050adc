"""Threads for long arithmetic, provided by the caller: this package starts none."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Parallel:
    """A way to run a function on several arguments at once.

    ``map`` works like `concurrent.futures.Executor.map` of a pool with ``width`` threads. The caller must not run in
    that pool: a pool that waits for itself never ends.
    """

    map: Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
    width: int
