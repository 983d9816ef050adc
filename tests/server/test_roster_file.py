"""roster.json and lottery.json: replaced together whatever happens in between, and noticed when replaced by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import server.roster_file
from secagg.lottery import Draws
from secagg.roster import InvalidRoster, RosterEntry, verify_roster
from server.roster_file import UNDER_WAY, RosterFile
from tests.support.enrolment_port import STUDY, Authority, identity
from wire.study import write_draws

AUTHORITY = Authority()
ENTRIES = (RosterEntry(identity("ann").public, "h"),)


def version(number: int) -> tuple[bytes, bytes]:
    """A roster with its lottery."""
    draws = Draws.draw(STUDY, number, 2, lambda n: bytes([number]) * n)
    return AUTHORITY.roster(number, entries=ENTRIES, lottery=draws.lottery), write_draws(draws)


def files(folder: Path) -> RosterFile:
    return RosterFile(
        folder / "roster.json", folder / "lottery.json", folder / "work", study=STUDY, authority_public=AUTHORITY.public
    )


def put(folder: Path, number: int) -> None:
    for name, content in zip(("roster.json", "lottery.json"), version(number), strict=True):
        (folder / name).write_bytes(content)


def publish(one: RosterFile, number: int) -> None:
    roster_file, lottery_file = version(number)
    one.publish(verify_roster(roster_file, AUTHORITY.public), roster_file, lottery_file)


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_a_crash_leaves_both_or_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int) -> None:
    """Two files replaced one after the other, without the third, would leave a roster without its seeds."""
    put(tmp_path, 1)
    one = files(tmp_path)
    one.read()
    honest, done = server.roster_file.replace_durably, []

    def crash(path: Path, data: bytes) -> None:
        if len(done) == writes:
            raise KeyboardInterrupt
        done.append(path.name)
        honest(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(server.roster_file, "replace_durably", crash)
        if writes < 3:
            with pytest.raises(KeyboardInterrupt):
                publish(one, 2)
        else:
            publish(one, 2)
    found = files(tmp_path).read()
    expected = version(1 if writes == 0 else 2)
    assert (found.roster_file, found.lottery_file) == expected
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
    assert one.changed() == version(2)
    assert (one.changed(), one.newest.version) == (None, 2)
    publish(one, 3)
    assert (one.changed(), one.newest.version) == (None, 3)


@pytest.mark.parametrize(
    "content",
    [b"", version(2)[0][:100], Authority().roster(2), AUTHORITY.roster(2, study="other")],
    ids=["empty", "half", "another authority's", "another study's"],  # signatures differ from worker to worker
)
def test_half_a_file_or_another_study_s_is_left_alone(tmp_path: Path, content: bytes) -> None:
    put(tmp_path, 1)
    one = files(tmp_path)
    one.read()
    (tmp_path / "roster.json").write_bytes(content)
    assert one.changed() is None
    assert one.newest.version == 1
    put(tmp_path, 2)
    assert one.changed() == version(2)


def test_a_roster_of_another_study_is_named(tmp_path: Path) -> None:
    (tmp_path / "roster.json").write_bytes(AUTHORITY.roster(1, study="other"))
    with pytest.raises(InvalidRoster, match=r"'other', study\.toml names 'clinic'"):
        files(tmp_path).read()


def test_a_full_disk_takes_a_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that takes less than it was given is no success: the naive single call would keep half a roster."""
    import os

    import runtime.durable

    put(tmp_path, 1)
    one = files(tmp_path)
    one.read()
    honest: Any = os.write
    room = [60]

    def write(descriptor: int, data: Any) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        taken = honest(descriptor, bytes(data)[: room[0]])
        room[0] -= taken
        return int(taken)

    with monkeypatch.context() as patch:
        patch.setattr(runtime.durable.os, "write", write)
        with pytest.raises(OSError, match="No space"):
            publish(one, 2)
    assert files(tmp_path).read().roster.version == 1
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == []
