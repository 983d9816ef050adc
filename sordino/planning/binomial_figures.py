"""Figures of a plan under binomial noise, under the same JSON names as those of the other mechanisms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from mechanisms.baselines.binomial_plan import NAME, BinomialPlan, plan_binomial
from mechanisms.mechanism import DESCRIPTIONS
from mechanisms.refusals import InfeasiblePlan
from mechanisms.rotation import rotation_layout
from runtime.failure import InputFailure
from secagg.errors import InvalidParameters
from secagg.parameters import (
    COMPLETE,
    HYBRID,
    X25519,
    RoundParameters,
    assumed_colluders,
    complete_graph_threshold,
    default_min_survivors,
    probability_below,
)
from secagg.sharing import MALICIOUS
from sordino.planning.plan_figures import PlanFigures
from sordino.planning.text import ring_warnings
from wire.guarantee import trust_of
from wire.study import upload_bytes

_ONLY: Final = (
    ("sampling", "none", "--sampling"),
    ("target", "coordinator", "--target"),
    ("budget_coordinator", None, "--budget-coordinator"),
    ("budget_released", None, "--budget-released"),
    ("sketch", (0, 0), "--sketch-rows"),
)
_OF_PLAN: Final = (
    *("clients", "dim", "padded_dim", "rotation", "bits", "clip", "rounds", "delta", "granularity"),
    *("central_stddev", "adjacency", "h_min", "min_survivors", "epsilon"),
)


def plan_binomial_study(chosen: Mapping[str, Any]) -> BinomialPlan:
    """A binomial plan from the arguments of ``wire.study.plan_study``: the same thresholds, A and survivors.

    Raises Failure: an option that binomial noise has no theorem for; mechanisms.refusals.InfeasiblePlan: no such plan
    holds.
    """
    for name, only, option in _ONLY:
        if chosen.get(name, only) != only:
            only_two = "binomial noise composes in epsilon and delta only"
            raise InputFailure(f"{only_two}: leave {option} out, or use skellam.")
    if chosen.get("evaluation"):
        raise InputFailure("with binomial noise participants don't evaluate: leave --evaluate out.")
    rule = chosen["clipping"]
    if rule.adaptive or len(rule.layers) != 1:
        raise InputFailure("binomial noise comes with one fixed clip: leave --layers and --clip-update out.")
    clients, dropout = chosen["clients"], chosen["max_dropout"]
    try:
        colluders = assumed_colluders(clients, chosen["adversarial"], dropout)
        survivors = chosen["min_survivors"]
        if survivors is None:
            survivors = default_min_survivors(clients, colluders, dropout)
        RoundParameters(
            cohort=clients,
            colluders=colluders,
            min_survivors=survivors,
            quorum=survivors if chosen["quorum"] is None else chosen["quorum"],
            bits=chosen["bits"],
            dim=max(chosen["dim"], 1),
        )
    except InvalidParameters as error:
        raise InfeasiblePlan(str(error), "") from error
    names = ("dim", "bits", "epsilon", "delta", "rounds", "rotation", "beta", "k_stddevs")
    return plan_binomial(
        **{name: chosen[name] for name in names},
        clients=clients,
        clip=rule.clips[0],
        colluders=colluders,
        min_survivors=survivors,
    )


def binomial_figures(plan: BinomialPlan, chosen: Mapping[str, Any]) -> PlanFigures:
    """The plan's numbers, as `sordino.planning.text.figures_of` gives them of other plans."""
    adversary = chosen.get("adversary", MALICIOUS)
    key_agreement = chosen.get("key_agreement", X25519)
    local = math.sqrt(plan.trials_per_share) / 2 * plan.granularity
    inflated = plan.sensitivities[1] * plan.granularity
    quorum = plan.min_survivors if chosen["quorum"] is None else chosen["quorum"]
    figures = PlanFigures(
        **{name: getattr(plan, name) for name in _OF_PLAN},
        **{name: chosen[name] for name in ("max_dropout", "adversarial")},
        mechanism=NAME,
        population=plan.clients,
        sampling="none",
        participations=plan.rounds,
        coded_dim=plan.dim,
        block_dim=rotation_layout(plan.dim, plan.rotation)[0],
        clipping=chosen["clipping"].to_json(),
        local_stddev=local,
        full_stddev=local * math.sqrt(plan.clients),
        noise_norm=local * math.sqrt(plan.dim / plan.clients) / plan.clip,
        noise_multiplier=plan.central_stddev / plan.clip,
        inflated_clip=inflated,
        effective_noise_multiplier=plan.central_stddev / inflated,
        epsilon_coordinator=plan.planned_epsilon,
        epsilon_released=plan.planned_epsilon,
        target="coordinator",
        A=plan.colluders,
        quorum=quorum,
        graph=COMPLETE,
        adversary=adversary,
        key_agreement=key_agreement,
        offer_offset_s=chosen.get("offer_offset_s", 0.0),
        threshold=complete_graph_threshold(plan.clients, plan.colluders),
        degree=plan.clients - 1,
        abort_probability=probability_below(plan.clients, chosen["max_dropout"], plan.min_survivors),
        upload_bytes=upload_bytes(plan.clients, plan.padded_dim, plan.bits, hybrid=key_agreement == HYBRID),
        budget_coordinator=plan.epsilon,
        budget_released=plan.epsilon,
        layer_noise_stddev=[plan.central_stddev],
        trusts=trust_of(NAME, adversary).words,
        theorem=DESCRIPTIONS[NAME].theorem,
        accountant=plan.composition,
    )
    return replace(figures, warnings=ring_warnings(chosen["graph"], figures))
