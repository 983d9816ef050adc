"""One line for each attempt at a round, however many participants a process has: quiet, and all there is to see.

What it says is the process's own: which of its participants came into the sum, over how many that was, and what the
dearest of them has spent so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog


@dataclass
class _Attempt:
    begun: set[bytes] = field(default_factory=set)
    over: set[bytes] = field(default_factory=set)
    summed: set[bytes] = field(default_factory=set)
    survivors: int = 0
    reason: str = ""


class RoundLines:
    """Told by each participant of what happens to her; says a line when an attempt is over for all who began it.

    Args:
        spent: what to add about the budget, by name.
    """

    def __init__(self, spent: Callable[[], dict[str, Any]]) -> None:
        self._spent = spent
        self._attempts: dict[tuple[int, int], _Attempt] = {}
        self._log = structlog.get_logger()

    def begun(self, number: tuple[int, int], who: bytes) -> None:
        """She takes part in an attempt: (round, attempt)."""
        for earlier in [one for one in self._attempts if one < number]:
            self.over(earlier, who, "nobody said how it ended")
        self._attempts.setdefault(number, _Attempt()).begun.add(who)

    def in_sum(self, number: tuple[int, int], who: bytes, survivors: int) -> None:
        """The sum of so many, hers among them, is being opened."""
        if (attempt := self._attempts.get(number)) is not None:
            attempt.summed.add(who)
            attempt.survivors = survivors

    def over(self, number: tuple[int, int], who: bytes, reason: str = "") -> None:
        """The attempt is over for her; why, where there is no sum with her in it."""
        attempt = self._attempts.get(number)
        if attempt is None or who not in attempt.begun:
            return
        attempt.over.add(who)
        attempt.reason = attempt.reason or reason
        if attempt.over >= attempt.begun:
            self._say(number)

    def gone(self, who: bytes) -> None:
        """Her session has ended: so have all her attempts."""
        for number in list(self._attempts):
            self.over(number, who, "the connection ended")

    def _say(self, number: tuple[int, int]) -> None:
        attempt = self._attempts.pop(number)
        told: dict[str, Any] = {"round": number[0]}
        if number[1] > 1:
            told["attempt"] = number[1]
        told["in_the_sum"] = f"{len(attempt.summed)} of {len(attempt.begun)} here"
        if attempt.summed:
            told["sum_of"] = attempt.survivors
        elif attempt.reason:
            told["reason"] = attempt.reason
        self._log.info("round over", **told, **self._spent())
