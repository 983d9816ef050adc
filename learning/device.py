"""On which device, and on how many threads, the tasks of this process compute where they have a choice.

A word and a number only, so that choosing needs no library that knows devices. Tasks in numpy ignore both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

CPU, CUDA, AUTO = "cpu", "cuda", "auto"
DEVICES: Final = (CPU, CUDA, AUTO)

_chosen = CPU
_threads = 1


def use_device(name: str) -> None:
    """Choose the device of all tasks of this process, from their next call on.

    ``name``: ``cpu``, ``cuda``, or ``auto``: the accelerator if one exists.

    Raises ValueError: another name.
    """
    global _chosen
    if name not in DEVICES:
        raise ValueError(f"unknown device {name!r}; known devices: {', '.join(DEVICES)}")
    _chosen = name


def chosen_device() -> str:
    """What ``use_device`` was given last; ``cpu`` before."""
    return _chosen


def use_threads(count: int) -> None:
    """Let what trains, encodes or evaluates several participants at once take ``count`` threads, from the next call on.

    One is right where several participants share a machine; results don't depend on it. Raises ValueError: fewer than
    one.
    """
    global _threads
    if count < 1:
        raise ValueError(f"tasks can't compute on {count} threads; it takes one at least")
    _threads = count


def chosen_threads() -> int:
    """What ``use_threads`` was given last; 1 before."""
    return _threads


def on_threads(work: Callable[[T], R], items: Sequence[T], begin: Callable[[], object] = lambda: None) -> list[R]:
    """Work on each item, on as many threads as were chosen; ``begin`` is called first in each of several threads."""
    threads = min(chosen_threads(), len(items))
    if threads <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads, initializer=begin) as pool:
        return list(pool.map(work, items))
