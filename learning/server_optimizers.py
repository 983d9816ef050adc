"""What the coordinator does with the mean update."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.parameters import Floats
from learning.task_names import ADAPTIVE, DEFAULT_RATES, FEDADAGRAD, FEDAVG, FEDYOGI, SERVER_OPTIMIZERS

_BLOCK: Final = 1 << 16


class ServerOptimizer(ABC):
    """Turns model and mean update into the next model; its moments go into checkpoints."""

    def __init__(
        self, rate: float, momentum: float, starts: Mapping[str, float], precision: type[np.floating] = np.float64
    ) -> None:
        """
        Args:
            rate: server step size, finite and > 0.
            momentum: of the mean update, in [0, 1).
            starts: initial value of each moment, by its name.
            precision: of the moments in memory; a checkpoint holds float64.

        Raises ValueError, as the subclasses do: an argument lies outside its range.
        """
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"the server rate is {rate}; it must be a finite number above 0")
        if not 0 <= momentum < 1:
            raise ValueError(f"the server momentum is {momentum}; it must be at least 0 and below 1")
        self.rate, self.momentum = rate, momentum
        self._starts, self._precision = starts, precision
        self._moments: dict[str, NDArray[Any]] = {}

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
        moved = np.empty_like(parameters)
        for start in range(0, mean.size, _BLOCK):  # a model of millions of values has few copies in memory
            here = slice(start, start + _BLOCK)
            moments = {name: moment[here] for name, moment in self._moments.items()}
            moved[here] = parameters[here] + self.step(moments, mean[here])
        return moved

    @abstractmethod
    def step(self, moments: Mapping[str, NDArray[Any]], mean: NDArray[np.float64]) -> Floats:
        """Update the moments in place and return the change of the parameters, (n,), of one block of values."""

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Return a copy of the moments by name, float64 (d,) each; empty before the first ``apply``."""
        return {name: moment.astype(np.float64) for name, moment in self._moments.items()}

    def load_state(self, state: Mapping[str, Floats]) -> None:
        """Take over a state. Raises ValueError: other names, or arrays that are no finite vectors."""
        if state and set(state) != set(self._starts):
            raise ValueError(f"the optimizer's state has {sorted(state)}; expected {sorted(self._starts)}")
        vectors = {name: np.array(state[name], dtype=np.float64) for name in self._starts if state}
        for name, vector in vectors.items():
            if vector.ndim != 1 or not np.isfinite(vector).all():
                raise ValueError(f"the optimizer's {name} is no finite vector")
        self._moments = {name: vector.astype(self._precision) for name, vector in vectors.items()}


class FedAvg(ServerOptimizer):
    """Federated averaging with server momentum.

    velocity <- momentum x velocity + mean update; parameters <- parameters + rate x velocity. Source: [HQB19]
    (FedAvgM); momentum 0 and rate 1 is plain federated averaging.
    """

    def __init__(self, rate: float = 1.0, momentum: float = 0.0) -> None:
        super().__init__(rate, momentum, {"velocity": 0.0}, np.float32)  # as fine as the model that it moves

    def step(self, moments: Mapping[str, NDArray[Any]], mean: NDArray[np.float64]) -> Floats:
        velocity: NDArray[np.float32] = moments["velocity"]
        velocity[:] = self.momentum * velocity + mean
        return self.rate * velocity


class FedAdaptive(ServerOptimizer):
    """An adaptive server optimiser: FedAdagrad, FedAdam or FedYogi.

    With the mean update D as pseudo-gradient, elementwise:

        m <- momentum x m + (1 - momentum) x D
        FedAdagrad: v <- v + D^2
        FedYogi:    v <- v - (1 - b2) x D^2 x sign(v - D^2)
        FedAdam:    v <- b2 x v + (1 - b2) x D^2
        parameters <- parameters + rate x m / (sqrt(v) + adaptivity)

    m starts at 0 and v at adaptivity^2, the smallest that the source allows; like the source's, this has no bias
    correction. Under noise v is at least the variance of the noise of the mean: choose adaptivity and rate with it.
    Source: [RCZ+21] Algorithm 2.
    """

    def __init__(
        self, name: str, rate: float = 0.01, momentum: float = 0.9, second: float = 0.99, adaptivity: float = 1e-3
    ) -> None:
        """
        Args:
            name: ``fedadagrad``, ``fedadam`` or ``fedyogi``.
            second: b2, of v, in [0, 1); FedAdagrad has none.
            adaptivity: tau, finite and > 0: smaller is more adaptive.
        """
        if name not in ADAPTIVE:
            raise ValueError(f"unknown server optimizer {name!r}; known ones: {', '.join(SERVER_OPTIMIZERS)}")
        super().__init__(rate, momentum, {"first": 0.0, "second": adaptivity**2})
        if not 0 <= second < 1:
            raise ValueError(f"the server's second momentum is {second}; it must be at least 0 and below 1")
        if not (math.isfinite(adaptivity) and adaptivity > 0):
            raise ValueError(f"the server's adaptivity is {adaptivity}; it must be a finite number above 0")
        self.name, self.second, self.adaptivity = name, second, adaptivity

    def step(self, moments: Mapping[str, NDArray[Any]], mean: NDArray[np.float64]) -> Floats:
        first, second = moments["first"], moments["second"]
        first[:] = self.momentum * first + (1 - self.momentum) * mean
        second[:] = self._next_second(second, mean**2)
        change: NDArray[np.float64] = self.rate * first / (np.sqrt(second) + self.adaptivity)
        return change

    def _next_second(self, second: NDArray[np.float64], square: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.name == FEDADAGRAD:
            return second + square
        if self.name == FEDYOGI:
            return second - (1 - self.second) * square * np.sign(second - square)
        return self.second * second + (1 - self.second) * square

    def load_state(self, state: Mapping[str, Floats]) -> None:
        """As `ServerOptimizer.load_state`. Raises ValueError also for a second moment below 0."""
        before = self._moments
        super().load_state(state)
        found = self._moments
        if found and (found["first"].shape != found["second"].shape or float(found["second"].min(initial=0)) < 0):
            self._moments = before
            raise ValueError("the optimizer's moments differ in length, or the second is below 0")


def make_server_optimizer(
    name: str = "fedavg",
    rate: float | None = None,
    momentum: float = 0.0,
    second_momentum: float = 0.99,
    adaptivity: float = 1e-3,
) -> ServerOptimizer:
    """Make one of ``SERVER_OPTIMIZERS`` by name; the last two arguments count for the adaptive ones only.

    ``rate``: None takes that of `DEFAULT_RATES`. Raises ValueError: an unknown name, or an argument outside its range.
    """
    if rate is None:
        rate = DEFAULT_RATES.get(name, 1.0)
    if name == FEDAVG:
        return FedAvg(rate, momentum)
    return FedAdaptive(name, rate, momentum, second_momentum, adaptivity)
