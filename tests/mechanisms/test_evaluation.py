"""What participants say of a model: inside the norm that the plan pays for, and back with the errors it states."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mechanisms.encoder import Encoder, words_of_sum
from mechanisms.evaluation import NOT_EVALUATED, Evaluation, HeldOutMetrics
from mechanisms.plan import Plan
from mechanisms.refusals import InfeasiblePlan
from tests.mechanisms.conftest import keyed, plan_for, secure_sum

WHAT = Evaluation(held_out=0.2, weight=0.5, most_examples=10, largest_loss=2.0)
ADAPTIVE = {"update": "geometric", "quantile": 0.5, "rate": 0.2, "bit_weight": 0.3}
SEED = bytes(range(32))


def planned(evaluation: Evaluation = WHAT, **stated: Any) -> Plan:
    return plan_for(
        stated.pop("clients", 10), **{"dim": 100, "bits": 24, "epsilon": 20.0, "evaluation": evaluation} | stated
    )


def test_no_figure_lies_beyond_the_norm_that_is_paid_for() -> None:
    """Whatever a model and its data make of them; the largest reach the norm, so it isn't wider than needed."""
    extremes = (-math.inf, -1.0, 0.0, 0.3, 1.0, 7.0, math.inf, math.nan)
    found = [
        float(np.linalg.norm(WHAT.coordinates(HeldOutMetrics(examples, correct, loss))))
        for examples, correct, loss in itertools.product((-1, 0, 1, 10, 10**9), extremes, extremes)
    ]
    assert max(found) * WHAT.weight == pytest.approx(WHAT.norm(1.0))


@pytest.mark.parametrize("clips", [{}, ADAPTIVE], ids=["fixed", "adaptive"])
def test_the_plan_pays_for_the_evaluation(clips: dict[str, Any]) -> None:
    """Sensitivity and noise grow by it. A plan that left it out would bound a shorter vector than is sent."""
    from mechanisms.clip_rule import ClipRule

    rule = ClipRule.flat(100, 1.0, **clips)
    plan, without = (planned(one, clip=None, clipping=rule) for one in (WHAT, NOT_EVALUATED))
    assert plan.encoder_clip == pytest.approx(math.hypot(without.encoder_clip, WHAT.weight * math.sqrt(3) / 2))
    assert plan.central_stddev / without.central_stddev == pytest.approx(
        plan.encoder_clip / without.encoder_clip, rel=0.01
    )
    longest = np.full(100, 0.1)
    coded = Encoder(plan, SEED)._clipped(longest, HeldOutMetrics(10, 1.0, math.inf))
    assert without.encoder_clip < np.linalg.norm(coded) <= plan.encoder_clip


@pytest.mark.parametrize("mechanism", ["ddgauss", "skellam", "gaussian", "local-gaussian"])
@pytest.mark.long
def test_the_figures_come_back_with_the_stated_errors(mechanism: str) -> None:
    """Of 400 sums: the mean within 4.9 standard errors, and the deviation within 15 % of the stated one; fixed key."""
    local = mechanism == "local-gaussian"  # four times the noise of the others even so
    what = replace(WHAT, weight=1.0) if local else WHAT
    plan, source = planned(what, mechanism=mechanism, dim=13, epsilon=1000.0 if local else 40.0), keyed(mechanism)
    encoder = Encoder(plan, SEED)
    people = [
        HeldOutMetrics(10, 0.9, 0.5),
        HeldOutMetrics(5, 0.3, 1.5),
        HeldOutMetrics(40, 0.6, 5.0),
        HeldOutMetrics(0, math.nan, math.nan),
    ] * 2
    people += [HeldOutMetrics(10, 0.7, 1.0)] * 2
    weights = np.array([min(one.examples, 10) / 10 for one in people])
    accuracy = sum(w * one.accuracy for w, one in zip(weights, people, strict=True) if w) / weights.sum()
    loss = sum(w * min(one.loss, 2.0) for w, one in zip(weights, people, strict=True) if w) / weights.sum()
    found = []
    for _ in range(400):
        vectors = [encoder.encode(np.zeros(13), source, (), one).astype(np.uint64) for one in people]
        total = words_of_sum(np.sum(vectors, axis=0, dtype=np.uint64), plan.bits)
        measured = encoder.decode(total, len(people), source).measured
        assert measured is not None
        found.append(measured)
    for name, exact in (("accuracy", accuracy), ("loss", loss)):
        errors = np.array([(getattr(one, name) - exact) / getattr(one, f"{name}_stderr") for one in found])
        assert abs(errors.mean()) < 4.9 / math.sqrt(len(errors))
        assert errors.std() == pytest.approx(1.0, rel=0.15)
    assert np.mean([one.weight for one in found]) == pytest.approx(weights.mean(), abs=0.02)


def test_several_at_once_carry_their_evaluations() -> None:
    plan = planned(clip=1.0, epsilon=1000.0)
    encoder, said = Encoder(plan, SEED), [HeldOutMetrics(10, 0.25, 1.0)] * 10
    words = encoder.encode_many(np.zeros((10, 100)), keyed("rows"), said)
    measured = encoder.decode(words_of_sum(words.sum(axis=0, dtype=np.uint64), plan.bits), 10).measured
    assert measured is not None
    assert measured.accuracy == pytest.approx(0.25, abs=5 * measured.accuracy_stderr)
    assert measured.accuracy_stderr < 0.05


def test_where_nobody_evaluated_nothing_is_said() -> None:
    """Not even a figure with a wide error: a ratio of two noises has no deviation."""
    plan = planned(epsilon=1000.0)
    encoder = Encoder(plan, SEED)
    assert encoder.decode(secure_sum(encoder, np.zeros((10, 100)), keyed("none")).astype("<u4"), 10).measured is None


def test_plans_from_before_have_the_same_bytes() -> None:
    plan, without = planned(), planned(NOT_EVALUATED)
    assert b"evaluation" not in without.to_bytes()
    assert [Plan.from_json(one.to_bytes()) for one in (plan, without)] == [plan, without]
    values = plan.to_json()
    for wrong in ({}, dict.fromkeys(values["evaluation"], 0), values["evaluation"] | {"weight": 1}, None):
        with pytest.raises(ValueError, match="plan"):
            Plan.from_json(values | {"evaluation": wrong})
    with pytest.raises(ValueError, match="padded_dim"):  # the noise was sized for a longer vector
        Plan.from_json({name: value for name, value in values.items() if name != "evaluation"})


@pytest.mark.parametrize(
    "wrong", [{"held_out": 0.6}, {"weight": 2.0}, {"most_examples": 0}, {"largest_loss": math.inf}], ids=str
)
def test_impossible_ones_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InfeasiblePlan):
        Evaluation(**WHAT.to_json() | wrong)
