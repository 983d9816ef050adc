"""Accuracy against bits per value: distributed discrete Gaussian and Skellam beside the central Gaussian.

The setting of [KLS21] section 6.2 and [AKL21] section 5; the small scale uses smaller data. Fewer bits make the grid
coarser, so rounding adds to the noise, or no plan exists at all, which the table then says.

The central Gaussian is run twice. At the same noise, clip and rate as the distributed mechanism of the most bits: what
differs is the encoding alone. And at the same epsilon, with its own clip and rate: there its accountant is the best
there is for it, and a difference holds what the accountants of distributed noise lose as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from mechanisms.plan import InfeasiblePlan
from mechanisms.pld import poisson_gaussian_epsilon
from sordino.lab.experiments.outcome import NOT_CHARGED, PAPER, SMALL, WORDS, Choice, Outcome, Request, Stages, combined
from sordino.lab.experiments.pooled_mlp import NAME as POOLED_MLP
from sordino.lab.experiments.runs import RunPool, labels_of, noise_multiplier
from sordino.lab.experiments.setting import ENGINE, FASHION, FEMNIST, PUBLISHED, STACKOVERFLOW, Sizes
from sordino.lab.experiments.tables import CONDITIONAL, HELD, PAIRED, SPENT, TEST, Cell, Mean, Results, Table, compared
from sordino.lab.experiments.word_pairs import NAME as WORD_PAIRS
from sordino.lab.simulation.settings import SimulationSettings
from sordino.planning.drawing import NAMES, Axes, Picture, Series

IMAGES, TEXT, IMAGES_MANY, TEXT_MANY = "images", "text", "images-many", "text-many"
DISTRIBUTED: Final = {"ddgauss": "discrete Gaussian", "skellam": "Skellam"}
CENTRAL, SAME_NOISE, NO_NOISE = "gaussian", "gaussian, same noise", "none"
REFERENCES: Final = {SAME_NOISE: "central, same noise", CENTRAL: "central, same epsilon"}
MOST_BITS: Final = 24
"""Of the central Gaussian, whose grid should not count."""


@dataclass(frozen=True, kw_only=True)
class BitsSizes(Sizes):
    """Numbers of a scale, for one kind of data."""

    bits: tuple[int, ...]


_PAPER_BITS: Final = (12, 14, 16, 18)
SIZES: Final = {
    (SMALL, IMAGES): BitsSizes(
        **FASHION,
        task=POOLED_MLP,
        options={"local_epochs": 3, "batch_size": 20},
        rounds=40,
        epsilons=(2.0, 4.0, 8.0),
        bits=(10, 12, 16, 20),
        clips=(0.1, 0.3, 1.0),
        rates=(0.05, 0.1, 0.2),
    ),
    (SMALL, TEXT): BitsSizes(
        data=WORDS,
        task=WORD_PAIRS,
        options={"local_steps": 4, "batch_size": 16, "vocabulary": 200},
        participants=600,
        cohort=100,
        rounds=30,
        epsilons=(4.0, 16.0),
        bits=(10, 12, 16),
        clips=(0.3, 1.0, 3.0),
        rates=(2.0, 5.0, 10.0),
        evaluate_every=5,
        last=2,
    ),
    (PAPER, IMAGES): BitsSizes(
        **FEMNIST,
        options={"local_epochs": 1, "batch_size": 20},
        epsilons=(3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0),
        bits=_PAPER_BITS,
        clips=(0.01, 0.03, 0.1),
        rates=(0.03, 0.1),
    ),
    (PAPER, TEXT): BitsSizes(**STACKOVERFLOW, epsilons=(2.5, 5.0, 10.0, 15.0, 20.0), bits=_PAPER_BITS),
}
SIZES.update(
    ((scale, many), replace(SIZES[scale, part], cohort=cohort))
    for scale, cohort in ((SMALL, 400), (PAPER, 1000))
    for part, many in ((IMAGES, IMAGES_MANY), (TEXT, TEXT_MANY))
)


def play(pool: RunPool, request: Request) -> Outcome:
    """Choose clip and rate for each noise, then run every mechanism at every width and epsilon."""
    notes: list[str] = []
    tables: list[Table] = []
    axes: list[Axes] = []
    choices: list[Choice] = []
    for part, sizes, data in [_found(request, part) for part in request.parts]:
        own, found = _part(pool, request, part, sizes, data)
        notes.append(f"{part.capitalize()}: {sizes.described(data)}, server momentum 0.9. {own[0].budget()}")
        choices += own
        tables += [*_tables(found, part, sizes), _noise(found, part, sizes)]
        tables += [one.table(f"bits-{part}-choice{end}") for one, end in zip(own, ("", "-no-noise"), strict=True)]
        axes += _axes(found, part, sizes)
    notes += [
        "Both distributed mechanisms have, at every width, the clip and rate that were chosen for the discrete "
        "Gaussian of the most bits. Where a width has much more noise, a choice of its own might lose less.",
        PUBLISHED,
        ENGINE,
        NOT_CHARGED,
    ]
    note = (
        "Mean and standard error over seeds; k = 4 deviations before a sum may wrap. Dashed: central Gaussian of "
        f"{MOST_BITS} bits. Where a point is missing no plan holds."
    )
    return Outcome(notes, tables, [Picture("bits", axes, note, columns=len(DISTRIBUTED), same_y=True)], choices)


def _found(request: Request, part: str) -> tuple[str, BitsSizes, str]:
    """Return a part with its sizes and its data, after a check that the data are present."""
    sizes = SIZES[request.scale, part]
    return part, sizes, request.words(sizes) if part in (TEXT, TEXT_MANY) else request.images(sizes)


def _part(
    pool: RunPool, request: Request, part: str, sizes: BitsSizes, data: str
) -> tuple[tuple[Choice, Choice], Results]:
    stages, start = Stages(pool, request.seeds, sizes.last), sizes.start
    settings = partial(sizes.settings, data=data, server_momentum=0.9, partition=request.partition(data))
    first, widest = next(iter(DISTRIBUTED)), max(sizes.bits)
    widths = {CENTRAL: MOST_BITS, first: widest}

    def begin(*, mechanism: str, **given: Any) -> SimulationSettings:
        return settings(mechanism=mechanism, bits=widths[mechanism], **given)

    noised = {"mechanism": (CENTRAL, first), "epsilon": sizes.epsilons}
    choice = stages.tuned(f"Clip and client rate for each noise, {part}", start, begin, of=noised)
    plain = stages.tuned(f"Clip and client rate without noise, {part}", start, partial(settings, epsilon=None))
    aimed = {
        epsilon: found
        for epsilon in sizes.epsilons
        if (found := _epsilon_of_noise(partial(begin, seed=0, **choice.taken(first, epsilon)), first, epsilon))
    }

    def make(*, mechanism: str, bits: int, epsilon: float | None, seed: int) -> SimulationSettings:
        if epsilon is None:
            return settings(epsilon=None, seed=seed, **plain.taken())
        tuned = choice.taken(CENTRAL if mechanism == CENTRAL else first, epsilon)
        if mechanism == SAME_NOISE:
            return settings(mechanism=CENTRAL, bits=bits, epsilon=aimed[epsilon], seed=seed, **tuned)
        return settings(mechanism=mechanism, bits=bits, epsilon=epsilon, seed=seed, **tuned)

    grids = (
        (tuple(DISTRIBUTED), sizes.bits, sizes.epsilons),
        ((CENTRAL,), (MOST_BITS,), sizes.epsilons),
        ((SAME_NOISE,), (MOST_BITS,), tuple(aimed)),
        ((NO_NOISE,), (0,), (None,)),
    )
    named = [dict(zip(_KEYS, values, strict=True)) for values in grids]
    runs = [run for grid in named for run in combined(grid, make, request.seeds, sizes.last)]
    return (choice, plain), Results(pool.run(f"{part}: bits and epsilon", runs), *_KEYS)


def _epsilon_of_noise(begin: Callable[..., SimulationSettings], mechanism: str, epsilon: float) -> float | None:
    """Return the conditional epsilon at which the central Gaussian has the noise of a mechanism at ``epsilon``.

    None if that mechanism has no plan there. ``begin``: settings by mechanism and epsilon.
    """

    try:
        plan = begin(mechanism=mechanism, epsilon=epsilon).plan()
    except InfeasiblePlan:
        return None
    assert plan is not None  # noqa: S101  # it has noise
    return poisson_gaussian_epsilon(plan.noise_multiplier, plan.sampling_rate, plan.rounds, plan.delta)


_KEYS: Final = ("mechanism", "bits", "epsilon")


def _tables(found: Results, part: str, sizes: BitsSizes) -> list[Table]:
    widths = tuple(f"{bits} bits" for bits in sizes.bits)
    tables = []
    for mechanism, title in DISTRIBUTED.items():
        keys = [(mechanism, bits, epsilon) for epsilon in sizes.epsilons for bits in sizes.bits]
        body: list[list[Cell]] = [
            [
                epsilon,
                *(found.cell(mechanism, bits, epsilon) for bits in sizes.bits),
                *(found.cell(central, MOST_BITS, epsilon) for central in REFERENCES),
                found.cell(NO_NOISE, 0, None),
                *found.spent(mechanism=mechanism, epsilon=epsilon),
            ]
            for epsilon in sizes.epsilons
        ]
        columns = (CONDITIONAL, *widths, *REFERENCES.values(), "no noise", *SPENT)
        note = f"Accuracy in percent, mean ± standard error over seeds. Epsilons: largest over the bits. {HELD}"
        tables.append(Table(f"bits-{part}-{mechanism}", f"Distributed {title}, {part}", columns, body, note))
        sides = [compared(found, [(key, (central, MOST_BITS, key[2])) for key in keys]) for central in REFERENCES]
        body = [[key[2], key[1], *one, *other] for key, one, other in zip(keys, *sides, strict=True)]
        columns = (CONDITIONAL, "bits", *(name for less in REFERENCES.values() for name in (f"less {less}", *PAIRED)))
        note = TEST.format(of="with one reference")
        title = f"Distributed {title} against the central Gaussian, {part}"
        tables.append(Table(f"bits-{part}-{mechanism}-compared", title, columns, body, note))
    return tables


def _noise(found: Results, part: str, sizes: BitsSizes) -> Table:
    """Return noise multipliers by width; on a coarse grid rounded updates exceed the clip and need more."""
    known = {labels_of(row, *_KEYS): noise_multiplier(row) for row in found.rows if row.get("plan") is not None}
    body: list[list[Cell]] = []
    for mechanism, title in DISTRIBUTED.items():
        for epsilon in sizes.epsilons:
            keys = [(mechanism, bits, epsilon) for bits in sizes.bits]
            keys += [(central, MOST_BITS, epsilon) for central in REFERENCES]
            body.append([title, epsilon, *(known.get(key) or found.why_not(*key) for key in keys)])
    columns = ("mechanism", CONDITIONAL, *(f"{bits} bits" for bits in sizes.bits), *REFERENCES.values())
    note = "Deviation of the noise of a sum, over the clip."
    return Table(f"bits-{part}-noise", f"Noise by width, {part}", columns, body, note)


def _axes(found: Results, part: str, sizes: BitsSizes) -> list[Axes]:
    def curve(mechanism: str, bits: int) -> dict[float, Mean]:
        return found.curve(sizes.epsilons, lambda epsilon: (mechanism, bits, epsilon))

    without = found.means.get(("none", 0, None))
    axes = []
    for mechanism, title in DISTRIBUTED.items():
        series = [Series(f"{bits} bits", curve(mechanism, bits), at) for at, bits in enumerate(sizes.bits)]
        series += [
            Series(name, curve(central, MOST_BITS), 6 + at, dashed=True)
            for at, (central, name) in enumerate(REFERENCES.items())
        ]
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
