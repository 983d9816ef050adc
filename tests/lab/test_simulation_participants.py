"""What a process of a simulation computes for a shard: in parts, on several threads, in memory that is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from learning.device import use_threads
from learning.tasks.softmax_regression import SoftmaxRegression
from mechanisms.encoder import Encoder, Room
from sordino.lab.simulation import participants as module
from sordino.lab.simulation.participants import Assignment, Participants
from tests.lab.small_simulation import NOISY, changed

COUNT = 40


@pytest.fixture(autouse=True)
def _three_threads_and_several_parts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "_VALUES_AT_ONCE", 1 << 11)
    use_threads(3)
    yield
    use_threads(1)


def shard_of(made: Participants, *, keep_words: bool = False) -> module.Shard:
    assert made.plan is not None
    return made.work(
        Assignment(
            round=1,
            participants=tuple(range(COUNT)),
            parameters=made.task.initial_parameters(),
            clips=made.plan.clipping.clips,
            l2_clip=1.0,
            rotation_seed=bytes(32),
            survivors=COUNT,
            keep_words=keep_words,
        )
    )


@pytest.mark.parametrize("keep_words", [False, True])
def test_threads_share_no_memory(keep_words: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread has encoded stays until it is added up; and it is what the task returned, wherever that lies."""

    def encode_many(_: Encoder, rows: np.ndarray, __: object, said: list[int], room: Room) -> np.ndarray:
        words = room.rounded[: len(rows)].view(np.uint64)
        words[:] = rows[:, :1]
        time.sleep(0.002)
        assert said == words[:, 0].tolist()
        assert np.array_equal(words[:, 0], rows[:, 0])
        return words

    def local_updates(task: SoftmaxRegression, _: object, data: list[object], *__: object) -> np.ndarray:
        return np.repeat(np.arange(len(data), dtype=np.float32)[:, None], task.dim, axis=1)

    monkeypatch.setattr(Encoder, "encode_many", encode_many)
    monkeypatch.setattr(SoftmaxRegression, "local_updates", local_updates)
    monkeypatch.setattr(Participants, "_metrics", lambda *_: list(range(COUNT)))
    made = Participants(NOISY)
    for _ in range(3):
        shard = shard_of(made, keep_words=keep_words)
        assert set(shard.total.tolist()) == {sum(range(COUNT))}
        assert (shard.words is not None) == keep_words
        if shard.words is not None:
            assert np.array_equal(shard.words[:, -1], np.arange(COUNT))


@pytest.mark.parametrize("by_layer", [False, True])
def test_who_diverges_adds_nothing_to_the_others(by_layer: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trusted coordinator's Gaussian, so that the sum is exact up to 40 roundings, of a grid step at most each."""
    settings = changed(
        NOISY, mechanism="gaussian", clip_update="geometric", clip_by_layer=by_layer, bits=24, epsilon=100.0
    )
    made = Participants(settings)
    assert made.plan is not None
    updates = np.random.default_rng(1).normal(0, 1e-3, (COUNT, made.task.dim)).astype(np.float32)
    updates[5, -1], updates[30, -1] = np.nan, np.inf
    monkeypatch.setattr(SoftmaxRegression, "local_updates", lambda *_: updates)
    shard = shard_of(made)
    assert np.flatnonzero(np.isnan(shard.norms)).tolist() == [5, 30]
    assert shard.below is not None
    assert set(shard.below.tolist()) == {COUNT - 2}
    plan, size = made.plan, made.task.dim
    encoder = Encoder(plan, bytes(32), plan.clipping.clips, COUNT)
    centred = (shard.total.astype(np.int64) << (64 - plan.bits)) >> (64 - plan.bits)
    found = encoder.rotation.inverse(centred * encoder.granularity)
    exact = 7 * np.sqrt(COUNT) * encoder.granularity
    assert exact < 1e-4
    expected = np.delete(updates, [5, 30], axis=0).sum(axis=0, dtype=np.float64)
    assert np.allclose(found[:size] * np.repeat(encoder.scales, plan.clipping.layers), expected, atol=exact)
    bits = (COUNT - 2) / 2 * plan.clipping.bit_size(plan.clipping.clips)  # all of them were short
    assert np.allclose(found[size:], bits, atol=exact)


def test_a_norm_beyond_single_precision_is_no_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Participants(NOISY)
    updates = np.full((COUNT, made.task.dim), 1e25, np.float32)
    monkeypatch.setattr(SoftmaxRegression, "local_updates", lambda *_: updates)
    assert shard_of(made).norms == pytest.approx(float(updates[0, 0]) * made.task.dim**0.5)
