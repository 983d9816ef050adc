"""A participant's own records of one study in one file, which it signs: what it signed, answered and was charged.

A reader that holds the coordinator's transcripts can compare the two (docs/transcripts.md). The file holds no data, no
update and no name of data: only digests of rows of the participant's ledger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from secagg.encoding import encode
from secagg.keys import IdentityKey
from secagg.signatures import verify_signature
from wire.records.ledger_rows import EXACT, EXCLUDED
from wire.records.transcript_checks import VerifiedTranscript

FORMAT: Final = "sordino-participation-1"
LARGEST: Final = 256 << 20


class InvalidParticipation(ValueError):
    """The file isn't one, was changed, or contradicts a transcript; the sentence has no full stop."""


@dataclass(frozen=True)
class OwnAttempt:
    """One attempt: ``signed`` the statement over its survivor sets, ``answered`` the digest of the unmasking request.

    ``kind`` of the charge, a `wire.records.ledger_rows` kind; empty: nothing was charged.
    """

    signed: bytes
    answered: bytes
    kind: str


@dataclass(frozen=True)
class Participation:
    """A file whose signature holds."""

    study: str
    study_sha256: bytes
    identity: bytes
    attempts: Mapping[tuple[int, int], OwnAttempt]

    def agrees(self, verified: VerifiedTranscript) -> bool:
        """Whether the participant is in the sum of a transcript that holds.

        Raises InvalidParticipation: the transcript contradicts these records.
        """
        found, config = verified.contents, verified.config
        number = found.round, found.attempt
        named = f"round {number[0]}, attempt {number[1]}"
        if config.study_digest != self.study_sha256:
            raise InvalidParticipation(f"its study document isn't the one of the transcript of {named}")
        place, own = verified.roster.positions.get(self.identity), self.attempts.get(number)
        in_sum = place is not None and place in found.u3
        if own is not None and own.signed and own.signed != verified.statement:
            raise InvalidParticipation(f"the participant signed other survivor sets in {named} than the transcript has")
        if in_sum and (own is None or own.kind in ("", EXCLUDED)):
            last, end = max(self.attempts, default=(0, 0)), "its records don't"
            if number > last:
                end = f"its records end with round {last[0]}: if it went on since, export them again"
            raise InvalidParticipation(f"the transcript has the participant in the sum of {named}, {end}")
        if not in_sum and own is not None and (own.answered or own.kind == EXACT):
            raise InvalidParticipation(
                f"the participant opened a sum with its input in {named}, the transcript has none"
            )
        if place in dict(found.signatures) and (own is None or not own.signed):
            raise InvalidParticipation(f"the transcript of {named} has a signature that isn't in the records")
        return in_sum

    def opened(self) -> set[tuple[int, int]]:
        """Attempts in which the participant helped to open a sum."""
        return {number for number, own in self.attempts.items() if own.answered}


def write_participation(
    identity: IdentityKey, *, study: str, study_sha256: str, attempts: list[dict[str, Any]], ledger: Mapping[str, Any]
) -> bytes:
    """The signed file. ``attempts``: as ``sordino join --status --json`` has them; ``ledger``: rows and head."""
    body = {
        "format": FORMAT,
        "study": study,
        "study_sha256": study_sha256,
        "identity": identity.public.hex(),
        "attempts": attempts,
        "ledger": dict(ledger),
    }
    return _text({**body, "signature": identity.sign(_statement(body)).hex()}) + b"\n"


def read_participation(data: bytes) -> Participation:
    """Raises InvalidParticipation: not such a file, or the participant's signature doesn't hold."""
    try:
        body = json.loads(data)
        if body["format"] != FORMAT:
            raise InvalidParticipation(f"it isn't a participant's records ({FORMAT})")
        signature, identity = bytes.fromhex(body.pop("signature")), bytes.fromhex(body["identity"])
        attempts = {
            (int(one["round"]), int(one["attempt"])): OwnAttempt(
                bytes.fromhex(one["signed"] or ""), bytes.fromhex(one["answered"] or ""), str(one["charge"] or "")
            )
            for one in body["attempts"]
        }
        found = Participation(str(body["study"]), bytes.fromhex(body["study_sha256"]), identity, attempts)
        statement = _statement(body)
    except InvalidParticipation:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidParticipation("it isn't a participant's records, or it was cut short") from error
    if not verify_signature(identity, signature, statement):
        raise InvalidParticipation("it isn't signed by the participant that it names, or it was changed")
    return found


def _text(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _statement(body: Mapping[str, Any]) -> bytes:
    return encode("sordino/v1/participation", _text(body))
