"""From the options of ``sordino plan`` to the arguments of a plan; every mistake is one sentence with its option."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from runtime.failure import ExitCode, Failure
from runtime.text import did_you_mean

DEFAULT_DIM: Final = 500
DEFAULT_CLIP: Final = 1.0
DEFAULT_SKETCH_RATIO: Final = 10.0
DEFAULT_QUANTILE: Final = 0.5
DEFAULT_CLIP_RATE: Final = 0.3
DEFAULT_BIT_WEIGHT: Final = 0.3
RING: Final = "ring"
HARARY: Final = "harary"
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
        near = did_you_mean(given, allowed)
        raise Failure(ExitCode.INPUT, f"{option} {given} is unknown. Use one of: {', '.join(allowed)}.{near}")


def graph_name(given: str, allowed: Sequence[str]) -> str:
    """The protocol's word for what ``--graph`` names: what is printed as a ring may be given as one.

    Raises:
        Failure: it names no graph.
    """
    one_of("--graph", given, (*allowed, RING))
    return HARARY if given == RING else given


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


def check_names(*, mechanism: str, target: str | None, sampling: str, rotation: str) -> None:
    """Raises Failure: one of the names is unknown."""
    if mechanism == "randomised-response":
        raise Failure(
            ExitCode.INPUT,
            "--mechanism randomised-response sends no vectors, so there is no such plan. In Python it is "
            'mechanisms.registry.MECHANISMS["randomised-response"].',
        )
    one_of("--mechanism", mechanism, MECHANISMS)
    one_of("--target", target, TARGETS)
    one_of("--sampling", sampling, SAMPLINGS)
    one_of("--rotation", rotation, ("auto", *ROTATIONS))
    if target == "conditional" and sampling == "none":
        raise Failure(ExitCode.INPUT, "--target conditional needs --sampling poisson and --population.")


_RANGES: Final[dict[str, tuple[Callable[[float], bool], str]]] = {
    "--epsilon": (lambda x: 0 < x < math.inf, "a positive number, such as 8"),
    "--epsilons": (lambda x: 0 < x < math.inf, "positive numbers, such as 1,2,4"),
    "--delta": (lambda x: 0 < x < 1, "far less than 1 / participants, such as 1e-5"),
    "--rounds": (lambda x: 1 <= x <= 1 << 40, "at least 1"),
    "--bits": (lambda x: 1 <= x <= 62, "1 to 62"),
    "--clip": (lambda x: 1e-30 <= x <= 1e30, "a positive number, such as 1"),
    "--adversarial": (lambda x: 0 <= x < 1, "a share from 0 to below 1; for 5 % write 0.05"),
    "--beta": (lambda x: 0 <= x <= 0.9, "0 to 0.9"),
    "--k-stddevs": (lambda x: 1 <= x < math.inf, "at least 1, better 4"),
    "--budget-coordinator": (lambda x: 0 < x < math.inf, "a positive number"),
    "--budget-released": (lambda x: 0 < x < math.inf, "a positive number"),
    "--clip-quantile": (lambda x: 0 < x < 1, "more than 0 and less than 1, such as 0.5"),
    "--clip-rate": (lambda x: 0 < x <= 10, "more than 0 and at most 10, such as 0.3"),
    "--clip-bit-weight": (lambda x: 1e-3 <= x <= 1, "0.001 to 1, such as 0.3"),
    "--sketch-rows": (lambda x: 0 <= x <= 1024, "1 to 1024, such as 15, or 0 for no sketch"),
    "--sketch-ratio": (lambda x: 1 <= x <= 1e6, "1 to 1000000, such as 10"),
    "--server-rate": (lambda x: 0 < x <= 1e6, "more than 0 and at most 1000000"),
    "--server-momentum": (lambda x: 0 <= x < 1, "0 to below 1; 0 is no momentum"),
    "--server-second-momentum": (lambda x: 0 <= x < 1, "0 to below 1, such as 0.99"),
    "--server-adaptivity": (lambda x: 0 < x <= 1e6, "more than 0, such as 0.001"),
    "--max-dropout": (lambda x: 0 <= x < 1, "a share from 0 to below 1; for 20 % write 0.2"),
}


def check_ranges(**given: float | None) -> None:
    """Every number by itself: ``epsilon=-1`` is about ``--epsilon``.

    Raises:
        Failure: one lies where no plan can be.
    """
    for name, value in given.items():
        option = "--" + name.replace("_", "-")
        holds, use = _RANGES[option]
        if value is not None and not holds(value):
            raise Failure(ExitCode.INPUT, f"{option} {value:g} is out of range. Use {use}.")


def check_adapting(
    clip_update: str, clip_quantile: float | None, clip_rate: float | None, clip_bit_weight: float | None
) -> None:
    """Raises Failure: options of clips that adapt, but the clips are fixed; or out of range."""
    one_of("--clip-update", clip_update, CLIP_UPDATES)
    given = {"clip_quantile": clip_quantile, "clip_rate": clip_rate, "clip_bit_weight": clip_bit_weight}
    for name, value in given.items():
        if value is not None and clip_update == "fixed":
            option = "--" + name.replace("_", "-")
            raise Failure(ExitCode.INPUT, f"{option} needs clips that adapt: add --clip-update geometric or linear.")
    check_ranges(**given)


def check_sketch(sketch_rows: int, sketch_ratio: float | None) -> None:
    """Raises Failure: out of range, or a ratio without rows."""
    check_ranges(sketch_rows=sketch_rows, sketch_ratio=sketch_ratio)
    if sketch_ratio is not None and not sketch_rows:
        raise Failure(ExitCode.INPUT, "--sketch-ratio needs --sketch-rows, such as 15.")


def check_population(clients: int, population: int | None, sampling: str) -> None:
    """Raises Failure: sampling without a population, or the other way round."""
    if clients < 2:
        raise Failure(ExitCode.INPUT, f"--clients {clients} is too few: a sum of one hides nobody. Use at least 3.")
    from secagg.shamir import PRIME

    if clients >= PRIME:
        raise Failure(ExitCode.INPUT, f"--clients {clients} is too many for one sum. Use at most {PRIME - 1}.")
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
    *, dim: int | None, layers: str | None, sketch_rows: int, sketch_ratio: float | None
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
    if values > 1 << 28:
        raise Failure(ExitCode.INPUT, f"an update of {values} values is too long. Use a --dim of at most {1 << 28}.")
    check_sketch(sketch_rows, sketch_ratio)
    if not sketch_rows:
        return values, sizes, (0, 0)
    if sizes is not None:
        raise Failure(ExitCode.INPUT, "a sketch mixes the layers: use either --layers or --sketch-rows.")
    from mechanisms.sketch import sketch_shape

    ratio = DEFAULT_SKETCH_RATIO if sketch_ratio is None else sketch_ratio
    return values, None, (sketch_rows, sketch_shape(values, sketch_rows, ratio))


def of_task(
    task: str,
    options: Mapping[str, object],
    *,
    dim: int | None,
    clip: float | None,
    layers: str | None,
    clips: str | None,
    adaptive: bool,
    sketch: bool,
) -> tuple[int, float | None]:
    """(dim, clip) of a plan for a task: its values, and its own bound where it has one.

    Raises:
        Failure: the task can't be, or the values are stated as well.
        OptionError, TaskUnavailable: its options can't be; the clip would distort it.
    """
    from learning.make_task import clip_of, make_task, model_shapes
    from learning.parameters import dimension
    from learning.task_names import BOUNDED, check_task_name

    try:
        check_task_name(task)
    except ValueError as error:
        raise Failure(ExitCode.INPUT, f"--task: {error}.") from None
    for option, given in (("--dim", dim), ("--layers", layers), ("--clips", clips)):
        if given is not None:
            raise Failure(ExitCode.INPUT, f"--task {task} says how many values are sent: leave {option} out.")
    if task not in BOUNDED:
        return dimension(model_shapes(task, options)), clip  # no model is made to be counted
    made = make_task(task, dict(options))
    return made.dim, clip_of(made, clip, adaptive=adaptive, sketch=sketch)


def clip_rule(
    *,
    coded: int,
    sizes: tuple[int, ...] | None,
    clip: float | None,
    clips: str | None,
    clip_scaling: str,
    clip_update: str,
    clip_quantile: float | None,
    clip_rate: float | None,
    clip_bit_weight: float | None,
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

    one_of("--clip-scaling", clip_scaling, SCALINGS)
    if clip_scaling != SCALINGS[0] and sizes is None:
        raise Failure(ExitCode.INPUT, f"--clip-scaling {clip_scaling} needs layers: add --layers; or leave it out.")
    check_adapting(clip_update, clip_quantile, clip_rate, clip_bit_weight)
    check_ranges(clip=clip)
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
        for bound in bounds:
            if not _RANGES["--clip"][0](bound):
                raise Failure(ExitCode.INPUT, f"--clips: {bound:g} is out of range. Use {_RANGES['--clip'][1]}.")
    adapting: dict[str, float] = {}
    if clip_update != "fixed":
        adapting = {
            "quantile": float(DEFAULT_QUANTILE if clip_quantile is None else clip_quantile),
            "rate": float(DEFAULT_CLIP_RATE if clip_rate is None else clip_rate),
            "bit_weight": float(DEFAULT_BIT_WEIGHT if clip_bit_weight is None else clip_bit_weight),
        }
    return ClipRule(layers=layers, clips=bounds, scaling=clip_scaling, update=clip_update, **adapting)
