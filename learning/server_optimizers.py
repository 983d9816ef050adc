"""What the coordinator does with the mean update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.options import CONSTANT, SCHEDULES, scheduled
from learning.parameters import Floats
from learning.task_names import DEFAULT_RATES, FEDADAGRAD, FEDAVG, FEDYOGI, SERVER_OPTIMIZERS

_BLOCK: Final = 1 << 16
_APPLIED: Final = "applied"  # in a state: how many rounds, where a schedule needs it


class ServerOptimizer:
    """Turns model and mean update into the next model; its moments go into checkpoints.

    With the mean update D, elementwise, FedAvg (FedAvgM of [HQB19]; momentum 0 and rate 1 is plain averaging):

        velocity <- momentum x velocity + D
        parameters <- parameters + rate x velocity

    The adaptive ones, with D as pseudo-gradient ([RCZ+21] Algorithm 2):

        m <- momentum x m + (1 - momentum) x D
        FedAdagrad: v <- v + D^2
        FedYogi:    v <- v - (1 - b2) x D^2 x sign(v - D^2)
        FedAdam:    v <- b2 x v + (1 - b2) x D^2
        parameters <- parameters + rate x m / (sqrt(v) + adaptivity)

    The rate of a round is ``rate`` times what the schedule says once the rounds before it are over.

    m starts at 0 and v at adaptivity^2, the smallest that the source allows; like the source's, this has no bias
    correction. Under noise v is at least the variance of the noise of the mean: choose adaptivity and rate with it.
    """

    def __init__(
        self,
        name: str = FEDAVG,
        rate: float | None = None,
        momentum: float = 0.0,
        second_momentum: float = 0.99,
        adaptivity: float = 1e-3,
        schedule: str = CONSTANT,
        rounds: int = 1,
    ) -> None:
        """
        Args:
            name: one of ``SERVER_OPTIMIZERS``; second_momentum and adaptivity count for the adaptive ones only.
            rate: server step size, finite and > 0; None takes that of `DEFAULT_RATES`.
            momentum: of the mean update, in [0, 1).
            second_momentum: b2, of v, in [0, 1); FedAdagrad has none.
            adaptivity: tau, finite and > 0: smaller is more adaptive.
            schedule: one of ``SCHEDULES``, over this many rounds; afterwards a rate that falls stays 0.

        Raises ValueError: an unknown name, or an argument outside its range.
        """
        if name not in SERVER_OPTIMIZERS:
            raise ValueError(f"unknown server optimizer {name!r}; known ones: {', '.join(SERVER_OPTIMIZERS)}")
        rate = DEFAULT_RATES[name] if rate is None else rate
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"the server rate is {rate}; it must be a finite number above 0")
        if not 0 <= momentum < 1:
            raise ValueError(f"the server momentum is {momentum}; it must be at least 0 and below 1")
        if schedule not in SCHEDULES:
            raise ValueError(f"unknown schedule {schedule!r} of the server rate; known ones: {', '.join(SCHEDULES)}")
        self.name, self.rate, self.momentum, self.schedule = name, rate, momentum, schedule
        self._rounds, self._applied = rounds, 0
        self._moments: dict[str, NDArray[Any]] = {}
        self._starts = {"velocity": 0.0}
        self._precision: type[np.floating[Any]] = np.float32  # as fine as the model; a checkpoint holds float64
        if name == FEDAVG:
            return
        if not 0 <= second_momentum < 1:
            raise ValueError(f"the server's second momentum is {second_momentum}; it must be at least 0 and below 1")
        if not (math.isfinite(adaptivity) and adaptivity > 0):
            raise ValueError(f"the server's adaptivity is {adaptivity}; it must be a finite number above 0")
        self.second_momentum, self.adaptivity = second_momentum, adaptivity
        self._starts, self._precision = {"first": 0.0, "second": adaptivity**2}, np.float64

    def apply(self, parameters: NDArray[np.float32], mean_update: Floats) -> NDArray[np.float32]:
        """Return the next parameters; the arguments are not written to.

        Args:
            parameters: float32 (d,).
            mean_update: (d,), the decoded sum divided by the number of survivors.

        Raises ValueError: lengths differ, or the mean holds NaN or infinity. The state stays as it was.
        """
        mean = np.asarray(mean_update, dtype=np.float64)
        if parameters.ndim != 1 or mean.shape != parameters.shape:
            raise ValueError(f"mean update {mean.shape} and parameters {parameters.shape} differ in shape")
        if not np.isfinite(mean).all():
            raise ValueError("the mean update holds NaN or infinity")
        for moment in self._moments.values():
            if moment.shape != mean.shape:
                raise ValueError(f"mean update {mean.shape} and the optimizer's state {moment.shape} differ in shape")
        if not self._moments:
            self._moments = {name: np.full(mean.shape, start, self._precision) for name, start in self._starts.items()}
        rate = self.rate * scheduled(self.schedule, min(self._applied / self._rounds, 1.0))
        moved = np.empty_like(parameters)
        for start in range(0, mean.size, _BLOCK):  # a model of millions of values has few copies in memory
            here = slice(start, start + _BLOCK)
            moments = {name: moment[here] for name, moment in self._moments.items()}
            moved[here] = parameters[here] + rate * self._step(moments, mean[here])
        self._applied += 1
        return moved

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Return a copy of the moments by name, float64 (d,) each; empty before the first ``apply``.

        With a schedule also ``applied``, (1,): in how many rounds.
        """
        found = {name: moment.astype(np.float64) for name, moment in self._moments.items()}
        return found if self.schedule == CONSTANT or not found else found | {_APPLIED: np.array([float(self._applied)])}

    def load_state(self, state: Mapping[str, Floats]) -> None:
        """Take over a state.

        Raises ValueError: other names, arrays that are no finite vectors or differ in length, or a second moment below
        0. The state stays as it was.
        """
        needed = {*self._starts} | (set() if self.schedule == CONSTANT else {_APPLIED})
        if state and set(state) != needed:
            raise ValueError(f"the optimizer's state has {sorted(state)}; expected {sorted(needed)}")
        applied = np.array(state.get(_APPLIED, [0.0]), dtype=np.float64)
        if applied.shape != (1,) or not (applied[0] >= 0 and applied[0] == np.floor(applied[0])):
            raise ValueError("the optimizer's number of rounds is none")
        vectors = {name: np.array(state[name], dtype=np.float64) for name in self._starts if state}
        for name, vector in vectors.items():
            if vector.ndim != 1 or not np.isfinite(vector).all():
                raise ValueError(f"the optimizer's {name} is no finite vector")
        if len({vector.shape for vector in vectors.values()}) > 1 or (vectors.get("second", np.zeros(0)) < 0).any():
            raise ValueError("the optimizer's moments differ in length, or the second is below 0")
        self._moments = {name: vector.astype(self._precision) for name, vector in vectors.items()}
        self._applied = int(applied[0])

    def _step(self, moments: Mapping[str, NDArray[Any]], mean: NDArray[np.float64]) -> Floats:
        """Update the moments in place and return the direction of the change, (n,), of a block of values."""
        if self.name == FEDAVG:
            velocity = moments["velocity"]
            velocity[:] = self.momentum * velocity + mean
            return np.asarray(velocity)
        first, second, square = moments["first"], moments["second"], mean**2
        first[:] = self.momentum * first + (1 - self.momentum) * mean
        if self.name == FEDADAGRAD:
            second += square
        elif self.name == FEDYOGI:
            second -= (1 - self.second_momentum) * square * np.sign(second - square)
        else:
            second[:] = self.second_momentum * second + (1 - self.second_momentum) * square
        return np.asarray(first / (np.sqrt(second) + self.adaptivity))
