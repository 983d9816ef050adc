"""The seeds of a lottery on disk, held against the roster whose signature covers them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from secagg.lottery import Draws
from secagg.roster import Roster, RosterEntry
from wire.lottery_file import InvalidLottery, check_lottery, read_lottery, write_lottery


def bytes_of(label: str) -> object:
    counter = iter(range(1 << 20))
    return lambda n: hashlib.shake_128(f"{label} {next(counter)}".encode()).digest(n)


DRAWS = Draws.draw("clinic", 3, 5, bytes_of("seeds"))  # type: ignore[arg-type]
ROSTER = Roster("clinic", 3, (RosterEntry(bytes(32), "h"),), DRAWS.lottery)


def test_round_trip() -> None:
    assert read_lottery(write_lottery(DRAWS)) == DRAWS
    assert check_lottery(ROSTER, write_lottery(DRAWS)) == DRAWS
    assert check_lottery(replace(ROSTER, lottery=None), None) is None


@pytest.mark.parametrize(
    ("roster", "data", "expected"),
    [
        (ROSTER, None, "missing"),
        (replace(ROSTER, lottery=None), write_lottery(DRAWS), "signed without"),
        (ROSTER, write_lottery(replace(DRAWS, version=2)), "version 2"),
        (ROSTER, write_lottery(replace(DRAWS, study="other")), "'other'"),
        (ROSTER, write_lottery(replace(DRAWS, seeds=(bytes(32), *DRAWS.seeds[1:]))), "aren't those"),
        (ROSTER, b"[]", "not a lottery file"),
        (ROSTER, b"\xff", "not a lottery file"),
        (ROSTER, json.dumps({"format": "sordino-lottery-9"}).encode(), "unknown format"),
        (ROSTER, write_lottery(DRAWS).replace(b'"version": 3', b'"version": "3"'), "whole number"),
        (ROSTER, write_lottery(DRAWS)[:-70], "not a lottery file"),
    ],
)
def test_another_file(roster: Roster, data: bytes | None, expected: str) -> None:
    with pytest.raises(InvalidLottery, match=expected):
        check_lottery(roster, data)
