"""Client processes that are killed (SIGKILL) at any instant and restarted, as an init system would.

    python -m tests.crashes.kill_run --kills 500

A real coordinator runs rounds without a pause. One client process holds enough participants to complete every round
alone. The others, the victims, are real `sordino join` processes; a supervisor kills each at a random instant and
restarts it at once. A victim's life ends in one of four ways, drawn at random:

- ``clock``: at a uniform time after its start, so also while it starts;
- ``any``: at a uniform time after it has sent that it is ready;
- ``event``: when the coordinator notes a certain message to or from it, or up to 30 ms later;
- ``file``: at the k-th change of its journal, its ledger or the file beside the ledger, as seen from outside.

After each kill its files are checked as the victim's next start checks them, after each tenth with `sordino budget
verify`; at the end `crash_checks` compares them with the coordinator's record. Exit code 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_high
from typing import Any

from authority.new_study import make_local_study, new_study
from client.credentials import load_identity
from client.host_file import load as load_host
from client.journal import check_ledger
from runtime.child_process import child_environment
from runtime.durable import open_to_read
from runtime.processes import free_port
from tests.crashes.crash_checks import Files, Record, all_wrong, cut_off
from tests.crashes.recorded_study import ANSWERS
from tests.support.running_study import put_on_one_host
from wire import coordinator_pb2 as pb
from wire.records.ledger_rows import CHARGE, EXCLUDED

PATIENCE_S = 60.0
ROUNDS = 20_000  # never reached; the budget is made for them
COLLUDERS = 2
VERIFY_EVERY = 10
LABELS = {
    "kills": "kills of client processes",
    "by_phase": "by the phase that they hit",
    "by_way": "by how the instant was chosen",
    "coordinator_kills": "kills of the coordinator",
    "restarts": "restarts",
    "restarts_refused": "restarts refused",
    "rounds": "rounds completed",
    "aborted": "attempts aborted",
    "joined": "attempts joined by killed participants",
    "charges": "charges of theirs",
    "charges_taken_back": "charges of theirs taken back",
    "uploads": "uploads of theirs that began",
    "uploads_uncharged": "uploads without a charge",
    "replies": "unmasking replies of theirs",
    "different_answers": "two different answers",
    "asked_again": "lost attempts asked about again",
    "asked_again_refused": "of them refused",
    "cut_off": "kills between a write and its message",
    "verified": "files checked",
    "verified_by_command": "of them by `budget verify`",
    "return_median_s": "seconds from a restart to keys of a new round, median",
    "return_slowest_s": "the slowest",
    "return_slowest_away_s": "the slowest while the coordinator was away too",
    "wall_s": "seconds in all",
}
"""Rows of the table, by the key of a figure; “theirs” is of the killed participants."""
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

    async def instant(self, way: str, draw: random.Random) -> None:
        """Wait for the instant at which this life ends, chosen in one of `WAYS`."""
        if way == "clock":
            await asyncio.sleep(draw.uniform(0, 2.5))
        elif way == "any":
            await self._until(("ready", None))
            await asyncio.sleep(draw.uniform(0, 2))
        elif way == "event":
            moment = draw.choice(MOMENTS)
            for _ in range(1 if moment[0] in ("opened", "ready") else draw.randint(1, 3)):
                await self._until(moment)
            await asyncio.sleep(draw.choice([0, draw.uniform(0, 0.005), draw.uniform(0, 0.03)]))
        else:
            await self._changes(draw.randint(1, 40))

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


class KillRun:
    """One run with the command's options; use ``run``."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self._folder, self._kills, self._coordinator_kills = folder, options.kills, options.coordinator_kills
        self._random = random.Random(options.seed)  # chooses instants, nothing secret
        self._record = Record()
        self._refused: list[str] = []
        self._damaged: list[str] = []
        self._phases: Counter[str] = Counter()
        self._ways: Counter[str] = Counter()
        self._planned = self._done = self._verified = self._commands = 0
        self._coordinator: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._coordinator_killed_at: list[float] = []
        self._stopping = False
        self._progress = asyncio.Condition()
        self._make(options.victims + 1, options.dim)

    def _make(self, killed: int, dim: int) -> None:
        """Make the study. The first victim holds two participants, the others one; the rest complete rounds alone."""
        stay = killed + COLLUDERS + 1  # more than half of all and the colluders
        number = stay + killed
        options = new_study(
            name="kills",
            rounds=ROUNDS,
            participants=number,
            hosts=number,
            task="synthetic",
            task_options={"dim": dim},
            partition="iid",
            epsilon=50.0,
            bits=24,
            min_survivors=stay,
            quorum=stay,
            listen=f"127.0.0.1:{free_port()}",
        )
        study = make_local_study(self._folder / "study", options)
        assert study.plan.colluders == COLLUDERS
        self._study, homes = study.directory, study.hosts
        self._staying = _put_together(self._study, homes[:stay])
        self._victims = [Victim(home, _identities(home)) for home in homes[stay + 2 :]]
        both = _put_together(self._study, homes[stay : stay + 2])
        self._victims.insert(0, Victim(both, _identities(both)))
        self._by_identity = {identity: one for one in self._victims for identity in one.identities}

    # ------------------------------------------------------------ the run

    async def run(self) -> dict[str, Any]:
        """Run all kills and end the processes; returns the figures."""
        began = time.monotonic()
        staying = None
        lives: list[asyncio.Task[None]] = []
        try:
            await self._start_coordinator()
            staying = await self._join(self._staying, "staying")
            lives = [asyncio.create_task(self._live(victim)) for victim in self._victims]
            lives.append(asyncio.create_task(self._kill_coordinator()))
            await asyncio.gather(*lives)
            seconds = time.monotonic() - began
            if staying.returncode is not None:
                self._refused.append(f"the process that was never killed ended by itself: {self._words('staying')}")
        finally:
            self._stopping = True
            for life in lives:
                life.cancel()
            await asyncio.gather(*lives, return_exceptions=True)
            await _end(staying)
            await self._end_coordinator()
        return self._figures(seconds)

    async def _spawn(self, name: str, module: str, *arguments: str, **more: Any) -> asyncio.subprocess.Process:
        """Start a process of a module; its output goes to the log of this name."""
        with (self._folder / f"{name}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, *arguments),
                **{"stdin": asyncio.subprocess.DEVNULL, "stdout": log, "stderr": log, "env": child_environment()}
                | more,
            )

    async def _join(self, home: Path, name: str) -> asyncio.subprocess.Process:
        return await self._spawn(name, "sordino", "join", "--home", str(home), "--end-with", str(os.getpid()))

    # ------------------------------------------------------------ the coordinator

    async def _start_coordinator(self) -> None:
        arguments = "tests.crashes.recorded_study", str(self._study), str(os.getpid())
        self._record.lives += 1
        self._coordinator = await self._spawn("coordinator", *arguments, stdout=asyncio.subprocess.PIPE)
        self._reader = asyncio.create_task(self._read(self._coordinator))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.endswith(b"\n"):
                break  # killed while it wrote
            fact = json.loads(line)
            self._record.add(fact)
            victim = self._by_identity.get(fact.get("who", ""))
            if victim is not None:
                victim.note(fact)

    async def _end_coordinator(self) -> None:
        await _end(self._coordinator)
        if self._reader is not None:
            await self._reader

    async def _kill_coordinator(self) -> None:
        """Kill it at even distances among the other kills; it continues where its journal ends."""
        for number in range(1, self._coordinator_kills + 1):
            async with self._progress:
                due = number * self._kills // (self._coordinator_kills + 1)
                await self._progress.wait_for(lambda due=due: self._done >= due)  # type: ignore[misc]
            await asyncio.sleep(self._random.uniform(0, 1))
            assert self._coordinator is not None
            self._coordinator.kill()
            self._coordinator_killed_at.append(time.monotonic())
            await self._end_coordinator()
            await self._start_coordinator()

    # ------------------------------------------------------------ a victim

    async def _live(self, victim: Victim) -> None:
        name = victim.home.name
        while self._planned < self._kills:
            self._planned += 1
            process = await self._begin(victim)
            way = self._random.choices(list(WAYS), list(WAYS.values()))[0]
            instant = asyncio.create_task(victim.instant(way, self._random))
            ended = asyncio.create_task(process.wait())
            try:
                await asyncio.wait([instant, ended], return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
                if process.returncode is not None:
                    self._refused.append(f"{name} ended by itself with code {process.returncode}: {self._words(name)}")
                    self._planned -= 1
                    await asyncio.sleep(1.0)
                    continue
                phase = victim.phase
                process.kill()
            finally:
                instant.cancel()
                await _end(process)
                await asyncio.gather(instant, ended, return_exceptions=True)
            victim.kills += 1
            self._phases[phase] += 1
            self._ways[way] += 1
            async with self._progress:
                self._done += 1
                self._progress.notify_all()
            await self._check_files(victim)
        await self._come_back(victim)

    async def _begin(self, victim: Victim) -> asyncio.subprocess.Process:
        while not victim.facts.empty():
            victim.facts.get_nowait()
        victim.phase = STARTING
        victim.restarts += victim.kills > 0
        victim.started_at = time.monotonic() if victim.kills else None
        return await self._join(victim.home, victim.home.name)

    async def _come_back(self, victim: Victim) -> None:
        """After the last kill, wait until it has taken part in a whole round, and end it."""
        process = await self._begin(victim)
        missing = set(victim.identities)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while missing:
                    fact = await victim.facts.get()
                    if (fact["what"], fact.get("kind")) == ("said", "unmasking"):
                        missing.discard(fact["who"])
        except TimeoutError:
            self._refused.append(f"{victim.home.name} did not come back: {self._words(victim.home.name)}")
        finally:
            await _end(process)
        await self._check_files(victim, last=True)

    async def _check_files(self, victim: Victim, *, last: bool = False) -> None:
        """Check as its next start does; each tenth time also with the command, `sordino budget verify`."""
        journal, ledger = victim.files
        self._verified += 1
        command = last or self._verified % VERIFY_EVERY == 0
        try:
            await asyncio.to_thread(_whole, journal, ledger)
        except Exception as error:
            self._damaged.append(f"{victim.home.name} after kill {victim.kills}: {error}")
        if command and ledger.exists():
            self._commands += 1
            process = await self._spawn(
                *("verify", "sordino", "budget", "verify", str(victim.home)),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
            _, said = await process.communicate()
            if process.returncode:
                self._damaged.append(f"budget verify {victim.home.name}: {said.decode(errors='replace')}")

    def _words(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return (self._folder / f"{name}.log").read_text(errors="replace")[-600:]
        return ""

    # ------------------------------------------------------------ the end

    def _returns(self) -> tuple[list[float], float]:
        """Seconds from each restart to keys of a new round, ascending, and the most of them; the first without those
        while the coordinator was away: from a kill of it to its next attempt, or to where it went on with one.
        """
        began = [e["at"] for e in self._record.events if e["event"] in ("attempt_started", "attempt_resumed")]
        outages = [
            (killed, min((at for at in began if at > killed), default=math.inf))
            for killed in self._coordinator_killed_at
        ]
        times = [one for victim in self._victims for one in victim.returns]
        alone = [
            back - started
            for started, back in times
            if not any(started <= end and begin <= back for begin, end in outages)
        ]
        return sorted(alone), max((back - started for started, back in times), default=0.0)

    def _figures(self, seconds: float) -> dict[str, Any]:
        """What came of the run, by the keys of `LABELS`; and ``wrong``."""
        places = [victim.files for victim in self._victims]
        files = Files.read([*places, (self._staying / "journal.sqlite", self._staying / "ledger.sqlite")])
        wrong = all_wrong(self._record, files)
        wrong |= {name: said for name, said in (("restarts", self._refused), ("files", self._damaged)) if said}
        victims = self._by_identity.keys()
        own, record = Files.read(places), self._record
        events = Counter(event["event"] for event in record.events)
        returns, slowest_s = self._returns()
        return {
            "kills": sum(victim.kills for victim in self._victims),
            "by_phase": {phase: self._phases[phase] for phase in PHASES},
            "by_way": dict(self._ways),
            "coordinator_kills": len(self._coordinator_killed_at),
            "restarts": sum(victim.restarts for victim in self._victims),
            "restarts_refused": len(self._refused),
            "rounds": events["round_completed"],
            "aborted": events["attempt_aborted"],
            "joined": len(own.joined),
            "charges": len(own.with_row(CHARGE)),
            "charges_taken_back": len(own.with_row(EXCLUDED)),
            "uploads": len([key for key in record.uploads if key[0] in victims]),
            "uploads_uncharged": len(wrong.get("charged_before_upload", [])),
            "replies": len([key for key in record.keys("unmasking") if key[0] in victims]),
            "different_answers": len(wrong.get("one_message_each", [])) + len(wrong.get("answered_once", [])),
            "asked_again": record.asked_again,
            "asked_again_refused": record.refused[pb.REFUSAL_CODE_ALREADY_JOINED],
            "cut_off": cut_off(record, own),
            "verified": self._verified,
            "verified_by_command": self._commands,
            "return_median_s": round(median_high(returns or [0.0]), 2),
            "return_slowest_s": round(max(returns, default=0.0), 2),
            "return_slowest_away_s": round(slowest_s, 2),
            "wall_s": round(seconds, 1),
            "wrong": wrong,
        }


def _put_together(study: Path, homes: tuple[Path, ...]) -> Path:
    """Move the participants of all these hosts to the first."""
    first = homes[0] / "host.toml"
    text = first.read_text()
    for home in homes[1:]:
        for one in load_host(home).participants:
            text += f"\n[[participants]]\nkey = {json.dumps(str(one.key.resolve()))}\npart = {one.part}\n"
    first.write_text(text)
    if len(homes) > 1:
        put_on_one_host(study, {home.name for home in homes})
    return homes[0]


def _identities(home: Path) -> frozenset[str]:
    return frozenset(load_identity(one.key).public.hex() for one in load_host(home).participants)


def _whole(journal: Path, ledger: Path) -> None:
    """Raise an error if SQLite, the chain, the file beside it or the journal's note show that something is missing."""
    for path in (journal, ledger):
        if path.exists():
            with contextlib.closing(open_to_read(path)) as connection:
                [[found]] = connection.execute("PRAGMA integrity_check").fetchall()
                if found != "ok":
                    raise ValueError(f"{path.name}: {found}")
    check_ledger(journal, ledger)


async def _end(process: asyncio.subprocess.Process | None) -> None:
    if process is not None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()


def table(figures: dict[str, Any]) -> list[str]:
    """Return the figures as rows of a Markdown table."""

    def cell(value: Any) -> str:
        return ", ".join(f"{what} {count}" for what, count in value.items()) if isinstance(value, dict) else str(value)

    rows = (f"| {label} | {cell(figures[key])} |" for key, label in LABELS.items())
    return ["| | |", "|---|---|", *rows]


def main(arguments: list[str] | None = None) -> int:
    """Run the command: see the module."""
    parser = argparse.ArgumentParser(prog="kill_run", description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=500, help="of client processes")
    parser.add_argument("--victims", type=int, default=4, help="client processes that are killed, side by side")
    parser.add_argument("--coordinator-kills", type=int, default=5, help="of the coordinator, in between")
    parser.add_argument("--dim", type=int, default=90_000, help="values of a vector; the default is two chunks")
    parser.add_argument("--seed", type=int, default=1, help="of the instants; the processes themselves are not seeded")
    parser.add_argument("--out", type=Path, help="keep everything in this new folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    chosen = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        folder = chosen.out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sordino-kills-")))
        folder.mkdir(parents=True, exist_ok=True)
        figures = asyncio.run(KillRun(folder, chosen).run())
        (folder / "result.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures) if chosen.json else "\n".join(table(figures)))
    for name, wrong in figures["wrong"].items():
        for one in wrong[:20]:
            print(f"WRONG {name}: {one}", file=sys.stderr)
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
