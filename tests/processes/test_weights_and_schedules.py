"""Participants weighed by their examples, rates that fall over the rounds, and a model to begin with, as served."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from learning.checkpoints import SavedModel, load_checkpoint
from learning.datasets import load_part
from learning.make_task import make_task
from learning.parameters import flatten, unflatten
from learning.partitions import cut_dataset
from learning.public_random import PublicRandom
from tests.support.running_study import running_study

ROOT = Path(__file__).resolve().parents[2]
PARTICIPANTS, ROUNDS = 14, 3
# A rate at which descent is stable, so that later rounds don't amplify the noise of earlier ones, and a clip above
# the largest weighted update (0.384), so that none is clipped.
RATE, CLIP = 0.05, 0.42
CAP, MEAN = 500, 175.0
CLIENT = (1.0, 0.75, 0.25)  # cosine, after 0, 1/3 and 2/3 of the rounds
SERVER = (1.0, 2 / 3, 1 / 3)  # linear
# One step over all of a participant's examples: their order doesn't matter.
STEP = {"client_rate": RATE, "local_steps": 1, "batch_size": 60_000}
DATASET = "fashion-mnist-subset"


def by_hand(start: np.ndarray, *, weighted: bool = True, falling: bool = True) -> tuple[np.ndarray, list[int]]:
    """The model after all rounds without noise and clip, and the participants' numbers of examples."""
    parts = cut_dataset(DATASET, "dirichlet", PARTICIPANTS, 0.3, 1, 2)
    data = [load_part(DATASET, "train").take(rows) for rows in parts]
    model = start
    for client, server in zip(CLIENT, SERVER, strict=True):
        task = make_task("softmax-regression", STEP | {"client_rate": RATE * (client if falling else 1)})
        total = np.zeros(task.dim)
        for one in data:
            change = flatten(task.local_update(unflatten(model, task.contribution_shapes), one, PublicRandom(1), 1e9))
            total += change * (min(len(one), CAP) / MEAN if weighted else 1)
        model = model + (server if falling else 1) * total / PARTICIPANTS
    return model, [len(one) for one in data]


@pytest.mark.xdist_group("processes")
def test_what_is_served_is_what_they_say(tmp_path: Path) -> None:
    task = make_task("softmax-regression")
    start = np.random.default_rng(5).normal(0, 0.1, task.dim).astype(np.float32)
    SavedModel(unflatten(start, task.contribution_shapes), "before", task.name, 4).save(tmp_path / "start.safetensors")
    options = {
        "dataset": DATASET,
        "participants": PARTICIPANTS,
        "alpha": 0.3,
        "rounds": ROUNDS,
        "clip": CLIP,
        **{"min_survivors": PARTICIPANTS, "quorum": PARTICIPANTS},
        "epsilon": 1000.0,
        "delta": 0.1,
        "bits": 24,
        "start_from": str(tmp_path / "start.safetensors"),
        "server_schedule": "linear",
        "task_options": STEP | {"client_schedule": "cosine", "weight_cap": CAP, "weight_mean": MEAN},
    }
    with running_study(tmp_path / "study", together=(), hosts=2, **options) as study:
        joins = [["join", "--home", str(home)] for home in study.study.hosts]
        running = [
            study._start([sys.executable, "-m", "sordino", *command], command[0], {"PYTHONPATH": str(ROOT)})
            for command in (["serve", str(study.folder)], *joins)
        ]
        assert [study.code_of(one) for one in running] == [0, 0, 0], study.story()
    checkpoint = study.folder / "coordinator" / "checkpoints" / f"round-{ROUNDS:06d}.safetensors"
    found = flatten(load_checkpoint(checkpoint).parameters)
    wanted, sizes = by_hand(start)
    assert min(sizes) < CAP < max(sizes)  # the cap acts on some
    noise = study.study.plan.local_stddev / PARTICIPANTS**0.5 * sum(one * one for one in SERVER) ** 0.5
    for naive in (by_hand(start, weighted=False), by_hand(start, falling=False), by_hand(np.zeros_like(start))):
        away = naive[0] - wanted
        length = float(np.linalg.norm(away))
        assert length > 12 * noise
        assert abs((found - wanted) @ away) / length < 6 * noise
