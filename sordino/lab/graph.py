"""Degree and threshold of the graph, with the reasons: figures and text of ``sordino graph``."""

from __future__ import annotations

import math
from dataclasses import asdict
from fractions import Fraction
from typing import Any

from runtime.failure import ExitCode, Failure, InputFailure
from runtime.text import aligned, folded, terminal_width
from secagg.parameters import (
    FEWEST_COLLUDERS,
    HARARY,
    SMALL_COHORT,
    assumed_colluders,
    choose_graph,
    complete_graph_threshold,
    default_min_survivors,
    signatures_needed,
    sparse_sharing,
)
from secagg.shamir import PRIME
from secagg.sharing import ADVERSARIES, MALICIOUS, Sharing, conditions, connected_degree, k_regular, published
from sordino.lab.bench import ring_attack
from sordino.lab.graph_options import GraphOptions
from sordino.planning.notes import percent, smallest
from wire.guarantee import CURIOUS_TRUST


def graph_figures(options: GraphOptions) -> dict[str, Any]:
    """The figures under their stable JSON names. Raises Failure: no graph keeps the promises for so few survivors."""
    clients, dropout, adversary = options.clients, options.dropout, options.adversary
    survivors = _planned(clients, dropout) if options.min_survivors is None else options.min_survivors
    if survivors > clients:
        raise InputFailure(f"--min-survivors {survivors} is more than the {clients:,} clients.")
    colluders = max(assumed_colluders(clients, options.adversarial, dropout), FEWEST_COLLUDERS)
    if clients <= colluders:
        reason = f"{clients} clients are too few: at least {FEWEST_COLLUDERS} are assumed to collude in small cohorts."
        if colluders > FEWEST_COLLUDERS:
            reason = f"{clients:,} clients are too few if {colluders:,} of them may collude."
        raise Failure(ExitCode.INFEASIBLE, reason, f"use --clients {colluders + 1} or more")
    all_three = {one: _sharing(options, colluders, survivors, one) for one in ADVERSARIES}
    chosen = all_three[adversary]
    signatures = signatures_needed(clients, colluders) if adversary == MALICIOUS else 0
    if max(chosen["threshold"], signatures) > survivors:
        raise _too_few_survivors(options, chosen, colluders, survivors, signatures)
    rule = None if adversary == MALICIOUS else published(clients, options.adversarial, dropout, adversary)
    return {
        **options.model_dump(exclude={"rings"}),
        "min_survivors": survivors,
        "colluders": colluders,
        "drops": clients - survivors,
        **chosen,
        "signatures": signatures,
        "published_degree": rule and rule.degree,
        "published_threshold": rule and rule.threshold,
        "adversaries": all_three,
        "plan": _study_plan(options, colluders),
        "warnings": [f"no round has more than {PRIME - 1:,} participants"] if clients >= PRIME else [],
    }


def _planned(clients: int, dropout: float) -> int:
    """Participants left after this share of dropouts, computed from the decimal: in binary 0.9 x 1000 may be larger."""
    return math.ceil((1 - Fraction(repr(float(dropout)))) * clients)


def _study_plan(options: GraphOptions, colluders: int) -> dict[str, Any] | None:
    """What `sordino plan` takes, whose min_survivors independent dropouts rarely miss; None for too many clients."""
    clients = options.clients
    if clients >= PRIME:
        return None
    survivors = default_min_survivors(clients, colluders, options.dropout)
    chosen = choose_graph(clients, colluders, survivors, options.adversary)
    sharing = Sharing(clients - 1, complete_graph_threshold(clients, colluders))
    if chosen == HARARY:
        sharing = sparse_sharing(clients, colluders, survivors, options.adversary) or sharing
    return {"min_survivors": survivors, "graph": chosen, **asdict(sharing)}


def _too_few_survivors(
    options: GraphOptions, chosen: dict[str, Any], colluders: int, survivors: int, signatures: int
) -> Failure:
    """Why no sum of this few survivors can be opened, and the fewest with which one can."""
    clients = options.clients
    by_signatures = signatures > chosen["threshold"]
    what = f"the number of signatures {signatures:,}" if by_signatures else f"the threshold {chosen['threshold']:,}"
    if chosen["graph"] == "complete" and not by_signatures:
        why = f"no ring has fewer than {SMALL_COHORT} participants"
        if clients >= SMALL_COHORT:
            why = f"no ring holds if {clients - survivors:,} of {clients:,} may drop out"
        what = f"{why}, and {what} of the complete graph"
    reason = f"{what} for {clients:,} clients, of whom {colluders:,} may collude, is above min_survivors {survivors:,}."
    least = max(complete_graph_threshold(clients, colluders), signatures)  # enough on the complete graph
    if least > clients:
        instead = f"use --clients {colluders + 2} or more, or a lower --adversarial"
        return Failure(ExitCode.INFEASIBLE, reason, instead)

    def shared(number: int) -> dict[str, Any]:
        return _sharing(options, colluders, number, options.adversary)

    # Below that many only on a ring, which holds from some number on.
    high = smallest(max(survivors, signatures - 1), least, lambda number: shared(number)["threshold"] <= number)
    graph = "on the complete graph" if shared(high)["graph"] == "complete" else "on a ring"
    instead = f"use --min-survivors {high}, {graph}: at most {clients - high:,} may leave; or a lower --adversarial"
    return Failure(ExitCode.INFEASIBLE, reason, instead)


