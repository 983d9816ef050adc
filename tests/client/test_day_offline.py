"""A device without its coordinator for a day: it keeps trying, at a pace that both can bear."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import client.participant_host
from client.participant import Participant
from client.participant_host import RETRY_S
from tests.support.host_in_process import host, rows_of, settings_of
from tests.support.study_in_process import coordinator

DAY_S = 86_400.0


async def test_a_day_and_back(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits pass at once, and the coordinator doesn't answer until they sum to a day."""
    waits: list[float] = []
    is_connected, rest = client.participant_host.is_connected, Participant.rest

    async def no_answer(channel: Any) -> bool:
        if sum(waits) >= DAY_S:
            return await is_connected(channel)
        await asyncio.sleep(0)
        raise TimeoutError

    async def at_once(self: Participant, seconds: float) -> None:
        if seconds:
            waits.append(seconds)
        await rest(self, 0)

    monkeypatch.setattr(client.participant_host, "is_connected", no_answer)
    monkeypatch.setattr(Participant, "rest", at_once)
    journal = tmp_path / "journal.sqlite"

    with capture_logs() as logs:
        async with coordinator(study_folder, tmp_path / "state.sqlite") as where:
            where.start()
            settings = settings_of(study_folder, journal, where.address, coordinator={"give_up_s": 0.0})
            alone = replace(settings, participants=settings.participants[:1])
            async with host(alone) as task, asyncio.timeout(60):
                while not where.study.sessions.ready():
                    assert not task.done()
                    await asyncio.sleep(0.01)
    longest = RETRY_S[1]
    assert DAY_S <= sum(waits) < DAY_S + longest
    assert max(waits) <= longest
    late = waits[20:]
    assert longest / 2 <= min(late)  # the least distance after a while
    assert len({round(one, 3) for one in late}) > len(late) / 4  # and never in step
    said = [one["event"] for one in logs if "coordinator away" in one["event"]]
    assert said == ["coordinator away, trying again until it is stopped"]  # once, not ten thousand times
    assert rows_of(journal.with_name("spent.sqlite")) == []  # rounds without it cost nothing
