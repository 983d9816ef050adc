"""What is kept of an attempt: it goes on with it, or, where that can't be, it is closed and the next one begins."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from server.attempt import record
from server.attempt.outgoing import Outgoing
from server.journal import Journal
from tests.support.databases import execute
from tests.support.study_in_process import Coordinator, coordinator, playing
from wire.ending import ROUNDS_DONE

Outcomes = list[tuple[int, int, str]]


async def cut_off(where: Coordinator, phase: str) -> None:
    """The coordinator ends as soon as the first round is in a phase; its participants end with it."""
    async with playing(where.peers()):
        where.start()
        await where.wait_for("phase_started", round=1, phase=phase)
        assert where.running is not None
        where.running.cancel()
        await asyncio.gather(where.running, return_exceptions=True)


def outcomes(journal: Journal) -> Outcomes:
    return journal._store.read("SELECT round, attempt, outcome FROM attempts ORDER BY 1, 2")


async def goes_on(folder: Path, state: Path, **tables: dict[str, float]) -> tuple[list[int], Outcomes]:
    """Attempts that were resumed, and how all ended, with participants that were started again."""
    async with coordinator(folder, state, **tables) as where:
        assert (await where.play()).reason == ROUNDS_DONE
        assert where.journal._store.read("SELECT count(*) FROM kept") == [(0,)]
        return [event["attempt"] for event in where.of("attempt_resumed")], outcomes(where.journal)


ABORTED = [(1, 1, "aborted"), (1, 2, "completed"), (2, 1, "completed")]


@pytest.mark.parametrize("phase", ["ShareKeys", "MaskedInputCollection", "ConsistencyCheck"])
async def test_participants_that_lost_their_keys_end_it(study_folder: Path, tmp_path: Path, phase: str) -> None:
    state = tmp_path / "state.sqlite"
    async with coordinator(study_folder, state) as where:
        await cut_off(where, phase)
    resumed, ended = await goes_on(study_folder, state)
    assert resumed == [1]
    assert [(round_, attempt, outcome.partition(":")[0]) for round_, attempt, outcome in ended] == ABORTED
    assert phase in ended[0][2]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE kept SET body = x'00' WHERE participant >= 0",
        "UPDATE kept SET body = x'00' WHERE participant = -1",
        "DELETE FROM kept WHERE participant = 3",
        "DELETE FROM kept WHERE phase = ''",
        "UPDATE kept SET phase = 'ShareKeys' WHERE phase = 'AdvertiseKeys'",
    ],
)
async def test_a_damaged_record_closes_it(study_folder: Path, tmp_path: Path, damage: str) -> None:
    state = tmp_path / "state.sqlite"
    async with coordinator(study_folder, state) as where:
        await cut_off(where, "ShareKeys")
    execute(state, damage)
    _, ended = await goes_on(study_folder, state)
    assert [one[:2] for one in ended] == [one[:2] for one in ABORTED]
    assert [one[2] for one in ended[1:]] == ["completed", "completed"]


async def test_without_reconnection_slots_nothing_is_kept(study_folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    async with coordinator(study_folder, state, deadlines={"resume_s": 0.0}) as where:
        await cut_off(where, "ShareKeys")
        assert where.journal._store.read("SELECT count(*) FROM kept") == [(0,)]
    resumed, ended = await goes_on(study_folder, state)
    assert resumed == []
    assert ended[0] == (1, 1, "the coordinator stopped during the attempt")


async def test_a_large_cohort_is_not_kept(study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MOST_KEPT_BYTES", 1000)
    state = tmp_path / "state.sqlite"
    async with coordinator(study_folder, state) as where:
        await cut_off(where, "MaskedInputCollection")
        assert where.journal._store.read("SELECT count(*) FROM kept") == [(0,)]
    assert (await goes_on(study_folder, state))[0] == []


async def test_messages_are_kept_before_what_follows_from_them(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a crash would leave participants with a cohort, or with shares, that the coordinator doesn't know."""
    state, honest = tmp_path / "state.sqlite", Outgoing.each
    seen: list[dict[str, int]] = []

    async def look(self: Outgoing, contents: object, write: object) -> None:
        rows = where.journal._store.read("SELECT phase, body FROM kept WHERE participant = -1 AND phase != ''")
        seen.append({phase: len(json.loads(body)) for phase, body in rows if phase.endswith("Keys")})
        await honest(self, contents, write)  # type: ignore[arg-type]

    monkeypatch.setattr(Outgoing, "each", look)
    async with coordinator(study_folder, state) as where:
        assert (await where.play()).reason == ROUNDS_DONE
    assert seen == [{"AdvertiseKeys": 7}, {"AdvertiseKeys": 7, "ShareKeys": 7}] * 2
