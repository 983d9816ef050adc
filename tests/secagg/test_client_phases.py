"""A coordinator that lies, with colluding participants, against the real participants.

Each attack of attacks_on_participants.py, attacks_at_the_end.py and attacks_on_a_ring.py is run against the real code,
where the check that it names must end it, and against the code without that check, where it must succeed: else the test
would not show that the check is needed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from secagg.errors import CoordinatorMisbehaved
from secagg.messages import MASK_KEY, NeighbourShares, SurvivorSets, UnmaskingRequest
from tests.secagg.attacks_at_the_end import takes_back
from tests.secagg.attacks_on_a_ring import cut_by_two_drops, places, uploads
from tests.secagg.attacks_on_participants import ALL, ATTACKS, HONEST, brought_to, sign_and_unmask
from tests.support.attempts_in_memory import Cohort, flip, make_config, start_cohort, vector_of
from tests.support.crooked_dealings import crooked_dealing
from tests.support.naive_variants import CLIENT, SAID, SIGNED, Side

# ---------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_stopped(name: str) -> None:
    with pytest.raises(CoordinatorMisbehaved) as caught:
        ATTACKS[name].run(CLIENT)
    # What was refused is what the check under test refuses: compare the words without the numbers between them.
    text = next(text for text in CLIENT.refusals("CoordinatorMisbehaved") if ATTACKS[name].check in text)
    words = [piece for piece in _constant_pieces(text) if len(piece) > 3]
    assert all(word in caught.value.reason for word in words), (caught.value.reason, words)


def _constant_pieces(text: str) -> list[str]:
    """The fixed parts of the message in the source of a ``raise``."""
    call = ast.parse(text).body[0].exc  # type: ignore[attr-defined]
    message = call.args[-1]
    parts = message.values if isinstance(message, ast.JoinedStr) else [message]
    return [part.value for part in parts if isinstance(part, ast.Constant)]


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_on_a_naive_participant(name: str) -> None:
    naive = CLIENT.without(ATTACKS[name].check)
    match ATTACKS[name].naive:
        case "the attack succeeds":
            assert ATTACKS[name].run(naive)
        case "another check stops it":
            with pytest.raises(CoordinatorMisbehaved):
                ATTACKS[name].run(naive)


@pytest.mark.parametrize("name", ["some_are_told_that_others_missed_u2", "the_victim_signs_what_all_sign"])
def test_what_is_signed_is_what_was_masked_in(name: str) -> None:
    """A participant that masked in another u2 can't sign that of all: it compares both, and it signs its own."""
    attack = ATTACKS[name]
    assert attack.run(CLIENT.variant((attack.check,), ((SIGNED, SAID),)))
    for one_of_two in (CLIENT.without(attack.check), CLIENT.changed(SIGNED, SAID)):
        with pytest.raises(CoordinatorMisbehaved):
            attack.run(one_of_two)


# ---------------------------------------------------------------- on a ring


def test_a_cut_ring_without_lies_opens_nothing_but_its_sum() -> None:
    """So in attacks_on_a_ring.py sums open because of the lie: here all see the same, and one drops out."""
    ring = places(CLIENT)
    ring.cohort.deal(ring.everybody)
    uploads(ring, ring.everybody - {ring.drops})
    sets = ring.everybody, ring.everybody - {ring.drops}
    honest = sets[1] - ring.cohort.colluders
    sign_and_unmask(ring.cohort, honest, sets)
    assert ring.cohort.opens(honest)
    for fewer in (ring.near, ring.few, ring.far, ring.far | {ring.victim}, {ring.victim}):
        assert not ring.cohort.opens(fewer)


def test_no_participant_has_more_colluders_around_it_than_the_threshold_allows() -> None:
    ring = places(CLIENT)
    graph = ring.cohort.graph
    corrupt = max(len(ring.cohort.colluders.intersection(graph.neighbours(one))) for one in graph.u1)
    assert (graph.degree, graph.threshold, corrupt) == (6, 5, 2)
    assert 2 * graph.threshold > graph.degree + corrupt
    drops = graph.degree - 1 - len(ring.cohort.colluders)
    assert drops == 14 - ring.cohort.config.parameters.min_survivors == 1


EVIDENCE, NEIGHBOURS = "did not upload what was masked in this u2", "neighbours in u2, "


