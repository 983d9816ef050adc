"""What the coordinator says about a round when it is over."""

from __future__ import annotations

import asyncio
import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

import server.attempt.attempt
import server.study
import server.trained_model
from mechanisms.encoder import Encoder
from tests.support.study_in_process import PARTICIPANTS, coordinator, refuses, sums_of


async def test_survivors_sum_and_lag(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    completed = sums_of(monkeypatch)
    async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
        peers = where.peers({2: {"masked_input": refuses()}})
        await where.play(peers)
        first, second = where.of("round_completed")
        assert first["survivors"] == [0, 1, 3, 4, 5, 6]
        assert second["survivors"] == list(range(PARTICIPANTS))
        for event, one in zip((first, second), completed, strict=True):
            assert one.total.dtype.str == "<u2"
            # Of the sum without the noise that its survivors took back.
            encoder = Encoder(where.study._plan, one.cohort_context)
            total = encoder.without_surplus(one.total, len(one.u3), one.noise_seeds.values())
            assert event["sum_sha256"] == hashlib.sha256(total.tobytes()).hexdigest()
            lag = event["loop_lag_ms"]
            assert 0 <= lag["p50"] <= lag["p99"] <= lag["max"]
            assert lag["max"] > 0


@pytest.mark.parametrize("phase", ["Connecting", "AdvertiseKeys"])
async def test_an_aborted_attempt_says_how_late_its_loop_was(study_folder: Path, tmp_path: Path, phase: str) -> None:
    tables = {"coordinator": {"max_attempts": 1}, "deadlines": {"connect_s": 1.0, "advertise_keys_s": 0.5}}
    if phase != "Connecting":
        del tables["deadlines"]["connect_s"]
    async with coordinator(study_folder, tmp_path / "state.sqlite", **tables) as where:
        silent = where.peers({at: {"advertise_keys": lambda *_: None} for at in range(PARTICIPANTS)})
        await where.play([] if phase == "Connecting" else silent)
        [event] = where.of("attempt_aborted", phase=phase)
        assert event["loop_lag_ms"]["max"] > 0


async def test_a_wait_in_which_nothing_happens_is_reported_once(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a phase that waits for hours adds an event to the journal every half second."""
    monkeypatch.setattr(server.attempt.attempt, "PROGRESS_INTERVAL_S", 0.02)
    tables = {"coordinator": {"max_attempts": 1}, "deadlines": {"advertise_keys_s": 1.0}}
    async with coordinator(study_folder, tmp_path / "state.sqlite", **tables) as where:
        await where.play(where.peers({at: {"advertise_keys": lambda *_: None} for at in range(PARTICIPANTS)}))
        assert [event["received"] for event in where.of("phase_progress")] == [0]


async def test_leaving_during_serialisation(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, at_once = server.trained_model.write_model, {"resume_s": 0.05}
    async with coordinator(study_folder, tmp_path / "state.sqlite", deadlines=at_once) as where:
        peers = where.peers()
        loop, left = asyncio.get_running_loop(), []

        def slowly(*arguments: Any) -> Any:
            if not left:
                left.append(asyncio.run_coroutine_threadsafe(peers[4].close(), loop))
                left[0].result(timeout=10)
                deadline = time.monotonic() + 10
                while not where.of("participant_lost") and time.monotonic() < deadline:
                    time.sleep(0.01)
            return written(*arguments)

        monkeypatch.setattr(server.trained_model, "write_model", slowly)
        await where.play(peers)
        assert [event["participant"] for event in where.of("participant_lost")][:1] == [4]
        assert where.of("attempt_started")[0]["cohort"] == PARTICIPANTS - 1
        assert where.of("participant_dropped") == []
