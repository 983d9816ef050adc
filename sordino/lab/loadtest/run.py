"""A load test from start to result: makes the study, starts coordinator and client processes, follows, checks sums.

The parent starts and stops processes and reads the coordinator's journal; it takes no part in a round. Each child has
a separate session, so Ctrl-C reaches only the parent, which then stops the children.
"""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from authority.new_study import LocalStudy, make_local_study
from runtime.child_process import STOP_S, Child, StopRequest, child_environment, stop
from runtime.failure import ExitCode, InputFailure
from runtime.processes import free_port, processes_below
from runtime.text import counted
from server.events import AttemptStarted, RoundCompleted, StudyStarted
from server.journal import NewEvents
from server.study_view import StudyView
from sordino.lab.loadtest.display import round_line
from sordino.lab.loadtest.disturbances import EngineKills, Kills, Recovery, due, strike
from sordino.lab.loadtest.faults import Storm
from sordino.lab.loadtest.options import CONNECTIONS_FILE, LoadOptions
from sordino.lab.loadtest.study import load_study
from sordino.lab.loadtest.summary import Outcomes, broken_bounds
from sordino.lab.loadtest.sums import (
    NoiseSeen,
    decoded_sum,
    figures as noise_figures,
    identities_of,
    noise_in,
    plain_sum,
    sum_digest,
)
from sordino.planning.text import figures_of

RESULT_FILE: Final = "result.json"
_OTHER_FILES: Final = 256  # of any process: its libraries, journal and log
_POLL_S: Final = 0.05
_MEASURE_EVERY_S: Final = 0.5
# Vectors come and go by the thousand: what they lie in stays with a process that has little else to do.
_KEEP_MEMORY: Final = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(256 << 20)}
_OF_PLAN: Final = ("padded_dim", "A", "min_survivors", "quorum", "graph", "degree", "threshold")
_ENDED_STUDY: Final = (int(ExitCode.OK), int(ExitCode.STUDY), int(ExitCode.BUDGET))


def run_load_test(
    options: LoadOptions, say: Callable[[str], None] = lambda line: None, out: Path | None = None
) -> dict[str, Any]:
    """Run a load test.

    Args:
        say: is given a line for each round, and for what else happens while it runs.
        out: new or empty folder for result, figures, study and logs; None keeps nothing.

    Returns:
        Figures under their stable JSON names; ``broken`` lists the broken bounds. After Ctrl-C or the unplanned end of
        a process they cover the rounds so far; ``incomplete`` is the reason (else None), ``exit_code`` its code.

    Raises Failure: an option can't be used, or no plan holds; KeyboardInterrupt: before any process was started.
    """
    options.check()
    allow_open_files(options)
    new_study = load_study(options, free_port())
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputFailure(f"{out} is not empty. Name a folder that is new or empty.")
    folder = out if out is not None else Path(tempfile.mkdtemp(prefix="sordino-loadtest-"))
    try:
        study = make_local_study(folder / "study", new_study)
        result = LoadTest(options, study, say, out is not None).run()
        if out is not None:
            (out / RESULT_FILE).write_text(json.dumps(result, indent=1) + "\n")
            from sordino.lab.loadtest.figure import write_figures

            # A second request to end skips the figures, not the result.
            with contextlib.suppress(*[KeyboardInterrupt] if result["incomplete"] else []):
                write_figures(result, out)
        return result
    finally:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)


