"""What every signature, key and mask of an attempt is bound to.

    round_context  = H(version, study, round, attempt, public plan, model and configuration, roster)
    cohort_context = H(round_context, u1 with everybody's signed keys)

Two participants whose contexts differ in anything share no key: their masks don't cancel and their signatures don't
verify, so a coordinator cannot show different rounds to different participants and still open a sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from secagg.errors import InvalidParameters
from secagg.parameters import RoundParameters

if TYPE_CHECKING:  # both hash by the functions of this module
    from secagg.lottery import Ticket
    from secagg.roster import Roster

PROTOCOL_VERSION = 1


def encode(label: str, *fields: bytes) -> bytes:
    """Join a domain label and fields so that no two different inputs give the same bytes.

    Args:
        label: ASCII name of the purpose, ``sordino/v1/...``.
        fields: any byte strings.

    Returns:
        The label, the number of fields and the fields, each preceded by its length (8 bytes, little-endian).
    """
    parts = [_head(label, len(fields))]
    for field in fields:
        length = len(field)
        parts += (_LENGTHS[length] if length < 256 else number(length), field)
    return b"".join(parts)


@lru_cache(maxsize=1024)  # one for each purpose, and for each size of a set
def _head(label: str, fields: int) -> bytes:
    name = label.encode("ascii")
    return number(len(name)) + name + number(fields)


def digest(label: str, *fields: bytes) -> bytes:
    """SHA-256 of `encode`: 32 bytes."""
    return hashlib.sha256(encode(label, *fields)).digest()


def digest_of_rows(label: str, *fields: bytes, rows: bytes) -> bytes:
    """`digest` of some fields and of many more that have 32 bytes each, quick for thousands of them.

    Args:
        rows: the further fields, one after the other.
    """
    cells = np.frombuffer(rows, dtype=np.uint8).reshape(-1, 32)
    written = np.empty((len(cells), 40), dtype=np.uint8)
    written[:, :8] = np.frombuffer(number(32), dtype=np.uint8)
    written[:, 8:] = cells
    first = [part for field in fields for part in (number(len(field)), field)]
    return hashlib.sha256(b"".join((_head(label, len(fields) + len(cells)), *first, written.tobytes()))).digest()


def number(value: int) -> bytes:
    """A counter as a field: 8 bytes, little-endian."""
    return value.to_bytes(8, "little")


_LENGTHS: Final = [number(length) for length in range(256)]


@dataclass(frozen=True, kw_only=True)
class RoundConfig:
    """Everything both sides must agree on before an attempt starts."""

    roster: Roster
    round: int  # from 1, only grows
    attempt: int  # from 1 within its round
    study_digest: bytes  # SHA-256 of the study document: public plan, task and configuration
    model_digest: bytes  # SHA-256 of the model that is trained in this round
    parameters: RoundParameters
    ticket: Ticket | None = None  # of the round's lottery; without one the whole roster is invited

    def __post_init__(self) -> None:
        if self.round < 1 or self.attempt < 1:
            raise InvalidParameters("round and attempt are counted from 1")
        if len(self.study_digest) != 32 or len(self.model_digest) != 32:
            raise InvalidParameters("study_digest and model_digest must be SHA-256 digests of 32 bytes")
        if self.ticket is not None and len(self.roster) < self.parameters.cohort:
            raise InvalidParameters(
                f"a cohort of {self.parameters.cohort} can't be drawn from a roster of {len(self.roster)}"
            )

    @cached_property
    def invited(self) -> frozenset[int]:
        """The cohort: who may be in u1, by position in the roster, in every attempt of the round.

        Raises:
            secagg.lottery.InvalidTicket: the ticket isn't the one that the authority signed for this round.
        """
        from secagg.lottery import winners

        if self.ticket is None:
            return self.roster.everybody
        return winners(self.roster, self.round, self.ticket, self.parameters.cohort)

    def round_context(self) -> bytes:
        """32 bytes that name this attempt and all it depends on."""
        return digest(
            "sordino/v1/round-context",
            number(PROTOCOL_VERSION),
            self.roster.study.encode(),
            number(self.round),
            number(self.attempt),
            self.study_digest,
            self.parameters.to_bytes(),
            self.model_digest,
            number(self.roster.version),
            self.roster.digest(),
        )


def cohort_context(round_context: bytes, members: Iterable[tuple[bytes, bytes]]) -> bytes:
    """32 bytes that name the cohort of an attempt.

    Args:
        round_context: of `RoundConfig.round_context`.
        members: (identity, SHA-256 of its signed advertisement) of every member of u1 in ascending order.
    """
    listed = [part for pair in members for part in pair]
    if not {32}.issuperset(map(len, listed)):
        raise ValueError("identities and digests have 32 bytes")
    return digest_of_rows("sordino/v1/cohort-context", round_context, rows=b"".join(listed))
