"""The same training without a network, masks or noise: what a study would reach with noise alone removed.

Clipping stays, so the difference to a real run is the price of noise, rounding and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learning.datasets import Dataset
from learning.parameters import Parameters, flatten, shapes_of, unflatten
from learning.server_optimizers import ServerOptimizer
from learning.task import Task, update_rng


@dataclass(frozen=True)
class SimulatedRound:
    """What one round reached on the held-out data: ``round`` counts from 1, ``loss`` is in nats."""

    round: int
    participants: int
    accuracy: float
    loss: float


@dataclass(frozen=True)
class Simulation:
    """All rounds in order, and the parameters after the last."""

    rounds: tuple[SimulatedRound, ...]
    parameters: Parameters

    @property
    def accuracy(self) -> float:
        """The share of held-out examples the final model gets right."""
        return self.rounds[-1].accuracy


def clip_l2(vector: NDArray[np.floating], l2_clip: float) -> NDArray[np.float64]:
    """Scale a vector down to L2 norm ``l2_clip`` where it is longer; float64 (d,)."""
    exact = vector.astype(np.float64)
    norm = float(np.linalg.norm(exact))
    return exact if norm <= l2_clip else exact * (l2_clip / norm)


def simulate(
    task: Task,
    train: Dataset,
    test: Dataset,
    parts: Sequence[NDArray[np.int64]],
    optimizer: ServerOptimizer,
    *,
    rounds: int,
    l2_clip: float,
    seed: int,
    cohorts: Sequence[Collection[int]] | None = None,
    on_round: Callable[[SimulatedRound], None] | None = None,
) -> Simulation:
    """Train for some rounds: local updates, clip, unweighted mean, server optimizer, evaluation.

    Args:
        task: model and local training.
        train: the whole training set.
        test: held-out data, evaluated on after each round.
        parts: indices into ``train``, one array a participant, as ``partition`` returns them.
        optimizer: its state moves on.
        rounds: >= 1.
        l2_clip: bound on each update's L2 norm, data units, > 0.
        seed: >= 0, of the batch orders; each participant's in each round is ``update_rng``'s.
        cohorts: for each round the participants whose updates count (the survivors of a real run); None
            means all of them every time.
        on_round: called after each round.

    Returns:
        Every round's figures and the final parameters.

    Raises:
        ValueError: a number out of range, a cohort that is empty or names an unknown participant, or a
            participant whose training diverged.
    """
    if rounds < 1 or not (math.isfinite(l2_clip) and l2_clip > 0):
        raise ValueError(f"{rounds} rounds with clip {l2_clip}: both must be above 0")
    if cohorts is not None and len(cohorts) != rounds:
        raise ValueError(f"{len(cohorts)} cohorts are given for {rounds} rounds")
    everyone = range(len(parts))
    chosen = [sorted(set(everyone if cohorts is None else cohorts[index])) for index in range(rounds)]
    for number, cohort in enumerate(chosen, start=1):
        if not cohort or cohort[0] < 0 or cohort[-1] >= len(parts):
            raise ValueError(f"round {number}: its cohort must name some of the {len(parts)} participants")

    data = [train.take(part) for part in parts]
    parameters = task.initial_parameters()
    shapes = shapes_of(parameters)
    vector = flatten(parameters)
    history: list[SimulatedRound] = []
    for number, cohort in enumerate(chosen, start=1):
        total = np.zeros(task.dim, dtype=np.float64)
        for participant in cohort:
            rng = update_rng(seed, number, participant)
            update = flatten(task.local_update(parameters, data[participant], rng))
            if not np.isfinite(update).all():
                raise ValueError(f"round {number}: the update of participant {participant} is not finite")
            total += clip_l2(update, l2_clip)
        vector = optimizer.apply(vector, total / len(cohort))
        parameters = unflatten(vector, shapes)
        figures = task.evaluate(parameters, test)
        history.append(SimulatedRound(number, len(cohort), figures["accuracy"], figures["loss"]))
        if on_round is not None:
            on_round(history[-1])
    return Simulation(tuple(history), parameters)
