"""A sign of life where no port answers: a file that a process touches, for a container's health check.

`deploy/healthcheck.py` reads its time. Without SORDINO_HEALTH_FILE in the environment nothing is written.
"""

from __future__ import annotations

import contextlib
import os
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
