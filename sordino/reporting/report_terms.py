"""The report's words about privacy: what each mechanism promises, to whom, and on which assumptions."""

from __future__ import annotations

import json
import math
from collections.abc import Collection

from mechanisms.clip_rule import ClipRule
from mechanisms.mechanism import DESCRIPTIONS
from mechanisms.plan import Plan
from secagg.sharing import CURIOUS
from server.study_view import StudyView
from wire.guarantee import (
    EACH_FOR_ITSELF,
    KEYS,
    TRUSTED_COORDINATOR,
    adjacency_word,
    evaluated,
    guarantee,
    offers_leave,
    trust_of,
)

_LIES = (
    "If it lies about who survived, about keys or about the model, honest participants stop before they reveal "
    "anything that would open a second sum."
)
_TRUSTED_NOT_TO_LIE = (
    "It is trusted to send all participants the same sets: the plan is for a curious coordinator, and the set of "
    "survivors isn't signed. If it lies, it can open sums over fewer participants."
)


def plan_of(view: StudyView) -> Plan | None:
    """The plan as the coordinator recorded it; None when this version can't read it."""
    try:
        return Plan.from_json(json.dumps(dict(view.started.plan)))
    except (TypeError, ValueError):
        return None


def outcome(view: StudyView, sums: Collection[int]) -> str:
    """What was learned in the rounds so far, by whom, and what bounds it: a few sentences.

    ``sums``: how many updates are in each sum, or the fewest and the most.
    """
    fewest, most = min(sums), max(sums)
    count = f"between {fewest} and {most}" if fewest != most else f"{most}"
    spent = f"epsilon {view.epsilon_coordinator:.2f} at delta {view.started.delta:g}"
    holds = guarantee(view.started.plan)
    mechanism = view.started.plan.get("mechanism")
    one = "contribution" if view.seeks_statistic else "update"
    if mechanism == TRUSTED_COORDINATOR:
        return (
            f"The coordinator is trusted: in each round it saw one sum over {count} {one}s without noise, no "
            f"single {one}, and added the noise itself. What all others can learn about one participant's data, "
            f"over all rounds, is bounded by {spent} (zero-out)."
        )
    if mechanism == EACH_FOR_ITSELF:
        return (
            f"Each {one} carried its own noise before it left its participant, and the coordinator learned one sum "
            f"over {count} of them a round. What any reader can learn about one participant's data, over all rounds "
            f"and for any colluders, is bounded by {spent} (replace-one)."
        )
    return (
        f"In each round the coordinator learned one noisy sum over {count} {one}s, and no single {one}. What it "
        f"can learn about one participant's data from all rounds together is bounded by {spent}"
        + (f" ({holds})." if holds else ".")
    )


def mechanism_rows(view: StudyView, plan: Plan, wrapped: Collection[tuple[float, int]]) -> list[tuple[str, str]]:
    """Rows on mechanism, trust, adjacency, theorem, clips and wrapping.

    ``wrapped``: (share of a sum's values that wrapped around, round) of the rounds that say it, or of the worst.
    """
    described = DESCRIPTIONS.get(plan.mechanism)
    if described is None:
        return []
    rows = [
        ("Mechanism", f"{described.name}: {described.title}"),
        ("Trusts", trust_of(plan.mechanism, plan.adversary).words),
        ("Adjacency", described.adjacency),
        ("Keys", KEYS[plan.key_agreement]),
        ("Offers", offers_leave(plan.offer_offset_s)),
        *([("Evaluation", evaluated(plan.evaluation, view.started.task))] if plan.evaluation else []),
        ("Theorem", described.theorem),
        ("Clip", clip_words(plan.clipping, "contribution" if view.seeks_statistic else "update")),
    ]
    if wrapped:
        share, number = max(wrapped, key=lambda one: (one[0], -one[1]))
        text = (
            f"at most {100 * share:.2g} % of a sum's values (round {number})" if share >= 1e-6 else "practically none"
        )
        rows.append(("Wrapped around", f"{text}; estimated from the sums"))
    return rows


def clip_words(rule: ClipRule, what: str = "update") -> str:
    """How updates are clipped, in one line; or how a statistic's contributions are."""
    several = len(rule.layers) > 1
    least, most = f"{min(rule.clips):.4g}", f"{max(rule.clips):.4g}"
    size = least if least == most else f"{least} to {most}"
    words = f"L2 norm {size} of " + (f"each of {len(rule.layers)} layers" if several else f"the whole {what}")
    if rule.adaptive:
        words += f" in round 1, then following the {rule.quantile:g} quantile of the norms in {rule.update} steps"
    else:
        words += ", fixed"
    return words + (f"; {_NOISE[rule.scaling]}" if several else "")


