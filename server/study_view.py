"""The state of a study: its events folded into one view, for the panel, the report, metrics and load tests.

`StudyView.apply` takes one event after the other, as the coordinator wrote them. `waiting` says what a study waits for;
other sentences about it are those of `sordino.reporting`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from learning.progress import Progress
from learning.task_names import STATISTICS
from runtime.text import counted
from secagg.messages import PHASES, UNMASKING
from server import events
from server.events import CONNECTING, RESTING, Event
from wire.ending import OVER

STARTING, ENROLMENT, AUTHORITY, LEARNING = "Starting", "Enrolment", "Authority", "Learning"
BETWEEN, PAUSING, FINISHED = "Between", "Pausing", "Finished"
STATES: Final = (STARTING, ENROLMENT, AUTHORITY, CONNECTING, *PHASES, LEARNING, BETWEEN, PAUSING, FINISHED)
"""What a study does: the phases of the protocol, and what lies between them."""


@dataclass
class Wait:
    """Participants that are waited for: to enrol, to connect, or to answer in a phase."""

    received: int = 0  # of them, at the last event; up to half a second old
    needed: int = 0  # without which it can't go on
    expected: int = 0  # all that could come
    ends_at: float = 0.0  # the deadline, in seconds since 1970

    @property
    def missing(self) -> int:
        return max(0, self.expected - self.received)

    def seconds_left(self, now: float) -> float:
        """Until the deadline; never negative."""
        return max(0.0, self.ends_at - now)


@dataclass
class AttemptView:
    """The attempt under way, or the last one."""

    round: int = 0
    attempt: int = 0
    began_at: float = 0.0  # in seconds since 1970; for one that too few connected to, when it began to wait
    cohort: int = 0  # participants that began it. Where too few connected: how many did.
    connected: frozenset[int] = frozenset()  # numbers of participants that were connected when it began
    reached: list[str] = field(default_factory=list)  # phases that were started
    phase_seconds: dict[str, float] = field(default_factory=dict)  # of the phases that have ended
    dropped: list[events.ParticipantDropped] = field(default_factory=list)  # participants that left it, oldest first
    resumed: int = 0  # connections that broke and were taken up again
    under_way: bool = False

    @property
    def remaining(self) -> int:
        """How many of the cohort haven't left."""
        return max(0, self.cohort - len(self.dropped))


