"""Participants of a simulated round: local training, then clipping and encoding, one shard of them at a time.

A shard is what one process does at once. The shards depend only on the round's survivors, never on the number or place
of processes, and are added in their order: every engine gives the same sums.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.blocks import DatasetError
from learning.data_names import APP
from learning.datasets import Dataset, load_part
from learning.device import CPU, chosen_threads, on_threads, use_device
from learning.own_data import app_partition, check_form, empty, load_own, load_test
from learning.own_task import TaskMistake, with_place
from learning.parameters import Parameters, flatten_contribution
from learning.partitions import cut_dataset
from learning.task import BatchedTask, at_round, held_out_metrics, held_out_split, update_rng, weight_of
from learning.task_names import trained_task
from mechanisms.clip_rule import ClipRule
from mechanisms.clipping import clip_layers, layers_in
from mechanisms.encoder import Encoder, Room, word_dtype
from mechanisms.evaluation import NO_METRICS, HeldOutMetrics
from mechanisms.sketch import CountMeanSketch
from sordino.lab.simulation.settings import SimulationError, SimulationSettings

if TYPE_CHECKING:
    from learning.task import Task
    from server.study_file import StudyConfiguration
    from server.study_tables import DataTable
    from sordino.lab.simulation.device_encoder import DeviceEncoder

MOST_IN_A_SHARD: Final = 256
"""Participants that are trained at once."""
FEW_IN_A_SHARD: Final = 32
"""Participants that are trained one after the other: large shards would gain nothing, and leave processes idle."""
# 64 MB of float32 updates, which stay, as do 16 bytes a value of what each thread encodes at once.
_VALUES_IN_A_SHARD: Final = 1 << 24
# Encoded in one go: what fits a level-2 cache several times over gains nothing any more.
_VALUES_AT_ONCE: Final = 1 << 18


@dataclass(frozen=True)
class Assignment:
    """Work on one shard of a round's survivors.

    Attributes:
        participants: whose updates, ascending.
        parameters: the round's initial model.
        clips: of the round, one for each layer.
        l2_clip: norm that local training aims at.
        rotation_seed: 32 bytes, the round's.
        survivors: of the whole round.
        keep_words: return each vector, for secure aggregation, and not only their sum.
    """

    round: int
    participants: tuple[int, ...]
    parameters: Parameters
    clips: tuple[float, ...]
    l2_clip: float
    rotation_seed: bytes
    survivors: int
    keep_words: bool = False


@dataclass(frozen=True)
class Shard:
    """Result of an assignment.

    Attributes:
        total: (padded_dim,) uint64, the sum of the encoded vectors modulo 2^64, a multiple of every modulus; without
            noise (values,) float64, the sum of the clipped updates or their sketches.
        words: (participants, padded_dim) words, if requested.
        norms: (participants,) float64, L2 norms before clipping, data units; NaN where training diverged.
        below: (layers,) number of norms at most the layer's clip; None where a coded sketch is clipped.
        metrics: (3,) float64, sum of `mechanisms.evaluation.Evaluation.coordinates`; zeros where they don't evaluate.
        training_s, encoding_s: wall seconds.
    """

    total: NDArray[Any]
    words: NDArray[Any] | None
    norms: NDArray[np.float64]
    below: NDArray[np.int64] | None
    metrics: NDArray[np.float64]
    training_s: float
    encoding_s: float


def shards_of(survivors: Sequence[int], dim: int, at_once: bool) -> list[tuple[int, ...]]:
    """Cut survivors into shards of about the same size, in their order; ``dim``: values of one update."""
    if not survivors:
        return []
    size = max(1, min(MOST_IN_A_SHARD if at_once else FEW_IN_A_SHARD, _VALUES_IN_A_SHARD // dim))
    parts = np.array_split(np.asarray(survivors, np.int64), math.ceil(len(survivors) / size))
    return [tuple(map(int, part)) for part in parts]


class Data:
    """The participants' examples, and the coordinator's in ``test``; ``of`` returns the same object in every round."""

    def __init__(self, count: int, part: Callable[[int], Dataset], test: Dataset) -> None:
        self._count, self.of, self.test = count, cache(part), test

    def __len__(self) -> int:
        return self._count


def load_data(study: StudyConfiguration, own: str | None = None, task: Task | None = None) -> Data:
    """Load the study's data, cut into parts as the clients of a served one do it; kept for the next simulation.

    Args:
        own: folder with one file per participant; None if a data set is cut.
        task: of the study, which must be able to use the files; needed with ``own``.

    Raises learning.blocks.DatasetError: the set is unknown, missing or damaged, or a file can't be used;
    SimulationError: the set can't be cut so.
    """
    data, trained = study.data, trained_task(study.study.task, study.task)
    if own is not None and task is not None:
        held, test = load_own(own, study.places, task, trained, data.test)
        return Data(len(held), held.__getitem__, test)
    if data.dataset == APP:
        return Data(study.places, lambda participant: app_partition(participant, study.places), empty())
    found = _loaded(data, study.places, trained)
    if task is not None and data.test:
        check_form(task, found.test, Path(data.test))
    return found


@lru_cache(maxsize=2)
def _loaded(data: DataTable, participants: int, task: str) -> Data:
    try:
        parts = cut_dataset(data.dataset, data.partition, participants, data.alpha, data.seed, data.shards)
    except DatasetError:
        raise
    except ValueError as error:
        raise SimulationError(str(error)) from error
    train, test = load_part(data.dataset, "train"), load_test(data.dataset, data.test, task)
    return Data(len(parts), lambda participant: train.take(parts[participant]), test)


def accelerator_of(task: Task) -> Any:
    """The torch.device that a task in torch trains on; None if that is the processor, or the task isn't in torch."""
    find = getattr(task, "training_device", None)  # `learning.tasks.torch_module.TorchModule` has it
    found = find() if find else None
    return None if found is None or found.type == CPU else found


