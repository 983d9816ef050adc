"""Refusals of ``plan`` and ``init`` in the words of their options: what to type instead, and it has been tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mechanisms.refusals import InfeasiblePlan
from mechanisms.statement import GAUSSIAN, POISSON
from runtime.failure import ExitCode, Failure, InputFailure
from runtime.text import counted
from secagg.parameters import (
    FEWEST_COLLUDERS,
    SMALL_COHORT,
    assumed_colluders,
    colluders_in_cohort,
    complete_graph_threshold,
    default_min_survivors,
    probability_below,
    sharing_colluders,
)
from sordino.planning.alternatives import error_variance
from sordino.planning.notes import percent, smallest
from sordino.planning.plan_figures import PlanFigures
from wire.guarantee import OUTWEIGHS, outweighs
from wire.study import cohorts_drawn

if TYPE_CHECKING:
    from server.study_file import StudyConfiguration

Again = Callable[[dict[str, Any]], PlanFigures]
"""Makes the plan with some arguments of ``plan_study`` changed; gives its figures, or raises InfeasiblePlan."""

MOSTLY: Final = 0.5  # attempts that may fail by independent dropouts before a plan is refused
_MOST_TRIED: Final = 64
_NEARLY: Final = 1.1
_LEARNS: Final = OUTWEIGHS / 4
_MOST_CLIENTS: Final = 100_000
_LARGEST_EPSILON: Final = 20.0
_SMALLEST_MODEL: Final = 20


def _made(again: Again, **changed: Any) -> PlanFigures | None:
    """The figures of the plan with that changed; None if there is no such plan."""
    try:
        return again(changed)
    except ValueError:  # InfeasiblePlan
        return None


def works(again: Again, **changed: Any) -> bool:
    """Whether the plan exists with that changed, and its attempts don't mostly fail."""
    figures = _made(again, **changed)
    return figures is not None and figures.abort_probability <= MOSTLY


def _keeps(again: Again, clients: int, dropout: float, survivors: int, **changed: float) -> bool:
    """`works` with that many ``min_survivors``. Of most that are tried the attempts alone rule a plan out, at once."""
    enough = probability_below(clients, dropout, survivors) <= MOSTLY
    return enough and works(again, min_survivors=survivors, **changed)


def check_counts(chosen: Mapping[str, Any], again: Again, option: str = "--clients", more: str | None = None) -> None:
    """Check clients, min_survivors and quorum against each other, before the noise is computed.

    Args:
        chosen: ``clients``, ``population``, ``sampling``, ``rounds``, ``max_dropout``, ``adversarial``,
            ``min_survivors`` and ``quorum``, the last two perhaps None.
        option: that states the clients.
        more: how to have {} of them, where not by that option.

    Raises Failure: they contradict each other.
    """
    clients, survivors, quorum = chosen["clients"], chosen["min_survivors"], chosen["quorum"]
    for name, given in (("--min-survivors", survivors), ("--quorum", quorum)):
        if given is not None and given > clients:
            raise InputFailure(f"{name} {given} exceeds {option} {clients}.")
        if given is not None and given < 1:
            raise InputFailure(f"{name} {given} is out of range. Use 1 to {clients}.")
    colluders = assumed(chosen)
    threshold = complete_graph_threshold(clients, colluders)
    if threshold > clients or colluders >= clients:
        found = next((n for n in range(clients + 1, clients + _MOST_TRIED) if works(again, clients=n)), None)
        raise Failure(
            ExitCode.INFEASIBLE,
            f"{counted(clients, 'participant')} {'is' if clients == 1 else 'are'} too few: in rosters below "
            f"{SMALL_COHORT} at least {FEWEST_COLLUDERS} are assumed to collude",
            None if found is None else "use " + (more or f"{option} {{}}").format(found),
        )
    if survivors is not None and survivors < threshold:
        dropout = chosen["max_dropout"]
        least = next((n for n in range(threshold, clients + 1) if _keeps(again, clients, dropout, n)), None)
        instead = "" if least is None else f"--min-survivors {least}"
        if least is None and (fewer := _dropout_that_works(again, clients, dropout, threshold)):
            instead = f"--min-survivors {threshold} with --max-dropout {fewer}"
        raise Failure(
            ExitCode.INFEASIBLE,
            f"--min-survivors {survivors} is below the threshold {threshold} of {clients} participants of whom "
            f"{sharing_colluders(clients, colluders)} may collude",
            f"use {instead}" if instead else None,
        )
    fewest = default_min_survivors(clients, colluders, chosen["max_dropout"]) if survivors is None else survivors
    if quorum is not None and quorum < fewest:
        default = ", its default here" if survivors is None else ""
        raise InputFailure(f"--quorum {quorum} is below --min-survivors {fewest}{default}. Leave it out.")


