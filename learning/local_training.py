"""Local training of one participant in a round: one loop for all methods, for numpy arrays and torch tensors.

A task supplies the gradient of its loss; steps, proximal terms and sparsity are here. Arrays may have a leading axis of
participants, which then train side by side, each its own model on its own examples; simulations use that. Nothing here
limits what leaves a participant: the encoder clips the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from learning.options import BLUR, BLUR_LUS, DP_FEDSGD, FEDPROX, LUS, TrainingOptions
from learning.public_random import Shuffler

Arrays: TypeAlias = dict[str, Any]
"""A model, a gradient or a change of either library: name to array, each (...) or (participants, ...)."""

_ALWAYS: Final = -1.0  # no norm is below it


@dataclass(frozen=True)
class Batch:
    """Examples of one step.

    Attributes:
        rows: numbers of the examples: (n,), or (participants, n) where several train side by side.
        counted: bool of that shape, False where a row only fills up; None: all count.
    """

    rows: Any
    counted: Any = None


Gradient: TypeAlias = Callable[[Arrays, Batch, bool], tuple[Arrays, Any]]
"""(model, batch, whether this is training) -> gradient of the mean loss over what counts in the batch, in arrays that
may be written to, and how much counts: a number, or float32 (participants,). Where nothing counts the gradient is 0.
Dropout acts in training alone."""


def steps(options: TrainingOptions, examples: int, rng: Shuffler) -> Iterator[NDArray[np.int64]]:
    """Rows of each step of a participant: passes in a fresh order each, cut into batches ([MRTZ18] Algorithm 1).

    ``local_epochs`` passes, or ``local_steps`` steps through as many passes as they take. None for dp-fedsgd, which has
    no steps: see `local_change`.

    Args:
        examples: the participant's number of examples, >= 1.
        rng: one permutation a pass is drawn, when it is due.
    """
    if options.method == DP_FEDSGD:
        return
    left = options.local_steps or options.local_epochs * -(-examples // options.batch_size)
    while left:
        order = rng.permutation(examples)
        for start in range(0, examples, options.batch_size):
            if not left:
                return
            yield order[start : start + options.batch_size]
            left -= 1


def blocks(options: TrainingOptions, examples: int) -> Iterator[NDArray[np.int64]]:
    """All rows of a participant in order, in blocks of a step's size, for which memory is enough."""
    for start in range(0, examples, options.batch_size):
        yield np.arange(start, min(start + options.batch_size, examples))


def side_by_side(of_each: Sequence[Iterable[NDArray[np.int64]]], sizes: Sequence[int]) -> Iterator[Batch]:
    """Steps of several participants as steps of all; participants with fewer steps or examples are padded.

    Args:
        of_each: per participant the rows of its steps, numbered from 0.
        sizes: numbers of examples of each, which lie one behind the other among those of all.
    """
    first_rows = np.cumsum([0, *sizes[:-1]])
    for step in zip_longest(*of_each):
        lengths = np.array([0 if rows is None else len(rows) for rows in step])
        counted = np.arange(int(lengths.max())) < lengths[:, None]
        rows = np.repeat(first_rows[:, None], counted.shape[1], axis=1)
        rows[counted] += np.concatenate([rows_of_one for rows_of_one in step if rows_of_one is not None])
        yield Batch(rows, None if counted.all() else counted)


def batches_of_all(
    options: TrainingOptions, sizes: Sequence[int], rngs: Sequence[Shuffler]
) -> tuple[Iterator[Batch], Callable[[], Iterator[Batch]]]:
    """``step_batches`` and ``all_batches`` of `local_change`, for participants side by side."""
    of_steps = side_by_side([steps(options, size, rng) for size, rng in zip(sizes, rngs, strict=True)], sizes)
    return of_steps, lambda: side_by_side([blocks(options, size) for size in sizes], sizes)


def local_change(
    start: Arrays,
    model: Arrays,
    options: TrainingOptions,
    l2_clip: float,
    step_batches: Iterable[Batch],
    all_batches: Callable[[], Iterable[Batch]],
    gradient: Gradient,
) -> Arrays:
    """Train and return the change of the model.

    With g the gradient of the mean loss of a step's batch, w the model and w^t what the round began from:

        dp-fedavg: w <- w - client_rate x g                                   [MRTZ18] Algorithm 1, UserUpdateFedAvg
        dp-fedsgd: the change is -client_rate x the gradient over all data    [MRTZ18] Algorithm 1, UserUpdateFedSGD
        fedprox:   w <- w - client_rate x (g + mu (w - w^t))                  [LSZ+20]
        blur:      w <- w - client_rate x (g + lambda (w - w^t) [||w - w^t|| > S])    [CWZC22] Eq. 5 and 7
        lus:       as dp-fedavg; then in each array the change keeps the s values of largest |df/dw x change|
                                                                              [CWZC22] Eq. 11, 14 and 15
        blur-lus:  both                                                       [CWZC22] Algorithm 2

    Deviation: of values that tie for the last place LUS keeps those that changed most, so that exactly s are kept;
    Eq. 14 as printed keeps all that tie, the text below it exactly s. Ties are common: of a unit that is off for all
    examples at the end no weight matters to the loss.

    Args:
        start: w^t, without the axis of participants; not written to.
        model: a copy of it for each participant, or for the one; written to.
        l2_clip: S, of the whole model's change, in data units; with an infinite one BLUR never acts.
        step_batches: of each step, in order; see `steps`.
        all_batches: gives all examples, for what is a gradient over all data; see `blocks`.

    Returns the change, in the arrays of ``model``; NaN or infinite where training diverged.
    """
    rate = options.client_rate
    if options.frozen:
        gradient = _with_frozen(gradient, options.frozen)
    if options.method == DP_FEDSGD:
        for name, slope in _mean_gradient(model, all_batches(), gradient, training=True).items():
            model[name][...] = -rate * slope
        return model
    for batch in step_batches:
        slopes, _ = gradient(model, batch, True)
        if options.method == FEDPROX:
            _draw_back(slopes, start, model, options.proximal_weight, _ALWAYS, batch)
        elif options.method in (BLUR, BLUR_LUS):
            _draw_back(slopes, start, model, options.blur_weight, l2_clip, batch)
        for name, slope in slopes.items():
            slope *= rate  # in place: a fresh array of a large model's size costs more than the product
            model[name] -= slope
    leading = next(iter(model.values())).ndim - next(iter(start.values())).ndim
    sparse = options.method in (LUS, BLUR_LUS)
    costs = _mean_gradient(model, all_batches(), gradient, training=False) if sparse else {}
    change = model
    for name in start:
        change[name] -= start[name]
        if sparse:
            change[name] *= most_important(costs[name], change[name], options.sparsity, leading)
    return change


