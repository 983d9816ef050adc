"""Noise achieved against planned: what a sum of zero updates with real noise says about that noise.

With updates of zero a sum is nothing but the survivors' noise shares, and its coordinates are d draws from a law whose
deviation the plan knows. The coordinator keeps the model after each round; the difference to the one before, times the
number of survivors, is the sum as it was decoded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mechanisms.plan import Plan

_STDERRS: Final = 6.0
"""A right sum is further off once in five hundred million."""
_FLOAT32: Final = 1e-4  # what is lost where the model is kept


@dataclass(frozen=True)
class NoiseSeen:
    """Of one sum; deviations in data units.

    Attributes:
        round, survivors: whose.
        honest: h = |u3| - A: the noise shares that count.
        achieved: root mean square of the sum's coordinates.
        expected: deviation of the noise of all survivors.
        planned: central deviation that the accounting counts on, at h_min.
        planned_at_h: the same at the realised h.
        stderr: standard error of ``achieved / expected``.
    """

    round: int
    survivors: int
    honest: int
    achieved: float
    expected: float
    planned: float
    planned_at_h: float
    stderr: float

    @property
    def ratio(self) -> float:
        return self.achieved / self.expected

    @property
    def fits(self) -> bool:
        """Whether the sum can be one of these noise shares and nothing else; a mask left in it makes it uniform."""
        return abs(self.ratio - 1) <= _STDERRS * self.stderr + _FLOAT32

    def to_json(self) -> dict[str, Any]:
        """For result.json."""
        return {
            "round": self.round,
            "survivors": self.survivors,
            "h": self.honest,
            "achieved_stddev": self.achieved,
            "expected_stddev": self.expected,
            "planned_central_stddev": self.planned,
            "planned_at_h": self.planned_at_h,
            "ratio": round(self.ratio, 5),
            "ratio_stderr": round(self.stderr, 5),
        }


def noise_in(plan: Plan, round_: int, survivors: int, total: NDArray[np.float64]) -> NoiseSeen:
    """What a decoded sum of zero updates shows.

    Args:
        total: (dim,) data units.
    """
    honest = survivors - plan.colluders
    return NoiseSeen(
        round=round_,
        survivors=survivors,
        honest=honest,
        achieved=math.sqrt(float(np.mean(np.square(total)))),
        expected=plan.local_stddev * math.sqrt(survivors),
        planned=plan.central_stddev,
        planned_at_h=plan.local_stddev * math.sqrt(max(honest, 0)),
        stderr=1 / math.sqrt(2 * len(total)),
    )


def decoded_sum(checkpoints: Path, round_: int, survivors: int) -> NDArray[np.float64]:
    """A round's sum in data units, from the models before and after it (`server_rate` 1, the first one zeros).

    Raises:
        ValueError: a checkpoint is gone or damaged.
    """
    after = _model(checkpoints, round_)
    before = _model(checkpoints, round_ - 1) if round_ > 1 else np.zeros_like(after)
    return (after - before) * survivors


def figures(seen: Sequence[NoiseSeen]) -> Mapping[str, Any] | None:
    """Of all rounds together, and of each."""
    if not seen:
        return None
    ratio = math.sqrt(sum(one.ratio**2 for one in seen) / len(seen))
    return {
        "ratio": round(ratio, 5),
        "ratio_stderr": round(seen[0].stderr / math.sqrt(len(seen)), 5),
        "least_above_plan": round(min(one.achieved / one.planned for one in seen), 5),
        "rounds": [one.to_json() for one in seen],
    }


def _model(folder: Path, round_: int) -> NDArray[np.float64]:
    from learning.checkpoints import load_checkpoint

    parameters = load_checkpoint(folder / f"round-{round_:06d}.npz").parameters
    return np.concatenate([np.asarray(one, dtype=np.float64).ravel() for one in parameters.values()])