def assumed(chosen: Mapping[str, Any]) -> int:
    """A of these arguments, as ``plan_study`` finds it."""
    clients, shares = chosen["clients"], (chosen["adversarial"], chosen["max_dropout"])
    if chosen.get("sampling", "none") == "none" or chosen.get("population") is None:
        return assumed_colluders(clients, *shares)
    draws = cohorts_drawn(chosen["sampling"], chosen["rounds"])
    return colluders_in_cohort(chosen["population"], clients, *shares, draws)


def check_aborts(figures: PlanFigures, chosen: Mapping[str, Any], again: Again) -> None:
    """Refuse a plan whose attempts would mostly end without a sum, with a setting that was tried.

    ``chosen`` is as of `check_counts`.

    Raises Failure: the probability is above one half.
    """
    share, max_dropout = figures.abort_probability, figures.max_dropout
    if share <= MOSTLY or (figures.mechanism, figures.sampling) == (GAUSSIAN, POISSON):  # any number makes a sum
        return
    found = []
    for survivors in range(figures.min_survivors - 1, figures.threshold - 1, -1):
        if _keeps(again, figures.clients, max_dropout, survivors):
            found.append(f"--min-survivors {survivors}")
            break
    if dropout := _dropout_that_works(again, figures.clients, max_dropout, figures.min_survivors):
        found.append(f"--max-dropout {dropout} with --min-survivors {figures.min_survivors}")
    if chosen["min_survivors"] is None and (fewer := _adversarial_that_works(chosen, again)):
        found.append(f"--adversarial {fewer}")
    raise Failure(
        ExitCode.INFEASIBLE,
        f"if {100 * max_dropout:g} % leave, {percent(share)} of the attempts miss min_survivors "
        f"{figures.min_survivors} of {figures.clients} and end without a sum",
        "use " + ", or ".join(found) if found else None,
    )


def _dropout_that_works(again: Again, clients: int, max_dropout: float, survivors: int) -> str:
    """The largest share below ``max_dropout`` with which this number survives often enough; empty if none."""
    hundredth = int(100 * max_dropout)
    for dropout in (part / 100 for part in range(hundredth, -1, -1 if hundredth <= 30 else -2)):
        if dropout < max_dropout and _keeps(again, clients, dropout, survivors, max_dropout=dropout):
            return f"{dropout:g}"
    return ""


def _adversarial_that_works(chosen: Mapping[str, Any], again: Again) -> str:
    """The largest smaller share of colluders whose default min_survivors is reached often enough; empty if none."""
    clients, dropout = chosen["clients"], chosen["max_dropout"]
    for share in (part / 100 for part in range(math.ceil(100 * chosen["adversarial"]) - 1, -1, -1)):
        survivors = default_min_survivors(clients, assumed({**chosen, "adversarial": share}), dropout)
        if probability_below(clients, dropout, survivors) <= MOSTLY and works(again, adversarial=share):
            return f"{share:g}"
    return ""


def check_plan(
    chosen: Mapping[str, Any], again: Again, option: str = "--clients", more: str | None = None
) -> PlanFigures:
    """Make a plan and return its figures, or refuse it in the words of the options, with what to type instead.

    Arguments are as of `check_counts`; ``chosen`` has ``bits``, too.

    Raises Failure: counts that contradict each other, a budget that no plan keeps where a change helps, or attempts of
    which most would end without a sum; InfeasiblePlan: no plan, and no change is known that helps.
    """
    check_counts(chosen, again, option, more)
    try:
        figures = again({})
    except InfeasiblePlan as problem:
        use = _instead(problem, chosen, again)
        if not use:
            raise
        raise Failure(ExitCode.INFEASIBLE, problem.reason, use) from None
    check_aborts(figures, chosen, again)
    return replace(figures, learns_with=_learns_with(figures, again, more or f"{option} {{}}"))


