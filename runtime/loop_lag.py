"""How late the event loop is: the time that a message waits before it is handled.

A sampler asks to be woken on a fixed grid of times and notes how late each wake-up came, in a histogram of fixed size.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from typing import Final

INTERVAL_S: Final = 0.02  # at 5 ms it took 3 to 4 % of a core
MEMORY_S: Final = 60.0
_LOWEST_MS: Final = 0.01
_PER_DECADE: Final = 20  # buckets, so that a quantile is at most 12 % too high
_BUCKETS: Final = 7 * _PER_DECADE  # from 0.01 ms to 100 s
_MOST_AT_ONCE: Final = 20_000  # due times made up for after one stop; a machine asleep for a night is no lag


class LagHistogram:
    """Counts of latenesses in logarithmic buckets: constant memory, quantiles rounded up."""

    def __init__(self) -> None:
        self._counts = [0] * (_BUCKETS + 1)
        self._samples = 0
        self._max_ms = 0.0

    def add(self, late_s: float) -> None:
        """One wake-up that came this many seconds late; early is not late."""
        late_ms = 1000.0 * late_s
        bucket = 0 if late_ms <= _LOWEST_MS else math.ceil(_PER_DECADE * math.log10(late_ms / _LOWEST_MS))
        self._counts[min(bucket, _BUCKETS)] += 1
        self._samples += 1
        self._max_ms = max(self._max_ms, late_ms)

    def quantile_ms(self, share: float) -> float:
        """The lateness that this share of the wake-ups doesn't exceed, in ms; 0 without any."""
        wanted, seen = share * self._samples, 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                above = math.inf if bucket == _BUCKETS else _LOWEST_MS * 10 ** (bucket / _PER_DECADE)
                return min(above, self._max_ms)
        return 0.0

    def figures(self) -> dict[str, float]:
        """``p50``, ``p99`` and ``max``, in ms."""
        found = {"p50": self.quantile_ms(0.5), "p99": self.quantile_ms(0.99), "max": self._max_ms}
        return {name: round(value, 2) for name, value in found.items()}


class RecentLag:
    """The largest lateness within the last minute or so: every reader sees the same."""

    def __init__(self) -> None:
        self._parts: deque[tuple[float, float]] = deque()  # (began, largest lateness), of a tenth of the memory each

    def add(self, now: float, late_s: float) -> None:
        """One wake-up, on the monotonic clock."""
        if not self._parts or now - self._parts[-1][0] >= MEMORY_S / 10:
            self._parts.append((now, 0.0))
            self._forget(now)
        began, largest = self._parts[-1]
        if late_s > largest:
            self._parts[-1] = (began, late_s)

    def largest_s(self, now: float) -> float:
        """In seconds; 0 where nothing was measured."""
        self._forget(now)
        return max((largest for _, largest in self._parts), default=0.0)

    def _forget(self, now: float) -> None:
        while self._parts and now - self._parts[0][0] > MEMORY_S:
            self._parts.popleft()


class LoopLag:
    """Measures the loop that `run` runs on.

    A loop that stops for a second misses fifty due times, and each of them counts with its own lateness: the
    quantiles are those of a message that arrives at any time, also while the loop is busy.
    """

    def __init__(self) -> None:
        self._histogram, self._recent = LagHistogram(), RecentLag()

    def restart(self) -> None:
        """Forget what was measured, at the beginning of what is to be measured."""
        self._histogram = LagHistogram()

    def figures(self) -> dict[str, float]:
        """``p50``, ``p99`` and ``max`` of the lateness since `restart`, in ms."""
        return self._histogram.figures()

    def recent_s(self) -> float:
        """The largest lateness within the last minute, in seconds; 0 while nothing is measured."""
        return self._recent.largest_s(time.monotonic())

    async def run(self) -> None:
        due = time.monotonic() + INTERVAL_S
        while True:
            await asyncio.sleep(due - time.monotonic())
            # Not loop.time(): uvloop's has a resolution of a millisecond and stands still during a callback. A timer
            # that comes early by less than that is on time, and isn't set again for the rest.
            now = time.monotonic()
            self._histogram.add(now - due)
            self._recent.add(now, now - due)
            due = max(due + INTERVAL_S, now - _MOST_AT_ONCE * INTERVAL_S)
            while due <= now:
                self._histogram.add(now - due)
                due += INTERVAL_S
