"""Times of day at which a participant takes part: windows such as ``22:00-06:00``, in the device's local time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MINUTES: Final = 24 * 60
_WINDOW: Final = re.compile(r"(\d{2}):([0-5]\d)-(\d{2}):([0-5]\d)", re.ASCII)


@dataclass(frozen=True)
class Window:
    """From ``start`` up to, not including, ``end``, in minutes after midnight; over midnight where end <= start."""

    start: int  # 0 to 1439
    end: int  # 1 to 1440

    def holds(self, minute: int) -> bool:
        """Whether a minute of the day, 0 to 1439, lies within."""
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


def parse_window(text: str) -> Window:
    """``HH:MM-HH:MM``; 24:00 ends a day.

    Raises:
        ValueError: another form, no such time of day, or a window of no time.
    """
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise ValueError("must read HH:MM-HH:MM, such as 22:00-06:00")
    first_hour, first_minute, last_hour, last_minute = (int(part) for part in found.groups())
    start, end = first_hour * 60 + first_minute, last_hour * 60 + last_minute
    if start >= MINUTES or end > MINUTES:
        raise ValueError("must hold times of day from 00:00 to 24:00, such as 22:00-06:00")
    if start == end:
        raise ValueError("must not be empty: 00:00-24:00 is the whole day")
    return Window(start, end or MINUTES)


def within(windows: Iterable[str], minute: int) -> bool:
    """Whether a minute of the day, 0 to 1439, lies in one of the windows."""
    return any(parse_window(text).holds(minute) for text in windows)
