"""A sign of life of processes without a port: a file that they touch, for a container's health check.

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
"""Interval at which a working process touches the file; `deploy/healthcheck.py` waits six times as long."""


def show_life() -> None:
    """Touch the file that the environment names. A file that can't be written is no failure here: it stays old."""
    if path := os.environ.get(VARIABLE):
        with contextlib.suppress(OSError):
            Path(path).touch()


@contextlib.contextmanager
def showing_life() -> Iterator[None]:
    """Touch the file from a thread until the block ends.

    Only for code whose every step has a deadline, or that waits for a person, since a block that hangs shows life too.
    `runtime.service_notify.Notifier` shows that an event loop runs.
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
