"""What other word lengths and the other distributed mechanism would cost, beside a central Gaussian."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from mechanisms.gaussian_exact import gaussian_multiplier
from mechanisms.plan import InfeasiblePlan, Plan
from mechanisms.round_cost import pld_epsilon
from mechanisms.statement import DRAWN, participations
from sordino.planning.plan_figures import PlanFigures
from wire.study import plan_study, planned_upload_bytes

BITS: Final = (10, 12, 14, 16, 18, 20)
MECHANISMS: Final = ("ddgauss", "skellam")
_FINE_BITS: Final = (26, 22, 20, 18, 16)


def tighter_bounds(plan: Plan) -> dict[str, Any]:
    """JSON names ``accountant`` and ``epsilon_pld`` of a plan: which bound its figures come from.

    ``accountant``: whose figure is the smallest for the plan's target, "exact", "renyi" or "pld". ``epsilon_pld``: a
    *conditional* figure by privacy loss distributions, of all rounds if every participant were drawn by an independent
    coin, for schedules that are fixed in advance; None except for the central Gaussian with Poisson or fixed-size
    sampling, and where it can't be stated.
    """
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
    if not (0 < epsilon < math.inf and 0 < delta < 1):
        raise InfeasiblePlan("epsilon must be finite and positive, delta between 0 and 1", "use 1 and 1e-5")
    return gaussian_multiplier(epsilon, delta) * math.sqrt(rounds)


def error_variance(plan: Plan | PlanFigures) -> float:
    """Variance of one value of a sum in which all survived: noise and rounding, data units squared.

    Rounding adds granularity^2 / 6 a vector, the mean of f (1 - f) over fractional parts f that are spread evenly; the
    rotation spreads them. The noise that is added is N shares, not the h_min that privacy counts on.
    """
    return plan.full_stddev**2 + plan.clients * plan.granularity**2 / 6


def central_gaussian_multiplier(chosen: Mapping[str, Any]) -> tuple[float, str]:
    """Noise multiplier of a central Gaussian that keeps the same target, and the accountant; ``chosen`` as of
    `plan_study`.

    Without amplification the exact figure; otherwise the smallest bound for the same reader, on a grid so fine that
    rounding no longer matters.

    Raises InfeasiblePlan: not even a trusted coordinator reaches the target.
    """
    sampling, clients = chosen.get("sampling", "none"), chosen["clients"]
    if sampling in ("none", "epochs") or chosen.get("target", "coordinator") == "coordinator":
        times = participations(sampling, clients, chosen.get("population") or clients, chosen["rounds"])
        return exact_gaussian_multiplier(chosen["epsilon"], chosen["delta"], times), "exact"
    for bits in _FINE_BITS:
        try:
            plan = plan_study(**dict(chosen) | {"mechanism": "gaussian", "bits": bits})
        except InfeasiblePlan:
            if bits == _FINE_BITS[-1]:
                raise
            continue
        return plan.effective_noise_multiplier, tighter_bounds(plan)["accountant"]
    raise AssertionError("unreachable")


def alternatives(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The table: for each distributed mechanism and number of bits whether it is feasible, and what it costs.

    Returns ``central``: noise_multiplier and accountant of the central Gaussian at the same target; ``rows``:
    mechanism, bits, feasible, and for feasible ones noise_multiplier, noise_cost (variance of one value of the mean if
    all survive, as a factor of the central Gaussian's) and upload_bytes; ``samplings``: `samplings`.
    """
    multiplier, accountant = central_gaussian_multiplier(chosen)
    rows: list[dict[str, Any]] = []
    for mechanism in MECHANISMS:
        found: list[dict[str, Any]] = []
        fewer_fail = False  # fewer bits leave less room for noise
        for bits in reversed(BITS):
            row: dict[str, Any] = {"mechanism": mechanism, "bits": bits, "feasible": False}
            if not fewer_fail:
                try:
                    plan = plan_study(**dict(chosen) | {"mechanism": mechanism, "bits": bits})
                except InfeasiblePlan as problem:
                    fewer_fail = (problem.change.get("bits") or bits) >= bits  # else fewer bits are what helps
                else:
                    row |= _costs(plan, multiplier, planned_upload_bytes(plan))
            found.append(row)
        rows += reversed(found)
    central = {"noise_multiplier": multiplier, "accountant": accountant}
    return {"central": central, "rows": rows, "samplings": samplings(chosen)}


