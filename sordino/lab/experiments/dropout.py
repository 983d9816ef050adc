"""Silent dropouts: their cost in accuracy, what the plan adds for them, and what ignoring them costs.

Each participant leaves independently, after the shares are exchanged and before its vector is sent. A plan for
``max_dropout`` adds enough noise for the fewest survivors with which it opens a sum, and opens none with fewer. A
system that ignores dropouts divides the noise by all participants and opens every sum: it claims the plan's epsilon for
no dropout, and what it has spent follows from the noise shares that were really in the sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final

import numpy as np

from mechanisms.privacy_curves import epsilon_with_sampler_error
from mechanisms.round_cost import coarse_orders, drawn_coordinates, round_curve
from mechanisms.statement import COORDINATOR, Statement
from sordino.lab.experiments.outcome import NOT_CHARGED, PAPER, SMALL, Outcome, Request, Stages
from sordino.lab.experiments.runs import DONE, RunPool, labels_of
from sordino.lab.experiments.setting import ENGINE, Sizes
from sordino.lab.experiments.tables import PAIRED, TEST, Cell, Mean, Results, Table, compared, gathered
from sordino.lab.simulation.rounds import cohort_of, survivors_of
from sordino.lab.simulation.settings import SimulationSettings, simulated_study
from sordino.planning.drawing import Axes, Picture, Series

STAYS, TAKEN_BACK = "all noise stays", "taken back"


@dataclass(frozen=True, kw_only=True)
class DropoutSizes(Sizes):
    """Numbers of a scale; all participants are in each round, at one epsilon.

    Attributes:
        planned, leaving: shares that a plan allows to leave, and that leave.
        surplus: epsilons at which surplus noise stays or is taken back; None: no noise.
        surplus_cohort: participants there.
    """

    planned: tuple[float, ...]
    leaving: tuple[float, ...]
    surplus: tuple[float | None, ...] = (1.0, 2.0, 4.0, 8.0, None)
    surplus_cohort: int = 100


EPSILON: Final = 6.0
_COMMON: Final[Mapping[str, Any]] = {
    "options": {"local_epochs": 3, "batch_size": 20},
    "epsilons": (EPSILON,),
    "delta": 1e-5,
    "evaluate_every": 1,
    "last": 3,
}
SIZES: Final = {
    SMALL: DropoutSizes(
        **_COMMON,
        data="fashion-mnist-subset",
        task="softmax-regression",
        participants=200,
        cohort=200,
        rounds=20,
        planned=(0.0, 0.1, 0.3, 0.5),
        leaving=(0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5),
        clips=(0.1, 0.3, 1.0),
        rates=(0.1, 0.3),
    ),
    PAPER: DropoutSizes(
        **_COMMON,
        data="fashion",
        task="mlp",
        participants=1000,
        cohort=1000,
        rounds=100,
        planned=(0.0, 0.1, 0.2, 0.3, 0.4, 0.5),
        leaving=(0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
        clips=(0.03, 0.1, 0.3, 1.0),
        rates=(0.03, 0.1, 0.3),
    ),
}


def play(pool: RunPool, request: Request) -> Outcome:
    """Choose clip and rate, then run every plan against every share of dropouts."""
    sizes = SIZES[request.scale]
    data = request.images(sizes)
    make = partial(sizes.settings, data=data, epsilon=EPSILON, server_momentum=0.9)

    def settings(*, planned: float, leaving: float, **given: Any) -> SimulationSettings:
        return make(max_dropout=planned, **given).changed(drop=leaving)

    stages = Stages(pool, request.seeds, sizes.last)
    choice = stages.tuned(
        "Clip and client rate for each plan, while none leaves",
        sizes.start,
        partial(settings, leaving=0.0),
        of={"planned": sizes.planned},
    )
    chosen = choice.applied(settings)
    grid = {"planned": sizes.planned, "leaving": sizes.leaving}
    found = stages.results("plans against dropouts", grid, chosen)
    careless = {
        leaving: Mean.of([spent_unnoticed(chosen(planned=0.0, leaving=leaving, seed=seed)) for seed in request.seeds])
        for leaving in sizes.leaving
    }
    notes = [
        f"{data}, {sizes.task}, {sizes.participants} participants, all in each of {sizes.rounds} rounds; Dirichlet 1.",
        f"Epsilon of the coordinator, target {EPSILON:g} at delta {sizes.delta:g}; none colludes; up to "
        "3 attempts at a round.",
        "Participants leave independently of each other, after the shares and before their vectors.",
        choice.budget(),
        ENGINE,
        NOT_CHARGED,
    ]
    both = {"epsilon": sizes.surplus, "noise": (STAYS, TAKEN_BACK)}
    surplus = stages.results("surplus noise", both, partial(_surplus, data, sizes))
    tables = [_accuracies(found, sizes), _epsilons(found, sizes, careless), _surplus_table(surplus, sizes)]
    return Outcome(notes, [*tables, choice.table("dropout-choice")], [_picture(found, sizes, careless)], [choice])


def _surplus(data: str, sizes: DropoutSizes, *, epsilon: float | None, noise: str, seed: int) -> SimulationSettings:
    """The demo's study, which tolerates that 30 % leave, and of which nobody leaves."""
    least = math.ceil(0.7 * sizes.surplus_cohort)
    study = simulated_study(
        name="experiment",
        task_options={"client_rate": 0.5, "batch_size": 20, "local_epochs": 3},
        dataset=data,
        seed=seed,
        participants=sizes.surplus_cohort,
        rounds=15,
        min_survivors=least,
        quorum=least,
        mechanism="ddgauss" if epsilon else "none",
        epsilon=epsilon or 8.0,
        noise_parts=0 if noise == STAYS else None,
    )
    return SimulationSettings(study=study, seed=seed)


