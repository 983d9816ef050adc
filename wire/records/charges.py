"""What a study has spent: the charges of its ledger, counted by the accountant."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from mechanisms.accounting import Account, RoundCharge, UnknownEvent
from wire.records.ledger import ChangedLedger, Row
from wire.records.ledger_rows import LedgerEntry, make_entry
from wire.study import StudyDocument

_ROUNDING: Final = 1e-9  # by how much two machines may disagree on a Renyi cost


class Charges:
    """The charges of one study. Its methods compute, and are not for the event loop."""

    def __init__(self, document: StudyDocument, *, cohorts_are_public: bool) -> None:
        """Args: cohorts_are_public: transcripts are or were published, so that drawing hides no participation."""
        self.account = Account(document.plan)
        self.refused: set[int] = set()
        """Participants, by number, that said that one more round would pass the study's budget by their own ledgers."""
        self._document, self._cohorts_are_public = document, cohorts_are_public
        self._study_sha256 = hashlib.sha256(document.to_bytes()).digest()

    @property
    def exhausted(self) -> bool:
        """Whether one more round could pass the budget, whoever is in it."""
        return self.account.would_exceed()

    def only_said(self) -> frozenset[int]:
        """Numbers of those among `spent` of which this ledger doesn't say so."""
        return frozenset(self.refused) - self.account.spent()

    def spent(self) -> frozenset[int]:
        """Numbers of the participants that one more round could take beyond the budget.

        A participant may have been charged for an attempt that this ledger was never charged for, since it ended before
        its sum could be opened.
        """
        drawn = self.account.spent() if self._document.plan.drawn else frozenset()
        return drawn | self.refused

    def entry(self, round_: int, attempt: int, participants: Iterable[int]) -> LedgerEntry:
        """What the ledger will say of an attempt. Args: participants in its sum, by number."""
        return make_entry(
            self._document.plan,
            study=self._document.study,
            study_sha256=self._study_sha256,
            round=round_,
            attempt=attempt,
            participants=sorted(participants),
        )

    def count(self, row: Row) -> None:
        """Count a charge once the ledger holds it; raises `UnknownEvent` where it isn't one of this plan."""
        entry = row.entry
        charge = RoundCharge(entry.round, entry.attempt, frozenset(entry.participants or ()), entry.plan)
        self.account.charge(charge)

    def restore(self, rows: Iterable[Row], ledger: Path) -> None:
        """Count the charges of earlier runs.

        ``ledger``: where they are written, for the error.

        Raises ChangedLedger: one is not a charge of this plan, or lower than the plan's price.
        """
        for row in rows:
            try:
                self.count(row)
            except UnknownEvent as error:
                raise ChangedLedger(ledger, f"row {row.number}: {error}", row.number) from error
            least = self.account.cost_of_round(len(row.entry.participants or ()))
            if row.entry.cost < least * (1 - _ROUNDING):
                reason = f"row {row.number} charges {row.entry.cost:.6g}, the plan asks for {least:.6g}"
                raise ChangedLedger(ledger, reason, row.number)

    def epsilons(self) -> dict[str, Any]:
        """``epsilon_coordinator`` and ``epsilon_released``, spent so far.

        Readers of published transcripts know the cohorts: then sampling hides them from no reader.
        """
        coordinator = self.account.epsilon_coordinator()
        released = coordinator if self._cohorts_are_public else self.account.epsilon_released()
        return {"epsilon_coordinator": coordinator, "epsilon_released": released}
