"""What the driver of an attempt knows of its phases: their messages, how these are handled, and how many fit in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol

from runtime.cpu_split import CpuSplit
from secagg.errors import ProtocolError
from secagg.messages import ADVERTISE_KEYS, CONSISTENCY_CHECK, MASKED_INPUT, SHARE_KEYS, UNMASKING, MaskedInput
from secagg.parameters import RoundParameters
from secagg.server_cohort import Checked
from server.attempt.uploads import UploadRefused
from wire import codec, coordinator_pb2 as pb
from wire.codec import MalformedMessage

PHASE_FIELDS: Final = {
    "advertise_keys": ADVERTISE_KEYS,
    "share_keys": SHARE_KEYS,
    "masked_input": MASKED_INPUT,
    "consistency": CONSISTENCY_CHECK,
    "unmasking": UNMASKING,
}


def _read_offer(offer: pb.MaskedInputOffer) -> MaskedInput:
    """The input without its vector, which comes by itself."""
    if len(offer.sha256) != 32:
        raise MalformedMessage("the offer's sha256 must have 32 bytes")
    return MaskedInput(b"", offer.sha256, offer.signature)


_FIELDS: Final = {phase: field for field, phase in PHASE_FIELDS.items()}
_READ: Final[dict[str, Callable[[Any], Any]]] = {
    ADVERTISE_KEYS: codec.read_advertisement,
    SHARE_KEYS: codec.read_sealed_shares,
    MASKED_INPUT: _read_offer,
    CONSISTENCY_CHECK: codec.read_consistency,
    UNMASKING: codec.read_unmasking_reply,
}
REFUSALS: Final = {
    pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED: "refused: a message of the coordinator failed its checks",
    pb.REFUSAL_CODE_POLICY: "refused: the round breaks its policy or budget",
    pb.REFUSAL_CODE_BUDGET: "refused: one more round would pass the study's budget",
    pb.REFUSAL_CODE_ALREADY_JOINED: "sits this attempt out after a restart",
    pb.REFUSAL_CODE_LOCAL_FAILURE: "failed on its own side",
}
REJECTED: Final = (ProtocolError, MalformedMessage, UploadRefused)  # what is raised of a message
MOST_MESSAGES: Final = 2 * len(PHASE_FIELDS)
UNCHANGED_S: Final = 60.0  # between two events of one wait that say the same


@lru_cache(maxsize=4)
def most_control_bytes(parameters: RoundParameters) -> int:
    """The most that a participant sends in one attempt, its vector aside.

    Of each neighbour a sealed share, two commitments and a revealed share, which take 240 bytes with their headers;
    hybrid keys add an encapsulation and at most one wrapped seed for each, and longer keys.
    """
    # Of a large cohort not every size: the degree of the next one differs by less than the reserve.
    step = max(1, (parameters.cohort - parameters.quorum) // 512)
    sizes = (*range(parameters.quorum, parameters.cohort, step), parameters.cohort)
    each, once = (256, 1024) if not parameters.hybrid else (2480, 3584)
    return each * (max(parameters.sharing(u1).degree for u1 in sizes) + 1) + once + 40 * parameters.noise_seeds


def read_message(phase: str, message: pb.PhaseMessage) -> Any:
    """The content of a message of a phase. Raises MalformedMessage: it can't be one."""
    return _READ[phase](getattr(message, _FIELDS[phase]))


@dataclass(frozen=True)
class Said:
    """A message, as bytes: parsed, one that has many small parts takes twenty times the memory."""

    kind: str | None
    written: bytes = field(repr=False)
    outcome: Checked | Exception | None = field(default=None, repr=False)  # of its check, where a gateway made that

    @property
    def phase(self) -> str | None:
        """The name of the phase that it belongs to."""
        return PHASE_FIELDS.get(self.kind or "")

    @classmethod
    def of(cls, message: pb.PhaseMessage) -> Said:
        return cls(message.WhichOneof("message"), message.SerializeToString())

    def read(self) -> pb.PhaseMessage | Checked:
        """The message, or what its check made of it. Raises what the check raised."""
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome or pb.PhaseMessage.FromString(self.written)


