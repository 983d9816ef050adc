"""The runs of ``sordino experiment blur-lus``: the choices of the published protocol, and each method's settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from learning.datasets import load_labels
from learning.tasks.votes import VoteOptions
from sordino.lab.experiments.outcome import PAPER, SMALL, Request
from sordino.lab.experiments.pooled_mlp import NAME as POOLED_MLP
from sordino.lab.experiments.runs import Row, Run, RunPool
from sordino.lab.experiments.selection import Choice, tuned
from sordino.lab.experiments.setting import Sizes
from sordino.lab.experiments.tables import CONDITIONAL
from sordino.lab.simulation.settings import SimulationSettings

FEDAVG, VOTES, DDGAUSS, OURS = "DP-FedAvg", "AE-DPFL", "DDGauss", "BLUR + LUS"
METHODS: Final = (FEDAVG, VOTES, DDGAUSS, OURS)
BLUR, LUS = "BLUR", "LUS"
_NO_CLIP: Final = 1e6  # no update is as long


@dataclass(frozen=True, kw_only=True)
class BlurLusSizes(Sizes):
    """Numbers of a scale.

    Attributes:
        clips, rates: grids of S and of the local rate.
        middle: epsilon of the choices of lambda, c and queries, and of all but Table 1.
        weights, sparsities: grids of lambda and c.
        table_sparsities: of Table 3; 0 is BLUR alone.
        queries: grid of AE-DPFL's queries per round, limited by the coordinator's public examples.
    """

    batch_size: int
    steps: int = 30
    epsilons: tuple[float, ...] = (2.0, 4.0, 6.0, 8.0)
    middle: float = 6.0
    alpha: float = 0.1
    alphas: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0)
    weights: tuple[float, ...]
    sparsities: tuple[float, ...]
    table_sparsities: tuple[float, ...] = (0.1, 0.3, 0.5, 0.7, 0.9)
    step_counts: tuple[int, ...]
    cohorts: tuple[int, ...]
    queries: tuple[int, ...]


SIZES: Final = {
    SMALL: BlurLusSizes(
        data="fashion-mnist",
        task=POOLED_MLP,
        participants=1000,
        cohort=40,
        rounds=60,
        batch_size=16,
        rates=(0.03, 0.1, 0.3, 0.5, 1.0),
        clips=(0.1, 0.3, 1.0, 3.0),
        weights=(0.1, 0.4, 0.8),
        sparsities=(0.1, 0.3, 0.7),
        step_counts=(5, 10, 30, 60),
        cohorts=(20, 40, 80),
        queries=(2, 5, 20),
        evaluate_every=3,
        last=3,
    ),
    PAPER: BlurLusSizes(
        data="",
        task="femnist-cnn",
        participants=3400,
        cohort=136,
        rounds=1000,
        batch_size=64,
        rates=(0.01, 0.03, 0.1, 0.3),
        clips=(0.01, 0.03, 0.1, 0.3, 1.0),
        weights=(0.05, 0.1, 0.2, 0.4, 0.8),
        sparsities=(0.1, 0.3, 0.5, 0.7, 0.9),
        step_counts=(10, 20, 30, 40, 50),
        cohorts=(68, 136, 204, 272),
        queries=(1, 5, 20),
        evaluate_every=10,
        last=5,
        options={"classes": 62},
    ),
}
COLOUR: Final[Mapping[str, Any]] = {
    "participants": 1000,  # the paper gives no number
    "cohort": 60,
    "rounds": 300,
    "batch_size": 50,
    "cohorts": (20, 40, 60, 80, 100),
    "options": {"classes": 10, "channels": 3, "side": 32},
}
"""Changes for CIFAR-10 at the papers' size, on which Table 2, local steps and active participants are run."""


@dataclass(frozen=True)
class Setup:
    """The choices."""

    rate: float
    clips: Mapping[float, float]  # by epsilon
    weight: float
    sparsity: float
    queries: int

    def clip(self, epsilon: float) -> float:
        """Return S at an epsilon: the choice at the nearest one."""
        return self.clips[min(self.clips, key=lambda known: abs(known - epsilon))]


