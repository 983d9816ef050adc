"""The compose project from nothing to nothing, with what goes wrong in between: `make compose-test`.

Needs a container engine, compose, and base images; builds the project's images. Prints a line for each thing that was
tried and ends with 1 at the first that isn't as it must be.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.deploy.compose_project import ROOT, STUDY, ComposeError, Project, docker, project

CLIENTS, LATER, QUORUM = 10, 15, 7
UP_S, IMAGE_MB = 30.0, 150.0
BASE: Final = "python:3.11-slim-bookworm"
SETTINGS: Final = {
    "SORDINO_ROUNDS": "40",
    "SORDINO_HTTP": "127.0.0.1:0",
    # Without momentum a round's step is its noisy mean, which is held against the plan below.
    "SORDINO_STUDY_OPTIONS": "--adversarial 0.1 --pause 2 --server-momentum 0",
}
# In the coordinator's container: each finished round's step between two checkpoints, against what the plan says.
_SUMS: Final = """
import json, sys
from pathlib import Path
import numpy as np
from learning.checkpoints import load_checkpoint
from learning.make_task import make_task
from learning.parameters import flatten
from mechanisms.plan import Plan
import tomllib

home = Path(sys.argv[1])
study = tomllib.loads((home / "study.toml").read_text())
before = flatten(make_task(study["study"]["task"], study["task"]).initial_parameters())
plan = Plan.from_json(sys.stdin.readline())
for line in sys.stdin:
    row = json.loads(line)
    name = home / "coordinator" / "checkpoints" / f"round-{row['round']:06d}.safetensors"
    if not name.exists():
        print(json.dumps({"round": row["round"], "ratio": None}))
        before = None
        continue
    after = flatten(load_checkpoint(name).parameters)
    if before is None:
        before = after
        continue
    step, before = (after - before).astype(np.float64) * row["u3"], after
    # Those that answered took back what this many survivors make surplus.
    stays, whole = plan.share_variance(plan.local_variance, row["u3"]), plan.local_variance
    noise = float(stays * row["u5"] + whole * (row["u3"] - row["u5"])) ** 0.5 * plan.granularity
    print(json.dumps({"round": row["round"], "ratio": float(step.std() / noise)}))
