"""When a wait is worth an event: each one is kept in the journal, and a wait may last for days."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNCHANGED_S: Final = 60.0  # between two events that say the same


@dataclass
class WaitReports:
    """Those of one wait."""

    _told: tuple[int, ...] | None = None
    _told_at: float = 0.0

    def due(self, counts: tuple[int, ...], interval_s: float, now: float) -> bool:
        """Whether to report: at once, after a change but not within ``interval_s``, else once a minute."""
        after_s = UNCHANGED_S if counts == self._told else interval_s
        if self._told is not None and now - self._told_at < after_s:
            return False
        self._told_at, self._told = now, counts
        return True
