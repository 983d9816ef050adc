"""A task: what a participant computes from her data in a round, and what the coordinator makes of the mean.

Numpy arrays go in and numpy arrays come out, whatever library a task trains with. ``make_task`` imports a
task's module only when that task is asked for, so a process with a numpy task never loads torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from learning.datasets import Dataset
from learning.learner import Learner, ModelLearner
from learning.options import AE_DPFL, OptionError, TaskOptions
from learning.own_task import TaskMistake, TaskUnavailable, mistakes_told, task_class
from learning.parameters import Parameters, Shapes, dimension, shapes_of
from learning.public_random import PublicRandom, Shuffler
from learning.server_optimizers import ServerOptimizer
from learning.task_names import BUILT_IN, TASKS, check_task_name

__all__ = [
    "TASKS",
    "BatchedTask",
    "Classifier",
    "ModelTask",
    "Task",
    "TaskMistake",
    "TaskUnavailable",
    "clip_of",
    "make_task",
    "model_shapes",
    "options_of",
    "update_rng",
]


class Task(Protocol):
    """What server, client and simulation need to know of a task."""

    @property
    def name(self) -> str:
        """The name under which ``make_task`` knows it."""
        ...

    @property
    def options(self) -> TaskOptions:
        """The validated options, defaults filled in."""
        ...

    @property
    def dim(self) -> int:
        """d, the length of a flattened contribution."""
        ...

    @property
    def contribution_shapes(self) -> Shapes:
        """Names and shapes of what ``local_update`` returns; clips by layer take each array for a layer."""
        ...

    @property
    def l2_sensitivity(self) -> float | None:
        """Norm that no honest contribution exceeds, whatever the data; None where training decides."""
        ...

    def initial_parameters(self) -> Parameters:
        """Return what the first round begins from: the same in every process."""
        ...

    def local_update(self, parameters: Parameters, data: Dataset, rng: Shuffler, l2_clip: float) -> Parameters:
        """Return one participant's contribution to a round, such as new minus old parameters.

        A pure function of its arguments: no state is kept, ``parameters`` is not written to. It does not
        judge its result: training that diverges returns NaN or infinity, and the encoder refuses that.

        Args:
            parameters: what the round begins from, as ``initial_parameters`` shapes it.
            data: the participant's.
            rng: orders examples and nothing else.
            l2_clip: norm to which the contribution will be clipped in this round, data units; the smallest ball that
                holds all layers where they are clipped one by one. Infinite: it won't be.

        Raises:
            ValueError: no examples, labels or shapes that don't fit the task.
        """
        ...

    def learner(self, optimizer: ServerOptimizer, data: Dataset) -> Learner:
        """Return the coordinator's half, before the first round.

        Args:
            optimizer: at rest; statistics have no use for it.
            data: the coordinator's own.
        """
        ...


class ModelTask(ABC):
    """The half of a task that all models share: contributions are shaped as the model, and change it.

    A subclass has ``name``, ``Options``, ``initial_parameters``, ``local_update`` and ``evaluate``, and is made from
    its options.
    """

    l2_sensitivity: Final = None

    @abstractmethod
    def initial_parameters(self) -> Parameters:
        """Return the parameters before the first round: the same in every process."""

    @abstractmethod
    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        """Return at least ``accuracy`` (share in [0, 1]) and ``loss`` (mean cross-entropy, nats)."""

    @cached_property
    def contribution_shapes(self) -> Shapes:
        """Those of the model."""
        return shapes_of(self.initial_parameters())

    @cached_property
    def dim(self) -> int:
        """The model's number of parameters."""
        return dimension(self.contribution_shapes)

    def learner(self, optimizer: ServerOptimizer, data: Dataset) -> Learner:
        """The model, evaluated on ``data``; where that is empty, nothing is evaluated."""

        def evaluate(parameters: Parameters) -> dict[str, float]:
            return self.evaluate(parameters, data) if len(data) else {}

        return ModelLearner(self.initial_parameters(), optimizer, evaluate)


