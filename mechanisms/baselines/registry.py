"""All mechanisms by name, behind one interface: `mechanisms.mechanism.Mechanism`."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Any, Final

from mechanisms.baselines import binomial, binomial_plan, randomised_response
from mechanisms.encoder import Encoder
from mechanisms.mechanism import DESCRIPTIONS, Mechanism
from mechanisms.plan import Plan, make_plan
from mechanisms.privacy_curves import Curve
from mechanisms.statement import VECTOR_MECHANISMS


def _no_curve_of_responses(plan: Any, honest: int) -> Curve:
    raise binomial.NotRenyi("the shuffle bound is an (epsilon, delta) statement; randomised response composes by those")


_planned: Final = attrgetter("planned_epsilon")
MECHANISMS: Final[dict[str, Mechanism]] = {
    name: Mechanism(DESCRIPTIONS[name], partial(make_plan, mechanism=name), Encoder, Plan.round_curve, _planned)
    for name in VECTOR_MECHANISMS
} | {
    binomial_plan.NAME: Mechanism(
        DESCRIPTIONS[binomial_plan.NAME],
        binomial_plan.plan_binomial,
        binomial.BinomialEncoder,
        binomial.renyi_curve,
        _planned,
    ),
    randomised_response.NAME: Mechanism(
        DESCRIPTIONS[randomised_response.NAME],
        randomised_response.plan_response,
        lambda plan, seed: randomised_response.ResponseEncoder(plan),
        _no_curve_of_responses,
        attrgetter("central_epsilon"),
    ),
}
"""By name: a description, how it is planned, its encoder, the cost of a round and the epsilon of a plan."""
