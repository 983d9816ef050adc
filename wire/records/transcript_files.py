"""The coordinator's transcripts: one signed file for each finished round, each naming the one before it.

An attempt is noted when it is charged, and its file is written when its sum is open and the next model is on the disk,
before the journal counts the round. If the process ends between the two, the round is played again in another attempt:
the file of the first one is put aside, not deleted, since its sum was opened.

Transcripts name who took part. They are kept readable by their owner alone; publishing is the owner's decision, and
`check_publishing` says what it rules out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mechanisms.plan import InfeasiblePlan, Plan
from mechanisms.statement import RELEASED
from runtime.durable import StorageError, replace_durably
from runtime.key_files import KeyFileError
from secagg.server_unmasking import Unmasking
from wire import codec, coordinator_pb2 as pb
from wire.authority_statements import InvalidCard, verify_card
from wire.certificates import read_ed25519_key
from wire.join_code import fingerprint
from wire.records.ledger import Row
from wire.records.transcript import InvalidTranscript, Transcript, read_transcript, transcript_of, write_transcript

log = structlog.get_logger()

FOLDER: Final = "transcripts"
PUBLISHED: Final = "published"
_NAME: Final = re.compile(r"round-(\d{6,})\.transcript")


class TranscriptError(StorageError):
    """Transcripts can't be kept: the key, the card or a file is missing or wrong; names it and what to change."""


def file_name(round_: int) -> str:
    """``round-000001.transcript``; names sort as rounds do, up to a million."""
    return f"round-{round_:06d}.transcript"


def are_published(state: Path) -> bool:
    """Whether there are published transcripts beside a state file; publishing can't be undone."""
    return any((state.with_name(PUBLISHED)).glob("*.transcript"))


def check_publishing(plan: Plan) -> None:
    """Whether transcripts of a study under this plan may be published.

    Raises InfeasiblePlan: its epsilon assumes that the drawn cohorts are secret, and a transcript names them.
    """
    if plan.amplified and plan.target == RELEASED:
        raise InfeasiblePlan(
            "published transcripts tell who was in each round, and the target released counts on nobody knowing",
            "set publish_transcripts = false before the first round, or plan for the target coordinator",
        )


def card_and_key(card_file: Path, key_file: Path, authority_public: bytes) -> tuple[bytes, Ed25519PrivateKey]:
    """The card and the key whose public half it names; raises `TranscriptError`, which says what to change."""
    try:
        card = card_file.read_bytes()
        on_card = verify_card(card, fingerprint(authority_public)).coordinator_public
    except (OSError, InvalidCard) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TranscriptError(
            f'{card_file}: {reason}; take the card that the authority signed, or set coordinator.transcripts = "off"'
        ) from error
    key = read_transcript_key(key_file)
    if key.public_key().public_bytes_raw() != on_card:
        raise TranscriptError(
            f"{key_file} is not the key on {card_file}, and transcripts signed with it would hold nowhere: restore "
            "the key, or have the authority sign a card for this one"
        )
    return card, key


