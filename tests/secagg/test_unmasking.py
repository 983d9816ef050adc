"""The end of an attempt at the coordinator: dealers that starve it, and shares that don't fit together.

The replies themselves, secrets that are not those of the dealer, and false noise seeds are among the test vectors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from multiprocessing import get_context
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from secagg import opening
from secagg.context import RoundConfig
from secagg.errors import ProtocolError, ReconstructionFailed, TooFewClients
from secagg.keys import AgreementKey
from secagg.messages import PHASES, Advertisement, MaskKeyShare, SealedShares, SelfMaskSeedShare, UnmaskingReply
from secagg.opening import OpeningTask
from secagg.parallel import Parallel
from secagg.parameters import HYBRID
from secagg.server_unmasking import Completed
from secagg.shamir import PRIME
from tests.secagg.cheating_participants import signed_keys
from tests.secagg.test_server_phases import BAD, CONFIG
from tests.support.attempts_in_memory import Attempt, Script, make_config, start_cohort, sum_of
from tests.support.crooked_dealings import crooked_shares
from tests.support.naive_variants import SERVER, Side
from tests.support.small_rings import safe_rings

ADVERTISE, SHARE, MASK, SIGN, UNMASK = PHASES


def dealing_with(
    change: Callable[[NDArray[np.uint16]], None], lost: tuple[int, ...] = (), config: RoundConfig = CONFIG
) -> Attempt:
    """An attempt in which BAD deals shares that were changed before it committed to them, and some send no input."""
    attempt = Attempt(config, Script(up={(MASK, who): "lose" for who in lost}))
    attempt.tamper = {(SHARE, BAD): lambda honest: crooked_shares(attempt, BAD, change)}
    return attempt


# ---------------------------------------------------------------- dealers that starve the holders


def rubbish_for(receivers: Iterable[int]) -> Callable[[SealedShares], SealedShares]:
    """What BAD sealed for these can't be opened."""
    neighbours = [one for one in range(9) if one != BAD]
    spoilt = {neighbours.index(one) for one in receivers}

    def change(honest: SealedShares) -> SealedShares:
        sealed = (bytes(112) if at in spoilt else one for at, one in enumerate(honest.ciphertexts))
        return replace(honest, ciphertexts=tuple(sealed))

    return change


@pytest.mark.parametrize(("without", "replies", "named"), [(2, 7, False), (3, 8, True)])
def test_a_dealer_is_named_when_more_holders_lack_shares_than_can_lie(without: int, replies: int, named: bool) -> None:
    """The threshold is 6; both times there are 5 shares of its seed."""
    attempt = Attempt(CONFIG, Script(deadline={UNMASK: replies}), tamper={(SHARE, BAD): rubbish_for(range(without))})
    with pytest.raises(ReconstructionFailed if named else TooFewClients) as caught:
        attempt.run()
    if named:
        assert set(caught.value.culprits) == {BAD}
        naive = Attempt(CONFIG, attempt.script, server=SERVER.without("if named:"), tamper=attempt.tamper)
        with pytest.raises(TooFewClients):
            naive.run()
    else:
        assert (caught.value.phase, caught.value.received, caught.value.needed) == (UNMASK, 5, 6)


@pytest.mark.parametrize("server", [SERVER, SERVER.changed("> liars", ">= liars")], ids=["real", "naive"])
def test_two_lying_holders_can_not_have_an_honest_dealer_named(server: Side) -> None:
    """They say that they have no share of dealer 4, and two others are late."""

    def lie(honest: UnmaskingReply) -> UnmaskingReply:
        return UnmaskingReply((*honest.shares[:4], None, *honest.shares[5:]))

    attempt = Attempt(
        CONFIG, Script(deadline={UNMASK: 7}), server=server, tamper={(UNMASK, one): lie for one in (0, 1)}
    )
    with pytest.raises(TooFewClients if server is SERVER else ReconstructionFailed) as caught:
        attempt.run()
    assert getattr(caught.value, "culprits", {}).keys() == (set() if server is SERVER else {4})


