"""The end of an attempt on both sides: one kind of share of each dealer, checked secrets, and a dealer that cheats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attempts_in_memory import Attempt, Script, crooked_shares, identities, make_config, sum_of
from numpy.typing import NDArray

from secagg.errors import ProtocolError, ReconstructionFailed, TooFewClients
from secagg.keys import AgreementKey, advertisement_statement
from secagg.messages import PHASES, Advertisement, MaskKeyShare, SealedShares, SelfMaskSeedShare
from secagg.shamir import PRIME

ADVERTISE, SHARE, MASK, SIGN, UNMASK = PHASES
BAD = 3
CONFIG = make_config(9, min_survivors=7, quorum=7)
ME = identities(9)[BAD]


def advertises(mask_key: bytes, channel_key: bytes) -> Advertisement:
    statement = advertisement_statement(CONFIG.round_context(), ME.public, mask_key, channel_key)
    return Advertisement(mask_key, channel_key, ME.sign(statement))


def another_secret(shares: NDArray[np.uint16]) -> None:
    shares[:] = (shares.astype(int) + 1) % PRIME  # shares of the secret plus one


@pytest.mark.parametrize("dropped", [(), (0,), (0, 8)])
def test_a_reply_has_seeds_of_survivors_and_mask_keys_of_dropouts(dropped: tuple[int, ...]) -> None:
    attempt = Attempt(CONFIG, Script(up={(MASK, who): "lose" for who in dropped}))
    completed = attempt.run()
    assert completed.u3 == frozenset(range(9)) - set(dropped)
    replies = [message for (phase, _), message in attempt.sent.items() if phase == UNMASK]
    assert len(replies) == 9 - len(dropped)
    for reply in replies:
        kinds = [type(share) for share in reply.shares]
        assert kinds == [MaskKeyShare if dealer in dropped else SelfMaskSeedShare for dealer in range(9)]


def test_who_dropped_out_before_dealing_is_in_no_reply() -> None:
    attempt = Attempt(CONFIG, Script(up={(ADVERTISE, 0): "lose", (SHARE, 4): "lose"}))
    attempt.run()
    replies = [message for (phase, _), message in attempt.sent.items() if phase == UNMASK]
    assert {len(reply.shares) for reply in replies} == {7}


def test_the_sets_of_a_finished_attempt() -> None:
    """One leaves in each phase from the second on; u4 and u5 need not be all of u3."""
    config = make_config(11)
    attempt = Attempt(config, Script(up={(name, at): "lose" for at, name in enumerate(PHASES) if name != ADVERTISE}))
    completed = attempt.run()
    assert completed.u3 == {0, 3, 4, 5, 6, 7, 8, 9, 10}
    assert completed.u4 == {0, 4, 5, 6, 7, 8, 9, 10}
    assert completed.u5 == {0, 5, 6, 7, 8, 9, 10}
    np.testing.assert_array_equal(completed.total, sum_of(completed.u3, config.parameters))


def test_it_ends_once_and_needs_no_more_than_the_threshold() -> None:
    attempt = Attempt(CONFIG, Script(deadline={UNMASK: 6}))
    completed = attempt.run()
    assert len(completed.u5) == CONFIG.parameters.threshold(9) == 6
    with pytest.raises(ProtocolError, match="closed before"):
        attempt.server_phase.close()


def test_the_dealer_of_a_wrong_seed_is_named() -> None:
    attempt = Attempt(CONFIG)
    attempt.tamper = {(SHARE, BAD): lambda honest: crooked_shares(attempt, BAD, another_secret)}
    with pytest.raises(ReconstructionFailed, match="another self-mask seed") as caught:
        attempt.run()
    assert set(caught.value.culprits) == {BAD}


def test_the_dealer_of_a_wrong_mask_key_is_named() -> None:
    attempt = Attempt(CONFIG, Script(up={(MASK, BAD): "lose"}))
    attempt.tamper = {(SHARE, BAD): lambda honest: crooked_shares(attempt, BAD, another_secret)}
    with pytest.raises(ReconstructionFailed, match="another mask key") as caught:
        attempt.run()
    assert set(caught.value.culprits) == {BAD}


def test_a_crooked_dealing_with_nothing_wrong_is_taken() -> None:
    """So that the two tests above fail for the reason they give."""
    attempt = Attempt(CONFIG)
    attempt.tamper = {(SHARE, BAD): lambda honest: crooked_shares(attempt, BAD, lambda shares: None)}
    np.testing.assert_array_equal(attempt.run().total, sum_of(range(9), CONFIG.parameters))


def test_a_dealer_that_starves_the_holders_can_only_abort() -> None:
    """Rubbish in place of most ciphertexts: too few shares of its seed come together. Nothing opens."""
    attempt = Attempt(CONFIG)

    def change(honest: SealedShares) -> SealedShares:
        return replace(honest, ciphertexts=tuple(bytes(112) for _ in honest.ciphertexts))

    attempt.tamper = {(SHARE, BAD): change}
    with pytest.raises(TooFewClients) as caught:
        attempt.run()
    assert (caught.value.phase, caught.value.received) == (UNMASK, 1)
    assert not attempt.cohort.opens(range(9))


def test_shares_of_a_kind_are_told_apart_by_type_and_not_by_content() -> None:
    share, salt = np.zeros(16, np.uint16), bytes(16)
    assert MaskKeyShare(share, salt) != SelfMaskSeedShare(share, salt)


def test_a_key_of_the_same_point_in_other_bytes_is_no_shortcut() -> None:
    """X25519 ignores the top bit. A copied key with that bit set passes as another one; its owner still can't open
    what is sealed for it, and its mask key can't be rebuilt from what it shares.
    """
    attempt = Attempt(CONFIG, Script(order={ADVERTISE: [0, BAD, 1, 2, 4, 5, 6, 7, 8]}, up={(MASK, BAD): "lose"}))

    def copied(honest: Advertisement) -> Advertisement:
        theirs = attempt.sent[ADVERTISE, 0].mask_key
        advertisement = advertises(theirs[:31] + bytes([theirs[31] ^ 0x80]), honest.channel_key)
        attempt.phases[BAD]._advertisement = advertisement
        return advertisement

    attempt.tamper = {(ADVERTISE, BAD): copied}
    key = AgreementKey(b"k" * 32)
    with pytest.raises(ReconstructionFailed, match="another mask key") as caught:
        attempt.run()
    assert set(caught.value.culprits) == {BAD}
    mine = attempt.cohort.advertisements
    assert key.agree(mine[0].mask_key) == key.agree(mine[BAD].mask_key)