def _sharing(options: GraphOptions, colluders: int, survivors: int, adversary: str) -> dict[str, Any]:
    """Graph, degree and threshold, as `secagg.parameters.RoundParameters.sharing` takes them, with the reasons."""
    clients, small = options.clients, options.clients < SMALL_COHORT
    about = (clients, colluders, clients - survivors, adversary)
    sigma, eta, grinding = options.sigma, options.eta, options.grinding
    found = None if small else k_regular(*about, sigma=sigma, eta=eta, grinding=grinding)
    if found is None:
        return {
            "graph": "complete",
            "degree": clients - 1,
            "threshold": complete_graph_threshold(clients, colluders),
            "set_by": "small" if small else "infeasible",
            **dict.fromkeys(("connected_degree", "corrupt_neighbours", "answering_neighbours")),
        }
    connected = connected_degree(*about, sigma=sigma, grinding=grinding)
    at = conditions(*about, found.degree, sigma=sigma, eta=eta, grinding=grinding)
    return {
        "graph": "harary",
        "degree": found.degree,
        "threshold": found.threshold,
        "set_by": "connectivity" if connected == found.degree else "answers",
        "connected_degree": connected,
        "corrupt_neighbours": at.corrupt,
        "answering_neighbours": at.answering,
    }


def attack_figures(figures: dict[str, Any], rings: int) -> dict[str, Any]:
    if figures["graph"] == "complete":
        raise InputFailure("--rings: the complete graph has no ring that could be cut; leave it out.")
    names = ("colluders", "drops", "adversary", "degree", "threshold")
    attack = ring_attack.play(
        ring_attack.Setting(members=figures["clients"], **{name: figures[name] for name in names}), rings
    )
    bits = figures["sigma"] + 1 + (figures["grinding"] if figures["adversary"] == "malicious" else 0)
    attack["ok"] = attack["ok"] and max(attack["cut_bound"], attack["open_bound"]) <= 2.0**-bits
    return attack


def graph_lines(figures: dict[str, Any]) -> list[str]:
    """What is printed, at most as wide as `runtime.text.terminal_width`."""
    width = terminal_width()
    clients, degree, complete = figures["clients"], figures["degree"], figures["graph"] == "complete"
    graph = "complete graph" if complete else f"ring (k-regular), {percent(degree / (clients - 1))} of the others"
    drops = f"{figures['drops']:,}" if figures["drops"] else "none"
    head = (
        f"{clients:,} participants, {figures['colluders']:,} of whom may collude with a {figures['adversary']} "
        f"coordinator; {drops} may drop out: {graph}."
    )
    lines = [*folded(head), "", *("  " + line for line in aligned(_reasons(figures), width - 2)), ""]
    lines += folded(_set_by(figures))
    if figures["adversary"] == "curious":
        lines += folded(f"A curious coordinator is trusted: {CURIOUS_TRUST}.")
    lines += ["", f"  {'coordinator':<16}{'neighbours':>10}{'threshold':>11}  graph     degree due to"]
    for name, one in figures["adversaries"].items():
        lines.append(
            f"  {name:<16}{one['degree']:>10,}{one['threshold']:>11,}  {_GRAPHS[one['graph']]:<10}"
            + _DUE[one["set_by"]]
            + ("" if one["threshold"] <= figures["min_survivors"] else " (no answer)")
        )
    remarks = [f"Note: {warning}." for warning in figures["warnings"]]
    plan = figures["plan"]
    if plan is not None and figures["min_survivors"] == _planned(clients, figures["dropout"]):
        shared = f"{plan['degree']:,} neighbours"
        if plan["graph"] == "complete":
            shared = "the complete graph" + ("" if complete else ", since no ring there halves the work")
        remarks.append(
            f"A study's plan for this dropout: min_survivors {plan['min_survivors']:,}, which independent dropouts "
            f"rarely miss, {shared}, threshold {plan['threshold']:,}."
        )
    lines += [line for remark in remarks for line in ("", *folded(remark))]
    if "attack" in figures:
        lines += ["", *_attack_lines(figures["attack"], width)]
    return lines


