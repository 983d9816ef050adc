"""What the coordinator sets for its own process, in a process of its own."""

from __future__ import annotations

import gc
import os
import platform
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

import server.process_limits
from secagg.keys import IdentityKey
from server.process_limits import resident_mb
from tests.support.study_in_process import Peer, coordinator

ALONE = """
import gc
from server import process_limits
process_limits.settle()
assert gc.isenabled() and gc.get_freeze_count() > 1000
# A walk through everything would come after 700 x 10 x 10 new objects.
walks = []
gc.callbacks.append(lambda phase, info: walks.append(info["generation"]))
kept = [[number] for number in range(300_000)]
assert 1 in walks and 2 not in walks, set(walks)
process_limits.tidy()
assert walks[-1] == 2
class Cycle: pass
one = Cycle(); one.itself = one
del one
assert gc.collect() > 0
process_limits.tidy()
before = process_limits.resident_mb()
blocks = [bytearray(b"x" * 400_000) for _ in range(100)]
del blocks
small = [bytearray(b"x" * 100_000) for _ in range(400)]
full = process_limits.resident_mb()
del small[::2]
print(before, full, process_limits.resident_mb())
"""


def test_few_walks_and_no_holes() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    before, full, half = map(float, done.stdout.split())
    if platform.libc_ver()[0] == "glibc":
        assert full - before > 35
        # Every other block is free, in the middle of the others; 40 MB were, less 20 MB.
        assert half - before < 0.6 * (full - before)


async def test_refused_calls_leave_nothing(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers' cycles are collected within an attempt or a wait: the collector by itself would come much later."""
    monkeypatch.setattr(server.process_limits, "REFUSALS_PER_WALK", 10)
    walks: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            walks.append(info["collected"])

    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        stranger = IdentityKey.generate(os.urandom)
        gc.collect()
        gc.disable()
        gc.callbacks.append(note)
        try:
            for _ in range(25):
                with pytest.raises(grpc.aio.AioRpcError):
                    await Peer(where, stranger).connect()
        finally:
            gc.callbacks.remove(note)
            gc.enable()
    assert len(walks) == 2
    assert min(walks) > 10  # cycles of ten refused calls and more


def test_resident_memory() -> None:
    assert 5 < resident_mb() < 100_000


async def test_only_between_attempts(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way: list[bool] = []
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        where.study._between_attempts = lambda: under_way.append(where.study._attempt is not None)
        await where.play()
    assert under_way == [False, False]
