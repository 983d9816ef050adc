"""From the options of ``sordino plan`` to the arguments of a plan; every mistake is one sentence with its option."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from runtime.failure import InputFailure
from runtime.settings_file import Settings
from runtime.settings_keys import key
from server.study_file import StudyConfiguration
from server.study_tables import CODING, PRIVACY, PrivacyTable
from wire.guarantee import CURIOUS_TRUST

if TYPE_CHECKING:
    from mechanisms.clip_rule import ClipRule

DEFAULT_DIM: Final = 500
OUTPUT: Final = "Output"
_privacy, _coding, _output = (partial(key, panel=panel) for panel in (PRIVACY, CODING, OUTPUT))
Number = TypeVar("Number", int, float)


class PlannedPrivacy(PrivacyTable):
    """[privacy] of a plan, which knows more mechanisms, ways to draw a cohort and adversaries than can be served."""

    mechanism: Literal["ddgauss", "skellam", "gaussian", "local-gaussian", "binomial"] = _privacy(  # type: ignore[assignment]  # wider
        "ddgauss", "ddgauss, skellam, gaussian, local-gaussian or binomial"
    )
    sampling: Literal["none", "lottery", "epochs", "poisson", "fixed"] = _privacy(  # type: ignore[assignment]  # wider
        "none",
        "how the clients of a round are drawn: none, lottery, epochs, poisson, or fixed (leaving is then assumed "
        "to be independent of identity)",
    )
    adversary: Literal["malicious", "curious", "semi-malicious"] = _privacy(  # type: ignore[assignment]  # wider
        "malicious",
        f"what the coordinator may do: malicious; curious: {CURIOUS_TRUST}; semi-malicious, for comparison only",
    )


_BUDGET: Final = {"help": "also stop here, if the target is another", "shown": "as planned", "gt": 0}


class PlanOptions(Settings):
    """Options of ``sordino plan`` that are not keys of a study."""

    target: Literal["coordinator", "released", "conditional"] | None = _privacy(
        None,
        "whose epsilon the budget bounds: coordinator, released or conditional",
        shown="coordinator; conditional with poisson and neither dropout nor collusion",
        metavar="READER",
    )
    budget_coordinator: float | None = _privacy(None, **_BUDGET)
    budget_released: float | None = _privacy(None, **_BUDGET)
    clients: int = _privacy(100, "participants invited to each round")
    task: str | None = _coding(
        None,
        "plan for this task: it states the number of values, and a statistic its clip. For a statistic the "
        "expected error is printed",
        metavar="NAME",
    )
    task_option: tuple[str, ...] = _coding((), "an option of the task; repeatable", metavar="KEY=VALUE")
    dim: int | None = _coding(None, "values in one update", shown="500, or of all layers, or the task's")
    layers: str | None = _coding(None, "clip by layer: sizes of the layers in order", metavar="N,N,...")
    clips: str | None = _coding(
        None, "largest L2 norm of each layer", shown="clip / sqrt(number of layers) each", metavar="C,C,..."
    )
    with_alternatives: bool | None = _output(
        None,
        "what 10 to 20 bits and the other distributed mechanism would cost",
        shown="if quick; not in JSON",
        flag="--alternatives",
        spellings=("--no-alternatives",),
    )
    plot: Path | None = _output(None, "draw error against epsilon for four mechanisms; .png or .svg", metavar="FILE")


class PlannedStudy(StudyConfiguration):
    """A study as ``sordino plan`` takes it: `StudyConfiguration`, with `PlannedPrivacy`."""

    privacy: PlannedPrivacy = key(help="", option=None)


def check_population(clients: int, population: int | None, sampling: str) -> None:
    """Raises Failure: sampling without a population, or the other way round."""
    if clients < 2:
        raise InputFailure(f"--clients {clients} is too few: a sum of one hides nothing. Use at least 3.")
    from secagg.shamir import PRIME

    if clients >= PRIME:
        raise InputFailure(f"--clients {clients} is too many for one sum. Use at most {PRIME - 1}.")
    if sampling == "none" and population not in (None, clients):
        raise InputFailure(
            f"--population {population} needs --sampling lottery, epochs, poisson or fixed; without sampling all "
            f"{clients} clients are invited to every round."
        )
    if sampling != "none" and population is None:
        raise InputFailure(
            f"--sampling {sampling} needs --population: how many participants those {clients} of a round are drawn "
            "from."
        )
    if population is not None and population < clients:
        raise InputFailure(
            f"{clients} clients of a round can't be drawn from --population {population}. Use at least {clients}."
        )


def check_budgets(target: str, budget_coordinator: float | None, budget_released: float | None) -> None:
    """Raises Failure: a second budget for the target itself, or for a plan that isn't served."""
    for reader, budget in (("coordinator", budget_coordinator), ("released", budget_released)):
        if budget is None:
            continue
        if target == reader:
            raise InputFailure(f"--epsilon is the budget of the target: leave --budget-{reader} out.")
        if target == "conditional":
            raise InputFailure(f"a conditional plan is for comparison and spends nothing: leave --budget-{reader} out.")


