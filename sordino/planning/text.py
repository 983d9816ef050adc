"""A plan in plain words, for ``init``, ``plan`` and the report."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any, Final

from mechanisms.mechanism import DESCRIPTIONS
from mechanisms.plan import Plan
from runtime.text import aligned, counted, finite, folded
from secagg.parameters import COMPLETE, HARARY, assumed_colluders, probability_below
from sordino.planning.notes import no_ring, percent, reached
from sordino.planning.plan_figures import PlanFigures
from wire.guarantee import CURIOUS_TRUST, noise_adds_up, offers_leave, trust_of
from wire.study import hybrid_bytes, planned_upload_bytes, round_parameters

_LAYERS_SHOWN: Final = 8
_ALONE: Final = ("gaussian", "local-gaussian")  # whose noise doesn't depend on that of others
_COORDINATOR: Final = {
    "malicious": "it may lie; participants sign who is in a sum before it opens",
    "semi-malicious": "may lie once keys are exchanged; for comparison, never served",
    "curious": f"{CURIOUS_TRUST}; the survivor sets are not signed",
}
_SAMPLED: Final = {
    "lottery": "drawn by lottery",
    "epochs": "drawn by epochs",
    "poisson": "each drawn by an independent coin",
    "fixed": "drawn without replacement",
}


_RATIO: Final = math.hypot(1, 0.5)
"""A ratio's deviation over that of its numerator, at most (`mechanisms.evaluation.Evaluation.measured`)."""


def figures_of(plan: Plan) -> PlanFigures:
    """The plan's numbers under their stable JSON names, its warnings, and whom it trusts."""
    sharing = round_parameters(plan).sharing(plan.clients)
    values: dict[str, Any] = {
        "clipping": plan.clipping.to_json(),
        "sketch": [plan.sketch_rows, plan.sketch_width] if plan.sketch_rows else None,
        # None: above the largest epsilon that the sampler's distance from the exact law allows to state.
        "epsilon_coordinator": finite(plan.epsilon_coordinator),
        "epsilon_released": finite(plan.epsilon_released),
        "epsilon_conditional": finite(plan.epsilon_conditional) if plan.amplified else None,
        "A": plan.colluders,
        "graph": COMPLETE if sharing.degree == plan.clients - 1 else HARARY,
        "threshold": sharing.threshold,
        "degree": sharing.degree,
        "abort_probability": probability_below(plan.clients, plan.max_dropout, plan.min_survivors),
        "upload_bytes": planned_upload_bytes(plan),
        "layer_noise_stddev": [plan.central_stddev * scale for scale in plan.clipping.scales(plan.clipping.clips)],
        "quantile_stderr": share_stderr(plan, plan.clipping.bit_weight),
        "accuracy_stderr": share_stderr(plan, plan.evaluation.weight, _RATIO),
        "evaluation": plan.evaluation.to_json() if plan.evaluation else {},
        "trusts": trust_of(plan.mechanism, plan.adversary).words,
        "theorem": DESCRIPTIONS[plan.mechanism].theorem,
        "warnings": list(plan.warnings),
    }
    if plan.target == "conditional":  # for comparison only: it spends nothing
        values |= {"budget_coordinator": None, "budget_released": None}
    own = {one.name for one in fields(PlanFigures)}.intersection(dir(plan)) - set(values)
    figures = PlanFigures(**values, **{name: getattr(plan, name) for name in own})
    return replace(figures, warnings=[*figures.warnings, *ring_warnings(plan.graph, figures)])


def ring_warnings(asked: str, figures: PlanFigures) -> list[str]:
    """A sentence without a full stop where a ring was asked for, and the graph is complete."""
    if asked != HARARY or figures.graph != COMPLETE:
        return []
    if figures.mechanism == "binomial":
        return ["--graph harary was asked for, and the graph is complete: no other is planned with binomial noise"]
    whose = (figures.clients, figures.A, figures.min_survivors, figures.adversary)
    return [no_ring(*whose, "raise --min-survivors")]


def share_stderr(plan: Plan, weight: float, factor: float = 1.0) -> float | None:
    """Standard error of a share that appended coordinates of this weight tell, in the smallest sum; None for weight 0.

    A bit is +a/2 or -a/2, so the share is the mean of what the sum holds, over a, plus 1/2: the noise of |u3| shares
    over a |u3|. The coordinator's own noise is the same for every sum.
    """
    if not weight:
        return None
    central = plan.mechanism == "gaussian"
    noise = plan.central_stddev if central else plan.local_stddev * math.sqrt(plan.min_survivors)
    return factor * noise / (weight * plan.clip * plan.min_survivors)


