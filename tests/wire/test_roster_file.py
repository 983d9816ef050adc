"""roster.json and lottery.json: replaced together whatever happens in between, and noticed when replaced by hand."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import runtime.durable
import wire.records.roster_file
from secagg.lottery import Draws
from secagg.roster import InvalidRoster, RosterEntry, sign_roster, verify_roster
from tests.support.ends_and_full_disks import no_room
from tests.support.enrolment_port import STUDY, Authority, identity
from wire.authority_statements import Package, read_package
from wire.records.roster_file import UNDER_WAY, RosterFile
from wire.roster_history import HISTORY_FILE, NEWEST_FILE
from wire.study import write_draws

AUTHORITY = Authority()
NAMES = (HISTORY_FILE, NEWEST_FILE, "lottery.json", "roster.json")
ENTRIES = (RosterEntry(identity("ann").public, "h"),)


@cache
def version(number: int, valid_s: float = 3600.0) -> Package:
    draws = Draws.draw(STUDY, number, 2, lambda n: bytes([number]) * n)
    roster = AUTHORITY.roster(number, entries=ENTRIES, lottery=draws.lottery)
    return read_package(AUTHORITY.package(roster, lottery=write_draws(draws), valid_s=valid_s))


def files(folder: Path) -> RosterFile:
    return RosterFile(
        folder / "roster.json", folder / "lottery.json", folder / "work", study=STUDY, authority_public=AUTHORITY.public
    )


def put(folder: Path, number: int, **more: float) -> None:
    package = version(number, **more)
    contents = (package.history_file, package.newest_file, package.lottery_file, package.roster_file)
    for name, content in zip(NAMES, contents, strict=True):
        assert content is not None
        (folder / name).write_bytes(content)


def publish(one: RosterFile, number: int) -> None:
    package = version(number)
    one.publish(verify_roster(package.roster_file, AUTHORITY.public), package)


def read(package: Package) -> tuple[bytes, bytes | None]:
    return package.roster_file, package.lottery_file


@pytest.mark.parametrize("writes", range(6))
def test_a_crash_leaves_all_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Files replaced one after the other, without one that holds them all, would leave a roster without its seeds."""
    put(tmp_path, 1)
    one = files(tmp_path)
    one.read()
    honest, done = wire.records.roster_file.replace_durably, []

    def crash(path: Path, data: bytes) -> None:
        if len(done) == writes:
            raise KeyboardInterrupt
        done.append(path.name)
        honest(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(wire.records.roster_file, "replace_durably", crash)
        if writes < 5:
            with pytest.raises(KeyboardInterrupt):
                publish(one, 2)
        else:
            publish(one, 2)
    found = files(tmp_path).read()
    assert (found.roster_file, found.lottery_file) == read(version(1 if writes == 0 else 2))
    assert not (tmp_path / "work" / UNDER_WAY).exists()


def test_what_is_left_never_undoes_a_later_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, 1)
    one = files(tmp_path)
    one.read()
    with monkeypatch.context() as patch:
        patch.setattr(one, "_write", lambda _: None)
        publish(one, 2)
    put(tmp_path, 3)
    assert files(tmp_path).read().roster.version == 3


def test_replaced_by_hand(tmp_path: Path) -> None:
    put(tmp_path, 1)
    one = files(tmp_path)
    one.read()
    assert one.changed() is None
    put(tmp_path, 2)
    assert one.changed() == read(version(2))
    assert (one.changed(), one.newest.version) == (None, 2)
    put(tmp_path, 2, valid_s=7200)
    assert one.changed() is None  # the same roster, whose statement was renewed
    assert one.statement is not None
    assert one.statement.until - one.statement.signed == 7200
    publish(one, 3)
    assert (one.changed(), one.newest.version) == (None, 3)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        version(2).roster_file[:100],
        sign_roster(AUTHORITY.versions[1], Authority().signing),
        version(2).roster_file,
    ],
    ids=["empty", "half", "another authority's", "alone"],  # signatures differ from worker to worker
)
def test_half_a_file_or_another_study_s_is_left_alone(tmp_path: Path, content: bytes) -> None:
    put(tmp_path, 1)
    one = files(tmp_path)
    one.read()
    (tmp_path / "roster.json").write_bytes(content)
    assert one.changed() is None
    assert one.newest.version == 1
    put(tmp_path, 2)
    assert one.changed() == read(version(2))


def test_a_roster_of_another_study_is_named(tmp_path: Path) -> None:
    other = AUTHORITY.roster(1, study="other")
    (tmp_path / "roster.json").write_bytes(sign_roster(other, AUTHORITY.signing))
    with pytest.raises(InvalidRoster, match=r"'other', study\.toml names 'clinic'"):
        files(tmp_path).read()


def test_a_full_disk_takes_a_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that takes less than it was given is no success: the naive single call would keep half a roster."""
    put(tmp_path, 1)
    one = files(tmp_path)
    one.read()
    honest: Any = os.write
    room = [60]

    def write(descriptor: int, data: Any) -> int:
        if not room[0]:
            no_room()
        taken = honest(descriptor, bytes(data)[: room[0]])
        room[0] -= taken
        return int(taken)

    with monkeypatch.context() as patch:
        patch.setattr(runtime.durable.os, "write", write)
        with pytest.raises(OSError, match="No space"):
            publish(one, 2)
    assert files(tmp_path).read().roster.version == 1
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == []
