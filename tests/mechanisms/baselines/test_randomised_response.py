"""Randomised response: its law as fractions, its histogram as the shuffler's, its estimates, and its plan.

False alarms: the statistical tests use fixed keys, so they pass or fail for good; at a fresh key each would fail
with probability below 1e-6 (4.9 standard deviations, two-sided, for each of at most 8 figures: below 8e-6).
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from mechanisms.baselines.randomised_response import (
    InvalidCategory,
    ResponseEncoder,
    ResponsePlan,
    plan_response,
    response_weights,
)
from mechanisms.randomness import RandomBytes, RandomnessFailed
from mechanisms.refusals import InfeasiblePlan
from tests.mechanisms.baselines.test_shuffle import binary_histograms, exact_epsilon
from tests.mechanisms.conftest import keyed

LARGEST_Z = 4.9

STATED = {"categories": 5, "clients": 10_000, "epsilon": 1.0, "delta": 1e-6, "colluders": 500, "min_survivors": 7000}


@pytest.fixture(scope="module")
def plan() -> ResponsePlan:
    return plan_response(**STATED)


@pytest.mark.parametrize("local_epsilon", [1e-6, 0.1, math.log(3), 1.0, 2.5, 10.0, 60.0])
def test_the_realised_epsilon_is_just_below_the_stated_one(local_epsilon: float) -> None:
    true, other = response_weights(local_epsilon)
    with mpmath.workdps(60):
        realised = mpmath.log(mpmath.mpf(true) / other)
        assert realised <= mpmath.mpf(local_epsilon)
        assert mpmath.mpf(local_epsilon) - realised <= mpmath.mpf(2) ** -40


def test_a_rounded_probability_exceeds_the_stated_epsilon() -> None:
    """Naive version: weights rounded to nearest, so half of the settings leak more than they say."""
    above = 0
    for i in range(1, 101):
        with mpmath.workdps(60):
            exact = mpmath.exp(mpmath.mpf(i / 50)) * 2**40
            above += mpmath.log(mpmath.mpf(int(mpmath.nint(exact))) / 2**40) > mpmath.mpf(i / 50)
            assert response_weights(i / 50)[0] <= exact
    assert above > 20


@pytest.mark.parametrize("categories", [2, 3, 7])
def test_the_law_is_exactly_the_stated_fractions(categories: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All draws of the one uniform integer there is, with weights made small enough to list them."""
    true, other = 13, 4
    total = true + (categories - 1) * other
    plan = plan_response(**STATED | {"categories": categories})
    encoder = ResponseEncoder(plan)
    encoder._true, encoder._other = true, other
    for category in range(categories):
        law = dict.fromkeys(range(categories), Fraction(0))
        for draw in range(total):

            def uniform(bound: int, source: object, draw: int = draw) -> int:
                assert bound == total
                return draw

            monkeypatch.setattr("mechanisms.baselines.randomised_response.uniform_below", uniform)
            law[encoder.respond(category, bytes)] += Fraction(1, total)
        expected = {c: Fraction(true if c == category else other, total) for c in range(categories)}
        assert law == expected
        ratios = [law[a] / law[b] for a in range(categories) for b in range(categories)]
        assert max(ratios) == Fraction(true, other)


def test_the_plan_states_the_fractions_that_are_drawn(plan: ResponsePlan) -> None:
    true, other = response_weights(plan.local_epsilon)
    encoder = ResponseEncoder(plan)
    assert (encoder._true, encoder._other) == (true, other)
    assert plan.keep_probability + (plan.categories - 1) * plan.flip_probability == 1
    assert plan.keep_probability / plan.flip_probability == Fraction(true, other)
    stated = math.exp(plan.local_epsilon) / (math.exp(plan.local_epsilon) + plan.categories - 1)
    assert float(plan.keep_probability) == pytest.approx(stated, rel=1e-11)


def test_drawn_frequencies_follow_the_law(plan: ResponsePlan) -> None:
    encoder, source, draws = ResponseEncoder(plan), keyed("responses"), 20_000
    seen = np.bincount([encoder.respond(2, source) for _ in range(draws)], minlength=plan.categories)
    for category, count in enumerate(seen):
        chance = float(plan.keep_probability if category == 2 else plan.flip_probability)
        assert abs(count - draws * chance) < LARGEST_Z * math.sqrt(draws * chance * (1 - chance))


