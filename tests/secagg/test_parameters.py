"""Thresholds and what they refuse."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st

from secagg.errors import InvalidParameters
from secagg.parameters import (
    LOTTERY_FAILURE,
    RoundParameters,
    assumed_colluders,
    colluders_in_cohort,
    complete_graph_threshold,
    default_min_survivors,
    probability_below,
    sharing_colluders,
    signatures_needed,
)

GOOD = RoundParameters(cohort=100, colluders=5, min_survivors=70, quorum=75, bits=16, dim=512)


def test_the_designs_example() -> None:
    """100 participants, 5 collude, 30 % leave."""
    assert assumed_colluders(100, 0.05, 0.3) == 5
    assert complete_graph_threshold(100, 5) == 53
    assert signatures_needed(100, 5) == 53
    survivors = default_min_survivors(100, 5, 0.3)
    assert survivors == 56
    parameters = RoundParameters(cohort=100, colluders=5, min_survivors=survivors, quorum=survivors, bits=16, dim=512)
    assert (parameters.threshold(100), parameters.signatures_needed(100)) == (53, 53)
    assert probability_below(100, 0.3, survivors) == pytest.approx(0.001, rel=0.2)
    assert f"{probability_below(100, 0.3, survivors):.1%}" == "0.1%"
    assert f"{probability_below(100, 0.3, survivors + 1):.1%}" == "0.2%"


@pytest.mark.parametrize(
    ("roster", "adversarial", "dropout", "expected"),
    [
        (100, 0.05, 0.3, 5),
        (100, 0.29, 0.0, 29),  # in binary floating point 0.29 x 100 is a hair below 29
        (64, 0.01, 0.1, 2),  # rounded down it would be 0, which nobody stated
        (64, 0.0, 0.1, 0),
        (63, 0.01, 0.1, 2),
        (10, 0.0, 0.1, 2),
        (10, 0.5, 0.0, 5),
        (10, 0.0, 0.0, 0),  # the published calibration without adversaries
        (1000, 0.0, 0.0, 0),
    ],
)
def test_assumed_colluders(roster: int, adversarial: float, dropout: float, expected: int) -> None:
    assert assumed_colluders(roster, adversarial, dropout) == expected


@pytest.mark.parametrize("wrong", [(0, 0.1, 0.1), (10, -0.1, 0.1), (10, 1.0, 0.1), (10, 0.1, 1.0), (10, math.nan, 0)])
def test_shares_outside_their_range(wrong: tuple[int, float, float]) -> None:
    with pytest.raises(InvalidParameters):
        assumed_colluders(*wrong)


@pytest.mark.parametrize("colluders", [0, 1, 2, 5])
def test_no_two_disjoint_honest_groups_reach_the_threshold(colluders: int) -> None:
    """What both thresholds are for: colluders help both groups, every honest participant at most one."""
    for u1 in range(3, 200):
        corrupt = sharing_colluders(u1, colluders)
        for needed in (complete_graph_threshold(u1, colluders), signatures_needed(u1, colluders)):
            assert 2 * (needed - corrupt) > u1 - corrupt
            assert 2 * (needed - 1) <= u1 + corrupt  # and not more than that asks for


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    cohort=st.integers(2, 200),
    colluders=st.integers(0, 20),
    min_survivors=st.integers(1, 200),
    quorum=st.integers(1, 200),
)
def test_whatever_is_accepted_keeps_the_order(cohort: int, colluders: int, min_survivors: int, quorum: int) -> None:
    try:
        accepted = RoundParameters(
            cohort=cohort, colluders=colluders, min_survivors=min_survivors, quorum=quorum, bits=8, dim=1
        )
    except InvalidParameters:
        return
    assert accepted.threshold(cohort) <= min_survivors <= quorum <= cohort
    for u1 in range(quorum, cohort + 1):
        assert 2 <= accepted.threshold(u1) <= accepted.threshold(cohort)
        assert 2 * accepted.threshold(u1) > u1 + max(colluders, 2 if u1 < 64 else 0)
        assert accepted.signatures_needed(u1) <= min_survivors


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"cohort": 1, "min_survivors": 1, "quorum": 1, "colluders": 0}, "cohort"),
        ({"cohort": 65521}, "cohort"),
        ({"cohort": 69}, "cohort"),
        ({"cohort": 2, "min_survivors": 2, "quorum": 2, "colluders": 0}, "invite at least"),
        ({"colluders": -1}, "colluders"),
        ({"colluders": 100}, "colluders"),
        ({"colluders": 60}, "min_survivors"),
        ({"min_survivors": 52}, "raise min_survivors to 53"),
        ({"min_survivors": 76}, "quorum"),
        ({"quorum": 101}, "quorum"),
        ({"bits": 0}, "bits"),
        ({"bits": 63}, "bits"),
        ({"dim": 0}, "dim"),
        ({"dim": 2**36}, "dim"),
        ({"dim": 4.0}, "dim"),
        ({"bits": True}, "bits"),
        ({"quorum": "75"}, "quorum"),
    ],
)
def test_refusals_name_what_to_change(change: dict[str, object], names: str) -> None:
    with pytest.raises(InvalidParameters, match=names):
        replace(GOOD, **change)


def test_the_longest_mask_that_one_key_may_make() -> None:
    longest = (2**32 - 2) * 16 // 2
    assert replace(GOOD, dim=longest).dim == longest
    with pytest.raises(InvalidParameters):
        replace(GOOD, dim=longest + 1)


@pytest.mark.parametrize(("cohort", "dropout", "survivors"), [(5, 0.2, 4), (20, 0.1, 18), (50, 0.35, 30)])
def test_abort_probability_is_the_binomials(cohort: int, dropout: float, survivors: int) -> None:
    exact = sum(math.comb(cohort, k) * (1 - dropout) ** k * dropout ** (cohort - k) for k in range(survivors))
    assert probability_below(cohort, dropout, survivors) == pytest.approx(exact, rel=1e-9)


def test_without_dropouts_nothing_aborts() -> None:
    assert probability_below(10, 0.0, 10) == 0.0
    assert probability_below(10, 0.0, 11) == 1.0
    assert default_min_survivors(10, 2, 0.0) == 10


def test_survivors_never_go_below_the_threshold() -> None:
    assert default_min_survivors(100, 5, 0.9) == 53


@pytest.mark.parametrize(
    ("population", "cohort", "adversarial", "draws"),
    [(1000, 100, 0.05, 1000), (342_477, 100, 0.05, 1600), (200, 150, 0.5, 10), (100, 60, 0.01, 1), (70, 69, 0.9, 3)],
)
def test_too_many_colluders_are_hardly_drawn(population: int, cohort: int, adversarial: float, draws: int) -> None:
    """Against exact fractions of the hypergeometric law; the naive count, the mean, is exceeded every other round."""
    assumed = colluders_in_cohort(population, cohort, adversarial, 0.3, draws)
    everywhere = max(int(Fraction(str(adversarial)) * population), 2)
    total = math.comb(population, cohort)

    def beyond(colluders: int) -> Fraction:
        ways = (
            math.comb(everywhere, k) * math.comb(population - everywhere, cohort - k)
            for k in range(colluders + 1, min(cohort, everywhere) + 1)
        )
        return Fraction(sum(ways), total)

    floor = assumed_colluders(cohort, adversarial, 0.3)
    allowed = Fraction(LOTTERY_FAILURE) / draws
    assert beyond(assumed) <= allowed
    assert assumed == min(floor, everywhere) or beyond(assumed - 1) > allowed
    assert assumed >= min(floor, everywhere)
    if everywhere > 10:
        assert beyond(floor) > allowed


def test_everybody_is_drawn_without_a_lottery() -> None:
    assert colluders_in_cohort(100, 100, 0.05, 0.3, 50) == assumed_colluders(100, 0.05, 0.3) == 5
    assert colluders_in_cohort(1000, 10, 0.0, 0.3, 50) == 0  # a population of 1,000 is no small roster
    with pytest.raises(InvalidParameters):
        colluders_in_cohort(10, 11, 0.05, 0.3, 1)
