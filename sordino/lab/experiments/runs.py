"""One run of an experiment: a simulation in, one row of JSON out."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from fractions import Fraction
from typing import Any, Final

from runtime.settings_keys import settings_keys
from sordino.lab.simulation.record import finite, versions
from sordino.lab.simulation.rounds import ROUNDS_DONE
from sordino.lab.simulation.run import SimulationResult, simulate_study
from sordino.lab.simulation.settings import WAYS, SimulatedStudy, SimulationSettings

Row = dict[str, Any]

DONE, INFEASIBLE, UNAVAILABLE = ROUNDS_DONE, "infeasible", "unavailable"
NORMS: Final = ("0.1", "0.5", "0.9")
"""Quantiles of the norms before clipping that a row keeps."""
FORMAT: Final = 1
"""Raise this number by hand when the meaning of a setting changes."""
# How the work is done, not what comes out.
_WAYS: Final = WAYS | {"batched"}


@dataclass(frozen=True)
class Run:
    """One simulation of an experiment.

    Attributes:
        labels: for tables: words and numbers of JSON.
        settings: of the simulation, seed included. The model's initial weights, the partition, cohorts, dropouts and
            batch orders follow from it; noise is fresh.
        last: evaluated rounds at the end whose mean accuracy counts, >= 1.
    """

    labels: Mapping[str, Any]
    settings: SimulationSettings
    last: int = 1

    @property
    def identity(self) -> str:
        """Equal for runs of the same settings, whatever their labels and however the work is shared.

        It changes with Sordino's version and with the form of the settings, so that rows kept before aren't used.
        """
        stated = {name: value for name, value in self.settings.to_json().items() if name not in _WAYS}
        text = json.dumps([stated, self.last, made_by()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


def made_by() -> list[Any]:
    """Return what a row depends on besides its settings: the version, `FORMAT`, and a digest of the settings' form.

    The form is every field's name, type, range and default: a changed default makes another setting.
    """
    form = [
        [one.name, str(one.type), "made" if one.default is MISSING else repr(one.default)]
        for one in fields(SimulationSettings)
    ]
    keys = settings_keys(SimulatedStudy)
    form += [[name, one.kind.__name__, *one.choices, one.range, repr(one.default)] for name, one in keys.items()]
    return [versions()["sordino"], FORMAT, hashlib.sha256(json.dumps(form).encode()).hexdigest()[:16]]


def play(run: Run) -> Row:
    """Simulate, and keep what tables and figures need.

    Returns:
        One row under stable names, JSON values. ``outcome`` is that of the simulation; "infeasible" if no plan keeps
        the budget, "unavailable" if something isn't installed, both with a ``reason`` and without figures.

    Raises:
        learning.options.OptionError, learning.blocks.DatasetError, SimulationError: a setting is invalid.
    """
    from learning.own_task import TaskUnavailable
    from mechanisms.plan import InfeasiblePlan

    row: Row = {"kind": "run", "id": run.identity, "labels": dict(run.labels), "seed": run.settings.seed}
    try:
        result = simulate_study(replace(run.settings, workers=1))
    except InfeasiblePlan as problem:
        return row | {"outcome": INFEASIBLE, "reason": problem.reason, "settings": run.settings.to_json()}
    except TaskUnavailable as problem:
        return row | {"outcome": UNAVAILABLE, "reason": str(problem)}
    kept: Row = finite(row | figures_of(result, run.last))
    return kept


def figures_of(result: SimulationResult, last: int) -> Row:
    """Return what a row keeps of a simulation; ``last`` evaluated rounds give the mean accuracy."""
    summary, judged = result.summary, [row for row in result.rows if row["accuracy"] is not None]
    plan = result.configuration["plan"]
    return {
        "outcome": summary["outcome"],
        "accuracy": _mean([row["accuracy"] for row in judged[-last:]]),
        "accuracy_last": summary["accuracy"],
        "rounds_completed": summary["rounds_completed"],
        "rounds": [row["round"] for row in judged],
        "accuracies": [row["accuracy"] for row in judged],
        "losses": [row["loss"] for row in judged],
        "norms": {share: [(row["update_norms"] or {}).get(share) for row in judged] for share in NORMS},
        "clips": [row["clips"] for row in judged],
        "diverged": sum(row["diverged"] for row in result.rows),
        "wrapped_share": max((row["wrapped_share"] for row in result.rows), default=None),
        "survivors": [row["survivors"] for row in result.rows],
        "aborted_attempts": summary["aborted_attempts"],
        "epsilon_coordinator": summary["epsilon_coordinator"],
        "epsilon_released": summary["epsilon_released"],
        "epsilon_conditional": summary.get("epsilon_conditional"),
        "delta": summary["delta"],
        "plan": plan,
        "settings": result.configuration["settings"],
        "wall_s": summary["wall_s"],
        "versions": versions(),
    }


def noise_multiplier(row: Row) -> float | None:
    """Return the noise deviation of a whole sum over the clip; None without noise."""
    plan = row.get("plan")
    if plan is None:
        return None
    clip = float(sum(value * value for value in plan["clipping"]["clips"]) ** 0.5)
    variance = float(Fraction(plan["local_variance"]) * plan["clients"])
    return float(plan["granularity"]) * math.sqrt(variance) / clip


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
