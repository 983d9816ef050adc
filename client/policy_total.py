"""epsilon over all studies of a participant's ledger and the coming charges, which ``max_epsilon_total`` limits.

Of each study, the data with the highest cost over all its identities counts, as in `Totals.across_studies`: an upper
bound for every data set of the ledger. One order is used, that of the filter of the ledger's first study, so this is a
Renyi filter; for a single study the figure is the study's own.
"""

from __future__ import annotations

from mechanisms.plan import Plan
from wire.records.ledger_rows import epsilon, price
from wire.records.ledger_totals import Together, Totals, renyi_at


def kind_of_guarantee(adjacency: str, mechanism: str) -> tuple[str, bool]:
    """(adjacency, whether the coordinator must be trusted): only costs of equal kinds may be added."""
    return adjacency, mechanism == "gaussian"


def epsilon_in_total(plan: Plan, totals: Totals, *, delta: float, study_sha256: bytes, data_name: str) -> float:
    """epsilon of all charges of the plan's kind of guarantee in this ledger, after one more charge at h_min.

    The charge is for the study ``study_sha256`` and the data ``data_name``. Infinite if a row has no bound at the order
    or above.
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
    """`epsilon_in_total` after all rounds of the coming study's plan that may hold one participant, each at h_min.

    Charges of that study that the ledger holds are part of its plan: only what exceeds the plan counts in addition.
    """
    together, order = _together(plan, totals)
    return _composed(together, order, study_sha256, *_coming(plan, order, plan.participations), delta)


def _together(plan: Plan, totals: Totals) -> tuple[Together | None, float]:
    """The ledger's charges of the plan's kind of guarantee, and the order at which they are added."""
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
    """With ``mine`` for the coming study, or the cost of another participant's data in it if that is higher."""
    others, other_draws = 0.0, 0
    for study in () if together is None else together.studies:
        most = max((one.all_draws for one in study.by_data()), default=0)
        if study.first.study_sha256 == study_sha256.hex():
            mine, draws = max(mine, study.renyi_at(order)), max(draws, most)
        else:
            others, other_draws = others + study.renyi_at(order), other_draws + most
    return epsilon(order, others + mine, delta, other_draws + draws)
