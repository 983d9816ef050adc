"""Cheating participants against the real coordinator: each is refused, and the sum of the others comes out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from secagg.context import set_of
from secagg.errors import InvalidMessage, ProtocolError, UnexpectedMessage
from secagg.keys import advertisement_statement, upload_statement
from secagg.messages import PHASES, Advertisement, MaskedInput, UnmaskingReply
from secagg.server_cohort import ServerPhase
from secagg.sharing import CURIOUS, SEMI_MALICIOUS
from tests.adversary.script import PARTICIPANT, checks_of
from tests.support.attempts_in_memory import Attempt, Script, flip, freeze, identities, make_config, sum_of
from tests.support.naive_variants import SERVER, Side

ADVERTISE, SHARE, MASK, SIGN, UNMASK = PHASES
BAD = 3  # the cheater, in a cohort of 9
CONFIG = make_config(9, min_survivors=7, quorum=7)
ME = identities(9)[BAD]

RUINED, CRASHES, TAKEN, ANOTHER_CHECK = "no sum or a wrong one", "the coordinator crashes", "taken", "another check"
BLAMED, ACCUSED = "somebody else is blamed", "an honest participant leaves and accuses the coordinator"


Change = Callable[[Attempt, Any], Any]  # (attempt, honest message) -> dishonest message


def advertises(mask_key: bytes, channel_key: bytes, attempt: int = 1, signer: int = BAD) -> Advertisement:
    """Any keys, signed for any attempt by anybody."""
    context = replace(CONFIG, attempt=attempt).round_context()
    statement = advertisement_statement(context, ME.public, mask_key, channel_key)
    return Advertisement(mask_key, channel_key, identities(9)[signer].sign(statement))


def uploads(attempt: Attempt, packed: bytes, left_out: frozenset[int] = frozenset()) -> MaskedInput:
    """Any bytes, signed as masked in u2 or without some of it."""
    sha256, context, u2 = hashlib.sha256(packed).digest(), attempt.cohort.context, attempt.coordinator.u2 - left_out
    statement = upload_statement(context, ME.public, sha256, set_of(attempt.config, context, "u2", u2))
    return MaskedInput(packed, sha256, ME.sign(statement))


# One for each thing that a coordinator without the check may do; tests/adversary has one for each check, over gRPC.
# Phase, the check that must find it (part of its source, unique in the coordinator's modules), what happens without
# that check -> dishonest messages.
CHEATS_BY_CHECK: dict[tuple[str, str, str], dict[str, Change]] = {
    (ADVERTISE, "a public key was advertised before", RUINED): {
        "the_key_of_another": lambda attempt, honest: advertises(
            attempt.sent[ADVERTISE, 0].mask_key, honest.channel_key
        )
    },
    (ADVERTISE, "the keys are not signed by the participant's identity", RUINED): {
        "keys_signed_for_another_attempt": lambda attempt, honest: advertises(honest.mask_key, honest.channel_key, 2)
    },
    (SHARE, "shares must go to exactly the neighbours", CRASHES): {
        "a_share_too_few": lambda attempt, honest: replace(honest, ciphertexts=honest.ciphertexts[:-1])
    },
    (SHARE, "the commitments are not signed by the participant's identity", ACCUSED): {
        "commitments_changed_after_signing": lambda attempt, honest: replace(
            honest, leaves=(flip(honest.leaves[0]), *honest.leaves[1:])
        )
    },
    (MASK, "the upload is not signed by the participant's identity", TAKEN): {
        # On a ring its neighbours will ask which u2 it was masked in, and refuse.
        "an_upload_that_says_another_u2": lambda attempt, honest: uploads(attempt, honest.packed, frozenset({0}))
    },
    (MASK, "the upload has", ANOTHER_CHECK): {
        "an_upload_that_is_too_long": lambda attempt, honest: uploads(attempt, honest.packed + b"\x00")
    },
    (UNMASK, "doesn't match the commitment", BLAMED): {
        "a_wrong_share": lambda attempt, honest: UnmaskingReply(
            (replace(honest.shares[0], share=flip(honest.shares[0].share)), *honest.shares[1:])
        )
    },
}


class Cheat(NamedTuple):
    """One dishonest message, the check that must find it, and what happens without that check."""

    phase: str
    check: str
    naive: str
    change: Change


CHEATS = {name: Cheat(*how, change) for how, cheats in CHEATS_BY_CHECK.items() for name, change in cheats.items()}


def attempt_with(name: str, server: Side = SERVER) -> Attempt:
    """One cheats, early among the others, so that what it sends would be used."""
    one = CHEATS[name]
    attempt = Attempt(CONFIG, Script(order={ADVERTISE: [0, BAD, *sorted(set(range(9)) - {0, BAD})]}), server=server)
    attempt.tamper = {(one.phase, BAD): lambda honest: one.change(attempt, honest)}
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
    found = [*(one.check for one in CHEATS.values()), *(one for of in checks_of(PARTICIPANT).values() for one in of)]
    without = [text for text in checks if not any(one in text.replace("\\", "") for one in found)]
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


def test_a_participant_that_left_may_advertise_the_same_keys_again() -> None:
    phase, messages = reach(ADVERTISE)
    phase.receive(0, messages[0])
    phase.drop(0)
    phase.receive(0, messages[0])
    assert phase.received == {0}
