"""All mechanisms by name, behind one interface: `mechanisms.mechanism.Mechanism`."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from mechanisms.baselines import binomial, binomial_plan, randomised_response
from mechanisms.encoder import Encoder
from mechanisms.mechanism import DESCRIPTIONS, Mechanism
from mechanisms.plan import Plan, make_plan
from mechanisms.round_cost import Curve
from mechanisms.statement import VECTOR_MECHANISMS


def _curve(plan: Plan, honest: int) -> Curve:
    return plan.round_curve(honest)


def _epsilon(plan: Plan) -> float:
    return plan.planned_epsilon


def _no_curve_of_responses(plan: Any, honest: int) -> Curve:
    raise binomial.NotRenyi("the shuffle bound is an (epsilon, delta) statement; randomised response composes by those")


MECHANISMS: Final[dict[str, Mechanism]] = {
    name: Mechanism(DESCRIPTIONS[name], partial(make_plan, mechanism=name), Encoder, _curve, _epsilon)
    for name in VECTOR_MECHANISMS
} | {
    binomial_plan.NAME: Mechanism(
        DESCRIPTIONS[binomial_plan.NAME],
        binomial_plan.plan_binomial,
        binomial.BinomialEncoder,
        binomial.renyi_curve,
        lambda plan: plan.planned_epsilon,
    ),
    randomised_response.NAME: Mechanism(
        DESCRIPTIONS[randomised_response.NAME],
        randomised_response.plan_response,
        lambda plan, seed: randomised_response.ResponseEncoder(plan),
        _no_curve_of_responses,
        lambda plan: plan.central_epsilon,
    ),
}
