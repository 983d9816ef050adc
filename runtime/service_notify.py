"""Signs of life of a service: systemd's notify protocol, and a file for a container's health check.

Sources: sd_notify(3), sd_watchdog_enabled(3). Datagrams of ``NAME=value`` lines go to the socket that systemd names in
the environment; without one, every call here does nothing, so the same command runs under any supervisor.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Coroutine, Mapping
from typing import Any, Final, TypeVar

from runtime.health_file import EVERY_S, show_life

LONGEST_STATUS: Final = 500  # characters
T = TypeVar("T")


class Notifier:
    """Reports the state of this process to systemd.

    ``environment``: with NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID; by default the process's own. ``watchdog_s``:
    how long systemd waits for a sign of life; None: without limit.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        given = os.environ if environment is None else environment
        address = given.get("NOTIFY_SOCKET", "")
        # "@" stands for the zero byte before a name in Linux's abstract space.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = self._watchdog_s(given) if address else None

    @staticmethod
    def _watchdog_s(given: Mapping[str, str]) -> float | None:
        if given.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
            return None  # meant for another process
        usec = given.get("WATCHDOG_USEC", "")
        return int(usec) / 1e6 if usec.isdecimal() and int(usec) > 0 else None

    def tell(self, **fields: str) -> bool:
        """Send ``NAME=value`` lines, with blanks for a value's line ends; returns whether they were sent.

        A service that can't send them continues; systemd ends it if necessary.
        """
        if not self._address:
            return False
        text = "\n".join(f"{name}={' '.join(value.splitlines())}" for name, value in fields.items())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.setblocking(False)
            try:
                channel.sendto(text.encode(errors="replace"), self._address)
            except OSError:
                return False
        return True

    def status(self, text: str) -> None:
        """One line for `systemctl status`."""
        self.tell(STATUS=text[:LONGEST_STATUS])

    async def around(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the work, and report that it is ready, that its event loop is alive, and that it ends."""
        self.tell(READY="1")
        signs = asyncio.create_task(self.live())
        try:
            return await work
        finally:
            signs.cancel()
            self.tell(STOPPING="1")

    async def live(self) -> None:
        """Give signs of life, twice as often as required: if the event loop hangs, systemd restarts the service."""
        every_s = EVERY_S if self.watchdog_s is None else min(EVERY_S, self.watchdog_s / 2)
        while True:
            self.alive()
            await asyncio.sleep(every_s)

    def alive(self) -> None:
        """One sign of life."""
        show_life()
        if self.watchdog_s is not None:
            self.tell(WATCHDOG="1")
