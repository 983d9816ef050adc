"""What ``plan`` and ``init`` say about a plan beyond its numbers: rounds that would mostly fail, a careless delta."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from sordino.exit_codes import ExitCode, Failure

if TYPE_CHECKING:
    from mechanisms.plan import Plan

    Again = Callable[[dict[str, Any]], Plan | Mapping[str, Any]]

MOSTLY: Final = 0.5
OFTEN: Final = 0.05


def check_share(max_dropout: float) -> None:
    """Raises Failure: ``max_dropout`` is no share, perhaps a percentage."""
    if not 0 <= max_dropout < 1:
        raise Failure(ExitCode.INPUT, "--max-dropout is a share between 0 and 1; for 20 % write 0.2.")


def check_aborts(figures: Mapping[str, Any], max_dropout: float, again: Again) -> None:
    """Refuse a plan whose attempts would mostly end without a sum, with a setting that was tried.

    Args:
        figures: of the plan.
        max_dropout: share assumed to leave.
        again: makes the plan with some options changed, or its figures.

    Raises:
        Failure: the probability is above one half.
    """
    share = figures["abort_probability"]
    if share <= MOSTLY:
        return
    raise Failure(
        ExitCode.INFEASIBLE,
        f"if {100 * max_dropout:g} % leave, {percent(share)} of the attempts miss min_survivors "
        f"{figures['min_survivors']} of {figures['clients']} and end without a sum",
        _suggestion(figures, max_dropout, again),
    )


def _suggestion(figures: Mapping[str, Any], max_dropout: float, again: Again) -> str | None:
    from sordino.plan_text import figures_of

    def works(**changed: Any) -> bool:
        try:
            made = again(changed)
            found = made if isinstance(made, Mapping) else figures_of(made)
            return bool(found["abort_probability"] <= MOSTLY)
        except ValueError:  # InfeasiblePlan
            return False

    found = []
    for survivors in range(figures["min_survivors"] - 1, figures["threshold"] - 1, -1):
        if works(min_survivors=survivors):
            found.append(f"--min-survivors {survivors}")
            break
    hundredth = int(100 * max_dropout)
    for dropout in (part / 100 for part in range(hundredth, -1, -1 if hundredth <= 30 else -2)):
        if dropout < max_dropout and works(max_dropout=dropout, min_survivors=figures["min_survivors"]):
            found.append(f"--max-dropout {dropout:g} with --min-survivors {figures['min_survivors']}")
            break
    return "use " + ", or ".join(found) if found else None


def with_fewer_rounds(problem: ValueError, rounds: int, again: Callable[[int], object]) -> Exception:
    """The refusal itself, or, where it names no setting that was tried, one with the most rounds that work.

    Args:
        problem: an `InfeasiblePlan`.
        again: makes the plan with another number of rounds.
    """
    reason, suggestion = str(getattr(problem, "reason", "")), str(getattr(problem, "suggestion", ""))
    if "fewer rounds" not in suggestion or rounds < 2:
        return problem

    def works(fewer: int) -> bool:
        try:
            again(fewer)
        except ValueError:  # InfeasiblePlan
            return False
        return True

    low, high = 0, rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    return Failure(ExitCode.INFEASIBLE, reason, f"use --rounds {low}; or {suggestion}") if low else problem


def notes(figures: Mapping[str, Any], max_dropout: float) -> list[str]:
    """Sentences for a plan that is allowed but may surprise."""
    found = []
    if figures["abort_probability"] > OFTEN:
        found.append(
            f"Note: if everybody left independently with probability {max_dropout:g}, "
            f"{percent(figures['abort_probability'])} of the attempts would end without a sum."
        )
    if figures["delta"] > 1 / figures["clients"]:
        found.append(
            f"Note: delta {figures['delta']:g} is above 1/participants = {1 / figures['clients']:.2g}: the guarantee "
            "may fail for somebody. Choose it far below."
        )
    return found


def percent(share: float) -> str:
    """``45 %``, ``0.11 %``, and tiny shares as they are."""
    if 0 < share < 1e-4:
        return f"{share:.1e}"
    shown = 100 * share
    return f"{shown:.0f} %" if shown >= 10 else f"{shown:.2g} %"
