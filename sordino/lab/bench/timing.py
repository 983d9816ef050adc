"""Clocks, ratios and their bounds, and the machine. CPU time, not wall time: the machines are shared."""

from __future__ import annotations

import os
import platform
import statistics
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from secagg.masking import choose_keystream

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

    ``ours``, ``limit``: make one measurement each and return it, in the same unit. Returns spreads of ours, of the
    limit, and of the ratio of each pair.
    """
    ours(), limit()
    pairs = [(ours(), limit()) for _ in range(runs)]
    return (
        Spread.of([mine for mine, _ in pairs]),
        Spread.of([bound for _, bound in pairs]),
        Spread.of([mine / bound for mine, bound in pairs]),
    )


BOUNDS: Final[dict[str, dict[str, float]]] = tomllib.loads(Path(__file__).with_name("bounds.toml").read_text())
"""``most``: path -> largest median ratio; ``least``: comparison -> smallest median ratio."""


def broken(ratios: dict[str, float], bounds: dict[str, float], largest: bool) -> list[str]:
    """One sentence for each median ratio that breaks its bound; names without a bound break none.

    ``largest``: whether bounds are the most a ratio may be, or else the least.
    """
    return [
        f"{name} is {ratio:.3g}, its bound is {'at most' if largest else 'at least'} {bounds[name]:g}"
        for name, ratio in ratios.items()
        if name in bounds and (ratio > bounds[name] if largest else ratio < bounds[name])
    ]


_PACKAGES = ("numpy", "cryptography", "grpcio", "protobuf", "uvloop")


def describe() -> dict[str, Any]:
    """Processor, cores, memory, system, Python, packages, OpenSSL, and which keystream this process chose."""
    from cryptography.hazmat.backends.openssl import backend

    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _PACKAGES},
        "openssl": backend.openssl_version_text().split()[1],
        "keystream": choose_keystream(),
    }


def one_line(machine: dict[str, Any]) -> str:
    """For the head of a table."""
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']:g} GB, {machine['system']}, "
        f"Python {machine['python']}, numpy {machine['numpy']}, cryptography {machine['cryptography']} "
        f"(OpenSSL {machine['openssl']}), grpcio {machine['grpcio']}; keystream: AES-128-{machine['keystream'].upper()}"
    )


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
