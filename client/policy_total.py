"""epsilon over all studies of a participant's ledger, with what is to come: what ``max_epsilon_total`` is held to.

Of each study the data from which most was spent counts, by all its identities, as in `Totals.across_studies`, whose
figure this becomes: an upper bound for every data set of the ledger. It is stated at one order, that of the filter of
the ledger's first study, so it is a Renyi filter; where there is but one study, its figure is the study's own.
"""

from __future__ import annotations

from mechanisms.plan import Plan
from wire.records.ledger_rows import epsilon, price
from wire.records.ledger_totals import Together, Totals, renyi_at


def kind_of_guarantee(adjacency: str, mechanism: str) -> tuple[str, bool]:
    """What may be added up: studies with equal ones (adjacency, whether the coordinator must be trusted)."""
    return adjacency, mechanism == "gaussian"


def epsilon_in_total(plan: Plan, totals: Totals, *, delta: float, study_sha256: bytes, data_name: str) -> float:
    """epsilon of everything this ledger was charged under the plan's kind of guarantee, after one more charge at h_min.

    Args:
        delta: at which it is stated.
        study_sha256: of the study that comes.
        data_name: of what its participant trains on.

    Returns:
        Infinite where a row has no bound at that order or above.
    """
    together, order = _together(plan, totals)
    one, one_draws = _coming(plan, order, 1)
    mine, draws = one, one_draws
    spent = totals.spent(study_sha256, data_name)
    if spent.charges:
        mine += totals.studies[study_sha256.hex()].cost_at(spent, order)
        draws += spent.all_draws
    return _composed(together, order, study_sha256, mine, draws, delta)


def epsilon_after_plan(plan: Plan, totals: Totals, *, delta: float, study_sha256: bytes) -> float:
    """`epsilon_in_total` once the study that comes has had all rounds of its plan, each at h_min, beside all others.

    What the ledger holds of that study already is part of its plan: only what is more than the plan counts.
    """
    together, order = _together(plan, totals)
    return _composed(together, order, study_sha256, *_coming(plan, order, plan.rounds), delta)


def _together(plan: Plan, totals: Totals) -> tuple[Together | None, float]:
    """What the ledger holds of the plan's kind of guarantee, and at which order that is added up."""
    kind = kind_of_guarantee(plan.adjacency, plan.mechanism)
    found = next((one for one in totals.across_studies() if (one.adjacency, one.coordinator_trusted) == kind), None)
    return found, float(plan.order) if found is None else found.order


def _coming(plan: Plan, order: float, sums: int) -> tuple[float, int]:
    """Renyi cost at an order, and noise coordinates, of ``sums`` sums at h_min."""
    one = price(plan, plan.h_min)
    cost = one.cost if order == one.order else renyi_at(dict(one.curve), order)
    return sums * cost, sums * plan.clients * plan.padded_dim


def _composed(
    together: Together | None, order: float, study_sha256: bytes, mine: float, draws: int, delta: float
) -> float:
    """With ``mine`` for the study that comes, unless another participant's data here has cost more in it."""
    others, other_draws = 0.0, 0
    for study in () if together is None else together.studies:
        most = max((one.all_draws for one in study.by_data()), default=0)
        if study.first.study_sha256 == study_sha256.hex():
            mine, draws = max(mine, study.renyi_at(order)), max(draws, most)
        else:
            others, other_draws = others + study.renyi_at(order), other_draws + most
    return epsilon(order, others + mine, delta, other_draws + draws)
