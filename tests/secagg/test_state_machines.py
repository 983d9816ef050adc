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
    with pytest.raises(Broken) as caught:
        run_state_machine_as_test(machine, settings=BITES)
    return caught.value


# ---------------------------------------------------------------- an honest coordinator


@pytest.mark.long
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
TAKES_LATE_ONES = ("if self._closed or not expected:", "if not expected:")
COUNTS_AGAIN = ("sender in self.u2 and sender not in self._u3", "sender in self.u2")
ONE_TOO_FEW = ("if received < needed:", "if received < needed - 1:")
OPENED = "        if plaintext is None:\n            "
GIVES_UP = (f"{OPENED}return None\n", f'{OPENED}raise CoordinatorMisbehaved(MASKED_INPUT, "a bad share")\n')
ALL_OF_U1 = ("for dealer in neighbours\n            ]", "for dealer in graph.neighbours(cohort.me)\n            ]")
ALL_SEEDS = ("tuple(noise_seeds[number] for number in surplus)", "noise_seeds")
BY_DIGEST = ("if message != self._request:", "if request_digest(message) != self.request_digest:")


def naive(side: Side, *pieces: Piece) -> Side:
    return side.variant(
        tuple(one for one in pieces if isinstance(one, str)), tuple(one for one in pieces if isinstance(one, tuple))
    )


# What a side lacks, which claim must be found broken (the machine watches no other), and plans for the first cheater.
Naive = dict[str, tuple[Piece | tuple[str, str], ...]]
NAIVE_COORDINATORS: Naive = {
    "no share is held against its commitment": ("doesn't match the commitment", "blame", ("forge", UNMASK)),
    "messages are taken after the close": (TAKES_LATE_ONES, "sum", ("late", MASK)),
    "an upload counts as often as it comes": (COUNTS_AGAIN, "sum", ("twice", MASK)),
    "a phase ends with one too few": (ONE_TOO_FEW, "sets", ("never", SHARE)),
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
    "masks of dropouts are taken back wrongly": (("-1 if below else 1", "1 if below else -1"), "sum", ("never", MASK)),
}
NAIVE_CLIENTS: Naive = {
    "participants keep shares that miss their commitment": ("self._covers(dealt, pair_node", "blame", ("lie", SHARE)),
    "participants keep symbols outside the field": (">= shamir.PRIME", "blame", ("lie", SHARE)),
    "participants give up over a share that can't be opened": (GIVES_UP, "blame", ("lie", SHARE)),
    "participants mask with all of u1": (ALL_OF_U1, "sum", ("never", SHARE)),
    "participants reveal all their noise seeds": (ALL_SEEDS, "noise"),
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
@pytest.mark.long
def test_the_machine_finds_what_a_naive_variant_breaks(name: str) -> None:
    piece, claim, *plans = (NAIVE_COORDINATORS | NAIVE_CLIENTS)[name]
    sides = (naive(CLIENT, piece), SERVER) if name in NAIVE_CLIENTS else (CLIENT, naive(SERVER, piece))

    class Machine(HonestCoordinator):
        (client, server), watch, focus, seen = sides, frozenset({claim}), tuple(plans), Counter()
        trick = TRICKS.get(name)

    assert found(Machine).claim == claim


# ---------------------------------------------------------------- a lying coordinator


@pytest.mark.long
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
FEW_SIGNATURES, NOT_SIGNED_BY_IT = "signatures over the survivors", "are not signed by it"
# Which claim must be found broken, a scheme to begin with, and what participants lack.
NAIVE_PARTICIPANTS: dict[str, tuple[str, str, Piece] | tuple[str, str, Piece, Piece]] = {
    "u2 may differ from what it masked in": ("nested", "two for u2", NOT_MASKED_IN),
    "u2 may differ, and it signs what it is told": ("few", "two for u2", NOT_MASKED_IN, (SIGNED, SAID)),
    "u2 may be without itself": ("nested", "odd u2", "dealing was left out of u2"),
    "dealings may be those of others than u2": ("nested", "odd u2", "are not those of the neighbours in u2"),
    "u2 may leave it with a few neighbours": ("nested", "odd u2", "neighbours in u2, "),
    "uploads may say another u2": ("few", "victims", "did not upload what was masked in this u2"),
    "uploads needn't be shown": ("few", "victims", "there must be one upload for each neighbour"),
    "u3 may be small, and a ring is cut": ("few", "windows", "u3 has {len(u3)}"),
    "u3 may be small": ("few", "few in u3", "u3 has {len(u3)}"),
    "u3 may hold some who are not in u2": ("nested", "some never deal", "u3 is not a subset of u2"),
    "it may be left out of u3 itself": ("nested", "two for u3", "upload was left out of u3"),
    "u2 may be small": ("nested", "some never deal", "u2 has {len(u2)} members"),
    "u1 may be small": ("nested", "another u1", "members, outside"),
    "a few signatures will do": ("one sum", "two for u3", FEW_SIGNATURES),
    "a few signatures will do, and few have signed": ("backed", "two for u3", FEW_SIGNATURES),
    "signatures are not verified": ("one sum", "two for u3", "doesn't cover these sets"),
    "a message of another phase is looked at": ("crash", "two for u2", "is not what this phase waits for"),
    "it takes its charge back though its input is in the sum": (
        *("left out", "left out"),
        "u3 was said to be without this participant",
    ),
    "it takes its charge back for the asking": ("left out", "left out", FEW_SIGNATURES),
    "one signature may be shown many times": ("backed", "two for u3", "the signers are not an ascending list"),
    "neighbours' keys need no signature": ("secrets", "in the middle", NOT_SIGNED_BY_IT),
    "changed keys of neighbours are taken": ("forged", "another u1", NOT_SIGNED_BY_IT),
    "dealings need no signature": ("nested", "some never deal", "the dealing of {dealt.dealer} is not signed"),
    "a phase can be asked again, and signs twice": ("one answer", "asked twice", OVER),
    "a phase can be asked again, and reveals both kinds": ("one kind", "asked twice", OVER),
    "a phase can be asked again, and reveals more noise seeds": ("noise", "asked twice", OVER),
    "all noise seeds are revealed": ("noise", "", ALL_SEEDS),
    "a few signatures will do, and noise seeds are revealed": ("noise", "two for u3", FEW_SIGNATURES),
    "any second request gets the reply": ("one answer", "", "a second, different unmasking request"),
    # So it was, until a signer below zero, or beyond eight bytes, turned out to be an OverflowError.
    "requests are compared by digest": ("crash", "", BY_DIGEST),
}


@pytest.mark.parametrize("name", NAIVE_PARTICIPANTS)
@pytest.mark.long
def test_the_machine_finds_what_naive_participants_fall_for(name: str) -> None:
    claim, begins, *pieces = NAIVE_PARTICIPANTS[name]

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