def allow_open_files(options: LoadOptions) -> None:
    """The coordinator holds a connection for each participant; children inherit what this process may open.

    Raises Failure: the system allows fewer.
    """
    wanted = options.clients + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        most = hard - _OTHER_FILES
        fewer = f"Use --clients {most} or fewer, or raise" if most >= max(3, options.processes) else "Raise"
        raise InputFailure(
            f"{options.clients} participants need {wanted} open files, the system allows {hard}. "
            f"{fewer} the limit with ulimit -n {wanted}."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class CutShort(Exception):
    """Why a load test ended before its last round, and ``more``: where to read on."""

    def __init__(self, code: ExitCode, why: str, more: str = "") -> None:
        super().__init__(why)
        self.code, self.why, self.more = code, why, more


@dataclass
class LoadTest:
    """One run; use ``run``."""

    options: LoadOptions
    study: LocalStudy
    say: Callable[[str], None]
    keeps_logs: bool
    clients: list[Child] = field(default_factory=list)
    identities: list[bytes] = field(default_factory=list)
    before_rounds_cpu_s: tuple[float, float, float] | None = None
    """CPU time of the coordinator, its gateways and workers, and all client processes when the first round began."""
    zero_until: dict[str, float] = field(default_factory=dict)
    cut_short: CutShort | None = None
    asked: StopRequest = field(default_factory=StopRequest)
    recoveries: list[Recovery] = field(default_factory=list)
    noise_seen: list[NoiseSeen] = field(default_factory=list, repr=False)
    coordinator: Child = field(init=False)
    outcomes: Outcomes = field(init=False)
    kills: Kills = field(init=False)
    engine_kills: EngineKills = field(init=False)
    _storms: list[Storm] = field(init=False)  # still to come
    _crashes: list[int] = field(init=False)  # rounds after which one is still to come
    _new_events: NewEvents = field(init=False)
    _due: list[Storm] = field(default_factory=list)
    _cpu_of_killed_s: float = 0.0
    _environment: dict[str, str] = field(default_factory=child_environment)

    def __post_init__(self) -> None:
        directory = self.study.directory
        log = directory.parent / "logs" / "coordinator.log"
        self.coordinator = Child("coordinator", ["serve", str(directory), "--quiet"], log)
        self.options = self.options.model_copy(update={"began_at": time.time()})
        self.outcomes = Outcomes(self.options, self._sum_is_right, self._journal_bytes)
        self.kills = Kills(self.options.kills)
        self.engine_kills = EngineKills(self.options.engine_kills, self.options.workers > 0)
        self._storms, self._crashes = list(self.options.storms), sorted(set(self.options.crashes))
        self._new_events = NewEvents(directory / "coordinator" / "state.sqlite")

    def run(self) -> dict[str, Any]:
        """Until the last round; every process that was started has ended when this returns or raises."""
        self.identities = identities_of(self.study.directory)
        began = time.monotonic()
        with self.asked.noted():
            try:
                self._start()
                self._follow()
            except CutShort as cut_short:
                self.cut_short = cut_short
                self._read()  # what was recorded before and not yet read
            finally:
                self._stop()
        if self.asked.to_end and self.cut_short is None:
            self.cut_short = CutShort(ExitCode.INTERRUPTED, "interrupted")
        return self._result(time.monotonic() - began)

    # ---- processes -----------------------------------------------------------------------------

    def _start(self) -> None:
        logs = self.coordinator.log.parent
        logs.mkdir()
        self.coordinator.start(self._environment)
        for home in self.study.hosts:
            child = Child(
                home.name,
                [str(home), self.options.model_dump_json()],
                logs / f"{home.name}.log",
                module="sordino.lab.loadtest.client_process",
            )
            self.clients.append(child)
            child.start(self._environment | (_KEEP_MEMORY if self.options.thin else {}))

    def _stop(self) -> None:
        with contextlib.suppress(KeyboardInterrupt):  # asked twice
            self._measure()
        stop(self.coordinator, self.clients)

    def _measure(self) -> None:
        for child in (self.coordinator, *self.clients):
            child.measure()

    def _follow(self) -> None:
        """Show events until all rounds, the study or its coordinator have ended."""
        measure_at = 0.0
        while True:
            running = self.coordinator.running
            self._read()
            if self._due:  # one at a time: two at once would be one storm
                self._strike(self._due.pop(0))
            if len(self.outcomes.rounds) >= self.options.rounds or self.outcomes.ended:
                return
            if running and not self._due and self._crashes and len(self.outcomes.rounds) >= self._crashes[0]:
                self._crash()
                continue
            if running and self.kills.due:
                self._kill()
                self.kills.note(self.outcomes.view)
                self._start_again()
                continue
            if self.asked.to_end:
                self.say("stopping")
                raise CutShort(ExitCode.INTERRUPTED, "interrupted")
            if not running:
                self._coordinator_is_gone()
                return
            self._watch_clients()
            if time.monotonic() >= measure_at:
                measure_at = time.monotonic() + _MEASURE_EVERY_S
                self._measure()
            time.sleep(_POLL_S)

    def _read(self) -> None:
        """Count and show what the coordinator has recorded since."""
        for event in self._new_events.read():
            if isinstance(event, AttemptStarted) and self.before_rounds_cpu_s is None:
                self._measure()
                self.before_rounds_cpu_s = self.coordinator.cpu_s, self.coordinator.below_cpu_s, self._client_cpu_s
            if len(self.outcomes.rounds) < self.options.rounds:
                ended = self.outcomes.apply(event)
                self.engine_kills.strike(event, self._engine)
                self._note_recoveries(self.outcomes.view)
                if isinstance(event, StudyStarted):
                    self.kills.serves(event)
                    self.say(f"{event.participants} participants connect to {event.address}")
                if ended is not None:
                    self.say(round_line(ended))
                while self._storms and due(self._storms[0], event, len(self.outcomes.rounds)):
                    self._due.append(self._storms.pop(0))

    # ---- disturbances --------------------------------------------------------------------------

    @property
    def _cpu_s(self) -> float:
        """Of the coordinator, those that were killed among it, when last measured."""
        return self._cpu_of_killed_s + self.coordinator.cpu_s

    @property
    def _client_cpu_s(self) -> float:
        return sum(child.cpu_s for child in self.clients)

    def _engine(self) -> dict[int, str]:
        return {} if self.coordinator.process is None else processes_below(self.coordinator.process.pid)

    def _crash(self) -> None:
        self._crashes.pop(0)
        self._kill()
        self._disturb("crash", len(self.outcomes.rounds), self.outcomes.connected)
        self._start_again()

    def _kill(self) -> None:
        """Kill the coordinator, and read what it has recorded."""
        assert self.coordinator.process is not None  # noqa: S101
        self.coordinator.measure()
        self._cpu_of_killed_s, self.coordinator.cpu_s = self._cpu_s, 0.0
        self.coordinator.kill()
        self.coordinator.process.wait()
        self._read()

    def _start_again(self) -> None:
        """On the same port and state."""
        self.outcomes.restarted()
        self.kills.started_at = time.time()
        self.coordinator.start(self._environment)

    def _strike(self, storm: Storm) -> None:
        self.coordinator.measure()
        struck = self.options.struck(storm) & self.outcomes.connected
        self._disturb("storm", storm.round, struck)
        self.outcomes.storms.append(struck)
        strike(self.study.directory, self.clients)

    def _disturb(self, what: str, round_: int, struck: frozenset[int]) -> None:
        self.recoveries.append(Recovery(what, round_, time.time(), struck, self._cpu_s))

    def _note_recoveries(self, view: StudyView) -> None:
        for one in self.recoveries:
            if one.look(view):
                self.coordinator.measure()
                one.cpu_s = self._cpu_s - one.cpu_before_s

    def _coordinator_is_gone(self) -> None:
        code = self.coordinator.poll()
        if code in _ENDED_STUDY and self.outcomes.rounds:
            return
        known = ExitCode(code) if code in set(ExitCode) and code else ExitCode.STUDY
        raise CutShort(known, f"the coordinator {ending(code)}", self._said(self.coordinator))

    def _watch_clients(self) -> None:
        """End the test when a client process has ended: all later figures would be meaningless."""
        for child in self.clients:
            code = child.poll()
            if code is None:
                continue
            if code == 0 and time.monotonic() < self.zero_until.setdefault(child.name, time.monotonic() + STOP_S):
                continue  # it has learned that the study is over; the journal is about to record it
            why = f"the client process {child.name} {ending(code)}"
            raise CutShort(ExitCode.STUDY, why, self._said(child))

    def _said(self, child: Child) -> str:
        """The explanation in the log of a process that ended, and where the log is."""
        where = f"its log is {child.log}" if self.keeps_logs else "--out DIR keeps its log"
        text = ""
        with contextlib.suppress(OSError):
            text = last_complaint(child.log.read_text(errors="replace"))
        return "; ".join(filter(None, (text, where)))

    # ---- results -------------------------------------------------------------------------------

    def _sum_is_right(self, event: RoundCompleted) -> bool:
        """Whether the coordinator's sum is the plain sum of these participants' vectors."""
        plan, round_, survivors = self.study.plan, event.round, event.survivors
        if len(survivors) < plan.min_survivors:
            return False
        if self.options.noise:
            # A sum of zero updates is the noise of its survivors and nothing else.
            try:
                total = decoded_sum(self.study.directory / "coordinator" / "checkpoints", round_, len(survivors))
            except (OSError, ValueError):
                return False
            self.noise_seen.append(noise_in(plan, round_, len(survivors), event.u5, total))
            return self.noise_seen[-1].fits
        identities = [self.identities[who] for who in survivors]
        plain = plain_sum(self.options.seed, round_, event.attempt, identities, dim=plan.padded_dim, bits=plan.bits)
        return sum_digest(plain) == event.sum_sha256

    def _journal_bytes(self) -> int:
        state = self.study.directory / "coordinator" / "state.sqlite"
        files = (state, state.with_name(state.name + "-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

    def _ledger(self) -> tuple[int | None, str]:
        """Rows of the coordinator's ledger and why it doesn't verify, if it doesn't: as `sordino budget verify`."""
        from runtime.durable import StorageError
        from sordino.reporting.budget import find, read

        try:
            return read(find(self.study.directory)).head.rows, ""
        except StorageError as error:
            return None, str(error)

    def _connections(self) -> dict[str, Any]:
        """Why client processes could not connect, and the resets of their proxies."""
        troubles: Counter[str] = Counter()
        resets = 0
        for home in self.study.hosts:
            with contextlib.suppress(OSError, ValueError):
                found = json.loads((home / CONNECTIONS_FILE).read_text())
                troubles.update(found["troubles"])
                resets += found["resets"]
        return {"troubles": dict(troubles.most_common()), "resets": resets}

    def _round_mean(self) -> dict[str, float] | None:
        """Where the time of a round goes, the pauses between rounds included; None without any."""
        rounds = len(self.outcomes.rounds)
        if not rounds or self.before_rounds_cpu_s is None:
            return None
        server, engine, clients = self.before_rounds_cpu_s
        return {
            "wall_s": round(sum(one.seconds for one in self.outcomes.rounds) / rounds, 3),
            "server_cpu_s": round((self._cpu_s - server) / rounds, 3),
            "engine_cpu_s": round((self.coordinator.below_cpu_s - engine) / rounds, 3),
            "client_cpu_s": round((self._client_cpu_s - clients) / rounds, 3),
            "participant_cpu_ms": round(1000 * (self._client_cpu_s - clients) / rounds / self.options.clients, 2),
        }

    def _result(self, wall_s: float) -> dict[str, Any]:
        figures = figures_of(self.study.plan)
        rows, ledger_error = self._ledger()
        result = self.outcomes.figures() | {
            "server_cpu_s": round(self._cpu_s, 2),
            "server_cpu_s_before_rounds": round((self.before_rounds_cpu_s or (0.0,))[0], 2),
            "engine_cpu_s": round(self.coordinator.below_cpu_s, 2),
            "round_mean": self._round_mean(),
            "server_peak_rss_mb": round(self.coordinator.peak_mb, 1),
            "client_cpu_s": round(self._client_cpu_s, 2),
            "client_peak_rss_mb": round(max((child.peak_mb for child in self.clients), default=0.0), 1),
            "wall_s": round(wall_s, 1),
            "disturbances": [one.to_json() for one in self.recoveries],
            "kills": self.kills.to_json({(one.round, one.attempt) for one in self.outcomes.rounds if one.completed}),
            "engine_kills": dict(self.engine_kills.done),
            "connections": self._connections(),
            "noise": noise_figures(self.noise_seen),
            "ledger_rows": rows,
            "ledger_error": ledger_error,
            "study_ended": self.outcomes.ended or (self.cut_short.why if self.cut_short is not None else ""),
            "incomplete": self._incomplete(),
            "options": self.options.to_json(),
            "plan": {name: getattr(figures, name) for name in _OF_PLAN},
        }
        broken = broken_bounds(result, self.options)
        code = self.cut_short.code if self.cut_short is not None else ExitCode.BOUND if broken else ExitCode.OK
        return result | {"broken": broken, "exit_code": int(code)}

    def _incomplete(self) -> str | None:
        if self.cut_short is None:
            return None
        so_far = f"{self.cut_short.why} after {len(self.outcomes.rounds)} of {counted(self.options.rounds, 'round')}"
        return "; ".join(filter(None, (so_far, self.cut_short.more)))


def ending(code: int | None) -> str:
    """How a process ended, as a verb: its code is minus the signal where one ended it."""
    if code is None or code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def last_complaint(log: str) -> str:
    """The last line of a process's log, where it explains an end: a warning, an error, or not a log line at all.

    Returns at most 300 characters; else empty, also when routine lines follow the explanation.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if not lines:
        return ""
    try:
        said = json.loads(lines[-1])
    except ValueError:
        return lines[-1][:300]
    if not isinstance(said, dict) or said.get("level") not in ("warning", "error", "critical"):
        return ""
    facts = [f"{name} {value}" for name, value in said.items() if name not in ("event", "level", "timestamp")]
    return ", ".join([str(said.get("event", "")), *facts])[:300]