class Transcripts:
    """Writes the transcripts of one study. Its methods may run in any thread, one at a time."""

    def __init__(
        self, folder: Path, card: bytes, key: Ed25519PrivateKey, study: bytes, *, published: Path | None = None
    ) -> None:
        """
        Args:
            folder: of the files; made if need be.
            card: the study's card, which holds the public half of ``key``.
            study: the study document.
            published: folder for the world-readable copies; None publishes nothing.
        """
        self.folder, self.published = folder, published
        self._card, self._key, self._study = card, key, study
        self._noted: Transcript | None = None
        self._previous: bytes | None = None

    # ------------------------------------------------------------ after a restart

    def restore(self, completed_rounds: int) -> None:
        """Continue the chain behind the last round that counts, and publish what isn't published yet.

        Raises TranscriptError: the last file isn't a transcript of this round and study; OSError: the folder takes no
        writes.
        """
        self._noted = None
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept: list[int] = []
        for path in self.folder.iterdir():
            if path.name.endswith(".new"):
                path.unlink()
                continue
            named = _NAME.fullmatch(path.name)
            if named is None:
                continue
            if int(named[1]) <= completed_rounds:
                kept.append(int(named[1]))
            else:
                self._put_aside(path)
        self._previous = self._digest(max(kept)) if kept else None
        for round_ in sorted(kept):
            self.publish(round_)

    def _put_aside(self, path: Path) -> None:
        """Its sum was opened and the round is repeated; the ledger charges both, so the file is kept."""
        for attempt in range(1, 1 << 20):
            aside = path.with_name(f"{path.stem}.unfinished-{attempt}")
            if not aside.exists():
                path.rename(aside)
                return

    def _digest(self, round_: int) -> bytes:
        path = self.folder / file_name(round_)
        data = path.read_bytes()
        try:
            last = read_transcript(data)
        except InvalidTranscript as error:
            raise TranscriptError(f"{path}: {error.sentence}; restore it, the next transcript names it") from error
        if (last.round, last.study) != (round_, self._study):
            raise TranscriptError(f"{path} is of another round or study: restore it, the next transcript names it")
        return hashlib.sha256(data).digest()

    # ------------------------------------------------------------ while a round runs

    def note(
        self,
        unmasking: Unmasking,
        request: bytes,
        row: Row,
        roster_file: bytes,
        numbers: Mapping[int, int] | None = None,
        excluded: Mapping[bytes, str] | None = None,
    ) -> None:
        """An attempt is charged. Takes the place of what was noted before; nothing is written yet.

        Args:
            unmasking: the phase that follows, with all sets and advertisements.
            request: a quorum's signatures as an unmasking request, serialised.
            row: the ledger's.
            roster_file: the roster that the attempt runs under, as the authority signed it.
            numbers: position in the roster -> number in the ledger; default: the same.
            excluded: identity -> reason, of all excluded participants.

        Raises TranscriptError: the roster's file isn't UTF-8 text.
        """
        cohort = unmasking.cohort
        message = codec.read_unmasking_request(pb.UnmaskingRequest.FromString(request))
        try:
            self._noted = transcript_of(
                card=self._card,
                roster=roster_file,
                study=self._study,
                config=cohort.config,
                advertisements=cohort.advertisements,
                u2=unmasking.u2,
                u3=unmasking.u3,
                signatures=message.signatures,
                row=row,
                numbers=numbers,
                excluded=excluded,
            )
        except UnicodeDecodeError as error:
            raise TranscriptError("the roster's file isn't UTF-8 text: have the authority write it anew") from error

    def finish(
        self,
        round_: int,
        attempt: int,
        sum_sha256: bytes | None,
        next_model_sha256: bytes,
        caught: Mapping[bytes, str] | None = None,
    ) -> Path:
        """Write the file of the attempt that was noted; durable when it returns, whole after any crash.

        Args:
            sum_sha256: None where the sum holds no noise yet (see `wire.records.transcript.write_transcript`).
            next_model_sha256: of the model that the next round begins with.
            caught: identity -> reason, of the cheats of this attempt.

        Raises ValueError: another attempt was noted, or none; OSError: the folder takes no writes.
        """
        noted = self._noted
        if noted is None or (noted.round, noted.attempt) != (round_, attempt):
            raise ValueError(f"round {round_} attempt {attempt} was not noted when it was charged")
        data = write_transcript(
            noted,
            self._key,
            sum_sha256=sum_sha256,
            next_model_sha256=next_model_sha256,
            previous=self._previous,
            caught=caught,
        )
        path = self.folder / file_name(round_)
        replace_durably(path, data, mode=0o600)
        self._previous, self._noted = hashlib.sha256(data).digest(), None
        return path

    def publish(self, round_: int) -> None:
        """Copy a round's file to the published folder, if there is one; once the journal counts the round.

        Raises OSError: the folder takes no writes.
        """
        if self.published is None:
            return
        copy = self.published / file_name(round_)
        if not copy.exists():
            self.published.mkdir(parents=True, exist_ok=True, mode=0o755)
            replace_durably(copy, (self.folder / file_name(round_)).read_bytes(), mode=0o644)


def read_transcript_key(path: Path) -> Ed25519PrivateKey:
    """The coordinator's own key.

    Raises TranscriptError: missing, open to others, or not an unencrypted Ed25519 private key in PEM.
    """
    try:
        return read_ed25519_key(path)
    except KeyFileError as error:
        raise TranscriptError(str(error)) from error
