"""BLUR and LUS against DP-FedAvg, AE-DPFL and the distributed discrete Gaussian: Tables 1 to 3 and figures of [CWZC22].

The published protocol uses one local rate, batch size and number of local steps for all methods; the clip S from a grid
for DP-FedAvg, at each epsilon; lambda and c from grids, with that S. The paper doesn't say how it chose the local rate;
here it is the best one of federated averaging without noise and clip, which favours none of the private methods. Added
to the paper: accuracy against the local rate, and every method at its best rate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sordino.lab.experiments.blur_lus_output import (
    by_label,
    gain_table,
    method_table,
    norms_picture,
    rates_table,
    sparsity_table,
)
from sordino.lab.experiments.blur_lus_runs import BLUR, COLOUR, DDGAUSS, FEDAVG, LUS, METHODS, OURS, SIZES, Plays, Setup
from sordino.lab.experiments.curves import LOG, NAMES, Picture
from sordino.lab.experiments.outcome import PAPER, Outcome, Request
from sordino.lab.experiments.run_pool import ExperimentError, RunPool
from sordino.lab.experiments.selection import NOT_CHARGED, Choice
from sordino.lab.experiments.setting import ENGINE, PUBLISHED
from sordino.lab.experiments.tables import CONDITIONAL, Table

NAME: Final = "blur-lus"
PARTS: Final = ("epsilon", "alpha", "sparsity", "steps", "active", "rates", "own-rates")
_COLOURED: Final = ("alpha", "steps", "active")
"""Parts that take CIFAR-10 at the papers' size."""
_PAIR: Final = (FEDAVG, OURS)
_COMPARED: Final = {
    "epsilon": ("epsilon", METHODS, "Table 1: epsilon", CONDITIONAL, CONDITIONAL, NAMES),
    "alpha": ("alpha", METHODS, "Table 2: alpha", "heterogeneity", "heterogeneity", LOG),
    "steps": ("steps", _PAIR, "local steps", "local steps Q", "local steps", LOG),
    "active": ("cohort", _PAIR, "active participants", "participants of a round", "participants", LOG),
    "rates": ("rate", METHODS, "local rates", "the local rate", "the local rate", LOG),
}
"""Parts that compare methods: label, methods, stage, what the table and the figure are against, scale of the figure."""


def play(pool: RunPool, request: Request) -> Outcome:
    """Choose by the published protocol, then run the requested parts."""
    sizes = replace(SIZES[request.scale], **request.sizes)
    main = Plays(pool, request, sizes, request.images(sizes.data))
    setup, choices = main.choose()
    second, second_setup = main, setup
    colour = request.data.get("colour")
    if request.scale == PAPER and any(map(request.wants, _COLOURED)):
        if colour is None:
            raise ExperimentError(
                "the papers' size takes CIFAR-10 for alpha, steps and active: get it and name it, --colour "
                "cifar10:PATH, or leave them out with --parts epsilon,sparsity,rates,own-rates"
            )
        second = Plays(pool, request, replace(sizes, **COLOUR), colour)
        second_setup, more = second.choose()
        choices += more
    tables: list[Table] = []
    pictures: list[Picture] = []
    extra: list[Choice] = []
    for part in filter(request.wants, PARTS):
        if part == "sparsity":
            without = main.compare("Table 3: without LUS", (FEDAVG, BLUR), setup, {"epsilon": [sizes.middle]})
            rows = main.compare("Table 3: sparsity", (LUS, OURS), setup, {"sparsity": sizes.table_sparsities})
            tables.append(sparsity_table(without, rows, sizes.table_sparsities, (FEDAVG, BLUR, LUS, OURS)))
            continue
        if part == "own-rates":
            own, extra = main.own_rates(setup)
            tables.append(rates_table(own, METHODS))
            continue
        plays, taken = (second, second_setup) if part in _COLOURED else (main, setup)
        values = {
            "epsilon": plays.sizes.epsilons,
            "alpha": plays.sizes.alphas,
            "steps": plays.sizes.step_counts,
            "active": plays.sizes.cohorts,
            "rates": [rate for rate in plays.sizes.rates if taken.weight < 1 / rate],
        }[part]
        label, methods, stage, by_table, by_figure, scale = _COMPARED[part]
        name = f"blur-lus-{part}"
        rows = plays.compare(stage, methods, taken, {label: values})
        tables.append(method_table(name, f"Accuracy against {by_table}", rows, label, methods))
        pictures.append(by_label(name, f"Accuracy against {by_figure}", rows, label, methods, scale))
        if part == "epsilon":
            tables.append(gain_table("blur-lus-gain", rows, label, OURS, (FEDAVG, DDGAUSS)))
            pictures.append(norms_picture(rows, _PAIR, sizes.middle, setup.clip(sizes.middle)))
    every = [*choices, *extra]
    tables += [choice.table(f"blur-lus-choice-{at}") for at, choice in enumerate(every, start=1)]
    return Outcome(_notes(main, setup, request), tables, pictures, every)


def _notes(main: Plays, setup: Setup, request: Request) -> list[str]:
    from learning.datasets import resolve_dataset

    sizes = main.sizes
    clips = ", ".join(f"{clip:g} at {epsilon:g}" for epsilon, clip in setup.clips.items())
    return [
        f"{resolve_dataset(main.data)}, {sizes.task}; {sizes.participants} participants, {sizes.cohort} a round (p = "
        f"{sizes.cohort / sizes.participants:g}), {sizes.rounds} rounds, Q = {sizes.steps} local steps of "
        f"{sizes.batch_size} examples, Dirichlet {sizes.alpha:g}, server rate 1, delta 1 / {sizes.participants}.",
        f"Chosen: local rate {setup.rate:g} for all; S by {CONDITIONAL}: {clips}; lambda = {setup.weight:g}, "
        f"c = {setup.sparsity:g}; {setup.queries} queries a round.",
        "DP-FedAvg, BLUR and LUS: central Gaussian; DDGauss: DP-FedAvg with distributed discrete Gaussian, 20 bits; "
        "AE-DPFL: noised votes on the coordinator's own examples, their labels dropped, judged on the rest of them.",
        f"All but the first table and its gains: {CONDITIONAL} {sizes.middle:g}.",
        PUBLISHED,
        ENGINE,
        NOT_CHARGED,
    ]
