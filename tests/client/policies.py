"""A study and a policy that fit each other, for tests that then change one thing."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from client.settings import Coordinator, Data, Host, HostSettings, Policy, Study
from mechanisms.plan import Plan
from wire.records.ledger_rows import LedgerEntry, make_entry
from wire.records.ledger_totals import Totals
from wire.study import StudyDocument, plan_study

ME, OTHER = b"\x11" * 32, b"\x22" * 32
OPTIONS = {"batch_size": 20, "learning_rate": 0.1}
NOON = 1_800_000_000.0  # some moment; only differences count


@lru_cache
def plan(mechanism: str = "ddgauss", rounds: int = 4, epsilon: float = 8.0, clients: int = 20, **others: Any) -> Plan:
    """20 participants, two of whom collude, ten honest survivors."""
    return plan_study(
        mechanism=mechanism,
        clients=clients,
        dim=64,
        bits=16,
        clip=1.0,
        epsilon=epsilon,
        delta=1e-5,
        rounds=rounds,
        max_dropout=0.2,
        adversarial=0.1,
        **others,
    )


def document(name: str = "clinic", of: Plan | None = None) -> StudyDocument:
    options: dict[str, Any] = {"task": "softmax-regression", "task_options": OPTIONS}
    return StudyDocument(study=name, **options, plan=of or plan(), roster_valid_s=168 * 3600)


def sha256(of: StudyDocument) -> bytes:
    return hashlib.sha256(of.to_bytes()).digest()


def policy(**changes: Any) -> Policy:
    """What such a study just keeps to."""
    least = Policy(
        max_epsilon=8.0, max_delta=1e-5, mechanism=None, min_honest_survivors=10, min_colluders=2, one_machine=False
    )
    return replace(least, **changes)


def settings(of: Policy | None = None, **study: Any) -> HostSettings:
    """host.toml of a host that joined `document`'s study."""
    nowhere = Path("nowhere")
    values = {"name": "clinic", "authority_public_key": "ab" * 32, "task": "softmax-regression"} | study
    return HostSettings(
        host=Host("host-01", nowhere, nowhere),
        study=Study(**values),
        coordinator=Coordinator("localhost:1", nowhere, 1.0, nowhere, nowhere, ""),
        task=dict(OPTIONS),
        data=Data("fashion-mnist-subset", "iid", 1.0, 1, 1),
        policy=of or policy(),
        participants=(),
    )


def charge(
    of: StudyDocument,
    round_: int,
    attempt: int = 1,
    *,
    who: bytes = ME,
    data: str = "",
    at: float = NOON,
    **changes: Any,
) -> LedgerEntry:
    """A row of a participant's ledger, at h_min; by default each identity has its own data."""
    row = make_entry(
        of.plan,
        study=of.study,
        study_sha256=sha256(of),
        round=round_,
        attempt=attempt,
        identity=who,
        data=data or who.hex(),
        clock=lambda: at,
    )
    return replace(row, **changes)


def totals(*rows: LedgerEntry) -> Totals:
    found = Totals()
    for row in rows:
        found.add(row)
    return found
