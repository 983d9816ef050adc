"""Rounds of any task without a network: contributions, encoder with its noise, sum, learner."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from learning.datasets import Dataset
from learning.make_task import clip_of, make_task
from learning.parameters import flatten
from learning.public_random import PublicRandom
from learning.server_optimizers import ServerOptimizer
from learning.task import Task
from mechanisms.encoder import Encoder
from mechanisms.plan import Plan
from wire.study import plan_study

NOBODY = Dataset(np.zeros((0, 1), dtype=np.float32), np.zeros(0, dtype=np.int64))
SIGMAS = 5.2
"""A normal variable is further from its mean with probability 2e-7; over the five or fewer comparisons of one test the
false alarm rate is below 1e-6."""


def rows(values: Any, labels: Any = None) -> Dataset:
    """Make float32 rows, with labels 0 by default; a flat list is one column."""
    table = np.asarray(values, dtype=np.float32)
    table = table.reshape(len(table), -1) if len(table) else np.zeros((0, 1), dtype=np.float32)
    classes = np.zeros(len(table)) if labels is None else np.asarray(labels)
    return Dataset(table, classes.astype(np.int64))


def plan_of(task: Task, participants: int, *, rounds: int = 1, epsilon: float = 8.0, **others: Any) -> Plan:
    """Make a plan with the task's own bound as its clip."""
    chosen: dict[str, Any] = {"bits": 20, "delta": 1e-5, "max_dropout": 0.3, "adversarial": 0.05} | others
    clip = chosen.pop("clip", clip_of(task, None))
    return plan_study(clients=participants, dim=task.dim, clip=clip, epsilon=epsilon, rounds=rounds, **chosen)


def contribution(task: Task, data: Dataset) -> Any:
    """Return a contribution, (dim,) float32, to a round that begins like the first one."""
    order = PublicRandom(os.urandom(16))
    return flatten(task.local_update(task.initial_parameters(), data, order, float("inf")))


def learner_of(task: Task, data: Dataset = NOBODY) -> Any:
    """Make the coordinator's half; statistics need no data."""
    return task.learner(ServerOptimizer(), data)


def run_round(task: Task, learner: Any, plan: Plan, data: Sequence[Dataset]) -> None:
    """Run one round of all of ``data``, with noise and rounding from the operating system, into the learner."""
    encoder = Encoder(plan, os.urandom(32), survivors=len(data))
    begun = learner.broadcast()
    total = np.zeros(plan.padded_dim, dtype=np.uint64)
    for one in data:
        update = flatten(task.local_update(begun, one, PublicRandom(os.urandom(16)), float("inf")))
        total += encoder.encode(update, os.urandom)
        total &= np.uint64((1 << plan.bits) - 1)
    decoded = encoder.decode(total, len(data), os.urandom)
    learner.learn(decoded.mean, len(data), decoded.stddev)


def run_without_noise(task: Task, learner: Any, data: Sequence[Dataset]) -> None:
    """Run the same round with an exact sum."""
    begun = learner.broadcast()
    updates = [flatten(task.local_update(begun, one, PublicRandom(b"order"), float("inf"))) for one in data]
    learner.learn(np.mean(updates, axis=0, dtype=np.float64), len(data))


def released(name: str, options: dict[str, Any], data: Sequence[Dataset]) -> dict[str, Any]:
    """What a statistic says after one round without noise."""
    task = make_task(name, options)
    learner = learner_of(task)
    run_without_noise(task, learner, data)
    return dict(learner.released())