_GRAPHS = {"complete": "complete", "harary": "ring"}
_DUE = {
    "connectivity": "connectivity",
    "answers": "enough answers",
    "small": "small cohort",
    "infeasible": "no ring holds",
}


def _reasons(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    degree, threshold = figures["degree"], figures["threshold"]
    if figures["graph"] == "complete":
        holders, corrupt = figures["clients"], figures["colluders"]
    else:
        holders, corrupt = degree, figures["corrupt_neighbours"]
    rows = [("neighbours", f"{degree:,}", _connectivity(figures))]
    if figures["graph"] != "complete":
        rows += [
            ("corrupt", f"{corrupt:,}", "at most, among the neighbours of any participant"),
            (
                "answering",
                f"{figures['answering_neighbours']:,}",
                f"at least, among the neighbours of any participant, after random drops (but for 2^-{figures['eta']})",
            ),
        ]
    if figures["graph"] != "complete" and figures["adversary"] == "curious":
        rule = f"more than the {corrupt:,} corrupt neighbours"
    else:
        rule = f"2 x {threshold:,} > {holders:,} holders + {corrupt:,} corrupt: never both secrets of one participant"
    rows.append(("threshold", f"{threshold:,}", rule))
    rows.append(("min_survivors", f"{figures['min_survivors']:,}", "participants in a sum, at least"))
    if figures["signatures"]:
        rows.append(("signatures", f"{figures['signatures']:,}", "over the survivors, before anything is revealed"))
    if figures["published_degree"] is not None:
        figure = f"{figures['published_degree']}, {figures['published_threshold']}"
        rows.append(("[BBG+20]", figure, "neighbours and threshold of its rule, for these shares"))
    return rows


def _connectivity(figures: dict[str, Any]) -> str:
    if figures["graph"] == "complete":
        return "all others: no set of dropouts separates the rest"
    windows = f"windows of {figures['degree'] // 2:,} places on the ring"
    if figures["adversary"] != "malicious":
        return f"no two {windows} are all corrupt or dropped, where drops are random"
    if not figures["drops"]:
        return f"any two {windows} hold an honest participant"
    return f"any two {windows} hold more than the {figures['drops']:,} honest participants who may drop out"


def _set_by(figures: dict[str, Any]) -> str:
    security = f"2^-{figures['sigma']}"
    if figures["adversary"] == "malicious":
        security += f" against a coordinator that tries 2^{figures['grinding']} rings"
    chance = f"The figures of corrupt neighbours and windows hold except with probability {security}."
    if figures["set_by"] == "small":
        return f"Below {SMALL_COHORT} participants the complete graph is used, with at least 2 colluders."
    if figures["set_by"] == "infeasible":
        return "No ring keeps survivors connected, secrets safe and enough answers: the complete graph."
    if figures["set_by"] == "connectivity":
        return f"The degree is the smallest that keeps the honest survivors connected. {chance}"
    return (
        f"{figures['connected_degree']:,} neighbours would keep the honest survivors connected; the threshold needs "
        f"more of them for enough answers. {chance}"
    )


def _attack_lines(attack: dict[str, Any], width: int) -> list[str]:
    malicious = attack["adversary"] == "malicious"
    left = ("fewest left", f"{attack['fewest_honest']:,}", "honest and still there in two windows; 0 would cut a ring")
    if malicious:
        drops = attack["drops"]
        reason = f"{drops:,} or fewer, who may all drop out," if drops else "0"
        left = ("fewest honest", left[1], f"in two windows; {reason} would cut a ring")
    rows = [
        ("cut in two", *_seen(attack["cuts"], attack["rings"], attack["cut_bound"])),
        left,
        ("secrets open", *_seen(attack["opened"], attack["rings"], attack["open_bound"])),
        (
            "most corrupt",
            f"{attack['most_corrupt_neighbours']:,}",
            f"neighbours of one participant; {attack['corrupt_to_open']:,} open a secret that must stay closed",
        ),
    ]
    return [
        f"The attack on {attack['rings']:,} random rings ({attack['cpu_s']:.1f} s):",
        "",
        *("  " + line for line in aligned(rows, width - 2)),
    ]


def _seen(count: int, rings: int, bound: float) -> tuple[str, str]:
    """How many rings, which share of all, and at most which share."""
    if not bound:
        most = "none"
    elif bound > 1e-4:
        most = f"at most {100 * bound:.2g} %" if bound < 1 else "perhaps all"
    else:
        most = f"at most 2^{math.log2(bound):.0f} of them"
    return f"{count:,}", f"of {rings:,} rings ({100 * count / rings:.2g} %), {most} by the bound"
