"""Which bound a plan's figures come from, and the tighter one for a sampled central Gaussian.

Without sampling the charged figure is exact already. For central Gaussian rounds that are sampled by independent coins
there are privacy loss distributions: a *conditional* figure, for schedules that are fixed in advance.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mechanisms.plan import Plan

# Shares of delta that are set aside for what the grid adds to the continuous law, smallest first.
_SET_ASIDE: Final = (2.0**-20, 1e-3, 0.1, 0.5)


def tighter_bounds(plan: Plan) -> dict[str, Any]:
    """JSON names ``accountant`` and ``epsilon_pld`` of a plan.

    ``accountant``: whose figure is the smallest for the plan's target, "exact", "renyi" or "pld". ``epsilon_pld``: of
    all rounds if every participant were drawn by an independent coin; None except for the central Gaussian with Poisson
    sampling.
    """
    order = {"released": plan.order_released, "conditional": plan.order_conditional}.get(plan.target, plan.order)
    found: dict[str, Any] = {"accountant": "exact" if order == 1 else "renyi", "epsilon_pld": None}
    if plan.mechanism == "gaussian" and plan.sampling == "poisson":
        from mechanisms.pld import poisson_gaussian_epsilon

        rate = plan.sampling_rate
        found["epsilon_pld"] = _on_the_grid(
            plan, lambda delta: poisson_gaussian_epsilon(plan.effective_noise_multiplier, rate, plan.rounds, delta)
        )
        if plan.target == "conditional" and (found["epsilon_pld"] or math.inf) < plan.planned_epsilon:
            found["accountant"] = "pld"
    return found


def _on_the_grid(plan: Plan, epsilon_at: Any) -> float | None:
    """A bound for the continuous law, stated for what is drawn: delta pays for the distance between the two."""
    from mechanisms.encoder import refinement
    from mechanisms.gaussian_exact import discretisation_distance
    from mechanisms.lattice_noise import SAMPLER_DISTANCE

    draws = plan.rounds * plan.padded_dim
    distance = discretisation_distance(math.sqrt(refinement(plan)[1]), draws) + draws * SAMPLER_DISTANCE
    for share in _SET_ASIDE:
        epsilon = epsilon_at(plan.delta * (1 - share))
        if epsilon < 700 and (1 + math.exp(epsilon)) * distance <= plan.delta * share:
            return float(epsilon)
    return None


def exact_gaussian_multiplier(epsilon: float, delta: float, rounds: int = 1) -> float:
    """The least noise multiplier at which unsampled central Gaussian rounds keep (epsilon, delta), rounded up.

    Source: [BW18] Theorem 8, by bisection. Raises InfeasiblePlan: the target is no target.
    """
    from mechanisms.gaussian_exact import gaussian_delta
    from mechanisms.refusals import InfeasiblePlan

    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise InfeasiblePlan("epsilon must be finite and positive, delta between 0 and 1", "use 1 and 1e-5")

    low, high = 1e-6, 1e6
    while high > low * (1 + 2**-40):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if gaussian_delta(middle, epsilon) <= delta else (middle, high)
    return high * math.sqrt(rounds)
