"""CPU time of an attempt: by phase, and by what the threads do that spend it."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import Final

LOOP: Final = "event loop"
REST: Final = "gRPC"
KINDS: Final = (LOOP, "protocol", "masks", "journal", REST)
_BY_THREAD: Final = {"protocol": "protocol", "masks": "masks", "writer": "journal"}  # by the beginning of its name


def cpu_by_kind() -> dict[str, float]:
    """CPU seconds of this process so far, by kind of thread; called on the event loop.

    ``gRPC`` is what is left: the threads that gRPC starts, and some that do little. Where the system doesn't say what
    a thread has used (Linux does), all is ``gRPC`` but the event loop.
    """
    spent = dict.fromkeys(KINDS, 0.0) | {LOOP: time.thread_time()}
    for thread in threading.enumerate():
        kind = next((kind for begins, kind in _BY_THREAD.items() if thread.name.startswith(begins)), None)
        if kind is not None:
            # Not by the clock of the thread's identifier: of a thread that has just ended that may crash the process.
            with contextlib.suppress(OSError, ValueError, IndexError):
                spent[kind] += int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9
    return spent | {REST: max(0.0, time.process_time() - sum(spent.values()))}


class CpuSplit:
    """Adds up CPU seconds by phase and kind. What lies between two phases belongs to the one before."""

    def __init__(self, phase: str) -> None:
        self._spent: dict[str, dict[str, float]] = {}
        self._phase, self._before = phase, cpu_by_kind()

    def begin(self, phase: str) -> None:
        """Another phase, or the same again."""
        now = cpu_by_kind()
        so_far = self._spent.setdefault(self._phase, dict.fromkeys(KINDS, 0.0))
        for kind in KINDS:
            so_far[kind] += now[kind] - self._before[kind]
        self._phase, self._before = phase, now

    def figures(self) -> dict[str, dict[str, float]]:
        """Phase -> kind -> seconds, up to now."""
        self.begin(self._phase)
        return {phase: {kind: round(s, 4) for kind, s in spent.items()} for phase, spent in self._spent.items()}
