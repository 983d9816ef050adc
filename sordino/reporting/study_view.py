"""What happened so far: events of a study folded into one view, for the panel, the report and the demo.

``StudyView.apply`` takes one event after the other, as the coordinator wrote them, and never fails on one
that it doesn't know: a newer coordinator may say more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from learning.task_names import STATISTICS
from runtime.plurals import counted
from sordino.reporting.statistic_text import headline, values_of
from wire.guarantee import guarantee

TELL_WAITING_S: Final = 10.0
"""Between two plain lines that say how many are connected while a round waits for participants."""
PHASES: Final = ("AdvertiseKeys", "ShareKeys", "MaskedInputCollection", "ConsistencyCheck", "Unmasking")


@dataclass
class Phase:
    """The phase that runs now."""

    name: str
    expected: int
    needed: int
    deadline_s: float
    started_at: float
    received: int = 0
    left_s: float | None = None
    heard_at: float = 0.0

    def seconds_left(self, now: float) -> float:
        """Until the deadline, from the last word of the coordinator; never negative."""
        if self.left_s is None:
            return max(0.0, self.started_at + self.deadline_s - now)
        return max(0.0, self.left_s - (now - self.heard_at))


@dataclass(frozen=True)
class Dropout:
    """One participant that left one attempt."""

    round: int
    attempt: int
    phase: str
    participant: int
    host: str
    reason: str
    at: float


@dataclass(frozen=True)
class AbortedAttempt:
    """An attempt that ended without a sum."""

    round: int
    attempt: int
    phase: str
    reason: str
    received: int
    needed: int


@dataclass(frozen=True)
class CompletedRound:
    """A round that ended in a sum; the fields are those of the event ``round_completed``."""

    round: int
    attempt: int
    survivors: int
    sizes: tuple[int, int, int, int, int]
    dropouts: int
    seconds: float
    key_to_sum_s: float
    phase_seconds: Mapping[str, float]
    upload_bytes: float
    vector_bytes: float
    download_bytes: float
    epsilon_coordinator: float
    epsilon_released: float
    coordinator_rss_mb: float
    at: float
    accuracy: float | None = None
    """On the coordinator's own data; None where there is no model to judge."""
    loss: float | None = None
    released: Mapping[str, Any] = field(default_factory=dict)
    """The statistic so far; empty where a model is learnt."""
    clips: tuple[float, ...] = ()
    """Of the layers, in this round; empty where an older coordinator didn't say."""
    below_clip: tuple[float, ...] = ()
    """Estimated share of norms within the clip, by layer; only where clips adapt."""
    wrapped_share: float | None = None
    """Of the values of the sum, estimated."""


