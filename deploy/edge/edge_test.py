"""``make edge-test``: small devices and slow links, for real.

1. An arm64 client container with 256 MB, half a core and a read-only file system takes part in a study whose
   coordinator and other participants run on this machine, with the numpy task. Where this machine isn't arm64 it runs
   under QEMU, which costs ten to twenty times the processor time and some memory.
2. A participant behind a link of 2 Mbit/s, in a separate network namespace, takes part with a vector of 100,000; then
   one behind a link that is too slow for the deadline. Neither holds the others up for longer than a deadline.
3. That link is cut for a minute: the participant behind it comes back by itself, and what it missed costs it nothing.

Prints a table and ends with 1 if anything isn't as it must be, with 2 where something that it needs is missing. Needs
root for the namespaces. What it makes (containers, namespaces, processes, folders) is removed at the end, after Ctrl-C
as well; the image stays.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from runtime.processes import cpu_seconds, free_port, peak_resident_mb
from server.events import RoundCompleted
from server.journal import read_events

ROOT = Path(__file__).resolve().parents[2]
BASE, IMAGE = "arm64v8/python:3.11-slim-bookworm", "sordino-client:arm64-edge-test"
PARTICIPANTS, LINK_DIM = 6, 100_000
MEMORY_MB, CPUS = 256, 0.5
COMPILERS = ("gcc", "cc", "g++", "clang", "tcc", "make", "ld", "rustc", "cargo")
LINK_KBIT, HOPELESS_KBIT = 2_000, 48
DEADLINE_S = 10.0
PHASES = ("ADVERTISE_KEYS", "SHARE_KEYS", "MASKED_INPUT", "CONSISTENCY_CHECK", "UNMASKING")
CUT_S = 60.0
SLACK_S = 2.0  # beside a deadline: what this machine takes to notice it and to go on


class Missing(Exception):
    """Something that the test needs isn't here: one sentence."""


@dataclass
class Checks:
    """What was found, and what of it isn't as it must be."""

    wrong: int = 0

    def row(self, what: str, found: str, well: bool = True) -> None:
        print(f"  {'' if well else 'WRONG: '}{what:<46} {found}", flush=True)
        self.wrong += not well


# ---------------------------------------------------------------- processes


