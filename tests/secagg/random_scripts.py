"""Random scripts for both sides of the protocol, in any number, on all cores.

    python -m tests.secagg.random_scripts --scripts 10000 --seed 7
    python -m tests.secagg.random_scripts --naive --budget 1000

A script is one run of a machine of test_state_machines.py: hypothesis chooses what happens to real participants and a
real coordinator, and each step checks every claim of that machine. A broken claim is exit code 1, with its steps.

With ``--naive`` the checks of both sides are removed one at a time, and scripts are played until a claim is broken: the
check is missed. Exit code 1 if neither a script nor an attack that a test names for it misses a check; the last lines
list these. Checks of the caller's own arguments are listed and not removed.

The number of scripts is rounded up so that each kind gets equally many; hypothesis gives up to a quarter more up
half-way, which are counted as well. The same seed plays the same scripts on the same version of hypothesis, and a batch
that breaks a claim can be played alone.
"""

from __future__ import annotations

import argparse
import inspect
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import get_state_machine_test

from tests.adversary.script import COORDINATOR, PARTICIPANT, checks_of
from tests.secagg import honest_coordinator_machine, lying_coordinator_machine, lying_coordinator_view
from tests.secagg.claims import Broken, ClaimingMachine
from tests.secagg.honest_coordinator_machine import HonestCoordinator
from tests.secagg.lying_coordinator_machine import LyingCoordinator
from tests.secagg.test_client_phases import WRONG_SHARES
from tests.support.naive_variants import CLIENT, SERVER, Side

BATCH = 50  # scripts of one seed
# Tests that run without one check of the coordinator.
BY_A_TEST = {
    "reveal nothing without signatures": "test_signatures_are_not_left_out_where_the_plan_asks_for_them",
    "this phase was closed before": "test_without_its_check_a_phase_is_closed_twice",
    "fewest < graph.threshold": "test_on_a_ring_no_member_is_left_with_too_few_neighbours_in_u2",
    "if named:": "test_a_dealer_is_named_when_more_holders_lack_shares_than_can_lie",
}
KINDS: dict[str, tuple[type[ClaimingMachine], dict[str, Any]]] = {  # the machine, and what it doesn't draw
    "honest-complete": (HonestCoordinator, {"on_a_ring": False}),
    "honest-ring": (HonestCoordinator, {"on_a_ring": True}),
    "lying-complete": (LyingCoordinator, {"plans": lying_coordinator_machine.COMPLETE}),
    "lying-ring": (LyingCoordinator, {"plans": lying_coordinator_machine.RINGS}),
    "lying-cut-ring": (LyingCoordinator, {"plans": (lying_coordinator_machine.CUT,)}),
}
OF_THE_COORDINATOR = [kind for kind in KINDS if kind.startswith("honest")]
OF_PARTICIPANTS = [kind for kind in KINDS if kind.startswith("lying")][::-1] + OF_THE_COORDINATOR


@dataclass
class Played:
    """What came of some scripts."""

    kind: str
    scripts: int
    seen: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    broken: str = ""  # the claim
    text: str = ""
    asked: int = 0


def play(kind: str, number: int, scripts: int, client: Side = CLIENT, server: Side = SERVER) -> Played:
    base, chosen = KINDS[kind]
    sides = {"client": client, "server": server, "seen": Counter[str](), "checked": Counter[str]()}
    machine: Any = type("Script", (base,), {**sides, **chosen})
    test = get_state_machine_test(
        machine,
        settings=settings(
            max_examples=scripts,
            stateful_step_count=15,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,),
        ),
    )
    played = Played(kind, 0, machine.seen, machine.checked, asked=scripts)
    try:
        seed(number)(test)()
    except Exception as error:
        played.broken = error.claim if isinstance(error, Broken) else f"{type(error).__name__} in the machine"
        played.text = "\n".join((f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())))
        played.text += f"\n\nIts batch: --kind {kind} --seed {number} --scripts {scripts} --jobs 1"
    played.scripts = machine.seen.pop("scripts", 0) + bool(played.broken)
    lying_coordinator_view.answer.cache_clear()  # another batch hardly repeats a message
    return played


def play_batch(task: tuple[str, int, int]) -> Played:
    return play(*task)


