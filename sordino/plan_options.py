"""From the options of ``sordino plan`` to the arguments of a plan; every mistake is one sentence with its option."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from sordino.exit_codes import ExitCode, Failure

DEFAULT_DIM: Final = 500
DEFAULT_CLIP: Final = 1.0
DEFAULT_SKETCH_ROWS: Final = 15
DEFAULT_SKETCH_RATIO: Final = 10.0
MECHANISMS: Final = ("ddgauss", "skellam", "gaussian", "local-gaussian", "binomial")
TARGETS: Final = ("coordinator", "released", "conditional")
SAMPLINGS: Final = ("none", "lottery", "poisson", "fixed")
ROTATIONS: Final = ("hadamard", "hadamard-blocks")
SCALINGS: Final = ("uniform", "proportional", "least-noise")
CLIP_UPDATES: Final = ("fixed", "geometric", "linear")

Number = TypeVar("Number", int, float)


def one_of(option: str, given: str | None, allowed: Sequence[str]) -> None:
    """Raises Failure: ``given`` is no name that the option knows."""
    if given is not None and given not in allowed:
        raise Failure(ExitCode.INPUT, f"{option} {given} is unknown. Use one of: {', '.join(allowed)}.")


def numbers(option: str, text: str, kind: Callable[[str], Number], what: str) -> tuple[Number, ...]:
    """A list like ``0.5,1,2``.

    Raises:
        Failure: an entry isn't a number of that kind.
    """
    try:
        return tuple(kind(part.strip()) for part in text.split(","))
    except ValueError:
        raise Failure(ExitCode.INPUT, f"{option} takes {what} separated by commas, not {text!r}.") from None


def check_picture(option: str, file: Path) -> None:
    """Raises Failure: the ending is no picture's, or there is no such folder."""
    if file.suffix.lower() not in (".png", ".svg"):
        raise Failure(ExitCode.INPUT, f"{option} {file} must end in .png or .svg.")
    check_folder(option, file)


def check_folder(option: str, file: Path) -> None:
    """Raises Failure: the file's folder doesn't exist, or the file is a folder."""
    if not file.parent.is_dir() or file.is_dir():
        raise Failure(ExitCode.INPUT, f"{option} {file} can't be written: name a file in a folder that exists.")


def check_names(*, mechanism: str, target: str | None, sampling: str, rotation: str | None) -> None:
    """Raises Failure: one of the names is unknown."""
    one_of("--mechanism", mechanism, MECHANISMS)
    one_of("--target", target, TARGETS)
    one_of("--sampling", sampling, SAMPLINGS)
    one_of("--rotation", rotation, ROTATIONS)


def check_population(clients: int, population: int | None, sampling: str) -> None:
    """Raises Failure: sampling without a population, or the other way round."""
    if clients < 2:
        raise Failure(ExitCode.INPUT, f"--clients {clients} is too few: a sum of one hides nobody. Use at least 2.")
    if sampling == "none" and population not in (None, clients):
        raise Failure(
            ExitCode.INPUT,
            f"--population {population} needs --sampling lottery, poisson or fixed; without sampling all {clients} "
            "clients are invited to every round.",
        )
    if sampling != "none" and population is None:
        raise Failure(
            ExitCode.INPUT,
            f"--sampling {sampling} needs --population: how many participants those {clients} of a round are drawn "
            "from.",
        )
    if population is not None and population < clients:
        raise Failure(
            ExitCode.INPUT,
            f"{clients} clients of a round can't be drawn from --population {population}. Use at least {clients}.",
        )


def check_budgets(target: str, budget_coordinator: float | None, budget_released: float | None) -> None:
    """Raises Failure: a second budget for the target itself, or for a plan that nobody serves."""
    for reader, budget in (("coordinator", budget_coordinator), ("released", budget_released)):
        if budget is None:
            continue
        if target == reader:
            raise Failure(ExitCode.INPUT, f"--epsilon is the budget of the target: leave --budget-{reader} out.")
        if target == "conditional":
            raise Failure(
                ExitCode.INPUT, f"a conditional plan is for comparison and spends nothing: leave --budget-{reader} out."
            )


