"""Local training of one participant, and the encoding of its update; neither ever fails visibly.

The coordinator chooses the model, and could choose one that overflows exactly when some example has a property. A
refusal would then answer a question about one participant, without noise and without a charge. So a participant whose
training or encoding fails sends zeros with noise, like any other update, and after as long: where training ends without
an update, the participant goes on working until a time that its trainings have taken.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.datasets import Dataset
from learning.own_task import place_of
from learning.parameters import Parameters, dimension, flatten_contribution, shapes_of, unflatten
from learning.public_random import PublicRandom
from learning.task import Task, at_round, held_out_metrics, held_out_split, weight_of
from mechanisms.encoder import Encoder, Words
from mechanisms.evaluation import NO_METRICS, NOT_EVALUATED, Evaluation, HeldOutMetrics

Update = NDArray[np.float32]


@dataclass(frozen=True)
class Contribution:
    """What a participant's data give to a round: an update, and what they say of the model that it began from."""

    update: Update = field(repr=False)
    metrics: HeldOutMetrics = field(repr=False)


_DIVERGED: Final = "it diverged"
_REMEMBERED: Final = 32
"""Trainings whose durations are imitated."""
_EARLY: Final = 0.1
"""Share of those that a failure may outlast and still be prolonged: one at a training's end has taken as long."""
_SPREAD: Final = 0.3
"""Standard deviation of what is added to one of them, over their own: an exact repetition would be recognised."""


class NoExamples(Exception):
    """The participant's data are empty."""


