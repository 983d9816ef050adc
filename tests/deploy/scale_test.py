"""The compose project with `--profile scale`: a Ray cluster of four nodes on which gateways, whole nodes and the head
end, in each phase: part of `make scale-test`.

Needs a container engine, compose, base images, and root, since processes are killed as soon as a phase begins. Every
round must end in a sum or be aborted with a reason; of the participants of a gateway that ends nine tenths must be in
the sum. Ledger, transcripts and sums are checked at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import cycle
from typing import Any, Final

from secagg.messages import PHASES
from tests.deploy.compose_project import ROOT, STUDY, ComposeError, Project, docker
from tests.deploy.compose_test import Run, tried

CLIENTS: Final = 12
SHARE: Final = 0.9
# Run inside the coordinator's container: events as they are written, for as long as this process is heard.
_FOLLOW: Final = """
import json, sqlite3, sys, time
journal = sqlite3.connect(f"file:{sys.argv[1]}/coordinator/state.sqlite?mode=ro", uri=True)
[seq] = journal.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
while True:
    for seq, kind, body in journal.execute("SELECT seq, kind, body FROM events WHERE seq > ? ORDER BY seq", (seq,)):
        print(json.dumps({"kind": kind} | json.loads(body)), flush=True)
    time.sleep(0.003)
"""


def settings(rounds: int) -> dict[str, str]:
    """Those of deploy/scale.env, for more rounds than these: the coordinator is asked for its records while it runs."""
    lines = (line for line in (ROOT / "deploy/scale.env").read_text().splitlines() if not line.startswith("#"))
    given = dict(line.split("=", 1) for line in lines)
    # Between rounds what was killed comes back.
    given["SORDINO_STUDY_OPTIONS"] = given["SORDINO_STUDY_OPTIONS"].replace("--pause 2", "--pause 6")
    given["SORDINO_STUDY_OPTIONS"] += " --server-momentum 0 --noise-parts 0"
    more = {"SORDINO_ROUNDS": str(rounds + 20), "SORDINO_HTTP": "127.0.0.1:0", "SORDINO_EPSILON": "60"}
    return given | more | {"SORDINO_PLACES": str(CLIENTS), "SORDINO_COHORT": str(CLIENTS), "COMPOSE_PROFILES": "scale"}


class Kills:
    """What ends in which phase, in turns."""

    def __init__(self, under: Project) -> None:
        self.project, self.done = under, Counter[str]()
        self._turns = cycle([("gateway", phase) for phase in PHASES] + [("node", phase) for phase in PHASES])
        self._of = cycle(["gateway-0", "gateway-1"])

    def pids(self, service: str, name: str = "") -> list[int]:
        """Processes of a service's container on this machine; with a name: those that are called so."""
        [container] = self.project.containers(service)
        if not name:
            return [int(docker("inspect", "--format", "{{.State.Pid}}", container))]
        rows = (row.split(None, 1) for row in docker("top", container, "-eo", "pid,args").splitlines()[1:])
        return [int(pid) for pid, args in rows if name in args]

    def plan(self) -> tuple[str, list[int], str, str]:
        """The phase of the next kill, what is killed then, the service, and what that is called."""
        what, phase = next(self._turns)
        service = next(self._of)
        while not (found := self.pids(service, "ray::_Actor" if what == "gateway" else "")):
            time.sleep(0.5)  # the one before has only just been replaced
        return phase, found, service, what

    def note(self, what: str, phase: str) -> None:
        self.done[f"{what} {phase}"] += 1


def follow(under: Project) -> Iterator[dict[str, Any]]:
    """Events of the study, milliseconds after they were written."""
    [coordinator] = under.containers("coordinator")
    command = ["docker", "exec", "-i", coordinator, "python3", "-uc", _FOLLOW, f"{STUDY}/{under.study}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                yield json.loads(line)
        finally:
            process.kill()


def disturb(run: Run, rounds: int) -> None:
    """Kill in each round, at each phase in turn, and the head between rounds."""
    under, kills = run.project, Kills(run.project)
    sums, lost, missing = Counter[str](), 0, 0
    aborted: list[str] = []
    struck: tuple[str, str] | None = None
    phase, pids, service, what = kills.plan()
    ready = threading.Event()
    ready.set()

    def repair() -> None:
        nonlocal phase, pids, service, what
        if what == "node":
            docker("start", *under.containers(service, stopped=True))
        phase, pids, service, what = kills.plan()
        ready.set()

    repairs: list[threading.Thread] = []
    for event in follow(under):
        kind = event["kind"]
        if kind == "phase_started" and event["phase"] == phase and ready.is_set() and struck is None:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            struck = what, phase
            kills.note(what, phase)
        elif kind == "participant_lost" and struck is not None:
            lost += 1
        elif kind in ("round_completed", "attempt_aborted"):
            label = "none" if struck is None else " ".join(struck)
            if kind == "attempt_aborted":
                aborted.append(f"round {event['round']} ({label}): {event['reason']}")
            else:
                sums[label] += 1
                missing += CLIENTS - event["u3"]
                if event["u3"] < CLIENTS:
                    run.say(f"round {event['round']} ({label}): {event['u3']} of {CLIENTS} in the sum")
            if struck is not None:
                struck = None
                ready.clear()
                repairs.append(threading.Thread(target=repair))
                repairs[-1].start()
            if kind == "round_completed" and event["round"] >= rounds:
                break
            if kind == "round_completed" and event["round"] in (rounds // 3, 2 * rounds // 3):
                docker("restart", "--time", "0", *under.containers("head", stopped=True))
                kills.note("head", "between rounds")
        elif kind == "study_finished":
            raise ComposeError(f"the study ended: {event['reason']}, {event['rounds_completed']} of {rounds} rounds")
    for one in repairs:
        one.join()
    run.say("killed: " + ", ".join(f"{name} {count}" for name, count in sorted(kills.done.items())))
    run.say("sums by what was killed: " + ", ".join(f"{name} {count}" for name, count in sorted(sums.items())))
    run.say(f"{lost} participants lost a gateway; {missing} of them weren't in the sum")
    if missing > (1 - SHARE) * lost:
        run.missed.append(f"{missing} of {lost} participants whose gateway ended weren't in the sum")
    run.say(f"aborted: {len(aborted)}" + "".join(f"\n  {one}" for one in aborted))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--no-build", action="store_true", help="take the images that are there")
    asked = parser.parse_args()
    os.chdir(ROOT)

    def play(run: Run) -> None:
        if not asked.no_build:
            run.project.compose("build", quiet=True)
        run.project.up(CLIENTS)
        run.completed(180)
        disturb(run, asked.rounds)
        run.check_records()

    return tried("scale-test", "scaletest", settings(asked.rounds), play)


if __name__ == "__main__":
    sys.exit(main())
