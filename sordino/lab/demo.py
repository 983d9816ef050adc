"""The demo: a whole study on this machine with real processes, two of which are killed on purpose.

The coordinator and each client are separate processes that talk over TLS on loopback; the demo only starts and kills
them and reads the coordinator's journal. Each child has a separate session, so Ctrl-C reaches only the demo, which then
stops the children; they also end when the demo is gone.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median_high
from typing import TYPE_CHECKING, Any, Final

from authority.new_study import LocalStudy, NewStudy, make_local_study, new_study
from mechanisms.statement import DDGAUSS
from runtime.child_process import STOP_S, Child, StopRequest, child_environment, stop
from runtime.failure import ExitCode, Failure, InputFailure
from runtime.processes import free_port
from secagg.messages import ADVERTISE_KEYS, MASKED_INPUT, SHARE_KEYS
from server.events import StudyStarted
from server.journal import NewEvents
from server.study_view import StudyView
from sordino.reporting.panel import Display
from sordino.reporting.report import BASELINE_FILE, MEASURED_FILE
from sordino.reporting.study_text import dropout_words, epsilon_lines, size_text

if TYPE_CHECKING:
    from sordino.reporting.live_page import LivePage

KILL_ROUND: Final = 5
AWAY_ROUNDS: Final = 3
_POLL_S: Final = 0.03
_MEMORY_EVERY_S: Final = 1.0
_BASELINE_S: Final = 60.0
_NETWORKED_ROUNDS: Final = 3
_NETWORKED_DIM: Final = 100_180  # of a perceptron with 126 hidden units on Fashion-MNIST
_OF_EACH_ROUND: Final = ("key_to_sum_s", "upload_bytes", "download_bytes")
# A participant that leaves in one of these phases is not in the sum.
_BEFORE_THE_SUM: Final = (ADVERTISE_KEYS, SHARE_KEYS, MASKED_INPUT)


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """Options of the demo."""

    rounds: int = 15
    processes: int = 10
    participants: int = 100

    def study(self, port: int) -> NewStudy:
        return new_study(
            name="demo",
            rounds=self.rounds,
            task_options={"client_rate": 0.5, "batch_size": 20, "local_epochs": 3},
            participants=self.participants,
            hosts=self.processes,
            # Two of ten processes may be gone when a round begins, and more may leave during it.
            min_survivors=math.ceil(0.7 * self.participants - 1e-9),
            quorum=math.ceil(0.75 * self.participants - 1e-9),
            listen=f"127.0.0.1:{port}",
            one_machine=True,
        )


@dataclass
class Demo:
    """One run; use ``run``."""

    options: DemoOptions
    display: Display
    study: LocalStudy
    page: LivePage
    address: str  # of the page
    environment: dict[str, str] = field(default_factory=child_environment)
    clients: list[Child] = field(default_factory=list)
    killed_in: int | None = None
    baseline: Child | None = None
    asked: StopRequest = field(default_factory=StopRequest)

    def __post_init__(self) -> None:
        directory = self.study.directory
        log = directory / "logs" / "coordinator.log"
        self.coordinator = Child("coordinator", ["serve", str(directory), "--quiet"], log)
        self.early = directory / "logs" / "without_noise.jsonl"

    @property
    def view(self) -> StudyView:
        return self.display.panel.view

    def run(self) -> dict[str, Any]:
        """Train, then measure and compare; every process that was started has ended when this returns or raises.

        Raises Failure: the coordinator could not do all rounds; KeyboardInterrupt: Ctrl-C or SIGTERM.
        """
        began = time.monotonic()
        with self.asked.noted():
            try:
                self._start()
                self._follow()
                code = end_of(self.coordinator, STOP_S)
            finally:
                self._stop()
        if self.asked.to_end:
            raise KeyboardInterrupt
        if code != 0:
            raise Failure(
                ExitCode(code) if code in set(ExitCode) and code else ExitCode.STUDY,
                f"the coordinator stopped after {len(self.view.rounds)} of {self.options.rounds} rounds: "
                f"{self.coordinator.last_words()} (all of it: {self.coordinator.log})",
            )
        without_noise = self._without_noise()
        self.page.compare(without_noise)
        self.display.panel.without_noise = list(without_noise)  # the panel stays on the screen above the last lines
        self.display.remark("measuring a round of five processes with about 100,000 values")
        result = self._result(without_noise, time.monotonic() - began) | {"networked_round": measure_networked_round()}
        self._leave_for_report(without_noise, result)
        return result

    # ---- processes -----------------------------------------------------------------------------

    def _start(self) -> None:
        logs = self.coordinator.log.parent
        logs.mkdir()
        address = self.study.new.client_address
        self.coordinator.start(self.environment)
        for home in self.study.hosts:
            child = Child(home.name, ["join", address, "--home", str(home)], logs / f"{home.name}.log")
            self.clients.append(child)
            child.start(self.environment)
        # With all participants in every round, shown while the study runs; the comparison at the end is made later.
        self.baseline = self._start_baseline(self.early)

    def _start_baseline(self, results: Path, *cohorts: Path) -> Child:
        """Train without noise in a process of low priority, which writes the accuracy of each round to ``results``."""
        arguments = [str(self.study.directory), str(self.options.participants), str(results), *map(str, cohorts)]
        log = self.study.directory / "logs" / "without_noise.log"
        child = Child("without_noise", arguments, log, module="sordino.lab.baseline")
        child.start(self.environment)
        return child

    def _stop(self) -> None:
        stop(self.coordinator, self.clients)
        if self.baseline is not None:
            self.baseline.kill()
            end_of(self.baseline, STOP_S)

    # ---- while it runs -------------------------------------------------------------------------

    def _follow(self) -> None:
        """Show events and cause faults until the study or its coordinator ends."""
        new_events, measure_at = NewEvents(_state(self.study.directory)), 0.0
        while True:
            if self.asked.to_end:
                raise KeyboardInterrupt
            # Asked before reading, like `running`: clients end once they have heard the study's end.
            running = self.coordinator.running
            codes = [None if child.killed else child.poll() for child in self.clients]
            for event in new_events.read():
                self.page.note(event)
                self.display.show(
                    replace(event, http_address=self.address) if isinstance(event, StudyStarted) else event
                )
            if self.view.finished is not None or not running:
                return
            self.display.panel.without_noise = accuracies(self.early)
            self.page.compare(self.display.panel.without_noise)
            self._faults()
            self._watch_clients(codes)
            if time.monotonic() >= measure_at:
                measure_at = time.monotonic() + _MEMORY_EVERY_S
                for child in (self.coordinator, *self.clients):
                    child.measure()
            time.sleep(_POLL_S)

    def _faults(self) -> None:
        view = self.view
        # As early as possible once all have dealt: a participant that has sent its vector is in the sum, and may leave
        # unnoticed.
        ended = view.current.phase_seconds
        dealt = SHARE_KEYS in ended and MASKED_INPUT not in ended
        if self.killed_in is None and dealt and view.round >= min(KILL_ROUND, max(1, self.options.rounds // 2)):
            victims = self._victims()
            for child in victims:
                child.measure()
                child.kill()
            self.killed_in = view.round
            killed = f"killed {_names(victims)} in round {view.round}"
            self.display.remark(killed if victims else "no process killed: the quorum needs all of them")
        elif self.killed_in is not None and view.round >= self.killed_in + AWAY_ROUNDS:
            back = [child for child in self.clients if child.killed]
            for child in back:
                child.start(self.environment)
            if back:
                when = f"killed in round {self.killed_in}, started again in round {view.round}"
                self.display.remark(f"{_names(back)} {when}")

    @property
    def _each(self) -> int:
        """Participants of a process, at most."""
        return -(-self.options.participants // self.options.processes)

    def _victims(self) -> list[Child]:
        """Choose the processes to kill: as many as the quorum allows, at most two, from the middle of the list."""
        spare = (self.options.participants - self.study.plan.quorum) // self._each
        chosen = [self.clients[index] for index in (2, 6) if index < len(self.clients)]
        return chosen[: max(0, spare)]

    def _watch_clients(self, codes: Sequence[int | None]) -> None:
        """Report a client that has ended by itself, with its code, during the study: that is a fault of ours."""
        for child, code in zip(self.clients, codes, strict=True):
            if code is not None and not child.killed and not child.ended:
                child.ended = True
                self.display.remark(f"{child.name} ended with code {code}: {child.last_words()}")
        left = sum(not child.ended for child in self.clients)
        if left * self._each < self.study.plan.quorum:
            child = next(child for child in self.clients if child.ended)
            raise Failure(
                ExitCode.STUDY,
                f"only {left} of {len(self.clients)} client processes are left, too few for the quorum. "
                f"{child.name}: {child.last_words()} (all of it: {child.log})",
            )

    # ---- afterwards ----------------------------------------------------------------------------

    def _without_noise(self) -> list[float]:
        """The same training without noise, with the survivors of each round as they were."""
        cohorts = self._survivors_as_parts()
        everybody = set(range(self.options.participants))
        early = accuracies(self.early)
        if all(set(cohort) == everybody for cohort in cohorts) and len(early) == self.options.rounds:
            return early
        file, results = self.early.with_name("cohorts.json"), self.early.with_name("without_noise_again.jsonl")
        file.write_text(json.dumps(cohorts))
        child = self._start_baseline(results, file)
        try:
            code = end_of(child, _BASELINE_S)
        finally:
            child.kill()
            end_of(child, STOP_S)
        return early if code is None else accuracies(results)

    def _survivors_as_parts(self) -> list[list[int]]:
        """For each round the parts of the data whose updates are in its sum."""
        part_of, view, cohorts = parts_by_participant(self.study), self.view, []
        for done in view.rounds:
            left = {
                dropout.participant
                for dropout in view.dropouts_of(done.round)
                if dropout.attempt == done.attempt and dropout.phase in _BEFORE_THE_SUM
            }
            away = view.absent.get(done.round, frozenset())
            cohorts.append(sorted(part for who, part in part_of.items() if who not in left and who not in away))
        return cohorts

    def _result(self, without_noise: Sequence[float], wall_s: float) -> dict[str, Any]:
        view, plan, rounds = self.view, self.study.plan, self.view.rounds
        return {
            "accuracy": view.accuracy,
            "accuracy_without_noise": without_noise[-1] if without_noise else None,
            "epsilon_coordinator": view.epsilon_coordinator,
            "epsilon_released": view.epsilon_released,
            "epsilon_budget": plan.epsilon,
            "delta": plan.delta,
            "rounds": len(rounds),
            "dropouts": len(view.dropouts),
            "rounds_with_dropouts": len({dropout.round for dropout in view.dropouts}),
            "attempts_aborted": len(view.aborted),
            "wall_s": round(wall_s, 1),
            "round_s": median_high([done.seconds for done in rounds] or [0.0]),
            **{name: median_high([getattr(done, name) for done in rounds] or [0.0]) for name in _OF_EACH_ROUND},
            "vector_bytes": rounds[-1].vector_bytes if rounds else 0,
            "vector_floor_bytes": (plan.dim * plan.bits + 7) // 8,
            "coordinator_peak_rss_mb": round(self.coordinator.peak_mb, 1),
            "client_peak_rss_mb": round(max((child.peak_mb for child in self.clients), default=0.0), 1),
            "participants": self.options.participants,
            "processes": self.options.processes,
            "partition": f"Dirichlet {self.study.study.data.alpha:g}",
            **{name: getattr(plan, name) for name in ("noise_multiplier", "min_survivors", "quorum", "h_min")},
            "A": plan.colluders,
            "guarantee": "honest-but-curious: one machine plays all parts",
            "directory": str(self.study.directory.resolve()),
        }

    def _leave_for_report(self, without_noise: Sequence[float], result: Mapping[str, Any]) -> None:
        folder, vector = self.study.directory, size_text(result["vector_bytes"])
        (folder / BASELINE_FILE).write_text(json.dumps(list(without_noise)))
        lines = [
            ("Whole demo", f"{result['wall_s']:.0f} s", f"{self.options.processes} client processes"),
            ("Coordinator", f"{result['coordinator_peak_rss_mb']:.0f} MB", "resident, at most"),
            ("Client process", f"{result['client_peak_rss_mb']:.0f} MB", "resident, at most, of the largest"),
            ("Upload", size_text(result["upload_bytes"]), f"a participant a round, of it the vector {vector}"),
        ]
        if (five := result["networked_round"]) is not None:
            what = f"a round of 5 participants with d = {five['dim']:,} over TLS, from the first key to the sum"
            lines.append(("Key to sum, five processes", f"{five['key_to_sum_s']:.2f} s", what))
        (folder / MEASURED_FILE).write_text(json.dumps(lines))


def measure_networked_round() -> dict[str, Any] | None:
    """Measure a round of five participants in five processes with about 100,000 values: a small load test.

    Returns:
        ``participants``, ``dim``, ``bits``, ``key_to_sum_s`` (from the first key to the sum, the median of the rounds),
        ``upload_bytes`` (of one participant) and ``vector_bytes`` (of it the masked vector); None when no round ended
        in a sum.

    Raises KeyboardInterrupt: Ctrl-C or SIGTERM.
    """
    from sordino.lab.loadtest.options import LoadOptions
    from sordino.lab.loadtest.run import run_load_test

    options = LoadOptions(clients=5, processes=5, dim=_NETWORKED_DIM, rounds=_NETWORKED_ROUNDS, drop=0.0, noise=True)
    result = run_load_test(options)
    if result["exit_code"] == ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if not result["rounds_completed"]:
        return None
    figures = {name: result[name] for name in ("key_to_sum_s", "upload_bytes", "vector_bytes")}
    return {"participants": options.clients, "dim": options.dim, "bits": options.bits} | figures


def end_of(child: Child, longest_s: float) -> int | None:
    """Wait for a process that was started; returns its exit code, None when it still runs."""
    assert child.process is not None  # noqa: S101
    with contextlib.suppress(subprocess.TimeoutExpired):
        return child.process.wait(timeout=longest_s)
    return None


def accuracies(results: Path) -> list[float]:
    """What a process of `sordino.lab.baseline` has written so far."""
    written = results.read_text() if results.exists() else ""
    return [float(line) for line in written.splitlines(keepends=True) if line.endswith("\n")]


def _names(children: Sequence[Child]) -> str:
    return " and ".join(child.name for child in children)


def default_folder() -> Path:
    """``demo-20260131-0912`` in the working directory; with a number behind it where that exists."""
    stem = time.strftime("demo-%Y%m%d-%H%M%S")
    names = [stem, *(f"{stem}-{number}" for number in range(2, 1000))]
    return next(Path(name) for name in names if not Path(name).exists())


def demo_page(folder: Path) -> LivePage:
    """The page of a demo in ``folder``. It names hosts: there is nobody to protect from its readers."""
    from sordino.reporting.feed import StudyFeed
    from sordino.reporting.live_page import LivePage

    return LivePage(StudyFeed(_state(folder), names=True))


def _state(folder: Path) -> Path:
    return folder / "coordinator" / "state.sqlite"


def run_demo(options: DemoOptions, folder: Path, display: Display, page: LivePage, address: str) -> dict[str, Any]:
    """Make a study, run it, and write its report.

    Args:
        folder: the study's, new or empty.
        display: entered by the caller.
        page: of `demo_page`, shown by the caller at ``address``.

    Returns the demo's figures under their stable JSON names.

    Raises Failure: an option can't be used, or not all rounds ended in a sum.
    """
    from sordino.reporting.report import write_report

    if options.processes > options.participants:
        raise InputFailure(
            f"--processes {options.processes} can't share --participants {options.participants}: each process needs "
            f"at least one. Use --processes {options.participants} or fewer, or more participants."
        )
    study = make_local_study(folder, options.study(free_port()))
    result = Demo(options, display, study, page, address).run()
    path, _ = write_report(study.directory)
    return result | {"report": str(path.resolve())}


def parts_by_participant(study: LocalStudy) -> dict[int, int]:
    """Position in the roster -> part of the data, from the hosts' files."""
    from client.credentials import load_identity
    from client.host_file import load
    from sordino.lab.loadtest.sums import identities_of

    position = {identity: number for number, identity in enumerate(identities_of(study.directory))}
    parts: dict[int, int] = {}
    for home in study.hosts:
        for entry in load(home).participants:
            assert entry.part is not None, "each participant of the demo has a part"  # noqa: S101  # it wrote the file
            parts[position[load_identity(entry.key).public]] = entry.part
    return parts


