"""Accuracy against the compression by count-mean sketches, for several noise levels ([CCKS22] section 6).

The figures have the published form. The stronger the noise, the more can be compressed without a loss. Bits per
parameter count the vector that is sent, without seeds and protocol messages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sordino.lab.experiments.clipping import RULES
from sordino.lab.experiments.outcome import NOT_CHARGED, PAPER, SMALL, Choice, Outcome, Request, Stages
from sordino.lab.experiments.runs import DONE, Row, RunPool, labels_of, noise_multiplier
from sordino.lab.experiments.setting import ENGINE, FASHION, FEMNIST, PUBLISHED, Sizes
from sordino.lab.experiments.tables import CONDITIONAL, HELD, PAIRED, SPENT, TEST, Cell, Mean, Results, Table, compared
from sordino.lab.simulation.settings import SimulationSettings
from sordino.planning.drawing import LOG, Axes, Picture, Series

ROWS: Final = 15
"""Of a sketch, as published."""
BITS: Final = 16
FIXED, ADAPTIVE = "fixed", "adaptive"
_RULES: Final = {FIXED: RULES["fixed"], ADAPTIVE: RULES["quantile, flat"]}
"""Parts: sketches under a clip that stays, and under one that follows the median of their norms."""


@dataclass(frozen=True, kw_only=True)
class CompressionSizes(Sizes):
    """Numbers of a scale."""

    ratios: tuple[float, ...]

    @property
    def levels(self) -> tuple[float | None, ...]:
        """Return the epsilons, after None for no noise: from no noise to much."""
        return (None, *self.epsilons)


SIZES: Final = {
    SMALL: CompressionSizes(
        **FASHION,
        task="mlp",
        options={"hidden": 32, "local_epochs": 3, "batch_size": 20},
        rounds=30,
        epsilons=(16.0, 6.0, 2.0),
        ratios=(1.0, 5.0, 20.0, 50.0),
        clips=(0.1, 0.3, 1.0),
        rates=(0.03, 0.1),
    ),
    PAPER: CompressionSizes(
        **FEMNIST,
        options={"local_epochs": 1, "batch_size": 20},
        epsilons=(500.0, 100.0, 30.0, 12.0),
        ratios=(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0),
        clips=(0.01, 0.03, 0.1),
        rates=(0.03, 0.1),
    ),
}


def play(pool: RunPool, request: Request) -> Outcome:
    """Choose clip and rate for each noise level, without a sketch, then run every ratio at every level."""
    sizes = SIZES[request.scale]
    data = request.images(sizes)
    tables: list[Table] = []
    pictures: list[Picture] = []
    choices: list[Choice] = []
    for part in request.parts:
        found, choice = _part(pool, request, part, sizes, data)
        title, name = f"{part} clips", "compression" if part == FIXED else f"compression-{part}"
        tables += [_table(found, sizes, name, title), _compared(found, sizes, name, title)]
        tables.append(choice.table(f"{name}-choice"))
        pictures.append(_picture(found, sizes, name, title))
        choices.append(choice)
    tables.append(_lengths(found.rows, sizes))
    notes = [
        f"{sizes.described(data)}, server momentum 0.9; Skellam, {BITS} bits, sketches of {ROWS} rows, clipped where "
        f"an update of that clip has its sketch: clip / sqrt({ROWS}). Adaptive clips follow the median by factors, "
        "from the chosen clip on.",
        f"{' '.join(one.budget() for one in choices)} Every ratio has the clip and rate that were chosen without a "
        "sketch; a choice of its own might lose less.",
        PUBLISHED,
        ENGINE,
        NOT_CHARGED,
    ]
    return Outcome(notes, tables, pictures, choices)


def _part(pool: RunPool, request: Request, part: str, sizes: CompressionSizes, data: str) -> tuple[Results, Choice]:
    """Every ratio at every noise level under one rule of clips, and the choices."""
    stages = Stages(pool, request.seeds, sizes.last)
    coding: dict[str, Any] = {"mechanism": "skellam", "bits": BITS, **_RULES[part]}
    make = partial(sizes.settings, data=data, server_momentum=0.9, partition=request.partition(data), **coding)

    def settings(*, ratio: float, clip: float, **given: Any) -> SimulationSettings:
        if ratio == 1:
            return make(clip=clip, **given)
        # The sketch is clipped; it is about sqrt(rows) shorter than the update (`Plan.update_norm`).
        return make(clip=clip / math.sqrt(ROWS), sketch_rows=ROWS, sketch_ratio=ratio, **given)

    choice = stages.tuned(
        f"Clip and client rate for each noise, without a sketch, {part} clips",
        sizes.start,
        partial(settings, ratio=1.0),
        of={"epsilon": sizes.levels},
    )
    grid = {"epsilon": sizes.levels, "ratio": sizes.ratios}
    return stages.results(f"ratios and noise, {part} clips", grid, choice.applied(settings)), choice


def _level(rows: Sequence[Row], epsilon: float | None) -> str:
    if epsilon is None:
        return "no noise"
    found = [noise_multiplier(row) for row in rows if row["labels"]["epsilon"] == epsilon and row["outcome"] == DONE]
    known = [one for one in found if one is not None]
    return f"{CONDITIONAL} {epsilon:g}" + (f", z = {Mean.of(known).mean:.2f}" if known else "")


def _table(found: Results, sizes: CompressionSizes, name: str, of: str) -> Table:
    body: list[list[Cell]] = [
        [
            _level(found.rows, epsilon),
            *(found.cell(epsilon, ratio) for ratio in sizes.ratios),
            *found.spent(epsilon=epsilon),
        ]
        for epsilon in sizes.levels
    ]
    columns = ("noise", *(f"{ratio:g} x" for ratio in sizes.ratios), *SPENT)
    note = f"Accuracy in percent, mean ± standard error over seeds. z: deviation of the sum's noise / clip. {HELD}"
    return Table(name, f"Accuracy against the compression ratio, {of}", columns, body, note)


def _compared(found: Results, sizes: CompressionSizes, name: str, of: str) -> Table:
    keys = [(epsilon, ratio) for epsilon in sizes.levels for ratio in sizes.ratios if ratio != 1]
    cells = compared(found, [(key, (key[0], 1.0)) for key in keys])
    body = [[_level(found.rows, key[0]), f"{key[1]:g} x", *one] for key, one in zip(keys, cells, strict=True)]
    columns = ("noise", "ratio", "less 1 x", *PAIRED)
    note = TEST.format(of="of this table")
    return Table(f"{name}-compared", f"What a sketch costs, {of}", columns, body, note)


def _lengths(rows: Sequence[Row], sizes: CompressionSizes) -> Table:
    body: list[list[Cell]] = []
    for ratio in sizes.ratios:
        own = [row for row in rows if labels_of(row, "ratio") == (ratio,) and row.get("plan") is not None]
        if own:
            plan = own[0]["plan"]
            # Bits of the vector that is sent over the parameters of the model; a run without noise codes nothing.
            each = float(plan["bits"] * plan["padded_dim"] / plan["dim"])
            body.append([f"{ratio:g} x", plan["dim"], plan["padded_dim"], each])
    columns = ("ratio", "parameters", "values sent", "bits a parameter")
    return Table("compression-bits", "What is sent", columns, body)


def _picture(found: Results, sizes: CompressionSizes, name: str, of: str) -> Picture:
    def curve(epsilon: float | None) -> dict[float, Mean]:
        return found.curve(sizes.ratios, lambda ratio: (epsilon, ratio))

    series = [
        Series(_level(found.rows, epsilon), curve(epsilon), at, dashed=epsilon is None)
        for at, epsilon in enumerate(sizes.levels)
    ]
    axes = Axes(
        f"Accuracy against compression, by noise, {of}",
        "values of the update / values sent",
        "accuracy, %",
        series,
        scale=LOG,
        ticks=sizes.ratios,
    )
    note = f"Skellam, {BITS} bits, {ROWS} rows; mean and standard error over seeds. z: deviation of noise / clip."
    return Picture(name, [axes], note)
