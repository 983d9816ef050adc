"""How many attempts a participant's ledger was charged for within a day, by a clock that never goes back.

The rows alone decide, so a restart, another study or another coordinator changes nothing. A row counts at the latest
time that it or any row before it states, and so does the present: a clock that was put back gives no attempt free.
"""

from __future__ import annotations

import math
from typing import Final

DAY_S: Final = 86_400.0

Attempt = tuple[str, int, int]
"""SHA-256 of the study document in hexadecimal digits, round, attempt."""


class Pace:
    """Attempts by the time they were charged; only those of the last day before the latest row are kept.

    Several participants of a host that are charged for one attempt count as one: each of them sent one vector.
    """

    def __init__(self) -> None:
        self._charged: dict[Attempt, float] = {}  # ascending by time
        self.latest = -math.inf
        """The latest time of any row, in seconds since 1970."""

    def note(self, at: float, attempt: Attempt | None = None) -> None:
        """A row was written at this time (seconds since 1970), and was a charge for an attempt or wasn't."""
        self.latest = max(self.latest, at)
        if attempt is not None:
            self._charged.pop(attempt, None)
            self._charged[attempt] = self.latest
        while self._charged and next(iter(self._charged.values())) <= self.latest - DAY_S:
            self._charged.pop(next(iter(self._charged)))

    def within_a_day(self, now: float, besides: Attempt | None = None) -> int:
        """Attempts charged in the 24 hours before ``now``, less the one that is asked about."""
        return len(self._recent(now, besides))

    def free_again(self, now: float, most: int, besides: Attempt | None = None) -> float:
        """When fewer than ``most`` (at least 1) attempts will lie within a day; ``now`` if that is so already."""
        times = self._recent(now, besides)
        return now if len(times) < most else times[-most] + DAY_S

    def _recent(self, now: float, besides: Attempt | None) -> list[float]:
        since = max(now, self.latest) - DAY_S
        return [at for attempt, at in self._charged.items() if at > since and attempt != besides]
