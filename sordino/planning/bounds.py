"""Which bound a plan's figures come from.

Without sampling the charged figure is exact already. For central Gaussian rounds that are sampled by independent coins
there are privacy loss distributions: a *conditional* figure, for schedules that are fixed in advance.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechanisms.plan import Plan


def tighter_bounds(plan: Plan) -> dict[str, Any]:
    """JSON names ``accountant`` and ``epsilon_pld`` of a plan.

    ``accountant``: whose figure is the smallest for the plan's target, "exact", "renyi" or "pld". ``epsilon_pld``: of
    all rounds if every participant were drawn by an independent coin; None except for the central Gaussian with Poisson
    or fixed-size sampling, and where it can't be stated.
    """
    from mechanisms.round_cost import pld_epsilon

    order = {"released": plan.order_released, "conditional": plan.order_conditional}.get(plan.target, plan.order)
    found: dict[str, Any] = {"accountant": "exact" if order == 1 else "renyi", "epsilon_pld": None}
    if (epsilon := pld_epsilon(plan, plan.noise, plan.rounds)) < math.inf:
        found["epsilon_pld"] = epsilon
        if plan.target == "conditional" and epsilon == plan.planned_epsilon:
            found["accountant"] = "pld"
    return found


def exact_gaussian_multiplier(epsilon: float, delta: float, rounds: int = 1) -> float:
    """The least noise multiplier at which unsampled central Gaussian rounds keep (epsilon, delta), rounded up.

    Raises InfeasiblePlan: the target is no target.
    """
    from mechanisms.gaussian_exact import gaussian_multiplier
    from mechanisms.refusals import InfeasiblePlan

    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise InfeasiblePlan("epsilon must be finite and positive, delta between 0 and 1", "use 1 and 1e-5")
    return gaussian_multiplier(epsilon, delta) * math.sqrt(rounds)
