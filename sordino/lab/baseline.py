"""The same training without masks and noise: the accuracy that a study would reach without noise.

Updates are still clipped, so the difference to a real run is the price of noise and rounding alone. The demo runs this
module as a process of low priority:

    python -m sordino.lab.baseline DIR PARTS RESULTS [COHORTS] --end-with PID

It writes the accuracy after each round as a line of the file RESULTS. The JSON file COHORTS names the participants of
each round, the survivors of the real run: a list of lists of parts of the data.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from learning.datasets import Dataset
from learning.parameters import Parameters, flatten
from learning.server_optimizers import ServerOptimizer
from learning.task import Task, update_rng
from mechanisms.clipping import clip_l2


@dataclass(frozen=True)
class BaselineRound:
    """Figures on the held-out data after a round: ``round`` counts from 1, ``loss`` is in nats."""

    round: int
    participants: int
    accuracy: float
    loss: float
    parameters: Parameters


def train_without_noise(
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
) -> Iterator[BaselineRound]:
    """Train round by round: local updates, clip, unweighted mean, server optimizer, evaluation.

    Args:
        task: model and local training.
        train: the whole training set.
        test: held-out data, evaluated on after each round.
        parts: indices into ``train``, one array for each participant, as ``partition`` returns them.
        optimizer: its state moves on.
        rounds: >= 1.
        l2_clip: bound on each update's L2 norm, data units, > 0.
        seed: >= 0, of the batch orders; each participant's in each round is ``update_rng``'s.
        cohorts: for each round the participants whose updates count (the survivors of a real run); None means all
            participants in every round.

    Raises:
        ValueError: a number out of range, a cohort that is empty or names an unknown participant, or an update that
            isn't finite.
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
    learner = task.learner(optimizer, test)
    for number, cohort in enumerate(chosen, start=1):
        parameters, total = learner.broadcast(), np.zeros(task.dim, dtype=np.float64)
        for participant in cohort:
            rng = update_rng(seed, number, participant)
            update = flatten(task.local_update(parameters, data[participant], rng, l2_clip)).astype(np.float64)
            if not np.isfinite(update).all():
                raise ValueError(f"round {number}: the update of participant {participant} is not finite")
            total += clip_l2(update, l2_clip)
        learner.learn(total / len(cohort), len(cohort))
        figures = learner.evaluate()
        yield BaselineRound(number, len(cohort), figures["accuracy"], figures["loss"], learner.broadcast())


def run(directory: Path, parts: int, cohorts: Sequence[Sequence[int]] | None) -> Iterator[BaselineRound]:
    """Train as the study's file says, with its clip, without masks and without noise.

    ``directory``: the study's folder; ``parts``: number of parts that the data is cut into, one for each participant;
    ``cohorts``: see `train_without_noise`.
    """
    from learning.datasets import load_part
    from learning.make_task import clip_of, make_task
    from learning.own_data import load_test
    from learning.partitions import cut_dataset
    from server.study_file import load

    configuration = load(directory)
    data = configuration.data
    task = make_task(configuration.study.task, dict(configuration.task))
    return train_without_noise(
        task,
        load_part(data.dataset, "train"),
        load_test(data.dataset, data.test),
        cut_dataset(data.dataset, data.partition, parts, data.alpha, data.seed, data.shards),
        configuration.server_optimizer.make(),
        rounds=configuration.study.rounds if cohorts is None else len(cohorts),
        l2_clip=clip_of(task, configuration.privacy.clip),
        seed=data.seed,
        cohorts=cohorts,
    )


def main(arguments: list[str]) -> None:
    """The process: see the module."""
    from runtime.processes import end_with_parent

    directory, parts, results, *cohorts, _, parent = arguments
    end_with_parent(int(parent))
    with contextlib.suppress(OSError):
        os.nice(19)
    chosen = json.loads(Path(cohorts[0]).read_text()) if cohorts else None
    with Path(results).open("w") as lines:
        for done in run(Path(directory), int(parts), chosen):
            print(done.accuracy, file=lines, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
