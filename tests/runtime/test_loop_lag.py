"""The lag of an event loop is seen, and what it is made of adds up."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from runtime.loop_lag import INTERVAL_S, MEMORY_S, LagHistogram, LoopLag, RecentLag


def test_quantiles_are_rounded_up_by_little() -> None:
    rng = random.Random(3)
    late_s = [10 ** rng.uniform(-5.5, 1.0) for _ in range(5000)]
    histogram = LagHistogram()
    for one in late_s:
        histogram.add(one)
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        exact_ms = 1000 * sorted(late_s)[int(share * len(late_s)) - 1]
        assert exact_ms <= histogram.figures()[name] + 0.005 <= 1.13 * exact_ms + 0.02
    assert histogram.figures()["max"] == pytest.approx(1000 * max(late_s), abs=0.006)


def test_no_sample_and_odd_samples() -> None:
    assert LagHistogram().figures() == {"p50": 0.0, "p99": 0.0, "max": 0.0}
    histogram = LagHistogram()
    for late_s in (-1.0, 0.0, 1e6):
        histogram.add(late_s)
    assert histogram.figures() == {"p50": 0.01, "p99": 1e9, "max": 1e9}


def test_memory_does_not_grow() -> None:
    histogram = LagHistogram()
    size = len(histogram._counts)
    for number in range(10_000):
        histogram.add(number / 1000)
    assert len(histogram._counts) == size


async def measured(lag: LoopLag, seconds: float, *, block_s: float = 0.0) -> dict[str, float]:
    sampler = asyncio.create_task(lag.run())
    await asyncio.sleep(0)
    lag.restart()
    await asyncio.sleep(seconds / 2)
    time.sleep(block_s)
    await asyncio.sleep(seconds / 2)
    sampler.cancel()
    await asyncio.gather(sampler, return_exceptions=True)
    return lag.figures()


def test_a_blocked_loop_is_seen() -> None:
    figures = asyncio.run(measured(LoopLag(), 0.2, block_s=0.5))
    assert figures["max"] >= 500 - 1000 * INTERVAL_S
    # The stop is more than half of the time, so a message at any time meets it as often as not; the one sample
    # that a sampler takes behind a stop would hide that.
    assert figures["p50"] >= 50
    assert figures["p99"] >= 450


def test_an_idle_loop_is_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of its own: the machine under the tests may be busy."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    async def sleep(seconds: float) -> None:
        now[0] += seconds + 0.0001
        if now[0] > 10:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    lag = LoopLag()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(lag.run())
    figures = lag.figures()
    assert 0.09 <= figures["p50"] <= figures["p99"] <= figures["max"] <= 0.12


async def test_a_restart_forgets() -> None:
    lag = LoopLag()
    assert (await measured(lag, 0.05, block_s=0.3))["max"] >= 300 - 1000 * INTERVAL_S
    lag.restart()
    assert lag.figures()["max"] == 0.0


def test_the_lag_of_the_last_minute() -> None:
    lag = RecentLag()
    assert lag.largest_s(0.0) == 0
    lag.add(0.0, 0.5)
    for second in range(1, int(MEMORY_S)):
        lag.add(float(second), 0.01)
    assert lag.largest_s(MEMORY_S - 1) == 0.5
    lag.add(MEMORY_S + 1, 0.02)
    assert lag.largest_s(MEMORY_S + 1) == 0.02
    assert lag.largest_s(3 * MEMORY_S + 1) == 0
    assert asyncio.run(measured(loop := LoopLag(), 0.05, block_s=0.3))["max"] >= 300 - 1000 * INTERVAL_S
    assert loop.recent_s() >= 0.3 - INTERVAL_S