class LocalTraining:
    """A task with one participant's data.

    Attributes:
        broadcast_dim: number of parameters of a model.
        trained, failed: how often training ended, and how often without an update; shown only to the owner.
        last_failure: reason of the last failure; shown only to the owner.
    """

    def __init__(self, task: Task, data: Dataset, executor: Executor, log: Any, took: Sequence[float] = ()) -> None:
        """
        Args:
            took: seconds, of trainings before.
            executor: for training only: minutes of training must not delay the protocol's answers.
            log: a structlog logger.
        """
        self._task, self._data, self._executor, self._log = task, data, executor, log
        self._shapes: Final = shapes_of(task.initial_parameters())
        self.broadcast_dim: Final = dimension(self._shapes)
        self.trained, self.failed, self.last_failure = 0, 0, ""
        self._parts: dict[float, tuple[Dataset, Dataset]] = {}  # to train and to evaluate on, by the share held out
        self.took: deque[float] = deque(took, maxlen=_REMEMBERED)  # seconds, of trainings that ended
        self._untold: list[Callable[[], None]] = []

    async def train(
        self, model: Update, l2_clip: float, evaluation: Evaluation = NOT_EVALUATED, done: float = 0.0
    ) -> Contribution | None:
        """As `contribution`, from a model of shape (broadcast_dim,); one that fails ends when another might have."""

        def train() -> Contribution | None:  # also copies a large model outside the event loop
            began, parameters = time.perf_counter(), unflatten(model, self._shapes)
            made = self.contribution(parameters, l2_clip, evaluation, done)
            if made is None and self.last_failure != _DIVERGED:
                self._imitate(began, l2_clip, evaluation)
            else:
                self.took.append(time.perf_counter() - began)
            return made

        return await asyncio.get_running_loop().run_in_executor(self._executor, train)

    def _imitate(self, began: float, l2_clip: float, evaluation: Evaluation) -> None:
        """Work until a training that began then might have ended; without an example of one, train from the task's own
        parameters, which the coordinator doesn't choose.
        """
        if not self.took:
            began = time.perf_counter()
            if self._contribution(self._task.initial_parameters(), l2_clip, evaluation)[0] is not None:
                self.took.append(time.perf_counter() - began)
            return
        random, passed = secrets.SystemRandom(), time.perf_counter() - began
        if passed >= sorted(self.took)[int(_EARLY * len(self.took))]:
            return
        longer = [one for one in self.took if one > passed]
        until = began + random.choice(longer) + random.gauss(0, _SPREAD * statistics.pstdev(self.took))
        matrix = np.ones((128, 128), np.float32)
        while time.perf_counter() < until:  # not asleep: others would see this machine answer faster
            matrix @ matrix

    def contribution(
        self, parameters: Parameters, l2_clip: float, evaluation: Evaluation = NOT_EVALUATED, done: float = 0.0
    ) -> Contribution | None:
        """The update, shape (task.dim,), always finite, with its evaluation; None where training failed or diverged.

        Args:
            l2_clip: L2 norm to which the update will be clipped, in data units.
            evaluation: of the plan; says how many examples are held out.
            done: share of the study's rounds that are over, for a schedule of step sizes.
        """
        made, failure = self._contribution(parameters, l2_clip, evaluation, done)
        self.trained += 1
        if made is None:
            self.failed, self.last_failure = self.failed + 1, failure
        return made

    def _contribution(
        self, parameters: Parameters, l2_clip: float, evaluation: Evaluation, done: float = 0.0
    ) -> tuple[Contribution | None, str]:
        try:
            # Only for the order of examples in batches; noise and keys never come from it.
            order = PublicRandom(os.urandom(32))
            if not len(self._data):
                raise NoExamples
            data, metrics = self._data, NO_METRICS
            if evaluation:
                share = evaluation.held_out
                if share not in self._parts:
                    self._parts[share] = held_out_split(self._task, self._data, share)
                data, held = self._parts[share]
                metrics = self._metrics(parameters, data, held)
            made = at_round(self._task, done).local_update(parameters, data, order, l2_clip)
            update = flatten_contribution(made, self._task.contribution_shapes)
            update *= weight_of(self._task, len(data))
            diverged = update.shape != (self._task.dim,) or not np.isfinite(update).all()
        # Every error: signals don't reach a trainer's thread, so the task itself raised it, perhaps because of an
        # example. SystemExit, KeyboardInterrupt or a cancellation would end this whole process.
        except BaseException as error:
            return None, self._failed("training failed, zeros are sent", error)
        if diverged:
            self._untold.append(lambda: self._log.warning("training diverged, zeros are sent"))
            return None, _DIVERGED
        return Contribution(update, metrics), ""

    def _metrics(self, parameters: Parameters, data: Dataset, held: Dataset) -> HeldOutMetrics:
        """What is said of the model; nothing where that fails, and training goes on."""
        try:
            return held_out_metrics(self._task, parameters, data, held, PublicRandom(os.urandom(32)))
        except BaseException as error:
            self._failed("evaluation failed, nothing is said of the model", error)
            return NO_METRICS

    def _failed(self, event: str, error: BaseException) -> str:
        """Note a failure by its kind and its place; never by the error's text, which may hold data."""
        place, kind = place_of(error), type(error.__cause__ or error).__name__
        where = {"where": place} if place else {}
        self._untold.append(lambda: self._log.error(event, error=kind, **where))
        return f"{kind} at {place}" if place else kind

    def tell(self) -> None:
        """Log the failures since the last call: once the offer has left, which must not wait for a log."""
        while self._untold:
            self._untold.pop(0)()

    def encode(self, encoder: Encoder, made: Contribution | None, noise_seeds: Sequence[bytes] = ()) -> Words:
        """As words below 2^B, shape (padded_dim,), with noise; noise alone where there is nothing to encode."""
        update, metrics = (None, NO_METRICS) if made is None else (made.update, made.metrics)
        try:
            return encoder.encode(update, os.urandom, noise_seeds, metrics)
        except Exception as error:  # not seen; and whatever happens, nobody is to be told
            self._log.error("encoding failed, zeros are sent", error=type(error).__name__)
            return encoder.encode(None, os.urandom, noise_seeds)


def failure_summary(trainings: Sequence[LocalTraining]) -> str:
    """One sentence for the owner about the rounds in which zeros were sent; empty if there were none."""
    failed, trained = sum(one.failed for one in trainings), sum(one.trained for one in trainings)
    if not failed:
        return ""
    how = next(one.last_failure for one in reversed(trainings) if one.failed)
    whose = "your training" if len(trainings) == 1 else f"training of {len(trainings)} participants here"
    return f"{whose} failed in {failed} of {trained} rounds ({how}): zeros were sent, and charged"
