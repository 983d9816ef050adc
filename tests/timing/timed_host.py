"""A real client process whose trainings end in one of `OUTCOMES`, drawn for each round and written to a file.

    python -m tests.timing.timed_host HOME FILE DELAY_S OFFSET_S real|naive

Training is numpy's work of about 20 ms, always the same: a length that varied would hide the outcomes. It begins
DELAY_S after the round's start, so that the processes of a study on one machine don't wait for each other. With an
offset one may go on beyond it. A naive process skips the work that a zero contribution doesn't need, and has no
trainings imitated.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from client.host_file import load
from client.participant_host import join
from client.training import LocalTraining
from learning.tasks.external import Synthetic
from mechanisms.encoder import Encoder
from mechanisms.rounding import _Scratch
from runtime.logs import configure_logs

OUTCOMES = ("update", "failure", "late failure", "not finite", "redraw", "no examples")
UNFINISHED = "unfinished"
BEYOND = 1.1
"""Of the offset: how long an unfinished training lasts; before the next round's begins."""
OUT_OF_REACH = 1 << 62
CHOICE = random.SystemRandom()


def main() -> int:
    home, file, delay, offset, kind = sys.argv[1:]
    drawn, begun = "", 0.0
    outcomes = (*OUTCOMES, UNFINISHED) if float(offset) else OUTCOMES
    direction = np.empty(0, np.float32)
    honest_train, honest_update, honest_round = LocalTraining.train, Synthetic.local_update, _Scratch.round_all
    draws = 0

    async def train(self: LocalTraining, *arguments: Any) -> Any:
        nonlocal drawn, draws, begun
        drawn = CHOICE.choice(outcomes) if self.took else OUTCOMES[0]  # the first one is there to be imitated
        begun = time.perf_counter()
        draws = 0
        with Path(file).open("a", encoding="utf-8") as noted:
            noted.write(drawn + "\n")
        held = self._data
        if drawn == "no examples":
            self._data = held.take([])
        try:
            await asyncio.sleep(float(delay))
            return await honest_train(self, *arguments)
        finally:
            self._data = held

    def local_update(self: Synthetic, *arguments: Any) -> Any:
        nonlocal direction
        if drawn == "failure":
            raise ValueError
        matrix = np.ones((256, 256), np.float32)
        for _ in range(20):
            matrix = matrix @ matrix / 256
        while drawn == UNFINISHED and time.perf_counter() < begun + BEYOND * float(offset):
            matrix = matrix @ matrix / 256
        if drawn == "late failure":
            raise ValueError
        if not direction.size:
            direction = np.random.default_rng().normal(size=self.options.dim).astype(np.float32)
        [name] = honest_update(self, *arguments)
        return {name: direction * np.float32(np.inf if drawn == "not finite" else 1)}

    def round_all(self: _Scratch, *arguments: Any) -> int:
        nonlocal draws
        draws += 1
        if kind == "naive" and draws == 2 and drawn != "redraw":
            return OUT_OF_REACH
        found = honest_round(self, *arguments)
        return OUT_OF_REACH if draws == 1 and drawn == "redraw" else found

    LocalTraining.train, Synthetic.local_update, _Scratch.round_all = train, local_update, round_all  # type: ignore[assignment,method-assign]
    if kind == "naive":
        honest_encode = Encoder.encode

        def encode(self: Encoder, update: Any, random_bytes: Any) -> Any:
            if update is None:
                return self._noised(np.zeros(self.plan.padded_dim, np.int64), random_bytes).astype(self._dtype)
            return honest_encode(self, update, random_bytes)

        Encoder.encode = encode  # type: ignore[method-assign]
        LocalTraining._imitate = lambda *_: None  # type: ignore[method-assign]
    configure_logs()
    return join(load(Path(home)).settings())


if __name__ == "__main__":
    sys.exit(main())