@dataclass
class StudyView:
    """The state of a study after the events applied so far."""

    study: str = ""
    task: str = ""
    address: str = ""
    http_address: str = ""
    """Of metrics and health; empty where they are shown nowhere, and in what an earlier run wrote."""
    note: str = ""
    participants: int = 0
    planned_rounds: int = 0
    dataset: str = ""
    delta: float = 0.0
    epsilon_target: float = 0.0
    threshold: int = 0
    plan: Mapping[str, Any] = field(default_factory=dict)
    partition: Mapping[str, Any] = field(default_factory=dict)
    started_at: float | None = None
    served_at: float | None = None
    """When the coordinator started last; a study may be served many times."""
    last_at: float = 0.0

    round: int = 0
    attempt: int = 0
    phase: Phase | None = None
    phases_done: dict[str, float] = field(default_factory=dict)
    hosts: dict[int, str] = field(default_factory=dict)
    connected: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    dropped_now: set[int] = field(default_factory=set)
    epsilon_coordinator: float = 0.0
    epsilon_released: float = 0.0

    rounds: list[CompletedRound] = field(default_factory=list)
    dropouts: list[Dropout] = field(default_factory=list)
    aborted: list[AbortedAttempt] = field(default_factory=list)
    absent: dict[int, frozenset[int]] = field(default_factory=dict)
    """Round -> participants not connected when its last attempt began."""
    gathering: tuple[int, int, int, float] | None = None
    """(connected, needed, expected, seconds left) while a round waits for participants to connect."""
    gathering_at: float = 0.0
    gathering_told_at: float = 0.0
    """When a plain line told of it last: at once, then every `TELL_WAITING_S`."""
    pause_ends_at: float = 0.0
    """When the pause after the last round is over."""
    roster: set[int] = field(default_factory=set)
    """Numbers of those on the roster in use."""
    enrolment: tuple[int, int] | None = None
    """(on the roster, needed) while a round waits for people to enrol."""
    finished: Mapping[str, Any] | None = None
    begun: bool = False
    """Whether anything was waited for or attempted since the coordinator started last."""

    def apply(self, event: Mapping[str, Any]) -> None:
        """Fold one event ``{seq, at, kind, ...}`` in."""
        self.last_at = float(event.get("at", self.last_at))
        handler = getattr(self, f"_on_{event.get('kind', '')}", None)
        if handler is not None:
            handler(event)

    def apply_all(self, events: Iterable[Mapping[str, Any]]) -> StudyView:
        """Fold events in, oldest first; returns self."""
        for event in events:
            self.apply(event)
        return self

    # ---- what is asked of it ------------------------------------------------------------------

    @property
    def accuracy(self) -> float | None:
        """After the last round; None before the first, and where there is no model."""
        return self.rounds[-1].accuracy if self.rounds else None

    @property
    def released(self) -> Mapping[str, Any]:
        """The statistic after the last round; empty before the first, and where a model is learnt."""
        return self.rounds[-1].released if self.rounds else {}

    @property
    def seeks_statistic(self) -> bool:
        """Whether the task finds a statistic in place of a model, as far as that is known by now."""
        return bool(values_of(self.released)) or (not self.rounds and self.task in STATISTICS)

    @property
    def finding(self) -> str:
        """What is released, in one word."""
        return "statistic" if self.seeks_statistic else "models"

    @property
    def completed(self) -> int:
        """Rounds that ended in a sum, those before the first event seen included: rounds have no gaps."""
        told = int((self.finished or {}).get("rounds_completed") or 0)
        return max((done.round for done in self.rounds), default=told)

    @property
    def ending(self) -> str:
        """How the study ended, in one line; empty while it runs."""
        if self.finished is None:
            return ""
        reason = str(self.finished.get("reason", ""))
        count = f"{self.completed} of {counted(self.planned_rounds, 'round')}"
        if reason == "rounds done":
            return f"Finished: {count}" if self.begun else f"Already finished: {count}"
        if reason == "stopped":
            return f"Stopped after {count}; the same command goes on there"
        return f"Ended after {count}: {reason}"

    @property
    def known(self) -> set[int]:
        """Participants that were ever seen."""
        return self.connected | self.lost

    @property
    def waiting(self) -> str:
        """What the study waits for at its last event, in one line: never an unnamed silence."""
        return self.waiting_at(self.last_at)

    def waiting_at(self, now: float) -> str:
        """What the study waits for at ``now``, unix seconds."""
        if self.finished is not None:
            return self.ending
        phase = self.phase
        if phase is None:
            if self.started_at is None:
                return "Waiting for the coordinator to start"
            if self.enrolment is not None:
                enrolled, needed = self.enrolment
                return f"Round {self.completed + 1}: {enrolled} on the roster, {needed} needed; waiting for enrolment"
            if self.gathering is not None:
                connected, needed, expected, left = self.gathering
                left = max(0.0, left - (now - self.gathering_at))
                then = "it begins without the others" if connected >= needed else "the attempt is aborted"
                return (
                    f"Round {self.completed + 1}: {connected} of {expected} connected, {needed} needed, "
                    f"{left:.0f} s left, then {then}"
                )
            if self.pause_ends_at > now:
                return f"Round {self.round} done, the next one in {self.pause_ends_at - now:.0f} s"
            if not self.round:
                missing = max(0, self.participants - len(self.connected))
                return f"Waiting for {missing} of {self.participants} participants to connect"
            done = self.completed >= self.round
            return f"Round {self.round} done, preparing the next" if done else f"Round {self.round}: preparing"
        missing = max(0, phase.expected - phase.received)
        left = phase.seconds_left(now)
        return f"Round {self.round}, {phase.name}: waiting for {missing} of {phase.expected}, {left:.0f} s left"

    @property
    def at_zero(self) -> str:
        """What happens to the running phase when its time is over; empty where that isn't known."""
        phase = self.phase
        if phase is None or not phase.needed:
            return ""
        then = "goes on" if phase.received >= phase.needed else "aborts"
        return f", then {then}: {phase.received} of {phase.needed} needed"

    def dropouts_of(self, round_number: int) -> list[Dropout]:
        return [dropout for dropout in self.dropouts if dropout.round == round_number]

    def left_by_round(self) -> list[tuple[int, int]]:
        """(round, participant), each once: who leaves three attempts of a round is one participant that left it."""
        return sorted({(dropout.round, dropout.participant) for dropout in self.dropouts})

    def hosts_in_order(self) -> list[str]:
        return sorted(set(self.hosts.values()))

    def members(self, host: str) -> list[int]:
        return sorted(number for number, name in self.hosts.items() if name == host)

    def state_of(self, participant: int) -> str:
        """``connected``, ``dropped`` (from this attempt, still connected), or ``lost``."""
        if participant in self.lost:
            return "lost"
        return "dropped" if participant in self.dropped_now else "connected"

    def dropout_groups(self) -> list[tuple[int, str, str, list[Dropout]]]:
        """Dropouts of one attempt, phase and reason together, oldest first: ten of one host are one line."""
        groups: dict[tuple[int, int, str, str], list[Dropout]] = {}
        for dropout in self.dropouts:
            key = (dropout.round, dropout.attempt, dropout.phase, dropout.reason)
            groups.setdefault(key, []).append(dropout)
        return [(key[0], key[2], key[3], members) for key, members in groups.items()]

    # ---- one method an event ------------------------------------------------------------------

    def _on_study_started(self, event: Mapping[str, Any]) -> None:
        participants = event.get("participants", 0)
        self.study, self.task = str(event.get("study", "")), str(event.get("task", ""))
        self.address, self.note = str(event.get("address", "")), str(event.get("note") or "")
        self.http_address = str(event.get("http_address") or "")
        self.participants = participants if isinstance(participants, int) else len(participants)
        self.planned_rounds = int(event.get("rounds", 0))
        self.dataset = str(event.get("dataset", ""))
        self.delta = float(event.get("delta", 0.0))
        self.epsilon_target = float(event.get("epsilon_target", 0.0))
        self.threshold = int(event.get("threshold", 0))
        self.roster = set(event.get("members") or range(self.participants))
        self.plan = dict(event.get("plan") or {})
        self.partition = dict(event.get("partition") or {})
        if self.started_at is None:
            self.started_at = self.last_at
        # A coordinator that starts again finds nobody connected; after the end nobody is expected, either.
        if (self.finished or {}).get("reason") not in ("rounds done", "budget reached"):
            self.lost |= self.connected
        self.connected.clear()
        self.dropped_now = set()
        self.phase = self.gathering = self.finished = self.enrolment = None
        self.served_at, self.begun, self.pause_ends_at = self.last_at, False, 0.0

    def _on_participant_connected(self, event: Mapping[str, Any]) -> None:
        number = int(event["participant"])
        self.hosts[number] = str(event.get("host", ""))
        self.connected.add(number)
        self.lost.discard(number)

    def _on_participant_lost(self, event: Mapping[str, Any]) -> None:
        number = int(event["participant"])
        if self.finished is not None:  # told to go, not lost
            self.connected.discard(number)
            return
        self.hosts.setdefault(number, str(event.get("host", "")))
        self.connected.discard(number)
        self.lost.add(number)

    def _on_attempt_started(self, event: Mapping[str, Any]) -> None:
        self.round, self.attempt = int(event["round"]), int(event.get("attempt", 1))
        self.phase, self.phases_done, self.dropped_now, self.begun = None, {}, set(), True
        self.gathering = self.enrolment = None
        absent = event.get("absent")
        self.absent[self.round] = frozenset(self.roster - self.connected if absent is None else absent)

    def _on_roster_adopted(self, event: Mapping[str, Any]) -> None:
        left = set(event.get("left") or ())
        self.roster = (self.roster | set(event.get("joined") or ())) - left
        self.participants, self.enrolment = int(event.get("participants", len(self.roster))), None
        for number in left:  # neither connected nor away: not expected any more
            self.hosts.pop(number, None)
        self.connected -= left
        self.lost -= left

    def _on_waiting_for_enrolment(self, event: Mapping[str, Any]) -> None:
        self.gathering, self.begun = None, True
        self.enrolment = (int(event.get("received", 0)), int(event.get("needed", 0)))

    def _on_pausing(self, event: Mapping[str, Any]) -> None:
        self.pause_ends_at = self.last_at + float(event.get("left_s", 0.0))

    def _on_waiting_for_participants(self, event: Mapping[str, Any]) -> None:
        self.enrolment = None
        if self.gathering is None or self.last_at - self.gathering_told_at >= TELL_WAITING_S:
            self.gathering_told_at = self.last_at
        self.gathering_at, self.begun = self.last_at, True
        self.gathering = (
            int(event.get("received", 0)),
            int(event.get("needed", 0)),
            int(event.get("expected", 0)),
            float(event.get("left_s", 0.0)),
        )

    def _on_phase_started(self, event: Mapping[str, Any]) -> None:
        self.round, self.attempt = int(event["round"]), int(event.get("attempt", 1))
        self.phase = Phase(
            name=str(event["phase"]),
            expected=int(event.get("expected", 0)),
            needed=int(event.get("needed", 0)),
            deadline_s=float(event.get("deadline_s", 0.0)),
            started_at=self.last_at,
        )

    def _on_phase_progress(self, event: Mapping[str, Any]) -> None:
        phase = self.phase
        if phase is None or phase.name != event.get("phase"):
            return
        phase.received = int(event.get("received", phase.received))
        phase.expected = int(event.get("expected", phase.expected))
        phase.needed = int(event.get("needed", phase.needed))
        if event.get("left_s") is not None:
            phase.left_s, phase.heard_at = float(event["left_s"]), self.last_at

    def _on_phase_ended(self, event: Mapping[str, Any]) -> None:
        self.phases_done[str(event["phase"])] = float(event.get("seconds", 0.0))
        self.phase = None

    def _on_participant_dropped(self, event: Mapping[str, Any]) -> None:
        number = int(event["participant"])
        self.hosts.setdefault(number, str(event.get("host", "")))
        self.dropped_now.add(number)
        if self.phase is not None and self.phase.name == event.get("phase"):
            self.phase.expected = max(self.phase.received, self.phase.expected - 1)
        self.dropouts.append(
            Dropout(
                round=int(event.get("round", self.round)),
                attempt=int(event.get("attempt", self.attempt)),
                phase=str(event.get("phase", "")),
                participant=number,
                host=str(event.get("host", "")),
                reason=str(event.get("reason", "")),
                at=self.last_at,
            )
        )

    def _on_survivors_frozen(self, event: Mapping[str, Any]) -> None:
        self._spent(event)

    def _on_round_completed(self, event: Mapping[str, Any]) -> None:
        self._spent(event)
        self.phase = None
        number = {name: float(event.get(name) or 0.0) for name in _ROUND_NUMBERS}
        self.rounds.append(
            CompletedRound(
                round=int(event["round"]),
                attempt=int(event.get("attempt", 1)),
                survivors=_size(event.get("u3")),
                sizes=tuple(_size(event.get(f"u{index}")) for index in range(1, 6)),  # type: ignore[arg-type]
                dropouts=_size(event.get("dropouts")),
                phase_seconds={str(k): float(v) for k, v in dict(event.get("phase_seconds") or {}).items()},
                at=self.last_at,
                clips=tuple(float(value) for value in event.get("clips") or ()),
                below_clip=tuple(float(value) for value in event.get("below_clip") or ()),
                wrapped_share=_number(event.get("wrapped_share")),
                accuracy=_number(event.get("accuracy")),
                loss=_number(event.get("loss")),
                released=dict(event.get("released") or {}),
                **number,
            )
        )

    def _on_attempt_aborted(self, event: Mapping[str, Any]) -> None:
        self.phase = self.gathering = None
        self.dropped_now = set()  # whoever is still connected takes part in the next attempt
        self.aborted.append(
            AbortedAttempt(
                round=int(event["round"]),
                attempt=int(event.get("attempt", 1)),
                phase=str(event.get("phase", "")),
                reason=str(event.get("reason", "")),
                received=int(event.get("received") or 0),
                needed=int(event.get("needed") or 0),
            )
        )

    def _on_study_finished(self, event: Mapping[str, Any]) -> None:
        self.phase = self.gathering = None
        self._spent(event)
        self.finished = dict(event)

    def _spent(self, event: Mapping[str, Any]) -> None:
        self.epsilon_coordinator = float(event.get("epsilon_coordinator") or self.epsilon_coordinator)
        self.epsilon_released = float(event.get("epsilon_released") or self.epsilon_released)


