"""What an attempt leaves on the disk, so that it goes on where it stood when the coordinator was killed and is back.

For each phase that was closed: the messages that counted in it, before the next phase's messages are sent. From them
the phases are played again, and all that is sent has the same bytes (decision 0018). Of the phase that was under way
nothing is kept: its participants still hold their last message, and send it again when they return.

What is kept was the coordinator's to see, and is deleted when the attempt is over.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.message import DecodeError

from runtime.durable import DurableStore, Statement
from secagg.context import RoundConfig
from secagg.errors import ProtocolError
from secagg.messages import MASKED_INPUT
from secagg.server_cohort import Upload, Uploaded
from server.attempt.steps import Step, most_control_bytes
from wire import coordinator_pb2 as pb
from wire.codec import MalformedMessage

TABLE: Final = """
CREATE TABLE IF NOT EXISTS kept (
    phase TEXT NOT NULL, participant INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (phase, participant)
) WITHOUT ROWID;
"""
CLEAR: Final[Statement] = ("DELETE FROM kept", ())
MOST_KEPT_BYTES: Final = 64 << 20
"""Of one attempt: it is written twice, to the database's log and to the database. A larger cohort begins anew."""

LATE: Final = "late signatures"
"""In the place of a phase: the signatures that were taken while others revealed shares already."""

_KEEP: Final = "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)"
_BEGINNING: Final = ""
_WHOLE: Final = -1  # in the place of a participant: what is said of a whole phase


def is_kept(config: RoundConfig, cohort: int) -> bool:
    """Whether an attempt of this cohort is small enough."""
    return cohort * most_control_bytes(config.parameters) <= MOST_KEPT_BYTES


@dataclass(frozen=True)
class Kept:
    """An attempt as an earlier process left it.

    Attributes:
        phases: those closed before the survivors were frozen, and what has signed since: participant -> its message.
        masked_sum: of the survivors, once they were frozen: little-endian words.
    """

    round: int
    attempt: int
    context: bytes  # its round_context, which it must have again
    newest: bytes  # the authority's statement that it began under
    cohort: frozenset[int]  # positions in its roster
    phases: Mapping[str, Mapping[int, bytes]] = field(repr=False)
    masked_sum: bytes | None = field(default=None, repr=False)
    uploads: Uploaded = field(default_factory=dict, repr=False)  # of the survivors, likewise


def beginning(config: RoundConfig, cohort: Iterable[int]) -> Statement:
    """What `Kept` says of an attempt that begins."""
    about = {"context": config.round_context().hex(), "newest": config.newest.hex(), "cohort": sorted(cohort)}
    return _KEEP, (_BEGINNING, _WHOLE, json.dumps(about))


def frozen(uploads: Uploaded) -> Statement:
    """What stays of the uploads of the survivors."""
    parts = (one.sha256 + one.signature + b"".join(one.noise_commitments) for _, one in sorted(uploads.items()))
    return _KEEP, (MASKED_INPUT, _WHOLE, b"".join(parts))


def read_kept(store: DurableStore) -> Kept | None:
    """The attempt that was cut off; None where there is none, or none that can go on."""
    open_ = store.read("SELECT round, attempt, u3, masked_sum FROM attempts WHERE outcome IS NULL")
    rows: dict[str, dict[int, bytes]] = {}
    for phase, participant, body in store.read("SELECT phase, participant, body FROM kept ORDER BY participant"):
        rows.setdefault(phase, {})[participant] = body
    if len(open_) != 1 or _BEGINNING not in rows:
        return None
    about: dict[str, Any] = json.loads(rows.pop(_BEGINNING)[_WHOLE])
    [(round_, attempt, u3, masked_sum)] = open_
    uploads: dict[int, Upload] = {}
    if masked_sum is not None:
        survivors, data = json.loads(u3), rows.pop(MASKED_INPUT)[_WHOLE]
        size = len(data) // len(survivors)
        for at, who in enumerate(survivors):
            one = data[at * size : (at + 1) * size]
            commitments = tuple(one[place : place + 32] for place in range(96, size, 32))
            uploads[who] = Upload(one[:32], one[32:96], commitments)
    phases: dict[str, dict[int, bytes]] = {}
    for phase, messages in rows.items():
        members = messages.pop(_WHOLE, None)
        if members is not None:  # else it was under way
            phases[phase] = {who: messages[who] for who in json.loads(members)}
    context, newest = bytes.fromhex(about["context"]), bytes.fromhex(about["newest"])
    return Kept(round_, attempt, context, newest, frozenset(about["cohort"]), phases, masked_sum, uploads)


def replay(step: Step, messages: Mapping[int, bytes]) -> None:
    """The messages of a phase that was closed. Raises ProtocolError: they can't be those."""
    try:
        for who, written in messages.items():
            step.handle(who, pb.PhaseMessage.FromString(written))
    except (DecodeError, MalformedMessage) as error:
        raise ProtocolError("what was kept of it is damaged") from error


@dataclass(frozen=True)
class AttemptRecord:
    """Keeps the messages of one attempt."""

    _store: DurableStore | None  # None keeps nothing
    kept: Kept | None = None  # what an earlier process left of it, if one did

    def keep(self, phase: str, participant: int, written: bytes) -> None:
        """A message counts; durable once the phase is closed."""
        if self._store is not None:
            self._store.submit((_KEEP, (phase, participant, written)))

    async def close(self, phase: str, members: Iterable[int]) -> None:
        """The phase is over with these; durable when this returns, with their messages.

        Raises StorageError: it can't be written.
        """
        if self._store is not None:
            await self._store.write((_KEEP, (phase, _WHOLE, json.dumps(sorted(members)))))


NOTHING_KEPT: Final = AttemptRecord(None)
