"""How much shorter BLUR can make an update: a bound for equal gradients, beside the participants of one round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from learning.parameters import flatten_contribution
from learning.task import update_rng
from sordino.lab.experiments.tables import Cell, Mean, Share, Table
from sordino.lab.simulation.participants import Participants
from sordino.lab.simulation.settings import SimulationSettings


def least_share(weight: float, rate: float, steps: int) -> float:
    """Return the least share of plain training's update that BLUR leaves where all gradients of the steps are equal.

    Source: ours, from [CWZC22] Eq. 7. Let x = lambda eta and w^t the round's model. A step that begins beyond S first
    multiplies the drift from w^t by 1 - x, so the gradient of step q = 0, ..., Q - 1 counts (1 - x)^k in the update, k
    the number of later steps that begin beyond S: Q - 1 - q at most. With one gradient g in all steps plain training
    moves by -eta Q g, BLUR in the same direction by -eta g times the sum of these powers, and

        (1 + (1 - x) + ... + (1 - x)^(Q - 1)) / Q = (1 - (1 - x)^Q) / (Q x)

    is the least quotient, reached where every step but the first begins beyond S. Of gradients that differ, each no
    longer than G, BLUR's update is within (1 - this share) eta Q G of their plain sum times -eta. The bound doesn't
    say how far BLUR's gradients, along its own path, differ from those of plain training.

    Args:
        weight: lambda.
        rate: eta, the local rate; lambda eta is in (0, 1) by Lemma 2.
        steps: Q, >= 1.

    Raises ValueError: an argument lies outside its range.
    """
    discount = weight * rate
    if not (0 < discount < 1 and steps >= 1):
        raise ValueError(f"lambda {weight:g} times rate {rate:g} must be above 0 and below 1, and steps at least 1")
    return -math.expm1(steps * math.log1p(-discount)) / (steps * discount)


@dataclass(frozen=True)
class Case:
    """Hyper-parameters of BLUR, and one run with them and one without, of equal participants, seed and task."""

    name: str
    weight: float
    rate: float
    steps: int
    clip: float
    blur: SimulationSettings
    plain: SimulationSettings


def bound_table(cases: Sequence[Case], participants: int) -> Table:
    """Return the bound of each case, and what its first round's updates are beside those of plain training.

    ``participants``: the first ones are trained, from the initial weights.
    """
    body: list[list[Cell]] = []
    for case in cases:
        short, long = (_updates(one, participants, case.clip) for one in (case.blur, case.plain))
        lengths = np.linalg.norm(long, axis=1)
        shares = np.linalg.norm(short, axis=1) / lengths
        cosines = np.einsum("ij,ij->i", short, long) / (shares * lengths**2)
        most = Share(Mean.of([1 - least_share(case.weight, case.rate, case.steps)]))
        beyond = Share(Mean.of([float(np.mean(lengths > case.clip))]))
        body.append(
            [
                *(case.name, case.rate, case.weight, case.steps, case.clip, beyond, most),
                *(Share(Mean.of((1 - shares).tolist())), Mean.of(cosines.tolist())),
            ]
        )
    columns = ("setting", "local rate", "lambda", "Q", "S", "longer than S, %")
    note = (
        f"Of {participants} participants of a first round, mean ± standard error over them; the bound is for equal "
        "gradients in all steps, (1 - (1 - lambda rate)^Q) / (Q lambda rate) of the length being left."
    )
    found = ("shorter by at most, %", "shorter by, %", "cosine to the plain update")
    return Table("blur-lus-bound", "How much shorter BLUR makes an update", (*columns, *found), body, note)


def _updates(settings: SimulationSettings, participants: int, clip: float) -> NDArray[np.float64]:
    """Updates before clipping, (participants, dim)."""
    people = Participants(settings)
    task, start = people.task, people.task.initial_parameters()
    found = []
    for place in range(participants):
        made = task.local_update(start, people.data.of(place), update_rng(settings.seed, 1, place), clip)
        found.append(flatten_contribution(made, task.contribution_shapes))
    return np.array(found, dtype=np.float64)