def _costs(plan: Plan | PlanFigures, central_multiplier: float, upload_bytes: int) -> dict[str, Any]:
    return {
        "feasible": True,
        "noise_multiplier": plan.noise_multiplier,
        "noise_cost": error_variance(plan) / (central_multiplier * plan.clip) ** 2,
        "upload_bytes": upload_bytes,
    }


def samplings(chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each way of inviting costs at the same target: all in each round, a lottery, epochs; empty without a
    population.

    Each row: sampling, in_a_round, participations (rounds that may hold one participant) and, where feasible,
    mean_error (standard deviation of one value of the mean if all survive, over the clip) and upload_bytes.
    """
    population, rows = chosen.get("population") or 0, list[dict[str, Any]]()
    if population <= chosen["clients"]:
        return []
    own = {"budget_coordinator": None, "budget_released": None}
    everybody = {"clients": population, "min_survivors": None, "quorum": None}
    for sampling in ("none", *DRAWN):
        changed = own | {"sampling": sampling} | (everybody if sampling == "none" else {})
        size: int = population if sampling == "none" else chosen["clients"]
        row: dict[str, Any] = {
            "sampling": sampling,
            "in_a_round": size,
            "participations": participations(sampling, size, population, chosen["rounds"]),
            "feasible": False,
        }
        with contextlib.suppress(InfeasiblePlan):
            plan = plan_study(**dict(chosen) | changed)
            error = math.sqrt(error_variance(plan)) / plan.clip / size
            row |= {"feasible": True, "mean_error": error, "upload_bytes": planned_upload_bytes(plan)}
        rows.append(row)
    return rows


def with_own_row(table: Mapping[str, Any], figures: PlanFigures) -> dict[str, Any]:
    """The table with the plan itself as a first row, where its mechanism is none of those compared."""
    if figures.mechanism in MECHANISMS:
        return dict(table)
    costs = _costs(figures, table["central"]["noise_multiplier"], figures.upload_bytes)
    own = {"mechanism": figures.mechanism, "bits": figures.bits, **costs}
    return dict(table) | {"rows": [own, *table["rows"]]}


def alternatives_lines(table: Mapping[str, Any], figures: PlanFigures) -> list[str]:
    """The tables as text of at most 78 columns; the settings of the plan itself are marked."""
    rows: list[tuple[str, ...]] = [("mechanism", "bits", "noise multiplier", "noise cost", "upload bytes")]
    marked = set[int]()
    for row in table["rows"]:
        if (row["mechanism"], row["bits"]) == (figures.mechanism, figures.bits):
            marked.add(len(rows))
        cells = (
            (f"{row['noise_multiplier']:.3f}", _times(row["noise_cost"]), f"{row['upload_bytes']:,}")
            if row["feasible"]
            else ("infeasible", "", "")
        )
        rows.append((row["mechanism"], str(row["bits"]), *cells))
    lines = _in_columns(rows, marked)
    if table["samplings"]:
        rows, marked = [("sampling", "in a round", "rounds of each", "error of the mean", "upload bytes")], set()
        for row in table["samplings"]:
            if row["sampling"] == figures.sampling:
                marked.add(len(rows))
            costs = (f"{row['mean_error']:.3g} clips", f"{row['upload_bytes']:,}") if row["feasible"] else ("-", "-")
            rows.append((row["sampling"], f"{row['in_a_round']:,}", f"{row['participations']:,}", *costs))
        lines += ["", *_in_columns(rows, marked)]
    return lines


def _in_columns(rows: Sequence[tuple[str, ...]], marked: Collection[int]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for index, row in enumerate(rows):
        cells = [f"{cell:>{wide}}" for cell, wide in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([f"{'>' if index in marked else ' '} {row[0]:<{widths[0]}}", *cells]).rstrip())
    return lines


def _times(factor: float) -> str:
    if not math.isfinite(factor):
        return "-"
    return f"x {factor:.3f}" if factor < 10 else f"x {factor:,.0f}"
