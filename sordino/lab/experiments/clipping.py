"""Clip updates with fixed clips or clips that follow a quantile, flat or by layer.

Sources: quantile clipping [ATMR21]; clipping by layer and noise by layer [MRTZ18] section 2. The count that moves a
clip is part of the same noised sum, so all rules cost what a fixed clip costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from sordino.lab.experiments.outcome import NOT_CHARGED, PAPER, SMALL, Outcome, Request, Stages
from sordino.lab.experiments.pooled_mlp import NAME as POOLED_MLP
from sordino.lab.experiments.runs import RunPool, labels_of
from sordino.lab.experiments.setting import ENGINE, FASHION, FEMNIST, PUBLISHED, Sizes
from sordino.lab.experiments.tables import CONDITIONAL, HELD, SPENT, Cell, Mean, Results, Table
from sordino.lab.simulation.settings import SimulationSettings
from sordino.planning.drawing import LOG, Axes, Picture, Series

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


_TRAINING: Final = {"local_epochs": 3, "batch_size": 20}
SIZES: Final = {
    SMALL: Sizes(
        **FASHION,
        task=POOLED_MLP,
        options=_TRAINING,
        rounds=50,
        epsilons=(2.0, 4.0, 8.0),
        clips=(0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
        rates=(0.05, 0.1, 0.2),
        middle=4.0,
    ),
    PAPER: Sizes(
        **FEMNIST,
        options=_TRAINING,
        epsilons=(2.0, 4.0, 8.0, 16.0),
        clips=(0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0),
        rates=(0.01, 0.03, 0.1),
        middle=8.0,
    ),
}


def play(pool: RunPool, request: Request) -> Outcome:
    """Choose the client rate with a fixed clip, then run every rule from every first clip at every epsilon."""
    sizes = SIZES[request.scale]
    data = request.images(sizes.data)
    stages = Stages(pool, request.seeds, sizes.last)
    make = partial(sizes.settings, data=data, server_momentum=0.9, partition=request.partition(data))

    def settings(*, rule: str, **given: Any) -> SimulationSettings:
        return make(**given, **RULES[rule])

    choice = stages.tuned(
        f"Client rate and fixed clip at {CONDITIONAL} {sizes.middle:g}",
        {"rate": sizes.rates, "clip": sizes.clips},
        partial(settings, rule=FIXED, epsilon=sizes.middle),
    )
    rate = choice.taken()["rate"]
    grid = {"rule": tuple(RULES), "epsilon": sizes.epsilons, "clip": sizes.clips}
    found = stages.results("clip rules", grid, partial(settings, rate=rate))
    notes = [
        f"{sizes.described(data)}, client rate {rate:g}, 3 epochs of batches of 20, server momentum 0.9, Dirichlet "
        f"{sizes.alpha:g}; distributed discrete Gaussian, 20 bits.",
        f"Accuracy is the mean of the last {sizes.last} evaluations, every {sizes.evaluate_every} rounds.",
        "By layer each of the L layers begins with the first clip / sqrt(L). Quantile 0.5, rate 0.3.",
        PUBLISHED,
        ENGINE,
        NOT_CHARGED,
    ]
    tables = [_table(found, sizes, epsilon) for epsilon in sizes.epsilons]
    tables += [_best(found, sizes), choice.table("clipping-choice")]
    return Outcome(notes, tables, [_picture(found, sizes), _clips(found, sizes)], [choice])


def _table(found: Results, sizes: Sizes, epsilon: float) -> Table:
    body: list[list[Cell]] = [
        [rule, *(found.cell(rule, epsilon, clip) for clip in sizes.clips), *found.spent(rule=rule, epsilon=epsilon)]
        for rule in RULES
    ]
    columns = ("rule", *(f"from {clip:g}" for clip in sizes.clips), *SPENT)
    note = "Percent, mean ± standard error over seeds; columns: the first clip (the only one of 'fixed'). "
    note += HELD
    return Table(f"clipping-epsilon-{epsilon:g}", f"Accuracy at {CONDITIONAL} {epsilon:g}", columns, body, note)


def _best(found: Results, sizes: Sizes) -> Table:
    """Best and worst accuracy of a rule over its first clips."""
    body: list[list[Cell]] = []
    for epsilon in sizes.epsilons:
        for rule in RULES:
            own = sorted((found.means[key].mean, key[2]) for key in found.means if key[:2] == (rule, epsilon))
            if own:
                cells = [f"{100 * mean:.1f} from {clip:g}" for mean, clip in (own[-1], own[0])]
                body.append([rule, epsilon, *cells, *found.spent(rule=rule, epsilon=epsilon)])
    note = (
        "Best and worst mean over the first clips: the best of 'fixed' is what a search over clips would have found. "
        f"{HELD}"
    )
    columns = ("rule", CONDITIONAL, "best", "worst", *SPENT)
    return Table("clipping-best", "How much depends on the first clip", columns, body, note)


def _picture(found: Results, sizes: Sizes) -> Picture:
    def curve(rule: str, epsilon: float) -> dict[float, Mean]:
        return found.curve(sizes.clips, lambda clip: (rule, epsilon, clip))

    axes = [
        Axes(
            f"{CONDITIONAL} {epsilon:g}",
            "first clip",
            "accuracy, %",
            [Series(rule, curve(rule, epsilon), at, dashed=rule == FIXED) for at, rule in enumerate(RULES)],
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


def _clips(found: Results, sizes: Sizes) -> Picture:
    """Draw the course of the flat clip from each first one."""
    series = []
    for at, clip in enumerate(sizes.clips):
        clips: dict[int, list[float]] = {}
        for row in found.rows:
            if labels_of(row, *found.names) == ("quantile, flat", sizes.middle, clip):
                for round_, of_round in zip(row.get("rounds", []), row.get("clips", []), strict=True):
                    clips.setdefault(round_, []).append(of_round[0])
        points = {round_: Mean.of(values) for round_, values in clips.items()}
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
