"""How a process ends: the exit codes with their remedies in one table, and the one error that carries a code."""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Self


class ExitCode(IntEnum):
    """Exit codes of every verb. The numbers are stable."""

    short: str  # what the code means, in a few words for help pages
    remedy: str  # what to do about it; docs/operations.md has the same table

    def __new__(cls, number: int, short: str = "", remedy: str = "") -> Self:
        member = int.__new__(cls, number)
        member._value_ = number
        member.short, member.remedy = short, remedy
        return member

    OK = 0, "done", "Nothing to do."
    # `bench` against the limits of this machine, `loadtest` and `graph` against the bounds among their options.
    BOUND = 1, "bound broken", "Compare the figure in the message with its bound; run again if the machine was busy."
    INPUT = 2, "bad option, file or input", "Change what the message names and run the command again."
    INFEASIBLE = 3, "infeasible plan", "Use the nearest feasible setting that the message names."
    NETWORK = 4, "port in use or peer not reachable", "Choose another port, or check the address and the peer."
    STUDY = 5, "round failed or study aborted", "If too few answered, raise the deadline or lower min_survivors."
    BUDGET = 40, "privacy budget reached", "The study is over; a new one on this data starts with the budget spent."
    LEDGER = 41, "ledger changed", "Restore it and the files beside it from the newest copy; see docs/ledger.md."
    TRANSCRIPT = 42, "transcript doesn't hold", "Get it again from the coordinator; see docs/transcripts.md."
    AUDIT = 43, "audit found less privacy than claimed", "Run no study, unless noise was divided on purpose."
    INTERNAL = 70, "fault in sordino", "Report it; SORDINO_TRACEBACK=1 shows where it happened."
    INTERRUPTED = 130, "interrupted", "Run the same command again; a study continues where its journal ends."


def listing(*codes: ExitCode) -> str:
    """One line for the end of a help page: the codes that a verb can end with."""
    return "Exit codes: " + ", ".join(f"{int(code)} {code.short}" for code in codes) + "."


class Failure(Exception):
    """The root of every error of ours that ends a command. The cores' errors become one in `sordino.cli.explain`.

    Attributes:
        code: the exit code.
        message: what went wrong and what to change, one sentence.
        suggestion: the nearest thing that works; None where the message already says what to do.
        about: further fields of the JSON object that describes it.
    """

    in_user_code: ClassVar[bool] = False
    """Whether the cause lies in a class that the user wrote, so that its traceback helps the user."""

    def __init__(self, code: ExitCode, message: str, suggestion: str | None = None) -> None:
        # `args` stay as BaseException.__new__ set them, those of the call: a copy in another process is made with them.
        self.code = code
        self.message = message
        self.suggestion = suggestion
        self.about: dict[str, object] = {}

    def __str__(self) -> str:
        return self.message

    def _render_traceback_(self) -> list[str]:
        """What IPython shows: the sentence, and the way there only where that helps."""
        if self.in_user_code:
            from traceback import format_exception

            return format_exception(self)
        return [". ".join(filter(None, (f"{type(self).__name__}: {self.message}", self.suggestion)))]


class InputFailure(Failure):
    """An option, a file or another input can't be used: exit code 2."""

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(ExitCode.INPUT, message, suggestion)


class NetworkFailure(Failure):
    """A port is taken, or the other side can't be reached: exit code 4. Trying again may help."""

    def __init__(self, message: str, suggestion: str | None = None) -> None:
        super().__init__(ExitCode.NETWORK, message, suggestion)