def ended(replies: int, *spoilt: int, server: Side = SERVER) -> tuple[Any, Completed | None]:
    script = Script(deadline={UNMASK: replies})
    attempt = Attempt(CONFIG, script, server=server, tamper={(SHARE, BAD): rubbish_for(spoilt)} if spoilt else {})
    completed = None
    with contextlib.suppress(TooFewClients):
        completed = attempt.run()
    return attempt.coordinator, completed


@pytest.mark.parametrize(
    ("replies", "spoilt", "starved"),
    [
        (5, (), set()),  # no reports: the others are gone
        (1, (), set()),
        (5, (0,), set()),  # with the share that is missing there would be five
        (5, (0, 1), set()),
        (6, (0,), {BAD}),  # with it there would be six
        (7, (0, 1), {BAD}),
    ],
)
def test_a_dealer_starves_an_attempt_by_reports_alone(replies: int, spoilt: tuple[int, ...], starved: set[int]) -> None:
    phase, opened = ended(replies, *spoilt)
    assert opened is None
    assert phase.starved == starved
    assert phase.conflicts == ({BAD: set(spoilt)} if spoilt else {})


def test_where_the_sum_opens_no_dealer_starved_it_and_conflicts_stay() -> None:
    """Asked after its shares were let go of, the phase once failed over any report: one holder could end a study."""
    phase, opened = ended(9, 0, 1)
    assert opened is not None
    assert phase.starved == frozenset()
    assert phase.conflicts == {BAD: {0, 1}}


def test_dropouts_alone_would_set_everybody_aside_by_a_naive_rule() -> None:
    naive = SERVER.changed("self.needed <= number + len(self._without.get(dealer, ()))", "True")
    assert ended(5, server=naive)[0].starved == set(range(9))
    assert ended(5)[0].starved == set()


# ---------------------------------------------------------------- shares that don't fit together


def wrong_for(*holders: int) -> Callable[[NDArray[np.uint16]], None]:
    """Some of the shares that a dealer seals and commits to lie beside the polynomial."""

    def change(shares: NDArray[np.uint16]) -> None:
        for holder in holders:
            shares[holder] = (shares[holder].astype(int) + 1 + holder) % PRIME

    return change


@pytest.mark.parametrize("dropped", [False, True], ids=["seed", "mask key"])
def test_inconsistent_shares_are_told_from_the_others_once_enough_came(dropped: bool) -> None:
    """Threshold 6: with 6 or 7 shares one wrong one is only seen, with 8 it is found. Until then the phase is open."""
    attempt = dealing_with(wrong_for(1), (BAD,) if dropped else ())
    replies, phase = attempt.up_to(UNMASK), attempt.coordinator
    order = [who for who in range(9) if who in replies]
    for who in order[:6]:
        phase.receive(who, replies[who])
    for who in order[6:8]:
        with pytest.raises(ReconstructionFailed) as caught:
            phase.close()
        assert set(caught.value.culprits) == {BAD}
        phase.receive(who, replies[who])
    completed = phase.close()
    assert completed.cheats == {BAD: "1 of the shares it committed to don't fit the others"}
    np.testing.assert_array_equal(completed.total, sum_of(completed.u3, CONFIG.parameters))
    assert (BAD in completed.u3) != dropped
    with pytest.raises(ProtocolError, match="closed before"):
        phase.close()


def test_inconsistent_shares_that_are_not_used_are_not_looked_for() -> None:
    """The first six rebuild what the dealer committed to; the others do no harm."""
    completed = dealing_with(wrong_for(7, 8)).run()
    assert not completed.cheats
    np.testing.assert_array_equal(completed.total, sum_of(range(9), CONFIG.parameters))


