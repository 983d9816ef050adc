"""Both sides joined, with hypothesis choosing what happens.

Two machines: honest_coordinator_machine.py (a bad network, two cheating participants) and lying_coordinator_machine.py
(some participants in its pay). Each states what it claims. Here they are run, first against the real code, then against
naive variants of it, in which they must find what the variant breaks.

Everything is derandomized, and failures aren't shrunk, so that a run takes the same time every day. To look harder:

    SORDINO_MACHINE_EXAMPLES=2000 pytest -s tests/secagg/test_state_machines.py -k real

draws that many examples at random and shrinks what it finds; no test depends on it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from secagg.messages import PHASES
from tests.secagg import honest_coordinator_machine, lying_coordinator_machine
from tests.secagg.cheating_participants import Broken
from tests.secagg.honest_coordinator_machine import HonestCoordinator
from tests.secagg.lying_coordinator_machine import CUT_WITH_TOO_MANY_DROPS, LyingCoordinator
from tests.support.naive_variants import CLIENT, SAID, SERVER, SIGNED, Side

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
LYING = settings(REAL, max_examples=EXAMPLES or 280, stateful_step_count=10)
BITES = settings(
    REAL,
    max_examples=400,
    stateful_step_count=10,
    derandomize=True,
    print_blob=False,
    phases=(Phase.generate,),
)


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
    assert Machine.seen["late"] >= 20
    assert Machine.seen["let in late"] >= 5
    assert sum(Machine.seen[f"InvalidMessage in {name}"] for name in PHASES) >= 30
    assert all(Machine.seen[f"UnexpectedMessage in {name}"] >= 5 for name in PHASES)


Plans = tuple[tuple[str, str], ...]
# Participants, coordinator, which claim must be found broken (the machine watches no other), and what cheating helps.
Variant = tuple[Callable[[], Side], Callable[[], Side], str, Plans]


def client() -> Side:
    return CLIENT


def server() -> Side:
    return SERVER


def naive_server(fragment: str, claim: str, *plans: tuple[str, str]) -> Variant:
    return client, lambda: SERVER.without(fragment), claim, plans


NAIVE: dict[str, Variant] = {
    "no share is held against its commitment": naive_server("doesn't match the commitment", "blame", ("forge", UNMASK)),
    "messages are taken after the close": (
        client,
        lambda: SERVER.changed("if self._closed or not expected:", "if not expected:"),
        "sum",
        (("late", MASK),),
    ),
    "an upload counts as often as it comes": (
        client,
        lambda: SERVER.changed("sender in self.u2 and sender not in self._u3", "sender in self.u2"),
        "sum",
        (("twice", MASK),),
    ),
    "a phase ends with one too few": (
        client,
        lambda: SERVER.changed("if received < needed:", "if received < needed - 1:"),
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
        lambda: SERVER.changed("-1 if survivor < dealer else 1", "1 if survivor < dealer else -1"),
        "sum",
        (("never", MASK),),
    ),
    "participants keep shares that miss their commitment": (
        lambda: CLIENT.without("verify_path"),
        server,
        "blame",
        (("lie", SHARE),),
    ),
    "participants keep symbols outside the field": (
        lambda: CLIENT.without(">= shamir.PRIME"),
        server,
        "blame",
        (("lie", SHARE),),
    ),
    "participants give up over a share that can't be opened": (
        lambda: CLIENT.changed(
            "        if plaintext is None:\n            return None\n",
            '        if plaintext is None:\n            raise CoordinatorMisbehaved(MASKED_INPUT, "a bad share")\n',
        ),
        server,
        "blame",
        (("lie", SHARE),),
    ),
    "participants mask with all of u1": (
        lambda: CLIENT.changed(
            "for dealer in neighbours\n            ]", "for dealer in graph.neighbours(cohort.me)\n            ]"
        ),
        server,
        "sum",
        (("never", SHARE),),
    ),
    "a phase of a participant can be asked twice": (
        lambda: CLIENT.without("this phase is over for this participant"),
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

    assert claim in honest_coordinator_machine.WATCHED
    assert found(Machine).claim == claim


# ---------------------------------------------------------------- a lying coordinator


def test_real_participants_with_a_lying_coordinator() -> None:
    class Machine(LyingCoordinator):
        seen: ClassVar[Counter[str]] = Counter()

    run_state_machine_as_test(Machine, settings=LYING)
    for phase in range(4):
        assert Machine.seen[f"answered in phase {phase}"] >= 200
        assert Machine.seen[f"refused in phase {phase}"] >= 20
    assert Machine.seen["a sum opens"] >= 100
    assert Machine.seen["took its charge back"] >= 1
    assert Machine.seen["a sum only seemed to open"] == 0


# Participants, which claim must be found broken, and a scheme to begin with.
NAIVE_PARTICIPANTS: dict[str, tuple[Callable[[], Side], str, str]] = {
    "u2 may differ from what it masked in": (
        lambda: CLIENT.without("u2 is not the set this participant masked in"),
        "nested",
        "two for u2",
    ),
    "u2 may differ from what it masked in, and it signs what it is told": (
        lambda: CLIENT.variant(("u2 is not the set this participant masked in",), ((SIGNED, SAID),)),
        "few",
        "two for u2",
    ),
    "u2 may be without itself": (lambda: CLIENT.without("dealing was left out of u2"), "nested", "odd u2"),
    "dealings may be those of others than u2": (
        lambda: CLIENT.without("the dealings are not those of the neighbours in u2"),
        "nested",
        "odd u2",
    ),
    "u2 may leave it with a few neighbours": (lambda: CLIENT.without("neighbours in u2, "), "nested", "odd u2"),
    "uploads may say another u2": (
        lambda: CLIENT.without("did not upload what was masked in this u2"),
        "few",
        "victims",
    ),
    "uploads needn't be shown": (
        lambda: CLIENT.without("there must be one upload for each neighbour"),
        "few",
        "victims",
    ),
    "u3 may be small, and a ring is cut": (lambda: CLIENT.without("u3 has {len(u3)}"), "few", "windows"),
    "u3 may be small": (lambda: CLIENT.without("u3 has {len(u3)}"), "few", "few in u3"),
    "u3 may hold some who are not in u2": (
        lambda: CLIENT.without("u3 is not a subset of u2"),
        "nested",
        "some never deal",
    ),
    "it may be left out of u3 itself": (lambda: CLIENT.without("upload was left out of u3"), "nested", "two for u3"),
    "u2 may be small": (lambda: CLIENT.without("u2 has {len(u2)} members"), "nested", ""),
    "u1 may be small": (lambda: CLIENT.without("members, outside"), "nested", "another u1"),
    "a few signatures will do": (lambda: CLIENT.without("signatures over the survivors"), "one sum", "two for u3"),
    "a few signatures will do, and few have signed": (
        lambda: CLIENT.without("signatures over the survivors"),
        "backed",
        "two for u3",
    ),
    "signatures are not verified": (lambda: CLIENT.without("doesn't cover these sets"), "one sum", "two for u3"),
    "a message of another phase is looked at": (
        lambda: CLIENT.without("is not what this phase waits for"),
        "crash",
        "",
    ),
    "it takes its charge back though its input is in the sum": (
        lambda: CLIENT.without("u3 was said to be without this participant"),
        "left out",
        "left out",
    ),
    "it takes its charge back for the asking": (
        lambda: CLIENT.without("signatures over the survivors"),
        "left out",
        "left out",
    ),
    "one signature may be shown many times": (
        lambda: CLIENT.without("the signers are not an ascending list of members of u3"),
        "backed",
        "two for u3",
    ),
    "neighbours' keys need no signature": (lambda: CLIENT.without("are not signed by it"), "secrets", "in the middle"),
    "changed keys of neighbours are taken": (lambda: CLIENT.without("are not signed by it"), "forged", ""),
    "dealings need no signature": (
        lambda: CLIENT.without("the dealing of {dealt.dealer} is not signed by it"),
        "nested",
        "some never deal",
    ),
    "a phase can be asked again, and signs twice": (
        lambda: CLIENT.without("this phase is over for this participant"),
        "one answer",
        "",
    ),
    "a phase can be asked again, and reveals both kinds": (
        lambda: CLIENT.without("this phase is over for this participant"),
        "one kind",
        "asked twice",
    ),
    "any second request gets the reply": (
        lambda: CLIENT.without("a second, different unmasking request"),
        "one answer",
        "",
    ),
    # So it was, until a signer below zero, or beyond eight bytes, turned out to be an OverflowError.
    "requests are compared by digest": (
        lambda: CLIENT.changed("if message != self._request:", "if request_digest(message) != self.request_digest:"),
        "crash",
        "",
    ),
}


@pytest.mark.parametrize("name", NAIVE_PARTICIPANTS)
def test_the_machine_finds_what_naive_participants_fall_for(name: str) -> None:
    participants, claim, begins = NAIVE_PARTICIPANTS[name]

    class Machine(LyingCoordinator):
        client, watch, scheme, seen = participants(), frozenset({claim}), begins, Counter()

    assert claim in lying_coordinator_machine.WATCHED
    assert found(Machine).claim == claim


def test_a_ring_with_as_many_drops_and_colluders_as_neighbours_can_be_cut() -> None:
    """Why the degree is above A + drops: real participants, and a plan that no rule would give."""

    class Machine(LyingCoordinator):
        plans, watch, scheme, seen = (CUT_WITH_TOO_MANY_DROPS,), frozenset({"few"}), "windows", Counter()

    assert found(Machine).claim == "few"


def test_participants_that_join_an_attempt_again_can_be_made_to_open_two_sums() -> None:
    """Why a participant writes down that it joined before it says so: the core can't know what it forgot."""

    class Machine(LyingCoordinator):
        joins_again, watch, seen = True, frozenset({"one sum"}), Counter()

    assert found(Machine).claim == "one sum"
