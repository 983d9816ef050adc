"""The checks of a kill run, on clients that die at an exact point, without processes.

The real client passes at every point; one that acts before its write is durable fails the check made for it.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client.behaviour import Behaviour, Number
from client.credentials import load_identity
from client.journal import ClientJournal
from tests.crashes.crash_checks import Files, Record, all_wrong, cut_off
from tests.crashes.recorded_study import ANSWERS, Watch
from tests.support import host_in_process
from tests.support.host_in_process import PATIENCE_S, host, ledger_of, settings_of
from tests.support.study_in_process import coordinator, make_folder
from wire import coordinator_pb2 as pb
from wire.records.ledger_rows import EXACT, EXCLUDED

POINTS = [f"{when} {kind}" for kind in (*ANSWERS[:3], "upload", *ANSWERS[3:]) for when in ("before", "after")]


Upload = Callable[[AsyncIterator[bytes]], Awaitable[bool]]


class Killed(Exception):
    """The client is gone: it sends nothing more, and writes only what SQLite already has."""


class Mortal(Behaviour):
    """The honest participant, until it dies at a point."""

    def __init__(self, me: str, record: Record, dies_at: str | None) -> None:
        self._me, self._record, self._dies_at = me, record, dies_at

    async def say(self, number: Number, kind: str, content: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        self._reach(f"before {kind}")
        await send(content)
        while f"after {kind}" == self._dies_at and (self._me, *number) not in self._record.keys(kind):
            await asyncio.sleep(0.002)  # a message sent before a death mostly arrives
        self._reach(f"after {kind}")

    async def upload(self, number: Number, packed: bytes, offset: int, send: Upload) -> bool:
        self._reach("before upload")
        taken = await super().upload(number, packed, offset, send)
        self._reach("after upload")
        return taken

    def _reach(self, point: str) -> None:
        if point == self._dies_at:
            raise Killed


def without(step: str) -> type[ClientJournal]:
    """Make a journal that does not write a step: a client that would write it later, and dies first."""

    async def skip(self: ClientJournal, *arguments: Any) -> None:
        pass

    return type(f"WithoutIts{step.capitalize()}", (ClientJournal,), {step: skip})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven participants, more rounds than are needed."""
    return make_folder(
        tmp_path_factory.mktemp("studies") / "seven",
        task="synthetic",
        task_options={"dim": 50},
        partition="iid",
        rounds=1000,
        bits=24,
        epsilon=100.0,
        delta=1e-5,
    )


async def lives(
    folder: Path, work: Path, patch: pytest.MonkeyPatch, deaths: list[str], journal: type[ClientJournal]
) -> tuple[Record, Files]:
    """Let one participant die at each of these points, return each time, and at last complete a round; with a naive
    journal, which would not allow that, only join one.
    """
    record = Record()
    last = "unmasking" if journal is ClientJournal else "advertise_keys"
    settings = settings_of(folder, work / "journal.sqlite")
    me = load_identity(settings.participants[0].key).public.hex()
    others = replace(settings, participants=settings.participants[1:])

    def back(since: int) -> Callable[[], bool]:
        return lambda: any(key[0] == me and key[1] > since for key in record.keys(last))

    async with coordinator(folder, work / "state.sqlite") as where, asyncio.timeout(PATIENCE_S):
        Watch(where.study, record.add)
        at = {"address": where.address, "give_up_s": 0.0}
        staying = replace(others, coordinator=replace(others.coordinator, **at), host=_apart(others.host, work))
        mortal = replace(
            settings, coordinator=replace(settings.coordinator, **at), participants=settings.participants[:1]
        )
        where.start()
        async with host(staying):
            for point in [*deaths, None]:
                behaviour = Mortal(me, record, point)
                with patch.context() as for_one:
                    for_one.setattr(host_in_process, "ClientJournal", journal)
                    async with host(mortal, behaviours=lambda _, behaviour=behaviour: behaviour) as task:
                        if point is not None:
                            with pytest.raises(Killed):
                                await task
                            continue
                        latest = max((round_ for _, round_, _ in record.keys("advertise_keys")), default=0)
                        came = back(latest)
                        while not came():
                            assert not task.done(), task
                            await asyncio.sleep(0.01)
    files = Files.read((one.host.journal, one.host.ledger) for one in (staying, mortal))
    return record, files


