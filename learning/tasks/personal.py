"""A model of which some arrays never travel, such as the last layer: each participant fits its own anew in every round.

Nothing of them is kept between rounds, so a participant that restarts, or takes part once, needs no state; the sum, its
noise and its bytes are for the other arrays alone.

Source: [SSM+21] Algorithm 1 (federated reconstruction). Deviations: a participant fits and updates on all of its
examples, and fits for as many steps as it updates; it fits by plain descent, whatever the method of the update.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import Any, Final, cast

from learning.datasets import Dataset
from learning.learner import Learner, ModelLearner
from learning.options import CONSTANT, DP_FEDAVG, OptionError, TrainingOptions, shown_value
from learning.parameters import Parameters, Shapes, dimension
from learning.public_random import Shuffler
from learning.server_optimizers import ServerOptimizer
from learning.task import ModelTask, with_options
from learning.tasks.inputs import TrainedTask
from mechanisms.statement import LARGEST_DIM

_OF_THE_WHOLE: Final = frozenset({"check_form", "training_device", "example_shape", "classes"})
"""What is asked of a task besides the methods of `ModelTask`, where it has it."""


def travelling(shapes: Shapes, personal: str) -> Shapes:
    """The arrays that travel.

    Args:
        personal: names of arrays, or of layers, whose arrays are ``layer.weight``, ``layer_bias`` and the like, with
            commas between.

    Raises OptionError: a name that no array has, no array is left, or all of them are too large to be tried.
    """
    if dimension(shapes) > LARGEST_DIM:  # the plan's number of values doesn't count those that stay
        raise OptionError(f"the model has {dimension(shapes)} values; at most {LARGEST_DIM} are tried")
    names = [name.strip() for name in personal.split(",")]
    for name in names:
        if not any(_belongs(one, name) for one in shapes):
            raise OptionError(f"option 'personal' names {shown_value(name)}; the model has {', '.join(shapes)}")
    found = {one: shape for one, shape in shapes.items() if not any(_belongs(one, name) for name in names)}
    if not found:
        raise OptionError(
            f"option 'personal' is {shown_value(personal)}: nothing of the model is left to learn together"
        )
    return found


def _belongs(array: str, name: str) -> bool:
    return array == name or array.startswith((f"{name}.", f"{name}_"))


class Personal(ModelTask):
    """A task with `TrainingOptions.personal`; only participants can evaluate it."""

    def __init__(self, whole: ModelTask) -> None:
        """Raises OptionError: as `travelling`; or the class trains in a way of its own, which couldn't be told what to
        leave as it is.
        """
        if not isinstance(whole, TrainedTask):
            raise OptionError("option 'personal' is for models that ship and for classes derived from TorchTask")
        self._whole = cast(Any, whole)  # of more than its base class says
        # With the digest of a backbone. What is fitted begins anew in each round, so it has the rate of the first one.
        self.options: TrainingOptions = self._whole.options
        self._fitting = replace(self.options, personal="", method=DP_FEDAVG, client_schedule=CONSTANT)
        self.name, self.judged = self._whole.name, whole.judged
        self.contribution_shapes = travelling(whole.contribution_shapes, self.options.personal)

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_THE_WHOLE:
            raise AttributeError(name)
        return getattr(self._whole, name)

    def initial_parameters(self) -> Parameters:
        return self._shared(self._whole.initial_parameters())

    def fitted(self, parameters: Parameters, data: Dataset, rng: Shuffler) -> Parameters:
        start: Parameters = self._whole.initial_parameters() | parameters
        change = self._training(self._fitting, self.contribution_shapes).local_update(start, data, rng, inf)
        own = {name: array + change[name] for name, array in start.items() if name not in parameters}
        return start | own

    def local_update(self, parameters: Parameters, data: Dataset, rng: Shuffler, l2_clip: float = inf) -> Parameters:
        """Fit, then train the other arrays and return new minus old of them, as `learning.task.Task.local_update`."""
        start = self.fitted(parameters, data, rng)
        training = self._training(replace(self.options, personal=""), start.keys() - self.contribution_shapes)
        return self._shared(training.local_update(start, data, rng, l2_clip))

    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        """``parameters``: of `fitted`."""
        found: dict[str, float] = self._whole.evaluate(parameters, data)
        return found

    def learner(self, optimizer: ServerOptimizer, data: Dataset) -> Learner:
        """The shared arrays, which alone can't be evaluated."""
        return ModelLearner(self.initial_parameters(), optimizer, lambda _: {})

    def _shared(self, whole: Parameters) -> Parameters:
        return {name: whole[name] for name in self.contribution_shapes}

    def _training(self, options: TrainingOptions, frozen: Iterable[str]) -> Any:
        """The whole task, training by these options all but some arrays."""
        return with_options(self._whole, options.freezing(frozen))
