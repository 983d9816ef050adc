"""Training that lasts longer than a phase: seven participants of one process answer in time all the same.

No clock decides: training in round 1 lasts until the coordinator has done with ShareKeys, and the coordinator begins
ShareKeys only when two participants train, which are all the threads that the protocol has.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import server.sessions
from client.participant_host import ParticipantHost
from client.training import LocalTraining
from secagg.messages import SHARE_KEYS
from tests.support import host_in_process
from tests.support.host_in_process import PATIENCE_S, play
from tests.support.study_in_process import Coordinator
from wire import coordinator_pb2 as pb

PHASE_S = 3.0
THREADS = 2  # of `host_in_process.host`, for the protocol and for training


class SlowTraining:
    """Holds the messages that begin ShareKeys until THREADS trainings have begun, and these until ShareKeys is over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._training, self._send = LocalTraining.contribution, server.sessions.Session.send
        self._begun, self._lock, self._over = 0, threading.Lock(), threading.Event()
        self._held: list[tuple[server.sessions.Session, bytes]] | None = []
        self._loop: asyncio.AbstractEventLoop | None = None
        monkeypatch.setattr(LocalTraining, "contribution", self._train_for_long())
        monkeypatch.setattr(server.sessions.Session, "send", self._send_later())

    def _train_for_long(self) -> Any:
        def training(participant: Any, *arguments: Any) -> Any:
            with self._lock:
                self._begun += 1
                if self._begun == THREADS and self._loop is not None:
                    self._loop.call_soon_threadsafe(self._release)
            self._over.wait(PATIENCE_S / 2)
            return self._training(participant, *arguments)

        return training

    def _send_later(self) -> Any:
        def send(session: server.sessions.Session, data: bytes) -> None:
            kind = pb.CoordinatorMessage.FromString(data).WhichOneof("message")
            self._loop = asyncio.get_running_loop()
            if kind == "cohort_keys" and self._held is not None:
                with self._lock:
                    enough = self._begun >= THREADS
                self._held.append((session, data))
                if enough:
                    self._release()
                return
            if kind in ("neighbour_shares", "round_end", "study_end"):
                self._over.set()
            self._send(session, data)

        return send

    def _release(self) -> None:
        held, self._held = self._held or (), None
        for session, data in held:
            self._send(session, data)


def impatient(where: Coordinator) -> None:
    where.study._pace.configured_s[SHARE_KEYS] = PHASE_S


def uploads_of_round_one(folder: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    story = play(folder, work, monkeypatch, prepare=impatient)
    completed = story.of("round_completed")
    return next((event["u3"] for event in completed if event["round"] == 1), 0)


def test_all_participants_are_in_the_sum(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SlowTraining(monkeypatch)
    assert uploads_of_round_one(study_folder, tmp_path, monkeypatch) == 7


def test_training_on_its_threads_delays_it(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason for a separate trainer: on the protocol's threads, training makes others miss a phase."""
    SlowTraining(monkeypatch)

    def host(settings: Any, journal: Any, executor: Any, trainer: Any, **hooks: Any) -> Any:
        return ParticipantHost(settings, journal, executor, **hooks)

    monkeypatch.setattr(host_in_process, "ParticipantHost", host)
    assert uploads_of_round_one(study_folder, tmp_path, monkeypatch) < 7
