"""What a participant insists on in every round: budgets, models, hours and pace.

Asked when a round begins and again before its charge, so that a round which is drawn out can't slip past a limit. A
refused round costs nothing; the client stays and takes part again in a round that is allowed.
"""

from __future__ import annotations

import time

from client.hours import within
from client.policy import PolicyRefusal, check_guarantee
from client.policy_total import epsilon_in_total
from client.settings import Policy
from mechanisms.plan import Plan
from wire.records.ledger_rows import epsilon, price
from wire.records.ledger_totals import Totals


def check_round(
    policy: Policy,
    plan: Plan,
    totals: Totals,
    *,
    study_sha256: bytes,
    data_name: str,
    number: tuple[int, int],
    model_sha256: bytes,
) -> None:
    """Whether a participant may be charged for one more attempt, now.

    Args:
        totals: of the participants' ledger, over all studies.
        data_name: of what the participant trains on: what all identities over it spent is held against the limits.
        number: round and attempt.
        model_sha256: of the model that the round begins from.

    Raises:
        PolicyRefusal: the first condition that isn't met.
    """
    _check_model(policy, model_sha256)
    now = time.time()
    _check_hours(policy, now)
    _check_pace(policy, totals, (study_sha256.hex(), *number), now)
    check_budget(policy, plan, totals, study_sha256=study_sha256, data_name=data_name)


def _check_model(policy: Policy, model_sha256: bytes) -> None:
    if policy.model_digests is not None and model_sha256.hex() not in policy.model_digests:
        raise PolicyRefusal(
            "model-digest", f"the round begins from the model {model_sha256.hex()}, which model_digests doesn't hold"
        )


def _check_hours(policy: Policy, now: float) -> None:
    if policy.hours is None:
        return
    here = time.localtime(now)
    if not within(policy.hours, here.tm_hour * 60 + here.tm_min):
        raise PolicyRefusal(
            "hours", f"it is {here.tm_hour:02}:{here.tm_min:02} here, hours allows {', '.join(policy.hours)}"
        )


def _check_pace(policy: Policy, totals: Totals, attempt: tuple[str, int, int], now: float) -> None:
    most = policy.max_rounds_per_day
    if most is None:
        return
    charged = totals.pace.within_a_day(now, besides=attempt)
    if charged >= most:
        again = time.strftime("%Y-%m-%d %H:%M", time.localtime(totals.pace.free_again(now, most, besides=attempt)))
        raise PolicyRefusal(
            "rounds-per-day",
            f"{charged} attempts were charged within 24 hours, max_rounds_per_day allows {most}; the next from {again}",
        )


def check_budget(policy: Policy, plan: Plan, totals: Totals, *, study_sha256: bytes, data_name: str) -> None:
    """Whether a participant may be charged once more: in the study, by the study's plan, and over all studies.

    Raises:
        PolicyRefusal: with the coming charge, at h_min, a limit would be exceeded.
    """
    spent, coming = totals.spent(study_sha256, data_name), price(plan, plan.h_min)
    draws = plan.clients * plan.padded_dim
    after = epsilon(coming.order, spent.renyi + coming.cost, plan.delta, spent.all_draws + draws)
    if not after <= policy.max_epsilon:
        raise PolicyRefusal(
            "epsilon-in-study",
            f"one more round would bring epsilon to {after:.3f}, above max_epsilon {policy.max_epsilon:g}",
        )
    # The coordinator's filter stops there too; one that doesn't keep it gets no more than the plan promised.
    if not after <= plan.budget_coordinator:
        raise PolicyRefusal(
            "epsilon-in-plan",
            f"one more round would bring epsilon to {after:.3f}, above the study's budget "
            f"{plan.budget_coordinator:g}",
        )
    if policy.max_epsilon_total is None:
        return
    check_guarantee(policy, plan, totals)
    total = epsilon_in_total(plan, totals, delta=policy.total_delta, study_sha256=study_sha256, data_name=data_name)
    if not total <= policy.max_epsilon_total:
        raise PolicyRefusal(
            "epsilon-in-total",
            f"one more round would bring epsilon over all studies of this ledger to {total:.3f} at delta "
            f"{policy.total_delta:g}, above max_epsilon_total {policy.max_epsilon_total:g}",
        )
