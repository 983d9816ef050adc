"""A host's owner pauses, resumes and leaves while the process runs; and the journal remembers that a study ended."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import client.owners_word
from client.host_file import load
from client.journal import ClientJournal, ended_studies
from client.owners_word import LEFT, PAUSED, RESUMED, WORD_FILE, nothing_left, read_word, write_word
from client.settings import HostSettings
from runtime.failure import InputFailure
from runtime.service_notify import Notifier
from tests.support.databases import query
from tests.support.host_in_process import Play, host, rows_of, settings_of
from tests.support.study_in_process import PARTICIPANTS, Coordinator, coordinator, make_folder, until
from wire.ending import ABORTED, ROUNDS_DONE

TERMS = bytes(range(32))


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client.owners_word, "LOOK_S", 0.01)


@contextlib.asynccontextmanager
async def taking_part(folder: Path, work: Path) -> AsyncIterator[tuple[Coordinator, asyncio.Task[int]]]:
    """A study with a pause after each round, and its only host."""
    async with coordinator(folder, work / "state.sqlite", study={"pause_s": 0.05}) as where:
        where.start()
        async with host(settings_of(folder, work / "journal.sqlite", where.address)) as task:
            yield where, task


async def test_a_pause_finishes_the_attempt_and_resume_ends_it(study_folder: Path, tmp_path: Path) -> None:
    with capture_logs() as logs:
        async with taking_part(study_folder, tmp_path) as (where, task):
            await where.wait_for("phase_started", round=1, phase="ShareKeys")
            write_word(tmp_path, PAUSED)
            assert (await where.wait_for("round_completed", round=1))["u3"] == PARTICIPANTS
            await until(lambda: not where.study.sessions.ready())
            assert not where.of("round_completed", round=2)
            assert not task.done()
            write_word(tmp_path, RESUMED)
            await where.wait_for("round_completed", round=2)
            assert await task == 0
            assert all(event["u1"] == event["u3"] for event in where.of("round_completed"))
    [said] = [one["reason"] for one in logs if one["event"].startswith("not taking part")]
    assert said.startswith("its owner paused it on ")


async def test_a_host_that_is_paused_does_not_connect(study_folder: Path, tmp_path: Path) -> None:
    write_word(tmp_path, PAUSED)
    async with taking_part(study_folder, tmp_path) as (where, task):
        await asyncio.sleep(0.1)
        assert not where.of("participant_connected")
        write_word(tmp_path, RESUMED)
        assert await task == 0


async def test_leaving_finishes_the_attempt_and_ends_the_process(study_folder: Path, tmp_path: Path) -> None:
    async with taking_part(study_folder, tmp_path) as (where, task):
        await where.wait_for("phase_started", round=1, phase="ShareKeys")
        write_word(tmp_path, LEFT)
        assert (await where.wait_for("round_completed", round=1))["u3"] == PARTICIPANTS
        async with asyncio.timeout(30):
            assert await task == 0
        assert not where.of("round_completed", round=2)
    settings = settings_of(study_folder, tmp_path / "journal.sqlite")
    assert "this host left the study on" in nothing_left(settings)
    with pytest.raises(InputFailure, match="join anew with a join code, and with --ledger"):
        write_word(tmp_path, RESUMED)
    assert rows_of(settings.host.ledger)  # what was spent stays


async def test_leaving_while_the_coordinator_is_away(study_folder: Path, tmp_path: Path) -> None:
    settings = settings_of(study_folder, tmp_path / "journal.sqlite", coordinator={"give_up_s": 0.0})
    with capture_logs() as logs:
        async with host(settings) as task:
            await until(lambda: any("coordinator away" in one["event"] for one in logs))
            write_word(tmp_path, LEFT)
            async with asyncio.timeout(30):
                assert await task == 0


@pytest.mark.parametrize("content", ["", "{}", '{"state": "gone", "at": 1}', '{"state": "paused", "at": "?"}', "[]"])
def test_a_word_that_cannot_be_read_counts_as_no(tmp_path: Path, content: str) -> None:
    (tmp_path / WORD_FILE).write_text(content)
    with pytest.raises(InputFailure, match="so this host doesn't take part: run `sordino join` with --pause"):
        read_word(tmp_path)
    write_word(tmp_path, RESUMED)
    assert read_word(tmp_path).state == RESUMED


# ---------------------------------------------------------------- the end of a study


def ended(settings: HostSettings, terms: bytes = TERMS, reason: str = ROUNDS_DONE) -> None:
    journal = ClientJournal(settings.host.journal, settings.host.ledger)
    asyncio.run(journal.end_study(terms, settings.study.name, reason))
    journal.close()


def test_a_study_that_ended_is_remembered(
    played: Play, study_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    story = played()
    assert story.ended == 0
    [noted] = ended_studies(story.journal)
    assert (noted.study, noted.reason) == ("seven", ROUNDS_DONE)
    settings = settings_of(study_folder, story.journal)
    assert nothing_left(settings).startswith("the study seven ended (rounds done) on ")
    ready: list[dict[str, str]] = []
    notifier = Notifier({})
    notifier.tell = lambda **fields: bool(ready.append(fields))  # type: ignore[method-assign]
    with capture_logs() as logs:
        assert client.participant_host.join(settings, notifier) == 0  # without a coordinator, at once
    assert ready == [{"READY": "1"}]
    assert [one["event"] for one in logs] == [nothing_left(settings)]
    write_word(tmp_path, RESUMED)  # it goes on after all
    assert not nothing_left(settings)


def test_an_end_counts_for_its_terms_alone(study_folder: Path, tmp_path: Path) -> None:
    settings = settings_of(study_folder, tmp_path / "journal.sqlite", study={"sha256": TERMS.hex()})
    assert not nothing_left(settings)  # there is no journal yet
    ended(settings)
    assert nothing_left(settings)
    accepted = replace(settings, study=replace(settings.study, sha256=bytes(32).hex()))
    assert not nothing_left(accepted)


def test_a_journal_of_an_earlier_release_gets_the_table(study_folder: Path, tmp_path: Path) -> None:
    settings = settings_of(study_folder, tmp_path / "journal.sqlite", study={"sha256": TERMS.hex()})
    ClientJournal(settings.host.journal, settings.host.ledger).close()
    with contextlib.closing(sqlite3.connect(settings.host.journal)) as database:
        database.execute("DROP TABLE ended")
    assert not nothing_left(settings)
    ended(settings)
    assert query(settings.host.journal, "SELECT reason FROM ended") == [(ROUNDS_DONE,)]


@pytest.mark.parametrize(("one_machine", "give_up_s"), [(True, 60.0), (False, 0.0)])
def test_a_trial_on_one_machine_ends_by_itself(tmp_path: Path, one_machine: bool, give_up_s: float) -> None:
    folder = make_folder(tmp_path / "study", hosts=PARTICIPANTS, one_machine=one_machine)
    assert load(folder / "hosts" / "host-01").coordinator.give_up_s == give_up_s


async def test_a_patient_host_outlasts_a_coordinator_that_gives_up(tmp_path: Path) -> None:
    """One participant of seven has come: the coordinator gives up, and is served again with all of them."""
    folder, state = make_folder(tmp_path / "study"), tmp_path / "state.sqlite"
    tables = {"coordinator": {"max_attempts": 1}, "deadlines": {"connect_s": 0.2}}
    async with contextlib.AsyncExitStack() as hosts:
        with capture_logs() as logs:
            async with coordinator(folder, state, **tables) as where:
                patient = settings_of(folder, tmp_path / "host.sqlite", where.address, coordinator={"give_up_s": 0.0})
                where.start()
                first = await hosts.enter_async_context(host(replace(patient, participants=patient.participants[:1])))
                assert (await where.finish()).reason == ABORTED
                words = "it gave up (round aborted); the study continues when it is served again"
                await until(lambda: any(one.get("reason") == words for one in logs))
                assert not first.done()
        assert not ended_studies(patient.host.journal)
        async with coordinator(folder, state, port=int(where.address.rpartition(":")[2])) as where:
            (tmp_path / "others").mkdir()
            settings = settings_of(folder, tmp_path / "others" / "journal.sqlite", where.address)
            where.start()
            others = await hosts.enter_async_context(host(replace(settings, participants=settings.participants[1:])))
            assert await first == await others == 0
            assert [event["u3"] for event in where.of("round_completed")] == [PARTICIPANTS] * 2