class Phase(Protocol):
    """What the driver needs of any phase of the core."""

    name: str
    check: Any

    @property
    def received(self) -> frozenset[int]: ...

    def receive(self, sender: int, message: Any) -> None: ...


@dataclass(frozen=True)
class Late:
    """Answers to the phase before that are taken until this one ends."""

    name: str  # of the phase before
    handle: Callable[[int, pb.PhaseMessage], Awaitable[None]]  # on the loop
    ends: float  # the deadline of the phase before, monotonic: an answer before it starts this phase's time anew


@dataclass
class Step:
    """How messages of one phase are handled."""

    phase: Phase
    expected: frozenset[int]
    needed: int
    take: Callable[[int, Any], None] | None = None  # in the worker, in place of the phase's `receive`
    suffices: Callable[[], bool] = lambda: False  # whether no more messages are needed, after one was taken
    leave: Callable[[int], None] | None = None  # in the worker, for one that is gone
    then: Callable[[int, Any], None] | None = None  # on the loop, for messages that don't count yet
    late: Late | None = None
    linger: float = 0.0  # once there are enough, wait for others: this many times as long as that took,
    linger_s: float = 0.0  # and at least this long
    kept: bool = False  # its messages are put on record as they count
    enough: bool = False

    @property
    def name(self) -> str:
        return self.phase.name

    def handle(self, who: int, message: pb.PhaseMessage | Checked) -> Any:
        """In the worker: take a message; returns its content. Raises one of `REJECTED`: it isn't taken."""
        content = message if isinstance(message, Checked) else read_message(self.name, message)
        (self.take or self.phase.receive)(who, content)
        self.enough = self.suffices()
        return content.content if isinstance(content, Checked) else content

    def handle_each(self, several: Mapping[int, Said]) -> dict[int, Any]:
        """In the worker: of each participant its message, if it is still needed, or why it isn't taken."""
        outcomes: dict[int, Any] = {}
        for who, one in several.items():
            try:
                content = self.handle(who, one.read())
                outcomes[who] = content if self.then else None  # parsed, it is large
            except REJECTED as error:
                outcomes[who] = error
        return outcomes


@dataclass
class WaitReports:
    """When a wait is worth an event: each one is kept in the journal, and a wait may last for days."""

    _told: tuple[int, ...] | None = None
    _told_at: float = 0.0

    def due(self, counts: tuple[int, ...], interval_s: float, now: float) -> bool:
        """Whether to report: at once, after a change but not within ``interval_s``, else once a minute."""
        after_s = UNCHANGED_S if counts == self._told else interval_s
        if self._told is not None and now - self._told_at < after_s:
            return False
        self._told_at, self._told = now, counts
        return True


class AttemptFailed(Exception):
    """The attempt ended without a sum. Its attributes are fields of `server.events.AttemptAborted`."""

    def __init__(self, phase: str, reason: str, received: int, needed: int) -> None:
        super().__init__(f"{phase}: {reason}")
        self.phase, self.reason, self.received, self.needed = phase, reason, received, needed


@dataclass
class AttemptFigures:
    """What is told of an attempt when it has ended; of one that goes on after a restart, times of the rest alone."""

    phase: str = ADVERTISE_KEYS  # under way
    phase_seconds: dict[str, float] = field(default_factory=dict)
    cpu: CpuSplit = field(default_factory=lambda: CpuSplit(ADVERTISE_KEYS))
    received: dict[str, int] = field(default_factory=dict)
    dropouts: int = 0
    first_key_at: float | None = None
    key_to_sum_s: float = 0.0

    def begin(self, phase: str) -> None:
        self.phase = phase
        self.cpu.begin(phase)
