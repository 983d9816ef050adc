"""A plan in plain words, for ``init``, ``plan`` and the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sordino.plan_checks import percent

if TYPE_CHECKING:
    from mechanisms.plan import Plan


def figures_of(plan: Plan) -> dict[str, Any]:
    """The plan's numbers under their stable JSON names.

    Nobody is sampled: every participant is invited to every round, so whoever reads the released models only
    learns as much as the coordinator does, and both epsilons are the same. There is no conditional figure
    either.
    """
    from wire.study import plan_figures

    figures = plan_figures(plan)
    figures.setdefault("epsilon_conditional", None)
    figures.setdefault("max_dropout", plan.max_dropout)
    figures["warnings"] = list(plan.warnings)
    return figures


def plan_table(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Rows of (what, how much, what it means), the privacy first.

    Args:
        figures: as ``figures_of`` gives them.
    """
    clients, dim = figures["clients"], figures["dim"]
    of_all = figures["full_stddev"] / figures["clip"]
    return [
        (
            "epsilon_coordinator",
            f"{figures['epsilon_coordinator']:.3f}",
            f"after {figures['rounds']} rounds, each with the fewest survivors; delta {figures['delta']:g}",
        ),
        (
            "epsilon_released",
            f"{figures['epsilon_released']:.3f}",
            "for readers of the models; without sampling the same",
        ),
        (
            "noise multiplier",
            f"{figures['noise_multiplier']:.3f}",
            f"smallest sum's noise over the clip; {of_all:.3f} if all {clients} survive",
        ),
        ("noise of one share", f"{figures['local_stddev']:.4g}", "standard deviation, in the units of the update"),
        ("min_survivors", f"{figures['min_survivors']} of {clients}", "fewest in a sum; below it nothing is revealed"),
        ("quorum", f"{figures['quorum']}", "fewest that may begin a round"),
        ("A", f"{figures['A']}", "assumed to collude; their noise doesn't count"),
        ("h_min", f"{figures['h_min']}", "honest participants in the smallest sum; sizes the noise"),
        ("threshold", f"{figures['threshold']}", "shares that open a secret when everybody takes part"),
        (
            "aborted rounds",
            percent(figures["abort_probability"]),
            f"if everybody left independently{_with_probability(figures)}",
        ),
        (
            "upload",
            f"{figures['upload_bytes']:,} bytes".replace(",", "\u00a0"),
            f"a participant a round, of it {figures['padded_dim']} x {figures['bits']} bits for the {dim} values",
        ),
        ("grid step", f"{figures['granularity']:.4g}", f"rounding inflates the clip to {figures['inflated_clip']:.6g}"),
    ]


def _with_probability(figures: Mapping[str, Any]) -> str:
    share = figures.get("max_dropout")
    return f" with probability {share:g}" if share is not None else ""


def plan_lines(figures: Mapping[str, Any]) -> list[str]:
    """``plan_table`` as aligned text, warnings last."""
    rows = plan_table(figures)
    first = max(len(row[0]) for row in rows)
    second = max(len(row[1]) for row in rows)
    lines = [f"{what:<{first}}  {much:<{second}}  {meaning}" for what, much, meaning in rows]
    return [*lines, *(f"Note: {warning}." for warning in figures.get("warnings", ()))]
