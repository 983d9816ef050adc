"""What must hold of the coordinator's record (`recorded_study`) and the hosts' files, however the clients were killed.

Each check returns a sentence for each thing that is wrong.
"""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from runtime.durable import open_to_read
from tests.crashes.recorded_study import ANSWERS
from tests.support.running_study import ledger_rows
from wire.records.ledger_rows import CHARGE, EXACT, EXCLUDED, LedgerEntry

PROOF = "survivor_proof"
Key = tuple[str, int, int]  # identity, round, attempt


@dataclass
class Record:
    """The facts that the coordinator noted, in order."""

    said: dict[tuple[Key, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    signatures: dict[Key, set[str]] = field(default_factory=lambda: defaultdict(set))
    offers: dict[Key, set[str]] = field(default_factory=lambda: defaultdict(set))
    lives: int = 0  # of the coordinator: one that is started again asks for what it lost
    uploads: dict[Key, list[tuple[int, str | None]]] = field(default_factory=lambda: defaultdict(list))
    uploaded: Counter[tuple[Key, int]] = field(default_factory=Counter)  # in each of its lives
    requests: dict[Key, set[str]] = field(default_factory=lambda: defaultdict(set))
    asked: dict[tuple[Key, str], int] = field(default_factory=lambda: defaultdict(int))
    asked_again: int = 0  # whole attempts, of a client that had lost its keys
    refused: Counter[int] = field(default_factory=Counter)
    events: list[dict[str, Any]] = field(default_factory=list)

    def add(self, fact: dict[str, Any]) -> None:
        """Add a fact."""
        what = fact["what"]
        if what == "event":
            self.events.append(fact)
            return
        key = (fact["who"], fact.get("round", 0), fact.get("attempt", 0))
        if what == "said":
            self.said[key, fact["kind"]][fact.get("sha256", "")] += 1
            if "signature" in fact:
                self.signatures[key].add(fact["signature"])
            if "vector" in fact:
                self.offers[key].add(fact["vector"])
        elif what == "upload":
            self.uploads[key].append((fact["bytes"], fact["vector"]))
            self.uploaded[key, self.lives] += 1
        elif what == "asked":
            self.asked[key, fact["kind"]] += 1
            self.asked_again += fact["again"] and fact["kind"] == "round_start"
            if "request" in fact:
                self.requests[key].add(fact["request"])
        elif what == "refused":
            self.refused[fact["code"]] += 1

    def keys(self, kind: str) -> set[Key]:
        """Return the attempts in which a message of a kind arrived."""
        return {key for key, one in self.said if one == kind}


@dataclass(frozen=True)
class Joined:
    """A row of a client's journal."""

    signed: bytes | None
    answered: bytes | None


@dataclass
class Files:
    """The contents of the clients' files, of all hosts together."""

    joined: dict[Key, Joined] = field(default_factory=dict)
    ledgers: list[list[LedgerEntry]] = field(default_factory=list)

    @classmethod
    def read(cls, places: Iterable[tuple[Path, Path]]) -> Files:
        """Read these (journal, ledger). Raises `runtime.durable.StorageError`: a ledger isn't as it was written."""
        files = cls()
        for journal, ledger in places:
            for identity, round_, attempt, signed, answered in _attempts(journal):
                files.joined[bytes(identity).hex(), round_, attempt] = Joined(signed, answered)
            files.ledgers.append(ledger_rows(ledger))
        return files

    def with_row(self, kind: str) -> set[Key]:
        """Return the attempts with a row of a kind: charged, replaced by the exact cost, or taken back."""
        rows = (row for ledger in self.ledgers for row in ledger if row.kind == kind)
        return {(row.identity or "", row.round, row.attempt) for row in rows}


def _attempts(journal: Path) -> list[tuple[Any, ...]]:
    if not journal.exists():
        return []
    with contextlib.closing(open_to_read(journal)) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]  # none: its making was cut off
        sql = "SELECT identity, round, attempt, signed, answered FROM attempts"
        return connection.execute(sql).fetchall() if tables else []


def one_message_each(record: Record, files: Files) -> list[str]:
    """At most one distinct message of each kind in an attempt; one vector, and that is the one that was offered."""
    wrong = [
        f"{len(digests)} different messages: {_name(key)} {kind}"
        for (key, kind), digests in record.said.items()
        if kind in ANSWERS and len(digests) > 1
    ]
    for key, uploads in record.uploads.items():
        whole = {vector for _, vector in uploads if vector is not None}
        if len(whole | record.offers[key]) > 1:
            wrong.append(f"the vector is not the one that was offered: {_name(key)}")
    return wrong + [f"{many} uploads: {_name(key)}" for (key, _), many in record.uploaded.items() if many > 1]


def joined_before_keys(record: Record, files: Files) -> list[str]:
    """A participant that sent anything in an attempt has recorded that it joined it."""
    heard = {key for key, _ in record.said} | set(record.uploads)
    return [f"not in the journal: {_name(key)}" for key in heard if key not in files.joined]


def charged_before_upload(record: Record, files: Files) -> list[str]:
    """There is a charge wherever an offer or a byte of an upload arrived."""
    sent = record.keys("masked_input") | record.keys("upload") | set(record.uploads)
    return [f"uploaded without a charge: {_name(key)}" for key in sorted(sent - files.with_row(CHARGE))]


def signed_once(record: Record, files: Files) -> list[str]:
    """At most one signed statement in an attempt, and it is the one in the journal."""
    wrong = []
    for key, signatures in record.signatures.items():
        if len(signatures) > 1:
            wrong.append(f"{len(signatures)} different signed statements: {_name(key)}")
        row = files.joined.get(key)
        statement = row and row.signed
        if statement is None:
            wrong.append(f"signed without a statement in the journal: {_name(key)}")
            continue
        for signature in signatures:
            try:
                Ed25519PublicKey.from_public_bytes(bytes.fromhex(key[0])).verify(bytes.fromhex(signature), statement)
            except InvalidSignature:
                wrong.append(f"signed another statement than the journal holds: {_name(key)}")
    return wrong


def answered_once(record: Record, files: Files) -> list[str]:
    """The request's digest is in the journal wherever a reply arrived; the journal holds digests of requests only."""
    replied = record.keys("unmasking") - {key for key, row in files.joined.items() if row.answered is not None}
    wrong = [f"answered without the request's digest in the journal: {_name(key)}" for key in replied]
    for key, row in files.joined.items():
        if row.answered is not None and row.answered.hex() not in record.requests.get(key, set()):
            wrong.append(f"the journal holds the digest of a request that was never sent: {_name(key)}")
    return wrong


def taken_back_if_left_out(record: Record, files: Files) -> list[str]:
    """A charge is taken back only with a proof, and never where its participant signed: signers are in u3."""
    excluded = files.with_row(EXCLUDED)
    wrong = [f"taken back without a proof: {_name(key)}" for key in excluded if (key, PROOF) not in record.asked]
    inside = record.keys("consistency") | record.keys("unmasking")
    return wrong + [f"taken back, and yet in the sum: {_name(key)}" for key in excluded & inside]


def in_order(record: Record, files: Files) -> list[str]:
    """The charges of an identity are in the order of rounds, and of attempts within a round."""
    wrong = []
    for ledger in files.ledgers:
        last: dict[str, tuple[int, int]] = {}
        for row in ledger:
            who, number = row.identity or "", (row.round, row.attempt)
            if row.kind == CHARGE:
                if number <= last.get(who, (0, 0)):
                    wrong.append(f"charged after {last[who]}: {_name((who, *number))}")
                last[who] = number
    return wrong


Check = Callable[[Record, Files], list[str]]
CHECKS: tuple[Check, ...] = (
    one_message_each,
    joined_before_keys,
    charged_before_upload,
    signed_once,
    answered_once,
    taken_back_if_left_out,
    in_order,
)


def all_wrong(record: Record, files: Files) -> dict[str, list[str]]:
    """Return the sentences of each check that found something, by its name."""
    found = {check.__name__: check(record, files) for check in CHECKS}
    return {name: wrong for name, wrong in found.items() if wrong}


def cut_off(record: Record, files: Files) -> dict[str, int]:
    """Count the kills between a durable write and the arrival of the message that waited for it."""
    heard = {kind: record.keys(kind) for kind in (*ANSWERS, "upload")}
    joined = set(files.joined)
    signed = {key for key, row in files.joined.items() if row.signed is not None}
    answered = {key for key, row in files.joined.items() if row.answered is not None}
    charges, exact = files.with_row(CHARGE), files.with_row(EXACT)
    torn = [key for key, uploads in record.uploads.items() if uploads[-1][1] is None]
    return {
        "joined, no keys": len(joined - heard["advertise_keys"]),
        "charged, no offer": len(charges - heard["masked_input"]),
        "charged and offered, no upload": len(heard["masked_input"] - heard["upload"]),
        "upload broken off": len(torn),
        "signed, no signature": len(signed - heard["consistency"]),
        "digest written, no reply": len(answered - heard["unmasking"]),
        "digest written, exact cost not": len(answered - exact),
        "exact cost written, digest not": len(exact - answered),
    }


def _name(key: Key) -> str:
    who, round_, attempt = key
    return f"{who[:8]} round {round_} attempt {attempt}"
