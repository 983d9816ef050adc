"""The transcript of a finished round: one signed file that anyone who knows the study's authority can check offline.

It contains what the participants signed (their advertised keys, and the survivor sets), everything those signatures
are bound to (study document, roster, lottery ticket, model digest), what both sides derived from it, and the
coordinator's charge. It contains no upload, share, seed, rebuilt key, ciphertext or clip statistic.

The file is canonical JSON: sorted names, no blanks, ASCII, one line. Short single binary fields are hexadecimal, those
in lists base64. Documents that were signed or hashed are contained as the exact text of their files.
`wire/records/transcript_checks.py` checks the contents; docs/transcripts.md names every field.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.context import RoundConfig
from secagg.encoding import encode
from secagg.keys import HYBRID_KEY_BYTES
from secagg.lottery import Ticket
from secagg.messages import Advertisement
from secagg.parameters import COMPLETE, HARARY, RoundParameters
from wire import json_fields
from wire.json_fields import (
    FILE,
    HEX_32,
    BadField,
    Kind,
    hexadecimal,
    instance,
    listed,
    of_type,
    optional,
    plain,
    whole,
)
from wire.records.ledger import Row

FORMAT: Final = "sordino-transcript-1"
LARGEST_TRANSCRIPT: Final = 512 << 20
LONGEST_REASON: Final = 500
_KEY, _SIGNATURE = 32, 64


class Check(StrEnum):
    """What is checked, in this order. The names are stable: errors and JSON contain them."""

    FORM = "format"
    AUTHORITY = "authority"
    COORDINATOR = "coordinator"
    ROSTER = "roster"
    STUDY = "study"
    FIT = "roster-fits-plan"
    LOTTERY = "lottery"
    ADVERTISEMENTS = "advertisements"
    PARAMETERS = "parameters"
    SETS = "sets"
    QUORUM = "signatures"
    CHARGE = "charge"
    DIGESTS = "digests"
    CHAIN = "chain"


class InvalidTranscript(ValueError):
    """A transcript that doesn't hold: the first ``check`` that fails, and a sentence that says what is wrong."""

    def __init__(self, check: Check, sentence: str) -> None:
        super().__init__(f"{check}: {sentence}")
        self.check, self.sentence = check, sentence


@dataclass(frozen=True)
class Excluded:
    """A participant that the coordinator no longer invites, since shares that it dealt or held proved it cheated."""

    identity: bytes  # Ed25519 public key, 32 bytes
    reason: str


@dataclass(frozen=True)
class Charge:
    """A row of the coordinator's ledger, unchanged."""

    number: int  # from 1
    previous: bytes  # hash of the row before it, 32 bytes
    hash: bytes  # 32 bytes
    row: bytes  # `wire.records.ledger_rows.LedgerEntry.to_bytes`


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """The contents of a file. An instance proves only that the file's form is right.

    Participants are positions in this roster, ascending. Bytes without a stated length are the text of a file.
    """

    card: bytes
    roster: bytes
    study: bytes  # the study document
    round: int
    attempt: int
    model_sha256: bytes  # of the model that was trained in this round, 32 bytes
    ticket: Ticket | None  # where cohorts are drawn
    newest: bytes  # the authority's statement that the roster is the newest; empty where the study asks for none
    parameters: Mapping[str, Any]  # of `stated_parameters`
    u1: tuple[int, ...]
    advertisements: tuple[Advertisement, ...] = field(repr=False)  # one for each member of u1
    u2: tuple[int, ...]
    u3: tuple[int, ...]
    numbers: tuple[int, ...]  # of the members of u3 in the coordinator's ledger
    signatures: tuple[tuple[int, bytes], ...] = field(repr=False)  # over u2 and u3: a quorum's
    excluded: tuple[Excluded, ...]
    charge: Charge
    caught: tuple[Excluded, ...] = ()  # those that cheated in this attempt, and are no longer invited
    sum_sha256: bytes | None = None  # of the opened sum, little-endian words; None where it would reveal too much
    next_model_sha256: bytes = b""
    previous: bytes | None = None  # SHA-256 of the transcript before this one; None: the first
    signature: bytes = b""  # the coordinator's

    @cached_property
    def data(self) -> bytes:
        return _text({**self._fields(), "signature": self.signature.hex()}) + b"\n"

    @cached_property
    def sha256(self) -> bytes:
        """With which the next transcript names this one: 32 bytes."""
        return hashlib.sha256(self.data).digest()

    def statement(self) -> bytes:
        """What the coordinator signs: everything except the signature."""
        return encode("sordino/v1/transcript", _text(self._fields()))

    def _fields(self) -> dict[str, Any]:
        signers, signatures = ([pair[at] for pair in self.signatures] for at in (0, 1))
        values = json_fields.values_of(self) | {"signers": signers, "signatures": signatures}
        fields = json_fields.write_fields(_FIELDS, values)
        del fields["signature"]
        return {"format": FORMAT, **fields}


