"""A phase's CPU time, by what the threads do that spend it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from runtime.cpu_split import KINDS, LOOP, REST, CpuSplit


def burn(seconds: float) -> None:
    ends = time.thread_time() + seconds
    while time.thread_time() < ends:
        pass


def test_each_thread_counts_under_its_kind_and_phase() -> None:
    split, before = CpuSplit("first"), time.process_time()
    with ThreadPoolExecutor(1, thread_name_prefix="protocol") as protocol, ThreadPoolExecutor(1) as another:
        protocol.submit(burn, 0.1).result()
        split.begin("second")
        burn(0.05)
        another.submit(burn, 0.2).result()
        split.begin("second")
        burn(0.05)
        found = split.figures()
    assert list(found) == ["first", "second"]
    assert {kind for one in found.values() for kind in one} == set(KINDS)
    assert found["first"]["protocol"] >= 0.1 > found["second"]["protocol"]
    assert found["second"][LOOP] >= 0.1 > found["first"][LOOP]
    assert found["second"][REST] >= 0.2 > found["first"][REST]
    assert sum(sum(one.values()) for one in found.values()) <= time.process_time() - before + 0.01