def default_target(sampling: str, max_dropout: float, adversarial: float) -> str:
    """Whose epsilon is bounded: "conditional" for the published setting, which nobody serves, else "coordinator"."""
    return "conditional" if sampling == "poisson" and max_dropout == adversarial == 0 else "coordinator"


def shape(
    *, dim: int | None, layers: str | None, sketch_rows: int | None, sketch_ratio: float | None
) -> tuple[int, tuple[int, ...] | None, tuple[int, int]]:
    """(dim, sizes of the layers or None, rows and width of the sketch).

    Raises:
        Failure: the options contradict each other.
    """
    sizes = None if layers is None else numbers("--layers", layers, int, "whole numbers")
    if (dim is not None and dim < 1) or (sizes is not None and min(sizes) < 1):
        raise Failure(ExitCode.INPUT, "--dim and every one of --layers must be at least 1.")
    if sizes is not None and dim is not None and sum(sizes) != dim:
        raise Failure(ExitCode.INPUT, f"--layers hold {sum(sizes)} values, but --dim is {dim}. Leave --dim out.")
    values = dim if dim is not None else sum(sizes) if sizes is not None else DEFAULT_DIM
    if sketch_rows is None and sketch_ratio is None:
        return values, sizes, (0, 0)
    if sizes is not None:
        raise Failure(ExitCode.INPUT, "a sketch mixes the layers: use either --layers or --sketch-rows.")
    rows = DEFAULT_SKETCH_ROWS if sketch_rows is None else sketch_rows
    ratio = DEFAULT_SKETCH_RATIO if sketch_ratio is None else sketch_ratio
    if rows < 1 or not 0 < ratio < math.inf:
        raise Failure(ExitCode.INPUT, "--sketch-rows must be at least 1 and --sketch-ratio positive: try 15 and 10.")
    return values, None, (rows, max(1, math.ceil(values / (rows * ratio))))


def clip_rule(
    *,
    coded: int,
    sizes: tuple[int, ...] | None,
    clip: float | None,
    clips: str | None,
    scaling: str,
    clip_update: str,
    quantile: float | None,
    clip_rate: float | None,
    bit_weight: float | None,
) -> Any:
    """The `mechanisms.clip_rule.ClipRule` of these options.

    Args:
        coded: values that are clipped: dim, or rows x width of a sketch.
        sizes: of the layers; None for one.
        clip: of the whole update; with layers each gets clip / sqrt(layers) unless ``clips`` are given.

    Raises:
        Failure: the options contradict each other.
        mechanisms.plan.InfeasiblePlan: a number is out of range.
    """
    from mechanisms.clip_rule import ClipRule

    one_of("--scaling", scaling, SCALINGS)
    one_of("--clip-update", clip_update, CLIP_UPDATES)
    adaptive = clip_update != "fixed"
    for option, given in (("--quantile", quantile), ("--clip-rate", clip_rate), ("--bit-weight", bit_weight)):
        if given is not None and not adaptive:
            raise Failure(ExitCode.INPUT, f"{option} needs clips that adapt: add --clip-update geometric or linear.")
    layers = (coded,) if sizes is None else sizes
    if clips is None:
        each = (DEFAULT_CLIP if clip is None else clip) / math.sqrt(len(layers))
        bounds = (float(each),) * len(layers)
    else:
        if clip is not None:
            raise Failure(ExitCode.INPUT, "use either --clip for the whole update or --clips for its layers.")
        bounds = numbers("--clips", clips, float, "numbers")
        if len(bounds) != len(layers):
            raise Failure(
                ExitCode.INPUT,
                f"--clips states {len(bounds)} for {len(layers)} "
                f"{'layer' if len(layers) == 1 else 'layers'}: state one for each of --layers.",
            )
    return ClipRule(
        layers=layers,
        clips=bounds,
        scaling=scaling,
        update=clip_update,
        quantile=float((0.5 if quantile is None else quantile) if adaptive else 0),
        rate=float((0.2 if clip_rate is None else clip_rate) if adaptive else 0),
        bit_weight=float((0.2 if bit_weight is None else bit_weight) if adaptive else 0),
    )
