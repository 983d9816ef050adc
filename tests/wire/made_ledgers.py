"""Rows and ledgers that tests are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wire.records.ledger import COORDINATOR, About, Ledger
from wire.records.ledger_rows import CHARGE, LedgerEntry

STUDY, OTHER = "aa" * 32, "bb" * 32
ABOUT = About(COORDINATOR, "seven", STUDY)
ROWS = 5


def entry(round_: int, attempt: int = 1, **changes: Any) -> LedgerEntry:
    values: dict[str, Any] = {
        **{"at": 1_700_000_000.25 + round_, "study": "seven", "study_sha256": STUDY, "plan": "cc" * 32},
        **{"round": round_, "attempt": attempt, "kind": CHARGE, "participants": (0, 1, 3, 4, 6), "identity": None},
        **{"data": "", "adjacency": "zero-out", "mechanism": "ddgauss", "colluders": 2, "honest": 3},
        **{"sampling": "none", "rate": 1.0, "epsilon": 8.0, "delta": 1e-5, "draws": 5 * 1024},
        **{"order": 7.25, "cost": 0.1 * round_, "curve": ((2.0, 0.03), (4.0, 0.1 / 3))},
    }
    return LedgerEntry(**values | changes)


def own_row(round_: int, who: str = "11" * 32, attempt: int = 1, **changes: Any) -> LedgerEntry:
    return entry(round_, attempt, **{"participants": None, "identity": who, "data": who, **changes})


def open_(path: Path, about: About = ABOUT, *, create: bool = True) -> Ledger:
    return Ledger(path, about, create=create)


def fill(path: Path, rounds: range = range(1, ROWS + 1)) -> None:
    ledger = open_(path)
    for round_ in rounds:
        ledger.append(entry(round_)).result()
    ledger.close()