def stated_parameters(parameters: RoundParameters, u1: int) -> dict[str, Any]:
    """What both sides derive from the plan and from the number of members of u1; no message carries it."""
    sharing = parameters.sharing(u1)
    return {
        "graph": COMPLETE if sharing.degree == u1 - 1 else HARARY,
        "degree": sharing.degree,
        "threshold": sharing.threshold,
        "signatures_needed": parameters.signatures_needed(u1),
    } | {name: getattr(parameters, name) for name in _STATED}


_STATED: Final = ("adversary", "key_agreement", "cohort", "colluders", "min_survivors", "quorum", "bits", "dim")


def transcript_of(
    *,
    card: bytes,
    roster: bytes,
    study: bytes,
    config: RoundConfig,
    advertisements: Mapping[int, Advertisement],
    u2: Iterable[int],
    u3: Iterable[int],
    signatures: Sequence[tuple[int, bytes]],
    row: Row,
    numbers: Mapping[int, int] | None = None,
    excluded: Mapping[bytes, str] | None = None,
) -> Transcript:
    """The transcript of an attempt when it is charged; `write_transcript` adds what the opened sum contributes.

    Args:
        card, roster, study: the files' bytes.
        advertisements: of u1, by position in the roster.
        signatures: (signer, signature) of a quorum, as journaled with the charge.
        row: the coordinator's charge.
        numbers: position in the roster -> number in the ledger; default: the same.
        excluded: identity -> reason.

    Raises ValueError: one of the files isn't UTF-8 text.
    """
    for data in (card, roster, study):
        data.decode()
    u1, survivors = tuple(sorted(advertisements)), tuple(sorted(u3))
    return Transcript(
        card=card,
        roster=roster,
        study=study,
        round=config.round,
        attempt=config.attempt,
        model_sha256=config.model_digest,
        ticket=config.ticket,
        newest=config.newest,
        parameters=stated_parameters(config.parameters, len(u1)),
        u1=u1,
        advertisements=tuple(advertisements[who] for who in u1),
        u2=tuple(sorted(u2)),
        u3=survivors,
        numbers=survivors if numbers is None else tuple(numbers[who] for who in survivors),
        signatures=tuple(signatures),
        excluded=_named_for_cause(excluded or {}),
        charge=Charge(row.number, row.previous, row.hash, row.entry.to_bytes()),
    )


def write_transcript(
    transcript: Transcript,
    coordinator_key: Ed25519PrivateKey,
    *,
    sum_sha256: bytes | None,
    next_model_sha256: bytes,
    previous: bytes | None,
    caught: Mapping[bytes, str] | None = None,
) -> bytes:
    """The file of a finished round.

    Args:
        coordinator_key: whose public half is on the card.
        sum_sha256: SHA-256 of the opened sum, or None where the sum has no noise and could be guessed from its digest.
        next_model_sha256: of the model with which the next round begins.
        previous: SHA-256 of the transcript before this one; None for the first.
        caught: identity -> reason, for participants that cheated in this attempt.
    """
    whole = replace(
        transcript,
        sum_sha256=sum_sha256,
        next_model_sha256=next_model_sha256,
        previous=previous,
        caught=_named_for_cause(caught or {}),
    )
    return sign_transcript(whole, coordinator_key).data


def sign_transcript(transcript: Transcript, coordinator_key: Ed25519PrivateKey) -> Transcript:
    """The transcript with the coordinator's signature over all of it."""
    return replace(transcript, signature=coordinator_key.sign(transcript.statement()))


