"""The runner of random scripts: it plays, tells what it played, and says so when something breaks."""

from __future__ import annotations

import pytest

from tests.secagg import random_scripts, test_server_phases, test_unmasking
from tests.secagg.random_scripts import KINDS, attacks_on, play
from tests.support.naive_variants import CLIENT, SERVER


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long
def test_scripts_of_every_kind_are_played_and_explained_claims_held(kind: str) -> None:
    played = play(kind, 3, 6)
    assert not played.broken, played.text
    assert played.scripts >= 6
    assert played.checked.total() > 100
    assert played.seen.total() > 6
    for claim in played.checked:
        assert f"\n    {claim} " in random_scripts.claims()


def test_the_same_seed_plays_the_same_scripts() -> None:
    kind = "lying-ring"
    one, again, other = (play(kind, number, 4) for number in (7, 7, 8))
    assert (one.scripts, one.seen, one.checked) == (again.scripts, again.seen, again.checked)
    assert one.checked != other.checked


def test_a_broken_claim_is_shown_with_its_steps() -> None:
    naive = CLIENT.without("this phase is over for this participant")
    played = play("lying-complete", 1, 50, naive)
    assert played.broken in ("over", "one answer", "one kind", "forged")
    assert "state.begin(" in played.text
    assert "reproduce_failure" in played.text
    assert "--kind lying-complete --seed 1 --scripts 50 --jobs 1" in played.text


@pytest.mark.long
def test_every_check_can_be_taken_out_alone() -> None:
    """Both sides have some; what is left runs, and isn't what there was."""
    checks = random_scripts.checks()
    assert {side for side, _ in checks} == {"participant", "coordinator"}
    assert len(checks) > 50
    for side, check in checks:
        naive = CLIENT.without(check) if side == "participant" else SERVER.without(check)
        assert naive.AdvertiseKeys is not CLIENT.AdvertiseKeys
    named = [check for side, check in checks if attacks_on(side, check)]
    assert len(named) > 50


def test_the_tests_that_are_named_for_a_check_exist() -> None:
    for name in random_scripts.BY_A_TEST.values():
        assert callable(getattr(test_server_phases, name, None) or getattr(test_unmasking, name))
