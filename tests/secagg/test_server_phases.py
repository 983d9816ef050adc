"""The coordinator's phases by themselves; tests/adversary and the test vectors have the participants that cheat."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from secagg.errors import ProtocolError
from secagg.messages import PHASES
from secagg.sharing import CURIOUS
from tests.support.attempts_in_memory import Attempt, Script, make_config
from tests.support.comparable import freeze
from tests.support.naive_variants import SERVER

ADVERTISE, SHARE, MASK, SIGN, UNMASK = PHASES
BAD = 3  # the cheater, in a cohort of 9
CONFIG = make_config(9, min_survivors=7, quorum=7)


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


def test_what_makes_the_shares_of_some_has_no_others() -> None:
    """Another process gets it, and the tables of a large cohort are its largest messages."""
    phase, messages = reach(SHARE)
    for who, message in messages.items():
        phase.receive(who, message)
    _, shares = phase.close()
    written = pickle.dumps(shares.only((0, 1)))
    make = pickle.loads(written)
    assert [make(who) for who in (0, 1)] == [shares[who] for who in (0, 1)]
    assert shares[1].shares[0].ciphertext in written
    assert shares[2].shares[0].ciphertext not in written
    with pytest.raises(KeyError):
        make(2)


def test_a_participant_that_left_may_advertise_the_same_keys_again() -> None:
    phase, messages = reach(ADVERTISE)
    phase.receive(0, messages[0])
    phase.drop(0)
    phase.receive(0, messages[0])
    assert phase.received == {0}
