"""BLUR and LUS against DP-FedAvg, AE-DPFL and the distributed discrete Gaussian: Tables 1 to 3 and figures of [CWZC22].

The published protocol: one local rate, batch size and number of local steps for all methods; the clip S by a grid for
DP-FedAvg, at each epsilon; lambda and c by grids, with that S. How the local rate came about isn't told there; here it
is the best one of federated averaging without noise and clip, which favours none of the private methods. Beside it
stands what the paper doesn't have: accuracy against the local rate, and every method with a rate of its own.
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


def play(pool: RunPool, request: Request) -> Outcome:
    """Choose by the published protocol, then play the parts that are asked for."""
    sizes = replace(SIZES[request.scale], **request.sizes)
    main = Plays(pool, request, sizes, request.images(sizes.data))
    setup, choices = main.choose()
    second, second_setup = main, setup
    colour = request.data.get("colour")
    if request.scale == PAPER and any(map(request.wants, ("alpha", "steps", "active"))):
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
    pair = (FEDAVG, OURS)
    if request.wants("epsilon"):
        rows = main.compare("Table 1: epsilon", METHODS, setup, {"epsilon": sizes.epsilons})
        tables += [method_table("blur-lus-epsilon", f"Accuracy against {CONDITIONAL}", rows, "epsilon", METHODS)]
        tables += [gain_table("blur-lus-gain", rows, "epsilon", OURS, (FEDAVG, DDGAUSS))]
        pictures.append(
            by_label("blur-lus-epsilon", f"Accuracy against {CONDITIONAL}", rows, "epsilon", METHODS, NAMES)
        )
        pictures.append(norms_picture(rows, pair, sizes.middle, setup.clip(sizes.middle)))
    if request.wants("alpha"):
        rows = second.compare("Table 2: alpha", METHODS, second_setup, {"alpha": second.sizes.alphas})
        tables += [method_table("blur-lus-alpha", "Accuracy against heterogeneity", rows, "alpha", METHODS)]
        pictures.append(by_label("blur-lus-alpha", "Accuracy against heterogeneity", rows, "alpha", METHODS, LOG))
    if request.wants("sparsity"):
        without = main.compare("Table 3: without LUS", (FEDAVG, BLUR), setup, {"epsilon": [sizes.middle]})
        rows = main.compare("Table 3: sparsity", (LUS, OURS), setup, {"sparsity": sizes.table_sparsities})
        tables.append(sparsity_table(without, rows, sizes.table_sparsities, (FEDAVG, BLUR, LUS, OURS)))
    if request.wants("steps"):
        rows = second.compare("local steps", pair, second_setup, {"steps": second.sizes.step_counts})
        tables += [method_table("blur-lus-steps", "Accuracy against local steps Q", rows, "steps", pair)]
        pictures.append(by_label("blur-lus-steps", "Accuracy against local steps", rows, "steps", pair, LOG))
    if request.wants("active"):
        rows = second.compare("active participants", pair, second_setup, {"cohort": second.sizes.cohorts})
        tables += [method_table("blur-lus-active", "Accuracy against participants of a round", rows, "cohort", pair)]
        pictures.append(by_label("blur-lus-active", "Accuracy against participants", rows, "cohort", pair, LOG))
    if request.wants("rates"):
        known = [rate for rate in sizes.rates if setup.weight < 1 / rate]
        rows = main.compare("local rates", METHODS, setup, {"rate": known})
        tables += [method_table("blur-lus-rates", "Accuracy against the local rate", rows, "rate", METHODS)]
        pictures.append(by_label("blur-lus-rates", "Accuracy against the local rate", rows, "rate", METHODS, LOG))
    if request.wants("own-rates"):
        own, extra = main.own_rates(setup)
        tables.append(rates_table(own, METHODS))
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
