"""The file in which the authority hands the seeds of a roster version's lottery to the coordinator.

Not secret, but only the coordinator needs all of them; everybody else is told the seed of a round with its path to the
root that the roster's signature covers (`secagg.lottery`).
"""

from __future__ import annotations

import json
from typing import Final

from mechanisms.plan import Plan
from mechanisms.statement import LOTTERY
from secagg.lottery import Draws
from secagg.roster import InvalidRoster, Roster

FORMAT: Final = "sordino-lottery-1"
LOTTERY_FILE: Final = "lottery.json"


def write_draws(draws: Draws) -> bytes:
    """JSON, seeds in hexadecimal in the order of rounds."""
    document = {
        "format": FORMAT,
        "study": draws.study,
        "version": draws.version,
        "seeds": [seed.hex() for seed in draws.seeds],
    }
    return (json.dumps(document, indent=1) + "\n").encode()


def read_draws(roster: Roster, data: bytes | None, plan: Plan) -> Draws | None:
    """The draws of a roster, where the plan draws cohorts; else None, whatever there is.

    Args:
        data: the file's content; None if there is no file.

    Raises:
        InvalidRoster: they are missing, malformed, or not those that the roster's signature covers.
    """
    if plan.sampling != LOTTERY:
        return None
    if data is None:
        raise InvalidRoster(f"the plan draws cohorts, but there is no {LOTTERY_FILE} beside the roster: copy both")
    try:
        document = json.loads(data)
        if document["format"] != FORMAT:
            raise InvalidRoster(f"unknown format of {LOTTERY_FILE}; this version reads {FORMAT}")
        draws = Draws(document["study"], document["version"], tuple(map(bytes.fromhex, document["seeds"])))
        if type(draws.version) is not int or type(draws.study) is not str:
            raise InvalidRoster(f"{LOTTERY_FILE} names no study and version")
        lottery = draws.lottery
    except InvalidRoster:
        raise
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRoster(f"{LOTTERY_FILE} is not a file of draws: {type(error).__name__}") from error
    if (draws.study, draws.version, lottery) != (roster.study, roster.version, roster.lottery):
        raise InvalidRoster(
            f"{LOTTERY_FILE} doesn't belong to version {roster.version} of the roster: copy both from the authority"
        )
    return draws
