"""How updates are clipped: fixed clips or clips that follow a quantile, flat or by layer.

Sources: quantile clipping [ATMR21]; clipping by layer and noise by layer [MRTZ18] section 2. The count that moves a
clip is part of the same noised sum, so all rules cost what a fixed clip costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sordino.lab.experiments.curves import LOG, Axes, Picture, Series
from sordino.lab.experiments.lab import Lab, labels_of
from sordino.lab.experiments.outcome import PAPER, SMALL, Outcome, Request
from sordino.lab.experiments.pooled_mlp import NAME as POOLED_MLP
from sordino.lab.experiments.runs import Row, Run
from sordino.lab.experiments.selection import NOT_CHARGED, tuned
from sordino.lab.experiments.setting import ENGINE, FASHION, FEMNIST, PUBLISHED, Sizes
from sordino.lab.experiments.tables import (
    CONDITIONAL,
    HELD,
    SPENT,
    Cell,
    Mean,
    Table,
    accuracy,
    accuracy_cell,
    gathered,
    spent,
)
from sordino.lab.simulation.settings import SimulationSettings

NAME: Final = "clipping"
_ADAPTIVE: Final = {"clip_update": "geometric", "clip_quantile": 0.5}
RULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "fixed": {},
    "quantile, flat": _ADAPTIVE,
    "quantile, by layer": {**_ADAPTIVE, "clip_by_layer": True},
    "by layer, proportional": {**_ADAPTIVE, "clip_by_layer": True, "clip_scaling": "proportional"},
    "by layer, least noise": {**_ADAPTIVE, "clip_by_layer": True, "clip_scaling": "least-noise"},
}
FIXED: Final = "fixed"


@dataclass(frozen=True, kw_only=True)
class ClippingSizes(Sizes):
    """Numbers of a scale; rates are chosen with a fixed clip, ``clips`` are the first ones of all rules."""

    alpha: float
    epsilons: tuple[float, ...]


_TRAINING: Final = {"local_epochs": 3, "batch_size": 20}
SIZES: Final = {
    SMALL: ClippingSizes(
        **FASHION,
        task=POOLED_MLP,
        options=_TRAINING,
        rounds=50,
        alpha=1.0,
        epsilons=(2.0, 4.0, 8.0),
        clips=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
        rates=(0.05, 0.1, 0.2),
        middle=4.0,
    ),
    PAPER: ClippingSizes(
        **FEMNIST,
        options=_TRAINING,
        alpha=1.0,
        epsilons=(2.0, 4.0, 8.0, 16.0),
        clips=(0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0),
        rates=(0.01, 0.03, 0.1),
        middle=8.0,
    ),
}


def play(lab: Lab, request: Request) -> Outcome:
    """Choose the client rate with a fixed clip, then every rule from every first clip at every epsilon."""
    sizes = replace(SIZES[request.scale], **request.sizes)
    data = request.images(sizes.data)
    how = request.partition(data)

    def settings(*, rule: str, epsilon: float | None, clip: float, rate: float, seed: int) -> SimulationSettings:
        return sizes.settings(
            data=data,
            rate=rate,
            epsilon=epsilon,
            clip=clip,
            seed=seed,
            server_momentum=0.9,
            alpha=sizes.alpha,
            partition=how,
            **RULES[rule],
        )

    choice = tuned(
        lab,
        f"Client rate and fixed clip at {CONDITIONAL} {sizes.middle:g}",
        {"rate": sizes.rates, "clip": sizes.clips},
        lambda *, seed, rate, clip: settings(rule=FIXED, epsilon=sizes.middle, clip=clip, rate=rate, seed=seed),
        sizes.last,
    )
    rate = choice.taken()["rate"]
    runs = [
        Run(
            {"rule": rule, "epsilon": epsilon, "clip": clip},
            settings(rule=rule, epsilon=epsilon, clip=clip, rate=rate, seed=seed),
            sizes.last,
        )
        for rule in RULES
        for epsilon in sizes.epsilons
        for clip in sizes.clips
        for seed in request.seeds
    ]
    rows = lab.run("clip rules", runs)
    notes = [
        f"{sizes.told(data)}, client rate {rate:g}, 3 epochs of batches of 20, server momentum 0.9, Dirichlet "
        f"{sizes.alpha:g}; distributed discrete Gaussian, 20 bits.",
        f"Accuracy is the mean of the last {sizes.last} evaluations, every {sizes.evaluate_every} rounds.",
        "By layer each of the L layers begins with the first clip / sqrt(L). Quantile 0.5, rate 0.3.",
        PUBLISHED,
        ENGINE,
        NOT_CHARGED,
    ]
    tables = [_table(rows, sizes, epsilon) for epsilon in sizes.epsilons]
    tables += [_best(rows, sizes), choice.table("clipping-choice")]
    return Outcome(notes, tables, [_picture(rows, sizes), _clips(rows, sizes)], [choice])


_NAMES: Final = ("rule", "epsilon", "clip")


def _table(rows: Sequence[Row], sizes: ClippingSizes, epsilon: float) -> Table:
    means = gathered(rows, _NAMES, accuracy)
    body: list[list[Cell]] = [
        [
            rule,
            *(accuracy_cell(means, rows, _NAMES, (rule, epsilon, clip)) for clip in sizes.clips),
            *spent(rows, ("rule", "epsilon"), (rule, epsilon)),
        ]
        for rule in RULES
    ]
    columns = ("rule", *(f"from {clip:g}" for clip in sizes.clips), *SPENT)
    note = "Percent, mean ± standard error over seeds; columns: the first clip (the only one of 'fixed'). "
    note += HELD
    return Table(f"clipping-epsilon-{epsilon:g}", f"Accuracy at {CONDITIONAL} {epsilon:g}", columns, body, note)


def _best(rows: Sequence[Row], sizes: ClippingSizes) -> Table:
    """How much a rule depends on its first clip: its worst accuracy over them, and its best."""
    means = gathered(rows, _NAMES, accuracy)
    body: list[list[Cell]] = []
    for epsilon in sizes.epsilons:
        for rule in RULES:
            own = {clip: means[rule, epsilon, clip].mean for clip in sizes.clips if (rule, epsilon, clip) in means}
            if own:
                best, worst = max(own, key=lambda clip: own[clip]), min(own, key=lambda clip: own[clip])
                cells = [f"{100 * own[best]:.1f} from {best:g}", f"{100 * own[worst]:.1f} from {worst:g}"]
                body.append([rule, epsilon, *cells, *spent(rows, ("rule", "epsilon"), (rule, epsilon))])
    note = (
        "Best and worst mean over the first clips: the best of 'fixed' is what a search over clips would have found. "
    )
    note += HELD
    columns = ("rule", CONDITIONAL, "best", "worst", *SPENT)
    return Table("clipping-best", "How much depends on the first clip", columns, body, note)


def _picture(rows: Sequence[Row], sizes: ClippingSizes) -> Picture:
    means = gathered(rows, _NAMES, accuracy)
    axes = [
        Axes(
            f"{CONDITIONAL} {epsilon:g}",
            "first clip",
            "accuracy, %",
            [
                Series(
                    rule,
                    {clip: means[rule, epsilon, clip] for clip in sizes.clips if (rule, epsilon, clip) in means},
                    at,
                    dashed=rule == FIXED,
                )
                for at, rule in enumerate(RULES)
            ],
            scale=LOG,
            ticks=sizes.clips,
        )
        for epsilon in sizes.epsilons
    ]
    note = (
        f"{sizes.participants} participants, {sizes.cohort} a round, {sizes.rounds} rounds; mean and standard error "
        "over seeds. Dashed: the clip stays what it was."
    )
    return Picture("clipping", axes, note, columns=len(axes), same_y=True)


def _clips(rows: Sequence[Row], sizes: ClippingSizes) -> Picture:
    """Where the flat clip goes, from each first one."""
    own = [row for row in rows if labels_of(row, "rule", "epsilon") == ("quantile, flat", sizes.middle)]
    series = []
    for at, clip in enumerate(sizes.clips):
        found: dict[int, list[float]] = {}
        for row in own:
            if row["labels"]["clip"] == clip:
                for round_, clips in zip(row.get("rounds", []), row.get("clips", []), strict=True):
                    found.setdefault(round_, []).append(clips[0])
        points = {round_: Mean.of(values) for round_, values in found.items()}
        series.append(Series(f"from {clip:g}", points, at, marks=False))
    axes = Axes(
        f"The flat clip that follows the median, {CONDITIONAL} {sizes.middle:g}",
        "round",
        "clip",
        series,
        log_y=True,
        percent=False,
    )
    return Picture("clipping-clips", [axes], "Mean over seeds.")
