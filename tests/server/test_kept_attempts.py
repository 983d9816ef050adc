"""What is kept of an attempt: it goes on with it, or, where that can't be, it is closed and the next one begins."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from server.attempt import record
from server.attempt.outgoing import Outgoing
from server.attempt.record import LATE, AttemptRecord
from server.journal import Journal
from server.study import Study
from tests.support.databases import execute
from tests.support.study_in_process import Coordinator, Peer, coordinator, playing, until
from wire import coordinator_pb2 as pb
from wire.ending import ROUNDS_DONE

Outcomes = list[tuple[int, int, str]]


async def cut_off(where: Coordinator, phase: str) -> None:
    """The coordinator ends as soon as the first round is in a phase; its participants end with it."""
    async with playing(where.peers()):
        where.start()
        await where.wait_for("phase_started", round=1, phase=phase)
        await where.stop()


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


async def test_who_was_excluded_in_it_was_not_excluded_before_it(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between the exclusion and the round: else its transcript would name a member of u1 as excluded."""

    async def killed(*_: object) -> None:
        raise asyncio.CancelledError

    def signs_nothing(peer: Peer, _: Any) -> list[pb.ParticipantMessage]:
        return [peer.wrap(consistency=pb.ConsistencySignature(signature=bytes(64)))]

    state = tmp_path / "state.sqlite"
    with monkeypatch.context() as patch:
        patch.setattr(Study, "_finish", killed)
        async with coordinator(study_folder, state) as where, playing(where.peers({6: {"consistency": signs_nothing}})):
            where.start()
            await where.wait_for("participant_excluded", participant=6)
            assert where.running is not None
            await asyncio.gather(where.running, return_exceptions=True)
    async with coordinator(study_folder, state) as where:
        attempt, transcripts = where.study._attempt, where.study._transcripts
        assert attempt is not None
        assert transcripts is not None
        assert transcripts._noted is not None
        assert (len(transcripts._noted.u1), transcripts._noted.excluded) == (7, ())
        assert attempt.cheats == where.journal.excluded() != {}


async def test_late_signatures_stay_on_record_while_they_are_played_again(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second kill just then must not forget who was asked for shares: it would be left out for what it has heard."""
    said: list[tuple[Peer, pb.ParticipantMessage]] = []

    def keeps(peer: Peer, signature: Any) -> list[pb.ParticipantMessage]:
        said.append((peer, peer.wrap(consistency=signature)))
        return []

    def members() -> list[Any]:
        rows = where.journal._store.read("SELECT body FROM kept WHERE phase = ? AND participant = -1", (LATE,))
        return [json.loads(body) for (body,) in rows]

    state, closed = tmp_path / "state.sqlite", AttemptRecord.close
    silent: dict[str, Any] = {"unmasking": lambda *_: []}
    async with coordinator(study_folder, state) as where:
        twists = {who: silent | ({"consistency": keeps} if who > 4 else {}) for who in range(7)}
        async with playing(where.peers(twists)):
            where.start()
            await where.wait_for("phase_started", phase="Unmasking")
            for peer, signature in said:
                await peer.session.send(signature)
            await until(lambda: members() == [[5, 6]])
            await where.stop()
    seen: list[list[int]] = []

    async def look(self: AttemptRecord, phase: str, who: Any) -> None:
        seen.append(sorted(who))
        await closed(self, phase, who)

    monkeypatch.setattr(AttemptRecord, "close", look)
    async with coordinator(study_folder, state) as where:
        assert where.study._attempt is not None
        assert seen == [[5, 6], [5, 6]]
        assert set(where.study._attempt._outgoing.number.values()) == {5}


async def test_a_session_that_ends_while_the_attempt_is_written_down_is_heard_of(
    study_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first phase would wait for it until the deadline."""
    async with coordinator(study_folder, tmp_path / "state.sqlite", deadlines={"resume_s": 0.1}) as where:
        peers, begin = where.peers(), where.journal.begin_attempt

        async def slow(*given: Any, **more: Any) -> None:
            await begin(*given, **more)
            if given[0].round == 1:
                await peers[0].close()
                await where.wait_for("participant_lost")

        monkeypatch.setattr(where.journal, "begin_attempt", slow)
        async with playing(peers):
            where.start()
            completed = await where.wait_for("round_completed", round=1)
            assert (completed["u1"], completed["dropouts"]) == (6, 1)
            assert completed["phase_seconds"]["AdvertiseKeys"] < 10
            assert [one["reason"] for one in where.of("participant_dropped")] == ["connection closed"]
