"""That every outcome of training and encoding is the same work; `make timing` measures offers over real processes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

import mechanisms.encoder
from client.behaviour import Behaviour, Number
from client.training import LocalTraining
from learning.make_task import make_task
from learning.tasks.external import Synthetic
from mechanisms.encoder import Encoder
from mechanisms.plan import make_plan
from mechanisms.rotation import Rotation
from mechanisms.rounding import _Scratch
from server.sessions import Session
from tests.mechanisms.conftest import DEMO
from tests.support.host_in_process import PATIENCE_S, host, play, settings_of
from tests.support.study_in_process import PARTICIPANTS, coordinator, make_folder
from tests.timing.offer_times import accuracy, measure
from tests.timing.timed_host import OUT_OF_REACH
from wire import coordinator_pb2 as pb

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.xdist_group("timing")]

PLAN = make_plan(**DEMO)
UPDATE = np.random.default_rng(1).normal(size=PLAN.dim).astype(np.float32)


def work(monkeypatch: pytest.MonkeyPatch, encode: Callable[[Encoder], Any], *, redrawn: bool = False) -> list[Any]:
    """The steps of an encoding, with the sizes of what they work on; roundings meet the limit, but the first redrawn.

    Left to chance, both roundings of one vector miss it now and then, and a third is drawn.
    """
    steps: list[Any] = []

    def watch(owner: Any, name: str, size: Callable[..., int]) -> None:
        honest = getattr(owner, name)

        def watched(*given: Any, **named: Any) -> Any:
            steps.append((name, size(*given)))
            found = honest(*given, **named)
            if name == "round_all":
                return OUT_OF_REACH if redrawn and len(steps) < 4 else 0
            return found

        patch.setattr(owner, name, watched)

    encoder = Encoder(PLAN, b"s" * 32)
    with monkeypatch.context() as patch:
        watch(mechanisms.encoder, "clip_layers", lambda vector, *_: vector.size)
        watch(Rotation, "rotate", lambda _, padded: padded.size)
        watch(_Scratch, "round_all", lambda _, values, *__: values.size)
        watch(Encoder, "_noised", lambda _, values, *__: values.size)
        encode(encoder)
    return steps


def naive_nothing(encoder: Encoder) -> Any:
    """The zero contribution as it once was: noise alone."""
    return encoder._noised(np.zeros(PLAN.padded_dim, np.int64), np.random.default_rng().bytes)


def test_every_outcome_is_encoded_by_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def encoded(update: Any) -> Callable[[Encoder], Any]:
        return lambda encoder: encoder.encode(update, np.random.default_rng().bytes)

    steps = work(monkeypatch, encoded(UPDATE))
    assert [name for name, _ in steps if name == "round_all"] == ["round_all"] * 2
    for update in (None, UPDATE * np.float32(1e-6), UPDATE * 0, UPDATE * np.float32(1e30)):
        assert work(monkeypatch, encoded(update)) == steps
    assert work(monkeypatch, encoded(UPDATE), redrawn=True) == steps
    assert len(work(monkeypatch, naive_nothing)) < len(steps)


class Late(Exception):
    """At the end of a training of so many seconds."""


def trained(count: int, outcomes: list[BaseException | float | None], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of so many trainings, which sleep for 0.1 s or that many seconds, or fail."""
    left = iter(outcomes)

    def local_update(self: Synthetic, *arguments: Any) -> Any:
        outcome = next(left)
        if isinstance(outcome, BaseException) and not isinstance(outcome, Late):
            raise outcome
        time.sleep(outcome if isinstance(outcome, float) else outcome.args[0] if isinstance(outcome, Late) else 0.1)
        if isinstance(outcome, Late):
            raise outcome
        return self.initial_parameters()

    monkeypatch.setattr(Synthetic, "local_update", local_update)
    task = make_task("synthetic", {"dim": 10})
    took = []
    with ThreadPoolExecutor(1) as executor:
        one = LocalTraining(task, [1], executor, structlog.get_logger())  # type: ignore[arg-type]
        for _ in range(count):
            began = time.perf_counter()
            asyncio.run(one.train(np.zeros(10, np.float32), 1.0))
            took.append(time.perf_counter() - began)
    return took


def test_a_failure_takes_as_long_as_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one trains from the task's own parameters, a later one waits; both fail at once."""
    took = trained(3, [ValueError(), None, ValueError(), None], monkeypatch)
    assert all(one > 0.08 for one in took), took
    monkeypatch.setattr(LocalTraining, "_imitate", lambda *_: None)
    assert trained(2, [None, ValueError()], monkeypatch)[1] < 0.08


def test_an_imitation_that_fails_is_no_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next failures would end as early as it did."""
    took = trained(3, [ValueError(), ValueError(), 0.3, Late(0.15)], monkeypatch)
    assert took[0] < 0.08
    assert took[2] > 0.2, took


def test_a_failure_at_the_end_of_a_training_is_not_prolonged(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has taken as long as most updates; were it imitated, it would be among the longest."""
    took = trained(9, [None] * 7 + [1.5, Late(0.5)], monkeypatch)
    assert 0.5 < took[8] < 1.2, took