def histogram(plan: ResponsePlan, values: np.ndarray, source: RandomBytes) -> np.ndarray:
    """The secure sum of one-hot reports."""
    encoder = ResponseEncoder(plan)
    total = np.zeros(plan.categories, np.uint64)
    for value in values:
        total += encoder.encode(int(value), source)
    return total % (1 << plan.bits)


def test_estimates_are_unbiased_and_their_errors_honest() -> None:
    plan = plan_response(categories=4, clients=400, epsilon=1.0, delta=1e-3, colluders=0, min_survivors=300)
    values = np.repeat(np.arange(4), [200, 100, 80, 20])
    truth = np.array([0.5, 0.25, 0.2, 0.05])
    encoder, source, trials = ResponseEncoder(plan), keyed("unbiased"), 60
    found = [encoder.decode_sum(histogram(plan, values, source), 400) for _ in range(trials)]
    frequencies = np.array([one.frequencies for one in found])
    errors = np.array([plan.standard_error(f, 400) for f in truth])
    assert np.all(np.abs(frequencies.mean(axis=0) - truth) < LARGEST_Z * errors / math.sqrt(trials))
    # Sum of squared z-scores: chi-square with `trials` degrees for each category; two-sided at 1e-6.
    spread = (((frequencies - truth) / errors) ** 2).sum(axis=0)
    assert np.all((stats.chi2.ppf(5e-7, trials) < spread) & (spread < stats.chi2.isf(5e-7, trials)))
    assert np.allclose(frequencies.sum(axis=1), 1.0)
    assert np.allclose(np.array([one.standard_errors for one in found]).mean(axis=0), errors, rtol=0.05)
    # Naive version: the counts over n are no estimate of the frequencies.
    naive = float(plan.flip_probability) + frequencies * float(plan.keep_probability - plan.flip_probability)
    assert np.abs(naive.mean(axis=0) - truth).max() > LARGEST_Z * errors.max() / math.sqrt(trials)


def test_expected_counts_decode_to_the_truth() -> None:
    """Unbiasedness without chance: the expectation, in exact fractions."""
    plan = plan_response(**STATED)
    keep, flip = plan.keep_probability, plan.flip_probability
    for truth in (Fraction(0), Fraction(1, 3), Fraction(1)):
        assert (truth * keep + (1 - truth) * flip - flip) / (keep - flip) == truth


def test_reports_are_one_hot(plan: ResponsePlan) -> None:
    encoder, source = ResponseEncoder(plan), keyed("one-hot")
    for category in (0, 4, np.int64(3)):
        report = encoder.encode(category, source)
        assert report.dtype == np.dtype("<u2")
        assert sorted(report) == [0, 0, 0, 0, 1]


def test_the_plan_meets_its_target(plan: ResponsePlan) -> None:
    assert plan.h_min == 6500
    assert 0.999 <= plan.central_epsilon <= 1.0
    assert plan.round_bound.bound == "amplified"
    assert plan.local_epsilon == pytest.approx(3.1272, abs=1e-4)
    assert plan.bits == 14
    assert plan.adjacency.startswith("replace-one: ")
    assert "the secure sum" in plan.trusts


@pytest.mark.parametrize(
    ("rounds", "clients", "min_survivors"),
    [(1, 100, 70), (30, 10_000, 7000), (30, 1_000_000, 700_000), (1000, 500, 400)],
)
def test_plans_over_rounds_never_exceed_the_target(rounds: int, clients: int, min_survivors: int) -> None:
    stated = STATED | {"categories": 3, "clients": clients, "colluders": 5, "min_survivors": min_survivors}
    found = plan_response(**stated, rounds=rounds)
    assert found.central_epsilon <= 1.0
    for kind in ("basic", "advanced"):
        other = plan_response(**stated, rounds=rounds, composition=kind)
        assert other.central_epsilon <= 1.0
        assert other.local_epsilon <= found.local_epsilon


