"""A realistic study as a stream of events: 100 participants on 10 hosts, two hosts killed in round 5, back in
round 8.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from secagg.messages import PHASES
from server.events import (
    AttemptAborted,
    AttemptStarted,
    Event,
    ParticipantConnected,
    ParticipantDropped,
    ParticipantLost,
    PhaseEnded,
    PhaseProgress,
    PhaseStarted,
    RoundCompleted,
    StudyFinished,
    StudyStarted,
    SurvivorsFrozen,
)
from sordino.lab.demo import DemoOptions
from sordino.reporting.feed import StudyFeed

SECONDS = dict(zip(PHASES, (0.12, 0.62, 0.71, 0.16, 0.24), strict=True))
DEADLINES = dict(zip(PHASES, (15.0, 20.0, 60.0, 15.0, 15.0), strict=True))
HOSTS, EACH, ROUNDS = 10, 10, 15
ABORTED = 11  # round whose first attempt fails
KILLED = ("host-03", "host-07")
WITHOUT_NOISE = [round(0.745 - 0.60 * math.exp(-0.42 * r), 4) for r in range(1, ROUNDS + 1)]


def fed(events: Iterable[Event], state: Path | None = None, *, names: bool = False) -> StudyFeed:
    """A feed that has taken these events."""
    feed = StudyFeed(state, names=names)
    for event in events:
        feed.apply(event)
    return feed


@functools.cache
def demo_plan() -> dict[str, Any]:
    """Return the demo's plan as the coordinator records it."""
    return dict(DemoOptions().study(0).study.plan().to_json())


def make_events(*, rounds: int = ROUNDS, until: int | None = None) -> list[Event]:
    """Make events in the coordinator's order; ``until`` cuts the stream in the middle of that round's collection."""
    rng = random.Random(7)
    clock = 1_760_000_000.0
    events: list[Event] = []

    def say(event: Event) -> None:
        events.append(replace(event, seq=len(events) + 1, at=clock))

    # Positions follow identities, not hosts, as in a real roster.
    numbers = list(range(HOSTS * EACH))
    rng.shuffle(numbers)
    host_of = {number: f"host-{index // EACH + 1:02d}" for index, number in enumerate(numbers)}
    say(
        StudyStarted(
            study="demo",
            task="softmax-regression",
            participants=len(host_of),
            rounds=rounds,
            delta=1e-5,
            epsilon_target=8.0,
            plan=demo_plan(),
            threshold=53,
            address="127.0.0.1:8443",
            partition={"name": "dirichlet", "alpha": 1.0, "seed": 1},
            one_machine=True,
        )
    )
    for number in sorted(host_of):
        clock += 0.012
        say(ParticipantConnected(participant=number, host=host_of[number]))
    here = set(host_of)
    epsilons = dict.fromkeys(("epsilon_coordinator", "epsilon_released"), 0.0)
    for number in range(1, rounds + 1):
        if number == 8:
            for participant in sorted(set(host_of) - here):
                say(ParticipantConnected(participant=participant, host=host_of[participant]))
            here = set(host_of)
        for attempt in (1, 2) if number == ABORTED else (1,):
            failing = number == ABORTED and attempt == 1
            clock += 0.05
            say(AttemptStarted(round=number, attempt=attempt, cohort=len(here)))
            spent: dict[str, float] = {}
            begun, alive = len(here), set(here)
            for phase in PHASES:
                deadline = DEADLINES[phase]
                about: dict[str, Any] = {"round": number, "attempt": attempt, "phase": phase}
                say(PhaseStarted(**about, expected=len(alive), needed=75, deadline_s=deadline))
                progress = PhaseProgress(**about, received=41, expected=len(alive), needed=70, left_s=deadline - 0.3)
                seconds = SECONDS[phase] * rng.uniform(0.9, 1.2)
                if phase == "MaskedInputCollection" and number == 5:
                    clock += 0.3
                    say(progress)
                    for one in sorted(p for p in alive if host_of[p] in KILLED):
                        say(ParticipantLost(participant=one, host=host_of[one], reason="closed"))
                        why = "connection closed"
                        say(ParticipantDropped(**about, participant=one, host=host_of[one], reason=why))
                        alive.discard(one)
                        here.discard(one)
                    if until == number:
                        return events
                if phase == "ShareKeys" and number == 13:
                    late = min(alive)
                    say(ParticipantDropped(**about, participant=late, host=host_of[late], reason="late"))
                    alive.discard(late)
                if phase == "ShareKeys" and failing:
                    clock += deadline
                    say(AttemptAborted(**about, reason="too few participants answered", received=61, needed=75))
                    break
                clock += seconds
                say(replace(progress, received=len(alive) - 3, needed=75, left_s=deadline - seconds))
                say(PhaseEnded(**about, received=len(alive), seconds=seconds))
                spent[phase] = seconds
                if phase == "ConsistencyCheck":
                    epsilon = 6.41 * math.sqrt(number / rounds) * (1.06 if number >= 5 else 1.0)
                    epsilons = dict.fromkeys(epsilons, epsilon)
                    sets = {"u1": len(here), "u2": len(here), "u3": len(alive)}
                    say(SurvivorsFrozen(round=number, attempt=attempt, **sets, h=len(alive) - 5, **epsilons))
            else:
                say(
                    RoundCompleted(
                        round=number,
                        attempt=attempt,
                        **dict.fromkeys(("u1", "u2"), len(here) + begun - len(alive)),
                        **dict.fromkeys(("u3", "u4", "u5"), len(alive)),
                        dropouts=begun - len(alive),
                        seconds=sum(spent.values()) + 0.2,
                        key_to_sum_s=sum(spent.values()),
                        phase_seconds=spent,
                        upload_bytes=31_240,
                        vector_bytes=1024,
                        download_bytes=48_310,
                        accuracy=WITHOUT_NOISE[min(number, ROUNDS) - 1] - 0.012 - rng.uniform(0, 0.02),
                        loss=0.9,
                        **epsilons,
                        coordinator_rss_mb=142.0 + number * 0.3,
                    )
                )
    done = {"reason": "rounds done", "rounds_completed": rounds, "delta": 1e-5, "wall_s": clock - events[0].at}
    say(StudyFinished(**done, **epsilons))  # type: ignore[arg-type]
    return events
