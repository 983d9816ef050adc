"""Who is invited to a round, at the same epsilon against the coordinator: all, a lottery's cohort, or an epoch's.

Each reader of the sums knows the cohorts, so nothing is amplified: a lottery is charged as if everybody were in every
round, an epoch for the rounds that each is in.

Besides, with a trusted coordinator's noise, at the same published epsilon: cohorts of a fixed size, as papers have
them, and those of independent coins, for which alone that figure is proved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from mechanisms.statement import participations
from sordino.lab.experiments.outcome import NOT_CHARGED, PAPER, SMALL, Outcome, Request, Stages
from sordino.lab.experiments.runs import RunPool
from sordino.lab.experiments.setting import ENGINE, FASHION, FEMNIST, Sizes
from sordino.lab.experiments.tables import CONDITIONAL, PAIRED, SPENT, TEST, Cell, Results, Table, compared
from sordino.lab.simulation.settings import SimulationSettings, resized

WAYS: Final = ("none", "lottery", "epochs")
REFERENCE: Final = "lottery"
LAWS: Final = ("fixed", "poisson")

SIZES: Final = {
    SMALL: Sizes(
        **FASHION,
        task="softmax-regression",
        rounds=100,
        delta=1e-5,
        epsilons=(2.0, 8.0),
        clips=(0.1, 0.3, 1.0),
        rates=(0.1, 0.3, 1.0),
    ),
    PAPER: Sizes(
        **FEMNIST,
        options={"local_epochs": 1, "batch_size": 20},
        delta=1 / 3400,
        epsilons=(4.0, 8.0, 16.0),
        clips=(0.01, 0.03, 0.1),
        rates=(0.03, 0.1),
    ),
}


def play(pool: RunPool, request: Request) -> Outcome:
    """Choose clip and client rate for each way of inviting and epsilon, then run each on the seeds."""
    sizes = SIZES[request.scale]
    data = request.images(sizes)
    stages = Stages(pool, request.seeds, sizes.last)
    everybody = replace(sizes, cohort=sizes.participants)
    make = partial(everybody.settings, data=data, bits=18, server_momentum=0.9, partition=request.partition(data))

    def settings(*, sampling: str, **chosen: Any) -> SimulationSettings:
        """Whoever is not drawn isn't there: with "none" all are in every round."""
        drawn = make(**chosen)
        cohort = None if sampling == "none" else sizes.cohort
        return drawn.changed(study=resized(drawn.study, sizes.participants, sampling=sampling, cohort=cohort))

    def trusted(*, sampling: str, **chosen: Any) -> SimulationSettings:
        """Cohorts of one law, the noise of a trusted coordinator."""
        drawn = sizes.settings(
            data=data, mechanism="gaussian", server_momentum=0.9, partition=request.partition(data), **chosen
        )
        return drawn.changed(study=resized(drawn.study, sizes.participants, sampling=sampling))

    grid = {"sampling": WAYS, "epsilon": sizes.epsilons}
    choice = stages.tuned("Clip and client rate for each way of inviting", sizes.start, settings, of=grid)
    found = stages.results("ways of inviting", grid, choice.applied(settings))
    laws = {"sampling": LAWS, "epsilon": sizes.epsilons}
    law = stages.tuned("Clip and client rate for each law of cohorts", sizes.start, trusted, of=laws)
    drawn = stages.results("laws of cohorts", laws, law.applied(trusted))
    notes = [
        f"{sizes.described(data)}; distributed discrete Gaussian, 18 bits, delta {sizes.delta:g}, server momentum 0.9. "
        "No participant drops out or colludes.",
        "Epsilon bounds what the coordinator learns: it knows the cohorts, so nothing is amplified. With none all "
        f"{sizes.participants} take part in each round, which costs them {sizes.participants // sizes.cohort} times "
        "the work.",
        f"Laws of cohorts: central Gaussian, 20 bits, the same {CONDITIONAL} by privacy loss distributions. With "
        "poisson sums are divided by the expected number, and the figure is proved for readers of the released models "
        f"who don't know who was drawn. {law.budget()}",
        choice.budget(),
        ENGINE,
        NOT_CHARGED,
    ]
    by = "epsilon (coordinator)"
    tables = [
        _table(found, sizes),
        _compared("sampling-compared", found, WAYS, sizes, reference=REFERENCE, by=by),
        _compared("sampling-laws", drawn, LAWS, sizes, reference=LAWS[0], by=CONDITIONAL),
        choice.table("sampling-choice", by),
        law.table("sampling-laws-choice"),
    ]
    return Outcome(notes, tables, [], [choice, law])


def _table(found: Results, sizes: Sizes) -> Table:
    epsilons = sizes.epsilons
    body: list[list[Cell]] = []
    for way in WAYS:
        cohort = sizes.participants if way == "none" else sizes.cohort
        of_each = participations(way, cohort, sizes.participants, sizes.rounds)
        cells = [found.cell(way, epsilon) for epsilon in epsilons]
        body.append([way, cohort, of_each, *cells, *found.spent(sampling=way, epsilon=epsilons[-1])])
    columns = ("sampling", "in a round", "rounds of each", *(f"epsilon {one:g}" for one in epsilons), *SPENT)
    note = (
        "Accuracy in percent, mean ± standard error over seeds, at the same bound on epsilon_coordinator; the last "
        f"columns: what was spent at {epsilons[-1]:g}."
    )
    return Table("sampling", "Accuracy by who is invited to a round", columns, body, note)


def _compared(name: str, found: Results, ways: Sequence[str], sizes: Sizes, *, reference: str, by: str) -> Table:
    """Each way beside one of them, at each epsilon, which ``by`` names."""
    keys = [(way, epsilon) for way in ways if way != reference for epsilon in sizes.epsilons]
    cells = compared(found, [(key, (reference, key[1])) for key in keys])
    means = [(found.cell(*key), found.cell(reference, key[1])) for key in keys]
    spent = [found.spent(sampling=way, epsilon=epsilon) for way, epsilon in keys]
    body = [[*key, *mean, *one, *cost] for key, mean, one, cost in zip(keys, means, cells, spent, strict=True)]
    columns = ("sampling", by, "accuracy, %", reference, f"less {reference}", *PAIRED, *SPENT)
    return Table(name, f"Compared with {reference}", columns, body, TEST.format(of="of this table"))