def heading(figures: PlanFigures) -> str:
    """Participants, values, rounds and epsilon, in one sentence."""
    drawn = "" if figures.sampling == "none" else f" of {figures.population:,}, {_SAMPLED[figures.sampling]}"
    dim, padded = figures.dim, figures.padded_dim
    values = counted(dim, "value") + ("" if padded == dim else f" sent as {padded:,}")
    most = f"at most {figures.epsilon:g}"
    if not reached(figures):
        most = f"{figures.planned_epsilon:.3f} ({figures.epsilon:g} was asked for)"
    reader = "epsilon" if figures.target == "coordinator" else f"epsilon_{figures.target}"
    only = " (published figure, for comparison only)" if figures.target == "conditional" else ""
    return (
        f"{figures.clients:,} participants{drawn}, {values} of {counted(figures.bits, 'bit')}, "
        f"{counted(figures.rounds, 'round')}, {reader} {most}{only} at delta {figures.delta:g}"
    )


def plan_table(figures: PlanFigures) -> list[tuple[str, str, str]]:
    """Rows of (what, how much, what it means), the privacy first; ``figures``: as ``figures_of`` gives them."""
    clients, dim = figures.clients, figures.dim
    left = f"if each left independently, probability {figures.max_dropout:g}"
    sent = f"each round: {figures.padded_dim:,} x {counted(figures.bits, 'bit')} for {counted(dim, 'value')}"
    lifted = f"rounding lifts the clip to {figures.inflated_clip:.6g}{_scaled(figures, ', both')}"
    role = "the noise doesn't depend on it" if figures.mechanism in _ALONE else "sizes the noise"
    return [
        *_epsilons(figures),
        *_noises(figures),
        ("min_survivors", f"{figures.min_survivors:,} of {clients:,}", "fewest in a sum; below, nothing is revealed"),
        ("quorum", f"{figures.quorum:,}", "fewest that may begin a round"),
        ("A", f"{figures.A:,}", _colluders(figures)),
        ("h_min", f"{figures.h_min:,}", f"honest in the smallest sum; {role}"),
        *_sharing(figures),
        ("aborted rounds", percent(figures.abort_probability), left),
        ("upload", f"{figures.upload_bytes:,} bytes", sent),
        ("rotation block", f"{figures.block_dim:,}", f"{figures.rotation}, of {counted(figures.coded_dim, 'value')}"),
        ("grid step", f"{figures.granularity:.4g}", lifted),
    ]


def _epsilons(figures: PlanFigures) -> list[tuple[str, str, str]]:
    survivors = ", any survivors" if figures.mechanism in _ALONE else " with fewest survivors"
    each = "" if figures.participations == figures.rounds else f"each in {figures.participations} of "
    words = f"{each}{counted(figures.rounds, 'round')}{survivors}, delta {figures.delta:g}"
    if figures.mechanism == "gaussian":
        words = f"for all readers except the coordinator, which is trusted: {words}"
    rows = [
        ("epsilon_coordinator", _epsilon(figures.epsilon_coordinator), _target(figures, "coordinator") + words),
        ("epsilon_released", _epsilon(figures.epsilon_released), _target(figures, "released") + _released(figures)),
    ]
    if figures.epsilon_conditional is not None or figures.target == "conditional":
        said = _target(figures, "conditional") + "published figure, if each were drawn by an independent coin"
        rows.append(("epsilon_conditional", _epsilon(figures.epsilon_conditional), said))
    return rows


