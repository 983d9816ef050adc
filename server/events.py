"""The events of a study: a frozen dataclass for each kind, and the one codec between them and JSON.

The coordinator writes them to its journal and hands them to listeners. The JSON names (``kind`` and the fields) are
stable: they are on disk, in `sordino serve --json` and in what other programs read. A field that was added later has a
default, which holds for journals written before. An event of a kind that this version doesn't know is skipped.

Events name a participant by the number that the journal gave it (`server.membership`), and hold counts, never a
secret.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, dataclass_transform

from pydantic import TypeAdapter

CONNECTING: Final = "Connecting"
"""In the place of a phase where an attempt was aborted before it began."""


RESTING: Final = "not needed for a while"
"""Why a session ended, where its participant comes back in time for its round."""
KINDS: Final[dict[str, type[Event]]] = {}
"""Every kind by its name in JSON."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, kw_only=True)
class Event:
    """What all kinds have; a subclass is a dataclass like it."""

    kind: ClassVar[str] = ""  # name of the kind in JSON
    seq: int = 0  # number in the journal, from 1; 0 before it is read from there
    at: float = 0.0  # when it happened, in seconds since 1970; 0 before the journal took it

    def __init_subclass__(cls, *, kind: str = "") -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        cls.kind = kind
        if kind:
            KINDS[kind] = cls


class AttemptEvent(Event):
    """An event of one attempt of a round, both counted from 1."""

    round: int
    attempt: int


class StudyStarted(Event, kind="study_started"):
    """A coordinator began to serve the study; a study may be served many times.

    Attributes:
        partition: how prepared data is divided; empty where participants bring their own.
    """

    address: str = ""  # HOST:PORT of the session port
    http_address: str = ""  # of metrics and health; empty without that port
    task: str = ""
    study: str = ""
    participants: int = 0  # on the roster in use
    roster_version: int = 0
    members: tuple[int, ...] = ()  # their numbers
    hosts: int = 0  # that the roster lists them under
    rounds: int = 0  # of the whole study
    delta: float = 0.0
    epsilon_target: float = 0.0  # the privacy budget, at ``delta``
    plan: Mapping[str, Any] = field(default_factory=dict)  # `mechanisms.plan.Plan.to_json`
    threshold: int = 0  # shares that open a sum of the full cohort
    partition: Mapping[str, Any] = field(default_factory=dict)
    dataset: str = ""
    planned_upload_bytes: int = 0  # of one participant in a round
    one_machine: bool = False  # all parts may run on one machine

    @property
    def page(self) -> str:
        """URL of the page, on the coordinator's machine; empty without that port."""
        host, _, port = self.http_address.rpartition(":")
        here = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # no browser opens all of them
        return f"http://{here}:{port}/" if here else ""


class StudyFinished(Event, kind="study_finished"):
    """The coordinator ends its study, or is stopped."""

    reason: str  # one of those of `server.study`
    failed: bool = False  # it is stopped by a fault, such as a full disk
    rounds_completed: int = 0
    accuracy: float | None = None
    epsilon_coordinator: float = 0.0
    epsilon_released: float = 0.0
    delta: float = 0.0
    wall_s: float = 0.0  # since this start of the coordinator


class RosterAdopted(Event, kind="roster_adopted"):
    """A later version of the roster is in use; ``joined`` and ``left`` are the numbers of those it changed."""

    version: int
    participants: int
    hosts: int = 0
    joined: tuple[int, ...] = ()
    left: tuple[int, ...] = ()


class Pausing(Event, kind="pausing"):
    """The round is over and the next one begins after ``left_s`` seconds."""

    round: int = 0
    left_s: float = 0.0


class WaitingForEnrolment(AttemptEvent, kind="waiting_for_enrolment"):
    """The roster is too small for a round; ``first`` of this wait."""

    received: int
    needed: int
    roster_version: int = 0
    first: bool = False


class WaitingForAuthority(AttemptEvent, kind="waiting_for_authority"):
    """The authority's statement that the roster is the newest ended at ``ended``: rounds wait for the next one."""

    ended: float


class WaitingForParticipants(AttemptEvent, kind="waiting_for_participants"):
    """The attempt waits for ``expected`` participants to connect, for at most ``left_s`` seconds more."""

    received: int
    needed: int
    expected: int
    left_s: float = 0.0


class AttemptStarted(AttemptEvent, kind="attempt_started"):
    """``cohort`` participants begin.

    ``absent``: numbers of invited participants that aren't connected; None in older journals.
    """

    cohort: int
    absent: tuple[int, ...] | None = None


class AttemptResumed(AttemptEvent, kind="attempt_resumed"):
    """The attempt that the last stop of the coordinator cut off goes on, with those that haven't left it."""


class AttemptAborted(AttemptEvent, kind="attempt_aborted"):
    """The attempt ended without a sum, in a phase or in `CONNECTING`; ``loop_lag_ms``: see `RoundCompleted`."""

    phase: str
    reason: str
    received: int = 0
    needed: int = 0
    loop_lag_ms: Mapping[str, float] = field(default_factory=dict)


class PhaseStarted(AttemptEvent, kind="phase_started"):
    """``expected`` participants are to answer within ``deadline_s`` seconds; the attempt needs ``needed`` of them."""

    phase: str
    expected: int
    needed: int
    deadline_s: float


class PhaseProgress(AttemptEvent, kind="phase_progress"):
    """The phase has ``received`` answers by now, and ``left_s`` seconds until its deadline."""

    phase: str
    received: int
    expected: int
    needed: int
    left_s: float


class PhaseEnded(AttemptEvent, kind="phase_ended"):
    """The phase is over, after ``seconds``, with ``received`` answers."""

    phase: str
    received: int
    seconds: float


