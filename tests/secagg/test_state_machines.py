"""Both sides joined; hypothesis chooses what happens.

The machines honest_coordinator_machine.py (a bad network, two cheating participants) and lying_coordinator_machine.py
(with colluding participants) run against the real code, and against naive variants, in which they must find the fault.

Runs are derandomized, without the constants that hypothesis takes from whatever modules are loaded, and failures aren't
shrunk, so that the time is constant. A random search that shrinks:

    SORDINO_MACHINE_EXAMPLES=2000 pytest -s tests/secagg/test_state_machines.py -k real
"""

from __future__ import annotations

import os
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from secagg.messages import PHASES
from tests.secagg.claims import Broken
from tests.secagg.honest_coordinator_machine import HonestCoordinator
from tests.secagg.lying_coordinator_machine import CUT_WITH_TOO_MANY_DROPS, LyingCoordinator
from tests.support.naive_variants import CLIENT, SAID, SERVER, SIGNED, Side

ADVERTISE, SHARE, MASK, SIGN, UNMASK = PHASES

EXAMPLES = int(os.environ.get("SORDINO_MACHINE_EXAMPLES", "0"))
REAL = settings(
    max_examples=EXAMPLES or 130,
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
    REAL, max_examples=1200, stateful_step_count=10, derandomize=True, print_blob=False, phases=(Phase.generate,)
)


@pytest.fixture(autouse=True)
def no_constants_of_other_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    if not EXAMPLES:
        monkeypatch.setattr(providers, "_get_local_constants", providers.Constants)
        cache = type(providers.CONSTANTS_CACHE)(1024)  # an earlier test of this process has left its own in the old one
        monkeypatch.setattr(providers, "CONSTANTS_CACHE", cache)


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
    assert Machine.seen["revealed noise seeds"] >= 40
    assert sum(Machine.seen[f"InvalidMessage in {name}"] for name in PHASES) >= 30
    assert all(Machine.seen[f"UnexpectedMessage in {name}"] >= 5 for name in PHASES)


Piece = str | tuple[str, str]  # a check that is taken out, or a piece of source and what stands in its place


def naive(side: Side, *pieces: Piece) -> Side:
    return side.variant(
        tuple(one for one in pieces if isinstance(one, str)), tuple(one for one in pieces if isinstance(one, tuple))
    )


# What a side lacks, which claim must be found broken (the machine watches no other), and plans for the first cheater.
Naive = dict[str, tuple[Piece | tuple[str, str], ...]]
NAIVE_COORDINATORS: Naive = {
    "no share is held against its commitment": ("doesn't match the commitment", "blame", ("forge", UNMASK)),
    "messages are taken after the close": (
        ("if self._closed or not expected:", "if not expected:"),
        "sum",
        ("late", MASK),
    ),
    "an upload counts as often as it comes": (
        ("sender in self.u2 and sender not in self._u3", "sender in self.u2"),
        "sum",
        ("twice", MASK),
    ),
    "a phase ends with one too few": (("if received < needed:", "if received < needed - 1:"), "sets", ("never", SHARE)),
    "keys may be advertised twice": ("a public key was advertised before", "blame", ("lie", ADVERTISE)),
    "keys may be of low order": ("a public key is of low order", "blame", ("lie", ADVERTISE)),
    "keys need no signature": ("the keys are not signed by", "blame", ("forge", ADVERTISE)),
    "dealings need no signature": ("the commitments are not signed by", "blame", ("forge", SHARE)),
    "uploads need no signature": ("the upload is not signed by", "forged", ("forge", MASK)),
    "an upload needn't have its digest": ("doesn't have the digest that was", "sum", ("forge", MASK)),
    "signatures over the sets are not checked": ("signature doesn't cover", "blame", ("forge", SIGN)),
    "symbols may lie outside the field": ("has a symbol outside the field", "crash", ("lie", SHARE)),
    "noise seeds are not held against their commitments": ("a noise seed doesn't match", "forged", ("forge", UNMASK)),
    "noise seeds are not counted": ("noise seeds of {NOISE_SEED_BYTES} bytes", "crash", ("forge", UNMASK)),
    "lengths of a share are not checked": ("has another length", "crash", ("forge", UNMASK)),
    "a rebuilt seed is not checked": ("another self-mask seed than", "sum", ("lie", SHARE)),
    "a rebuilt mask key is not checked": ("another mask key than", "sum", ("lie", SHARE), ("never", MASK)),
    "masks of dropouts are taken back the wrong way round": (
        ("-1 if below else 1", "1 if below else -1"),
        "sum",
        ("never", MASK),
    ),
}
NAIVE_CLIENTS: Naive = {
    "participants keep shares that miss their commitment": ("self._covers(dealt, pair_node", "blame", ("lie", SHARE)),
    "participants keep symbols outside the field": (">= shamir.PRIME", "blame", ("lie", SHARE)),
    "participants give up over a share that can't be opened": (
        (
            "        if plaintext is None:\n            return None\n",
            '        if plaintext is None:\n            raise CoordinatorMisbehaved(MASKED_INPUT, "a bad share")\n',
        ),
        "blame",
        ("lie", SHARE),
    ),
    "participants mask with all of u1": (
        ("for dealer in neighbours\n            ]", "for dealer in graph.neighbours(cohort.me)\n            ]"),
        "sum",
        ("never", SHARE),
    ),
    "participants reveal all their noise seeds": (
        ("tuple(noise_seeds[number] for number in surplus)", "noise_seeds"),
        "noise",
    ),
    "participants reveal noise seeds by the size of u2": (
        ("released_seeds(len(u3))", "released_seeds(len(u2))"),
        "noise",
    ),
    "a phase of a participant can be asked twice": ("this phase is over for this participant", "one kind"),
}
# Where few lies show it: of the kinds of dealing in `crooked_deal`, only one has the dealer reveal such a share.
TRICKS = {"symbols may lie outside the field": 2}
TRICKS |= {"noise seeds are not held against their commitments": 11, "noise seeds are not counted": 9}