@runtime_checkable
class BatchedTask(Protocol):
    """A task that trains many participants at once, for simulations."""

    def local_updates(
        self,
        parameters: Parameters,
        data: Sequence[Dataset],
        rngs: Sequence[Shuffler],
        l2_clip: float,
        out: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Return what ``local_update`` would for each participant, up to rounding: (participants, dim).

        Written into ``out``, and that returned, where it is given: fresh memory of that size is slow to touch.
        """
        ...


@runtime_checkable
class Classifier(Protocol):
    """A model task that can say which class it takes an example for; what votes need of it (`learning.tasks.votes`)."""

    @property
    def classes(self) -> int:
        """How many there are; labels are 0 to classes - 1."""
        ...

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Of one example."""
        ...

    def predict(self, parameters: Parameters, examples: NDArray[Any]) -> NDArray[np.int64]:
        """Return the class of the greatest score for each example, (n,), 0 to classes - 1.

        Args:
            parameters: of the model, finite.
            examples: (n, *example_shape), uint8 or float32 as in a `Dataset`.
        """
        ...


def make_task(name: str, options: Mapping[str, object] | None = None) -> Task:
    """Make a task by name.

    Args:
        name: one of ``TASKS``, or ``module:Class`` of one's own. The module is an installed one, or a file in the
            folder that the command runs in. A coordinator never chooses it: each side names it in its own file.
        options: plain mapping from a study file; what is left out takes the task's default.

    Raises:
        OptionError: unknown task, unknown option, or a value outside its range; the message names it.
        TaskMistake: a class of one's own is wrong; the message names file and line. It is an `OptionError`.
        TaskUnavailable: the task needs torch, which is not installed, or a module that isn't there.
    """
    given = dict(options or {})
    try:
        check_task_name(name)
    except ValueError as error:
        raise OptionError(str(error)) from None
    kind = task_class(name)
    with mistakes_told(name, kind) if name not in BUILT_IN else nullcontext():
        made: Task = _make(name, kind, given)
    return made


def options_of(name: str, options: Mapping[str, object]) -> TaskOptions:
    """A task's options, checked, without making the task; of votes those of the task that is voted on.

    Raises:
        OptionError, TaskUnavailable: as `make_task`.
    """
    given = dict(options)
    if given.get("method") == AE_DPFL:
        from learning.tasks.votes import VoteOptions

        votes = {"method", *VoteOptions().to_mapping()}
        given = {key: value for key, value in given.items() if key not in votes}
    kind = task_class(name)
    with mistakes_told(name, kind) if name not in BUILT_IN else nullcontext():
        made: TaskOptions = kind.Options.from_mapping(given)
    return made


def model_shapes(name: str, options: Mapping[str, object]) -> Shapes:
    """Names and shapes of a task's model; of a statistic, of its contribution. Of votes: of the model that votes.

    A task that ships makes no array for it: who wrote the options may be a stranger.

    Raises:
        OptionError, TaskUnavailable: as `make_task`.
    """
    kind, made = task_class(name), options_of(name, options)
    stated = getattr(kind, "stated_shapes", None)
    shapes: Shapes = kind(made).contribution_shapes if stated is None or name not in BUILT_IN else stated(made)
    return shapes


def _make(name: str, kind: Any, given: dict[str, object]) -> Any:
    if given.get("method") == AE_DPFL:
        from learning.tasks.votes import Votes

        return Votes.over(name, kind, given)
    task = kind(kind.Options.from_mapping(given))
    if name not in BUILT_IN:
        task.name = name
    return task


def clip_of(task: Task, clip: float | None, *, adaptive: bool = False, sketch: bool = False) -> float:
    """Return the clip of a study: as stated, else the task's own bound where it has one, else 1.

    Args:
        clip: L2 norm in the contribution's units, or None.
        adaptive, sketch: whether clips follow a quantile of the norms, or a sketch is sent.

    Raises:
        OptionError: it would cut contributions of a task that bounds them itself: what comes out would not be its
            statistic.
    """
    bound = task.l2_sensitivity
    if bound is None:
        return 1.0 if clip is None else clip
    told = f"task {task.name!r} bounds each contribution to norm {bound:.6g} by itself"
    if adaptive:
        raise OptionError(f"{told}, and clips that adapt would distort the sum: leave clip_update fixed")
    if sketch:
        raise OptionError(f"{told}, and is exact where a sketch is not: leave sketch_rows out")
    if clip is not None and clip < bound:
        raise OptionError(f"{told}, and a clip of {clip:g} would distort the sum: leave the clip out")
    return bound if clip is None else clip


def update_rng(seed: int, round_number: int, participant: int) -> PublicRandom:
    """Return the generator of one participant's batch order in one round.

    It orders examples and nothing else: no mask, noise or rounding ever comes from it, so it need not be
    secret. Distinct (seed, round, participant) give independent streams.
    """
    return PublicRandom(b"batch order", seed, round_number, participant)
