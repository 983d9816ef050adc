"""Storms and crashes that the load test's parent causes in a running study, and the recovery from them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_high
from typing import Any, Final

from runtime.child_process import Child
from secagg.messages import MASKED_INPUT, PHASES, UNMASKING
from server.events import Event, PhaseStarted, StudyStarted
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


KILL_WITHIN_S: Final = 2.0
GATEWAY: Final = "ray::_Actor"  # as Ray names their processes
WORKER: Final = "ray::open_task"


@dataclass
class Kills:
    """The coordinator is killed at random instants, and is back on the same port and state.

    Attributes:
        left: that are still to come.
        at: by the monotonic clock, when the next one comes; None until the coordinator serves.
        phases: the phase of the attempt that each hit; ``between`` outside of one.
        hit: (round, attempt) of those that were hit after MaskedInputCollection began.
        serving_s: from each start to the first event of the study.
    """

    left: int
    at: float | None = None
    started_at: float = 0.0
    phases: Counter[str] = field(default_factory=Counter)
    hit: set[tuple[int, int]] = field(default_factory=set)
    serving_s: list[float] = field(default_factory=list)

    def note(self, view: StudyView) -> None:
        """The coordinator was killed, in this state."""
        current = view.current
        phase = current.reached[-1] if current.under_way and current.reached else "between"
        self.left, self.at = self.left - 1, None
        self.phases[phase] += 1
        if phase in PHASES[PHASES.index(MASKED_INPUT) :]:
            self.hit.add((current.round, current.attempt))

    def serves(self, event: StudyStarted) -> None:
        """It serves again: the next kill comes a random time later."""
        if self.started_at:
            self.serving_s.append(event.at - self.started_at)
        self.at = time.monotonic() + random.uniform(0, KILL_WITHIN_S) if self.left else None

    @property
    def due(self) -> bool:
        return self.at is not None and time.monotonic() >= self.at

    def to_json(self, completed: Collection[tuple[int, int]]) -> dict[str, Any]:
        """Args: completed: (round, attempt) of those that ended in a sum."""
        times = self.serving_s
        return {
            "number": self.phases.total(),
            "by_phase": dict(self.phases),
            "attempts_hit": len(self.hit),
            "attempts_resumed": len(self.hit.intersection(completed)),
            "serving_again_s": {"p50": round(median_high(times), 3), "max": round(max(times), 3)} if times else None,
        }


@dataclass
class EngineKills:
    """A process of the coordinator's engine is killed in each round, at each phase in turn.

    Attributes:
        left: that are still to come.
        workers: there are some to kill, too.
        done: what was killed, and how often.
    """

    left: int
    workers: bool
    done: Counter[str] = field(default_factory=Counter)
    _last: tuple[int, int] = (0, 0)

    def strike(self, event: Event, below: Callable[[], Mapping[int, str]]) -> None:
        """An event was recorded. ``below``: the coordinator's processes, with their command lines."""
        if not self.left or not isinstance(event, PhaseStarted) or self._last == (event.round, event.attempt):
            return
        wanted = [*((GATEWAY, phase) for phase in PHASES), *([(WORKER, UNMASKING)] if self.workers else [])]
        what, phase = wanted[self.done.total() % len(wanted)]
        if event.phase != phase:
            return
        victims = [pid for pid, title in below().items() if title.startswith(what)]
        if victims:
            with contextlib.suppress(OSError):
                os.kill(random.choice(victims), signal.SIGKILL)
            self.left, self._last = self.left - 1, (event.round, event.attempt)
            self.done[f"{'gateway' if what == GATEWAY else 'worker'} at {phase}"] += 1


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
    """Return the number of storms that have started, in the order of `faults.in_order`."""
    with contextlib.suppress(FileNotFoundError):
        return (study / _STORMS_FILE).stat().st_size
    return 0
