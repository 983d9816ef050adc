"""Does a transcript hold? Everything is computed again from what the authority and the participants signed.

The coordinator's signature proves only that it is responsible for the file: a coordinator that lies can sign any file.
It can't make the authority's signatures on card and roster, nor the participants' signatures: on their keys, bound to
study, plan, model, roster, round and attempt, and on the survivor sets, bound to all of u1 as well.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from hashlib import sha256
from itertools import pairwise
from typing import Final

from mechanisms.statement import GAUSSIAN
from secagg.context import RoundConfig, cohort_context, survivor_statement
from secagg.errors import InvalidParameters
from secagg.keys import HYBRID_KEY_BYTES, KEY_BYTES, advertisement_statement, is_low_order, key_parts
from secagg.lottery import InvalidTicket
from secagg.roster import InvalidRoster, Roster, verify_roster
from secagg.signatures import verify_signature
from wire.authority_statements import Card, InvalidCard, verify_card
from wire.join_code import FINGERPRINT_BYTES, fingerprint, show_fingerprint
from wire.records.ledger import row_hash
from wire.records.ledger_rows import InvalidRow, LedgerEntry, make_entry
from wire.records.transcript import Check, InvalidTranscript, Transcript, read_transcript, stated_parameters
from wire.roster_history import verify_newest
from wire.study import (
    LONGEST_ROSTER_VALID_S,
    InvalidStudy,
    StudyDocument,
    check_roster_fits,
    round_parameters,
    smallest_roster,
)

_ROUNDING: Final = 1e-9  # largest relative difference between two machines' results for a Renyi cost


@dataclass(frozen=True)
class VerifiedTranscript:
    """A transcript that holds, and what it holds."""

    contents: Transcript
    card: Card
    roster: Roster
    document: StudyDocument
    config: RoundConfig
    entry: LedgerEntry = field(repr=False)  # the charge
    statement: bytes = field(repr=False)  # over the survivor sets, which members of u3 signed

    @property
    def sha256(self) -> bytes:
        return self.contents.sha256


def verify_transcript(data: bytes, authority: bytes | None) -> VerifiedTranscript:
    """Check everything that a single file can prove.

    ``authority`` is the study's, known beforehand: its Ed25519 public key (32 bytes) or its fingerprint (16). None
    takes the one that the file names; then the result doesn't prove which authority the study has.

    Raises InvalidTranscript: names the first `wire.records.transcript.Check` that fails.
    """
    found = read_transcript(data)
    card = _card(found, authority)
    if not verify_signature(card.coordinator_public, found.signature, found.statement()):
        raise InvalidTranscript(Check.COORDINATOR, "it isn't signed by the card's coordinator, or it was changed")
    roster = _roster(found, card)
    document = _document(found, card, roster)
    config = _config(found, roster, document)
    context = _advertisements(found, config)
    derived = stated_parameters(config.parameters, len(found.u1))
    if json.dumps(dict(found.parameters), sort_keys=True) != json.dumps(derived, sort_keys=True):  # 6.0 is not 6
        raise InvalidTranscript(Check.PARAMETERS, "graph or thresholds are not those that plan and u1 give")
    _sets(found, config)
    statement = _signatures(found, config, context)
    entry = _charge(found, document)
    _digests(found, document)
    return VerifiedTranscript(found, card, roster, document, config, entry, statement)


@contextmanager
def _failing(check: Check, *errors: type[Exception], prefix: str = "") -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise InvalidTranscript(check, f"{prefix}{error}") from error


def _card(found: Transcript, authority: bytes | None) -> Card:
    try:
        named = bytes.fromhex(json.loads(found.card)["authority"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidTranscript(Check.AUTHORITY, "it holds no card of a study") from error
    if authority is None:
        authority = named
    wanted = authority if len(authority) == FINGERPRINT_BYTES else fingerprint(authority)
    if fingerprint(named) != wanted:
        raise InvalidTranscript(
            Check.AUTHORITY,
            f"its authority has the fingerprint {show_fingerprint(fingerprint(named))}, not {show_fingerprint(wanted)}",
        )
    with _failing(Check.AUTHORITY, InvalidCard, prefix="its card doesn't hold: "):
        return verify_card(found.card, wanted)


def _roster(found: Transcript, card: Card) -> Roster:
    with _failing(Check.ROSTER, InvalidRoster):
        roster = verify_roster(found.roster, card.authority_public)
        if found.newest:
            stated = verify_newest(found.newest, card.authority_public)
            stated.check(roster, LONGEST_ROSTER_VALID_S, stated.signed)
    if roster.study != card.study:
        raise InvalidTranscript(Check.ROSTER, f"it is that of the study {roster.study!r}, the card's is {card.study!r}")
    return roster


def _document(found: Transcript, card: Card, roster: Roster) -> StudyDocument:
    with _failing(Check.STUDY, InvalidStudy):
        document = StudyDocument.from_bytes(found.study)
    if roster.terms != sha256(found.study).digest():
        raise InvalidTranscript(Check.STUDY, "the authority signed its roster with the terms of another study document")
    if bool(found.newest) != bool(document.roster_valid_s):
        wanted = "asks for a" if document.roster_valid_s else "asks for no"
        raise InvalidTranscript(Check.STUDY, f"it {wanted} statement that the roster is the newest")
    if document.study != card.study:
        raise InvalidTranscript(Check.STUDY, f"it is of the study {document.study!r}, the card's is {card.study!r}")
    if found.round > document.plan.rounds:
        last = document.plan.rounds
        raise InvalidTranscript(Check.STUDY, f"it is round {found.round}, the plan ends with round {last}")
    return document


def _config(found: Transcript, roster: Roster, document: StudyDocument) -> RoundConfig:
    """What every signature of the attempt is bound to; checks the roster against the plan, and the drawn cohort."""
    plan = document.plan
    with _failing(Check.FIT, InvalidRoster):
        check_roster_fits(plan, roster)
    if len(roster) < smallest_roster(plan):
        needed = smallest_roster(plan)
        raise InvalidTranscript(Check.FIT, f"{needed} must be on the roster before a round, it has {len(roster)}")
    if (found.ticket is not None) != plan.drawn:
        drawn = "draws each cohort, and the ticket is missing" if found.ticket is None else "draws no cohorts"
        raise InvalidTranscript(Check.LOTTERY, f"the plan {drawn}")
    with _failing(Check.LOTTERY, InvalidTicket, InvalidParameters):
        config = RoundConfig(
            roster=roster,
            round=found.round,
            attempt=found.attempt,
            study_digest=sha256(found.study).digest(),
            model_digest=found.model_sha256,
            parameters=round_parameters(plan),
            ticket=found.ticket,
            newest=found.newest,
        )
        invited = config.invited
    strangers = [who for who in found.u1 if who not in invited]
    if strangers:
        known = strangers[0] < len(roster)
        reason = "did not win the round's lottery" if known else "is not on the roster"
        raise InvalidTranscript(Check.LOTTERY, f"participant {strangers[0]} of u1 {reason}")
    return config


def _advertisements(found: Transcript, config: RoundConfig) -> bytes:
    """cohort_context, after a check that every member has signed its keys and no key occurs twice."""
    round_context, roster = config.round_context(), config.roster
    seen: set[bytes] = set()
    listed: list[tuple[bytes, bytes]] = []
    for who, advertised in zip(found.u1, found.advertisements, strict=True):
        for key in (advertised.mask_key, advertised.channel_key):
            if len(key) != (HYBRID_KEY_BYTES if config.parameters.hybrid else KEY_BYTES):
                raise InvalidTranscript(Check.ADVERTISEMENTS, f"participant {who} advertised a key of another length")
            if not seen.isdisjoint(key_parts(key)):
                raise InvalidTranscript(Check.ADVERTISEMENTS, f"participant {who} advertised a key that is not new")
            if is_low_order(key[:KEY_BYTES]):
                raise InvalidTranscript(Check.ADVERTISEMENTS, f"participant {who} advertised a key of low order")
            seen.update(key_parts(key))
        identity = roster.identity(who)
        statement = advertisement_statement(round_context, identity, advertised.mask_key, advertised.channel_key)
        if not verify_signature(identity, advertised.signature, statement):
            raise InvalidTranscript(
                Check.ADVERTISEMENTS,
                f"participant {who} did not sign these keys for this study, plan, model, roster, round and attempt",
            )
        listed.append((identity, advertised.digest()))
    return cohort_context(round_context, listed)


def _sets(found: Transcript, config: RoundConfig) -> None:
    parameters, roster = config.parameters, config.roster
    u1, u2, u3 = frozenset(found.u1), frozenset(found.u2), frozenset(found.u3)
    for name, inner, outer_name, outer in (("u2", u2, "u1", u1), ("u3", u3, "u2", u2)):
        if not inner <= outer:
            raise InvalidTranscript(Check.SETS, f"{name} is not a subset of {outer_name}")
    for name, size, needed in (
        ("u1", len(u1), parameters.quorum),
        ("u2", len(u2), parameters.quorum),
        ("u3", len(u3), max(parameters.min_survivors, parameters.threshold(len(u1)))),
    ):
        if size < needed:
            raise InvalidTranscript(Check.SETS, f"{name} has {size} members, {needed} needed")
    excluded = {one.identity for one in found.excluded}
    if len(excluded) < len(found.excluded):
        raise InvalidTranscript(Check.SETS, "an excluded participant is named twice")
    if any(roster.identity(who) in excluded for who in found.u1):
        raise InvalidTranscript(Check.SETS, "a member of u1 is named as excluded")
    caught = {one.identity for one in found.caught}
    if len(caught) < len(found.caught) or not caught <= roster.positions.keys() - excluded:
        raise InvalidTranscript(
            Check.SETS, "a participant that was caught is named once, is on the roster, and wasn't excluded before"
        )


def _signatures(found: Transcript, config: RoundConfig, context: bytes) -> bytes:
    signers = [signer for signer, _ in found.signatures]
    if any(a >= b for a, b in pairwise(signers)):
        raise InvalidTranscript(Check.QUORUM, "the signers aren't strictly ascending: one counts twice")
    if not frozenset(found.u3).issuperset(signers):
        raise InvalidTranscript(Check.QUORUM, "a signer isn't in u3")
    if not config.parameters.signed:
        raise InvalidTranscript(Check.QUORUM, "under its plan nobody signs the survivor sets, so nothing proves them")
    needed = config.parameters.signatures_needed(len(found.u1))
    if len(signers) < needed:
        raise InvalidTranscript(Check.QUORUM, f"{len(signers)} participants signed the survivor sets, {needed} needed")
    statement = survivor_statement(config, context, frozenset(found.u2), frozenset(found.u3))
    for signer, signature in found.signatures:
        if not config.roster.verify(signer, signature, statement):
            raise InvalidTranscript(Check.QUORUM, f"the signature of participant {signer} doesn't cover these sets")
    return statement


def _charge(found: Transcript, document: StudyDocument) -> LedgerEntry:
    charge = found.charge
    if row_hash(charge.previous, charge.number, charge.row) != charge.hash:
        raise InvalidTranscript(Check.CHARGE, "the row of the ledger doesn't have its hash")
    with _failing(Check.CHARGE, InvalidRow, prefix="not a row of a ledger: "):
        entry = LedgerEntry.from_bytes(charge.row)
    numbers = tuple(sorted(found.numbers))
    if entry.participants is None or entry.participants != numbers or len(set(numbers)) != len(numbers):
        raise InvalidTranscript(Check.CHARGE, "it charges other participants than u3")
    with _failing(Check.CHARGE, ValueError):
        due = make_entry(
            document.plan,
            study=document.study,
            study_sha256=sha256(found.study).digest(),
            round=found.round,
            attempt=found.attempt,
            participants=numbers,
            clock=lambda: entry.at,
        )
    for one in fields(LedgerEntry):
        stands, must = getattr(entry, one.name), getattr(due, one.name)
        if one.name not in ("cost", "curve") and stands != must:
            raise InvalidTranscript(Check.CHARGE, f"its {one.name} is {_short(stands)}, not {_short(must)}")
    pairs = [((due.order, due.cost), (entry.order, entry.cost))]
    if [order for order, _ in entry.curve] != [order for order, _ in due.curve]:
        raise InvalidTranscript(Check.CHARGE, "it states its cost at other orders than the plan")
    pairs += zip(due.curve, entry.curve, strict=True)
    for (order, least), (_, stated) in pairs:
        if not math.isclose(stated, least, rel_tol=_ROUNDING):
            raise InvalidTranscript(
                Check.CHARGE, f"it charges {stated:.6g} at the order {order:g}, the plan says {least:.6g}"
            )
    return entry


def _short(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)  # a coordinator may have written anything there
    return text if len(text) <= 24 else text[:16] + "…"


def _digests(found: Transcript, document: StudyDocument) -> None:
    # The sum of a trusted coordinator has no noise yet, so it could be guessed from its digest.
    if (found.sum_sha256 is None) != (document.plan.mechanism == GAUSSIAN):
        wanted = "must not be published" if found.sum_sha256 is not None else "is missing"
        name = document.plan.mechanism
        raise InvalidTranscript(Check.DIGESTS, f"the sum's digest {wanted} under the mechanism {name}")


class Chain:
    """Transcripts of one coordinator in order, each named by the next, so that none was left out or replaced."""

    def __init__(self) -> None:
        self._last: VerifiedTranscript | None = None
        self._identities: dict[int, bytes] = {}  # by the ledger's number
        self._numbers: dict[bytes, int] = {}

    def add(self, after: VerifiedTranscript) -> None:
        """Add the next one. Raises InvalidTranscript: (chain) it doesn't follow the one before."""
        if self._last is not None:
            _follows(self._last, after)
        for who, number in zip(after.contents.u3, after.contents.numbers, strict=True):
            identity = after.roster.identity(who)
            if self._identities.setdefault(number, identity) != identity or (
                self._numbers.setdefault(identity, number) != number
            ):
                raise InvalidTranscript(Check.CHAIN, f"number {number} of the ledger meant another participant before")
        self._last = after


def _follows(before: VerifiedTranscript, after: VerifiedTranscript) -> None:
    old, new = before.contents, after.contents
    rounds = f"round {new.round} after round {old.round}"
    for holds, sentence in (
        (new.round > old.round, f"rounds don't grow: {rounds}"),
        (after.roster.version >= before.roster.version, f"the roster's version goes back: {rounds}"),
        (
            after.roster.version > before.roster.version or after.roster.digest() == before.roster.digest(),
            f"there are two rosters of version {after.roster.version}",
        ),
        (old.study == new.study, "the study document is another"),
        (before.card.coordinator_public == after.card.coordinator_public, "the coordinator's key is another"),
        (new.previous == before.sha256, f"{rounds} doesn't name it as its predecessor: one is missing or replaced"),
        (
            new.round > old.round + 1 or new.model_sha256 == old.next_model_sha256,
            f"round {new.round} began with another model than round {old.round} ended with",
        ),
        (new.charge.number > old.charge.number, "the ledger's rows don't grow"),
        (
            new.charge.number > old.charge.number + 1 or new.charge.previous == old.charge.hash,
            "the row of the ledger doesn't follow the one of the round before",
        ),
    ):
        if not holds:
            raise InvalidTranscript(Check.CHAIN, sentence)