class Participants:
    """All participants of a simulation, as one process runs them."""

    def __init__(self, settings: SimulationSettings) -> None:
        """Raises: as `StudyConfiguration.make_task`, `SimulationSettings.plan` and `load_data`."""
        use_device(settings.device)
        self._settings = settings
        self.task = settings.study.make_task()
        self.data = load_data(settings.study, settings.data, self.task)
        self.plan = settings.plan()
        coding = settings.coding()
        self.rule: ClipRule = coding["clipping"] if self.plan is None else self.plan.clipping
        self.evaluation = settings.study.evaluation.of_plan()
        self.sketch_shape: tuple[int, int] = coding["sketch"]  # rows and width; no rows where updates travel whole
        # An update's norms are of layers; of the whole where a sketch of it is clipped.
        self._layers = (self.task.dim,) if self.sketch_shape[0] else self.rule.layers
        self.batched = settings.batched and isinstance(self.task, BatchedTask)
        share = self.evaluation.held_out
        self._parts = cache(
            lambda who: held_out_split(self.task, self.data.of(who), share) if share else (self.data.of(who), None)
        )
        self._encoder: tuple[tuple[bytes, tuple[float, ...], int], Encoder] | None = None
        self._device_encoder: tuple[Encoder, DeviceEncoder] | None = None
        self._updates = np.empty((0, self.task.dim), np.float32)
        self._rooms: list[Room] = []  # of each thread that encodes

    def work(self, assignment: Assignment) -> Shard:
        """Train and encode.

        Raises SimulationError: the task can't use the examples; a participant of a study would send zeros then.
        """
        began = time.perf_counter()
        on_device = self._encoder_on_device(assignment)
        try:
            updates, said = self._train(assignment, on_device), self._metrics(assignment)
        except (SimulationError, TaskMistake):
            raise
        except ValueError as error:
            raise self.misfit(error) from error
        words: NDArray[Any] | None = None
        total: NDArray[Any]
        below: NDArray[np.int64] | None = None
        trained = time.perf_counter()
        if on_device:
            total, of_layers = on_device.total(updates, said)
        elif self.plan is None:
            of_layers = self._norms(updates)
        else:
            total, words, of_layers = self._encoded(updates, said, assignment)
        norms = np.linalg.norm(of_layers, axis=1)
        finite = np.isfinite(norms)
        if self.plan is None:
            total, below = self._clipped_sum(updates[finite], assignment)
        elif not self.sketch_shape[0]:
            below = np.count_nonzero(of_layers[finite] <= np.array(assignment.clips), axis=0)
        return Shard(
            total=total,
            words=words,
            norms=np.where(finite, norms, np.nan),
            below=below,
            metrics=self._said(said, finite),
            training_s=trained - began,
            encoding_s=time.perf_counter() - trained,
        )

    def nobody(self) -> Shard:
        """Return the result of a round whose coins draw nobody: the noise alone will be released."""
        total: NDArray[Any] = np.zeros(self.rule.dim)
        if self.plan is not None:
            total = np.zeros(self.plan.padded_dim, np.uint64)
        below = np.zeros(len(self.rule.layers), np.int64)
        return Shard(total, None, np.zeros(0), below, np.zeros(3), 0.0, 0.0)

    def work_on(self, assignment: Assignment, parameters: Parameters) -> Shard:
        """Do the same with a model that is given separately."""
        return self.work(replace(assignment, parameters=parameters))

    def misfit(self, error: ValueError) -> SimulationError:
        study = self._settings.study
        return SimulationError(
            f"the task {study.study.task} can't use the examples of {study.data.dataset}: {with_place(error)}; name "
            "another task or data set, or fit it with options of the task"
        )

    def sketch(self, rotation_seed: bytes) -> CountMeanSketch | None:
        """Of a round without noise; None where updates travel whole."""
        rows, width = self.sketch_shape
        if not rows:
            return None
        return CountMeanSketch(hashlib.sha256(b"simulated sketch" + rotation_seed).digest(), self.task.dim, rows, width)

    def _train(self, assignment: Assignment, on_device: DeviceEncoder | None) -> Any:
        """(participants, dim): one after the other, or all at once where the task can; there to be encoded there."""
        data = [self._parts(one)[0] for one in assignment.participants]
        updates = self._changes(assignment, data, on_device)
        for place, one in enumerate(data):
            if (weight := weight_of(self.task, len(one))) != 1:
                updates[place] *= weight
        return updates

    def _changes(self, assignment: Assignment, data: Sequence[Dataset], on_device: DeviceEncoder | None) -> Any:
        who = assignment.participants
        rngs = [update_rng(self._settings.seed, assignment.round, one) for one in who]
        task = at_round(self.task, (assignment.round - 1) / self._settings.study.study.rounds)
        if self.batched and isinstance(task, BatchedTask):
            out = on_device.place_for(len(who)) if on_device else self._place_for(len(who))
            found: Any = task.local_updates(assignment.parameters, data, rngs, assignment.l2_clip, out)
            if np.shape(found) != (len(who), self.task.dim):
                wrong = f"local_updates returns {np.shape(found)}; it must return {(len(who), self.task.dim)}"
                raise SimulationError(self._no_contribution(ValueError(wrong)))
            return found
        updates = self._place_for(len(who))
        for row, (own, rng) in enumerate(zip(data, rngs, strict=True)):
            made = task.local_update(assignment.parameters, own, rng, assignment.l2_clip)
            try:
                updates[row] = flatten_contribution(made, self.task.contribution_shapes)
            except ValueError as error:
                raise SimulationError(self._no_contribution(error)) from error
        return updates

    def _place_for(self, count: int) -> NDArray[np.float32]:
        """(count, dim), the same memory for each shard: the first touch of a fresh page costs more than its values."""
        if len(self._updates) < count:
            self._updates = np.empty((count, self.task.dim), np.float32)
        return self._updates[:count]

    def _metrics(self, assignment: Assignment) -> list[HeldOutMetrics]:
        """What each says of the round's model."""
        if not self.evaluation:
            return [NO_METRICS] * len(assignment.participants)
        return self.metrics(assignment.participants, assignment.parameters)

    def metrics(self, participants: Iterable[int], parameters: Parameters) -> list[HeldOutMetrics]:
        """What a model achieves on the held-out examples of each; on all of them where none are held out."""
        found = []
        for one in participants:
            own, held = self._parts(one)
            order = update_rng(self._settings.seed, 0, one)
            found.append(held_out_metrics(self.task, parameters, own, own if held is None else held, order))
        return found

    def _said(self, metrics: Sequence[HeldOutMetrics], finite: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Sum of the coordinates of those whose training didn't diverge."""
        said = [self.evaluation.coordinates(one) for one in metrics] if self.evaluation else []
        return sum((one for one, sound in zip(said, finite, strict=False) if sound), np.zeros(3))

    def _no_contribution(self, error: Exception) -> str:
        return (
            f"the task {self._settings.study.study.task}: {error}; correct its local_update: in a study such a "
            "participant would send zeros"
        )

    def _encoder_of(self, assignment: Assignment) -> Encoder:
        assert self.plan is not None  # noqa: S101
        key = assignment.rotation_seed, assignment.clips, assignment.survivors
        if self._encoder is None or self._encoder[0] != key:
            self._encoder = key, Encoder(self.plan, *key)
        return self._encoder[1]

    def _encoder_on_device(self, assignment: Assignment) -> DeviceEncoder | None:
        """On the accelerator that trained; None where this processor encodes: it trained, updates are averaged without
        noise or sketched, or secure aggregation needs each vector."""
        device = accelerator_of(self.task)
        if device is None or self.plan is None or self.plan.sketch_rows or assignment.keep_words:
            return None
        from sordino.lab.simulation.device_encoder import DeviceEncoder

        encoder = self._encoder_of(assignment)
        if self._device_encoder is None or self._device_encoder[0] is not encoder:
            self._device_encoder = encoder, DeviceEncoder(encoder, device)
        return self._device_encoder[1]

    def _encoded(
        self, updates: NDArray[Any], metrics: Sequence[HeldOutMetrics], assignment: Assignment
    ) -> tuple[NDArray[np.uint64], NDArray[Any] | None, NDArray[np.float64]]:
        """Return the sum of all words, the words if they are to be kept, and the norms, in order.

        A participant whose training diverged sends only noise, as in a study. Threads take turns, and share nothing.
        """
        encoder = self._encoder_of(assignment)
        plan, count, threads = encoder.plan, len(updates), chosen_threads()
        step = max(1, _VALUES_AT_ONCE // plan.padded_dim)
        while len(self._rooms) < threads:
            self._rooms.append(Room(plan, step))
        norms = np.empty((count, len(self._layers)))
        kept = np.empty((count, plan.padded_dim), word_dtype(plan.bits)) if assignment.keep_words else None

        def encoded(thread: int) -> NDArray[np.uint64]:
            total = np.zeros(plan.padded_dim, np.uint64)
            for start in range(step * thread, count, step * threads):
                part = slice(start, start + step)
                rows, said = updates[part], metrics[part]
                norms[part] = self._norms(rows)
                good = np.isfinite(np.linalg.norm(norms[part], axis=1))
                if good.all():
                    words = encoder.encode_many(rows, os.urandom, said, self._rooms[thread])
                else:
                    each = zip(rows, said, good, strict=True)
                    words = np.stack(
                        [encoder.encode(row if fine else None, os.urandom, (), own) for row, own, fine in each]
                    )
                for word in words:
                    np.add(total, word, out=total)
                if kept is not None:
                    kept[part] = words
            return total

        totals = on_threads(encoded, range(threads))
        return sum(totals[1:], totals[0]), kept, norms

    def _clipped_sum(
        self, updates: NDArray[Any], assignment: Assignment
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        rule, sketch = self.rule, self.sketch(assignment.rotation_seed)
        ones = (1.0,) * len(rule.layers)  # scales spread noise, and there is none
        total, below = np.zeros(rule.dim), np.zeros(len(rule.layers), np.int64)
        for values in updates if sketch is None else sketch.encode_many(updates):
            clipped, norms = clip_layers(values, rule.layers, assignment.clips, ones)
            total += clipped
            below += norms <= np.array(assignment.clips)
        return total, below

    def _norms(self, updates: NDArray[Any]) -> NDArray[np.float64]:
        """(n, layers), L2, data units, before clipping."""
        layers = layers_in(updates, self._layers)
        squares = [np.einsum("ij,ij->i", layer, layer, dtype=np.float64) for layer in layers]
        norms: NDArray[np.float64] = np.sqrt(np.stack(squares, axis=1))
        return norms
