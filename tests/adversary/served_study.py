"""The studies of the suite, and what their coordinators serve."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from learning.make_task import make_task
from learning.parameters import flatten
from secagg.parameters import HYBRID, X25519
from secagg.roster import Roster, verify_roster
from server.opening import open_study
from server.session_port import read_certificate
from server.study_file import load
from tests.support.study_in_process import with_tables
from wire.round_model import write_model
from wire.study import StudyDocument

SYNTHETIC = {
    **{"key_agreement": X25519, "task": "synthetic", "task_options": {"dim": 12}},
    **{"epsilon": 8.0, "delta": 1e-3, "rounds": 12},
}


def study_of(participants: int, quorum: int, **others: Any) -> dict[str, Any]:
    return {"participants": participants, "min_survivors": quorum, "quorum": quorum, **SYNTHETIC, **others}


STUDIES: dict[str, dict[str, Any]] = {
    # With nine, of which two collude, the threshold is 6: the smallest cohort with room for every attack.
    "nine": study_of(9, 6),
    "strict": study_of(9, 8),
    "three": study_of(9, 6, rounds=3),
    "weaker": study_of(9, 6, name="strict"),
    # The ring of tests/support/small_rings.py: 14, of which 4 collude; "looser" allows more dropouts than its degree.
    "ring": study_of(14, 13, adversarial=0.3),
    "looser": study_of(14, 10, adversarial=0.3),
    "hybrid": study_of(9, 6, key_agreement=HYBRID),
    "dealt": study_of(18, 8, sampling="epochs", cohort=9, population=18, rounds=4),
    "drawn": study_of(14, 8, sampling="lottery", cohort=9, population=14, rounds=3),
}


@dataclass
class Public:
    """What a study's coordinator serves, and its credentials."""

    folder: Path
    document: StudyDocument
    study_bytes: bytes
    roster: Roster
    roster_bytes: bytes
    model: bytes
    credentials: grpc.ServerCredentials

    @property
    def study_sha256(self) -> bytes:
        return hashlib.sha256(self.study_bytes).digest()


_public: dict[Path, Public] = {}


def public_of(folder: Path, **tables: dict[str, Any]) -> Public:
    """Read, once, what an honest coordinator would serve from this folder."""
    if folder not in _public:
        overrides = {"coordinator": {"state": folder / "read-once.sqlite"}, **tables}
        configuration = with_tables(load(folder), overrides)
        study, journal = open_study(configuration)
        study.close()
        journal.close()
        roster_bytes = configuration.coordinator.roster.read_bytes()
        document = study.terms
        task = make_task(document.task, dict(document.task_options))
        rule = document.plan.clipping
        model = write_model(flatten(task.initial_parameters()), rule.clips, rule)
        roster = verify_roster(roster_bytes, configuration.read_authority_public_key())
        _public[folder] = Public(
            folder,
            document,
            document.to_bytes(),
            roster,
            roster_bytes,
            model,
            read_certificate(configuration.coordinator).credentials(),
        )
    return _public[folder]
