"""Whether this device may take part now: on mains power, while it is idle, with enough free memory.

``[conditions]`` of host.toml enables each condition; docs/edge.md says how it is measured. Nothing here looks at data:
the load and the memory of this process and its descendants are subtracted, so neither the time nor the memory that a
task needs for a participant's data decides whether it takes part. While a condition doesn't hold, the process is
disconnected. It leaves only between attempts: finishing one costs less than a dropout costs the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import structlog

from client.settings import Conditions

log = structlog.get_logger()

POLL_S: Final = 30.0
LONGEST_FINISH_S: Final = 3600.0  # how long a coordinator that never ends an attempt can keep a participant
_WINDOW: Final = 3  # samples of the processors' time: idle means over the last two polls

T = TypeVar("T")


class NotNow(Exception):
    """The conditions no longer hold, and no attempt was under way."""


class Left(Exception):
    """This host's owner has left the study, and no attempt is under way."""


@contextlib.asynccontextmanager
async def running(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Tasks that are cancelled, and have ended, with the block."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Machine:
    """What Linux reports about the device, in files below ``root``.

    The load and memory of the process ``own``, by default this one, are subtracted.
    """

    def __init__(self, root: Path = Path("/"), *, own: int | None = None) -> None:
        self._root = root
        self._own = os.getpid() if own is None else own
        self._samples: deque[tuple[int, int]] = deque(maxlen=_WINDOW)

    def why_not(self, conditions: Conditions) -> dict[str, str]:
        """The conditions that don't hold now: name -> sentence."""
        found: dict[str, str] = {}
        if conditions.mains_power and not self.on_mains():
            found["mains_power"] = "this device runs on its battery"
        if conditions.idle:
            used = self.used_by_others()
            if used is None:
                found["idle"] = "whether this device is idle is being measured"
            elif used > conditions.max_load:
                most = conditions.max_load
                found["idle"] = f"other programs use {used:.0%} of the processors, max_load allows {most:.0%}"
        if conditions.min_free_memory_mb:
            free = self.free_memory_mb()
            if free is not None and free < conditions.min_free_memory_mb:
                found["min_free_memory_mb"] = (
                    f"{free:.0f} MB of memory are free, min_free_memory_mb asks for {conditions.min_free_memory_mb}"
                )
        return found

    # ------------------------------------------------------------ power

    def on_mains(self) -> bool:
        """Whether the device draws from the mains: a supply is on line, its battery isn't drained, or it has none."""
        batteries: list[str] = []
        for supply in self._entries("sys/class/power_supply"):
            kind = self._read(supply / "type")
            if self._read(supply / "scope") == "Device":  # the battery of a mouse
                continue
            if kind in ("Battery", "UPS"):
                batteries.append(self._read(supply / "status"))
            elif self._read(supply / "online") not in ("", "0"):
                return True
        # Some devices report only the battery. Both "Unknown" and "Discharging" may be a battery in use.
        return all(status in ("Charging", "Full", "Not charging") for status in batteries)

    # ------------------------------------------------------------ processors and memory

    def used_by_others(self) -> float | None:
        """Share of all processors that other programs used since the sample before last; None at the first one.

        Not the load average, which includes training, here or in child processes that load its data: training would
        stop itself.
        """
        sample = self._processor_time()
        if sample is None:
            return 0.0  # not Linux, or unreadable: no condition fails
        self._samples.append(sample)
        (others, total), (others_now, total_now) = self._samples[0], self._samples[-1]
        if total_now <= total:
            return None
        return max(0.0, (others_now - others) / (total_now - total))

    def _processor_time(self) -> tuple[int, int] | None:
        """Clock ticks since boot: of all other processes, and of all processors including idle time."""
        try:
            fields = [int(one) for one in self._read(self._root / "proc/stat").splitlines()[0].split()[1:9]]
            user, nice, system, idle, waiting, irq, softirq, _ = fields
            # Including waited-for children: the time of an ended process is added to its parent's.
            own = sum(sum(map(int, one[11:15])) for one in self._own_processes().values())
        except (IndexError, ValueError):
            return None
        busy = user + nice + system + irq + softirq
        return busy - own, busy + idle + waiting

    def free_memory_mb(self) -> float | None:
        """Megabytes (10^6) that programs could have without swapping if this process and its descendants had none.

        None where it can't be read.
        """
        available = _kilobytes(self._read(self._root / "proc/meminfo")).get("MemAvailable")
        if available is None:
            return None
        return (available + sum(map(self._memory_kb, self._own_processes()))) * 1024 / 1e6

    def _memory_kb(self, process: int) -> int:
        """Memory that would be free without a process; pages of files count as free in MemAvailable already."""
        place = self._root / "proc" / str(process)
        # Shared pages count in part, so that the pages of a fork aren't counted twice.
        shares = _kilobytes(self._read(place / "smaps_rollup"))
        if "Pss_Anon" in shares:
            return shares["Pss_Anon"] + shares.get("Pss_Shmem", 0)
        whole = _kilobytes(self._read(place / "status"))
        return whole.get("RssAnon", 0) + whole.get("RssShmem", 0)

    def _own_processes(self) -> dict[int, list[str]]:
        """Fields of /proc/N/stat, from the state on, of this process and all its descendants."""
        fields = {
            int(place.name): self._read(place / "stat").rpartition(")")[2].split()
            for place in self._entries("proc")
            if place.name.isdigit()
        }
        begun: dict[int, list[int]] = {}
        for number, one in fields.items():
            if len(one) > 1:
                begun.setdefault(int(one[1]), []).append(number)
        found, look = dict[int, list[str]](), [self._own]
        while look:
            number = look.pop()
            if number not in found and fields.get(number):
                found[number] = fields[number]
                look += begun.get(number, [])
        return found

    # ------------------------------------------------------------ files

    def _entries(self, folder: str) -> list[Path]:
        try:
            return sorted((self._root / folder).iterdir())
        except OSError:
            return []

    def _read(self, file: Path) -> str:
        try:
            return file.read_text(errors="replace").strip()
        except OSError:
            return ""


def _kilobytes(text: str) -> dict[str, int]:
    """Lines ``Name:  123 kB``."""
    lines = (line.partition(":") for line in text.splitlines() if line.endswith(" kB"))
    return {name: int(value.split()[0]) for name, _, value in lines if value.split()[0].isdigit()}


class Gate:
    """Open while all conditions hold and the owner doesn't say otherwise; shared by the participants of a process."""

    def __init__(
        self,
        why_not: Callable[[], Awaitable[Mapping[str, str]]] | None,
        *,
        poll_s: float = POLL_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            why_not: the conditions that don't hold now, by name; None: there are no conditions.
            sleep, clock: in seconds; tests pass others.
        """
        self._why_not, self._poll_s, self._sleep, self._clock = why_not, poll_s, sleep, clock
        self._shut_at = 0.0
        self._conditions: Mapping[str, str] | None = {} if why_not is None else None  # None: not looked at yet
        self._owner: Mapping[str, str] = {}
        self._found: Mapping[str, str] = {}  # of both
        self._left, self._changed = False, asyncio.Event()

    async def run(self) -> None:
        while self._why_not is not None:
            try:
                found = await self._why_not()
            except Exception as error:  # counts as a condition that doesn't hold; this task must not end
                found = {"conditions": f"the conditions can't be looked at: {type(error).__name__}"}
            self._conditions = found
            self._take()
            await self._sleep(self._poll_s)

    def owner_says(self, found: Mapping[str, str], *, left: bool) -> None:
        """Why the owner doesn't take part now, as for ``why_not``; ``left``: and never again."""
        self._owner, self._left = found, left
        self._take()

    def _take(self) -> None:
        before, self._found = self._found, {**(self._conditions or {}), **self._owner}
        if self._found and not before:
            self._shut_at = self._clock()
        self._changed.set()
        if self._found.keys() != before.keys():
            if self._left:
                event = "leaving the study: an attempt under way is finished first"
            elif self._found:
                event = "not taking part now, until this changes"
            else:
                log.info("taking part again: what stood in the way has gone")
                return
            log.info(event, reason="; ".join(self._found.values()))

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def is_open(self) -> bool:
        return self._conditions is not None and not self._found

    def is_overdue(self) -> bool:
        """Whether the time for finishing an attempt is over, over all its sessions."""
        return bool(self._found) and self._clock() - self._shut_at >= LONGEST_FINISH_S

    async def shut(self) -> None:
        """Wait until a condition doesn't hold, or the owner says so."""
        await self._until(lambda: bool(self._found))

    async def opened(self) -> bool:
        """Wait until all conditions hold; returns whether there was anything to wait for. Raises `Left`."""
        waited = not self.is_open()
        await self._until(lambda: self.is_open() or self._left)
        if not self.is_open():
            raise Left
        return waited

    async def within(self, work: Coroutine[Any, Any, T], under_way: Callable[[], bool]) -> T:
        """Work for as long as the conditions hold, and after that until no attempt is under way.

        Raises NotNow if a condition ended the work; where `is_overdue`, the caller must give up the attempt.
        """
        async with running(work, self._time_to_leave(under_way)) as tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                raise NotNow
            result: T = tasks[0].result()
            return result

    async def _time_to_leave(self, under_way: Callable[[], bool]) -> None:
        while True:
            await self.shut()
            while self._found:
                if not under_way() or self.is_overdue():
                    return
                await self._sleep(1.0)
