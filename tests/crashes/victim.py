"""A client process that is killed: what its supervisor knows about it, and the instants at which it dies."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from tests.crashes.recorded_study import ANSWERS

POLL_S = 0.0005
WAYS = {"clock": 0.15, "any": 0.2, "event": 0.35, "file": 0.3}
MOMENTS = [
    *(("asked", kind) for kind in ("round_start", "cohort_keys", "neighbour_shares")),
    *(("asked", kind) for kind in ("upload_credit", "survivor_sets", "unmasking_request", "round_end")),
    *(("said", kind) for kind in (*ANSWERS, "upload")),
    ("chunk", None),
    ("opened", None),
    ("ready", None),
]
STARTING, BETWEEN = "starting", "between rounds"
PHASE_AFTER = {
    "round_start": "AdvertiseKeys",
    "cohort_keys": "ShareKeys",
    "neighbour_shares": "MaskedInputCollection",
    "survivor_sets": "ConsistencyCheck",
    "unmasking_request": "Unmasking",
    "round_end": BETWEEN,
}
PHASES = (STARTING, BETWEEN, *(phase for phase in PHASE_AFTER.values() if phase != BETWEEN))


@dataclass
class Victim:
    """One client process that is killed, as its supervisor knows it.

    Attributes:
        started_at: of a process that has not advertised keys yet; None for the very first.
        returns: for each earlier life, when it was restarted and when it advertised keys.
    """

    home: Path
    identities: frozenset[str]
    facts: asyncio.Queue[dict[str, Any]] = field(default_factory=asyncio.Queue)
    phase: str = STARTING
    started_at: float | None = None
    kills: int = 0
    restarts: int = 0
    returns: list[tuple[float, float]] = field(default_factory=list)

    @property
    def files(self) -> tuple[Path, Path]:
        return self.home / "journal.sqlite", self.home / "ledger.sqlite"

    def note(self, fact: dict[str, Any]) -> None:
        """Take a fact about one of its participants."""
        what, kind = fact["what"], fact.get("kind")
        if what == "opened":
            self.phase = BETWEEN
        elif what == "asked" and not fact["again"]:
            self.phase = PHASE_AFTER.get(kind or "", self.phase)
        elif what == "said" and kind == "advertise_keys" and self.started_at is not None:
            self.returns.append((self.started_at, fact["at"]))
            self.started_at = None
        self.facts.put_nowait(fact)

    async def instant(self, way: str, random: Random) -> None:
        """Wait for the instant at which this life ends, chosen in one of `WAYS`."""
        if way == "clock":
            await asyncio.sleep(random.uniform(0, 2.5))
        elif way == "any":
            await self._until(("ready", None))
            await asyncio.sleep(random.uniform(0, 2))
        elif way == "event":
            moment = random.choice(MOMENTS)
            for _ in range(1 if moment[0] in ("opened", "ready") else random.randint(1, 3)):
                await self._until(moment)
            await asyncio.sleep(random.choice([0, random.uniform(0, 0.005), random.uniform(0, 0.03)]))
        else:
            await self._changes(random.randint(1, 40))

    async def _until(self, moment: tuple[str, str | None]) -> None:
        while True:
            fact = await self.facts.get()
            if (fact["what"], fact.get("kind")) == moment and not fact.get("again"):
                return

    async def _changes(self, count: int) -> None:
        journal, ledger = self.files
        watched = [
            *(path.with_name(path.name + "-wal") for path in (journal, ledger)),
            *(ledger.with_name(ledger.name + end) for end in (".head", ".head.new")),
            *self.files,
        ]
        before = [_state(path) for path in watched]
        while count > 0:
            await asyncio.sleep(POLL_S)
            now = [_state(path) for path in watched]
            count -= sum(old != new for old, new in zip(before, now, strict=True))
            before = now


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
