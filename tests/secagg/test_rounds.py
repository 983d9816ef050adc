"""Whole attempts on a bad network: the sum is that of u3 or the attempt aborts, and no other sum opens."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secagg.errors import TooFewClients
from secagg.messages import MASK_KEY, PHASES, SELF_MASK_SEED
from secagg.server_unmasking import Completed
from tests.support.attempts_in_memory import (
    DELIVER,
    GARBLE,
    LATE,
    LEAVE,
    LOSE,
    TWICE,
    Attempt,
    Script,
    make_config,
    sum_of,
)
from tests.support.small_rings import safe_rings


def sizes(smallest: int = 3, largest: int = 8) -> st.SearchStrategy[tuple[int, int, int]]:
    """(cohort, min_survivors, quorum) that the parameters' rule allows."""

    def numbers(cohort: int) -> st.SearchStrategy[tuple[int, int, int]]:
        threshold = (cohort + 2) // 2 + 1
        return st.integers(threshold, cohort).flatmap(
            lambda survivors: st.tuples(st.just(cohort), st.just(survivors), st.integers(survivors, cohort))
        )

    return st.integers(smallest, largest).flatmap(numbers)


@st.composite
def scripts(draw: st.DrawFn, cohort: int) -> Script:
    """Mostly deliveries, so that attempts get far; every other fate anywhere."""
    people = list(range(cohort))
    fates = st.dictionaries(
        st.tuples(st.sampled_from(PHASES), st.sampled_from(people)),
        st.sampled_from([DELIVER, LOSE, TWICE, TWICE, LATE, GARBLE, LEAVE]),
        max_size=3,
    )
    asked = st.dictionaries(
        st.tuples(st.sampled_from(PHASES[1:]), st.sampled_from(people)),
        st.sampled_from([LOSE, TWICE, TWICE]),
        max_size=2,
    )
    order = {name: draw(st.permutations(people)) for name in PHASES}
    deadline = draw(st.dictionaries(st.sampled_from(PHASES), st.integers(cohort - 2, cohort), max_size=2))
    return Script(draw(fates), draw(asked), order, deadline)


def check(attempt: Attempt, completed: Completed | None, colluders: frozenset[int]) -> None:
    """The oracle. It knows every share that any participant revealed, and all that the colluders hold."""
    parameters = attempt.config.parameters
    if completed is not None:
        assert completed.u3 == attempt.u3
        assert len(completed.u3) >= parameters.min_survivors
        assert completed.total.dtype == sum_of(completed.u3, parameters).dtype
        np.testing.assert_array_equal(completed.total, sum_of(completed.u3, parameters))
    cohort = attempt.cohort
    if cohort is None:
        return  # without dealings there is nothing to reveal
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


def play(attempt: Attempt) -> Completed | None:
    try:
        return attempt.run()
    except TooFewClients:
        return None


ends = Counter[str]()


def random_script(data: st.DataObject, numbers: tuple[int, int, int], **others: Any) -> None:
    cohort, min_survivors, quorum = numbers
    config = make_config(cohort, min_survivors=min_survivors, quorum=quorum, **others)
    colluders = data.draw(st.frozensets(st.integers(0, cohort - 1), max_size=2))
    attempt = Attempt(config, data.draw(scripts(cohort)))
    completed = play(attempt)
    assert not attempt.misbehaved, "an honest coordinator was accused"
    check(attempt, completed, colluders)
    if not others.get("rings"):
        ends["aborted" if completed is None else "completed"] += 1


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data(), numbers=sizes(8, 10), bits=st.integers(1, 62))
def test_random_scripts_on_a_ring(data: st.DataObject, numbers: tuple[int, int, int], bits: int) -> None:
    random_script(data, numbers, bits=bits, dim=3, rings=safe_rings(*numbers[:2]))


@settings(max_examples=160, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data(), numbers=sizes(), bits=st.integers(1, 62), dim=st.integers(1, 9))
def test_random_scripts(data: st.DataObject, numbers: tuple[int, int, int], bits: int, dim: int) -> None:
    random_script(data, numbers, bits=bits, dim=dim)


def test_the_random_scripts_saw_both_ends() -> None:
    """A property that only ever saw aborts would prove nothing."""
    if not ends:
        test_random_scripts()
    assert ends["completed"] >= 60
    assert ends["aborted"] >= 30


@pytest.mark.parametrize("bits", range(1, 63))
def test_every_width_with_a_dropout_in_every_phase(bits: int) -> None:
    config = make_config(9, min_survivors=6, quorum=7, bits=bits, dim=bits % 7 + 1)
    fates = {(PHASES[at], at): LOSE for at in (0, 1, 2)}
    attempt = Attempt(config, Script(up=fates))
    completed = attempt.run()
    assert completed.u3 == frozenset(range(3, 9))
    check(attempt, completed, frozenset({7, 8}))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fate", [LOSE, LATE, GARBLE])
def test_one_too_many_missing_is_a_clean_abort_in_every_phase(phase: str, fate: str) -> None:
    config = make_config(7, min_survivors=6, quorum=6)
    missing = {"ConsistencyCheck": 3, "Unmasking": 3}.get(phase, 2)
    attempt = Attempt(config, Script(up={(phase, who): fate for who in range(missing)}))
    with pytest.raises(TooFewClients) as caught:
        attempt.run()
    assert caught.value.phase == phase
    assert caught.value.received == caught.value.needed - 1
    check(attempt, None, frozenset({5, 6}))


@pytest.mark.parametrize("phase", PHASES)
def test_as_many_missing_as_the_plan_allows_is_no_abort(phase: str) -> None:
    config = make_config(7, min_survivors=6, quorum=6)
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
