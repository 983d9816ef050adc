"""Whether a study can be made of what was chosen: what ``init`` and ``simulate`` check before anything else is done."""

from __future__ import annotations

import dataclasses
from typing import Any

from authority.new_study import check_places
from authority.study_options import StudyOptions, plan_for


def check_study(options: StudyOptions, **others: Any) -> dict[str, Any]:
    """Make the plan, and refuse it in the words of the options, with what to type instead; returns its figures.

    Args:
        options: ``min_survivors`` and ``quorum`` as they were given: None where they weren't.
        others: further arguments of `wire.study.plan_study`, for plans that aren't served.

    Raises:
        runtime.failure.Failure, mechanisms.plan.InfeasiblePlan: places or a lottery that can't be, counts that
            contradict each other, a budget that no plan keeps, or attempts of which most would end without a sum.
    """
    from mechanisms.refusals import InfeasiblePlan
    from sordino.planning.refusals import check_aborts, check_counts, in_options
    from sordino.planning.text import figures_of

    check_places(options)
    # What a plan calls clients are the participants of one round.
    counted, option = "participants", "--participants"
    if options.sampling != "none":
        counted, option = "cohort", "--cohort"
    elif options.enrol:
        option = "--participants and --enrol, together"
    chosen = {
        "clients": options.in_a_round,
        "sampling": options.sampling,
        "population": options.smallest_roster,
        "rounds": options.rounds,
        "bits": options.bits,
        "max_dropout": options.max_dropout,
        "adversarial": options.adversarial,
        "min_survivors": options.min_survivors,
        "quorum": options.quorum,
    }

    def again(changed: dict[str, Any]) -> dict[str, Any]:
        renamed = {counted if name == "clients" else name: value for name, value in changed.items()}
        if counted == "participants" and counted in renamed:
            renamed[counted] = max(renamed[counted] - options.enrol, 0)
        return figures_of(plan_for(dataclasses.replace(options, **renamed), **others))

    check_counts(chosen, again, option)
    try:
        figures = again({})
        check_aborts(figures, options.max_dropout, again)
    except InfeasiblePlan as problem:
        raise in_options(problem, chosen, again) from None
    return figures
