"""What the coordinator does with the mean update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from learning.task_names import ADAPTIVE, DEFAULT_RATES, FEDADAGRAD, FEDAVG, FEDYOGI, SERVER_OPTIMIZERS

_BLOCK: Final = 1 << 16


class ServerOptimizer(Protocol):
    """Turns model and mean update into the next model; its state goes into checkpoints."""

    def apply(self, parameters: NDArray[np.float32], mean_update: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the next flat parameters (d,)."""

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Return a copy of the state as named arrays; empty before the first ``apply``."""

    def load_state(self, state: Mapping[str, NDArray[np.floating]]) -> None:
        """Take over a state that ``state`` returned."""


class FedAvg:
    """Federated averaging with server momentum.

    velocity <- momentum x velocity + mean update; parameters <- parameters + rate x velocity. Source: [HQB19]
    (FedAvgM); momentum 0 and rate 1 is plain federated averaging.
    """

    def __init__(self, rate: float = 1.0, momentum: float = 0.0) -> None:
        """Make an optimizer at rest.

        Args:
            rate: server step size, finite and > 0.
            momentum: in [0, 1).

        Raises:
            ValueError: an argument lies outside its range.
        """
        if not (math.isfinite(rate) and rate > 0):
            raise ValueError(f"the server rate is {rate}; it must be a finite number above 0")
        if not 0 <= momentum < 1:
            raise ValueError(f"the server momentum is {momentum}; it must be at least 0 and below 1")
        self.rate = rate
        self.momentum = momentum
        self._velocity: NDArray[np.float32] | None = None  # as fine as the model that it moves

    def apply(self, parameters: NDArray[np.float32], mean_update: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the next parameters; the arguments are not written to.

        Args:
            parameters: float32 (d,).
            mean_update: (d,), the decoded sum divided by the number of survivors.

        Raises:
            ValueError: lengths differ, or the mean holds NaN or infinity. The state stays as it was.
        """
        mean = _checked(parameters, mean_update, self._velocity)
        velocity = np.zeros(mean.shape, np.float32) if self._velocity is None else self._velocity
        moved = np.empty_like(parameters)
        for start in range(0, mean.size, _BLOCK):  # a model of millions of values has few copies in memory
            here = slice(start, start + _BLOCK)
            velocity[here] = self.momentum * velocity[here] + mean[here]
            moved[here] = parameters[here] + self.rate * velocity[here]
        self._velocity = velocity
        return moved

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Return {"velocity": float64 (d,)}, or nothing before the first ``apply``."""
        return {} if self._velocity is None else {"velocity": self._velocity.astype(np.float64)}

    def load_state(self, state: Mapping[str, NDArray[np.floating]]) -> None:
        """Take over a state. Raises ValueError: names other than ``velocity``, or an array that is no finite vector."""
        found = _vectors(state, "velocity").get("velocity")
        self._velocity = None if found is None else found.astype(np.float32)


class FedAdaptive:
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
        """Make an optimizer at rest.

        Args:
            name: ``fedadagrad``, ``fedadam`` or ``fedyogi``.
            rate: server step size, finite and > 0.
            momentum: of m, in [0, 1).
            second: b2, of v, in [0, 1); FedAdagrad has none.
            adaptivity: tau, finite and > 0: smaller is more adaptive.

        Raises:
            ValueError: an argument lies outside its range.
        """
        if name not in ADAPTIVE:
            raise ValueError(f"unknown server optimizer {name!r}; known ones: {', '.join(SERVER_OPTIMIZERS)}")
        FedAvg(rate, momentum)  # the same ranges, the same words
        if not 0 <= second < 1:
            raise ValueError(f"the server's second momentum is {second}; it must be at least 0 and below 1")
        if not (math.isfinite(adaptivity) and adaptivity > 0):
            raise ValueError(f"the server's adaptivity is {adaptivity}; it must be a finite number above 0")
        self.name, self.rate, self.momentum, self.second, self.adaptivity = name, rate, momentum, second, adaptivity
        self._first: NDArray[np.float64] | None = None
        self._second: NDArray[np.float64] | None = None

    def apply(self, parameters: NDArray[np.float32], mean_update: NDArray[np.floating]) -> NDArray[np.float32]:
        mean = _checked(parameters, mean_update, self._first)
        first = np.zeros_like(mean) if self._first is None else self._first
        second = np.full_like(mean, self.adaptivity**2) if self._second is None else self._second
        moved = np.empty_like(parameters)
        for start in range(0, mean.size, _BLOCK):
            here = slice(start, start + _BLOCK)
            first[here] = self.momentum * first[here] + (1 - self.momentum) * mean[here]
            second[here] = self._next_second(second[here], mean[here] ** 2)
            moved[here] = parameters[here] + self.rate * first[here] / (np.sqrt(second[here]) + self.adaptivity)
        self._first, self._second = first, second
        return moved

    def _next_second(self, second: NDArray[np.float64], square: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.name == FEDADAGRAD:
            return second + square
        if self.name == FEDYOGI:
            return second - (1 - self.second) * square * np.sign(second - square)
        return self.second * second + (1 - self.second) * square

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Return {"first", "second"}: float64 (d,), or nothing before the first ``apply``."""
        if self._first is None or self._second is None:
            return {}
        return {"first": self._first.copy(), "second": self._second.copy()}

    def load_state(self, state: Mapping[str, NDArray[np.floating]]) -> None:
        """Take over a state. Raises ValueError: other names, arrays that are no finite vectors, or a second moment
        below 0.
        """
        found = _vectors(state, "first", "second")
        if found and (found["first"].shape != found["second"].shape or float(found["second"].min(initial=0)) < 0):
            raise ValueError("the optimizer's moments differ in length, or the second is below 0")
        self._first, self._second = found.get("first"), found.get("second")