def batches(kinds: list[str], scripts: int, first: int) -> Iterator[tuple[str, int, int]]:
    """In turn of all kinds, each of which gets as many scripts."""
    number, left = first, -(-scripts // len(kinds))  # rounded up
    while left > 0:
        for kind in kinds:
            yield kind, number, min(BATCH, left)
            number += 1
        left -= BATCH


def play_all(kinds: list[str], scripts: int, first: int, jobs: int) -> int:
    started, shown = time.monotonic(), 0.0
    asked, done = -(-scripts // len(kinds)) * len(kinds), 0
    total = {kind: Played(kind, 0) for kind in kinds}
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for played in pool.imap_unordered(play_batch, batches(kinds, scripts, first)):
            one = total[played.kind]
            one.scripts += played.scripts
            done += played.asked
            one.seen += played.seen
            one.checked += played.checked
            if played.broken:
                print(f"{played.kind}: the claim '{played.broken}' is broken\n{played.text}", flush=True)
                pool.terminate()
                return 1
            elapsed = time.monotonic() - started
            if elapsed - shown > 15:
                shown = elapsed
                print(f"{done} of {asked} scripts in {elapsed:.0f} s", file=sys.stderr, flush=True)
    report(list(total.values()), asked, time.monotonic() - started, first)
    return 0


def report(total: list[Played], asked: int, seconds: float, first: int) -> None:
    for one in total:
        print(f"\n{one.kind}: {one.scripts} scripts")
        for name, count in sorted(one.seen.items(), key=lambda item: (-item[1], item[0])):
            print(f"  {count:9,}  {name}")
    checked = sum((one.checked for one in total), Counter[str]())
    print(f"\nclaims held: {checked.total():,}")
    for name, count in checked.most_common():
        print(f"  {count:9,}  {name}")
    print("--help says what each of them is.")
    given_up = sum(one.scripts for one in total) - asked
    print(f"\n{asked} scripts and {given_up} given up half-way in {seconds:.0f} s, seed {first}; no claim is broken")


@dataclass
class Found:
    """What happens without one check."""

    side: str
    check: str
    scripts: int
    broken: str


def checks() -> list[tuple[str, str]]:
    return [(side, one) for side, code in (("participant", CLIENT), ("coordinator", SERVER)) for one in code.checks()]


def play_without(task: tuple[str, str, int, int]) -> Found:
    side, check, budget, first = task
    client = CLIENT.without(check) if side == "participant" else CLIENT
    server = SERVER.without(check) if side == "coordinator" else SERVER
    kinds = OF_PARTICIPANTS if side == "participant" else OF_THE_COORDINATOR
    scripts = 0
    for kind, number, count in batches(kinds, budget, first):
        played = play(kind, number, count, client, server)
        scripts += played.scripts
        if played.broken:
            return Found(side, check, scripts, played.broken)
    return Found(side, check, scripts, "")


def attacks_on(side: str, check: str) -> list[str]:
    """Those that a test runs with and without this check."""
    text = check.replace("\\", "")
    scripted = checks_of(PARTICIPANT if side == "coordinator" else COORDINATOR)
    by_test = BY_A_TEST if side == "coordinator" else {part: f"WRONG_SHARES[{part!r}]" for part in WRONG_SHARES}
    return [
        *(name for part, name in by_test.items() if part in check),
        *(name for name, parts in scripted.items() if any(part in text for part in parts)),
    ]


def play_without_each(budget: int, first: int, jobs: int, only: str) -> int:
    started = time.monotonic()
    not_missed: list[Found] = []
    tasks = [(side, check, budget, first) for side, check in checks() if only in check]
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for found in pool.imap(play_without, tasks):
            attacks = attacks_on(found.side, found.check)
            named = f"attacks: {', '.join(attacks)}" if attacks else "no attack is named for it"
            by = f"after {found.scripts} scripts '{found.broken}' is broken"
            by = by if found.broken else f"nothing is broken by {found.scripts} scripts"
            print(f"{found.side}: {_in_short(found.check)}")
            print(f"    {by}; {named}", flush=True)
            if not found.broken and not attacks:
                not_missed.append(found)
    print("\nNot removed, since they refuse the caller's own arguments, and no message of a peer reaches them:")
    for check in (*CLIENT.refusals("ValueError"), *SERVER.refusals("ValueError")):
        print(f"  {check}")
    print(f"\n{len(tasks)} checks in {time.monotonic() - started:.0f} s. The claims in quotes: --help.")
    if not not_missed:
        print("Each is missed by a script, or by an attack that a test names for it.")
        return 0
    print(f"Missed by nothing here: {len(not_missed)}")
    for found in not_missed:
        print(f"  {found.side}: {_in_short(found.check)}")
    return 1


def _in_short(check: str) -> str:
    condition, _, consequence = check.partition(":\n")
    return f"{consequence.strip()}  ({condition})"[:200]


def claims() -> str:
    parts = []
    for title, module in (("lying", lying_coordinator_machine), ("honest", honest_coordinator_machine)):
        lines = (inspect.getdoc(module) or "").splitlines()
        parts += [f"what is claimed with {'a' if title == 'lying' else 'an'} {title} coordinator:"]
        parts += [*(line for line in lines if line.startswith("    ")), ""]
    return "\n".join((*parts, "'... in the machine': an error of Python that no claim is about"))


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: every claim held, or every check is needed by something."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.secagg.random_scripts",
        description=__doc__,
        epilog=claims(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scripts", type=int, default=10_000, help="how many in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first batch (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count(), help="processes (default: one a core)")
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="only this; again for more")
    parser.add_argument("--naive", action="store_true", help="take out one check at a time")
    parser.add_argument("--budget", type=int, default=1000, help="scripts for each check (default: %(default)s)")
    parser.add_argument("--only", default="", help="with --naive: checks whose source holds this text")
    chosen = parser.parse_args(arguments)
    os.environ["PYTHONHASHSEED"] = "0"  # for the processes that are started: hypothesis draws in the order of sets
    if chosen.naive:
        return play_without_each(chosen.budget, chosen.seed, chosen.jobs, chosen.only)
    return play_all(chosen.kind or list(KINDS), chosen.scripts, chosen.seed, chosen.jobs)


if __name__ == "__main__":
    sys.exit(main())
