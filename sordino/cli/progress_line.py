"""A line about progress that a terminal rewrites; elsewhere there is none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


def rewritable() -> bool:
    """Whether standard error is a terminal that can rewrite a line."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def counting(things: str) -> Callable[[int, int], None]:
    """Something to call with how many are done and how many there are; the line goes when all are."""

    def tell(done: int, of: int) -> None:
        if rewritable():
            end = "\r\x1b[K" if done == of else ""
            print(f"\r{done:,} of {of:,} {things}".replace(",", " ") + end, end="", file=sys.stderr, flush=True)

    return tell
