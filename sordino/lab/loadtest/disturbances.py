"""Storms and crashes that the load test's parent causes in a running study, and the recovery from them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from runtime.child_process import Child
from server.events import Event, PhaseStarted
from server.study_view import StudyView
from sordino.lab.loadtest.faults import BETWEEN_ROUNDS, PHASE_NAMES, Storm

_STORMS_FILE: Final = "storms"  # in the study's folder, a byte for each that has come


@dataclass
class Recovery:
    """From a disturbance until all participants are back.

    Attributes:
        what: ``storm`` or ``crash``.
        round: after or in which, counting those that abort.
        at: seconds since the epoch.
        struck: participants that lost their connection, of those connected then.
        cpu_before_s: CPU time of the coordinator before it.
        seconds, cpu_s: time until all were back, and the coordinator's CPU time in it; None where some aren't back, or
            no connection broke (``lost`` is empty), as in a silent cut that is shorter than the keepalive's timeout.
    """

    what: str
    round: int
    at: float
    struck: frozenset[int]
    cpu_before_s: float
    back: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    seconds: float | None = None
    cpu_s: float | None = None

    def look(self, view: StudyView) -> bool:
        """Look at the study after each event; returns whether the last one brought the last participant back."""
        if self.seconds is not None or view.last_at <= self.at:
            return False
        came = {who for who in self.struck if view.came_at.get(who, 0.0) > self.at}
        self.lost = came | {who for who in self.struck if view.left_at.get(who, 0.0) > self.at}
        self.back = came & view.connected
        if not self.lost or self.back < self.struck:
            return False
        self.seconds = view.last_at - self.at
        return True

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "round": self.round,
            "struck": len(self.struck),
            "lost": len(self.lost),
            "back": len(self.back),
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "server_cpu_s": None if self.cpu_s is None else round(self.cpu_s, 2),
        }


def due(storm: Storm, event: Event, ended: int) -> bool:
    """Whether a storm comes now, with ``ended`` rounds: at the end of its round where its phase is never reached."""
    if ended >= storm.round:
        return True
    if not isinstance(event, PhaseStarted) or storm.at == BETWEEN_ROUNDS:
        return False
    return ended == storm.round - 1 and event.phase == PHASE_NAMES[storm.at]


def strike(study: Path, clients: Sequence[Child]) -> None:
    """Signal the next storm to all client processes. Two signals can merge into one, so processes count storms by the
    file.
    """
    with (study / _STORMS_FILE).open("ab") as come:
        come.write(b".")
    for child in clients:
        child.signal(signal.SIGUSR1)


def storms_come(study: Path) -> int:
    """Return the number of storms that have started, in the order of `LoadOptions.in_order`."""
    with contextlib.suppress(FileNotFoundError):
        return (study / _STORMS_FILE).stat().st_size
    return 0
