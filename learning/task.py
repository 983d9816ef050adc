"""A task: what a participant computes from its data in a round, and what the coordinator makes of the mean.

Numpy arrays go in and numpy arrays come out, whatever library a task trains with.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from learning.datasets import Dataset
from learning.learner import Learner, ModelLearner
from learning.options import CONSTANT, TaskOptions, TrainingOptions
from learning.parameters import Parameters, Shapes, dimension, shapes_of
from learning.partitions import hold_out
from learning.progress import JUDGED
from learning.public_random import PublicRandom, Shuffler
from learning.server_optimizers import ServerOptimizer
from mechanisms.evaluation import NO_METRICS, HeldOutMetrics, MeanMetrics


class Task(Protocol):
    """What server, client and simulation need to know of a task."""

    @property
    def name(self) -> str:
        """The name under which ``make_task`` knows it."""

    @property
    def options(self) -> TaskOptions:
        """The validated options, defaults filled in."""

    @property
    def dim(self) -> int:
        """d, the length of a flattened contribution."""

    @property
    def contribution_shapes(self) -> Shapes:
        """Names and shapes of what ``local_update`` returns; clips by layer take each array for a layer."""

    @property
    def judged(self) -> tuple[str, ...]:
        """Those of ``accuracy`` and ``loss`` that ``evaluate`` gives of a model; empty where there is none to judge."""
        return ()

    @property
    def l2_sensitivity(self) -> float | None:
        """Norm that no honest contribution exceeds, whatever the data; None where training decides."""

    def initial_parameters(self) -> Parameters:
        """Return what the first round begins from: the same in every process."""

    def local_update(self, parameters: Parameters, data: Dataset, rng: Shuffler, l2_clip: float) -> Parameters:
        """Return one participant's contribution to a round, such as new minus old parameters.

        A pure function of its arguments: no state is kept, ``parameters`` is not written to. It does not judge its
        result: training that diverges returns NaN or infinity, and the encoder refuses that.

        Args:
            parameters: what the round begins from, as ``initial_parameters`` shapes it.
            rng: orders examples and nothing else.
            l2_clip: norm to which the contribution will be clipped in this round, data units; the smallest ball that
                holds all layers where they are clipped one by one. Infinite: it won't be.

        Raises ValueError: no examples, labels or shapes that don't fit the task.
        """

    def learner(self, optimizer: ServerOptimizer, data: Dataset) -> Learner:
        """Return the coordinator's half, before the first round.

        Args:
            optimizer: at rest; statistics have no use for it.
            data: the coordinator's own.
        """


class ModelTask(ABC):
    """The half of a task that all models share: contributions are shaped as the model, and change it.

    A subclass has ``name``, ``Options``, ``initial_parameters``, ``local_update`` and ``evaluate``, and is made from
    its options.
    """

    l2_sensitivity: Final = None
    judged: tuple[str, ...] = JUDGED

    @abstractmethod
    def initial_parameters(self) -> Parameters:
        """Return the parameters before the first round: the same in every process."""

    @abstractmethod
    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        """Return figures by name: of a classifier ``accuracy`` (share in [0, 1]) and ``loss`` (mean, nats).

        Others, such as ``mean_absolute_error`` of a regression, are shown under their names.
        """

    def fitted(self, parameters: Parameters, data: Dataset, rng: Shuffler) -> Parameters:
        """Return the whole model of a participant with these examples, for `evaluate`; by default the round's model."""
        return parameters

    @cached_property
    def contribution_shapes(self) -> Shapes:
        return shapes_of(self.initial_parameters())

    @cached_property
    def dim(self) -> int:
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

        Written into ``out`` if given, which is then returned: fresh memory of that size is slow to touch. It holds
        anything before, so every row must be written.
        """


@runtime_checkable
class Classifier(Protocol):
    """A model that predicts the class of an example; votes need it (`learning.tasks.votes`)."""

    @property
    def classes(self) -> int:
        """How many there are; labels are 0 to classes - 1."""

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Of one example."""

    def predict(self, parameters: Parameters, examples: NDArray[Any]) -> NDArray[np.int64]:
        """Return the class of the greatest score for each example, (n,), 0 to classes - 1.

        Args:
            parameters: of the model, finite.
            examples: (n, *example_shape), uint8 or float32 as in a `Dataset`.
        """

    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        """As `ModelTask.evaluate`."""


def at_round(task: Task, done: float) -> Task:
    """The task with the step size of a round, once a share ``done`` of the rounds is over."""
    options = getattr(task, "options", None)  # a class of the user's own may keep none
    if not isinstance(options, TrainingOptions) or options.client_schedule == CONSTANT:
        return task
    return with_options(task, options.at(done))


def with_options(task: Task, options: TrainingOptions) -> Task:
    """The task, to train by other options; what it was made of is shared."""
    found: Any = copy.copy(task)
    found.options = options
    return cast(Task, found)


def weight_of(task: Task, examples: int) -> float:
    """Of a participant's change, before it is clipped."""
    options = getattr(task, "options", None)
    return options.weight(examples) if isinstance(options, TrainingOptions) else 1.0


def update_rng(seed: int, round_number: int, participant: int) -> PublicRandom:
    """Return the generator of one participant's batch order in one round.

    It orders examples and nothing else: no mask, noise or rounding ever comes from it, so it need not be
    secret. Distinct (seed, round, participant) give independent streams.
    """
    return PublicRandom(b"batch order", seed, round_number, participant)


def held_out_split(task: Task, data: Dataset, share: float) -> tuple[Dataset, Dataset]:
    """(to train on, to evaluate on): a share is held out, unless the task loads its data by itself and divides them."""
    return (data, data) if getattr(task, "divides_itself", False) else hold_out(data, share)


def held_out_metrics(task: Task, parameters: Parameters, data: Dataset, held: Dataset, rng: Shuffler) -> HeldOutMetrics:
    """A participant's figures of the model on examples that it never trains on.

    Args:
        data: that it trains on, for arrays of its own; ``rng`` orders them.

    Raises ValueError: the task gives others than it states; besides whatever its ``evaluate`` raises.
    """
    if not len(held):
        return NO_METRICS
    if isinstance(task, ModelTask):
        parameters = task.fitted(parameters, data, rng)
    found = cast(ModelTask, task).evaluate(parameters, held)
    missing = [name for name in task.judged if name not in found]
    if missing:
        raise ValueError(
            f"evaluate gives no {' and no '.join(missing)}: state what it gives, as judged = ('loss',) in a class, or "
            "as the option judged=loss of a Flower app"
        )
    examples = int(found.get("examples", len(held)))
    return HeldOutMetrics(examples, found.get("accuracy", math.nan), found.get("loss", math.nan))


def reported_of(task: Task, measured: MeanMetrics | None) -> dict[str, float]:
    """What participants report of a model: ``accuracy`` and ``loss``, as far as the task has them, each with its
    ``_stderr``, and ``weight``; empty where they don't, or too few did.
    """
    if measured is None:
        return {}
    found = measured._asdict()
    return {name: found[name] for one in task.judged for name in (one, f"{one}_stderr")} | {"weight": measured.weight}
