"""A real client process in which something goes wrong at a named point.

    python scripted_host.py SCRIPT HOME [HOME ...]

SCRIPT is a JSON list of ``{"round": 1, "at": POINT, "do": "kill" | "stop" | "hold" | "touch", "until": FILE}``. A point
is ``before KIND`` or ``after KIND``, with KIND a phase message (``advertise_keys``, ``share_keys``, ``masked_input``,
``consistency``, ``unmasking``) or ``upload``; or ``mid upload``: half of the chunks sent. ``kill`` and ``stop`` send
SIGKILL and SIGSTOP to this very process; ``hold`` waits until FILE is there; ``touch`` makes it. In round 0 there is
one point, ``after ready``: the coordinator has been told that this participant takes part from the next round on. The
participants of all homes are hosted by this process.

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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import client.connection
import client.participant_host
import mechanisms.encoder
from client.host_file import load
from client.participant import Participant
from runtime.failure import Failure
from runtime.logs import configure_logs
from wire import coordinator_pb2 as pb
from wire.transport import frame

SCRIPT: list[dict[str, Any]] = []
CHUNK_BYTES = 64  # of a vector of 1 KiB: enough chunks to stop in the middle
_rounds: dict[str, int] = {}


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
            os.kill(os.getpid(), signal.SIGKILL if line["do"] == "kill" else signal.SIGSTOP)


class ScriptedParticipant(Participant):
    """The real participant with points at which the script is asked."""

    async def take_part(self, session: Any, terms: Any) -> str | None:
        send = session.send

        async def first(message: pb.ParticipantMessage) -> None:
            session.send = send
            await send(message)
            await reach("after ready", 0)

        session.send = first
        return await super().take_part(session, terms)

    async def _begin(self, session: Any, terms: Any, message: pb.RoundStart) -> None:
        self._position = terms.roster.positions[self.identity.public]
        self._participants = len(terms.roster)
        await super()._begin(session, terms, message)

    def _local_update(self, parameters: Any, l2_clip: float) -> NDArray[np.float32]:
        return block(self._position, self._participants, self._task.dim)

    async def _send(self, session: Any, attempt: Any, **message: Any) -> None:
        [kind] = message
        await reach(f"before {kind}", attempt.round)
        await super()._send(session, attempt, **message)
        await reach(f"after {kind}", attempt.round)

    async def _upload(self, session: Any, attempt: Any) -> None:
        await reach("before upload", attempt.round)
        _rounds["now"] = attempt.round
        await super()._upload(session, attempt)
        await reach("after upload", attempt.round)


async def small_chunks(frames: Any) -> Any:
    """The vector in small chunks, with a point in the middle."""
    data = b"".join(bytes(client.connection.unframe(one)) for one in frames)
    pieces = [frame(data[at : at + CHUNK_BYTES]) for at in range(0, len(data), CHUNK_BYTES)]
    for sent in itertools.count():
        if sent == len(pieces):
            return
        if sent == len(pieces) // 2:
            await asyncio.sleep(0.05)  # those before leave this process
            await reach("mid upload", _rounds["now"])
        yield pieces[sent]


class Silence:
    """A law of variance 0 in the place of the noise."""

    def add(self, values: NDArray[np.int64], random_bytes: Any) -> None:
        pass


def main() -> int:
    script, *homes = sys.argv[1:]
    SCRIPT.extend(json.loads(script))
    settings = [load(Path(home)).settings() for home in homes]
    participants = tuple(itertools.chain.from_iterable(one.participants for one in settings))
    client.participant_host.Participant = ScriptedParticipant  # type: ignore[misc]
    client.connection._each = small_chunks
    mechanisms.encoder.discrete_gaussian = lambda variance: Silence()  # type: ignore[assignment]
    configure_logs()
    try:
        return client.participant_host.join(replace(settings[0], participants=participants))
    except Failure as error:
        print(error, file=sys.stderr)
        return error.code


if __name__ == "__main__":
    sys.exit(main())