def _surplus_table(found: Results, sizes: DropoutSizes) -> Table:
    epsilons = [one for one in sizes.surplus if one is not None]
    gains = compared(found, [((epsilon, TAKEN_BACK), (epsilon, STAYS)) for epsilon in epsilons])
    gained = dict(zip(epsilons, gains, strict=True))
    body: list[list[Cell]] = []
    for epsilon in sizes.surplus:
        gain = [None, None, ""] if epsilon is None else gained[epsilon]
        cells = [found.cell(epsilon, noise) for noise in (STAYS, TAKEN_BACK)]
        spent = found.spent(epsilon=epsilon, noise=TAKEN_BACK)[-1]
        body.append(["none" if epsilon is None else epsilon, *cells, *gain, spent])
    columns = ("epsilon", STAYS, TAKEN_BACK, "gain", *PAIRED, "epsilon_coordinator")
    note = (
        f"The demo's study: {sizes.surplus_cohort} participants of whom 30 % may leave and none does, 15 rounds. "
        "Accuracy in percent, mean ± standard error over seeds; the last column: what was spent if surplus noise is "
        "taken back. " + TEST.format(of="of this table")
    )
    return Table(
        "dropout-surplus", "What noise costs that more survivors than needed leave in a sum", columns, body, note
    )


def spent_unnoticed(settings: SimulationSettings) -> float:
    """Return epsilon of a system that plans for no dropout and opens every sum.

    The noise is the plan's, of which each survivor brings its share; the cost of a sum with s survivors is
    `mechanisms.round_cost.round_curve` at h_min = s. Survivors are those of the simulation's first attempts.

    ``settings``: of a simulation whose plan assumes that all survive and none collude.
    """
    settings = settings.settled()
    plan = settings.plan()
    if plan is None or plan.min_survivors != plan.clients or plan.colluders:
        raise ValueError("this function takes plans without dropouts only")
    stated = Statement(**{field.name: getattr(plan, field.name) for field in fields(Statement)})
    orders = coarse_orders(stated, COORDINATOR)
    spent = np.zeros(orders.shape)
    for round_ in range(1, plan.rounds + 1):
        left = len(survivors_of(settings, cohort_of(settings, round_), round_, 1))
        fewer = replace(stated, min_survivors=left, quorum=left)
        spent += round_curve(fewer, plan.noise, left)(orders)
    return float(epsilon_with_sampler_error(orders, spent, plan.delta, drawn_coordinates(stated, stated.rounds)))