_NOISE = {
    "uniform": "the same noise in all",
    "proportional": "noise in proportion to each clip",
    "least-noise": "the noise split so that its sum is smallest",
}


def layer_names(rule: ClipRule) -> list[str]:
    """``update`` of one layer; else ``layer 2 (10 values)``."""
    if len(rule.layers) == 1:
        return ["update"]
    return [f"layer {number} ({size:,} values)" for number, size in enumerate(rule.layers, start=1)]


def terms(view: StudyView, plan: Plan | None) -> list[tuple[str, str]]:
    """What is promised: (term, its meaning), in the order of the page."""
    facts = view.started.plan
    mechanism = str(facts.get("mechanism", ""))
    colluders, clients = facts.get("colluders", "?"), facts.get("clients", view.participants)
    survivors = facts.get("min_survivors", "min_survivors")
    lies = _TRUSTED_NOT_TO_LIE if facts.get("adversary") == CURIOUS else _LIES
    h_min = plan.h_min if plan is not None else "h_min"
    described = DESCRIPTIONS.get(mechanism)
    adjacency = adjacency_word(described.adjacency) if described else "that of the plan"
    secrecy = (
        f"A = {colluders} of {clients} is assumed for secure aggregation alone: up to A, together with the "
        f"coordinator, learn no single update of the others, only"
    )
    if mechanism == TRUSTED_COORDINATOR:
        sees = (
            f"One sum a round, over at least {survivors} updates, without noise. It is trusted to add the noise and to "
            f"release nothing else: epsilon doesn't bound what it learns itself. {lies}"
        )
        collude = (
            "Whether participants collude with each other makes no difference to epsilon: none of the noise is theirs. "
            f"It does make a difference whether the coordinator joins them. {secrecy} the exact sum of at least "
            f"{h_min} honest participants."
        )
    elif mechanism == EACH_FOR_ITSELF:
        sees = f"One sum a round, over at least {survivors} updates that each carried its own noise already. {lies}"
        collude = (
            "Epsilon holds for any colluders: a participant counts on its own noise only. "
            f"{secrecy} the sum of at least {h_min} honest participants."
        )
    else:
        sees = (
            f"One sum a round, over at least {survivors} updates, with noise in it that no single party knows. {lies}"
        )
        collude = (
            f"Up to A = {colluders} of {clients} participants, together with the coordinator. Their noise is not "
            f"counted: every sum holds the noise of at least h_min = {h_min} honest participants."
        )
    noise = "the noise" if mechanism == TRUSTED_COORDINATOR else "its noise"
    against = f"whole contribution in a round against one of zeros, {noise} present either way"
    apart = ", and telling two arbitrary updates apart has twice the sensitivity"
    if adjacency == "replace-one":
        against, apart = "update in a round against any other", ""
    bounds = (
        f"Adjacency is {adjacency}: a participant's {against}. It hides what a participant's data says, in all rounds "
        f"together. It does not hide that the participant took part{apart}."
    )
    return [
        ("What the coordinator sees", sees),
        ("Who is assumed to collude", f"{collude} A is an assumption, not something that is measured."),
        ("What epsilon bounds", bounds),
        (
            "How it is charged",
            "A round is charged when its survivors are fixed, at what its sum really costs; an attempt that then "
            "fails stays charged. The figure shown is for the participant with the highest cost, at a Renyi "
            "order fixed before the study began; the first round includes the cost of delta, so it looks expensive. "
            "The study stops before a round that would exceed the budget.",
        ),
        (
            f"What delta {view.started.delta:g} means",
            "The probability with which the bound epsilon may fail. It should be far below one over the "
            "number of participants.",
        ),
        (
            "What remains visible",
            "Who takes part, when messages arrive, and who left. Whether local training worked is hidden: where it "
            "fails, zeros are sent. Losses, norms and numbers of examples never leave a participant in the clear. A "
            "cheating participant can shift the sum by any amount: inputs are not proved.",
        ),
    ]


def clip_rows(view: StudyView) -> list[tuple[int, tuple[float, ...], tuple[float, ...]]]:
    """(round, clips, share of norms below them) of the rounds that say both, for as many layers as the first has."""
    found = [(done.round, done.clips, done.below_clip) for done in view.rounds if done.clips and done.below_clip]
    return [
        row
        for row in found
        if len(row[1]) == len(row[2]) == len(found[0][1]) and all(map(math.isfinite, (*row[1], *row[2])))
    ]
