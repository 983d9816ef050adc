"""Participants that send what they should not, against the real coordinator: each is refused, the phase stays as it
was, and the others' sum comes out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secagg.commitments import MerkleTree, pair_node
from secagg.context import set_of
from secagg.errors import InvalidMessage, ProtocolError, UnexpectedMessage
from secagg.keys import (
    advertisement_statement,
    dealing_statement,
    upload_statement,
)
from secagg.messages import (
    PHASES,
    Advertisement,
    ConsistencySignature,
    MaskedInput,
    SealedShares,
    UnmaskingReply,
)
from secagg.server_cohort import ServerPhase
from secagg.shamir import PRIME
from secagg.sharing import CURIOUS, SEMI_MALICIOUS
from tests.support.attempts_in_memory import (
    Attempt,
    Script,
    flip,
    freeze,
    identities,
    make_config,
    sum_of,
    symbols_of,
)
from tests.support.crooked_dealings import crooked_shares
from tests.support.naive_variants import SERVER, Side

ADVERTISE, SHARE, MASK, SIGN, UNMASK = PHASES
BAD = 3  # who cheats, in a cohort of 9
CONFIG = make_config(9, min_survivors=7, quorum=7)
ME = identities(9)[BAD]

RUINED, CRASHES, TAKEN, ANOTHER_CHECK = "no sum or a wrong one", "the coordinator crashes", "taken", "another check"
BLAMED, ACCUSED = "somebody else is blamed", "an honest participant leaves and accuses the coordinator"


@dataclass(frozen=True)
class Cheat:
    """One dishonest message, the check that must find it, and what happens without that check."""

    change: Callable[[Attempt, Any], Any]
    phase: str
    check: str  # part of the source of the check, unique in the coordinator's modules
    naive: str


CHEATS: dict[str, Cheat] = {}


def cheat(phase: str, check: str, naive: str = RUINED) -> Callable[[Callable[[Attempt, Any], Any]], None]:
    """Register a function (attempt, honest message) -> dishonest message."""

    def register(change: Callable[[Attempt, Any], Any]) -> None:
        CHEATS[change.__name__] = Cheat(change, phase, check, naive)

    return register


def advertises(mask_key: bytes, channel_key: bytes) -> Advertisement:
    statement = advertisement_statement(CONFIG.round_context(), ME.public, mask_key, channel_key)
    return Advertisement(mask_key, channel_key, ME.sign(statement))


@cheat(ADVERTISE, "a public key is not 32 bytes long", ANOTHER_CHECK)
def a_short_key(attempt: Attempt, honest: Advertisement) -> Advertisement:
    return advertises(honest.mask_key[:31], honest.channel_key)


@cheat(ADVERTISE, "a public key was advertised before")
def the_key_of_another(attempt: Attempt, honest: Advertisement) -> Advertisement:
    return advertises(attempt.sent[ADVERTISE, 0].mask_key, honest.channel_key)


@cheat(ADVERTISE, "a public key was advertised before")
def one_key_in_both_roles(attempt: Attempt, honest: Advertisement) -> Advertisement:
    return advertises(honest.mask_key, honest.mask_key)


@cheat(ADVERTISE, "a public key is of low order")
def a_key_of_low_order(attempt: Attempt, honest: Advertisement) -> Advertisement:
    return advertises(honest.mask_key, bytes(32))


@cheat(ADVERTISE, "the keys are not signed by the participant's identity")
def keys_signed_by_another(attempt: Attempt, honest: Advertisement) -> Advertisement:
    statement = advertisement_statement(CONFIG.round_context(), ME.public, honest.mask_key, honest.channel_key)
    return replace(honest, signature=identities(9)[4].sign(statement))


@cheat(ADVERTISE, "the keys are not signed by the participant's identity")
def keys_signed_for_another_attempt(attempt: Attempt, honest: Advertisement) -> Advertisement:
    other = make_config(9, min_survivors=7, quorum=7, attempt=2).round_context()
    statement = advertisement_statement(other, ME.public, honest.mask_key, honest.channel_key)
    return replace(honest, signature=ME.sign(statement))


@cheat(SHARE, "shares must go to exactly the neighbours", CRASHES)
def a_share_too_few(attempt: Attempt, honest: SealedShares) -> SealedShares:
    return replace(honest, ciphertexts=honest.ciphertexts[:-1])


@cheat(SHARE, "a sealed share is not", CRASHES)
def a_huge_ciphertext(attempt: Attempt, honest: SealedShares) -> SealedShares:
    return replace(honest, ciphertexts=(bytes(1 << 20), *honest.ciphertexts[1:]))


@cheat(SHARE, "there must be two commitments of 32 bytes for each holder", CRASHES)
def a_commitment_too_few(attempt: Attempt, honest: SealedShares) -> SealedShares:
    return replace(honest, leaves=honest.leaves[:-1])


@cheat(SHARE, "there must be two commitments of 32 bytes for each holder", CRASHES)
def a_long_commitment(attempt: Attempt, honest: SealedShares) -> SealedShares:
    return replace(honest, leaves=(honest.leaves[0] + b"x", *honest.leaves[1:]))


@cheat(SHARE, "the seed commitment is not 32 bytes long", CRASHES)
def a_short_seed_commitment(attempt: Attempt, honest: SealedShares) -> SealedShares:
    cohort = attempt.coordinator.cohort
    leaves = honest.leaves
    root = MerkleTree([pair_node(*leaves[at : at + 2]) for at in range(0, len(leaves), 2)]).root
    statement = dealing_statement(cohort.context, ME.public, root, b"short")
    return replace(honest, seed_commitment=b"short", signature=ME.sign(statement))


@cheat(SHARE, "the commitments are not signed by the participant's identity", TAKEN)
def commitments_that_nobody_signed(attempt: Attempt, honest: SealedShares) -> SealedShares:
    return replace(honest, signature=flip(honest.signature))


@cheat(SHARE, "the commitments are not signed by the participant's identity", ACCUSED)
def commitments_changed_after_signing(attempt: Attempt, honest: SealedShares) -> SealedShares:
    return replace(honest, leaves=(flip(honest.leaves[0]), *honest.leaves[1:]))


@cheat(MASK, "the upload is not signed by the participant's identity", TAKEN)
def an_upload_that_nobody_signed(attempt: Attempt, honest: MaskedInput) -> MaskedInput:
    return replace(honest, signature=bytes(64))


@cheat(MASK, "the upload is not signed by the participant's identity", TAKEN)
def an_upload_that_says_another_u2(attempt: Attempt, honest: MaskedInput) -> MaskedInput:
    """On a ring its neighbours will ask which u2 it was masked in, and refuse."""
    context, u2 = attempt.cohort.context, attempt.coordinator.u2 - {0}
    statement = upload_statement(context, ME.public, honest.sha256, set_of(attempt.config, context, "u2", u2))
    return replace(honest, signature=ME.sign(statement))


@cheat(MASK, "the upload has", ANOTHER_CHECK)
def an_upload_that_is_too_long(attempt: Attempt, honest: MaskedInput) -> MaskedInput:
    return uploads(attempt, honest.packed + b"\x00")


@cheat(MASK, "the upload doesn't have the digest that was signed")
def an_upload_with_one_bit_changed(attempt: Attempt, honest: MaskedInput) -> MaskedInput:
    return replace(honest, packed=flip(honest.packed))


def uploads(attempt: Attempt, packed: bytes) -> MaskedInput:
    sha256 = hashlib.sha256(packed).digest()
    context, u2 = attempt.cohort.context, attempt.coordinator.u2
    statement = upload_statement(context, ME.public, sha256, set_of(attempt.config, context, "u2", u2))
    return MaskedInput(packed, sha256, ME.sign(statement))


@cheat(SIGN, "the signature doesn't cover these sets")
def a_signature_over_other_sets(attempt: Attempt, honest: ConsistencySignature) -> ConsistencySignature:
    u1 = frozenset(attempt.cohort.u1)
    return ConsistencySignature(ME.sign(attempt.cohort.statement((u1, u1 - {0}))))


@cheat(UNMASK, "there must be one entry for each dealer of u2 it holds from", CRASHES)
def an_entry_too_few(attempt: Attempt, honest: UnmaskingReply) -> UnmaskingReply:
    return UnmaskingReply(honest.shares[:-1])


@cheat(UNMASK, "the wrong kind of share", ANOTHER_CHECK)
def the_other_kind_of_share(attempt: Attempt, honest: UnmaskingReply) -> UnmaskingReply:
    return UnmaskingReply((attempt.cohort.held[BAD][0].mask_key, *honest.shares[1:]))


@cheat(UNMASK, "has another length", CRASHES)
def a_share_of_15_symbols(attempt: Attempt, honest: UnmaskingReply) -> UnmaskingReply:
    return UnmaskingReply((replace(honest.shares[0], share=honest.shares[0].share[:30]), *honest.shares[1:]))


@cheat(UNMASK, "has another length", CRASHES)
def a_short_salt(attempt: Attempt, honest: UnmaskingReply) -> UnmaskingReply:
    return UnmaskingReply((replace(honest.shares[0], salt=honest.shares[0].salt[:15]), *honest.shares[1:]))


@cheat(UNMASK, "doesn't match the commitment", BLAMED)
def a_wrong_share(attempt: Attempt, honest: UnmaskingReply) -> UnmaskingReply:
    share = flip(honest.shares[0].share)
    return UnmaskingReply((replace(honest.shares[0], share=share), *honest.shares[1:]))


@cheat(UNMASK, "has a symbol outside the field", CRASHES)
def a_share_outside_the_field(attempt: Attempt, honest: UnmaskingReply) -> UnmaskingReply:
    """It committed to this share of its own secret when it dealt (see `attempt_with`), so the commitment fits."""
    assert symbols_of(honest.shares[BAD]).max() == PRIME
    return honest


def own_share_outside_the_field(shares: NDArray[np.uint16]) -> None:
    shares[BAD] = PRIME


def attempt_with(name: str, server: Side = SERVER) -> Attempt:
    """One cheats, early among the others, so that what it sends would be used."""
    one = CHEATS[name]
    attempt = Attempt(CONFIG, Script(order={ADVERTISE: [0, BAD, *sorted(set(range(9)) - {0, BAD})]}), server=server)
    attempt.tamper = {(one.phase, BAD): lambda honest: one.change(attempt, honest)}
    if name == "a_share_outside_the_field":
        attempt.tamper[SHARE, BAD] = lambda honest: crooked_shares(attempt, BAD, own_share_outside_the_field)
    return attempt


@pytest.mark.parametrize("name", CHEATS)
def test_cheat_is_refused_and_the_others_are_summed(name: str) -> None:
    attempt = attempt_with(name)
    completed = attempt.run()
    refused = attempt.refused
    assert [type(error) for error in refused] == [InvalidMessage]
    assert (refused[0].phase, refused[0].sender) == (CHEATS[name].phase, BAD)
    assert CHEATS[name].check in str(refused[0])
    assert not attempt.misbehaved
    assert not completed.cheats
    assert (BAD in completed.u3) == (CHEATS[name].phase in (SIGN, UNMASK))
    np.testing.assert_array_equal(completed.total, sum_of(completed.u3, CONFIG.parameters))


@pytest.mark.parametrize("name", CHEATS)
def test_cheat_on_a_naive_coordinator(name: str) -> None:
    attempt = attempt_with(name, SERVER.without(CHEATS[name].check))
    match CHEATS[name].naive:
        case "no sum or a wrong one":
            try:
                total = attempt.run().total
            except ProtocolError:
                return
            assert (total != sum_of(attempt.u3, CONFIG.parameters)).any()
        case "somebody else is blamed":
            assert attempt.run().cheats.keys() == {0}
        case "the coordinator crashes":
            with pytest.raises((ValueError, IndexError, KeyError)):
                attempt.run()
        case "another check":
            attempt.run()
            assert len(attempt.refused) == 1
        case "an honest participant leaves and accuses the coordinator":
            attempt.run()
            assert attempt.misbehaved.keys() == {0}
        case "taken":
            attempt.run()
            assert not attempt.refused


def test_every_check_of_the_coordinator_has_its_cheat() -> None:
    """The one that isn't in the list passes on what packing says; see the next test."""
    checks = SERVER.refusals("InvalidMessage")
    without = [text for text in checks if not any(one.check in text.replace("\\", "") for one in CHEATS.values())]
    assert len(without) == 1
    assert "str(error)" in without[0]