class Plays:
    """The runs of one kind of data."""

    def __init__(self, pool: RunPool, request: Request, sizes: BlurLusSizes, data: str) -> None:
        self.pool, self.sizes, self.data, self.seeds = pool, sizes, data, request.seeds
        self._partition = request.partition(data)

    def settings(
        self,
        *,
        method: str,
        epsilon: float | None,
        rate: float,
        clip: float,
        seed: int,
        weight: float = 0.4,
        sparsity: float = 0.7,
        queries: int = 20,
        alpha: float | None = None,
        steps: int | None = None,
        cohort: int | None = None,
    ) -> SimulationSettings:
        """Return one run; what is None is the scale's."""
        sizes = self.sizes if cohort is None else replace(self.sizes, cohort=cohort)
        if method == VOTES:
            sizes = replace(sizes, task="votes", options={"of": sizes.task, **sizes.options})
        options = {
            "batch_size": sizes.batch_size,
            "local_steps": sizes.steps if steps is None else steps,
            **_method_options(method, weight, sparsity, queries),
        }
        return sizes.settings(
            data=self.data,
            rate=rate,
            options=options,
            epsilon=epsilon,
            mechanism="ddgauss" if method == DDGAUSS else "gaussian",
            clip=None if method == VOTES else clip,
            seed=seed,
            alpha=sizes.alpha if alpha is None else alpha,
            partition=self._partition,
        )

    def compare(self, stage: str, methods: Sequence[str], setup: Setup, over: Mapping[str, Sequence[Any]]) -> list[Row]:
        """Compare methods over the values of one name; everything else is as chosen."""
        ((name, values),) = over.items()
        runs = []
        for method in methods:
            for value in values:
                given = {"epsilon": self.sizes.middle, "rate": setup.rate, name: value}
                given.setdefault("clip", setup.clip(given["epsilon"]))
                rest = {"weight": setup.weight, "sparsity": setup.sparsity, "queries": setup.queries} | given
                runs += [
                    Run(
                        {"method": method, name: value},
                        self.settings(method=method, seed=seed, **rest),
                        self.sizes.last,
                    )
                    for seed in self.seeds
                ]
        return self.pool.run(stage, runs)

    def choose(self) -> tuple[Setup, list[Choice]]:
        """Choose by the published protocol, on the selection's seeds."""
        sizes = self.sizes
        tune = partial(tuned, self.pool, last=sizes.last)
        rates = tune(
            "Local rate for all methods: federated averaging without noise and clip",
            {"rate": sizes.rates},
            partial(self.settings, method=FEDAVG, epsilon=None, clip=_NO_CLIP),
        )
        rate = rates.taken()["rate"]
        clips = tune(
            f"S of DP-FedAvg, taken for DDGauss and BLUR + LUS, local rate {rate:g}",
            {"clip": sizes.clips},
            partial(self.settings, method=FEDAVG, rate=rate),
            of={"epsilon": sizes.epsilons},
        )
        found = {epsilon: clips.taken(epsilon)["clip"] for epsilon in sizes.epsilons}
        weights = [one for one in sizes.weights if one < 1 / rate] or sizes.weights[:1]
        both = tune(
            f"lambda and c of BLUR + LUS at {CONDITIONAL} {sizes.middle:g}",
            {"weight": weights, "sparsity": sizes.sparsities},
            partial(self.settings, method=OURS, epsilon=sizes.middle, rate=rate, clip=found[sizes.middle]),
        )
        votes = tune(
            f"Queries of AE-DPFL a round at {CONDITIONAL} {sizes.middle:g}",
            {"queries": _asked(sizes, self.data)},
            partial(self.settings, method=VOTES, epsilon=sizes.middle, rate=rate, clip=1.0),
        )
        pair = both.taken()
        setup = Setup(rate, found, pair["weight"], pair["sparsity"], votes.taken()["queries"])
        return setup, [rates, clips, both, votes]

    def own_rates(self, setup: Setup) -> tuple[list[Row], list[Choice]]:
        """Run every method at its best local rate and S, at the middle epsilon."""
        sizes, rows, choices = self.sizes, [], []
        rest: dict[str, Any] = {"sparsity": setup.sparsity, "queries": setup.queries, "epsilon": sizes.middle}
        for method in METHODS:
            clips = (1.0,) if method == VOTES else sizes.clips

            def one(*, seed: int, rate: float, clip: float, method: str = method) -> SimulationSettings:
                below = {"weight": min(setup.weight, 0.9 / rate)}  # lambda below 1 / rate (Lemma 2)
                return self.settings(method=method, rate=rate, clip=clip, seed=seed, **rest | below)

            choice = tuned(
                self.pool,
                f"Local rate and S of {method} at {CONDITIONAL} {sizes.middle:g}",
                {"rate": sizes.rates, "clip": clips},
                one,
                self.sizes.last,
            )
            own = choice.taken()
            runs = [Run({"method": method, **own}, one(seed=seed, **own), self.sizes.last) for seed in self.seeds]
            rows += self.pool.run(f"{method} with a rate of its own", runs)
            choices.append(choice)
        return rows, choices


def _asked(sizes: BlurLusSizes, data: str) -> tuple[int, ...]:
    """Return the grid of queries, as far as the coordinator has public examples for all rounds."""
    most = math.floor(VoteOptions().pool * len(load_labels(data, "test"))) // sizes.rounds
    return tuple(one for one in sizes.queries if one <= most) or (max(most, 1),)


def _method_options(method: str, weight: float, sparsity: float, queries: int) -> dict[str, Any]:
    """Task options of a method."""
    if method == OURS:
        return {"method": "blur-lus", "blur_weight": weight, "sparsity": sparsity}
    if method == BLUR:
        return {"method": "blur", "blur_weight": weight}
    if method == LUS:
        return {"method": "lus", "sparsity": sparsity}
    if method == VOTES:
        return {"queries": queries}
    return {"method": "dp-fedavg"}