def final_lines(result: Mapping[str, Any]) -> list[str]:
    beside, five = result["accuracy_without_noise"], result["networked_round"]
    without_noise = f", {beside:.3f} for the same training without noise" if beside is not None else ""
    networked = "could not be measured"
    if five is not None:
        networked = f"{five['key_to_sum_s']:.2f} s from the first key to the sum, 5 participants in 5 processes, "
        networked += f"d = {five['dim']:,}"
    coordinator, released = result["epsilon_coordinator"], result["epsilon_released"]
    plan = {
        "mechanism": DDGAUSS,
        "colluders": result["A"],
        "clients": result["participants"],
        "min_survivors": result["min_survivors"],
    }
    return [
        f"accuracy            {result['accuracy']:.3f}{without_noise}",
        *epsilon_lines(  # of all rounds, or the budget is spent
            coordinator, result["epsilon_budget"], released, result["delta"], plan, all_rounds=True
        ),
        f"rounds              {result['rounds']}, {result['round_s']:.1f} s each; "
        f"{result['wall_s']:.0f} s with start and the baseline",
        "dropouts            "
        + dropout_words(result["dropouts"], result["rounds_with_dropouts"], result["attempts_aborted"]),
        f"key to sum          {result['key_to_sum_s']:.2f} s, {result['participants']} participants in "
        f"{result['processes']} processes",
        f"networked round     {networked}",
        f"upload              {result['upload_bytes']:,.0f} bytes a participant a round, of it the vector "
        f"{result['vector_bytes']:,.0f} (d x B / 8 = {result['vector_floor_bytes']:,.0f})",
        f"memory              coordinator {result['coordinator_peak_rss_mb']:.0f} MB, largest client process "
        f"{result['client_peak_rss_mb']:.0f} MB, resident",
        f"setting             {result['partition']} partition, min_survivors {result['min_survivors']}, "
        f"h_min {result['h_min']}, A {result['A']}, noise multiplier {result['noise_multiplier']:.2f}",
        f"report              {result['report']}",
    ]
