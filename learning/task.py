"""A task: the model, how a participant trains it, how the coordinator judges it.

Numpy arrays go in and numpy arrays come out, whatever library a task trains with. ``make_task`` imports a
task's module only when that task is asked for, so a process with a numpy task never loads torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from learning.datasets import Dataset
from learning.options import OptionError, TaskOptions
from learning.parameters import Parameters
from learning.public_random import PublicRandom, Shuffler


class Task(Protocol):
    """What server, client and simulation need to know of a model."""

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
        """d, the length of the flattened parameters."""
        ...

    def initial_parameters(self) -> Parameters:
        """Return the parameters before the first round: the same in every process."""
        ...

    def local_update(self, parameters: Parameters, data: Dataset, rng: Shuffler) -> Parameters:
        """Train on one participant's data and return new minus old.

        A pure function of its arguments: no state is kept, ``parameters`` is not written to. It does not
        judge its result: training that diverges returns NaN or infinity, and the encoder refuses that.

        Raises:
            ValueError: no examples, labels or shapes that don't fit the task.
        """
        ...

    def evaluate(self, parameters: Parameters, data: Dataset) -> dict[str, float]:
        """Return at least ``accuracy`` (share in [0, 1]) and ``loss`` (mean cross-entropy, nats)."""
        ...


TASKS: Final = ("softmax-regression", "mlp", "cnn", "synthetic")


class TaskUnavailable(ImportError):
    """The task exists, but a library it trains with is not installed."""


def make_task(name: str, options: Mapping[str, object] | None = None) -> Task:
    """Make a task by name.

    Args:
        name: one of ``TASKS``.
        options: plain mapping from a study file; what is left out takes the task's default.

    Raises:
        OptionError: unknown task, unknown option, or a value outside its range; the message names it.
        TaskUnavailable: the task needs torch, which is not installed.
    """
    given = dict(options or {})
    if name == "softmax-regression":
        from learning.tasks.softmax_regression import SoftmaxOptions, SoftmaxRegression

        return SoftmaxRegression(SoftmaxOptions.from_mapping(given))
    if name == "mlp":
        from learning.tasks.mlp import Mlp, MlpOptions

        return Mlp(MlpOptions.from_mapping(given))
    if name == "synthetic":
        from learning.tasks.synthetic import Synthetic, SyntheticOptions

        return Synthetic(SyntheticOptions.from_mapping(given))
    if name == "cnn":
        try:
            from learning.tasks.cnn import Cnn, CnnOptions
        except ModuleNotFoundError as missing:
            if missing.name is None or missing.name.split(".")[0] != "torch":
                raise
            raise TaskUnavailable(
                "task 'cnn' trains with torch, which is not installed: pip install '.[torch]' in the checkout"
            ) from missing
        return Cnn(CnnOptions.from_mapping(given))
    raise OptionError(f"unknown task {name!r}; known tasks: {', '.join(TASKS)}")


def update_rng(seed: int, round_number: int, participant: int) -> PublicRandom:
    """Return the generator of one participant's batch order in one round.

    It orders examples and nothing else: no mask, noise or rounding ever comes from it, so it need not be
    secret. Distinct (seed, round, participant) give independent streams.
    """
    return PublicRandom(b"batch order", seed, round_number, participant)
