"""Distributed mean estimation ([KLS21] section 6.1): the cost of noise, grid and word length in accuracy.

Each participant holds a vector on the sphere whose radius is the clip. One round; none leave or collude, as published.
Every trial draws new vectors and a new rotation from a public seed, and runs a study's encoder: encode for each
participant, sum modulo 2^B, decode. Noise and rounding draw on the operating system.

Closed form of the mean squared error of one value of the mean, for n participants, granularity g and the variance s^2
of one noise share in grid units:

    (s^2 + 1/6) g^2 / n

Rounding x up with probability f, its fractional part, has variance f (1 - f); its mean is 1/6 if f is spread evenly.
After the rotation a coordinate of a vector on the sphere is close to normal with deviation t = clip / (g sqrt(d)), and
the mean of f (1 - f) is 1/6 - sum_k e^(-2 pi^2 k^2 t^2) / (pi^2 k^2): within half a percent of 1/6 from t = 1/2 on, and
less on coarser grids. Both are reported.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.encoder import Encoder, words_of_sum
from mechanisms.plan import InfeasiblePlan
from sordino.lab.experiments.runs import spread
from sordino.planning.bounds import exact_gaussian_multiplier
from wire.study import plan_study

if TYPE_CHECKING:
    from mechanisms.plan import Plan

Vectors = NDArray[np.float64]

SPHERE, EQUAL = "sphere", "equal"
_CHUNK_ENCODINGS: Final = 4000  # a chunk of trials takes about half a second


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One point of the experiment.

    Attributes:
        clip: radius of the sphere and L2 clip, data units.
        data: "sphere": independent vectors; "equal": all participants hold the same one, the worst case for wrapping.
        seed: of vectors and rotations, public. Noise never depends on it.
    """

    mechanism: str
    clients: int
    dim: int
    bits: int
    epsilon: float
    delta: float
    clip: float
    k_stddevs: float
    data: str
    seed: int


Chunk = tuple[int, Setting, range]
"""The index of a setting, the setting, and some of its trials: what one process does at a time."""


def plan_of(setting: Setting) -> Plan:
    """Return the plan of one round in which all survive and none collude; `InfeasiblePlan` if there is none."""
    return plan_study(
        mechanism=setting.mechanism,
        clients=setting.clients,
        dim=setting.dim,
        bits=setting.bits,
        clip=setting.clip,
        epsilon=setting.epsilon,
        delta=setting.delta,
        rounds=1,
        max_dropout=0.0,
        adversarial=0.0,
        min_survivors=setting.clients,
        k_stddevs=setting.k_stddevs,
    )


def vectors_of(setting: Setting, trial: int) -> Vectors:
    """(clients, dim): vectors uniform on the sphere of radius clip, the same for every mechanism, bits and epsilon."""
    draw = np.random.default_rng([setting.seed, trial, setting.clients, setting.dim])
    count = setting.clients if setting.data == SPHERE else 1
    vectors = draw.standard_normal((count, setting.dim))
    vectors *= setting.clip / np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.broadcast_to(vectors, (setting.clients, setting.dim))


def squared_error(plan: Plan, setting: Setting, trial: int) -> float:
    """Return the mean squared error of one value of the mean: encoded by all, summed mod 2^B, decoded."""
    vectors = vectors_of(setting, trial)
    name = f"sordino experiment dme rotation {setting.seed} {trial}"
    encoder = Encoder(plan, hashlib.sha256(name.encode()).digest())
    total = np.zeros(plan.padded_dim, np.uint64)
    for vector in vectors:
        total += encoder.encode(vector, os.urandom)  # wraps modulo 2^64, a multiple of 2^B
    mean = encoder.decode_sum(words_of_sum(total, plan.bits), setting.clients, os.urandom)
    return float(np.mean((mean - vectors.mean(axis=0)) ** 2))


def run_chunk(chunk: Chunk) -> list[float]:
    """Return the squared error of each trial."""
    _, setting, trials = chunk
    plan = plan_of(setting)
    return [squared_error(plan, setting, trial) for trial in trials]


