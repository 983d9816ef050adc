"""What the standard library doesn't offer for processes: memory, core files, free ports, ending with the parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from runtime.failure import ExitCode, InputFailure

T = TypeVar("T")

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_M_ARENA_MAX: Final = -8
_POLL_S: Final = 1.0
BLAS_THREADS: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Variables with the number of threads for linear algebra; they are read when numpy is imported."""


def end_with_parent(parent: int) -> None:
    """End this process (SIGTERM) when the one that started it ends, even when that one is killed.

    On Linux the kernel does it; elsewhere a thread notices that the parent has changed. ``parent`` is the process id as
    the starter passed it on: it may have ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the call
            os.kill(os.getpid(), signal.SIGTERM)
        return

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def one_thread_each() -> None:
    """Give processes that are started from here on one thread each for linear algebra, unless the variables are set."""
    for name in BLAS_THREADS:
        os.environ.setdefault(name, "1")


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on uvloop, or on asyncio's own loop where uvloop isn't installed."""
    import asyncio

    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def refuse_running_loop(instead: str) -> None:
    """For calls that block. Raises InputFailure: an event loop runs in this thread; ``instead`` is what to await."""
    import asyncio

    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise InputFailure(f"an event loop runs here already, as in a notebook: use `{instead}`")


@contextlib.contextmanager
def stop_signals(stop: Callable[[ExitCode], None]) -> Iterator[None]:
    """Have the running event loop call ``stop`` with OK at SIGTERM and with INTERRUPTED at Ctrl-C.

    Signals reach a process's first thread alone: a loop in another one is left as it is. What a program did at these
    signals before it does again after the block.
    """
    import asyncio

    codes = {signal.SIGTERM: ExitCode.OK, signal.SIGINT: ExitCode.INTERRUPTED}
    if threading.current_thread() is not threading.main_thread():
        codes = {}
    loop, before = asyncio.get_running_loop(), {number: signal.getsignal(number) for number in codes}
    for number, code in codes.items():
        loop.add_signal_handler(number, stop, code)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def leave_no_core() -> None:
    """Keep this process's memory, with its keys and masks, out of core files and hidden from other processes.

    Processes that this one starts inherit the limit. A system that pipes cores to a collector ignores the limit, so on
    Linux the process is also marked as not dumpable; then only root can attach a debugger to it or read its memory
    under /proc. An exec clears that mark, so this must be called again after one.
    """
    with contextlib.suppress(OSError, ValueError):  # a lower limit is set already, or the system has no such limit
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def step_aside() -> None:
    """Give other processes precedence where there are too few processors for all (nice 10).

    Linux weighs sessions against each other before it considers the niceness of a process, so the priority of the
    session, in which a session's leader may be alone, is lowered too.
    """
    os.nice(10)
    with contextlib.suppress(OSError):  # a kernel without groups by session
        Path("/proc/self/autogroup").write_text("10")


def use_few_arenas() -> None:
    """Keep glibc from opening a heap for each thread: 3 MB less in a client process of ten participants.

    Its threads compute in numpy and OpenSSL and allocate little, so waiting for one another costs nothing measurable.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library has no such thing
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def peak_resident_mb(pid: int) -> float | None:
    """Peak of a process's resident memory, in megabytes (10^6 bytes); None if it is gone or there is no such figure."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    return None


def cpu_seconds(pid: int) -> float | None:
    """User and system time that a process has used, in seconds; None as above."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return sum(map(int, _stat(pid)[11:13])) / os.sysconf("SC_CLK_TCK")
    return None


def _stat(pid: int | str) -> list[str]:
    """Fields of a process's status: the command's name, in parentheses, may hold anything, so they begin behind it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def processes_below(pid: int) -> dict[int, str]:
    """All processes that run below one: children, their children and so on; number -> command line."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            children.setdefault(int(_stat(entry.name)[1]), []).append(int(entry.name))
    found: dict[int, str] = {}
    waiting = [*children.get(pid, ())]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):
            found[one] = Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        waiting += children.get(one, ())
    return found


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago."""
    with socket.socket(socket.AF_INET) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


CPUINFO: Final = Path("/proc/cpuinfo")
# Names as in /proc/cpuinfo: SSE3 is "pni" there.
_LEVEL_2: Final = ("cx16", "lahf_lm", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2")
_FIRST: Final = 1 << 14  # bytes that hold the first processor, however many there are


def features(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Flags of the first processor ("flags" on x86-64, "Features" on arm64); nothing where they can't be read."""
    try:
        with cpuinfo.open(errors="replace") as file:
            text = file.read(_FIRST)
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def has_aes(cpuinfo: Path = CPUINFO) -> bool | None:
    """Whether the processor has AES instructions (AES-NI, the ARMv8 Cryptography Extension); None: unknown."""
    found = features(cpuinfo)
    return "aes" in found if found else None


def too_old(cpuinfo: Path = CPUINFO, machine: str | None = None) -> str | None:
    """Why numpy can't run on this processor (``machine`` as of `platform.machine`), in a sentence; None if it can, or
    if unknown.
    """
    found = features(cpuinfo)
    if (platform.machine() if machine is None else machine) != "x86_64" or not found:
        return None
    missing = [name for name in _LEVEL_2 if name not in found]
    if not missing:
        return None
    return (
        f"this processor lacks {', '.join(missing)}, which numpy's wheels need (x86-64-v2, in processors since about "
        "2009): use another machine, or a numpy built for this one with SORDINO_ANY_PROCESSOR=1"
    )
