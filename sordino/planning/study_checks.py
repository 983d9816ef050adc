"""Whether a study can be made of what was chosen: what ``init`` and ``simulate`` check before anything else is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from server.study_file import StudyConfiguration
from sordino.planning.plan_figures import PlanFigures


def check_study(
    study: StudyConfiguration,
    changed: Callable[..., StudyConfiguration],
    enrol: int = 0,
    more: str | None = None,
    **others: Any,
) -> PlanFigures:
    """Make the plan, and refuse it in the words of the options, with what to type instead; returns its figures.

    Args:
        study: ``min_survivors`` and ``quorum`` as they were given: None where they weren't.
        changed: the study with other values, by flat name, participants among them.
        enrol: places among its participants for those who join with a code.
        more: how to have {} participants, where not by an option.
        others: further arguments of `wire.study.plan_study`, for plans that aren't served.

    Raises:
        runtime.failure.Failure, mechanisms.plan.InfeasiblePlan: counts that contradict each other, a budget that no
            plan keeps, or attempts of which most would end without a sum.
    """
    from sordino.planning.refusals import check_plan
    from sordino.planning.text import figures_of

    # What a plan calls clients are the participants of one round.
    counted, option = "participants", "--participants"
    privacy = study.privacy
    if privacy.sampling != "none":
        counted, option = "cohort", "--cohort"
    elif enrol:
        option = "--participants and --enrol, together"
    chosen = {
        "clients": study.study.participants,
        "sampling": privacy.sampling,
        "population": privacy.population,
        "rounds": study.study.rounds,
        "bits": privacy.bits,
        "max_dropout": privacy.max_dropout,
        "adversarial": privacy.adversarial,
        "min_survivors": privacy.min_survivors,
        "quorum": privacy.quorum,
    }

    def again(values: dict[str, Any]) -> PlanFigures:
        renamed = {counted if name == "clients" else name: value for name, value in values.items()}
        if "participants" in renamed:
            renamed["participants"] = max(renamed["participants"] - enrol, 0)
        return figures_of((changed(**renamed) if renamed else study).settled().plan(**others))

    return check_plan(chosen, again, privacy.max_dropout, option, more)