@pytest.mark.parametrize(
    ("removed", "opens"), [((EVIDENCE, NEIGHBOURS), True), ((EVIDENCE,), False), ((NEIGHBOURS,), False)]
)
def test_a_single_input_opens_without_both_checks(removed: tuple[str, ...], opens: bool) -> None:
    """A victim that is left with colluders: its own input, in the clear. Each of the two checks alone prevents it."""
    ring = places(CLIENT.variant(removed, ()), min_survivors=10)
    ring.cohort.deal(ring.everybody)
    honest = frozenset(ring.cohort.graph.neighbours(ring.victim)) - ring.cohort.colluders

    def attempt() -> None:
        uploads(ring, ring.everybody, hidden=honest)
        sign_and_unmask(ring.cohort, ring.near | ring.far, (ring.everybody, ring.everybody))

    if opens:
        attempt()
        total = ring.cohort.open_sum({ring.victim})
        assert total is not None
        np.testing.assert_array_equal(total, vector_of(ring.victim, ring.cohort.config.parameters))
        return
    with pytest.raises(CoordinatorMisbehaved, match=EVIDENCE if NEIGHBOURS in removed else NEIGHBOURS):
        attempt()
    assert ring.cohort.open_sum({ring.victim}) is None


def test_a_plan_under_which_more_may_drop_than_the_degree_bears_lets_the_ring_be_cut() -> None:
    """degree > A + drops, or real participants help to open what stands between two empty windows: 6 = 4 + 2."""
    ring = cut_by_two_drops(CLIENT, min_survivors=12)
    assert ring.cohort.opens(ring.near)
    assert len(ring.near) < 12 - 4


# ---------------------------------------------------------------- what takes a charge back


def test_a_participant_outside_the_signed_sum_takes_its_charge_back() -> None:
    cohort = brought_to("ConsistencyCheck", CLIENT)
    sets = ALL, ALL - {0}
    signed = {one: cohort.sign(one, sets) for one in HONEST - {0}}
    assert takes_back(CLIENT, cohort, 0, sets, signed)
    with pytest.raises(CoordinatorMisbehaved, match="without this participant"):
        takes_back(CLIENT, cohort, 1, sets, signed)


# ---------------------------------------------------------------- checks that are not one `if`


@pytest.mark.parametrize("wrong", [b"", b"\xff", b"\xff\xff\xff", b"\xff\x1f", b"\xff\x8f"])
def test_malformed_bitmaps(wrong: bytes) -> None:
    dealt = brought_to("MaskedInputCollection", CLIENT)
    with pytest.raises(CoordinatorMisbehaved, match="bit"):
        dealt.mask(0, ALL, replace(dealt.neighbour_shares(0, ALL), u2=wrong))
    proven = brought_to("ConsistencyCheck", CLIENT)
    for sets in (SurvivorSets(wrong, b"\xfe\x0f"), SurvivorSets(b"\xff\x0f", wrong)):
        with pytest.raises(CoordinatorMisbehaved, match="bit"):
            CLIENT.excluding_survivors(proven.phases[0]._cohort, sets, UnmaskingRequest(()))
    for sets in (SurvivorSets(wrong, b"\xff\x0f"), SurvivorSets(b"\xff\x0f", wrong)):
        cohort = brought_to("ConsistencyCheck", CLIENT)
        with pytest.raises(CoordinatorMisbehaved, match="bit"):
            cohort.phases[0].receive(sets)


def test_nothing_that_is_sent_can_lower_the_threshold() -> None:
    """Threshold and number of signatures follow from u1 and the plan; no message has a field for them."""
    for u1 in range(8, 13):
        config = make_config(12)
        cohort = start_cohort(config, u1=range(u1))
        cohort.deal([0])
        threshold = config.parameters.threshold(u1)
        assert threshold == (u1 + 2) // 2 + 1
        held = cohort.phases[0]._cohort.graph.threshold
        assert held == threshold == config.parameters.signatures_needed(u1)


