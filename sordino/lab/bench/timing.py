"""Clocks and ratios. CPU time, not wall time: the machines are shared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

SHORTEST_S: Final = 0.02  # of one timed run; the clock's own step is far below


@dataclass(frozen=True)
class Spread:
    """Smallest, middle and largest of several runs, in one unit."""

    minimum: float
    median: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Args: at least one value."""
        return cls(min(values), statistics.median(values), max(values))

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def seconds_each(function: Callable[[], Any], shortest_s: float = SHORTEST_S) -> float:
    """CPU seconds of one call, averaged over as many calls as fill ``shortest_s``."""
    calls, spent = 1, 0.0
    while True:
        began = time.process_time()
        for _ in range(calls):
            function()
        spent = time.process_time() - began
        if spent >= shortest_s:
            return spent / calls
        calls = max(2 * calls, int(1.2 * calls * shortest_s / max(spent, 1e-6)))


def spread(function: Callable[[], Any], runs: int, scale: float = 1.0) -> Spread:
    """CPU time of one call in several runs, times ``scale``; one run before them isn't counted."""
    function()
    return Spread.of([scale * seconds_each(function) for _ in range(runs)])


def beside(ours: Callable[[], float], limit: Callable[[], float], runs: int) -> tuple[Spread, Spread, Spread]:
    """Time two functions alternately, so that other load affects both equally.

    Args:
        ours, limit: make one measurement each and return it, in the same unit.

    Returns:
        spreads of ours, of the limit, and of the ratio of each pair.
    """
    ours(), limit()
    pairs = [(ours(), limit()) for _ in range(runs)]
    return (
        Spread.of([mine for mine, _ in pairs]),
        Spread.of([bound for _, bound in pairs]),
        Spread.of([mine / bound for mine, bound in pairs]),
    )