def test_unused_bits_of_an_upload_must_be_zero() -> None:
    config = make_config(9, bits=3, dim=3)
    attempt = Attempt(config)

    def change(honest: MaskedInput) -> MaskedInput:
        return uploads(attempt, honest.packed[:-1] + bytes([honest.packed[-1] | 0x80]))

    attempt.tamper = {(MASK, BAD): change}
    completed = attempt.run()
    assert ["unused bits" in str(error) for error in attempt.refused] == [True]
    np.testing.assert_array_equal(completed.total, sum_of(set(range(9)) - {BAD}, config.parameters))


# ---------------------------------------------------------------- without signatures over the sets


@pytest.mark.parametrize("adversary", [CURIOUS, SEMI_MALICIOUS])
def test_signatures_are_left_out_where_the_plan_asks_for_none(adversary: str) -> None:
    config = make_config(9, min_survivors=7, quorum=7, adversary=adversary)
    attempt = Attempt(config, Script(up={(MASK, BAD): "lose"}))
    completed = attempt.run()
    assert not attempt.misbehaved
    assert not [phase for phase, _ in attempt.sent if phase == SIGN]
    assert completed.u3 == completed.u4 == frozenset(range(9)) - {BAD}
    np.testing.assert_array_equal(completed.total, sum_of(completed.u3, config.parameters))


