"""The file with the seeds of a roster version's lottery, which the authority hands to the coordinator with the roster.

    {"format": "sordino-lottery-1", "study": ..., "version": ..., "seeds": [64 hexadecimal digits, ...]}

It needs no signature: the roster's covers the Merkle root of the seeds.
"""

from __future__ import annotations

import json
from typing import Final

from secagg.lottery import Draws
from secagg.roster import Roster

FORMAT: Final = "sordino-lottery-1"


class InvalidLottery(ValueError):
    """Not a lottery file, or not that of the roster; one sentence."""


def write_lottery(draws: Draws) -> bytes:
    """The file's bytes."""
    document = {
        "format": FORMAT,
        "study": draws.study,
        "version": draws.version,
        "seeds": [seed.hex() for seed in draws.seeds],
    }
    return (json.dumps(document) + "\n").encode()


def read_lottery(data: bytes) -> Draws:
    """Read a file; whether it is that of a roster, `check_lottery` tells.

    Raises:
        InvalidLottery: unreadable.
    """
    try:
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise InvalidLottery(f"unknown format of the lottery file; this version reads {FORMAT}")
        if type(document["study"]) is not str or type(document["version"]) is not int:
            raise InvalidLottery("the lottery file's study must be a string and its version a whole number")
        return Draws(document["study"], document["version"], tuple(bytes.fromhex(seed) for seed in document["seeds"]))
    except InvalidLottery:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidLottery(f"not a lottery file: {type(error).__name__}") from error


def check_lottery(roster: Roster, data: bytes | None) -> Draws | None:
    """The seeds of a roster's lottery; None where the roster was signed without one.

    Raises:
        InvalidLottery: the roster was signed with other seeds, or with none.
    """
    if roster.lottery is None:
        if data is not None:
            raise InvalidLottery("there is a lottery file, but the roster was signed without a lottery")
        return None
    if data is None:
        raise InvalidLottery("the roster was signed with a lottery, whose file is missing")
    draws = read_lottery(data)
    if (draws.study, draws.version) != (roster.study, roster.version):
        raise InvalidLottery(
            f"the lottery file is of version {draws.version} of {draws.study!r}, the roster is version "
            f"{roster.version} of {roster.study!r}"
        )
    if draws.lottery != roster.lottery:
        raise InvalidLottery("the seeds of the lottery file aren't those that the roster was signed with")
    return draws