@dataclass
class StudyView:
    """A study after the events applied so far.

    Attributes:
        history: keep all rounds; without it only those of the round under way, for a process that runs for months.
        hosts: number -> the host that the roster lists it under, of all participants seen.
        connected, lost: numbers of participants that have a session, and of those that had one.
        came_at, left_at: number -> when its last session began or was resumed, and when its last one ended.
        absent: round -> participants not connected when its last attempt began.
    """

    history: bool = True
    started: events.StudyStarted = field(default_factory=events.StudyStarted)  # the last start of the coordinator
    started_at: float | None = None  # the first one, in seconds since 1970; None before it
    last_at: float = 0.0  # of the last event
    participants: int = 0  # on the roster in use
    roster: set[int] = field(default_factory=set)  # their numbers
    state: str = STARTING  # one of `STATES`
    wait: Wait = field(default_factory=Wait)  # of the state; zeros where it waits for no participant
    round: int = 0  # under way, waited for, or the last ones
    attempt: int = 0
    current: AttemptView = field(default_factory=AttemptView)
    hosts: dict[int, str] = field(default_factory=dict)
    connected: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    resting: set[int] = field(default_factory=set)  # of those that aren't needed for a while, and will be back
    came_at: dict[int, float] = field(default_factory=dict)
    left_at: dict[int, float] = field(default_factory=dict)
    dropped_now: set[int] = field(default_factory=set)  # participants that left the attempt under way
    epsilon_coordinator: float = 0.0
    epsilon_released: float = 0.0
    rounds: list[events.RoundCompleted] = field(default_factory=list)  # what happened, oldest first
    dropouts: list[events.ParticipantDropped] = field(default_factory=list)
    aborted: list[events.AttemptAborted] = field(default_factory=list)
    absent: dict[int, frozenset[int]] = field(default_factory=dict)
    excluded: dict[int, str] = field(default_factory=dict)  # number -> reason
    set_aside: Counter[int] = field(default_factory=Counter)  # number -> how often
    progress: Progress = field(default_factory=lambda: Progress(False))
    finished: events.StudyFinished | None = None  # the end of the study, after the last start
    begun: bool = False  # whether anything was waited for or attempted since the last start
    _waiting_since: float | None = None

    def apply_all(self, happened: Iterable[Event]) -> StudyView:
        """Fold events in, oldest first; returns self."""
        for event in happened:
            self.apply(event)
        return self

    def apply(self, event: Event) -> None:
        self.last_at = event.at or self.last_at
        if isinstance(event, events.AttemptEvent):
            self.round, self.attempt = event.round, event.attempt
        match event:
            case events.StudyStarted():
                self._study_started(event)
            case events.WaitingForEnrolment():
                self.begun = True
                self._wait_for(ENROLMENT, Wait(event.received, event.needed, event.needed))
            case events.WaitingForAuthority():
                self.begun = True
                self._wait_for(AUTHORITY, Wait())
            case events.WaitingForParticipants():
                self.begun = True
                if self._waiting_since is None:
                    self._waiting_since = self.last_at
                ends_at = self.last_at + event.left_s
                self._wait_for(CONNECTING, Wait(event.received, event.needed, event.expected, ends_at))
            case events.Pausing():
                self._wait_for(PAUSING, Wait(ends_at=self.last_at + event.left_s))
            case events.RosterAdopted():
                self._roster_adopted(event)
            case events.ParticipantConnected():
                self.hosts[event.participant] = event.host
                self._is_here(event.participant)
            case events.ParticipantLost():
                self._participant_lost(event)
            case events.AttemptStarted():
                self._attempt_started(event)
            case events.AttemptResumed():
                self.begun, self.current.under_way = True, True
                self.dropped_now = {one.participant for one in self.current.dropped}
            case events.PhaseStarted():
                if event.phase not in self.current.reached:  # where it was cut off it is started again
                    self.current.reached.append(event.phase)
                expected = min(event.expected, self.current.remaining)
                self._wait_for(event.phase, Wait(0, event.needed, expected, self.last_at + event.deadline_s))
            case events.PhaseProgress():
                expected = min(event.expected, self.current.remaining)
                self.wait = Wait(event.received, event.needed, expected, self.last_at + event.left_s)
            case events.PhaseEnded():
                self.current.phase_seconds[event.phase] = event.seconds
                self._wait_for(LEARNING if event.phase == UNMASKING else BETWEEN)
            case events.ParticipantDropped():
                self._participant_dropped(event)
            case events.ParticipantResumed():
                self.current.resumed += 1
                self._is_here(event.participant)
            case events.ParticipantExcluded():
                self.excluded[event.participant] = event.reason
            case events.ParticipantSetAside():
                self.set_aside[event.participant] += 1
            case events.SurvivorsFrozen():
                self._spent(event)
            case events.RoundCompleted():
                self._attempt_ended()
                self._spent(event)
                self.rounds.append(event)
                self.progress.note(event.round, event.accuracy, event.loss, event.reported)
            case events.AttemptAborted():
                self._attempt_aborted(event)
            case events.StudyFinished():
                self._attempt_ended(FINISHED)
                self._spent(event)
                self.finished = event

    def nobody_is_connected(self) -> None:
        """The coordinator has ended, with all its sessions."""
        self.lost |= self.connected
        self.left_at.update(dict.fromkeys(self.connected, self.last_at))
        self.connected.clear()

    # ------------------------------------------------------------ what is asked of it

    @property
    def completed(self) -> int:
        """Rounds that ended in a sum, those before the first event seen included: rounds have no gaps."""
        earlier = self.finished.rounds_completed if self.finished is not None else 0
        return max((done.round for done in self.rounds), default=earlier)

    @property
    def accuracy(self) -> float | None:
        """After the last round; None before the first, and where there is no model."""
        return self.rounds[-1].accuracy if self.rounds else None

    @property
    def reported(self) -> Mapping[str, float]:
        """What participants said of the model before the last round; empty where none did."""
        return self.rounds[-1].reported if self.rounds else {}

    @property
    def released(self) -> Mapping[str, Any]:
        """The statistic after the last round; empty before the first, and where a model is learnt."""
        return self.rounds[-1].released if self.rounds else {}

    @property
    def errors(self) -> Mapping[str, float]:
        """Of a model without an accuracy: the figures by which it is judged after the last round, by name."""
        return self.rounds[-1].figures if self.rounds and self.accuracy is None else {}

    @property
    def seeks_statistic(self) -> bool:
        """Whether the task finds a statistic in place of a model, as far as that is known by now."""
        values = self.released.get("values")
        found = isinstance(values, list | tuple) and bool(values)
        return found or (not self.rounds and self.started.task in STATISTICS)

    @property
    def phase(self) -> str | None:
        return self.state if self.state in PHASES else None

    def state_of(self, participant: int) -> str:
        """``connected``, ``dropped`` (from this attempt, still connected), ``resting`` or ``lost``."""
        for state, members in (("lost", self.lost), ("resting", self.resting)):
            if participant in members:
                return state
        return "dropped" if participant in self.dropped_now else "connected"

    def hosts_in_order(self) -> list[str]:
        return sorted(set(self.hosts.values()))

    def members(self, host: str) -> list[int]:
        return sorted(number for number, name in self.hosts.items() if name == host)

    def dropouts_of(self, round_: int) -> list[events.ParticipantDropped]:
        return [dropout for dropout in self.dropouts if dropout.round == round_]

    def left_by_round(self) -> list[tuple[int, int]]:
        """(round, participant), each once, even if a participant leaves several attempts of a round."""
        return sorted({(dropout.round, dropout.participant) for dropout in self.dropouts})

    # ------------------------------------------------------------ events

    def _wait_for(self, state: str, wait: Wait | None = None) -> None:
        self.state, self.wait = state, wait or Wait()

    def _study_started(self, event: events.StudyStarted) -> None:
        self.started, self.participants = event, event.participants
        self.progress.by_participants = bool(event.plan.get("evaluation"))
        self.roster = set(event.members or range(event.participants))
        if self.started_at is None:
            self.started_at = self.last_at
        # After a restart no participant is connected; after the end none is expected, so none is lost.
        if self.finished is not None and self.finished.reason in OVER:
            self.connected.clear()
        self.nobody_is_connected()
        self.lost &= self.roster
        self.resting &= self.roster
        self.hosts = {number: host for number, host in self.hosts.items() if number in self.roster}
        self._attempt_ended()
        self.dropped_now, self.finished, self.begun = set(), None, False

    def _roster_adopted(self, event: events.RosterAdopted) -> None:
        left = set(event.left)
        self.roster = (self.roster | set(event.joined)) - left
        self.participants = event.participants
        for number in left:  # neither connected nor away: not expected any more
            self.hosts.pop(number, None)
        self.connected -= left
        self.lost -= left
        self.resting -= left
        if self.state == ENROLMENT:
            self._wait_for(BETWEEN)

    def _is_here(self, participant: int) -> None:
        self.connected.add(participant)
        self.lost.discard(participant)
        self.resting.discard(participant)
        self.came_at[participant] = self.last_at

    def _participant_lost(self, event: events.ParticipantLost) -> None:
        self.connected.discard(event.participant)
        self.left_at[event.participant] = self.last_at
        if self.finished is None:  # after the end sessions are closed, not lost
            self.hosts.setdefault(event.participant, event.host)
            (self.resting if event.reason == RESTING else self.lost).add(event.participant)

    def _attempt_started(self, event: events.AttemptStarted) -> None:
        if not self.history and event.round != self.current.round:
            self.dropouts.clear()
            self.aborted.clear()
            self.absent.clear()
            del self.rounds[:-1]
        self.current = AttemptView(
            event.round, event.attempt, self.last_at, event.cohort, frozenset(self.connected), under_way=True
        )
        absent = self.roster - self.connected if event.absent is None else event.absent
        self.absent[event.round] = frozenset(absent)
        self.dropped_now, self.begun, self._waiting_since = set(), True, None
        self._wait_for(BETWEEN)

    def _participant_dropped(self, event: events.ParticipantDropped) -> None:
        self.hosts.setdefault(event.participant, event.host)
        self.dropped_now.add(event.participant)
        self.current.dropped.append(event)
        self.dropouts.append(event)
        if self.phase is not None:
            self.wait.expected = max(self.wait.received, min(self.wait.expected, self.current.remaining))

    def _attempt_aborted(self, event: events.AttemptAborted) -> None:
        if not self.current.under_way:  # too few connected, and it never began
            since = self.last_at if self._waiting_since is None else self._waiting_since
            self.current = AttemptView(event.round, event.attempt, since, event.received, frozenset(self.connected))
        self.dropped_now = set()  # those still connected take part in the next attempt
        self._attempt_ended()
        self.aborted.append(event)

    def _attempt_ended(self, state: str = BETWEEN) -> None:
        self._wait_for(state)
        self.current.under_way = False
        self._waiting_since = None

    def _spent(self, event: events.SurvivorsFrozen | events.RoundCompleted | events.StudyFinished) -> None:
        self.epsilon_coordinator = event.epsilon_coordinator or self.epsilon_coordinator
        self.epsilon_released = event.epsilon_released or self.epsilon_released