def _learns_with(figures: PlanFigures, again: Again, more: str) -> list[str]:
    """The nearest number of participants (in the words ``more``) and epsilon, both tried, and size of a model, under
    which one learns.
    """
    if not outweighs(figures.noise_norm, figures.rounds):
        return []
    excess, found = figures.noise_norm / math.sqrt(figures.rounds) / _LEARNS, []

    def learns(**changed: float) -> bool:
        made = _made(again, **changed)
        return made is not None and made.noise_norm <= 1.01 * _LEARNS * math.sqrt(made.rounds)

    clients = _two_digits(1.1 * figures.clients * excess)
    if figures.sampling == "none" and clients <= _MOST_CLIENTS:
        for bits in range(figures.bits, figures.bits + 9, 2):
            if learns(clients=clients, bits=bits):
                found.append(more.format(clients) + (f" --bits {bits}" if bits > figures.bits else ""))
                break
    for step in range(1, 25):
        epsilon = float(f"{figures.epsilon * 1.25**step:.2g}")
        if epsilon > _LARGEST_EPSILON:
            break
        if learns(epsilon=epsilon):
            found.append(f"--epsilon {epsilon:g}")
            break
    if (values := _two_digits(figures.dim / excess**2, up=False)) >= _SMALLEST_MODEL:
        found.append(f"a model of about {values:,} values")
    return found


def _two_digits(value: float, *, up: bool = True) -> int:
    step: int = 10 ** max(0, math.floor(math.log10(max(value, 1))) - 1)
    return max(1, step * (math.ceil(value / step) if up else math.floor(value / step)))


def check_study(
    study: StudyConfiguration,
    changed: Callable[..., StudyConfiguration],
    enrol: int = 0,
    more: str | None = None,
    **others: Any,
) -> PlanFigures:
    """`check_plan` for a study, with the options of ``init`` and ``simulate``.

    Args:
        study: ``min_survivors`` and ``quorum`` as they were given: None where they weren't.
        changed: the study with other values, by flat name, participants among them.
        enrol: places among its participants for those who join with a code.
        more: how to have {} participants, where not by an option.
        others: further arguments of `wire.study.plan_study`, for plans that aren't served.
    """
    from sordino.planning.text import figures_of

    # What a plan calls clients are the participants of one round.
    counted, option = "participants", "--participants"
    privacy = study.privacy
    if privacy.sampling != "none":
        counted, option = "cohort", "--cohort"
    elif enrol:
        counted, option = "enrol", "--participants and --enrol, together"
        if study.study.participants == enrol:
            option = "--enrol"
    chosen = {"clients": study.study.participants, "rounds": study.study.rounds} | privacy.model_dump(
        include={"sampling", "population", "bits", "max_dropout", "adversarial", "min_survivors", "quorum"}
    )

    def again(values: dict[str, Any]) -> PlanFigures:
        renamed = {counted if name == "clients" else name: value for name, value in values.items()}
        if "enrol" in renamed:
            renamed["enrol"] -= (study.study.participants or enrol) - enrol
        return figures_of((changed(**renamed) if renamed else study).settled().plan(**others))

    return replace(check_plan(chosen, again, option, more), task=study.study.task)


def _instead(problem: InfeasiblePlan, chosen: Mapping[str, Any], again: Again) -> str:
    """Return the options that correspond to the suggested change, after a trial; empty if no change helps."""
    change = problem.change
    if "epsilon" in change:
        bits = "" if change["bits"] == chosen["bits"] else f" --bits {change['bits']}"
        return f"use --epsilon {change['epsilon']:g}{bits}"
    if "bits" in change:
        fewest = int(change["bits"] or 0)
        return f"use --bits {fewest}" + _enough_bits(fewest, chosen["bits"], again)
    rounds = 0  # the most that a plan keeps
    if "rounds" in change:
        rounds = smallest(0, chosen["rounds"], lambda fewer: _made(again, rounds=fewer) is None) - 1
    for reader in ("coordinator", "released"):
        planned = change.get(f"budget_{reader}")
        if planned is not None:
            digits = 2 - math.floor(math.log10(planned))
            found = [f"--budget-{reader} {math.ceil(planned * 10**digits) / 10**digits:g}"]
            return "use " + ", or ".join([*found, *([f"--rounds {rounds}"] if rounds else [])])
    return f"use --rounds {rounds}; or {problem.suggestion}" if rounds else ""


def _enough_bits(fewest: int, stated: int, again: Again) -> str:
    """From how many bits on the error is within a tenth of the least, if ``fewest`` aren't such."""
    if fewest < stated:  # the grid was too fine already
        return ""
    errors: list[float] = []
    for bits in range(fewest, 63):
        if (figures := _made(again, bits=bits)) is None:
            break
        errors.append(math.sqrt(error_variance(figures)))
        if len(errors) > 1 and errors[-1] > 0.995 * errors[-2]:
            break
    enough = next((fewest + at for at, error in enumerate(errors) if error <= _NEARLY * errors[-1]), fewest)
    return "" if enough == fewest else f"; with --bits {enough} the error is within 10 % of the least"