def _accuracies(found: Results, sizes: DropoutSizes) -> Table:
    body: list[list[Cell]] = [
        [_percent(leaving), *(found.cell(planned, leaving) for planned in sizes.planned)] for leaving in sizes.leaving
    ]
    columns = ("leave", *(f"planned for {_percent(planned)}" for planned in sizes.planned))
    note = "Accuracy in percent, mean ± standard error over seeds. 'round aborted': three attempts had too few left."
    return Table("dropout-accuracy", "Accuracy against silent dropouts, by what the plan assumes", columns, body, note)


def _epsilons(found: Results, sizes: DropoutSizes, careless: dict[float, Mean]) -> Table:
    body: list[list[Cell]] = []
    for leaving in sizes.leaving:
        line: list[Cell] = [_percent(leaving), EPSILON, careless[leaving]]
        for planned in sizes.planned:
            own = [row for row in found.rows if labels_of(row, *found.names) == (planned, leaving)]
            done = [row["epsilon_coordinator"] for row in own if row["outcome"] == DONE]
            line.append(Mean.of(done) if done else found.why_not(planned, leaving))
            rounds = sum(row.get("rounds_completed", 0) for row in own)
            aborted = sum(row.get("aborted_attempts", 0) for row in own)
            line.append(f"{100 * aborted / max(rounds + aborted, 1):.0f} %")
        body.append(line)
    columns: list[str] = ["leave", "claimed, ignoring", "spent, ignoring"]
    for planned in sizes.planned:
        columns += [f"spent, plan for {_percent(planned)}", f"aborted ({_percent(planned)})"]
    note = (
        "Epsilon of the coordinator after all rounds. 'Ignoring': a system that plans for no dropout and opens every "
        "sum. 'aborted': share of attempts in which too few were left; nothing is opened there and nothing charged."
    )
    title = "What is claimed and what is spent"
    return Table("dropout-epsilon", title, tuple(columns), body, note)


def _picture(found: Results, sizes: DropoutSizes, careless: dict[float, Mean]) -> Picture:
    def series(means: Mapping[tuple[Any, ...], Mean]) -> list[Series]:
        return [
            Series(
                f"plan for {_percent(planned)}",
                {100 * leaving: means[planned, leaving] for leaving in sizes.leaving if (planned, leaving) in means},
                at,
            )
            for at, planned in enumerate(sizes.planned, start=1)
        ]

    done = [row for row in found.rows if row["outcome"] == DONE]
    epsilons = gathered(done, found.names, lambda row: row["epsilon_coordinator"])
    ignoring = Series("ignoring dropouts", {100 * leaving: mean for leaving, mean in careless.items()}, 0, dashed=True)
    axes = [
        Axes("Accuracy", "participants that leave, %", "accuracy, %", series(found.means)),
        Axes(
            "Epsilon that the rounds have cost",
            "participants that leave, %",
            "epsilon of the coordinator",
            [ignoring, *series(epsilons)],
            percent=False,
            level=(EPSILON, "planned, and claimed by all"),
        ),
    ]
    note = (
        f"{sizes.participants} participants, {sizes.rounds} rounds, delta {sizes.delta:g}. A line ends where three "
        "attempts at a round had too few survivors. Dashed: plans for no dropout, opens every sum."
    )
    return Picture("dropout", axes, note, columns=2)


def _percent(share: float) -> str:
    return f"{100 * share:g} %"