def test_few_honest_reports_leave_the_local_figure() -> None:
    found = plan_response(categories=3, clients=100, epsilon=1.0, delta=1e-6, colluders=5, min_survivors=70)
    assert found.round_bound.bound == "local"
    assert found.local_epsilon == pytest.approx(1.0, rel=1e-6)


def test_the_planned_epsilon_covers_the_exact_histogram() -> None:
    """k = 2: the histogram's exact divergence at h_min reports, all the others' values alike or mixed."""
    found = plan_response(**STATED | {"categories": 2})
    for ones in (0, found.h_min // 2):
        truth = exact_epsilon(*binary_histograms(found.local_epsilon, found.h_min, ones), found.delta)
        assert truth <= found.central_epsilon


def test_colluders_reports_do_not_count() -> None:
    """Naive version: a plan that counts all 20,000 clients where 19,500 of them collude promises too little epsilon."""
    stated = {"categories": 2, "clients": 20_000, "epsilon": 0.2, "delta": 1e-6, "min_survivors": 20_000}
    naive = plan_response(**stated, colluders=0)
    truth = exact_epsilon(*binary_histograms(naive.local_epsilon, 500, 0), 1e-6)
    assert truth > 0.2
    honest = plan_response(**stated, colluders=19_500)
    assert honest.h_min == 500
    assert exact_epsilon(*binary_histograms(honest.local_epsilon, 500, 0), 1e-6) <= 0.2
    with pytest.raises(InfeasiblePlan, match="exceeds the target"):
        replace(naive, colluders=19_500)


def test_impossible_plans_are_refused(plan: ResponsePlan) -> None:
    for change, message in [
        *(({"categories": 1}, "categories 1"), ({"bits": 13}, "do not fit 13 bits"), ({"rounds": 0}, "rounds 0")),
        *(({"delta": 0.0}, "delta"), ({"epsilon": -1.0}, "epsilon"), ({"epsilon": math.nan}, "epsilon")),
        *(({"colluders": 7000}, "does not hold"), ({"min_survivors": 10_001}, "does not hold")),
    ]:
        with pytest.raises(InfeasiblePlan, match=message):
            plan_response(**STATED | change)
        with pytest.raises(InfeasiblePlan, match=message):
            replace(plan, **change)
    with pytest.raises(InfeasiblePlan, match="local_epsilon"):
        replace(plan, local_epsilon=61.0)
    with pytest.raises(InfeasiblePlan, match="unknown composition"):
        replace(plan, composition="magic")  # type: ignore[arg-type]
    with pytest.raises(InfeasiblePlan, match="exceeds the target"):
        replace(plan, local_epsilon=plan.local_epsilon * 1.01)
    with pytest.raises(TypeError, match="clients"):
        plan_response(**STATED | {"clients": 1e4})
    with pytest.raises(TypeError, match="bits must be int"):
        replace(plan, bits=14.0)  # type: ignore[arg-type]


def test_bad_input_is_refused(plan: ResponsePlan) -> None:
    encoder = ResponseEncoder(plan)
    for category in (-1, 5, 1.0, True, "1", None):
        with pytest.raises(InvalidCategory, match="from 0 to 4"):
            encoder.encode(category, keyed("bad"))  # type: ignore[arg-type]
    with pytest.raises(RandomnessFailed):
        encoder.encode(0, lambda n: b"")
    good = np.array([7000, 0, 0, 0, 0], np.uint16)
    assert encoder.decode_sum(good, 7000).survivors == 7000
    for total, survivors, message in [
        (good, 6999, "survivors"),
        (good, 10_001, "survivors"),
        (good, 7001, "not one-hot"),
        (good[:4], 7000, "vector of 5"),
        (good.astype(np.int64), 7000, "unsigned"),
        (np.array([7001, 0, 0, 0, 0], np.uint64), 7000, "not one-hot"),
        (np.array([2**64 - 1, 7001, 0, 0, 0], np.uint64), 7000, "not one-hot"),
    ]:
        with pytest.raises(ValueError, match=message):
            encoder.decode_sum(total, survivors)
    for local_epsilon in (0.0, -1.0, 60.1, math.nan):
        with pytest.raises(ValueError, match="local_epsilon"):
            response_weights(local_epsilon)
