"""A plan in plain words, for ``init``, ``plan`` and the report."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sordino.plan_checks import percent

if TYPE_CHECKING:
    from mechanisms.plan import Plan

WIDTH: Final = 80
"""Columns of everything that ``plan`` and ``init`` print about a plan."""


def figures_of(plan: Plan) -> dict[str, Any]:
    """The plan's numbers under their stable JSON names, its warnings, and whom its mechanism trusts."""
    from mechanisms.mechanism import DESCRIPTIONS
    from wire.study import plan_figures

    figures = plan_figures(plan)
    figures["max_dropout"] = plan.max_dropout
    figures["adversarial"] = plan.adversarial
    figures["epsilon"] = plan.epsilon
    spends = plan.target != "conditional"  # else it is for comparison only
    figures["budget_coordinator"] = plan.budget_coordinator if spends else None
    figures["budget_released"] = plan.budget_released if spends else None
    figures["trusts"] = DESCRIPTIONS[plan.mechanism].trusts
    figures["theorem"] = DESCRIPTIONS[plan.mechanism].theorem
    figures["warnings"] = list(plan.warnings)
    return figures


def plan_table(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Rows of (what, how much, what it means), the privacy first.

    Args:
        figures: as ``figures_of`` gives them.
    """
    clients, dim = figures["clients"], figures["dim"]
    rows = [
        (
            "epsilon_coordinator",
            _epsilon(figures["epsilon_coordinator"]),
            _target(figures, "coordinator")
            + f"{_count(figures['rounds'], 'round')} with fewest survivors, delta {figures['delta']:g}",
        ),
        ("epsilon_released", _epsilon(figures["epsilon_released"]), _target(figures, "released") + _released(figures)),
    ]
    if figures["epsilon_conditional"] is not None or figures["target"] == "conditional":
        rows.append(
            (
                "epsilon_conditional",
                _epsilon(figures["epsilon_conditional"]),
                _target(figures, "conditional") + "published figure, if each were drawn by an independent coin",
            )
        )
    of_all = figures["full_stddev"] / figures["clip"]
    central = figures["mechanism"] == "gaussian"
    rows += [
        (
            "noise multiplier",
            f"{figures['noise_multiplier']:.3f}",
            "noise of a sum over the clip"
            if central
            else f"smallest sum's noise over the clip; {of_all:.3f} if all {clients} survive",
        ),
        (
            "noise of one share",
            "none" if central else f"{figures['local_stddev']:.4g}",
            "the coordinator adds all of it" if central else "standard deviation, units of the update",
        ),
        ("min_survivors", f"{figures['min_survivors']} of {clients}", "fewest in a sum; below, nothing is revealed"),
        ("quorum", f"{figures['quorum']}", "fewest that may begin a round"),
        ("A", f"{figures['A']}", "assumed to collude; their noise is ignored"),
        ("h_min", f"{figures['h_min']}", "honest in the smallest sum; sizes the noise"),
        ("threshold", f"{figures['threshold']}", "shares that open a secret if all take part"),
        (
            "aborted rounds",
            percent(figures["abort_probability"]),
            f"if each left independently{_with_probability(figures)}",
        ),
        (
            "upload",
            _bytes(figures["upload_bytes"]),
            f"each round: {figures['padded_dim']} x {figures['bits']} bits for {dim} values",
        ),
        ("rotation block", f"{figures['block_dim']}", f"{figures['rotation']}, of {figures['coded_dim']} values"),
        ("grid step", f"{figures['granularity']:.4g}", f"rounding lifts the clip to {figures['inflated_clip']:.6g}"),
    ]
    return rows


def _epsilon(value: float | None) -> str:
    return "above 70" if value is None else f"{value:.3f}"


def _target(figures: Mapping[str, Any], reader: str) -> str:
    if figures["sampling"] == "none" or figures["target"] != reader:
        return ""
    return f"the target, at most {figures['epsilon']:g}: " if "epsilon" in figures else "the target: "


def _released(figures: Mapping[str, Any]) -> str:
    if figures["sampling"] == "none":
        return "for readers of the models: here the same"
    share = figures["clients"] / figures["population"]
    return f"for readers of released models alone, each in {percent(share)} of the rounds"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _bytes(number: int) -> str:
    return f"{number:,} bytes".replace(",", "\u00a0")


def _with_probability(figures: Mapping[str, Any]) -> str:
    share = figures.get("max_dropout")
    return f", probability {share:g}" if share is not None else ""


def plan_lines(figures: Mapping[str, Any], width: int = WIDTH - 2) -> list[str]:
    """``plan_table`` as aligned text that is folded at ``width`` columns, warnings last."""
    lines = aligned(plan_table(figures), width)
    for warning in figures.get("warnings", ()):
        lines += textwrap.wrap(f"Note: {warning}.", width)
    return lines


def aligned(rows: list[tuple[str, str, str]], width: int) -> list[str]:
    """Three columns of which the last is folded under itself."""
    first = max(len(row[0]) for row in rows)
    second = max(len(row[1]) for row in rows)
    margin = first + second + 4
    lines: list[str] = []
    for what, much, meaning in rows:
        folded = textwrap.wrap(meaning, max(20, width - margin)) or [""]
        lines.append(f"{what:<{first}}  {much:<{second}}  {folded[0]}".rstrip())
        lines += [" " * margin + more for more in folded[1:]]
    return lines
