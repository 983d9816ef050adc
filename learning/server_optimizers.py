"""What the coordinator does with the mean update."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class ServerOptimizer(Protocol):
    """Turns model and mean update into the next model; its state goes into checkpoints."""

    def apply(self, parameters: NDArray[np.float32], mean_update: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the next flat parameters (d,)."""
        ...

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Return a copy of the state as named arrays; empty before the first ``apply``."""
        ...

    def load_state(self, state: Mapping[str, NDArray[np.floating]]) -> None:
        """Take over a state that ``state`` returned."""
        ...


class FedAvg:
    """Federated averaging with server momentum.

    velocity <- momentum x velocity + mean update; parameters <- parameters + rate x velocity.
    Source: [HQB19] (FedAvgM); momentum 0 and rate 1 is plain federated averaging.
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
        self._velocity: NDArray[np.float64] | None = None

    def apply(self, parameters: NDArray[np.float32], mean_update: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the next parameters; the arguments are not written to.

        Args:
            parameters: float32 (d,).
            mean_update: (d,), the decoded sum divided by the number of survivors.

        Raises:
            ValueError: lengths differ, or the mean holds NaN or infinity. The state stays as it was.
        """
        mean = np.asarray(mean_update, dtype=np.float64)
        if parameters.ndim != 1 or mean.shape != parameters.shape:
            raise ValueError(f"mean update {mean.shape} and parameters {parameters.shape} differ in shape")
        if not np.isfinite(mean).all():
            raise ValueError("the mean update holds NaN or infinity")
        if self._velocity is None:
            velocity = mean.copy()
        elif self._velocity.shape == mean.shape:
            velocity = self.momentum * self._velocity + mean
        else:
            raise ValueError(f"mean update {mean.shape} and velocity {self._velocity.shape} differ in shape")
        self._velocity = velocity
        return (parameters + self.rate * velocity).astype(np.float32)

    def state(self) -> dict[str, NDArray[np.float64]]:
        """Return {"velocity": float64 (d,)}, or nothing before the first ``apply``."""
        return {} if self._velocity is None else {"velocity": self._velocity.copy()}

    def load_state(self, state: Mapping[str, NDArray[np.floating]]) -> None:
        """Take over a state.

        Raises:
            ValueError: names other than ``velocity``, or an array that is no finite vector.
        """
        if not state:
            self._velocity = None
            return
        if set(state) != {"velocity"}:
            raise ValueError(f"the optimizer's state has {sorted(state)}; expected ['velocity']")
        velocity = np.array(state["velocity"], dtype=np.float64)
        if velocity.ndim != 1 or not np.isfinite(velocity).all():
            raise ValueError("the optimizer's velocity is no finite vector")
        self._velocity = velocity