class ParticipantConnected(Event, kind="participant_connected"):
    """A session was opened."""

    participant: int
    host: str = ""


class ParticipantLost(Event, kind="participant_lost"):
    """A session ended."""

    participant: int
    host: str = ""
    reason: str = ""


class ParticipantDropped(AttemptEvent, kind="participant_dropped"):
    """A participant left an attempt; its session may go on."""

    phase: str
    participant: int
    host: str = ""
    reason: str = ""


class ParticipantResumed(AttemptEvent, kind="participant_resumed"):
    """A participant whose connection broke continues in its attempt."""

    phase: str
    participant: int


class ParticipantExcluded(Event, kind="participant_excluded"):
    """A participant sent what no honest one sends; it isn't invited again."""

    participant: int
    host: str = ""
    reason: str = ""


class ParticipantSetAside(Event, kind="participant_set_aside"):
    """Either this participant or another one cheated; it isn't invited for now."""

    participant: int
    host: str = ""
    reason: str = ""


class SurvivorsFrozen(AttemptEvent, kind="survivors_frozen"):
    """The sets of the attempt are fixed and its charge is written; the sum can be opened."""

    u1: int  # sizes of the sets of the protocol: participants whose keys were advertised
    u2: int  # that dealt their shares
    u3: int  # whose vectors were received
    h: int  # u3 less the colluders that the plan assumes
    epsilon_coordinator: float  # spent against the coordinator, this charge included
    epsilon_released: float  # spent against readers of the released models, this charge included
    ledger_rows: int = 0  # number of the ledger's last row
    ledger_head: str = ""  # hash of that row, hexadecimal


class RoundCompleted(AttemptEvent, kind="round_completed"):
    """A round ended in a sum, and the next model is on disk. Its JSON is also the journal's record of the round.

    Attributes:
        phase_cpu_s: CPU time of the coordinator, by phase and kind (`runtime.cpu_split`).
        reported: what participants say of the model before this round: accuracy, loss, each with its ``_stderr``, and
            the mean ``weight`` of those who evaluated; empty where they don't.
        loop_lag_ms: lateness of the event loop in the attempt: p50, p99, max.
        figures: what else an evaluation says, by name, such as the errors of a regression in the label's unit.
    """

    u1: int = 0  # sizes of the sets of the protocol: participants whose keys were advertised
    u2: int = 0  # that dealt their shares
    u3: int = 0  # in the sum
    u4: int = 0  # that signed the survivors
    u5: int = 0  # that revealed shares
    dropouts: int = 0  # participants that left the attempt
    key_to_sum_s: float = 0.0  # from the first public key to the open sum
    phase_seconds: Mapping[str, float] = field(default_factory=dict)  # by phase
    phase_cpu_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    upload_bytes: int = 0  # mean of a participant, protobuf framing included, TLS not
    download_bytes: int = 0  # likewise
    vector_bytes: int = 0  # of the masked vector alone
    accuracy: float | None = None  # on the coordinator's own data; None where there is no model to judge
    loss: float | None = None  # likewise
    reported: Mapping[str, float] = field(default_factory=dict)
    released: Mapping[str, Any] = field(default_factory=dict)  # the statistic so far; empty where a model is learnt
    survivors: tuple[int, ...] = ()  # numbers of those in the sum
    clips: tuple[float, ...] = ()  # L2 clip of each layer in this round
    below_clip: tuple[float, ...] = ()  # estimated share of norms within the clip, by layer; empty unless clips adapt
    sum_sha256: str | None = None  # of the sum, hexadecimal; None where it holds no noise
    seconds: float = 0.0  # of the attempt, from the model's serialisation to the next model on disk
    epsilon_coordinator: float = 0.0  # spent so far against the coordinator
    epsilon_released: float = 0.0  # spent so far against readers of the released models
    coordinator_rss_mb: float = 0.0  # resident memory, in 10^6 bytes
    next_clips: tuple[float, ...] = ()  # of the next round; empty where an older coordinator didn't record them
    wrapped_share: float | None = None  # estimated share of the sum's values that wrapped around; None for short sums
    loop_lag_ms: Mapping[str, float] = field(default_factory=dict)
    ledger_rows: int = 0  # number of the ledger's last row
    ledger_head: str = ""  # hash of that row, hexadecimal
    coordinator_files: int = 0  # open files
    coordinator_tasks: int = 0  # tasks of the event loop
    figures: Mapping[str, float] = field(default_factory=dict)


def body_of(event: Event) -> dict[str, Any]:
    """The fields of an event's own kind as JSON values; not ``seq``, ``at`` and ``kind``."""
    body = {one.name: getattr(event, one.name) for one in fields(event) if one.name not in ("seq", "at")}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in body.items()}


def to_json(event: Event) -> dict[str, Any]:
    """``{seq, at, kind, ...}``, as JSON gives it back; without ``seq`` before it was in the journal."""
    head = {"seq": event.seq} if event.seq else {}
    return {**head, "at": event.at, "kind": event.kind, **body_of(event)}


def from_json(content: Mapping[str, Any]) -> Event | None:
    """The event of `to_json`, also as an older or newer coordinator wrote it: unknown fields are ignored.

    Returns None for an unknown kind. Raises ValueError: an event without what its kind always had, or of another type.
    """
    reader = _reader(str(content.get("kind")))
    return None if reader is None else reader.validate_json(json.dumps(content), strict=True)


@functools.cache
def _reader(kind: str) -> TypeAdapter[Event] | None:
    return TypeAdapter(KINDS[kind]) if kind in KINDS else None
