"""Rounds run in memory by the real protocol phases, and their transcripts."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mechanisms.plan import Plan
from secagg.context import RoundConfig
from secagg.in_memory import InMemoryAttempt
from secagg.keys import IdentityKey
from secagg.lottery import Draws
from secagg.messages import MASKED_INPUT, SHARE_KEYS
from secagg.roster import Roster, RosterEntry, sign_roster
from secagg.server_unmasking import Completed, Unmasking
from tests.support.attempts_in_memory import authority, identities, keyed_source, vector_of
from wire.authority_statements import Card, sign_card
from wire.certificates import CertificateAuthority
from wire.records.ledger import Row, row_hash
from wire.records.ledger_rows import LedgerEntry, make_entry
from wire.records.transcript import Transcript, sign_transcript, transcript_of, write_transcript
from wire.roster_history import NewestRoster, sign_newest
from wire.study import StudyDocument, plan_study, round_parameters

STUDY = "on-record"
MOST = 20  # identities there are
AUTHORITY_KEY = authority().public_key().public_bytes_raw()


@cache
def coordinator_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(keyed_source("coordinator")(32))


@cache
def tls_ca() -> bytes:
    """Return a certificate; nothing in a transcript depends on its content."""
    return CertificateAuthority.make("test", datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)).pem


def card(study: str = STUDY, key: Ed25519PrivateKey | None = None, signer: Ed25519PrivateKey | None = None) -> bytes:
    signer = signer or authority()
    public = (key or coordinator_key()).public_key().public_bytes_raw()
    return sign_card(
        Card(study, signer.public_key().public_bytes_raw(), tls_ca(), public, "coordinator.example:8443"), signer
    )


@cache
def plan(clients: int = 7, mechanism: str = "ddgauss", **others: Any) -> Plan:
    chosen: dict[str, Any] = {
        **{"dim": 8, "bits": 16, "clip": 1.0, "epsilon": 100.0, "delta": 1e-3, "rounds": 5},
        **{"max_dropout": 0.3, "adversarial": 0.1, "min_survivors": 5 * clients // 7},
    }
    return plan_study(mechanism=mechanism, clients=clients, **(chosen | others))


@dataclass(frozen=True)
class Setting:
    """The basis of a study's rounds; ``members`` are positions in `identities`, those on the roster."""

    members: tuple[int, ...]
    plan: Plan
    version: int = 1
    study: str = STUDY
    draws: Draws | None = None
    roster_valid_s: int = 600

    @property
    def keys(self) -> list[IdentityKey]:
        known = identities(max(MOST, len(self.members)))
        return [known[who] for who in self.members]

    @property
    def roster(self) -> Roster:
        entries = sorted(
            (RosterEntry(key.public, f"host-{i}") for i, key in enumerate(self.keys)), key=lambda one: one.identity
        )
        terms = hashlib.sha256(self.document).digest()
        return Roster(self.study, self.version, tuple(entries), self.draws and self.draws.lottery, terms)

    @property
    def roster_file(self) -> bytes:
        return sign_roster(self.roster, authority())

    @property
    def document(self) -> bytes:
        terms = StudyDocument(
            study=self.study, task="synthetic", task_options={}, plan=self.plan, roster_valid_s=self.roster_valid_s
        )
        return terms.to_bytes()

    @property
    def newest(self) -> bytes:
        """The authority's statement, where the study asks for one."""
        one = self.roster
        newest = NewestRoster(one.study, one.version, one.digest(), one.terms, 1000, 1000 + self.roster_valid_s)
        return sign_newest(newest, authority()) if self.roster_valid_s else b""

    def config(self, round_: int = 1, attempt: int = 1, model: bytes = b"m" * 32) -> RoundConfig:
        return RoundConfig(
            roster=self.roster,
            round=round_,
            attempt=attempt,
            study_digest=hashlib.sha256(self.document).digest(),
            model_digest=model,
            parameters=round_parameters(self.plan),
            ticket=self.draws and self.draws.ticket(round_),
            newest=self.newest,
        )


def whole(count: int = 7, **others: Any) -> Setting:
    """The whole roster takes part."""
    return Setting(tuple(range(count)), others.pop("plan", None) or plan(count), **others)


def ring(count: int = 64, **others: Any) -> Setting:
    """A cohort large enough for a ring, each member with eight neighbours; two may leave."""
    chosen = plan(count, graph="harary", max_dropout=0.01, adversarial=0.04, min_survivors=count - 2, **others)
    return whole(count, plan=chosen)


