"""Whole attempts on a bad network: the sum is that of u3 or the attempt aborts, and no other sum opens.

test_state_machines.py has random ones.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from secagg.errors import TooFewClients
from secagg.messages import MASK_KEY, PHASES, SELF_MASK_SEED
from secagg.server_unmasking import Completed
from tests.secagg.cheating_participants import forge
from tests.support.attempts_in_memory import LATE, LOSE, Attempt, Script, make_config, sum_of, surplus_parts


def check(attempt: Attempt, completed: Completed | None, colluders: frozenset[int]) -> None:
    """The oracle. It knows every share that any participant revealed, and all that the colluders hold."""
    parameters = attempt.config.parameters
    if completed is not None:
        assert completed.u3 == attempt.u3
        assert len(completed.u3) >= parameters.min_survivors
        assert completed.total.dtype == sum_of(completed.u3, parameters).dtype
        np.testing.assert_array_equal(completed.total, sum_of(completed.u3, parameters))
        surplus = surplus_parts(parameters, len(completed.u3))
        assert completed.noise_seeds.keys() == completed.u5
        assert {len(seeds) for seeds in completed.noise_seeds.values()} == {len(surplus)}
    cohort = attempt.cohort
    if cohort is None:
        return  # without dealings there is nothing to reveal
    for parts in cohort.noise_parts.values():
        assert parts == surplus_parts(parameters, len(attempt.u3))
    cohort.colluders = colluders
    cohort.mask_keys = {who: attempt.mask_keys[who] for who in colluders}
    for dealer in set(cohort.u1) - colluders:
        assert not cohort.both_secrets(dealer)
        if cohort.secret(dealer, SELF_MASK_SEED) is not None:
            assert dealer in attempt.u3
            assert len(attempt.u3) >= parameters.min_survivors
        if cohort.secret(dealer, MASK_KEY) is not None:
            assert attempt.u3
            assert dealer not in attempt.u3
    if completed is not None:
        assert cohort.opens(completed.u3)
    # No other choice of honest inputs: neither one alone, nor all but one.
    honest = frozenset(cohort.uploads) - colluders
    others = {frozenset({one}) for one in honest} | {attempt.u3 - colluders - {one} for one in honest}
    for chosen in others - {frozenset(), attempt.u3 - colluders}:
        assert not cohort.opens(chosen)
        assert not cohort.opens(chosen | (attempt.u3 & colluders))


@pytest.mark.parametrize("bits", range(1, 63))
def test_every_width_with_a_dropout_in_every_phase(bits: int) -> None:
    config = make_config(9, min_survivors=6, quorum=7, bits=bits, dim=bits % 7 + 1, released=(5, 0, 1, 3))
    fates = {(PHASES[at], at): LOSE for at in (0, 1, 2)}
    attempt = Attempt(config, Script(up=fates))
    completed = attempt.run()
    assert completed.u3 == frozenset(range(3, 9))
    assert completed.u5 == attempt.cohort.noise_parts.keys()
    check(attempt, completed, frozenset({7, 8}))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fate", [LOSE, LATE, "forged"])
def test_one_too_many_missing_is_a_clean_abort_in_every_phase(phase: str, fate: str) -> None:
    config = make_config(7, min_survivors=6, quorum=6, released=(1, 6))
    missing = {"ConsistencyCheck": 3, "Unmasking": 3}.get(phase, 2)
    those = [(phase, who) for who in range(missing)]
    attempt = Attempt(config, Script(up=dict.fromkeys(those, fate)))
    if fate == "forged":
        attempt = Attempt(config, tamper=dict.fromkeys(those, lambda honest: forge(honest, 0, 0)))
    with pytest.raises(TooFewClients) as caught:
        attempt.run()
    assert len(attempt.refused) == (missing if fate == "forged" else 0)
    assert caught.value.phase == phase
    assert caught.value.received == caught.value.needed - 1
    # Nothing is revealed before enough have signed.
    assert phase == "Unmasking" or attempt.cohort is None or not attempt.cohort.noise_parts
    check(attempt, None, frozenset({5, 6}))


@pytest.mark.parametrize("phase", PHASES)
def test_as_many_missing_as_the_plan_allows_is_no_abort(phase: str) -> None:
    config = make_config(7, min_survivors=6, quorum=6, released=(1, 6))
    missing = {"ConsistencyCheck": 2, "Unmasking": 2}.get(phase, 1)
    attempt = Attempt(config, Script(up={(phase, who): LOSE for who in range(missing)}))
    check(attempt, attempt.run(), frozenset({5, 6}))


def test_an_abort_reveals_no_secret_to_any_two_colluders() -> None:
    """Shares that were revealed before too few answered open nothing that the sum of u3 would not open."""
    config = make_config(7, min_survivors=6, quorum=6)
    attempt = Attempt(config, Script(up={("Unmasking", who): LOSE for who in (0, 1, 2)}, down={("Unmasking", 3): LOSE}))
    with pytest.raises(TooFewClients):
        attempt.run()
    for colluders in combinations(range(7), 2):
        check(attempt, None, frozenset(colluders))


def test_participants_are_named_by_position_in_the_roster() -> None:
    """Positions in u1, which fix the points of the shares, differ from positions in the roster."""
    config = make_config(9)
    attempt = Attempt(config, Script(up={("AdvertiseKeys", who): LOSE for who in (0, 3, 7)}))
    completed = attempt.run()
    assert completed.u3 == {1, 2, 4, 5, 6, 8}
    check(attempt, completed, frozenset({1, 8}))