@pytest.mark.parametrize("crooked", [True, False], ids=["inconsistent shares", "hybrid keys"])
def test_a_sum_has_the_same_bits_however_its_opening_is_divided(crooked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among threads, and among processes, to which tasks travel; one participant has left after it dealt."""
    monkeypatch.setattr(opening, "_WORTH_A_TASK", 1)
    attempt = dealing_with(wrong_for(1), (0,), make_config(9, dim=300))
    if not crooked:
        attempt = Attempt(make_config(9, dim=300, key_agreement=HYBRID), Script(up={(MASK, 0): "lose"}))
    for who, reply in attempt.up_to(UNMASK).items():
        attempt.coordinator.receive(who, reply)
    found, divided = [copy(attempt.coordinator).close()], []

    def counted(function: Any, parts: list[OpeningTask]) -> Any:
        divided.append(len(parts))
        return pool.map(function, parts)

    for pool, width in ((ThreadPoolExecutor(3), 3), (ProcessPoolExecutor(2, get_context("spawn")), 99)):
        with pool:
            found.append(copy(attempt.coordinator).close(Parallel(counted, width)))
    assert divided == [3, 9]
    for one in found:
        assert one.cheats.keys() == ({BAD} if crooked else set())
        np.testing.assert_array_equal(one.total, sum_of(range(1, 9), attempt.config.parameters))


def test_what_is_little_work_is_not_divided() -> None:
    attempt = dealing_with(wrong_for(1))
    for who, reply in attempt.up_to(UNMASK).items():
        attempt.coordinator.receive(who, reply)
    attempt.coordinator.close(Parallel(lambda *_: pytest.fail("divided"), 4))


RING = make_config(10, min_survivors=7, rings=safe_rings(10, 7))


def test_on_a_ring_no_member_is_left_with_too_few_neighbours_in_u2() -> None:
    """Two of six neighbours of 0 never deal, so that four are left. It would refuse to mask, and is not asked to."""
    gone = start_cohort(RING).graph.neighbours(0)[:2]
    script = Script(order={SHARE: [*(who for who in range(10) if who not in gone), *gone]}, deadline={SHARE: 8})
    attempt = Attempt(RING, script)
    with pytest.raises(TooFewClients) as caught:
        attempt.run()
    assert (caught.value.phase, caught.value.received, caught.value.needed) == (SHARE, 4, 5)
    assert not attempt.misbehaved
    attempt.coordinator.receive(gone[0], attempt.sent[SHARE, gone[0]])
    following, _ = attempt.coordinator.close()
    assert len(following.u2) == 9

    naive = Attempt(RING, script, server=SERVER.without("fewest < graph.threshold"))
    with pytest.raises(TooFewClients, match=MASK):
        naive.run()
    assert "4 neighbours in u2, 5 needed" in str(naive.misbehaved[0])


def test_kinds_of_shares_differ_by_type_and_not_by_content() -> None:
    share, salt = bytes(32), bytes(16)
    assert MaskKeyShare(share, salt) != SelfMaskSeedShare(share, salt)


@pytest.mark.parametrize("stays", [False, True])
def test_a_key_of_the_same_point_in_other_bytes_is_no_shortcut(stays: bool) -> None:
    """X25519 ignores the top bit: a copied key with that bit set passes as another key.

    Its owner still can't open what is sealed for it, and its mask key can't be rebuilt. If it stays, its masks don't
    cancel: the sum is as wrong as with a false input.
    """
    fates = {} if stays else {(MASK, BAD): "lose"}
    attempt = Attempt(CONFIG, Script(order={ADVERTISE: [0, BAD, 1, 2, 4, 5, 6, 7, 8]}, up=fates))

    def copied(honest: Advertisement) -> Advertisement:
        theirs = attempt.sent[ADVERTISE, 0].mask_key
        advertisement = signed_keys(CONFIG, BAD, theirs[:31] + bytes([theirs[31] ^ 0x80]), honest.channel_key)
        attempt.phases[BAD]._advertisement = advertisement
        return advertisement

    attempt.tamper = {(ADVERTISE, BAD): copied}
    if stays:
        completed = attempt.run()
        assert completed.u3 == frozenset(range(9))
        assert (completed.total != sum_of(range(9), CONFIG.parameters)).any()
        assert not any(attempt.cohort.opens({one}) for one in range(9))
        return
    key = AgreementKey(b"k" * 32)
    with pytest.raises(ReconstructionFailed, match="another mask key") as caught:
        attempt.run()
    assert set(caught.value.culprits) == {BAD}
    mine = attempt.cohort.advertisements
    assert key.agree(mine[0].mask_key) == key.agree(mine[BAD].mask_key)
