"""How the command ends: one number for each kind of ending, and what to do about it."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every verb. The numbers are stable."""

    OK = 0
    """Everything that was asked for is done."""
    BOUND = 1
    """A bound that was asked for is broken: `bench` against its limits, `loadtest` against its options."""
    INPUT = 2
    """An option, a settings file or another input can't be used."""
    INFEASIBLE = 3
    """No plan keeps both the privacy budget and the protocol's rules."""
    NETWORK = 4
    """A port is taken, or the other side can't be reached."""
    STUDY = 5
    """A round failed as often as it may, or the study stopped before its last round."""
    BUDGET = 40
    """The privacy budget is spent; no further round is run."""
    LEDGER = 41
    """A privacy ledger isn't what was written: a row was changed, removed, moved, inserted, or its end is missing."""
    TRANSCRIPT = 42
    """A transcript doesn't hold: the message names the first check that fails."""
    AUDIT = 43
    """An audit found less privacy, or less noise, than its plan claims."""
    INTERNAL = 70
    """A fault in sordino itself."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C."""


REMEDY: dict[ExitCode, str] = {
    ExitCode.OK: "Nothing to do.",
    ExitCode.BOUND: "Compare the figure that the message names with the bound; run again if the machine was busy.",
    ExitCode.INTERNAL: "Report it; SORDINO_TRACEBACK=1 shows where it happened.",
    ExitCode.INPUT: "Change what the message names and run the command again.",
    ExitCode.INFEASIBLE: "Use the nearest feasible setting that the message names.",
    ExitCode.NETWORK: "Choose another port, or check the address and that the coordinator runs.",
    ExitCode.STUDY: "Read the reason; raise the deadline or lower min_survivors if too few answered.",
    ExitCode.BUDGET: "The study is over. A new study on the same data starts with the budget already spent.",
    ExitCode.LEDGER: "Restore the ledger and the files beside it from the newest copy; docs/ledger.md says what shows.",
    ExitCode.TRANSCRIPT: "Take the file from whoever wrote it; if that one fails too, docs/transcripts.md says why.",
    ExitCode.AUDIT: "Expected if noise was divided on purpose; otherwise run no study. See docs/audit.md.",
    ExitCode.INTERRUPTED: "Run the same command again; a study goes on where its journal ends.",
}

_SHORT: dict[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.BOUND: "bound broken",
    ExitCode.INTERNAL: "fault in sordino",
    ExitCode.INPUT: "bad option, file or input",
    ExitCode.INFEASIBLE: "infeasible plan",
    ExitCode.NETWORK: "port in use or peer not reachable",
    ExitCode.STUDY: "round failed or study aborted",
    ExitCode.BUDGET: "privacy budget reached",
    ExitCode.LEDGER: "ledger changed",
    ExitCode.TRANSCRIPT: "transcript doesn't hold",
    ExitCode.AUDIT: "audit found less privacy than claimed",
    ExitCode.INTERRUPTED: "interrupted",
}


def listing(*codes: ExitCode) -> str:
    """One line for the end of a help page: the codes that a verb can end with."""
    return "Exit codes: " + ", ".join(f"{int(code)} {_SHORT[code]}" for code in codes) + "."


class Failure(Exception):
    """An ending that isn't OK: the code, one sentence, and perhaps the nearest thing that would work."""

    def __init__(self, code: ExitCode, message: str, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.suggestion = suggestion
