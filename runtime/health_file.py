"""A sign of life where no port answers: a file that a process touches, for a container's health check.

`deploy/healthcheck.py` reads its time. Without SORDINO_HEALTH_FILE in the environment nothing is written.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

VARIABLE: Final = "SORDINO_HEALTH_FILE"
EVERY_S: Final = 10.0
"""How often a process that does its work shows it; `deploy/healthcheck.py` waits six times as long."""


def show_life() -> None:
    """Touch the file that the environment names. A file that can't be written shows no life, and is no failure here."""
    if path := os.environ.get(VARIABLE):
        with contextlib.suppress(OSError):
            Path(path).touch()


@contextlib.contextmanager
def showing_life() -> Iterator[None]:
    """Show it from a thread for as long as this lasts, whatever is waited for meanwhile.

    For waits whose every step has a deadline of its own, or that are for a person: who hangs shows life, too.
    `client.service_notify.Notifier` shows that an event loop runs.
    """
    if not os.environ.get(VARIABLE):
        yield
        return
    over, every_s = threading.Event(), EVERY_S

    def show() -> None:
        show_life()
        while not over.wait(every_s):
            show_life()

    thread = threading.Thread(target=show, name="signs of life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
