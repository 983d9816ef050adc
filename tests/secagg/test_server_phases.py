"""The coordinator's phases by themselves; tests/adversary has the participants that cheat."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from secagg.context import set_of
from secagg.errors import ProtocolError
from secagg.keys import advertisement_statement, upload_statement
from secagg.messages import PHASES, Advertisement, MaskedInput
from secagg.sharing import CURIOUS, SEMI_MALICIOUS
from tests.support.attempts_in_memory import Attempt, Script, freeze, identities, make_config, sum_of
from tests.support.naive_variants import SERVER

ADVERTISE, SHARE, MASK, SIGN, UNMASK = PHASES
BAD = 3  # the cheater, in a cohort of 9
CONFIG = make_config(9, min_survivors=7, quorum=7)
ME = identities(9)[BAD]


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
