"""What is logged while a coordinator is away: one line when it goes, one when it is back, and few between them."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import structlog

from client.unreachable import ANSWERED, Trouble
from runtime.text import duration

log = structlog.get_logger()

REMIND_S: Final = 60.0  # after this absence a line repeats it, and again after 60 times as long


class Absence:
    """The coordinator's absence, said once for all participants of a process.

    ``ended`` is set while the coordinator answers one of them.
    """

    def __init__(self, address: str, give_up_s: float) -> None:
        self._address = address
        self._longest = f"for {give_up_s:g} s" if give_up_s else "until it is stopped"
        self.ended = asyncio.Event()
        self._since: float | None = None
        self._likeliest, self._remind_s = -1, REMIND_S

    def note(self, trouble: Trouble) -> None:
        """A participant could not reach it; logged the first time, when more is known, and rarely after that."""
        self.ended.clear()
        now, state = time.monotonic(), "coordinator away"
        if trouble.tells >= ANSWERED:
            state = "no coordinator of this study there"
        told = {"address": self._address, "reason": trouble.words}
        if self._since is None or trouble.tells > max(self._likeliest, 1):
            self._since = self._since or now
            self._likeliest = trouble.tells
            log.info(f"{state}, trying again {self._longest}", **told)
        elif now - self._since >= self._remind_s:
            # A warning: a program of somebody else, such as a notebook, shows no other line of this.
            log.warning(f"{state} for {duration(now - self._since)}, trying again {self._longest}", **told)
            self._remind_s *= 60

    def over(self) -> None:
        """It answers a participant."""
        if self._since is not None:
            log.info("the coordinator is back", away=duration(time.monotonic() - self._since))
        self._since, self._likeliest, self._remind_s = None, -1, REMIND_S
        self.ended.set()
