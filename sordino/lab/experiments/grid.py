"""The grids of simulated studies: what each is, its options, and playing one."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from runtime.failure import InputFailure
from runtime.option_values import one_of
from runtime.settings_file import Table
from runtime.settings_keys import key
from runtime.text import clock_text, rewritable
from sordino.planning.options import numbers

if TYPE_CHECKING:
    from sordino.lab.experiments.outcome import Outcome
    from sordino.lab.experiments.runs import Standing

_MOST_SEEDS: Final = 100
_BETWEEN_LINES_S: Final = 30.0
_option = partial(key, panel="Options")
EXPERIMENTS: Final = {
    "clipping": (
        "Fixed clips against clips that follow a quantile, flat and by layer, each at its own clip and rate; accuracy "
        "against the first clip; norms of an LSTM's layers.",
        ("45 minutes of CPU time", "an estimated four months on two cores"),
        ("images", "layers"),
    ),
    "blur-lus": (
        "DP-FedAvg, the distributed discrete Gaussian, BLUR + LUS and AE-DPFL: accuracy against epsilon, "
        "heterogeneity, sparsity, local steps, active participants, local rate, clip and lambda; norms before "
        "clipping.",
        (
            "four hours of CPU time, votes one or two more",
            "an estimated half a year on two cores: see --device and --parts",
        ),
        ("epsilon", "votes", "alpha", "sparsity", "steps", "active", "rates", "clips", "weights", "own-rates", "bound"),
    ),
    "bits": (
        "Accuracy against bits a value and epsilon: distributed discrete Gaussian and Skellam beside the central "
        "Gaussian at the same noise and at the same epsilon, on images and on the next word of a text; and with many "
        "participants a round.",
        (
            "25 minutes of CPU time for images, half an hour for text; with many participants four times as much",
            "an estimated two months on two cores, years for text",
        ),
        ("images", "text", "images-many", "text-many"),
    ),
    "compression": (
        "Count-mean sketches, 1 to 50 times shorter than the update, under fixed and adaptive clips: accuracy against "
        "ratio and noise, and bits a parameter.",
        ("an hour of CPU time", "an estimated two months on two cores"),
        ("fixed", "adaptive"),
    ),
    "sampling": (
        "Who is invited to a round: all, a lottery's cohort, or an epoch's, at the same epsilon against the "
        "coordinator; and cohorts of a fixed size beside those of independent coins, with a central Gaussian.",
        ("half an hour of CPU time", "months on two cores, by estimate"),
        (),
    ),
    "dropout": (
        "Participants that leave silently: accuracy, epsilon as planned and as spent, aborted rounds, and what a "
        "system that ignores them claims.",
        ("7 minutes of CPU time", "days on two cores, by estimate"),
        (),
    ),
}
"""Name to help, times of both scales, and parts in their order; the module is called as the experiment."""
OF_SOME: Final = {
    "colour": ("blur-lus",),
    "text": ("bits", "clipping"),
    "parts": ("bits", "blur-lus", "clipping", "compression"),
}
"""Options that only some experiments take."""


class GridOptions(Table):
    """Options of a grid of simulated studies."""

    scale: Literal["small", "paper"] = _option("small", "small: a short run on small models; paper: the published size")
    seeds: str = _option(
        "1,2,3,4,5,6,7,8,9,10", "one run of each setting for each; noise is always fresh", metavar="S,S,..."
    )
    workers: int | None = _option(
        None, "processes, one run in each at a time", shown="one for each core", within=(1, 256)
    )
    output: Path | None = _option(None, "for runs, tables and figures", metavar="FOLDER")
    data: str | None = _option(None, "data set of images, instead of the scale's", shown="the scale's", metavar="NAME")
    colour: str | None = _option(None, "CIFAR-10, for the papers' size", shown="none", metavar="NAME")
    text: str | None = _option(None, "data set of words", shown="the scale's", metavar="NAME")
    parts: str | None = _option(None, "of the experiment", shown="all", metavar="PART,...")
    device: Literal["cpu", "cuda", "auto"] = _option("cpu", "of models that train with torch: cpu, cuda or auto")


def _seeds(given: str) -> list[int]:
    from sordino.lab.experiments.outcome import SEEDS

    found = list(dict.fromkeys(numbers("--seeds", given, int, "whole numbers")))
    if min(found) < 0 or len(found) > _MOST_SEEDS:
        raise InputFailure(f"--seeds {given}: up to {_MOST_SEEDS} whole numbers from 0 on.")
    if set(found) & set(SEEDS):
        wording = " and ".join(map(str, SEEDS))
        raise InputFailure(f"--seeds {given}: {wording} are those of selections. Use others.")
    return found


def _data_sets(own: GridOptions) -> dict[str, str]:
    """Return the named data sets by kind. Raises Failure: an option holds no name of a data set."""
    from learning.data_names import check_dataset_name

    options = {"images": ("data", own.data), "colour": ("colour", own.colour), "text": ("text", own.text)}
    found = {kind: (option, name) for kind, (option, name) in options.items() if name is not None}
    for option, name in found.values():
        try:
            check_dataset_name(name)
        except ValueError as error:
            raise InputFailure(f"--{option} {name} {error}.") from None
    return {kind: name for kind, (_, name) in found.items()}


def play(
    name: str, own: GridOptions, folder: Path, told: Callable[[Standing], None]
) -> tuple[Outcome, dict[str, Any], int]:
    """Play an experiment, or continue it, and write its files to a folder, its JSON among them.

    Returns the outcome, its JSON, and the number of files. Raises Failure: an option can't be, or the folder.
    """
    from learning.blocks import DatasetError
    from learning.options import OptionError
    from sordino.lab.experiments.outcome import Request, write
    from sordino.lab.experiments.runs import ExperimentError, RunPool
    from sordino.lab.simulation.record import versions
    from sordino.lab.simulation.settings import SimulationError

    *_, known = EXPERIMENTS[name]
    for option, takers in OF_SOME.items():
        if (value := getattr(own, option)) is not None and name not in takers:
            raise InputFailure(f"--{option} {value}: {name} has no use for it. Leave it out.")
    parts = [] if own.parts is None else [part.strip() for part in own.parts.split(",")]
    for part in parts:
        one_of("--parts", part, known)
    wanted = [part for part in known if part in parts or not parts]
    request = Request(wanted, own.scale, _seeds(own.seeds), _data_sets(own))
    began = time.monotonic()
    try:
        pool = RunPool(folder, own.workers or os.cpu_count() or 1, told, own.device)
        outcome = import_module(f"sordino.lab.experiments.{name.replace('-', '_')}").play(pool, request)
        files = write(outcome, folder)
    except (ExperimentError, DatasetError, OptionError, SimulationError) as error:
        raise InputFailure(f"{error}.") from None
    except OSError as error:
        raise InputFailure(f"--output {folder} can't be used: {error}.") from None
    body: dict[str, Any] = {
        "experiment": name,
        "scale": request.scale,
        "seeds": request.seeds,
        "data": request.data,
        "parts": parts,
        "versions": versions(),
        "wall_s": round(time.monotonic() - began, 1),
        **outcome.to_json(),
    }
    (folder / "outcome.json").write_text(json.dumps(body) + "\n", encoding="utf-8")
    return outcome, body, len(files) + 1


def telling(*, quiet: bool) -> Callable[[Standing], None]:
    """A function of the progress: one line on a terminal, rewritten; elsewhere a line now and then."""
    terminal, last = rewritable(), float("-inf")

    def tell(standing: Standing) -> None:
        nonlocal last
        ended, now = standing.done == standing.of, time.monotonic()
        if quiet or (not terminal and not ended and now - last < _BETWEEN_LINES_S):
            return
        last = now
        left = "" if ended or standing.seconds_left is None else f", {clock_text(standing.seconds_left)} left"
        kept = f" ({standing.kept} kept)" if standing.kept else ""
        line = f"{standing.stage}: {standing.done} of {standing.of} runs{kept}{left}"
        if terminal:
            line = f"\r\x1b[K{line}" + ("\n" if ended else "")
        print(line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    return tell