@pytest.mark.parametrize("name", NAIVE_COORDINATORS | NAIVE_CLIENTS)
def test_the_machine_finds_what_a_naive_variant_breaks(name: str) -> None:
    piece, claim, *plans = (NAIVE_COORDINATORS | NAIVE_CLIENTS)[name]
    sides = (naive(CLIENT, piece), SERVER) if name in NAIVE_CLIENTS else (CLIENT, naive(SERVER, piece))

    class Machine(HonestCoordinator):
        (client, server), watch, focus, seen = sides, frozenset({claim}), tuple(plans), Counter()
        trick = TRICKS.get(name)

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
    assert Machine.seen["revealed noise seeds"] >= 100
    assert Machine.seen["took its charge back"] >= 1
    assert Machine.seen["a sum only seemed to open"] == 0


NOT_MASKED_IN = "u2 is not the set this participant masked in"
OVER = "this phase is over for this participant"
# What participants lack, which claim must be found broken, and a scheme to begin with.
NAIVE_PARTICIPANTS: dict[str, tuple[tuple[Piece, ...], str, str]] = {
    "u2 may differ from what it masked in": ((NOT_MASKED_IN,), "nested", "two for u2"),
    "u2 may differ, and it signs what it is told": ((NOT_MASKED_IN, (SIGNED, SAID)), "few", "two for u2"),
    "u2 may be without itself": (("dealing was left out of u2",), "nested", "odd u2"),
    "dealings may be those of others than u2": (("are not those of the neighbours in u2",), "nested", "odd u2"),
    "u2 may leave it with a few neighbours": (("neighbours in u2, ",), "nested", "odd u2"),
    "uploads may say another u2": (("did not upload what was masked in this u2",), "few", "victims"),
    "uploads needn't be shown": (("there must be one upload for each neighbour",), "few", "victims"),
    "u3 may be small, and a ring is cut": (("u3 has {len(u3)}",), "few", "windows"),
    "u3 may be small": (("u3 has {len(u3)}",), "few", "few in u3"),
    "u3 may hold some who are not in u2": (("u3 is not a subset of u2",), "nested", "some never deal"),
    "it may be left out of u3 itself": (("upload was left out of u3",), "nested", "two for u3"),
    "u2 may be small": (("u2 has {len(u2)} members",), "nested", "some never deal"),
    "u1 may be small": (("members, outside",), "nested", "another u1"),
    "a few signatures will do": (("signatures over the survivors",), "one sum", "two for u3"),
    "a few signatures will do, and few have signed": (("signatures over the survivors",), "backed", "two for u3"),
    "signatures are not verified": (("doesn't cover these sets",), "one sum", "two for u3"),
    "a message of another phase is looked at": (("is not what this phase waits for",), "crash", "two for u2"),
    "it takes its charge back though its input is in the sum": (
        ("u3 was said to be without this participant",),
        "left out",
        "left out",
    ),
    "it takes its charge back for the asking": (("signatures over the survivors",), "left out", "left out"),
    "one signature may be shown many times": (("the signers are not an ascending list",), "backed", "two for u3"),
    "neighbours' keys need no signature": (("are not signed by it",), "secrets", "in the middle"),
    "changed keys of neighbours are taken": (("are not signed by it",), "forged", "another u1"),
    "dealings need no signature": (("the dealing of {dealt.dealer} is not signed",), "nested", "some never deal"),
    "a phase can be asked again, and signs twice": ((OVER,), "one answer", "asked twice"),
    "a phase can be asked again, and reveals both kinds": ((OVER,), "one kind", "asked twice"),
    "a phase can be asked again, and reveals more noise seeds": ((OVER,), "noise", "asked twice"),
    "all noise seeds are revealed": (
        (("tuple(noise_seeds[number] for number in surplus)", "noise_seeds"),),
        "noise",
        "",
    ),
    "a few signatures will do, and noise seeds are revealed": (
        ("signatures over the survivors",),
        "noise",
        "two for u3",
    ),
    "any second request gets the reply": (("a second, different unmasking request",), "one answer", ""),
    # So it was, until a signer below zero, or beyond eight bytes, turned out to be an OverflowError.
    "requests are compared by digest": (
        (("if message != self._request:", "if request_digest(message) != self.request_digest:"),),
        "crash",
        "",
    ),
}


@pytest.mark.parametrize("name", NAIVE_PARTICIPANTS)
def test_the_machine_finds_what_naive_participants_fall_for(name: str) -> None:
    pieces, claim, begins = NAIVE_PARTICIPANTS[name]

    class Machine(LyingCoordinator):
        client, watch, scheme, seen = naive(CLIENT, *pieces), frozenset({claim}), begins, Counter()

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