def test_a_reply_is_repeated_byte_for_byte_and_the_shares_are_gone() -> None:
    cohort = brought_to("ConsistencyCheck", CLIENT)
    signatures = {one: cohort.sign(one, (ALL, ALL)) for one in HONEST}
    request = UnmaskingRequest(tuple(sorted(signatures.items())))
    unmasking = cohort.phases[0]
    answered, reply = unmasking.receive(request)
    assert answered.receive(request) is reply
    assert not unmasking._held
    with pytest.raises(CoordinatorMisbehaved, match="over for this participant"):
        unmasking.receive(request)


# ---------------------------------------------------------------- sealed shares that are not what they should be


def sealed_by_3(cohort: Cohort, plaintext: bytes) -> bytes:
    """What a dealer that doesn't follow the protocol could seal for participant 0."""
    end = cohort.phases[3]._cohort
    return end.channel(cohort.phases[3]._agreements[0], 3, 0).seal(plaintext)


def with_share_of(cohort: Cohort, dealer: int, **changed: bytes) -> NeighbourShares:
    """What participant 0 gets, with one entry changed."""
    message = cohort.neighbour_shares(0, ALL)
    shares = (one._replace(**changed) if one.dealer == dealer else one for one in message.shares)
    return replace(message, shares=tuple(shares))


def keeps(ciphertext: Callable[[Cohort], bytes]) -> Callable[[Side], bool]:
    """Whether participant 0 keeps the shares of participant 3 in that ciphertext."""

    def run(client: Side) -> bool:
        cohort = brought_to("MaskedInputCollection", client)
        cohort.mask(0, ALL, with_share_of(cohort, 3, ciphertext=ciphertext(cohort)))
        return cohort.held[0][3] is not None

    return run


def keeps_symbols_outside_the_field(client: Side) -> bool:
    cohort = brought_to("MaskedInputCollection", client)
    shares = np.full((12, 2, 16), 65521, np.uint16)
    cohort.sealed[3] = crooked_dealing(cohort.phases[3], shares, bytes(32))
    for one in ALL - {3}:
        cohort.mask(one, ALL)
    sign_and_unmask(cohort, HONEST - {3}, (ALL, ALL - {3}))
    return cohort.graph.x(0) in cohort.shares.get((3, MASK_KEY), {})


# Checks that cost a dealer its share, by part of their source; what a participant without them keeps, or stumbles over.
WRONG_SHARES: dict[str, tuple[Callable[[Side], bool], str]] = {
    "self._covers(dealt, pair_node": (keeps(lambda cohort: sealed_by_3(cohort, bytes(96))), "keeps it"),
    ">= shamir.PRIME": (keeps_symbols_outside_the_field, "keeps it"),
    "plaintext is None": (keeps(lambda cohort: flip(cohort.dealt(3, 0).ciphertext, 50)), "crashes"),
    "CIPHERTEXT_BYTES": (keeps(lambda cohort: sealed_by_3(cohort, bytes(95))), "crashes"),
}


@pytest.mark.parametrize("check", WRONG_SHARES)
def test_a_wrong_share_is_found_on_arrival(check: str) -> None:
    """Found later, the share would cost its holder the attempt."""
    run, naive = WRONG_SHARES[check]
    assert not run(CLIENT)
    if naive == "keeps it":
        assert run(CLIENT.without(check))
        return
    with pytest.raises((TypeError, ValueError, AttributeError)):
        run(CLIENT.without(check))


@pytest.mark.parametrize("changed", ["seed_commitment", "signature"])
def test_what_opens_for_this_cohort_needs_no_other_proof(changed: str) -> None:
    """Only the dealer could have sealed it: its channel key is signed, and the key names the cohort."""
    cohort = brought_to("MaskedInputCollection", CLIENT)
    cohort.mask(0, ALL, with_share_of(cohort, 3, **{changed: flip(getattr(cohort.dealt(3, 0), changed))}))
    assert 0 in cohort.uploads
    assert cohort.held[0][3] is not None


def test_late_masked_inputs_stay_closed() -> None:
    """Participant 9 was called a dropout and its mask key opened; its upload arrives after all."""
    cohort = brought_to("ConsistencyCheck", CLIENT)
    sign_and_unmask(cohort, HONEST - {9}, (ALL, ALL - {9}))
    assert 9 in cohort.uploads
    assert cohort.private_mask_key(9) is not None
    assert cohort.opens(ALL - {9})
    assert not cohort.opens({9})
    assert not cohort.opens(ALL)
