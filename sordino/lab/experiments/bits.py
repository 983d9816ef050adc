"""Accuracy against bits per value: distributed discrete Gaussian and Skellam beside the central Gaussian.

The setting of [KLS21] section 6.2 and [AKL21] section 5; the small scale uses smaller data. Fewer bits make the grid
coarser, so rounding adds to the noise, or no plan exists at all, which the table then says.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from learning.blocks import DatasetError
from learning.datasets import has_part
from sordino.lab.experiments.outcome import NOT_CHARGED, PAPER, SMALL, Choice, Outcome, Request, Stages, combined
from sordino.lab.experiments.pooled_mlp import NAME as POOLED_MLP
from sordino.lab.experiments.runs import ExperimentError, Row, Run, RunPool, labels_of, noise_multiplier
from sordino.lab.experiments.setting import ENGINE, FASHION, FEMNIST, PUBLISHED, Sizes
from sordino.lab.experiments.tables import CONDITIONAL, HELD, SPENT, Cell, Mean, Results, Table
from sordino.lab.experiments.word_pairs import NAME as WORD_PAIRS
from sordino.planning.drawing import NAMES, Axes, Picture, Series

NAME: Final = "bits"
IMAGES, TEXT = "images", "text"
PARTS: Final = (IMAGES, TEXT)
WORDS: Final = "shakespeare-200"
"""The text of the small scale."""
DISTRIBUTED: Final = {"ddgauss": "discrete Gaussian", "skellam": "Skellam"}
CENTRAL: Final = "gaussian"
MOST_BITS: Final = 24
"""Of the central Gaussian, whose grid should not count."""


@dataclass(frozen=True, kw_only=True)
class BitsSizes(Sizes):
    """Numbers of a scale, for one kind of data; clip and rate are chosen with the central Gaussian."""

    bits: tuple[int, ...]


_SMALL_BITS: Final = (10, 12, 14, 16, 18, 20)
_PAPER_BITS: Final = (12, 14, 16, 18)
SIZES: Final = {
    (SMALL, IMAGES): BitsSizes(
        **FASHION,
        task=POOLED_MLP,
        options={"local_epochs": 3, "batch_size": 20},
        rounds=50,
        epsilons=(2.0, 4.0, 8.0),
        middle=4.0,
        bits=_SMALL_BITS,
        clips=(0.1, 0.3, 1.0),
        rates=(0.05, 0.1, 0.2),
    ),
    (SMALL, TEXT): BitsSizes(
        data=WORDS,
        task=WORD_PAIRS,
        options={"local_steps": 4, "batch_size": 16, "vocabulary": 200},
        participants=600,
        cohort=100,
        rounds=40,
        epsilons=(4.0, 16.0),
        middle=8.0,
        bits=_SMALL_BITS,
        clips=(0.3, 1.0, 3.0),
        rates=(2.0, 5.0, 10.0),
        evaluate_every=5,
        last=2,
    ),
    (PAPER, IMAGES): BitsSizes(
        **FEMNIST,
        options={"local_epochs": 1, "batch_size": 20},
        epsilons=(3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0),
        middle=6.0,
        bits=_PAPER_BITS,
        clips=(0.01, 0.03, 0.1),
        rates=(0.03, 0.1),
    ),
    (PAPER, TEXT): BitsSizes(
        data="",
        task="lstm",
        options={"local_epochs": 1, "batch_size": 16},
        participants=342477,
        cohort=100,
        rounds=1600,
        epsilons=(2.5, 5.0, 10.0, 15.0, 20.0),
        middle=10.0,
        bits=_PAPER_BITS,
        clips=(0.1, 0.3, 1.0),
        rates=(0.3, 0.5),
        evaluate_every=20,
        last=5,
    ),
}


def play(pool: RunPool, request: Request) -> Outcome:
    """Choose clip and rate with the central Gaussian, then run every mechanism at every width and epsilon."""
    notes: list[str] = []
    tables: list[Table] = []
    axes: list[Axes] = []
    choices: list[Choice] = []
    for part, sizes, data in [_found(request, part) for part in PARTS if request.wants(part)]:
        choice, rows, described = _part(pool, request, part, sizes, data)
        notes.append(described)
        choices.append(choice)
        found = Results(rows, *_KEYS)
        tables += [*_tables(found, part, sizes), _noise(found, part, sizes), choice.table(f"bits-{part}-choice")]
        axes += _axes(found, part, sizes)
    notes += [PUBLISHED, ENGINE, NOT_CHARGED]
    note = (
        "Mean and standard error over seeds; k = 4 deviations before a sum may wrap. Dashed: central Gaussian of "
        f"{MOST_BITS} bits. Where a point is missing no plan holds."
    )
    return Outcome(notes, tables, [Picture("bits", axes, note, columns=len(DISTRIBUTED), same_y=True)], choices)


def _found(request: Request, part: str) -> tuple[str, BitsSizes, str]:
    """Return a part with its sizes and its data, after a check that the data are present."""
    sizes = SIZES[request.scale, part]
    data = request.images(sizes.data) if part == IMAGES else request.data.get(TEXT, sizes.data)
    if not data:
        raise ExperimentError("the papers' size takes StackOverflow: get it and name it, --text stackoverflow:PATH")
    try:
        has_part(data, "train")
    except DatasetError as error:
        if data != WORDS:
            raise
        raise ExperimentError(
            f"the text {WORDS} isn't here: make it with sordino data prepare shakespeare --vocabulary 200 --as "
            f"{WORDS}, or leave it out with --parts {IMAGES}"
        ) from error
    return part, sizes, data


def _part(pool: RunPool, request: Request, part: str, sizes: BitsSizes, data: str) -> tuple[Choice, list[Row], str]:
    settings = partial(sizes.settings, data=data, server_momentum=0.9, partition=request.partition(data))
    central = partial(settings, mechanism=CENTRAL, bits=MOST_BITS)

    choice = Stages(pool, request.seeds, sizes.last).tuned(
        f"Clip and client rate of the central Gaussian at {CONDITIONAL} {sizes.middle:g}, {part}",
        {"clip": sizes.clips, "rate": sizes.rates},
        partial(central, epsilon=sizes.middle),
    )
    chosen = choice.taken()
    make = partial(settings, **chosen)
    runs = [
        run
        for mechanisms, widths in ((tuple(DISTRIBUTED), sizes.bits), ((CENTRAL,), (MOST_BITS,)))
        for run in combined(
            {"mechanism": mechanisms, "bits": widths, "epsilon": sizes.epsilons}, make, request.seeds, sizes.last
        )
    ]
    runs += [
        Run({"mechanism": "none", "bits": 0, "epsilon": None}, central(epsilon=None, seed=seed, **chosen), sizes.last)
        for seed in request.seeds
    ]
    described = (
        f"{part.capitalize()}: {sizes.described(data)}, clip {chosen['clip']:g}, client rate {chosen['rate']:g}, "
        "server momentum 0.9."
    )
    return choice, pool.run(f"{part}: bits and epsilon", runs), described


_KEYS: Final = ("mechanism", "bits", "epsilon")


def _tables(found: Results, part: str, sizes: BitsSizes) -> list[Table]:
    without = found.cell("none", 0, None)
    tables = []
    for mechanism, title in DISTRIBUTED.items():
        body: list[list[Cell]] = [
            [
                epsilon,
                *(found.cell(mechanism, bits, epsilon) for bits in sizes.bits),
                found.cell(CENTRAL, MOST_BITS, epsilon),
                without,
                *found.spent(mechanism=mechanism, epsilon=epsilon),
            ]
            for epsilon in sizes.epsilons
        ]
        columns = (CONDITIONAL, *(f"{bits} bits" for bits in sizes.bits), "central Gaussian", "no noise", *SPENT)
        note = f"Accuracy in percent, mean ± standard error over seeds. Epsilons: largest over the bits. {HELD}"
        tables.append(Table(f"bits-{part}-{mechanism}", f"Distributed {title}, {part}", columns, body, note))
    return tables


def _noise(found: Results, part: str, sizes: BitsSizes) -> Table:
    """Return the table of noise deviations by width, relative to the central Gaussian; on a coarse grid rounded updates
    exceed the clip and need more noise.
    """
    known = {labels_of(row, *_KEYS): noise_multiplier(row) for row in found.rows if row.get("plan") is not None}
    body: list[list[Cell]] = []
    for mechanism, title in DISTRIBUTED.items():
        for epsilon in sizes.epsilons:
            least = known.get((CENTRAL, MOST_BITS, epsilon))
            keys = [(mechanism, bits, epsilon) for bits in sizes.bits]
            noises = [(key, known.get(key)) for key in keys]
            cells = [found.why_not(*key) if one is None or least is None else one / least for key, one in noises]
            body.append([title, epsilon, *cells])
    columns = ("mechanism", CONDITIONAL, *(f"{bits} bits" for bits in sizes.bits))
    note = "Deviation of the noise of a sum, over that of the central Gaussian at the same epsilon."
    return Table(f"bits-{part}-noise", f"Noise by width, {part}", columns, body, note)


def _axes(found: Results, part: str, sizes: BitsSizes) -> list[Axes]:
    def curve(mechanism: str, bits: int) -> dict[float, Mean]:
        return found.curve(sizes.epsilons, lambda epsilon: (mechanism, bits, epsilon))

    without = found.means.get(("none", 0, None))
    axes = []
    for mechanism, title in DISTRIBUTED.items():
        series = [Series(f"{bits} bits", curve(mechanism, bits), at) for at, bits in enumerate(sizes.bits)]
        series.append(Series("central Gaussian", curve(CENTRAL, MOST_BITS), 7, dashed=True))
        axes.append(
            Axes(
                f"{title[0].upper()}{title[1:]}, {part}",
                CONDITIONAL,
                "accuracy, %",
                series,
                scale=NAMES,
                ticks=sizes.epsilons,
                level=None if without is None else (without.mean, "no noise"),
            )
        )
    return axes
