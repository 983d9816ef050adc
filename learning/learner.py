"""The coordinator's half of a task: it turns the mean of a round into the start of the next round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from learning.checkpoints import load_arrays
from learning.parameters import Floats, Parameters, flatten, shapes_of, views
from learning.server_optimizers import ServerOptimizer
from mechanisms.model_step import ModelStep

State = dict[str, NDArray[np.float64]]


def further_figures(evaluation: Mapping[str, float]) -> dict[str, float]:
    """What an evaluation says besides ``accuracy`` and ``loss``; screens and reports show it by its names."""
    return {name: float(value) for name, value in evaluation.items() if name not in ("accuracy", "loss")}


class Learner(Protocol):
    """What a task's coordinator keeps between rounds. It reads noised means and nothing else of participants."""

    def prepare(self, rounds: int) -> None:
        """Receive the study's number of rounds, before the first one and after every restart; by default any will do.

        Raises learning.options.OptionError: it can't serve that many.
        """
        return

    def broadcast(self) -> Parameters:
        """What the next round begins from, shaped as the task's ``initial_parameters``."""

    def learn(self, mean: Floats, survivors: int, stddev: float = 0.0) -> None:
        """Take in a round. Raises ValueError, and changes nothing, for a mean that doesn't fit or isn't finite.

        Args:
            mean: (dim,) of the survivors' contributions, with noise.
            stddev: of the noise in one coordinate of ``mean``, at most, in its units; 0 without noise.
        """

    def step(self) -> ModelStep | None:
        """From what was broadcast before the last `learn` to what is now, once; None where only the whole says it."""
        return None

    def evaluate(self) -> dict[str, float]:
        """Figures on the coordinator's own data by name; see `ModelTask.evaluate`."""
        return {}

    def released(self) -> dict[str, Any]:
        """What the study has found so far, as finite JSON values; empty where all it finds is a model.

        Screens and reports show a statistic if it has ``statistic`` (its name) and ``values``, a list of tables with
        ``name``, ``value`` (a number, or None where nothing can be said) and, where they are known, ``standard_error``
        or the ends ``low`` and ``high`` of an interval; without a value also ``why``, "noise" or "few answered";
        besides ``participants`` (in the last sum), ``rounds``, ``asked`` (option -> text) and ``note`` (what the
        figures mean, one sentence).
        """
        return {}

    def state(self) -> tuple[Parameters, State]:
        """For a checkpoint: the model or statistic, and all other state that the next round depends on."""

    def load_state(self, parameters: Parameters, state: Mapping[str, Floats]) -> None:
        """Take over what ``state`` returned. Raises ValueError: it is another task's."""


class ModelLearner(Learner):
    """A model that the mean update changes, through a server optimiser, on the grid of `ModelStep`."""

    def __init__(
        self, initial: Parameters, optimizer: ServerOptimizer, evaluate: Callable[[Parameters], dict[str, float]]
    ) -> None:
        """``optimizer``: at rest; its state is kept here."""
        self._shapes = shapes_of(initial)
        self._vector: NDArray[np.float32] = flatten(initial)
        self._optimizer, self._evaluate = optimizer, evaluate
        self._step: ModelStep | None = None

    def broadcast(self) -> Parameters:
        """The model, to be read: a large one isn't copied."""
        return views(self._vector, self._shapes)

    def learn(self, mean: Floats, survivors: int, stddev: float = 0.0) -> None:
        moved = self._optimizer.apply(self._vector, mean)
        self._step = ModelStep.between(self._vector, moved)
        self._vector = moved if self._step is None else self._step.applied(self._vector)

    def step(self) -> ModelStep | None:
        step, self._step = self._step, None  # of a large model it is large
        return step

    def start_from(self, path: Path) -> None:
        """Begin with the arrays of these names in a .safetensors file, such as a checkpoint of another study.

        Raises CheckpointError: it can't be read, or has not all of them in these shapes.
        """
        self._vector = flatten(load_arrays(path, self._shapes))

    def evaluate(self) -> dict[str, float]:
        return self._evaluate(self.broadcast())

    def state(self) -> tuple[Parameters, State]:
        return self.broadcast(), self._optimizer.state()

    def load_state(self, parameters: Parameters, state: Mapping[str, Floats]) -> None:
        if list(shapes_of(parameters).items()) != list(self._shapes.items()):
            raise ValueError("the checkpoint holds another model")
        self._vector, self._step = flatten(parameters), None
        self._optimizer.load_state(state)
