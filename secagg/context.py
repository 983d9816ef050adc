"""What every signature, key and mask of an attempt is bound to.

    round_context  = H(version, study, round, attempt, public plan, model and configuration, roster with its history,
                       the authority's statement that this roster is the newest)
    cohort_context = H(round_context, u1 with the signed keys of all its members)

Two participants whose contexts differ share no key: their masks don't cancel and their signatures don't verify. So a
coordinator cannot show different rounds to different participants and still open a sum.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from secagg.encoding import digest, digest_of_rows, encode, number
from secagg.errors import InvalidParameters
from secagg.keys import consistency_statement, set_digest
from secagg.lottery import InvalidTicket, Ticket
from secagg.parameters import RoundParameters
from secagg.roster import NONE, Roster

PROTOCOL_VERSION = 1


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
    newest: bytes = b""  # the authority's signed statement that the roster is the newest, where the study wants one

    @property
    def number(self) -> tuple[int, int]:
        return self.round, self.attempt

    def __post_init__(self) -> None:
        if self.round < 1 or self.attempt < 1:
            raise InvalidParameters("round and attempt are counted from 1")
        if len(self.study_digest) != 32 or len(self.model_digest) != 32:
            raise InvalidParameters("study_digest and model_digest must be SHA-256 digests of 32 bytes")
        if self.roster.terms not in (NONE, self.study_digest):
            raise InvalidParameters("the roster was signed with the terms of another study document")
        if self.ticket is not None and len(self.roster) < self.parameters.cohort:
            raise InvalidParameters(
                f"a cohort of {self.parameters.cohort} can't be drawn from a roster of {len(self.roster)}"
            )

    @cached_property
    def invited(self) -> frozenset[int]:
        """The cohort: the participants that may be in u1, by position in the roster, in every attempt of the round.

        Raises secagg.lottery.InvalidTicket: the ticket isn't the one that the authority signed for this round.
        """
        if self.ticket is None:
            return self.roster.everybody
        return winners(self.roster, self.round, self.ticket, self.parameters.cohort, self.parameters.epoch_rounds)

    def round_context(self) -> bytes:
        """32 bytes that identify this attempt and everything it depends on."""
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
            self.newest,
        )


def winners(roster: Roster, round_: int, ticket: Ticket, cohort: int, epoch_rounds: int = 1) -> frozenset[int]:
    """The cohort of a round: ``cohort`` positions in the roster, or all of them.

    ``epoch_rounds``: rounds that one draw deals the roster to; the i-th of them gets the i-th ``cohort`` positions.

    Raises InvalidTicket: the roster has no lottery or none for this round, is too small for the epoch, or the seed
    isn't the one it was signed with.
    """
    lottery, size = roster.lottery, len(roster)
    if lottery is None:
        raise InvalidTicket("the roster was signed without a lottery")
    draw, place = 1 + (round_ - 1) // epoch_rounds, (round_ - 1) % epoch_rounds
    if not 1 <= draw <= lottery.draws:
        last = lottery.draws * epoch_rounds
        raise InvalidTicket(f"the roster was signed with draws for {last} rounds, this is round {round_}")
    if not lottery.drew(roster.study, roster.version, draw, ticket):
        raise InvalidTicket("the seed of the lottery is not the one that the authority drew for this round")
    if epoch_rounds > 1 and epoch_rounds * cohort > size:
        raise InvalidTicket(f"a roster of {size} can't be dealt to {epoch_rounds} cohorts of {cohort}")
    if cohort >= size:
        return frozenset(range(size))
    # The identity comes last, so the hash of all before it is made once. Equal values would need a collision.
    blank = encode(
        "sordino/v1/lottery", *(roster.study.encode(), number(roster.version), number(draw), ticket.seed, bytes(32))
    )
    before = hashlib.sha256(blank[:-32])
    values: list[bytes] = []
    for entry in roster.entries:
        one = before.copy()
        one.update(entry.identity)
        values.append(one.digest())
    return frozenset(heapq.nsmallest((place + 1) * cohort, range(size), key=values.__getitem__)[place * cohort :])


def cohort_context(round_context: bytes, members: Iterable[tuple[bytes, bytes]]) -> bytes:
    """32 bytes that identify the cohort of an attempt.

    Args:
        members: (identity, SHA-256 of its signed advertisement) of every member of u1 in ascending order.
    """
    listed = [part for pair in members for part in pair]
    if not {32}.issuperset(map(len, listed)):
        raise ValueError("identities and digests have 32 bytes")
    return digest_of_rows("sordino/v1/cohort-context", round_context, rows=b"".join(listed))


def set_of(config: RoundConfig, context: bytes, name: str, members: Iterable[int]) -> bytes:
    """SHA-256 of a set of participants under its name (u2 or u3): 32 bytes."""
    identities = config.roster.identities
    return set_digest(name, context, [identities[member] for member in sorted(members)])


def survivor_statement(config: RoundConfig, context: bytes, u2: Iterable[int], u3: Iterable[int]) -> bytes:
    """The bytes that every member of u3 signs in ConsistencyCheck."""
    return consistency_statement(context, set_of(config, context, "u2", u2), set_of(config, context, "u3", u3))