def test_signatures_are_not_left_out_where_the_plan_asks_for_them() -> None:
    phase, _ = reach(SIGN)
    before = freeze(phase)
    with pytest.raises(ProtocolError, match="reveal nothing without signatures"):
        phase.without_signatures()
    assert freeze(phase) == before
    naive = SERVER.without("reveal nothing without signatures").ConsistencyCheck.without_signatures(phase)
    assert naive.u4 == phase.u3


def test_without_signatures_the_phase_is_over() -> None:
    attempt = Attempt(make_config(9, min_survivors=7, quorum=7, adversary=CURIOUS))
    for who, message in attempt.up_to(MASK).items():
        attempt.coordinator.receive(who, message)
    phase, _ = attempt.coordinator.close()
    phase.without_signatures()
    with pytest.raises(ProtocolError, match="closed before"):
        phase.without_signatures()


# ---------------------------------------------------------------- phases by themselves


def reach(name: str) -> tuple[Any, dict[int, Any]]:
    """A phase of the coordinator, before which participant 8 leaves, and what the others would send."""
    fates = {(PHASES[PHASES.index(name) - 1], 8): "lose"} if name != ADVERTISE else {}
    attempt = Attempt(CONFIG, Script(up=fates))
    messages = attempt.up_to(name)
    return attempt.coordinator, messages