def make_server_optimizer(
    name: str = "fedavg",
    rate: float | None = None,
    momentum: float = 0.0,
    second_momentum: float = 0.99,
    adaptivity: float = 1e-3,
) -> ServerOptimizer:
    """Make one of ``SERVER_OPTIMIZERS`` by name; the last two arguments count for the adaptive ones only.

    Args:
        rate: None takes that of `DEFAULT_RATES`.

    Raises:
        ValueError: an unknown name, or an argument outside its range.
    """
    if rate is None:
        rate = DEFAULT_RATES.get(name, 1.0)
    if name == FEDAVG:
        return FedAvg(rate, momentum)
    return FedAdaptive(name, rate, momentum, second_momentum, adaptivity)


def _checked(
    parameters: NDArray[np.float32], mean_update: NDArray[np.floating], moment: NDArray[np.floating] | None
) -> NDArray[np.float64]:
    mean = np.asarray(mean_update, dtype=np.float64)
    if parameters.ndim != 1 or mean.shape != parameters.shape:
        raise ValueError(f"mean update {mean.shape} and parameters {parameters.shape} differ in shape")
    if not np.isfinite(mean).all():
        raise ValueError("the mean update holds NaN or infinity")
    if moment is not None and moment.shape != mean.shape:
        raise ValueError(f"mean update {mean.shape} and the optimizer's state {moment.shape} differ in shape")
    return mean


def _vectors(state: Mapping[str, NDArray[np.floating]], *names: str) -> dict[str, NDArray[np.float64]]:
    if not state:
        return {}
    if set(state) != set(names):
        raise ValueError(f"the optimizer's state has {sorted(state)}; expected {sorted(names)}")
    vectors = {name: np.array(state[name], dtype=np.float64) for name in names}
    for name, vector in vectors.items():
        if vector.ndim != 1 or not np.isfinite(vector).all():
            raise ValueError(f"the optimizer's {name} is no finite vector")
    return vectors