def _apart(host: Any, work: Path) -> Any:
    journal = work / "others" / "journal.sqlite"
    return replace(host, journal=journal, ledger=ledger_of(journal))


@pytest.fixture(scope="module")
def survived(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, Files]:
    """The real client, which has died at every point."""
    with pytest.MonkeyPatch.context() as patch:
        return asyncio.run(lives(folder, tmp_path_factory.mktemp("survived"), patch, POINTS, ClientJournal))


@pytest.mark.long
def test_the_real_client_at_every_point(survived: tuple[Record, Files]) -> None:
    """Each time it comes back it gets the earlier messages again, and refuses."""
    record, files = survived
    assert all_wrong(record, files) == {}
    assert record.asked_again == len(POINTS)
    # An invitation that it never read is new to it, and was for an attempt that is over.
    assert set(record.refused) == {pb.REFUSAL_CODE_ALREADY_JOINED}
    # Killed before its first message it is invited twice more: by the coordinator, which can't know, and by the record.
    assert len(POINTS) // 2 < record.refused.total() <= len(POINTS) + 1
    windows = cut_off(record, files)
    for window in ("joined, no keys", "charged, no offer", "charged and offered, no upload", "signed, no signature"):
        assert windows[window] >= 1, windows
    assert windows["digest written, no reply"] >= 1, windows


@pytest.mark.parametrize(
    ("step", "death", "checks"),
    [
        ("join", "after advertise_keys", {"one_message_each", "joined_before_keys"}),
        ("charge", "after upload", {"charged_before_upload"}),
        ("sign", "after consistency", {"signed_once"}),
        ("answer", "after unmasking", {"answered_once"}),
    ],
)
@pytest.mark.long
def test_a_naive_client(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, death: str, checks: set[str]
) -> None:
    record, files = asyncio.run(lives(folder, tmp_path, monkeypatch, [death], without(step)))
    assert all_wrong(record, files).keys() == checks


@pytest.mark.long
def test_a_record_or_files_that_were_changed(survived: tuple[Record, Files]) -> None:
    """Put into the record or the files what our clients cannot be made to do."""

    def wrong_with(change: Callable[[Record, Files], object]) -> set[str]:
        record, files = copy.deepcopy(survived)
        change(record, files)
        return set(all_wrong(record, files))

    key = min(survived[0].keys("unmasking"))
    row = survived[1].joined[key]
    assert wrong_with(lambda record, files: None) == set()
    assert wrong_with(lambda record, files: record.said[key, "share_keys"].update(["00"])) == {"one_message_each"}
    assert wrong_with(lambda record, files: record.uploads[key].append((9, "00"))) == {"one_message_each"}
    assert wrong_with(lambda record, files: record.signatures[key].add("00" * 64)) == {"signed_once"}
    changes = {"signed": b"another statement", "answered": bytes(32)}
    for (name, value), check in zip(changes.items(), ("signed_once", "answered_once"), strict=True):
        other = replace(row, **{name: value})
        assert wrong_with(lambda record, files, other=other: files.joined.update({key: other})) == {check}
    assert "joined_before_keys" in wrong_with(lambda record, files: files.joined.pop(key))
    assert "charged_before_upload" in wrong_with(lambda record, files: [one.clear() for one in files.ledgers])
    assert wrong_with(_take_back) == {"taken_back_if_left_out"}
    assert wrong_with(lambda record, files: [one.reverse() for one in files.ledgers]) == {"in_order"}


def _take_back(_: Record, files: Files) -> None:
    """As if every exact cost had been a charge taken back."""
    files.ledgers = [
        [replace(row, kind=EXCLUDED) if row.kind == EXACT else row for row in rows] for rows in files.ledgers
    ]
