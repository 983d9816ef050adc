"""What an authority publishes with a roster: the statement that it is the newest, and the history."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secagg.roster import Roster, RosterHead, sign_roster, verify_roster
from server.study_file import load
from tests.support.card_of_a_study import authority_of
from wire.authority_statements import Package
from wire.roster_history import HISTORY_FILE, NEWEST_FILE, NewestRoster, read_history, sign_newest, write_history


def published(
    roster: Roster,
    key: Ed25519PrivateKey,
    before: Iterable[RosterHead] = (),
    *,
    lottery: bytes | None = None,
    answers: Iterable[bytes] = (),
    signed: float | None = None,
    valid_s: float = 3600.0,
) -> Package:
    at = int(time.time() if signed is None else signed)
    newest = NewestRoster(roster.study, roster.version, roster.digest(), roster.terms, at, at + round(valid_s))
    history = write_history([*before, roster.head])
    return Package(sign_roster(roster, key), sign_newest(newest, key), history, lottery, tuple(answers))


def put(folder: Path, roster: Roster, key: Ed25519PrivateKey, **more: float) -> None:
    """Replace a study's roster, as an operator who carries files does; the history goes on where it follows."""
    file = folder / HISTORY_FILE
    heads = read_history(file.read_bytes()) if file.exists() else ()
    before = [head for head in heads if head.version < roster.version]
    package = published(roster, key, before if before and before[-1].digest() == roster.previous else (), **more)
    file.write_bytes(package.history_file)
    (folder / NEWEST_FILE).write_bytes(package.newest_file)
    (folder / "roster.json").write_bytes(package.roster_file)


def sign_terms(folder: Path) -> None:
    """Sign what study.toml says now."""
    configuration, key = load(folder), authority_of(folder)
    roster = verify_roster((folder / "roster.json").read_bytes(), key.public_key().public_bytes_raw())
    put(folder, replace(roster, terms=configuration.document(len(roster)).digest()), key)
