"""Refusals of ``plan`` and ``init`` in the words of their options: what to type instead, and it has been tried."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from runtime.failure import ExitCode, Failure

Again = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Makes the plan with some arguments of ``plan_study`` changed; gives its figures, or raises InfeasiblePlan."""

MOSTLY: Final = 0.5
"""Attempts that may fail by independent dropouts before a plan is refused."""
_MOST_TRIED: Final = 64
_NEARLY: Final = 1.1


def works(again: Again, **changed: Any) -> bool:
    """Whether the plan exists with that changed, and its attempts don't mostly fail."""
    try:
        return bool(again(changed)["abort_probability"] <= MOSTLY)
    except ValueError:  # InfeasiblePlan
        return False


def check_counts(chosen: Mapping[str, Any], again: Again, option: str = "--clients") -> None:
    """How many there are, must survive and must begin, before the noise is looked for.

    Args:
        chosen: ``clients``, ``population``, ``sampling``, ``rounds``, ``max_dropout``, ``adversarial``,
            ``min_survivors`` and ``quorum``, the last two perhaps None.
        again: as above.
        option: that states the clients.

    Raises:
        Failure: they contradict each other.
    """
    from secagg.parameters import (
        FEWEST_COLLUDERS,
        SMALL_COHORT,
        complete_graph_threshold,
        default_min_survivors,
        sharing_colluders,
    )

    clients, survivors, quorum = chosen["clients"], chosen["min_survivors"], chosen["quorum"]
    for name, given in (("--min-survivors", survivors), ("--quorum", quorum)):
        if given is not None and given > clients:
            raise Failure(ExitCode.INPUT, f"{name} {given} exceeds {option} {clients}.")
        if given is not None and given < 1:
            raise Failure(ExitCode.INPUT, f"{name} {given} is out of range. Use 1 to {clients}.")
    colluders = assumed(chosen)
    threshold = complete_graph_threshold(clients, colluders)
    if threshold > clients or colluders >= clients:
        found = next((n for n in range(clients + 1, clients + _MOST_TRIED) if works(again, clients=n)), None)
        raise Failure(
            ExitCode.INFEASIBLE,
            f"{clients} participants are too few: in rosters below {SMALL_COHORT} at least {FEWEST_COLLUDERS} are "
            "assumed to collude",
            None if found is None else f"use {option} {found}",
        )
    if survivors is not None and survivors < threshold:
        least = next((n for n in range(threshold, clients + 1) if works(again, min_survivors=n)), None)
        raise Failure(
            ExitCode.INFEASIBLE,
            f"--min-survivors {survivors} is below the threshold {threshold} of {clients} participants of whom "
            f"{sharing_colluders(clients, colluders)} may collude",
            _fewer_leave(again, chosen["max_dropout"], threshold) if least is None else f"use --min-survivors {least}",
        )
    fewest = default_min_survivors(clients, colluders, chosen["max_dropout"]) if survivors is None else survivors
    if quorum is not None and quorum < fewest:
        default = ", its default here" if survivors is None else ""
        raise Failure(ExitCode.INPUT, f"--quorum {quorum} is below --min-survivors {fewest}{default}. Leave it out.")


def assumed(chosen: Mapping[str, Any]) -> int:
    """A of these arguments, as ``plan_study`` finds it."""
    from secagg.parameters import assumed_colluders, colluders_in_cohort
    from wire.study import cohorts_drawn

    clients, shares = chosen["clients"], (chosen["adversarial"], chosen["max_dropout"])
    if chosen.get("sampling", "none") == "none" or chosen.get("population") is None:
        return assumed_colluders(clients, *shares)
    draws = cohorts_drawn(chosen["sampling"], chosen["rounds"])
    return colluders_in_cohort(chosen["population"], clients, *shares, draws)


