"""Common settings of the experiments' simulations, one data class for the numbers of a scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from learning.task_names import BOUNDED
from sordino.lab.simulation.settings import SimulationSettings, simulated_study

PUBLISHED: Final = (
    "Epsilon (conditional) is the figure that papers publish, for comparison with them: cohorts of a fixed size are "
    "drawn anew for each round, and it is what independent draws with the same chance would cost (Poisson sampling): "
    "for the central Gaussian by privacy loss distributions (dp-accounting), for the other mechanisms by [ZW19] "
    "Theorem 5, or at each order by what holds however participants are drawn. For cohorts of a fixed size, as here, "
    "neither proves anything. What these runs provably cost: epsilon_released, for readers of the released models who "
    "don't know who took part, and epsilon_coordinator, for a reader who sees the sums and knows the cohorts. No "
    "participant drops out or colludes."
)
FASHION: Final[Mapping[str, Any]] = {
    "data": "fashion-mnist-subset",
    "participants": 1000,
    "cohort": 100,
    "evaluate_every": 2,
    "last": 3,
}
"""Of `Sizes`: what ships with Sordino, cut for runs of seconds."""
FEMNIST: Final[Mapping[str, Any]] = {
    "data": "",
    "task": "femnist-cnn",
    "participants": 3400,
    "cohort": 100,
    "rounds": 1500,
    "evaluate_every": 10,
    "last": 10,
}
"""Of `Sizes`: the papers' EMNIST."""
STACKOVERFLOW: Final[Mapping[str, Any]] = {
    "data": "",
    "task": "lstm",
    "options": {"local_epochs": 1, "batch_size": 16},
    "participants": 342477,
    "cohort": 100,
    "rounds": 1600,
    "clips": (0.1, 0.3, 1.0),
    "rates": (0.3, 0.5),
    "evaluate_every": 20,
    "last": 5,
}
"""Of `Sizes`: the papers' next word."""
ENGINE: Final = "Every run is a whole simulated study: real encoder, noise and accounting (`sordino simulate`)."


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of a scale, common to all experiments.

    Attributes:
        data: the data set; empty if it must be named.
        options: of the task, besides the client rate.
        cohort: of a round; as many as participants: all are in each.
        epsilons: of all rounds, that are compared.
        alpha: of Dirichlet.
        delta: by default 1 / participants, as published.
        clips, rates: the grids of clip and client rate with which every choice begins.
        evaluate_every: rounds.
        last: evaluated rounds at the end whose mean accuracy counts.
    """

    data: str
    task: str
    options: Mapping[str, Any] = field(default_factory=dict)
    participants: int
    cohort: int
    rounds: int
    epsilons: tuple[float, ...]
    alpha: float = 1.0
    delta: float | None = None
    clips: tuple[float, ...]
    rates: tuple[float, ...]
    evaluate_every: int
    last: int

    @property
    def start(self) -> dict[str, tuple[float, ...]]:
        """Return the grid with which choices of clip and client rate begin."""
        return {"clip": self.clips, "rate": self.rates}

    def settings(
        self,
        *,
        data: str,
        epsilon: float | None,
        clip: float | None,
        rate: float,
        seed: int,
        mechanism: str = "ddgauss",
        options: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> SimulationSettings:
        """Return a run of this size in the published setting: a cohort of each round, amplification by sampling.

        Cohorts have a fixed size, as in the papers, and not Poisson's law, as their figure assumes: distributed noise
        is sized for it (`sordino.lab.experiments.sampling` compares both with a central Gaussian's). Tables name the
        figure for what it is, beside those that hold.

        Args:
            epsilon: of all rounds, conditional; None: no noise.
            clip: None takes the task's own.
            options: of the task, besides those of the size.
            others: further keys of a study.
        """
        study = {
            "alpha": self.alpha,
            **({} if self.task in BOUNDED else {"server_momentum": 0.0}),
            "bits": 20,
            "max_dropout": 0.0,
            "adversarial": 0.0,
            "delta": 1 / self.participants if self.delta is None else self.delta,
            **others,
        }
        sampled = self.cohort < self.participants
        given = {**self.options, "client_rate": rate, **(options or {})}
        return SimulationSettings(
            study=simulated_study(
                name="experiment",
                task=self.task,
                task_options=with_start(self.task, given, seed),
                dataset=data,
                seed=seed,
                participants=self.participants,
                cohort=self.cohort if sampled else None,
                sampling="fixed" if sampled else "none",
                rounds=self.rounds,
                mechanism="none" if epsilon is None else mechanism,
                epsilon=8.0 if epsilon is None else epsilon,  # counts for nothing without noise
                clip=clip,
                **study,
            ),
            target="conditional" if sampled and epsilon is not None else "coordinator",
            seed=seed,
            evaluate_every=self.evaluate_every,
        )

    def described(self, data: str) -> str:
        return f"{data}, {self.task}, {self.participants} participants, {self.cohort} a round, {self.rounds} rounds"


def with_start(task: str, options: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return options with the run's seed for initial weights, if the task has such an option."""
    from learning.make_task import make_task

    if "initial_seed" in options:
        return dict(options)
    known = make_task(task, dict(options)).options.to_mapping()
    return {**options, "initial_seed": seed} if "initial_seed" in known else dict(options)
