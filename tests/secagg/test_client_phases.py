"""Participants and a coordinator that lies, with colluders: what the machines and tests/adversary don't reach.

Each lie must be refused by the real code, and must get through without the check that stops it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest

from secagg.errors import CoordinatorMisbehaved
from secagg.keys import AgreementKey
from secagg.messages import MASK_KEY, CohortKeys, NeighbourShares, SurvivorSets, UnmaskingRequest
from tests.secagg.cheating_participants import signed_keys
from tests.support.attempts_in_memory import Cohort, Sets, flipped, make_config, start_cohort, vector_of
from tests.support.crooked_dealings import crooked_dealing
from tests.support.naive_variants import CLIENT, SAID, SIGNED, Side
from tests.support.small_rings import CUT, CUT_COLLUDERS, CUT_FAR, CUT_NEAR, CUT_VICTIM

HONEST, COLLUDERS = frozenset(range(10)), frozenset({10, 11})
ALL = HONEST | COLLUDERS


def brought_to(phase: str, client: Side = CLIENT) -> Cohort:
    """An honest attempt, all present, up to the moment before `phase` gets its message."""
    cohort = start_cohort(make_config(12), client=client, colluders=COLLUDERS)
    if phase != "ShareKeys":
        cohort.deal(ALL)
    if phase == "ConsistencyCheck":
        for one in ALL:
            cohort.mask(one, ALL)
    return cohort


def sign_and_unmask(cohort: Cohort, honest: Iterable[int], sets: Sets) -> None:
    """All say the same, and as many sign as there are."""
    honest = tuple(honest)
    signatures = {one: cohort.sign(one, sets) for one in honest}
    signatures |= {one: cohort.forge(one, sets) for one in cohort.colluders}
    for one in honest:
        cohort.unmask(one, sets, signatures)


def test_a_colluder_does_not_count_twice_by_a_negative_position() -> None:
    """Python would read it as a position from the end of the roster. The wire has no such number."""

    def deals(client: Side) -> bool:
        cohort = brought_to("ShareKeys", client)
        again = AgreementKey(b"a" * 32).public, AgreementKey(b"b" * 32).public
        members = [(-1, signed_keys(cohort.config, 11, *again)), *cohort.keys().members]
        del members[5]
        return len(cohort.phases[0].receive(CohortKeys(tuple(members)))[1].ciphertexts) == 11

    with pytest.raises(CoordinatorMisbehaved, match="names a participant that is not on the roster"):
        deals(CLIENT)
    assert deals(CLIENT.without("u1 names a participant that is not on the roster"))


def test_what_is_signed_is_what_was_masked_in() -> None:
    """Two mask only with those that leave, and later sign what all sign: the sum of the two would open.

    A participant that masked in another u2 can't sign that of all: it compares both, and it signs its own.
    """
    victims, others, dropped = frozenset({0, 1}), frozenset({2, 3, 4, 5}), frozenset({6, 7, 8, 9})
    check = "u2 is not the set this participant masked in"

    def opens(client: Side) -> bool:
        cohort = brought_to("MaskedInputCollection", client)
        for one in ALL:
            cohort.mask(one, victims | dropped | COLLUDERS if one in victims else ALL)
        sign_and_unmask(cohort, victims | others, (ALL, ALL - dropped))
        return cohort.opens(victims)

    assert opens(CLIENT.variant((check,), ((SIGNED, SAID),)))
    for one_of_two in (CLIENT.without(check), CLIENT.changed(SIGNED, SAID)):
        with pytest.raises(CoordinatorMisbehaved):
            opens(one_of_two)


EVIDENCE, NEIGHBOURS = "did not upload what was masked in this u2", "neighbours in u2, "


@pytest.mark.parametrize(
    ("removed", "opens"), [((EVIDENCE, NEIGHBOURS), True), ((EVIDENCE,), False), ((NEIGHBOURS,), False)]
)
def test_a_single_input_opens_without_both_checks(removed: tuple[str, ...], opens: bool) -> None:
    """A victim that is left with colluders: its own input, in the clear. Each of the two checks alone prevents it."""
    config = make_config(14, colluders=4, min_survivors=10, rings=CUT)
    ring = start_cohort(config).graph.ring
    cohort = start_cohort(config, client=CLIENT.variant(removed), colluders=[ring[at] for at in CUT_COLLUDERS])
    everybody, victim = frozenset(ring), ring[CUT_VICTIM]
    cohort.deal(everybody)
    hidden = frozenset(cohort.graph.neighbours(victim)) - cohort.colluders

    def attempt() -> None:
        for one in everybody:
            cohort.mask(one, everybody - hidden if one == victim else everybody)
        sign_and_unmask(cohort, [ring[at] for at in (*CUT_NEAR, *CUT_FAR)], (everybody, everybody))

    if opens:
        attempt()
        total = cohort.open_sum({victim})
        assert total is not None
        np.testing.assert_array_equal(total, vector_of(victim, config.parameters))
        return
    with pytest.raises(CoordinatorMisbehaved, match=EVIDENCE if NEIGHBOURS in removed else NEIGHBOURS):
        attempt()
    assert cohort.open_sum({victim}) is None


def test_a_participant_outside_the_signed_sum_takes_its_charge_back() -> None:
    cohort = brought_to("ConsistencyCheck")
    sets = ALL, ALL - {0}
    signed = UnmaskingRequest(tuple((one, cohort.sign(one, sets)) for one in sorted(HONEST - {0})))
    told = cohort.survivor_sets(sets)
    assert CLIENT.excluding_survivors(cohort.phases[0]._cohort, told, signed) == sets[1]
    with pytest.raises(CoordinatorMisbehaved, match="without this participant"):
        CLIENT.excluding_survivors(cohort.phases[1]._cohort, told, signed)


# ---------------------------------------------------------------- checks that are not one `if`


@pytest.mark.parametrize("wrong", [b"", b"\xff", b"\xff\xff\xff", b"\xff\x1f", b"\xff\x8f"])
def test_malformed_bitmaps_take_no_charge_back(wrong: bytes) -> None:
    """Those that ask for a mask or a signature are among the test vectors."""
    proven = brought_to("ConsistencyCheck").phases[0]._cohort
    for sets in (SurvivorSets(wrong, b"\xfe\x0f"), SurvivorSets(b"\xff\x0f", wrong)):
        with pytest.raises(CoordinatorMisbehaved, match="bit"):
            CLIENT.excluding_survivors(proven, sets, UnmaskingRequest(()))


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
    cohort = brought_to("ConsistencyCheck")
    request = UnmaskingRequest(tuple((one, cohort.sign(one, (ALL, ALL))) for one in sorted(HONEST)))
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
    "plaintext is None": (keeps(lambda cohort: flipped(cohort.dealt(3, 0).ciphertext, 400)), "crashes"),
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
    cohort = brought_to("MaskedInputCollection")
    cohort.mask(0, ALL, with_share_of(cohort, 3, **{changed: flipped(getattr(cohort.dealt(3, 0), changed))}))
    assert 0 in cohort.uploads
    assert cohort.held[0][3] is not None