def _named_for_cause(reasons: Mapping[bytes, str]) -> tuple[Excluded, ...]:
    return tuple(Excluded(identity, _printable(reason)) for identity, reason in sorted(reasons.items()))


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text[:LONGEST_REASON])


def _text(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def read_transcript(data: bytes) -> Transcript:
    """The contents of a file, of which only the form is checked.

    Raises InvalidTranscript: (format) not a transcript, or not in the canonical form.
    """
    if len(data) > LARGEST_TRANSCRIPT:
        raise InvalidTranscript(Check.FORM, f"it has more than {LARGEST_TRANSCRIPT >> 20} MiB")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidTranscript(Check.FORM, "it isn't JSON: not a transcript, or cut short") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("format"), str):
        raise InvalidTranscript(Check.FORM, "it is not a transcript")
    if fields["format"] != FORMAT:
        raise InvalidTranscript(Check.FORM, f"it has the format {fields['format'][:40]!r}, this version reads {FORMAT}")
    try:
        transcript = _read(fields)
        again = transcript.data
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        named = isinstance(error, BadField)
        raise InvalidTranscript(Check.FORM, str(error) if named else "a field is missing or of another type") from error
    if again != data:
        raise InvalidTranscript(Check.FORM, "its bytes aren't canonical: a field too many, or another notation")
    return transcript


def _read(fields: dict[str, Any]) -> Transcript:
    values = json_fields.read_fields(_FIELDS, fields)
    values["signatures"] = tuple(zip(values.pop("signers"), values["signatures"], strict=True))
    transcript = Transcript(**values)
    if len(transcript.advertisements) != len(transcript.u1) or len(transcript.numbers) != len(transcript.u3):
        raise BadField("there must be one advertisement for each member of u1 and one number for each of u3")
    return transcript


# ---------------------------------------------------------------- fields


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _from_base64(value: Any, length: int) -> bytes:
    try:
        return json_fields.sized(base64.b64decode(of_type(value, str), validate=True), length)
    except binascii.Error as error:
        raise BadField("isn't base64") from error


def _positions(value: Any) -> tuple[int, ...]:
    members: tuple[int, ...] = _NUMBERS.read(value)
    if any(a >= b for a, b in pairwise(members)):
        raise BadField("must be strictly ascending")
    return members


def _advertisement(value: Any) -> Advertisement:
    encoded = {4 * -(-(2 * size + _SIGNATURE) // 3): size for size in (_KEY, HYBRID_KEY_BYTES)}
    key = encoded.get(len(of_type(value, str)), _KEY)
    data = _from_base64(value, 2 * key + _SIGNATURE)
    return Advertisement(data[:key], data[key : 2 * key], data[2 * key :])


def _reason(value: Any) -> str:
    if of_type(value, str) != _printable(value):  # terminals show it
        raise BadField(f"isn't at most {LONGEST_REASON} printable characters")
    return str(value)


_NUMBERS: Final = listed(whole())
_FIELDS: Final[Mapping[str, Kind]] = {
    **dict.fromkeys(("card", "roster", "study", "newest"), FILE),
    **dict.fromkeys(("round", "attempt"), whole(1)),
    **dict.fromkeys(("model_sha256", "next_model_sha256"), HEX_32),
    **dict.fromkeys(("sum_sha256", "previous"), optional(HEX_32)),
    "ticket": optional(instance(Ticket, seed=HEX_32, path=listed(hexadecimal()))),
    "parameters": plain(dict),
    **dict.fromkeys(("u1", "u2", "u3"), _NUMBERS._replace(read=_positions)),
    **dict.fromkeys(("numbers", "signers"), _NUMBERS),
    "advertisements": listed(Kind(lambda one: _base64(one.mask_key + one.channel_key + one.signature), _advertisement)),
    "signatures": listed(Kind(_base64, lambda value: _from_base64(value, _SIGNATURE))),
    **dict.fromkeys(("excluded", "caught"), listed(instance(Excluded, identity=HEX_32, reason=Kind(str, _reason)))),
    "charge": instance(Charge, number=whole(1), previous=HEX_32, hash=HEX_32, row=FILE),
    "signature": hexadecimal(_SIGNATURE),
}