"""


class Run:
    """One run; each step raises `ComposeError` where something isn't as it must be."""

    def __init__(self, under: Project) -> None:
        self.project = under
        self.began = time.monotonic()
        self.missed: list[str] = []  # figures: they break nothing off

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)

    def completed(self, longest_s: float = 60.0, **wanted: Any) -> dict[str, Any]:
        """The next finished round for which these figures hold."""

        def found(event: dict[str, Any]) -> bool:
            return event["kind"] == "round_completed" and all(event[key] == value for key, value in wanted.items())

        told = f"a finished round{' with ' + str(wanted) if wanted else ''}"
        event = self.project.wait_for(told, found, longest_s)
        self.say(f"round {event['round']} finished: {event['u3']} in the sum, {event['seconds']:.1f} s")
        return event

    # ---------------------------------------------------------------- steps

    def build(self) -> None:
        self.project.compose("build", quiet=True)
        base, client = (_size_mb(image) for image in (BASE, "sordino-client"))
        self.say(f"built; the client's image is {client - base:.0f} MB on top of its base")
        if client - base > IMAGE_MB:
            self.missed.append(f"the client's image takes {client - base:.0f} MB on top of its base, not {IMAGE_MB:g}")

    def come_up(self) -> None:
        began = time.monotonic()
        self.project.up(CLIENTS)
        self.completed(120)
        took = time.monotonic() - began
        self.say(f"from `up` to the first finished round: {took:.1f} s")
        if took > UP_S:
            self.missed.append(f"the first round was finished {took:.1f} s after `up`, not within {UP_S:g} s")
        for service in ("authority", "coordinator", "client"):
            [first, *_] = self.project.containers(service)
            self.check_confined(service, first)

    def check_confined(self, service: str, container: str) -> None:
        """Not root, nothing to write to, and the coordinator without a way to the authority's keys or codes."""
        [about] = json.loads(docker("inspect", container))
        places = {mount["Destination"] for mount in about["Mounts"]}
        uid = docker("exec", container, "id", "-u").strip()
        if uid == "0" or not about["HostConfig"]["ReadonlyRootfs"]:
            raise ComposeError(f"{service} runs as user {uid}, root file system read-only: no")
        if service == "coordinator" and {p for p in places if "authority" in p or "desk" in p or "clients" in p}:
            raise ComposeError(f"the coordinator's container mounts {sorted(places)}")
        for program in ("gcc", "cc", "/opt/sordino/bin/pip"):
            asked = ["docker", "exec", container, "sh", "-c", f"command -v {program}"]
            if subprocess.run(asked, capture_output=True, check=False).returncode == 0:
                raise ComposeError(f"{service}: the image holds {program}")

    def lose_two_in_a_round(self) -> None:
        """One is paused, so that the next round waits for it; two are killed meanwhile."""
        paused, first, second = self.project.containers("client")[:3]
        docker("pause", paused)
        self.project.read_events()
        self.project.wait_for("a round that waits", lambda event: event["kind"] == "phase_progress", 60)
        docker("kill", first, second)
        self.say("paused one client, killed two within a round")
        ended = self.project.wait_for(
            "the end of that round", lambda event: event["kind"] in ("round_completed", "attempt_aborted"), 90
        )
        if ended["kind"] != "round_completed" or ended["u3"] != QUORUM:
            how = ended.get("reason", ended.get("u3"))
            raise ComposeError(f"the round with seven left ended as {ended['kind']}: {how}")
        dropped = [event for event in self.project.events if event["kind"] == "participant_dropped"]
        lost = [event for event in dropped if event["round"] == ended["round"]]
        if len(lost) != 3:
            raise ComposeError(f"{len(lost)} dropouts were noted in round {ended['round']}, not 3")
        reasons = "; ".join(sorted({event["reason"] for event in lost}))
        self.say(f"round {ended['round']} finished with {ended['u3']}; the others: {reasons}")
        docker("unpause", paused)
        self.completed(90, u3=CLIENTS - 2)

    def cut_the_network(self, seconds: float = 10.0) -> None:
        [coordinator] = self.project.containers("coordinator")
        network = f"{self.project.name}_sessions"
        docker("network", "disconnect", network, coordinator)
        self.say("cut the coordinator's network")
        time.sleep(seconds)
        docker("network", "connect", "--alias", "coordinator", network, coordinator)
        self.say(f"connected it again after {seconds:g} s")
        self.completed(180, u3=CLIENTS - 2)

    def grow(self) -> None:
        self.project.up(LATER)
        self.say(f"scaled to {LATER}")
        self.project.wait_for(
            f"a roster of {LATER}",
            lambda event: event["kind"] == "roster_adopted" and event["participants"] == LATER,
            90,
        )
        running = len(self.project.containers("client"))
        if running != LATER:
            raise ComposeError(f"{running} clients run, not {LATER}")
        self.completed(60)
        self.completed(60, u3=CLIENTS)

    def restart_the_coordinator(self) -> None:
        self.project.wait_for("a pause", lambda event: event["kind"] == "round_completed", 60)
        self.project.compose("restart", "--timeout", "15", "coordinator")
        self.say("restarted the coordinator between two rounds")
        self.completed(120, u3=CLIENTS)
        [coordinator] = self.project.containers("coordinator")
        self.project.wait_for("a pause", lambda event: event["kind"] == "round_completed", 60)
        docker("kill", coordinator)
        docker("start", coordinator)
        self.say("killed the coordinator between two rounds and started it again")
        self.completed(120, u3=CLIENTS)
        restarts = docker("inspect", "--format", "{{.RestartCount}}", *self.project.containers("client")).split()
        if any(count != "0" for count in restarts):
            raise ComposeError(f"clients were started again by the engine: {restarts}")

    def check_records(self) -> None:
        """Ledger, transcripts and sums, by the commands that anybody would use."""
        self.project.read_events()
        [coordinator] = self.project.containers("coordinator")
        home = f"{STUDY}/{self.project.study}"
        rounds = [event for event in self.project.events if event["kind"] == "round_completed"]
        plan = next(e["plan"] for e in self.project.events if e["kind"] == "study_started")
        docker("exec", coordinator, "sordino", "budget", "verify", home)
        transcripts = docker("exec", coordinator, "sh", "-c", f"ls {home}/coordinator/transcripts/*.transcript").split()
        authority = f"{home}/coordinator/authority.pub"
        docker("exec", coordinator, "sordino", "transcript", "verify", *transcripts, "--authority", authority)
        rows = [json.dumps(plan), *(json.dumps({key: one[key] for key in ("round", "u3", "u5")}) for one in rounds)]
        said = docker("exec", "-i", coordinator, "python3", "-c", _SUMS, home, stdin="\n".join(rows) + "\n")
        ratios = [row for row in map(json.loads, said.splitlines()) if row["ratio"] is not None]
        wrong = [row for row in ratios if not 0.75 < row["ratio"] < 1.35]
        if wrong or len(ratios) < len(rounds) - 1:
            raise ComposeError(f"sums aren't what the plan says: {wrong or said}")
        self.say(
            f"ledger and {len(transcripts)} transcripts verify; the steps of {len(ratios)} rounds have "
            f"{min(r['ratio'] for r in ratios):.2f} to {max(r['ratio'] for r in ratios):.2f} times the planned noise "
            "(a sum whose masks don't cancel: 2.3 times)"
        )

    def all(self, *, build: bool) -> None:
        if build:
            self.build()
        self.come_up()
        self.lose_two_in_a_round()
        self.cut_the_network()
        self.grow()
        self.restart_the_coordinator()
        self.check_records()


def _size_mb(image: str) -> float:
    return int(docker("image", "inspect", "--format", "{{.Size}}", image)) / 1e6


def tried(name: str, study: str, settings: Mapping[str, str], play: Callable[[Run], None], logs_to: str = "") -> int:
    """Play a run in a project of its own, which is taken away; returns the exit code.

    ``logs_to``: a file for the containers' logs if it fails; empty: standard error.
    """
    try:
        with project(study, settings) as under:
            run = Run(under)
            try:
                play(run)
            except BaseException:
                logs = under.compose("logs", "--no-color", "--tail", "60")  # to say why
                if logs_to:
                    Path(logs_to).write_text(logs)
                else:
                    print(logs[-8000:], file=sys.stderr)
                raise
        if left := under.left_behind():
            raise ComposeError(f"`down` left {', '.join(left)}")
        run.say("`down` left nothing")
        if run.missed:
            raise ComposeError("; ".join(run.missed))
    except ComposeError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    print(f"{name}: all as it must be")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-build", action="store_true", help="take the images that are there")
    parser.add_argument("--keep-logs", metavar="FILE", default="", help="write the containers' logs there if it fails")
    asked = parser.parse_args()
    os.chdir(ROOT)
    return tried(
        "compose-test", "composetest", SETTINGS, lambda run: run.all(build=not asked.no_build), asked.keep_logs
    )


if __name__ == "__main__":
    sys.exit(main())
