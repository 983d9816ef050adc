"""Charges that the ledger holds, counted again when the coordinator starts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mechanisms.accounting import Account, RoundCharge, UnknownEvent
from wire.records.ledger import ChangedLedger, Row
from wire.records.ledger_rows import LedgerEntry

_ROUNDING: Final = 1e-9  # by how much two machines may disagree on a Renyi cost


def charge_of(entry: LedgerEntry) -> RoundCharge:
    """A row as the account knows it."""
    return RoundCharge(entry.round, entry.attempt, frozenset(entry.participants or ()), entry.plan)


def count_row(account: Account, row: Row, ledger: Path) -> None:
    """A charge of an earlier run.

    Args:
        ledger: where it is written, for the error.

    Raises:
        ChangedLedger: it is not a charge of this plan, or a lower one than the plan asks for.
    """
    try:
        account.charge(charge_of(row.entry))
    except UnknownEvent as error:
        raise ChangedLedger(ledger, f"row {row.number}: {error}", row.number) from error
    least = account.cost_of_round(len(row.entry.participants or ()))
    if row.entry.cost < least * (1 - _ROUNDING):
        raise ChangedLedger(
            ledger, f"row {row.number} charges {row.entry.cost:.6g}, the plan asks for {least:.6g}", row.number
        )
