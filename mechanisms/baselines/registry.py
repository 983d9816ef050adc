"""All mechanisms by name, behind one interface: `mechanisms.mechanism.Mechanism`."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from mechanisms.baselines import binomial, randomised_response
from mechanisms.encoder import Encoder
from mechanisms.mechanism import DESCRIPTIONS, Description, Mechanism
from mechanisms.plan import Plan, make_plan
from mechanisms.round_cost import Curve

EPSILON_DELTA: Final = "epsilon-delta"


def _curve(plan: Plan, honest: int) -> Curve:
    return plan.round_curve(honest)


def _epsilon(plan: Plan) -> float:
    return plan.planned_epsilon


def _no_curve(plan: Any, honest: int) -> Curve:
    binomial.renyi_curve(plan)  # always refuses, with the reason


def _no_curve_of_responses(plan: Any, honest: int) -> Curve:
    raise binomial.NotRenyi("the shuffle bound is an (epsilon, delta) statement; randomised response composes by those")


def _vectors(name: str) -> Mechanism:
    return Mechanism(DESCRIPTIONS[name], partial(make_plan, mechanism=name), Encoder, _curve, _epsilon)


MECHANISMS: Final[dict[str, Mechanism]] = {name: _vectors(name) for name in DESCRIPTIONS} | {
    binomial.NAME: Mechanism(
        Description(
            binomial.NAME,
            "distributed binomial (cpSGD)",
            binomial.THEOREM,
            binomial.ADJACENCY,
            binomial.TRUSTS,
            EPSILON_DELTA,
        ),
        binomial.plan_binomial,
        binomial.BinomialEncoder,
        _no_curve,
        lambda plan: plan.planned_epsilon,
    ),
    randomised_response.NAME: Mechanism(
        Description(
            randomised_response.NAME,
            "k-ary randomised response, shuffled",
            randomised_response.THEOREM,
            randomised_response.ADJACENCY,
            randomised_response.TRUSTS,
            EPSILON_DELTA,
        ),
        randomised_response.plan_response,
        lambda plan, seed: randomised_response.ResponseEncoder(plan),
        _no_curve_of_responses,
        lambda plan: plan.central_epsilon,
    ),
}
