"""What was spent from a host's data, beside what the host's policy allows: a part of ``sordino budget show``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from runtime.text import folded
from wire.guarantee import adjacency_word, condition
from wire.records.ledger_rows import epsilon
from wire.records.ledger_totals import StudyTotals, Together, Totals

if TYPE_CHECKING:
    from client.settings import Policy

_NAMED: Final = ("max_epsilon", "max_delta", "max_epsilon_round", "max_epsilon_total")


def limits(totals: Totals, policy: Policy | None, who: int | str | None = None) -> dict[str, Any]:
    """Per study and over all studies, under stable JSON names; policy None where only a ledger is at hand.

    ``who``: only this identity's studies, with all that was spent from its data there.
    """
    studies = [study for study in totals.studies.values() if who is None or who in study.spent]
    pace, now = totals.pace, time.time()
    most = (None, None) if policy is None else (policy.total_delta, policy.max_epsilon_total)
    return {
        "policy": None if policy is None else {name: getattr(policy, name) for name in _NAMED},
        "studies": [_study(study, policy, who) for study in studies],
        "together": [{**composed(kind, most[0]), "allowed": most[1]} for kind in totals.across_studies()],
        "attempts_in_24_hours": pace.within_a_day(now),
        "max_rounds_per_day": None if policy is None else policy.max_rounds_per_day,
        "hours": None if policy is None or policy.hours is None else list(policy.hours),
    }


def _study(study: StudyTotals, policy: Policy | None, who: int | str | None) -> dict[str, Any]:
    first = study.first
    chosen = list(study.spent) if who is None else [who]
    # What other identities spent from the same data counts: it is held against the same limits.
    names = {study.spent[one].data for one in chosen}
    return {
        "study": first.study,
        "participants": len(chosen),
        "data": len(names),
        "attempts": max(study.of_data(name).charges for name in names),
        "epsilon": max(study.epsilon_of_data(name) for name in names),
        "delta": first.delta,
        "allowed": None if policy is None else policy.max_epsilon,
        "planned": first.epsilon,
        # A participant keeps no study document, only its digest: what the coordinator may do isn't in it.
        "holds": f"{adjacency_word(first.adjacency)}, " + condition(first.mechanism, first.colluders, adversary=None),
    }


def composed(kind: Together, delta: float | None = None) -> dict[str, Any]:
    """Studies over the same data together, at ``delta``, by default the least of theirs."""
    delta = min(study.first.delta for study in kind.studies) if delta is None else delta
    spent = epsilon(kind.order, kind.renyi, delta, kind.draws)
    return {
        "adjacency": kind.adjacency,
        "coordinator_trusted": kind.coordinator_trusted,
        "studies": [study.first.study for study in kind.studies],
        "epsilon": spent if spent < float("inf") else None,
        "delta": delta,
        "order": kind.order,
    }


def wrapped(text: str) -> list[str]:
    """Indented lines of a paragraph."""
    return folded(text, 98, "  ", "    ")


def limit_lines(found: dict[str, Any]) -> list[str]:
    """`limits` for people."""
    known = found["policy"] is not None
    rows = [
        (one["study"], str(one["attempts"]), one["epsilon"], one["delta"], _allowed(one["allowed"], known))
        for one in found["studies"]
    ]
    if not rows:
        return ["Nothing was charged yet.", *_when(found)]
    several = len(found["together"]) > 1
    for kind in found["together"]:
        name = "all studies together"
        if several:
            trusted = ", coordinator trusted" if kind["coordinator_trusted"] else ""
            name = f"together ({adjacency_word(kind['adjacency'])}{trusted})"
        rows.append((name, "", kind["epsilon"], kind["delta"], _allowed(kind["allowed"], known)))
    width = max(len(row[0]) for row in rows)
    said = [f"  {'study':<{width}}  attempts    epsilon     delta   the policy allows"]
    for name, attempts, spent, delta, allowed in rows:
        figure = "too large" if spent is None else f"{spent:.4g}"
        said.append(f"  {name:<{width}}  {attempts:>8} {figure:>10} {delta:>9.3g}   {allowed}")
    said += [
        "",
        "Epsilon bounds what a reader of a study's sums can learn about one participant's updates; smaller is better.",
        "The figure is for the participant's data with the largest total here, over all its identities.",
        "A study's figure holds under its condition:",
        *(line for one in found["studies"] for line in wrapped(f"{one['study']}: {one['holds']}")),
    ]
    if any(_below_a_part(kind, found["studies"]) for kind in found["together"]):
        said += ["The total is stated at another order than a study's figure and can be a little lower."]
    if several:
        said += ["Guarantees of different kinds are never added up: see docs/policy.md on max_epsilon_total."]
    return [*said, *_when(found)]


def _below_a_part(kind: dict[str, Any], studies: list[dict[str, Any]]) -> bool:
    parts = [one["epsilon"] for one in studies if one["study"] in kind["studies"]]
    return kind["epsilon"] is not None and kind["epsilon"] < max(parts, default=0.0)


def _allowed(limit: float | None, known: bool) -> str:
    if limit is not None:
        return f"{limit:g}"
    return "any: max_epsilon_total is not set" if known else "name the host's folder to see it"


def _when(found: dict[str, Any]) -> list[str]:
    most, hours = found["max_rounds_per_day"], found["hours"]
    count = f"{found['attempts_in_24_hours']}" + (f" of {most}" if most is not None else "")
    said = ["", f"Attempts charged within the last 24 hours: {count}."]
    if hours is not None:
        said.append(f"Rounds are taken part in at {', '.join(hours)}, local time.")
    return said
