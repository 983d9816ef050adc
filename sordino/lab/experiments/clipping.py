"""Clip updates with fixed clips or clips that follow a quantile, flat or by layer.

Sources: quantile clipping [ATMR21]; clipping by layer and noise by layer [MRTZ18] section 2. The count that moves a
clip is part of the same noised sum, so all rules cost what a fixed clip costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from learning.make_task import make_task
from sordino.lab.experiments.outcome import NOT_CHARGED, PAPER, SMALL, WORDS, Choice, Outcome, Request, Stages
from sordino.lab.experiments.pooled_mlp import NAME as POOLED_MLP
from sordino.lab.experiments.runs import RunPool, labels_of
from sordino.lab.experiments.setting import ENGINE, FASHION, FEMNIST, PUBLISHED, STACKOVERFLOW, Sizes
from sordino.lab.experiments.tables import CONDITIONAL, HELD, PAIRED, SPENT, TEST, Cell, Mean, Results, Table, compared
from sordino.lab.simulation.settings import SimulationSettings
from sordino.planning.drawing import LOG, NAMES, Axes, Picture, Series

_ADAPTIVE: Final = {"clip_update": "geometric", "clip_quantile": 0.5}
RULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "fixed": {},
    "quantile, flat": _ADAPTIVE,
    "quantile, by layer": {**_ADAPTIVE, "clip_by_layer": True},
    "by layer, proportional": {**_ADAPTIVE, "clip_by_layer": True, "clip_scaling": "proportional"},
    "by layer, least noise": {**_ADAPTIVE, "clip_by_layer": True, "clip_scaling": "least-noise"},
}
FIXED: Final = "fixed"
IMAGES, LAYERS = "images", "layers"


@dataclass(frozen=True, kw_only=True)
class ClippingSizes(Sizes):
    """Numbers of a scale.

    Attributes:
        middle: epsilon, one of them, of the comparison of first clips.
        first_clips: from which every rule begins there.
    """

    middle: float
    first_clips: tuple[float, ...]


_TRAINING: Final = {"local_epochs": 3, "batch_size": 20}
SIZES: Final = {
    SMALL: ClippingSizes(
        **FASHION,
        task=POOLED_MLP,
        options=_TRAINING,
        rounds=40,
        epsilons=(2.0, 8.0),
        clips=(0.1, 0.3, 1.0),
        rates=(0.05, 0.1, 0.2),
        middle=2.0,
        first_clips=(0.01, 0.1, 1.0, 10.0),
    ),
    PAPER: ClippingSizes(
        **FEMNIST,
        options=_TRAINING,
        epsilons=(2.0, 4.0, 8.0, 16.0),
        clips=(0.01, 0.03, 0.1),
        rates=(0.01, 0.03, 0.1),
        middle=8.0,
        first_clips=(0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0),
    ),
}
TEXT: Final = {
    SMALL: Sizes(
        data=WORDS,
        task="lstm",
        options={"vocabulary": 200, "embedding": 16, "hidden": 32, "local_steps": 4, "batch_size": 16},
        participants=600,
        cohort=20,
        rounds=60,
        epsilons=(),
        clips=(1.0,),
        rates=(0.3, 1.0),
        evaluate_every=5,
        last=2,
    ),
    PAPER: Sizes(**STACKOVERFLOW, epsilons=()),
}
"""Of the part ``layers``, which has no noise."""


def play(pool: RunPool, request: Request) -> Outcome:
    """Play the parts."""
    data = {part: _data(request, part) for part in request.parts}  # what is missing is told before anything is played
    found = [{IMAGES: _images, LAYERS: _layers}[part](pool, request, data[part]) for part in request.parts]
    return Outcome(
        [note for one in found for note in one.notes],
        [table for one in found for table in one.tables],
        [picture for one in found for picture in one.pictures],
        [choice for one in found for choice in one.choices],
    )


def _data(request: Request, part: str) -> str:
    return request.words(TEXT[request.scale]) if part == LAYERS else request.images(SIZES[request.scale])


def _layers(pool: RunPool, request: Request, data: str) -> Outcome:
    """Let clips by layer follow the median of the LSTM's norms, layer by layer: at the end they are those medians.

    Nothing is chosen or compared: there are runs for each client rate, from the first of the scale's clips.
    """
    sizes = TEXT[request.scale]
    stages = Stages(pool, request.seeds, sizes.last)
    make = partial(sizes.settings, data=data, epsilon=None, server_momentum=0.9, partition=request.partition(data))
    settings = partial(make, clip=sizes.clips[0], **RULES["quantile, by layer"])
    found = stages.results("norms by layer", {"rate": sizes.rates}, settings)
    shapes = make_task(sizes.task, dict(sizes.options)).contribution_shapes
    body: list[list[Cell]] = [[name, math.prod(shape)] for name, shape in shapes.items()]
    axes: list[Axes] = []
    losses = []
    for rate in sizes.rates:
        courses = [_course(found, (rate,), at) for at in range(len(shapes))]
        named = not axes  # once, where both have the same colours
        series = [Series(name if named else "", courses[at], at, marks=False) for at, name in enumerate(shapes)]
        axes.append(Axes(f"Client rate {rate:g}", "round", "clip", series, log_y=True, percent=False))
        for line, course in zip(body, courses, strict=True):
            line.append(course[max(course)] if course else None)
        of_rate = [row["losses"][-1] for row in found.rows if row.get("losses") and labels_of(row, "rate") == (rate,)]
        losses.append(f"{Mean.of(of_rate).mean:.2f} at {rate:g}" if of_rate else f"none at {rate:g}")
    note = (
        f"Clips that follow each layer's median norm, mean over seeds. {sizes.described(data)}, no noise, first clip "
        f"{sizes.clips[0]:g} / sqrt({len(shapes)}). Loss of the last evaluation by client rate: {', '.join(losses)}."
    )
    columns = ("array", "values", *(f"last clip, rate {rate:g}" for rate in sizes.rates))
    table = Table("clipping-layers", "Clips by layer of an LSTM", columns, body, note)
    return Outcome([], [table], [Picture("clipping-layers", axes, note, columns=len(axes))])


def _images(pool: RunPool, request: Request, data: str) -> Outcome:
    """Choose clip and client rate for each rule and epsilon, run each, and every rule from every first clip at one."""
    sizes = SIZES[request.scale]
    stages = Stages(pool, request.seeds, sizes.last)
    make = partial(sizes.settings, data=data, server_momentum=0.9, partition=request.partition(data))

    def settings(*, rule: str, **given: Any) -> SimulationSettings:
        return make(**given, **RULES[rule])

    grid = {"rule": tuple(RULES), "epsilon": sizes.epsilons}
    start = {"rate": sizes.rates, "clip": sizes.clips}
    choice = stages.tuned("First clip and client rate for each rule and noise", start, settings, of=grid)
    chosen = choice.applied(settings)
    found = stages.results("clip rules", grid, chosen)
    one = {"rule": tuple(RULES), "clip": sizes.first_clips}
    first = stages.results("first clips", one, partial(chosen, epsilon=sizes.middle))
    notes = [
        f"{sizes.described(data)}, 3 epochs of batches of 20, server momentum 0.9, Dirichlet {sizes.alpha:g}; "
        "distributed discrete Gaussian, 20 bits.",
        f"Accuracy is the mean of the last {sizes.last} evaluations, every {sizes.evaluate_every} rounds.",
        "By layer each of the L layers begins with the first clip / sqrt(L). Quantile 0.5, rate 0.3.",
        choice.budget(),
        PUBLISHED,
        ENGINE,
        NOT_CHARGED,
    ]
    tables = [_rules(found, choice), _first(first, sizes), choice.table("clipping-choice")]
    return Outcome(notes, tables, [_picture(found, first, sizes), _clips(first, sizes)], [choice])


def _rules(found: Results, choice: Choice) -> Table:
    """Return every rule at the clip and rate of its choice, compared with a fixed clip at those of its own."""
    keys = list(choice.chosen)
    cells = compared(found, [(key, (FIXED, key[1])) for key in keys if key[0] != FIXED])
    gains = dict(zip((key for key in keys if key[0] != FIXED), cells, strict=True))
    body: list[list[Cell]] = []
    for key in keys:
        taken, spent = choice.taken(*key), found.spent(rule=key[0], epsilon=key[1])
        body.append([*key, taken["clip"], taken["rate"], found.cell(*key), *gains.get(key, (None, None, "")), *spent])
    columns = ("rule", CONDITIONAL, "first clip", "rate", "accuracy, %", f"less {FIXED}", *PAIRED, *SPENT)
    note = f"Mean ± standard error over seeds. {TEST.format(of='of this table')} {HELD}"
    return Table("clipping", "Clip rules, each at its choice of clip and rate", columns, body, note)


def _first(found: Results, sizes: ClippingSizes) -> Table:
    body: list[list[Cell]] = [
        [rule, *(found.cell(rule, clip) for clip in sizes.first_clips), *found.spent(rule=rule)] for rule in RULES
    ]
    columns = ("rule", *(f"from {clip:g}" for clip in sizes.first_clips), *SPENT)
    note = (
        "Percent, mean ± standard error over seeds; columns: the first clip (the only one of 'fixed'); each rule "
        f"has the client rate of its choice. {HELD}"
    )
    return Table("clipping-first", f"Accuracy by first clip at {CONDITIONAL} {sizes.middle:g}", columns, body, note)


def _picture(found: Results, first: Results, sizes: ClippingSizes) -> Picture:
    def axes(title: str, against: str, of: Results, scale: str, values: Sequence[float]) -> Axes:
        def curve(rule: str) -> dict[float, Mean]:
            return of.curve(values, lambda value: (rule, value))

        series = [Series(rule, curve(rule), at, dashed=rule == FIXED) for at, rule in enumerate(RULES)]
        return Axes(title, against, "accuracy, %", series, scale=scale, ticks=values)

    both = [
        axes("Each rule at its choice", CONDITIONAL, found, NAMES, sizes.epsilons),
        axes(f"{CONDITIONAL} {sizes.middle:g}", "first clip", first, LOG, sizes.first_clips),
    ]
    note = (
        f"{sizes.participants} participants, {sizes.cohort} a round, {sizes.rounds} rounds; mean and standard error "
        "over seeds. Dashed: the clip stays what it was."
    )
    return Picture("clipping", both, note, columns=2)


def _clips(found: Results, sizes: ClippingSizes) -> Picture:
    """Draw the course of the flat clip from each first one."""
    series = [
        Series(f"from {clip:g}", _course(found, ("quantile, flat", clip)), at, marks=False)
        for at, clip in enumerate(sizes.first_clips)
    ]
    axes = Axes(
        f"The flat clip that follows the median, {CONDITIONAL} {sizes.middle:g}",
        "round",
        "clip",
        series,
        log_y=True,
        percent=False,
    )
    return Picture("clipping-clips", [axes], "Mean over seeds.")


def _course(found: Results, labels: tuple[Any, ...], layer: int = 0) -> dict[float, Mean]:
    """Return a layer's clip by evaluated round, mean over the runs that have these labels."""
    clips: dict[float, list[float]] = {}
    for row in found.rows:
        if labels_of(row, *found.names) == labels:
            for round_, of_round in zip(row.get("rounds", []), row.get("clips", []), strict=True):
                clips.setdefault(round_, []).append(of_round[layer])
    return {round_: Mean.of(values) for round_, values in clips.items()}