def check_aborts(figures: Mapping[str, Any], max_dropout: float, again: Again) -> None:
    """Refuse a plan whose attempts would mostly end without a sum, with a setting that was tried.

    Args:
        figures: of the plan.
        max_dropout: share assumed to leave.
        again: as above.

    Raises:
        Failure: the probability is above one half.
    """
    from sordino.planning.notes import percent

    share = figures["abort_probability"]
    if share <= MOSTLY:
        return
    found = []
    for survivors in range(figures["min_survivors"] - 1, figures["threshold"] - 1, -1):
        if works(again, min_survivors=survivors):
            found.append(f"--min-survivors {survivors}")
            break
    if dropout := _dropout_that_works(again, max_dropout, figures["min_survivors"]):
        found.append(f"--max-dropout {dropout} with --min-survivors {figures['min_survivors']}")
    raise Failure(
        ExitCode.INFEASIBLE,
        f"if {100 * max_dropout:g} % leave, {percent(share)} of the attempts miss min_survivors "
        f"{figures['min_survivors']} of {figures['clients']} and end without a sum",
        "use " + ", or ".join(found) if found else None,
    )


def _dropout_that_works(again: Again, max_dropout: float, survivors: int) -> str:
    """The largest share below ``max_dropout`` with which so many survive often enough; empty if none is."""
    hundredth = int(100 * max_dropout)
    for dropout in (part / 100 for part in range(hundredth, -1, -1 if hundredth <= 30 else -2)):
        if dropout < max_dropout and works(again, max_dropout=dropout, min_survivors=survivors):
            return f"{dropout:g}"
    return ""


def _fewer_leave(again: Again, max_dropout: float, survivors: int) -> str | None:
    dropout = _dropout_that_works(again, max_dropout, survivors)
    return f"use --min-survivors {survivors} with --max-dropout {dropout}" if dropout else None


def in_options(problem: ValueError, chosen: Mapping[str, Any], again: Again) -> Exception:
    """A refusal whose suggestion can be typed, where there is one; else the refusal itself.

    Args:
        problem: an `InfeasiblePlan`.
        chosen: the arguments that it refuses.
        again: as above.
    """
    reason, suggestion = str(getattr(problem, "reason", "")), str(getattr(problem, "suggestion", ""))
    use = ""
    if alone := re.fullmatch(r"(\d+) bits work", suggestion):
        use = f"use --bits {alone[1]}" + _enough_bits(int(alone[1]), chosen["bits"], again)
    elif both := re.fullmatch(r"epsilon (\S+) with (\d+) bits works", suggestion):
        use = f"use --epsilon {both[1]}" + ("" if int(both[2]) == chosen["bits"] else f" --bits {both[2]}")
    elif over := re.match(r"epsilon_(coordinator|released) \S+ after \d+ rounds exceeds its budget", reason):
        use = _larger_budget(over[1], chosen, again)
    elif "fewer rounds" in suggestion and (rounds := _most_rounds(chosen["rounds"], again)):
        use = f"use --rounds {rounds}; or {suggestion}"
    return Failure(ExitCode.INFEASIBLE, reason, use) if use else problem


def _enough_bits(fewest: int, stated: int, again: Again) -> str:
    """From how many bits on the error is within a tenth of the least, if ``fewest`` aren't such."""
    if fewest < stated:  # the grid was too fine already
        return ""
    errors: list[float] = []
    for bits in range(fewest, 63):
        try:
            figures = again({"bits": bits})
        except ValueError:  # InfeasiblePlan
            break
        errors.append(math.sqrt(figures["full_stddev"] ** 2 + figures["clients"] * figures["granularity"] ** 2 / 6))
        if len(errors) > 1 and errors[-1] > 0.995 * errors[-2]:
            break
    enough = next((fewest + at for at, error in enumerate(errors) if error <= _NEARLY * errors[-1]), fewest)
    return "" if enough == fewest else f"; with --bits {enough} the error is within 10 % of the least"


def _larger_budget(reader: str, chosen: Mapping[str, Any], again: Again) -> str:
    found = []
    try:
        planned = again({f"budget_{reader}": None})[f"epsilon_{reader}"]
    except ValueError:  # InfeasiblePlan
        planned = None
    if planned is not None:
        digits = 2 - math.floor(math.log10(planned))
        budget = math.ceil(planned * 10**digits) / 10**digits
        found.append(f"--budget-{reader} {budget:g}")
    rounds = _most_rounds(chosen["rounds"], again)
    if rounds:
        found.append(f"--rounds {rounds}")
    return "use " + ", or ".join(found) if found else ""


def _most_rounds(rounds: int, again: Again) -> int:
    """The most rounds below ``rounds`` that a plan keeps; 0 if none."""

    def kept(fewer: int) -> bool:
        try:
            again({"rounds": fewer})
        except ValueError:  # InfeasiblePlan
            return False
        return True

    low, high = 0, rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low