_ROUND_NUMBERS: Final = (
    "seconds",
    "key_to_sum_s",
    "upload_bytes",
    "vector_bytes",
    "download_bytes",
    "epsilon_coordinator",
    "epsilon_released",
    "coordinator_rss_mb",
)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _size(value: Any) -> int:
    """Sets are told by their size or by their members."""
    if value is None:
        return 0
    return int(value) if isinstance(value, int | float) else len(value)


def log_lines(event: Mapping[str, Any], view: StudyView) -> list[str]:
    """Plain lines for an event, where there is no terminal for a panel; none for those that say little.

    Dropouts are told together when their phase ends: a lost host is one line, not one for each participant.

    Args:
        event: the event, already applied to ``view``.
        view: the study after it.
    """
    kind = event.get("kind")
    if kind == "study_started":
        return [
            f"study {view.study}: {view.task}, {counted(view.participants, 'participant')}, "
            f"{counted(view.planned_rounds, 'round')}, "
            f"epsilon at most {view.epsilon_target:g} at delta {view.delta:g}; listening on {view.address}"
            + (f", metrics on http://{view.http_address}/metrics" if view.http_address else ""),
            *([f"{view.plan['mechanism']}: {holds}"] if (holds := guarantee(view.plan)) else []),
            *([f"going on after round {view.completed}"] if view.completed else []),
        ]
    if kind == "roster_adopted":
        changes = [f"{len(event[what])} {what}" for what in ("joined", "left") if event.get(what)]
        members = counted(view.participants, "participant")
        return [f"version {event['version']} of the roster: {members}, {', '.join(changes)}"]
    if kind == "waiting_for_enrolment":
        return [view.waiting] if event.get("first") else []
    if kind == "waiting_for_participants" and view.gathering is not None:
        connected, needed, _, left_s = view.gathering
        # With as many as are needed it only waits a moment for the others.
        silent = connected >= needed or view.gathering_told_at < view.gathering_at
        longest = f"; this attempt waits for {left_s:.0f} s" if left_s else ""
        return [] if silent else [f"waiting for participants: {connected} connected, {needed} needed{longest}"]
    if kind == "pausing":
        return [f"the next round in {float(event.get('left_s', 0.0)):.0f} s"]
    if kind == "attempt_started":
        again = f", attempt {view.attempt}" if view.attempt > 1 else ""
        connected = counted(len(view.connected), "participant")
        return [f"round {view.round} of {view.planned_rounds}{again}: {connected} connected"]
    if kind == "phase_ended":
        return _dropout_lines(view, str(event.get("phase", "")))
    if kind == "attempt_aborted":
        end = view.aborted[-1]
        told = end.needed and f"{end.needed} needed" in end.reason  # by the reason itself
        counts = f" ({end.received} answered, {end.needed} needed)" if end.needed and not told else ""
        return [
            # A phase that ended with too few has told them when it ended.
            *([] if end.phase in view.phases_done else _dropout_lines(view, end.phase)),
            f"round {end.round}, {end.phase}: attempt {end.attempt} aborted: {end.reason}{counts}",
        ]
    if kind == "round_completed":
        done = view.rounds[-1]
        accuracy = "" if done.accuracy is None else f"accuracy {done.accuracy:.3f}"
        found = [f"sum of {done.survivors}", accuracy, headline(done.released)]
        return [
            f"round {done.round}: {', '.join(part for part in found if part)}, epsilon_coordinator "
            f"{done.epsilon_coordinator:.2f}, epsilon_released {done.epsilon_released:.2f}, {done.seconds:.1f} s"
        ]
    if kind == "study_finished":
        return [view.ending[:1].lower() + view.ending[1:]]
    return []


def _dropout_lines(view: StudyView, phase: str) -> list[str]:
    lines = []
    for number, its_phase, reason, members in view.dropout_groups():
        if number == view.round and its_phase == phase and members[-1].attempt == view.attempt:
            lines.append(f"round {number}, {phase}: dropped {people(members)}: {reason}")
    return lines


def people(members: Sequence[Dropout]) -> str:
    """``participant 17 (host-02)`` for one, ``20 participants (host-03, host-07)`` for more."""
    if len(members) == 1:
        return f"participant {members[0].participant} ({members[0].host})"
    hosts = sorted({member.host for member in members})
    shown = ", ".join(hosts[:3]) + (f" and {len(hosts) - 3} more" if len(hosts) > 3 else "")
    return f"{len(members)} participants ({shown})"
