"""A study of real processes: a coordinator as `sordino serve` starts it, and client processes with a script."""

from __future__ import annotations

import abc
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from authority.new_study import LocalStudy, make_local_study, new_study
from client.host_file import load as load_host
from learning.checkpoints import load_checkpoint
from learning.parameters import flatten
from learning.task_names import BOUNDED
from runtime.child_process import child_environment
from runtime.processes import free_port
from secagg.roster import RosterEntry, verify_roster
from server.events import to_json
from server.journal import read_events
from tests.support.card_of_a_study import authority_of
from tests.support.databases import query
from tests.support.forked_commands import Forked, commands
from tests.support.near_gateways import COUNT
from tests.support.signed_rosters import put
from wire.records.ledger import find_ledger
from wire.records.ledger_rows import LedgerEntry

HOST = Path(__file__).parents[1] / "processes" / "scripted_host.py"
PATIENCE_S = 90.0  # generous: the machine may be busy with something else
POLL_S = 0.02


def line(round_: int, at: str, do: str, until: Path | None = None) -> dict[str, Any]:
    """Make one line of a host's script; see scripted_host.py."""
    return {"round": round_, "at": at, "do": do, "until": str(until)}


@dataclass
class StudyProcesses(abc.ABC):
    """The processes that were started for a study, with their logs in one folder, and the coordinator's events."""

    processes: list[subprocess.Popen[bytes] | Forked] = field(default_factory=list, kw_only=True)
    starts: int = field(default=0, kw_only=True)

    @property
    @abc.abstractmethod
    def folder(self) -> Path:
        """Of the logs."""

    @property
    def state(self) -> Path:
        return self.folder / "coordinator" / "state.sqlite"

    # ------------------------------------------------------------ processes

    def _start(
        self, command: list[str], name: str, overrides: dict[str, str], cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Without a terminal; overrides are environment variables. One log a start."""
        with self._new_log(name).open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=child_environment() | overrides, cwd=cwd
            )
        self.processes.append(process)
        return process

    def _fork(self, command: list[str], name: str, overrides: dict[str, str]) -> Forked:
        """As `_start`, of "sordino" or a script, with its modules loaded."""
        log = self._new_log(name)
        process = commands().start(command, log, log, overrides)
        self.processes.append(process)
        return process

    def _new_log(self, name: str) -> Path:
        self.starts += 1
        log = self.folder / f"{self.starts:02d}-{name}.log"
        log.touch()
        return log

    def logs(self, name: str = "") -> str:
        """Return the logs of processes of a name so far."""
        paths = [path for path in sorted(self.folder.glob("*.log")) if name in path.name]
        return "".join(path.read_text(errors="replace") for path in paths)

    def end(self) -> None:
        """Kill all processes that still run."""
        for process in self.processes:
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()

    # ------------------------------------------------------------ what happened

    def events(self, kind: str | None = None, **wanted: Any) -> list[dict[str, Any]]:
        """Return the events so far, in order."""
        return [
            event
            for event in map(to_json, read_events(self.state))
            if kind in (None, event["kind"]) and all(event.get(name) == value for name, value in wanted.items())
        ]

    def wait_for(self, kind: str, **wanted: Any) -> list[dict[str, Any]]:
        """Wait until such an event has happened; return all that have."""
        self.until(lambda: bool(self.events(kind, **wanted)), f"{kind} {wanted}")
        return self.events(kind, **wanted)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition; names what it waited for, and shows the logs, when it doesn't come."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, f"waited in vain for {what}\n{self.story()}"
            time.sleep(POLL_S)

    def story(self) -> str:
        """Return events and logs, for a failed assertion."""
        shown = [event for event in self.events() if event["kind"] not in ("study_started", "phase_progress")]
        return "\n".join([*(str(event) for event in shown[-60:]), self.logs()[-6000:]])

    def code_of(self, process: subprocess.Popen[bytes] | Forked) -> int:
        """Wait until a process ends by itself; return its exit code."""
        self.until(lambda: process.poll() is not None, f"the end of {process.args}")
        return process.wait()


@dataclass
class RunningStudy(StudyProcesses):
    """A study whose hosts follow scripts."""

    study: LocalStudy

    @property
    def folder(self) -> Path:
        return self.study.directory

    def start_coordinator(self, **overrides: str) -> Forked:
        """`sordino serve`; overrides are environment variables."""
        return self._fork(["sordino", "serve", str(self.folder), "--quiet"], "serve", overrides)

    def start_host(self, homes: Sequence[int], script: Sequence[dict[str, Any]] = (), **overrides: str) -> Forked:
        """A client process with the participants of these homes (from 0)."""
        places = [str(self.study.hosts[home]) for home in homes]
        command = [str(HOST), json.dumps(list(script)), *places]
        return self._fork(command, f"host-{homes[0]}", overrides)

    # ------------------------------------------------------------ results

    def survivors(self, round_: int) -> set[int]:
        """Return the participants in the sum of a round, read from the sum: each update is in it once or not at all.

        The server's rate is 1 and its momentum 0, so the model moved by the mean; without noise only rounding is left.
        """
        task = self.study.study.make_task()
        before = flatten(task.initial_parameters()) if round_ == 1 else self._model(round_ - 1)
        [completed] = self.events("round_completed", round=round_)
        total = (self._model(round_).astype(float) - before) * completed["u3"]
        participants = self.study.new.making.participants
        width = total.size // participants
        shares = [total[p * width : (p + 1) * width].sum() / np.sqrt(width) for p in range(participants)]
        assert all(min(abs(share), abs(share - 1)) < 0.01 for share in shares), shares
        return {who for who, share in enumerate(shares) if share > 0.5}

    def _model(self, round_: int) -> NDArray[np.float32]:
        folder = self.folder / "coordinator" / "checkpoints"
        return flatten(load_checkpoint(folder / f"round-{round_:06d}.safetensors").parameters)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Query the coordinator's journal."""
        return query(self.state, sql)

    def charges(self) -> list[LedgerEntry]:
        """Return the rows of the coordinator's ledger, checked whole; also while it runs."""
        return ledger_rows(self.state.with_name("ledger.sqlite"))

    def host_charges(self, home: int) -> list[LedgerEntry]:
        """Return the rows of a client process's ledger."""
        return ledger_rows(self.study.hosts[home] / "ledger.sqlite")

    def host_rows(self, home: int, sql: str) -> list[tuple[Any, ...]]:
        """Query a client process's journal."""
        return query(self.study.hosts[home] / "journal.sqlite", sql)


def ledger_rows(path: Path) -> list[LedgerEntry]:
    """Return all rows of a ledger, checked whole; none if there was never one. It may be written to meanwhile."""
    rows: dict[int, LedgerEntry] = {}
    find_ledger(path, lambda row: rows.update({row.number: row.entry}))
    return [rows[number] for number in sorted(rows)]


def put_on_one_host(folder: Path, names: set[str]) -> None:
    """Sign the roster again with these hosts as one, so that their participants can be in one process."""
    authority = authority_of(folder)
    roster = verify_roster((folder / "roster.json").read_bytes(), authority.public_key().public_bytes_raw())
    entries = tuple(RosterEntry(one.identity, min(names) if one.host in names else one.host) for one in roster.entries)
    put(folder, replace(roster, entries=entries), authority)


@contextmanager
def running_study(folder: Path, *, together: Sequence[int] = range(7), **options: Any) -> Iterator[RunningStudy]:
    """Make a study of seven participants, of which two may be missing; all its processes end with the block.

    Each participant has its own home; those of the homes ``together`` will share a process.
    """
    chosen: dict[str, Any] = {
        **{"name": "seven", "participants": 7, "hosts": 7, "epsilon": 50.0},
        "noise_parts": 0,  # scripts send known updates, and attempts that are stopped need room in the budget
        **{"min_survivors": 5, "quorum": 5},
        **({} if options.get("task") in BOUNDED else {"server_momentum": 0.0}),
        "listen": f"127.0.0.1:{free_port()}",
        **({"coordinator_engine": "ray", "gateways": COUNT} if COUNT else {}),
    } | options
    study = make_local_study(folder, new_study(**chosen))
    put_on_one_host(folder, {load_host(study.hosts[home]).host.name for home in together})
    one = RunningStudy(study)
    try:
        yield one
    finally:
        one.end()