def most_important(slopes: Any, change: Any, sparsity: float, leading: int = 0) -> Any:
    """Which values of one array LUS keeps: those whose loss would cost most, to first order.

    Source: [CWZC22] Eq. 11 and 14; exactly s = max(1, round((1 - sparsity) x size)) are kept. Of a tie in importance
    the largest changes are kept, since small ones are missed least, and of equal changes the first.

    Args:
        slopes: gradient of the participant's mean loss at its trained model.
        change: of the array, of the same shape.
        sparsity: c, in [0, 1).
        leading: axes of participants, 0 or 1.

    Returns bool of that shape. NaN and infinite values are kept, so that no diverged update looks small.
    """
    shape = (*change.shape[:leading], -1)
    importance, moved = abs(slopes * change).reshape(shape), abs(change).reshape(shape)
    importance[importance != importance] = math.inf
    moved[moved != moved] = math.inf
    size = importance.shape[-1]
    kept = kept_values(size, sparsity)
    last = _ascending(importance, size - kept)
    moved[importance > last] = math.inf  # kept, whatever its change
    moved[importance < last] = -1
    last = _ascending(moved, size - kept)
    above, tied = moved > last, moved == last
    room = kept - above.sum(-1)[..., None]
    return (above | (tied & (tied.cumsum(-1) <= room))).reshape(change.shape)


def kept_values(size: int, sparsity: float) -> int:
    """How many of an array's values LUS keeps: s = max(1, round((1 - c) d))."""
    return max(1, round((1 - sparsity) * size))


def _ascending(values: Any, place: int) -> Any:
    """The value at a place, from 0, of the last axis in ascending order; that axis stays, of length 1."""
    if isinstance(values, np.ndarray):
        return np.partition(values, place, axis=-1)[..., place : place + 1]
    return values.kthvalue(place + 1, dim=-1, keepdim=True).values


def _with_frozen(gradient: Gradient, frozen: Collection[str]) -> Gradient:
    """The gradient, 0 in frozen arrays."""

    def found(model: Arrays, batch: Batch, training: bool) -> tuple[Arrays, Any]:
        slopes, counted = gradient(model, batch, training)
        for name in frozen:
            slopes[name][...] = 0
        return slopes, counted

    return found


def _draw_back(slopes: Arrays, start: Arrays, model: Arrays, weight: float, beyond: float, batch: Batch) -> None:
    """Add weight x (w - w^t) to the slopes of each participant farther than ``beyond`` from w^t in the whole model."""
    drift = {name: model[name] - start[name] for name in start}
    leading = batch.rows.ndim - 1
    flat = [part.reshape(*part.shape[:leading], -1) for part in drift.values()]
    far = sum((part * part).sum(-1) for part in flat) ** 0.5 > beyond
    if leading and batch.counted is not None:
        far &= batch.counted.any(-1)  # a participant without a step stays where it is
    for name, part in drift.items():
        part *= weight
        part *= far.reshape(*far.shape, *[1] * (part.ndim - leading))
        slopes[name] += part


def _mean_gradient(model: Arrays, batches: Iterable[Batch], gradient: Gradient, *, training: bool) -> Arrays:
    """Over all examples of all batches, each as heavy as every other."""
    total: Arrays = {}
    weight: Any = 0
    for batch in batches:
        slopes, counted = gradient(model, batch, training)
        for name, slope in slopes.items():
            slope *= _beside(counted, slope)
            total[name] = total[name] + slope if name in total else slope
        weight = weight + counted
    weight = weight + (weight == 0)  # nothing counts: the gradient is 0
    return {name: slope / _beside(weight, slope) for name, slope in total.items()}


def _beside(counted: Any, array: Any) -> Any:
    """A number as it is; one for each participant shaped to broadcast over its part of the array."""
    if isinstance(counted, int | float):
        return counted
    return counted.reshape(-1, *[1] * (array.ndim - 1))
