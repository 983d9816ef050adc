"""Why a study ends: what the coordinator tells participants, and what a simulation ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from runtime.failure import ExitCode

ROUNDS_DONE: Final = "rounds done"
BUDGET_REACHED: Final = "budget reached"
NO_BETTER: Final = "no better model"
STOPPED: Final = "stopped"
ABORTED: Final = "round aborted"
OVER: Final = (ROUNDS_DONE, BUDGET_REACHED, NO_BETTER)
"""After these no participant is expected again."""
EXIT_CODES: Final[Mapping[str, ExitCode]] = {
    ROUNDS_DONE: ExitCode.OK,
    NO_BETTER: ExitCode.OK,
    BUDGET_REACHED: ExitCode.BUDGET,
    ABORTED: ExitCode.STUDY,
}
