"""All mechanisms by name, behind one interface.

Every mechanism answers the same four questions: how an update is encoded, how a sum is decoded, what a round reveals
(its privacy curve) and how noise is planned. Those that send vectors share one encoder and one plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Final

from mechanisms.baselines import binomial, binomial_plan, randomised_response
from mechanisms.encoder import Encoder
from mechanisms.mechanism import DESCRIPTIONS, Description
from mechanisms.plan import Plan, make_plan
from mechanisms.privacy_curves import Curve
from mechanisms.statement import VECTOR_MECHANISMS


@dataclass(frozen=True)
class Mechanism:
    """One mechanism behind the common interface.

    ``encoder``: (plan, 32 public bytes) -> an object with ``encode(update, random_bytes)`` -> words below 2^bits, and
    ``decode_sum(total, survivors, ...)`` -> the estimate.
    """

    description: Description  # theorem, adjacency, trust
    plan: Callable[..., Any]  # keyword arguments -> the frozen plan, or `InfeasiblePlan`
    encoder: Callable[[Any, bytes], Any]
    curve: Callable[[Any, int], Curve]  # (plan, honest) -> cost of one round; refuses where there is none
    epsilon: Callable[[Any], float]  # plan -> epsilon of all planned rounds at the plan's delta


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