def test_an_attempt_that_ends_before_the_offset_delays_no_other(tmp_path: Path) -> None:
    """One of them fails in the first attempt, whose quorum is all; the others would wait for the offset otherwise, and
    miss every further attempt.
    """

    class FailsOnce(Behaviour):
        async def mask(self, encoding: Any, encode: Any) -> Any:
            if encoding.number == (1, 1):
                raise ValueError
            return await encode()

    numbers = {"min_survivors": PARTICIPANTS, "quorum": PARTICIPANTS, "max_dropout": 0.0}
    folder = make_folder(tmp_path / "study", rounds=2, offer_offset_s=8.0, **numbers)
    first: list[bytes] = []

    def behaviour(identity: bytes) -> Behaviour:
        first.append(identity)
        return FailsOnce() if identity == first[0] else Behaviour()

    async def scenario() -> list[dict[str, Any]]:
        deadlines = {"advertise_keys_s": 5.0, "share_keys_s": 5.0, "masked_input_s": 30.0}
        settings = {"max_attempts": 2}
        async with (
            coordinator(folder, tmp_path / "state.sqlite", coordinator=settings, deadlines=deadlines) as where,
            host(settings_of(folder, tmp_path / "journal.sqlite", where.address), behaviours=behaviour),
        ):
            where.start()
            await asyncio.wait_for(where.finish(), PATIENCE_S)  # the second round finds the budget spent
            return where.events

    completed = [event for event in asyncio.run(scenario()) if event["kind"] == "round_completed"]
    assert [(event["round"], event["attempt"]) for event in completed] == [(1, 2)]


def test_an_update_is_decided_and_masked_before_the_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While training goes on: encoding beside it must not delay the offer. On a busy machine it may: best of three."""
    offset_s, over = 3.0, threading.Event()
    began: list[float] = []
    masked: list[float] = []
    offered: list[float] = []
    mask, say = Behaviour.mask, Behaviour.say

    async def masks(self: Behaviour, *given: Any) -> Any:
        words = await mask(self, *given)
        masked.append(time.perf_counter())
        return words

    async def says(self: Behaviour, number: Number, kind: str, content: Any, send: Any) -> None:
        {"advertise_keys": began, "masked_input": offered}.get(kind, []).append(time.perf_counter())
        if len(offered) == PARTICIPANTS:
            over.set()
        await say(self, number, kind, content, send)

    monkeypatch.setattr(Behaviour, "mask", masks)
    monkeypatch.setattr(Behaviour, "say", says)
    monkeypatch.setattr(LocalTraining, "contribution", lambda *_: over.wait(PATIENCE_S) and None)
    for number in range(3):
        over.clear()
        for times in (began, masked, offered):
            times.clear()
        place = tmp_path / str(number)
        folder = make_folder(place / "study", offer_offset_s=offset_s, rounds=1)
        assert play(folder, place, monkeypatch).of("round_completed")[0]["u3"] == PARTICIPANTS
        assert 0.8 * offset_s - 0.5 < masked[0] - began[0]
        assert offset_s - 0.5 < offered[0] - began[0]
        if masked[0] - began[0] < offset_s:
            return
    pytest.fail(f"masked {masked[0] - began[0]:.1f} s after the beginning")


def test_shares_that_come_late_leave_time_for_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that holds them back until the offset would see how long encoding takes beside a training."""
    offset_s, sent, offered = 1.5, [], []
    send, say = Session.send, Behaviour.say

    def late(session: Session, data: bytes) -> None:
        if pb.CoordinatorMessage.FromString(data).WhichOneof("message") != "neighbour_shares":
            send(session, data)
            return
        asyncio.get_running_loop().call_later(offset_s + 0.1, now, session, data)

    def now(session: Session, data: bytes) -> None:
        sent.append(time.perf_counter())
        send(session, data)

    async def says(self: Behaviour, number: Number, kind: str, content: Any, send: Any) -> None:
        if kind == "masked_input":
            offered.append(time.perf_counter())
        await say(self, number, kind, content, send)

    monkeypatch.setattr(Session, "send", late)
    monkeypatch.setattr(Behaviour, "say", says)
    folder = make_folder(tmp_path / "study", offer_offset_s=offset_s, rounds=1)
    assert play(folder, tmp_path, monkeypatch).of("round_completed")[0]["u3"] == PARTICIPANTS
    assert min(offered) - min(sent) > 0.2 * offset_s - 0.05


def test_all_offers_leave_at_the_offset(tmp_path: Path) -> None:
    """Over real processes; without one the fastest offers leave long before."""
    times = asyncio.run(measure(tmp_path / "offset", 5, 1000, 0.9))
    assert min(map(min, times.values())) >= 0.9
    times = asyncio.run(measure(tmp_path / "none", 5, 1000))
    assert min(map(min, times.values())) < 0.9


def test_the_classifiers_find_a_difference_and_only_that() -> None:
    """Half a standard deviation is 60 %; another spread is seen by neighbours."""
    random = np.random.default_rng(1)
    one, shifted, narrow = random.normal(size=4000), random.normal(0.5, size=4000), random.normal(scale=0.3, size=4000)
    assert 0.57 < accuracy(one, shifted) < 0.63
    assert accuracy(one, narrow) > 0.65
    assert accuracy(one, random.normal(size=4000)) < 0.53