@pytest.mark.parametrize("check", ["{self.name}: this phase was closed", "{UNMASKING}: this phase was closed"])
def test_without_its_check_a_phase_is_closed_twice(check: str) -> None:
    """Every attempt of these tests tries that of every phase."""
    with pytest.raises((AssertionError, KeyError, IndexError)):
        Attempt(CONFIG, server=SERVER.without(check)).run()


def test_a_message_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And without the check an upload would count twice."""
    phase, messages = reach(MASK)
    upload = messages[0]
    phase.receive(0, upload)
    with pytest.raises(UnexpectedMessage):
        phase.receive(0, upload)
    once = phase._accumulator.copy()
    monkeypatch.setattr(ServerPhase, "_take", lambda self, sender, expected: None)
    phase.receive(0, upload)
    np.testing.assert_array_equal(phase._accumulator, once * 2)


@pytest.mark.parametrize("name", PHASES[:2])
def test_one_that_leaves_before_the_phase_ends_is_left_out(name: str) -> None:
    phase, messages = reach(name)
    for who in range(8):
        phase.receive(who, messages[who])
    phase.drop(5)
    phase.drop(77)
    following, _ = phase.close()
    left = following.cohort.u1 if name == ADVERTISE else following.u2
    assert set(left) == set(range(8)) - {5}
    before = freeze(following)
    phase.drop(6)
    assert freeze(following) == before


def test_whoever_left_may_advertise_the_same_keys_again() -> None:
    phase, messages = reach(ADVERTISE)
    phase.receive(0, messages[0])
    phase.drop(0)
    phase.receive(0, messages[0])
    assert phase.received == {0}