def _noises(figures: PlanFigures) -> list[tuple[str, str, str]]:
    clients, h_min, of_all = figures.clients, figures.h_min, figures.full_stddev / figures.clip
    unit = _scaled(figures) or ", units of the update"
    if figures.mechanism == "gaussian":
        said = f"standard deviation{unit}; the coordinator adds it after it has seen the sum"
        rows = [
            ("noise multiplier", f"{figures.noise_multiplier:.3f}", "noise of every sum, divided by the clip"),
            ("noise of a sum", f"{figures.central_stddev:.4g}", said),
        ]
    else:
        said = (
            f"noise of {counted(h_min, 'honest participant')}, divided by the clip; {of_all:.3f} if all "
            f"{clients:,} survive, with the colluders' noise"
        )
        rows = [
            ("noise multiplier", f"{figures.noise_multiplier:.3f}", said),
            ("noise of one share", f"{figures.local_stddev:.4g}", f"standard deviation{unit}"),
        ]
        if figures.noise_parts:
            said = f"if more than {figures.min_survivors:,} survive, each removes the surplus part of its noise"
            rows.append(("noise in parts", f"{figures.noise_parts}", said))
    if figures.trains:
        norm = figures.noise_norm
        rows.append(("noise of the mean", f"{norm:.3g} clips", noise_adds_up(norm, figures.rounds)))
    rule = figures.clipping
    if rule["scaling"] != "uniform":
        by_layer = list(zip(figures.layer_noise_stddev, rule["clips"], rule["layers"], strict=True))
        which = "every" if figures.mechanism == "gaussian" else "the smallest"
        for number, (noise, clip, size) in enumerate(by_layer[:_LAYERS_SHOWN], 1):
            said = f"of {which} sum, units of the update; clip {clip:.4g}, {counted(size, 'value')}"
            rows.append((f"noise of layer {number}", f"{noise:.4g}", said))
        if len(by_layer) > _LAYERS_SHOWN:
            rows.append(("", "", f"and {len(by_layer) - _LAYERS_SHOWN} more: --json has all"))
    if figures.quantile_stderr is not None:
        said = "standard error of the share of norms below a clip, in the smallest sum"
        rows.append(("quantile estimate", f"± {figures.quantile_stderr:.2g}", said))
    if figures.accuracy_stderr is not None:
        dearer = math.hypot(1, math.sqrt(3) / 2 * figures.evaluation["weight"]) - 1
        said = (
            "standard error by the noise, in the smallest sum, if all hold out "
            f"{counted(figures.evaluation['most_examples'], 'example')} or more; it makes the noise of updates "
            f"{percent(dearer)} larger"
        )
        rows.append(("accuracy reported", f"± {figures.accuracy_stderr:.2g}", said))
    return rows


def _scaled(figures: PlanFigures, subject: str = ",") -> str:
    """Where each layer is divided by its own scale, sums are in other units than the update."""
    return "" if figures.clipping["scaling"] == "uniform" else f"{subject} in scaled units"


def _colluders(figures: PlanFigures) -> str:
    does = {
        "gaussian": "they don't know the coordinator's noise",
        "local-gaussian": "no participant's noise protects another",
    }.get(figures.mechanism, "their noise is ignored")
    if figures.sampling == "none" or figures.population == figures.clients:
        return f"assumed to collude; {does}"
    everywhere = assumed_colluders(figures.population, figures.adversarial, figures.max_dropout)
    if everywhere <= figures.A:
        return f"assumed to collude, wherever they are drawn; {does}"
    return (
        f"at most {figures.A:,} of the {everywhere:,} colluders are drawn, except with chance 2^-40 in all rounds "
        f"together; {does}"
    )


def _sharing(figures: PlanFigures) -> list[tuple[str, str, str]]:
    """The graph, the shares that open a secret, and what the coordinator may do."""
    degree, others = figures.degree, figures.clients - 1
    if degree == others:
        graph = ("graph", "complete", "each shares with all others")
    else:
        words = f"k-regular: each shares with {degree // 2} on either side, of {others:,} others"
        graph = ("graph", f"ring of {degree}", words)
    return [
        graph,
        ("threshold", f"{figures.threshold:,}", "shares that open a secret if all take part"),
        ("coordinator", figures.adversary, _COORDINATOR[figures.adversary]),
        ("keys", figures.key_agreement, _keys(figures)),
        ("offers", "", offers_leave(figures.offer_offset_s)),
    ]


# Of a participant's CPU for each neighbour, measured on one core of an AMD EPYC (docs/performance.md).
_HYBRID_MS: Final = 0.14


def _keys(figures: PlanFigures) -> str:
    """What hybrid keys cost."""
    sent, received = (f"{one / 1000:,.0f} kB" for one in hybrid_bytes(figures.degree))
    more = f"{sent} sent, {received} received and about {_HYBRID_MS * figures.degree:.0f} ms of CPU"
    if figures.key_agreement == "x25519":
        return f"with ML-KEM-768 each participant would have {more} more in a round"
    return f"{more} of each participant in a round are for ML-KEM-768"


def _epsilon(value: float | None) -> str:
    return "too large to state" if value is None else f"{value:.3f}"


def _target(figures: PlanFigures, reader: str) -> str:
    if figures.sampling == "none" or figures.target != reader:
        return ""
    return f"the target, at most {figures.epsilon:g}: "


def _released(figures: PlanFigures) -> str:
    if figures.sampling in ("none", "epochs"):
        return "for readers of the models: here the same"
    share = figures.clients / figures.population
    return f"for readers of released models alone, each in {percent(share)} of the rounds"


def plan_lines(figures: PlanFigures, width: int) -> list[str]:
    """``plan_table`` as aligned text that is folded at ``width`` columns, warnings last."""
    lines = aligned(plan_table(figures), width)
    for warning in figures.warnings:
        lines += folded(f"Note: {warning}.", width)
    return lines
