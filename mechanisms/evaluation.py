"""What participants say of a model: three coordinates of the same sum that carries the updates.

Before it trains, a participant evaluates the round's model on examples that it never trains on. With n of them, the
share p that the model gets right and the mean loss l, it appends a (w - 1/2), a w (p - 1/2) and a w (l / L - 1/2). Here
w = min(n, N) / N, L is the largest loss that counts, and a = kappa S as for clip bits (`mechanisms.clip_rule`). None is
beyond a / 2, so the encoded norm grows by a factor of sqrt(1 + 3 kappa^2 / 4), and one noise and one charge cover all.
The means of p and l over participants, each of weight w, are ratios of the coordinates' means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mechanisms.refusals import KINDS, check_rules, check_types

_VALUES: Final = 3
_CERTAIN: Final = 4.0
"""Standard deviations by which the mean weight must lie above 0 before anything is divided by it."""


class HeldOutMetrics(NamedTuple):
    """One participant's figures of a model; ``accuracy`` in [0, 1], NaN for a task without one."""

    examples: int
    accuracy: float
    loss: float


NO_METRICS: Final = HeldOutMetrics(0, math.nan, math.nan)
"""Of a participant without examples for it."""


class MeanMetrics(NamedTuple):
    """Means over participants, with their standard errors by noise and rounding.

    How participants differ is not in these errors. ``accuracy`` is NaN where the task has none; ``weight`` is the
    mean of w.
    """

    accuracy: float
    accuracy_stderr: float
    loss: float
    loss_stderr: float
    weight: float


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The part of a plan that says how participants evaluate; all zeros: they don't.

    Raises InfeasiblePlan: a number is out of range; TypeError: a field has another type than declared.
    """

    held_out: float = 0.0  # share of a participant's examples that it evaluates on and never trains on
    weight: float = 0.0  # kappa: size of the three coordinates over the clip
    most_examples: int = 0  # N: participants with more count no more
    largest_loss: float = 0.0  # L: a larger mean loss counts as this one

    def __post_init__(self) -> None:
        check_types(self, KINDS)
        if not any(asdict(self).values()):
            return
        check_rules(
            [
                (0 < self.held_out <= 0.5, f"a share of {self.held_out:g} is held out", "use 0.05 to 0.5"),
                (1e-3 <= self.weight <= 1, f"evaluation weight {self.weight:g} is out of range", "use 0.2"),
                (1 <= self.most_examples < 1 << 32, f"most_examples {self.most_examples}", "use at least 1"),
                (0 < self.largest_loss <= 1e9, f"largest_loss {self.largest_loss:g} is out of range", "use 4"),
            ]
        )

    def __bool__(self) -> bool:
        return self.weight > 0

    @property
    def values(self) -> int:
        """Coordinates appended."""
        return _VALUES if self else 0

    def norm(self, bound: float) -> float:
        """L2 norm of the three coordinates, at most, where updates are clipped and scaled to ``bound`` = S."""
        return self.weight * bound * math.sqrt(_VALUES) / 2

    def coordinates(self, metrics: HeldOutMetrics) -> NDArray[np.float64]:
        """(3,) values in [-1/2, 1/2]; a loss that is no number counts as the largest."""
        weight = min(max(metrics.examples, 0), self.most_examples) / self.most_examples
        correct = 0.5 if math.isnan(metrics.accuracy) else min(max(metrics.accuracy, 0.0), 1.0)
        loss = 1.0 if math.isnan(metrics.loss) else min(max(metrics.loss / self.largest_loss, 0.0), 1.0)
        return np.array([weight - 0.5, weight * (correct - 0.5), weight * (loss - 0.5)])

    def measured(self, means: Sequence[float], stddev: float) -> MeanMetrics | None:
        """What noisy means of `coordinates` say; None where too few participants evaluated to tell.

        Args:
            means: (3,) over the survivors.
            stddev: of the noise in each of them.
        """
        weight, correct, loss = means[0] + 0.5, means[1], means[2]
        if weight <= _CERTAIN * stddev:
            return None
        # The ratio's deviation to first order: that of numerator - ratio x denominator, which are independent.
        share, part = (min(max(one / weight, -0.5), 0.5) for one in (correct, loss))
        spread = stddev / weight
        return MeanMetrics(
            share + 0.5,
            spread * math.hypot(1, share),
            self.largest_loss * (part + 0.5),
            self.largest_loss * spread * math.hypot(1, part),
            min(weight, 1.0),
        )

    def to_json(self) -> dict[str, Any]:
        """One entry per field."""
        return asdict(self)

    @classmethod
    def from_json(cls, source: object) -> Evaluation:
        """Parse what `to_json` gave. Raises ValueError, TypeError: unknown, missing or malformed, or all zeros."""
        if not isinstance(source, Mapping) or set(source) != {field.name for field in fields(cls)}:
            raise ValueError("plan: evaluation has unknown or missing fields")
        found = cls(**source)
        if not found:
            raise ValueError("plan: an evaluation of nothing must be left out")
        return found


NOT_EVALUATED: Final = Evaluation()