def rounding_variance(spread: float) -> float:
    """Mean of f (1 - f) over the fractional parts f of a normal variable of deviation ``spread``, in grid steps.

    1/6 - sum over k >= 1 of e^(-2 pi^2 k^2 spread^2) / (pi^2 k^2); sqrt(2 / pi) spread for small ones, where the sum
    converges slowly and almost all values lie within one step of 0.
    """
    if spread < 0.02:
        return math.sqrt(2 / math.pi) * spread - spread * spread
    terms = (math.exp(-2 * (math.pi * k * spread) ** 2) / (math.pi * k) ** 2 for k in range(1, 200))
    return 1 / 6 - sum(terms)


def closed_forms(plan: Plan) -> dict[str, float]:
    """Return the expected mean squared errors of one value of the mean, if nothing wraps around.

    Returns:
        closed_form: (s^2 + 1/6) g^2 / n; expected: the same with the rounding's variance on this grid; integer_stddev:
        the first with the deviation of a share, in grid units, rounded up, as samplers for whole deviations need it.
    """
    n, g2 = plan.clients, plan.granularity**2
    noise = plan.full_stddev**2 / g2 / n  # of one share, also where the coordinator adds all of it
    spread = plan.clip / plan.granularity / math.sqrt(plan.padded_dim)
    return {
        "closed_form": (noise + 1 / 6) * g2 / n,
        "expected": (noise + rounding_variance(spread)) * g2 / n,
        "integer_stddev": (math.ceil(math.sqrt(noise)) ** 2 + 1 / 6) * g2 / n,
    }


def run(
    settings: Sequence[Setting],
    trials: int,
    workers: int = 1,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> list[dict[str, Any]]:
    """Run every setting.

    Args:
        trials: per setting; 0 gives only the closed forms.
        workers: processes; 1 works in this one.
        progress: called with the number of encodings done and the total.

    Returns:
        One row per setting, under stable JSON names; a row of an infeasible setting holds the reason.
    """
    rows: list[dict[str, Any]] = []
    chunks: list[Chunk] = []
    multipliers = {(one.epsilon, one.delta): exact_gaussian_multiplier(one.epsilon, one.delta) for one in set(settings)}
    for index, setting in enumerate(settings):
        central = (multipliers[setting.epsilon, setting.delta] * setting.clip / setting.clients) ** 2
        row: dict[str, Any] = {
            "clients": setting.clients,
            "mechanism": setting.mechanism,
            "bits": setting.bits,
            "epsilon": setting.epsilon,
            "mse_central": central,
        }
        rows.append(row)
        try:
            plan = plan_of(setting)
        except InfeasiblePlan as problem:
            row |= {"feasible": False, "reason": problem.reason, "suggestion": problem.suggestion}
            continue
        forms = closed_forms(plan)
        row |= {
            "feasible": True,
            "epsilon_achieved": plan.planned_epsilon,
            "adjacency": plan.adjacency,
            "padded_dim": plan.padded_dim,
            "granularity": plan.granularity,
            "local_stddev": plan.local_stddev,
            "local_stddev_grid": math.sqrt(plan.local_variance),
            "noise_multiplier": plan.noise_multiplier,
            "mse_closed_form": forms["closed_form"],
            "mse_expected": forms["expected"],
            "mse_integer_stddev": forms["integer_stddev"],
            "closed_form_over_central": forms["closed_form"] / central,
        }
        each = max(1, _CHUNK_ENCODINGS // setting.clients)
        chunks += [(index, setting, range(at, min(at + each, trials))) for at in range(0, trials, each)]
    errors: dict[int, list[float]] = {}
    work, done = sum(len(part) * setting.clients for _, setting, part in chunks), 0
    for (index, setting, _), found in spread(run_chunk, chunks, workers):
        errors.setdefault(index, []).extend(found)
        done += len(found) * setting.clients
        progress(done, work)
    for index, found in errors.items():
        rows[index] |= _measured(rows[index], found)
    return rows


def _measured(row: dict[str, Any], errors: Sequence[float]) -> dict[str, Any]:
    mean = float(np.mean(errors))
    spread = float(np.std(errors, ddof=1)) / math.sqrt(len(errors)) if len(errors) > 1 else None
    return {
        "trials": len(errors),
        "mse_simulated": mean,
        "mse_standard_error": spread,
        "simulated_over_closed_form": mean / row["mse_closed_form"],
        "simulated_over_expected": mean / row["mse_expected"],
        "simulated_over_central": mean / row["mse_central"],
    }
