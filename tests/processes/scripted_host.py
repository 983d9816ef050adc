"""A real client process in which something goes wrong at a named point.

    python scripted_host.py SCRIPT HOME [HOME ...]

SCRIPT is a JSON list of ``{"round": 1, "at": POINT, "do": "kill" | "hold" | "touch", "until": FILE}``. A point is
``before KIND`` or ``after KIND``, with KIND a phase message (``advertise_keys``, ``share_keys``, ``masked_input``,
``consistency``, ``unmasking``), ``upload``, or in round 0 ``ready``, with which a participant says that it takes part
from the next round on; or ``mid upload``: half of the chunks sent. ``kill`` sends SIGKILL to this very process;
``hold`` waits until FILE is there; ``touch`` makes it. The participants of all homes are hosted by this process.

An update is no training but a block of the vector that belongs to the participant alone, of norm 1, and no noise is
added: a sum shows who is in it. (At the largest epsilon that a plan can have, the noise would still hide that.)
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import mechanisms.encoder
from client.behaviour import Behaviour, Encoding, Number, Words
from client.host_file import load
from client.participant_host import join
from runtime.failure import Failure
from runtime.logs import configure_logs
from wire.transport import frame

SCRIPT: list[dict[str, Any]] = []
CHUNK_BYTES = 64  # of a vector of 1 KiB: enough chunks to stop in the middle


def block(position: int, participants: int, dim: int) -> NDArray[np.float32]:
    """The update of the participant at a position of the roster: its own block, norm 1."""
    width = dim // participants
    update = np.zeros(dim, np.float32)
    update[position * width : (position + 1) * width] = 1 / np.sqrt(width)
    return update


async def reach(point: str, round_: int) -> None:
    """Do what the script says about this point."""
    for line in SCRIPT:
        if (line["round"], line["at"]) != (round_, point):
            continue
        if line["do"] == "hold":
            while not Path(line["until"]).exists():
                await asyncio.sleep(0.01)
        elif line["do"] == "touch":
            Path(line["until"]).touch()
        else:
            os.kill(os.getpid(), signal.SIGKILL)


class Scripted(Behaviour):
    """The honest participant with points at which the script is asked, and with a known update without noise."""

    def __init__(self, position: int, participants: int) -> None:
        self._position, self._participants = position, participants

    async def say(self, number: Number, kind: str, content: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        await reach(f"before {kind}", number[0])
        await send(content)
        await reach(f"after {kind}", number[0])

    async def mask(self, encoding: Encoding, encode: Callable[[], Awaitable[Words]]) -> Words:
        update = block(self._position, self._participants, encoding.plan.dim)
        return encoding.encoder().encode(update, os.urandom)

    async def upload(
        self, number: Number, packed: bytes, offset: int, send: Callable[[AsyncIterator[bytes]], Awaitable[bool]]
    ) -> bool:
        await reach("before upload", number[0])
        taken = await send(small_chunks(packed[offset:], number[0]))
        await reach("after upload", number[0])
        return taken


async def small_chunks(data: bytes, round_: int) -> AsyncIterator[bytes]:
    """The vector in small chunks, with a point in the middle."""
    pieces = [frame(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)]
    for sent, piece in enumerate(pieces):
        if sent == len(pieces) // 2:
            await asyncio.sleep(0.05)  # those before leave this process
            await reach("mid upload", round_)
        yield piece


class Silence:
    """A law of variance 0 in the place of the noise."""

    def add(self, values: NDArray[np.int64], random_bytes: Any) -> None:
        pass


def main() -> int:
    script, *homes = sys.argv[1:]
    SCRIPT.extend(json.loads(script))
    settings = [load(Path(home)).settings() for home in homes]
    participants = tuple(itertools.chain.from_iterable(one.participants for one in settings))
    roster = json.loads((settings[0].host.journal.parents[2] / "roster.json").read_text())["participants"]
    positions = {bytes.fromhex(entry["identity"]): place for place, entry in enumerate(roster)}
    mechanisms.encoder.discrete_gaussian = lambda variance: Silence()  # type: ignore[assignment]
    configure_logs()
    try:
        return join(
            replace(settings[0], participants=participants),
            behaviours=lambda identity: Scripted(positions[identity], len(roster)),
        )
    except Failure as error:
        print(error, file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