def ending(view: StudyView) -> str:
    """How the study ended, in one line; empty while it runs."""
    if view.finished is None:
        return ""
    reason = view.finished.reason
    count = f"{view.completed} of {counted(view.started.rounds, 'round')}"
    if reason == "rounds done":
        return f"Finished: {count}" if view.begun else f"Already finished: {count}"
    if view.finished.failed:
        return f"Stopped after {count} by a fault, which the coordinator's log names"
    if reason == "stopped":
        return f"Stopped after {count}; the same command continues there"
    return f"Ended after {count}: {reason}" + ("" if reason in OVER else "; the same command continues there")


def waiting(view: StudyView, now: float | None = None) -> str:
    """What the study waits for, in one line; ``now`` in seconds since 1970, by default the time of the last event."""
    wait, left_s = view.wait, view.wait.seconds_left(view.last_at if now is None else now)
    if view.finished is not None:
        return ending(view)
    if view.started_at is None:
        return "Waiting for the coordinator to start"
    if view.phase is not None:
        answered = f"{wait.received} of {wait.expected} answered, {wait.needed} needed"
        then = "goes on" if wait.received >= wait.needed else "aborts"
        return f"Round {view.round}, {view.phase}: {answered}, {left_s:.0f} s left, then it {then}"
    if view.state == ENROLMENT:
        return f"Round {view.round}: {wait.received} on the roster, {wait.needed} needed; waiting for enrolment"
    if view.state == AUTHORITY:
        return (
            f"Round {view.round}: the authority's statement that this roster is the newest has ended; waiting for the "
            "next one: `sordino authority run`; by hand `sordino authority sign DIR --out F`, then copy F/* here"
        )
    if view.state == CONNECTING:
        then = "it begins without the others" if wait.received >= wait.needed else "the attempt is aborted"
        return (
            f"Round {view.round}: {wait.received} of {wait.expected} connected, {wait.needed} needed, "
            f"{left_s:.0f} s left, then {then}"
        )
    if view.state == PAUSING and left_s > 0:
        return f"Round {view.round} done, the next one in {left_s:.0f} s"
    if not view.round:
        missing = max(0, view.participants - len(view.connected))
        return f"Waiting for {missing} of {view.participants} participants to connect"
    return f"Round {view.round}" + (" done, preparing the next" if view.completed >= view.round else ": preparing")