def drawn(cohort: int = 7, population: int = 20, **others: Any) -> Setting:
    """Seven of twenty are drawn."""
    chosen = plan(cohort, sampling="lottery", population=population, adversarial=0.0, **others)
    draws = Draws.draw(STUDY, 1, chosen.rounds, keyed_source("lottery"))
    return Setting(tuple(range(population)), chosen, draws=draws)


@dataclass
class Ledger:
    """The coordinator's chain of charges, without its file."""

    rows: int = 0
    head: bytes = b"beginning of the ledger, 32 long"

    def charge(self, entry: LedgerEntry) -> Row:
        before, self.rows = self.head, self.rows + 1
        self.head = row_hash(before, self.rows, entry.to_bytes())
        return Row(self.rows, before, self.head, entry)


def entry_of(setting: Setting, round_: int, attempt: int, numbers: Iterable[int], **changed: Any) -> LedgerEntry:
    entry = make_entry(
        setting.plan,
        study=setting.study,
        study_sha256=hashlib.sha256(setting.document).digest(),
        round=round_,
        attempt=attempt,
        participants=numbers,
        clock=lambda: 1.0,
    )
    return replace(entry, **changed)


@dataclass(frozen=True)
class Finished:
    """What the coordinator has at the end of an attempt."""

    setting: Setting
    config: RoundConfig
    unmasking: Unmasking
    signatures: tuple[tuple[int, bytes], ...]  # the unmasking request
    completed: Completed

    def transcript(self, row: Row | None = None, **changed: Any) -> Transcript:
        """Make it without the fields of the opened sum, and unsigned."""
        config = self.config
        chosen: dict[str, Any] = {
            "card": card(self.setting.study),
            "roster": self.setting.roster_file,
            "study": self.setting.document,
            "config": config,
            "advertisements": self.unmasking.cohort.advertisements,
            "u2": self.unmasking.u2,
            "u3": self.unmasking.u3,
            "signatures": self.signatures,
            "row": row or Ledger().charge(entry_of(self.setting, config.round, config.attempt, self.unmasking.u3)),
        }
        return transcript_of(**(chosen | changed))

    def write(self, row: Row | None = None, *, previous: bytes | None = None, **changed: Any) -> bytes:
        """Make the file; the next model's digest is that of the round's number."""
        bare = self.setting.plan.mechanism == "gaussian"
        return write_transcript(
            self.transcript(row, **changed),
            coordinator_key(),
            sum_sha256=None if bare else hashlib.sha256(self.completed.total.tobytes()).digest(),
            next_model_sha256=model_after(self.config.round),
            previous=previous,
        )


def model_after(round_: int) -> bytes:
    return hashlib.sha256(b"model %d" % round_).digest()


def key_of(config: RoundConfig, participant: int) -> IdentityKey:
    known = {key.public: key for key in identities(max(MOST, len(config.roster)))}
    return known[config.roster.identity(participant)]


def play(
    setting: Setting,
    round_: int = 1,
    attempt: int = 1,
    *,
    absent: Iterable[int] = (),
    silent: Iterable[int] = (),
    late: Iterable[int] = (),
    model: bytes | None = None,
) -> Finished:
    """Run a whole attempt by the phases of both sides.

    Args:
        absent: don't advertise: not in u1.
        silent: don't deal: in u1, not in u2.
        late: don't upload: in u2, not in u3.
    """
    config = setting.config(round_, attempt, model or (model_after(round_ - 1) if round_ > 1 else b"m" * 32))
    source = keyed_source(f"play {config.round_context().hex()}")
    played = InMemoryAttempt(
        config,
        {who: key_of(config, who) for who in sorted(config.invited - set(absent))},
        lambda _: source,
        lambda who: vector_of(who, config.parameters),
        leaving={SHARE_KEYS: set(silent), MASKED_INPUT: set(late)},
    )
    completed = played.run()
    signatures = next(iter(played.messages.values())).signatures if config.parameters.signed else ()
    return Finished(setting, config, played.coordinator, signatures, completed)


def study_of(setting: Setting, rounds: Iterable[int]) -> list[bytes]:
    """Make transcripts of several rounds, each naming the one before."""
    ledger, files, previous = Ledger(), list[bytes](), None
    for round_ in rounds:
        finished = play(setting, round_)
        row = ledger.charge(entry_of(setting, round_, 1, finished.unmasking.u3))
        files.append(finished.write(row, previous=previous))
        previous = hashlib.sha256(files[-1]).digest()
    return files


def signed(transcript: Transcript, key: Ed25519PrivateKey | None = None) -> bytes:
    """Sign a transcript as a lying coordinator would."""
    return sign_transcript(transcript, key or coordinator_key()).data