def shape(
    *, dim: int | None, layers: str | None, rows: int, ratio: float
) -> tuple[int, tuple[int, ...] | None, tuple[int, int]]:
    """(dim, sizes of the layers or None, rows and width of the sketch). Raises Failure: the options contradict each
    other.
    """
    sizes = None if layers is None else numbers("--layers", layers, int, "whole numbers")
    if (dim is not None and dim < 1) or (sizes is not None and min(sizes) < 1):
        raise InputFailure("--dim and every one of --layers must be at least 1.")
    if sizes is not None and dim is not None and sum(sizes) != dim:
        raise InputFailure(f"--layers hold {sum(sizes)} values, but --dim is {dim}. Leave --dim out.")
    values = dim if dim is not None else sum(sizes) if sizes is not None else DEFAULT_DIM
    if values > 1 << 28:
        raise InputFailure(f"an update of {values} values is too long. Use a --dim of at most {1 << 28}.")
    if not rows:
        return values, sizes, (0, 0)
    if sizes is not None:
        raise InputFailure("a sketch mixes the layers: use either --layers or --sketch-rows.")
    from mechanisms.sketch import sketch_shape

    return values, None, (rows, sketch_shape(values, rows, ratio))


def numbers(option: str, text: str, kind: Callable[[str], Number], what: str) -> tuple[Number, ...]:
    """A list like ``0.5,1,2``. Raises Failure: an entry isn't a number of that kind."""
    try:
        return tuple(kind(part.strip()) for part in text.split(","))
    except ValueError:
        raise InputFailure(f"{option} takes {what} separated by commas, not {text!r}.") from None


def of_task(
    task: str,
    options: Mapping[str, object],
    privacy: PrivacyTable,
    *,
    dim: int | None,
    layers: str | None,
    clips: str | None,
) -> tuple[int, float | None]:
    """(dim, clip) of a plan for a task: its values, and its own bound where it has one.

    Raises Failure: the task can't be, or the values are stated as well; OptionError, TaskUnavailable: its options can't
    be, or the clip would distort it.
    """
    from learning.make_task import clip_of, make_task, model_shapes
    from learning.parameters import dimension
    from learning.task_names import BOUNDED, check_task_name

    try:
        check_task_name(task)
    except ValueError as error:
        raise InputFailure(f"--task {task} {error}.") from None
    for option, given in (("--dim", dim), ("--layers", layers), ("--clips", clips)):
        if given is not None:
            raise InputFailure(f"--task {task} states how many values are sent: leave {option} out.")
    if task not in BOUNDED:
        return dimension(model_shapes(task, options)), privacy.clip  # no model is made to be counted
    made = make_task(task, dict(options))
    adaptive, sketch = privacy.clip_update != "fixed", privacy.sketch_rows > 0
    return made.dim, clip_of(made, privacy.clip, adaptive=adaptive, sketch=sketch)


def clip_rule(
    privacy: PrivacyTable, *, coded: int, sizes: tuple[int, ...] | None, clip: float | None, clips: str | None
) -> ClipRule:
    """The clip rule of these options.

    Args:
        coded: values that are clipped: dim, or rows x width of a sketch.
        sizes: of the layers; None for one.
        clip: of the whole update; with layers each gets clip / sqrt(layers) unless ``clips`` are given.

    Raises Failure: the options contradict each other; InfeasiblePlan: a number is out of range.
    """
    from mechanisms.clip_rule import ClipRule

    layers = (coded,) if sizes is None else sizes
    if clips is None:
        bounds: tuple[float, ...] = ((1.0 if clip is None else clip) / math.sqrt(len(layers)),) * len(layers)
    else:
        if clip is not None:
            raise InputFailure("use either --clip for the whole update or --clips for its layers.")
        bounds = numbers("--clips", clips, float, "numbers")
        if len(bounds) != len(layers):
            raise InputFailure(
                f"--clips states {len(bounds)} for {len(layers)} "
                f"{'layer' if len(layers) == 1 else 'layers'}: state one for each of --layers."
            )
        for bound in bounds:
            if not 0 < bound <= 1e9:
                raise InputFailure(f"--clips: {bound:g} is out of range. Use more than 0 and at most 1e+09.")
    adapting: dict[str, float] = {}
    if privacy.clip_update != "fixed":
        adapting = {"quantile": privacy.clip_quantile, "rate": privacy.clip_rate, "bit_weight": privacy.clip_bit_weight}
    return ClipRule(layers=layers, clips=bounds, scaling=privacy.clip_scaling, update=privacy.clip_update, **adapting)
