"""Both sides joined, with hypothesis choosing what happens.

Two machines: honest_coordinator_machine.py (a bad network, two cheating participants) and lying_coordinator_machine.py
(two participants in its pay). Each states what it claims. Here they are run, first against the real code, then against
naive variants of it, in which they must find what the variant breaks.

Everything is derandomized, and failures aren't shrunk, so that a run takes the same time every day. To look harder:

    SORDINO_MACHINE_EXAMPLES=2000 pytest -s tests/secagg/test_state_machines.py -k real

draws that many examples at random and shrinks what it finds; no test depends on it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import ClassVar

import pytest
from honest_coordinator_machine import WATCHED, Broken, HonestCoordinator
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test
from naive_variants import client_changed, client_without, server_changed, server_without

from secagg import client_phases, server_phases
from secagg.messages import PHASES

ADVERTISE, SHARE, MASK, SIGN, UNMASK = PHASES

EXAMPLES = int(os.environ.get("SORDINO_MACHINE_EXAMPLES", "0"))
REAL = settings(
    max_examples=EXAMPLES or 120,
    stateful_step_count=15,
    derandomize=not EXAMPLES,
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.generate, Phase.shrink) if EXAMPLES else (Phase.generate,),
)
BITES = settings(REAL, max_examples=400, derandomize=True, print_blob=False, phases=(Phase.generate,))


def found(machine: type[RuleBasedStateMachine]) -> Broken:
    """What a machine finds wrong."""
    with pytest.raises(Broken) as caught:
        run_state_machine_as_test(machine, settings=BITES)
    return caught.value


# ---------------------------------------------------------------- an honest coordinator


def test_real_code_with_an_honest_coordinator() -> None:
    class Machine(HonestCoordinator):
        seen: ClassVar[Counter[str]] = Counter()

    run_state_machine_as_test(Machine, settings=REAL)
    ends = Counter(how.split()[0] for how in Machine.seen.elements())
    assert Machine.seen["completed"] >= 40
    assert ends["aborted"] >= 10
    assert Machine.seen["aborted by a bad dealer"] >= 2
    assert Machine.seen["late"] >= 20
    for name in PHASES:
        assert Machine.seen[f"InvalidMessage in {name}"] >= 2
        assert Machine.seen[f"UnexpectedMessage in {name}"] >= 2


Plans = tuple[tuple[str, str], ...]
# Participants, coordinator, which claim must be found broken (the machine watches no other), and what cheating helps.
Variant = tuple[Callable[[], ModuleType], Callable[[], ModuleType], str, Plans]


def client() -> ModuleType:
    return client_phases


def server() -> ModuleType:
    return server_phases


def naive_server(fragment: str, claim: str, *plans: tuple[str, str]) -> Variant:
    return client, lambda: server_without(fragment), claim, plans


NAIVE: dict[str, Variant] = {
    "no share is held against its commitment": naive_server("doesn't match the commitment", "blame", ("forge", UNMASK)),
    "messages are taken after the close": (
        client,
        lambda: server_changed("if self._closed or not expected:", "if not expected:"),
        "sum",
        (("late", MASK),),
    ),
    "an upload counts as often as it comes": (
        client,
        lambda: server_changed("sender in self.u2 and sender not in self._u3", "sender in self.u2"),
        "sum",
        (("twice", MASK),),
    ),
    "a phase ends with one too few": (
        client,
        lambda: server_changed("if received < needed:", "if received < needed - 1:"),
        "sets",
        (("never", SHARE),),
    ),
    "keys may be advertised twice": naive_server("a public key was advertised before", "blame", ("lie", ADVERTISE)),
    "keys may be of low order": naive_server("a public key is of low order", "blame", ("lie", ADVERTISE)),
    "keys need no signature": naive_server("the keys are not signed by", "blame", ("forge", ADVERTISE)),
    "dealings need no signature": naive_server("the commitments are not signed by", "blame", ("forge", SHARE)),
    "uploads need no signature": naive_server("the upload is not signed by", "forged", ("forge", MASK)),
    "an upload needn't have its digest": naive_server(
        "doesn't have the digest that was signed", "sum", ("forge", MASK)
    ),
    "signatures over the sets are not checked": naive_server(
        "the signature doesn't cover these sets", "blame", ("forge", SIGN)
    ),
    "symbols may lie outside the field": naive_server("has a symbol outside the field", "crash", ("lie", SHARE)),
    "lengths of a share are not checked": naive_server("has another length", "crash", ("forge", UNMASK)),
    "a rebuilt seed is not checked": naive_server("another self-mask seed than it committed to", "sum", ("lie", SHARE)),
    "a rebuilt mask key is not checked": naive_server(
        "another mask key than it advertised", "sum", ("lie", SHARE), ("never", MASK)
    ),
    "masks of dropouts are taken back the wrong way round": (
        client,
        lambda: server_changed("-1 if survivor < dealer else 1", "1 if survivor < dealer else -1"),
        "sum",
        (("never", MASK),),
    ),
    "participants keep shares that miss their commitment": (
        lambda: client_without("verify_path"),
        server,
        "blame",
        (("lie", SHARE),),
    ),
    "participants keep symbols outside the field": (
        lambda: client_without("shares >= shamir.PRIME"),
        server,
        "blame",
        (("lie", SHARE),),
    ),
    "participants give up over a share that can't be opened": (
        lambda: client_changed(
            "        if plaintext is None:\n            return None\n",
            '        if plaintext is None:\n            raise CoordinatorMisbehaved(MASKED_INPUT, "a bad share")\n',
        ),
        server,
        "blame",
        (("lie", SHARE),),
    ),
    "participants mask with all of u1": (
        lambda: client_changed(
            "for dealer in dealers\n            ]", "for dealer in cohort.graph.neighbours(cohort.me)\n            ]"
        ),
        server,
        "sum",
        (("never", SHARE),),
    ),
    "a phase of a participant can be asked twice": (
        lambda: client_without("this phase is over for this participant"),
        server,
        "one kind",
        (),
    ),
}


@pytest.mark.parametrize("name", NAIVE)
def test_the_machine_finds_what_a_naive_variant_breaks(name: str) -> None:
    participants, coordinator, claim, plan = NAIVE[name]

    class Machine(HonestCoordinator):
        client, server, watch, focus, seen = participants(), coordinator(), frozenset({claim}), plan, Counter()

    assert claim in WATCHED
    assert found(Machine).claim == claim