def run(*command: str, check: bool = True) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if check and done.returncode:
        raise Missing(f"{' '.join(command[:4])} ... fails: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


@contextmanager
def process(command: Sequence[str], log: Path, **overrides: str) -> Iterator[subprocess.Popen[bytes]]:
    """Started now, ended with the block."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"} | overrides
    with log.open("wb") as out:
        one = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=ROOT, env=environment)
    try:
        yield one
    finally:
        if one.poll() is None:
            one.terminate()
        try:
            one.wait(20)
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()


def sordino(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "sordino", *arguments]


class Study:
    """A study of six participants with one host each."""

    def __init__(self, folder: Path, address: str, listen: str, *options: str) -> None:
        self.folder = folder
        self.port = free_port()
        command = sordino(
            *("init", str(folder), "--participants", str(PARTICIPANTS), "--hosts", str(PARTICIPANTS)),
            *("--max-dropout", "0.26", "--min-survivors", "5", "--quorum", "5", "--one-machine", "--host", address),
            *("--listen", f"{listen}:{self.port}", *options),
        )
        run(*command)
        self.hosts = sorted((folder / "hosts").iterdir())

    @contextmanager
    def served(self, **deadlines_s: float) -> Iterator[subprocess.Popen[bytes]]:
        overrides = {f"SORDINO_DEADLINES__{name}_S": str(seconds) for name, seconds in deadlines_s.items()}
        command = sordino("serve", str(self.folder), "--quiet")
        with process(command, self.folder / "serve.log", **overrides) as one:
            yield one

    @contextmanager
    def joined(self, host: int, *before: str) -> Iterator[subprocess.Popen[bytes]]:
        home = self.hosts[host]
        command = [*before, *sordino("join", "--service", "--home", str(home))]
        with process(command, self.folder / f"{home.name}.log") as one:
            yield one

    @contextmanager
    def attended(self, *before: str) -> Iterator[subprocess.Popen[bytes]]:
        """Served, with all participants; ``before`` is put before the first one's command."""
        with ExitStack() as running:
            coordinator = running.enter_context(self.served(CONNECT=60, **dict.fromkeys(PHASES, DEADLINE_S)))
            running.enter_context(self.joined(0, *before))
            for host in range(1, PARTICIPANTS):
                running.enter_context(self.joined(host))
            yield coordinator

    def rounds(self) -> list[RoundCompleted]:
        events = read_events(self.folder / "coordinator" / "state.sqlite")
        return [one for one in events if isinstance(one, RoundCompleted)]

    def seconds(self) -> list[float]:
        """Of each completed round."""
        return [sum(one.phase_seconds.values()) for one in self.rounds()]

    def missing(self, why: str) -> Missing:
        """With the end of the coordinator's log."""
        return Missing(f"{why}: {(self.folder / 'serve.log').read_text(errors='replace').strip()[-600:]}")

    def wait_for(self, coordinator: subprocess.Popen[bytes], reached: Callable[[list[RoundCompleted]], bool]) -> None:
        """Until the completed rounds are so. Raises Missing: the study has ended, or takes too long."""
        ends = time.monotonic() + 180
        while not reached(self.rounds()):
            if coordinator.poll() is not None or time.monotonic() > ends:
                raise self.missing("the rounds that were waited for don't come")
            time.sleep(0.2)

    def wait(self, coordinator: subprocess.Popen[bytes], longest_s: float) -> None:
        """Until the coordinator has ended. Raises Missing: it failed, or takes too long."""
        try:
            code = coordinator.wait(longest_s)
        except subprocess.TimeoutExpired:
            raise self.missing(f"the study isn't over after {longest_s:g} s") from None
        if code:
            raise self.missing(f"the coordinator ended with {code}")


# ---------------------------------------------------------------- 1. the container


@contextmanager
def container(image: str, home: Path) -> Iterator[str]:
    """A client's container with the limits of a small device."""
    name = f"sordino-edge-test-{os.getpid()}"
    user = f"{os.getuid()}:{os.getgid()}"  # whose the host's folder is; the image's own folders are another's
    run(
        *("docker", "run", "--detach", "--name", name, "--network", "host", "--user", user, "--read-only"),
        *("--tmpfs", "/tmp", "--memory", f"{MEMORY_MB}m", "--memory-swap", f"{MEMORY_MB}m", "--cpus", str(CPUS)),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--volume", f"{home}:/participant"),
        *(image, "join", "--service", "--home", "/participant"),
    )
    try:
        yield name
    finally:
        subprocess.run(["docker", "rm", "--force", "--volumes", name], capture_output=True)


def group_peak_mb(pid: int) -> float | None:
    """The most memory that the container's control group ever held, its page cache included."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "memory":
            file = Path("/sys/fs/cgroup/memory") / group.lstrip("/") / "memory.max_usage_in_bytes"
        elif controllers == "":
            file = Path("/sys/fs/cgroup") / group.lstrip("/") / "memory.peak"
        else:
            continue
        if file.exists():
            return int(file.read_text()) / 1e6
    return None


def logs_of(name: str) -> str:
    return subprocess.run(["docker", "logs", name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


def running_now(name: str) -> bool:
    return run("docker", "inspect", "--format", "{{.State.Running}}", name).strip() == "true"


def build(image: str) -> None:
    print(f"building {image} (minutes under emulation, the first time)", flush=True)
    done = subprocess.run(
        [
            *("docker", "build", "--quiet", "--file", "deploy/Dockerfile", "--target", "client"),
            *("--build-arg", f"BASE={BASE}", "--tag", image, "."),
        ],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    if done.returncode:
        raise Missing(f"the image can't be built; {BASE} must be there or to be had")


def size_mb(image: str) -> float:
    return int(run("docker", "image", "inspect", "--format", "{{.Size}}", image)) / 1e6


def check_container(checks: Checks, image: str | None, work: Path) -> None:
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode:
        raise Missing("no container engine answers: install Docker and start it")
    if image is None:
        image = IMAGE
        build(image)
    shell = ("docker", "run", "--rm", "--entrypoint", "sh", image, "-c")
    print(f"an arm64 client, {MEMORY_MB} MB, {CPUS} of a core, beside {PARTICIPANTS - 1} native ones")
    machine = run(*shell, "uname -m").strip()
    checks.row("machine", machine, machine == "aarch64")
    tools = run(*shell, f"for one in {' '.join(COMPILERS)}; do command -v $one; done; true").split()
    checks.row("compilers in the image", ", ".join(tools) or "none", not tools)
    checks.row("image on top of its base", f"{size_mb(image) - size_mb(BASE):.0f} MB")
    study = Study(work / "container", "localhost", "localhost", "--rounds", "3", "--training-s", "120")
    slow = {"CONNECT": 300, "ADVERTISE_KEYS": 90, "SHARE_KEYS": 90, "CONSISTENCY_CHECK": 90, "UNMASKING": 90}
    peak = resident = cpu = 0.0
    with ExitStack() as running:
        coordinator = running.enter_context(study.served(**slow))
        name = running.enter_context(container(image, study.hosts[0]))
        begun = time.monotonic()
        while "study accepted" not in logs_of(name):  # the coordinator would begin with the quorum otherwise
            if time.monotonic() - begun > 300 or not running_now(name):
                raise Missing(f"the container doesn't get to the study: {logs_of(name)[-600:]}")
            time.sleep(1)
        checks.row("from its start to the study accepted", f"{time.monotonic() - begun:.0f} s")
        for host in range(1, PARTICIPANTS):
            running.enter_context(study.joined(host))
        ends = time.monotonic() + 600
        while coordinator.poll() is None and time.monotonic() < ends:
            pid = int(run("docker", "inspect", "--format", "{{.State.Pid}}", name))
            if pid:
                peak = max(peak, group_peak_mb(pid) or 0.0)
                resident = max(resident, peak_resident_mb(pid) or 0.0)
                cpu = max(cpu, cpu_seconds(pid) or 0.0)
            time.sleep(0.3)
        ends = time.monotonic() + 30
        while running_now(name) and time.monotonic() < ends:  # it ends by itself, after the coordinator
            time.sleep(0.5)
        state = json.loads(run("docker", "inspect", "--format", "{{json .State}}", name))
        said = logs_of(name)
        ended = coordinator.poll()
        study.wait(coordinator, 1)
    seconds = study.seconds()
    checks.row("rounds completed", f"{len(seconds)} of 3, {listed(seconds)} s", len(seconds) >= 2 and ended == 0)
    sums = [one.u3 for one in study.rounds()]  # by its own log a slow one may be late for the end of a round
    checks.row("sums, of six with it", f"{sums}", sums.count(PARTICIPANTS) >= 2)
    checks.row("most memory of its control group", f"{peak:.0f} MB", 0 < peak <= MEMORY_MB * 1.048576)
    checks.row("most resident memory, the emulator included", f"{resident:.0f} MB")
    checks.row("processor time in all, as run here", f"{cpu:.1f} s")
    code, short = state["ExitCode"], state["OOMKilled"]
    how = "it still runs" if state["Running"] else f"exit code {code}{', out of memory' if short else ''}"
    checks.row("how it ended", how, how == "exit code 0")
    if checks.wrong:
        print(said.strip()[-1500:])


def listed(seconds: Sequence[float]) -> str:
    return " ".join(f"{one:.2f}" for one in seconds)


# ---------------------------------------------------------------- 2. the slow link


@dataclass
class Link:
    """A network namespace behind one shaped link."""

    namespace: str
    here: str  # addresses of both ends
    there: str
    end: str  # the interface here

    def shape(self, kbit: int) -> None:
        """Both directions, with a buffer of 400 ms as a modem has."""
        bucket = ("tbf", "rate", f"{kbit}kbit", "burst", "16kb", "latency", "400ms")
        run("tc", "qdisc", "replace", "dev", self.end, "root", *bucket)
        run(*self.inside(), "tc", "qdisc", "replace", "dev", "eth0", "root", *bucket)

    def inside(self) -> tuple[str, ...]:
        return "ip", "netns", "exec", self.namespace


@contextmanager
def link() -> Iterator[Link]:
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            raise Missing(f"no {tool} here: install iproute2")
    if os.geteuid():
        raise Missing("network namespaces need root: sudo make edge-test")
    number = os.getpid() % 250
    made = Link(f"sordino-edge-{os.getpid()}", f"10.213.{number}.1", f"10.213.{number}.2", f"sedge{number}")
    run("ip", "netns", "add", made.namespace)
    inside = ("ip", "-n", made.namespace)
    try:
        run("ip", "link", "add", made.end, "type", "veth", "peer", "name", "eth0", "netns", made.namespace)
        run("ip", "address", "add", f"{made.here}/30", "dev", made.end)
        run("ip", "link", "set", made.end, "up")
        run(*inside, "address", "add", f"{made.there}/30", "dev", "eth0")
        run(*inside, "link", "set", "eth0", "up")
        run(*inside, "link", "set", "lo", "up")
        yield made
    finally:
        # The pair goes with either end.
        subprocess.run(["ip", "link", "delete", made.end], capture_output=True)
        subprocess.run(["ip", "netns", "delete", made.namespace], capture_output=True)


def rounds_behind(made: Link, work: Path, name: str, kbit: int | None) -> Study:
    """Three rounds with d = 100,000 in which one of six is behind the link; None: all are here."""
    options = ("--rounds", "3", "--task", "synthetic", "--task-option", f"dim={LINK_DIM}")
    study = Study(work / name, made.here, made.here, *options)
    if kbit is not None:
        made.shape(kbit)
    with study.attended(*(() if kbit is None else made.inside())) as coordinator:
        study.wait(coordinator, 300)
    return study


def check_link(checks: Checks, work: Path) -> None:
    with link() as made:
        print(f"\none of {PARTICIPANTS} behind a slow link, d = {LINK_DIM:,}, each deadline {DEADLINE_S:g} s")
        plain = rounds_behind(made, work, "plain", None)
        usual = plain.seconds()
        checks.row("all without one", f"{len(usual)} of 3 rounds, {listed(usual)} s", len(usual) == 3)
        slow = rounds_behind(made, work, "slow", LINK_KBIT)
        tell(checks, "2 Mbit/s", slow, usual, everybody=True)
        hopeless = rounds_behind(made, work, "hopeless", HOPELESS_KBIT)
        tell(checks, f"{HOPELESS_KBIT} kbit/s", hopeless, usual, everybody=False)
        made.shape(LINK_KBIT)
        cut_off(checks, made, work)


def cut_off(checks: Checks, made: Link, work: Path) -> None:
    """The link is dead for a minute in the middle of a study: rounds go on, and it comes back by itself."""
    study = Study(work / "cut", made.here, made.here, "--rounds", "20", "--pause", "6")
    with study.attended(*made.inside()) as coordinator:
        study.wait_for(coordinator, lambda rounds: len(rounds) >= 2)
        run("ip", "link", "set", made.end, "down")
        down = time.time()
        time.sleep(CUT_S)
        run("ip", "link", "set", made.end, "up")
        up = time.time()
        study.wait_for(coordinator, lambda rounds: any(one.at > up and one.u3 == PARTICIPANTS for one in rounds))
        back_s = time.time() - up
    rounds = study.rounds()
    without = [one for one in rounds if down < one.at < up]
    seconds = [sum(one.phase_seconds.values()) for one in without]
    print(f"\nthe link is cut for {CUT_S:g} s, rounds 6 s apart")
    checks.row("rounds without it meanwhile", f"{len(without)}, {listed(seconds)} s", len(without) >= 2)
    checks.row("  in a sum again after the link was back", f"{back_s:.0f} s")
    charged = json.loads(run(*sordino("budget", "show", str(study.hosts[0] / "ledger.sqlite"), "--json")))
    sums = sum(one.u3 == PARTICIPANTS for one in rounds)
    charges = charged["studies"][0]["participants"][0]["charges"]
    # One more at most: that in which the link died, if its vector may have left.
    checks.row("  charges in its own ledger", f"{charges}, and {sums} sums with it", sums <= charges <= sums + 1)


def tell(checks: Checks, what: str, study: Study, usual: Sequence[float], *, everybody: bool) -> None:
    """Hold a study's rounds against the deadlines."""
    rounds = study.rounds()
    seconds = [sum(one.phase_seconds.values()) for one in rounds]
    sums = [one.u3 for one in rounds]
    well = len(rounds) == 3 and (sums == [PARTICIPANTS] * 3 if everybody else min(sums) == PARTICIPANTS - 1)
    checks.row(f"one behind {what}", f"{len(seconds)} of 3 rounds, {listed(seconds)} s, sums of {sums}", well)
    phases = [(name, value) for one in rounds for name, value in one.phase_seconds.items()]
    name, longest = max(phases, key=lambda one: one[1], default=("none", 0.0))
    allowed = DEADLINE_S + SLACK_S
    checks.row("  longest wait for it", f"{longest:.2f} s ({name}), at most {allowed:g} s", longest <= allowed)
    added = statistics.median(seconds or [0.0]) - statistics.median(usual or [0.0])
    checks.row("  added to a round", f"{added:.2f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("container", "link"), help="one of the two")
    parser.add_argument("--image", help="an arm64 client image that is there, instead of building one")
    options = parser.parse_args()
    # An end by the system cleans up as Ctrl-C does; a background shell's children begin with Ctrl-C ignored.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    checks = Checks()
    try:
        with tempfile.TemporaryDirectory(prefix="sordino-edge-") as work:
            if options.only != "link":
                check_container(checks, options.image, Path(work))
            if options.only != "container":
                check_link(checks, Path(work))
    except Missing as error:
        print(f"edge-test: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("edge-test: interrupted; what it made is removed", file=sys.stderr)
        return 130
    print(f"\n{'all as it must be' if not checks.wrong else f'{checks.wrong} wrong'}")
    return min(checks.wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
