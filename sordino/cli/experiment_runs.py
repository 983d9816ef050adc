"""``sordino experiment clipping|blur-lus|bits|compression|sampling|dropout``: grids of simulated studies."""

# No postponed annotations: typer reads those of `_command`'s function, which name its arguments.
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from runtime.failure import ExitCode, InputFailure, listing
from sordino.cli.verbs import rewritable

if TYPE_CHECKING:
    from sordino.lab.experiments.outcome import Request
    from sordino.lab.experiments.run_pool import Standing

_CODES: Final = listing(ExitCode.OK, ExitCode.INPUT, ExitCode.INTERRUPTED)
_MOST_SEEDS: Final = 100
_BETWEEN_LINES_S: Final = 30.0
_COMMON: Final = (
    "\n\nEvery run is a whole simulated study, with the real encoder, noise and accounting. Finished runs are kept in "
    "FOLDER/runs.jsonl and not played again: after Ctrl-C the same command continues. FOLDER also takes each table as "
    ".txt, .csv and .md, each figure as .svg, and all of it as outcome.json."
)
_TIMES: Final = "\n\nTime on two cores: {small} with --scale small; {paper} with --scale paper."

EXPERIMENTS: Final = {
    "clipping": (
        "clipping",
        "Fixed clips against clips that follow a quantile, flat and by layer: accuracy against epsilon and first clip.",
        ("10 to 20 minutes", "four months by estimate, on the CPU"),
        (),
    ),
    "blur-lus": (
        "blur_lus",
        "DP-FedAvg, AE-DPFL, the distributed discrete Gaussian and BLUR + LUS: accuracy against epsilon, "
        "heterogeneity, sparsity, local steps, active participants and local rate; norms before clipping.",
        ("15 to 40 minutes", "half a year by estimate, on the CPU: see --device and --parts"),
        ("epsilon", "alpha", "sparsity", "steps", "active", "rates", "own-rates"),
    ),
    "bits": (
        "bits",
        "Accuracy against bits a value and epsilon: distributed discrete Gaussian and Skellam beside the central "
        "Gaussian, on images and on the next word of a text.",
        ("10 to 20 minutes", "images two months, text years, by estimate on the CPU"),
        ("images", "text"),
    ),
    "compression": (
        "compression",
        "Count-mean sketches, 1 to 50 times shorter than the update: accuracy against ratio and noise, and bits a "
        "parameter.",
        ("5 to 15 minutes", "a month by estimate, on the CPU"),
        (),
    ),
    "sampling": (
        "sampling",
        "Who is invited to a round: all, a lottery's cohort, or an epoch's, at the same epsilon against the "
        "coordinator.",
        ("10 minutes", "months by estimate, on the CPU"),
        (),
    ),
    "dropout": (
        "dropout",
        "Participants that leave silently: accuracy, epsilon as planned and as spent, aborted rounds, and what a "
        "system that ignores them claims.",
        ("1 minute", "days by estimate"),
        (),
    ),
}
"""Name to module, help, times of both scales, and parts that --parts may name."""


def add_to(app: typer.Typer) -> None:
    """Make a verb of each."""
    for name, (module, wording, (small, paper), parts) in EXPERIMENTS.items():
        help_text = wording + _COMMON + _TIMES.format(small=small, paper=paper)
        epilog = f"Example: [bold]sordino experiment {name} --workers 2 --output {name}[/bold]\n\n" + _CODES
        app.command(name, help=help_text, epilog=epilog)(_command(name, module, parts))


def _command(name: str, module: str, known: tuple[str, ...]) -> Callable[..., int]:
    about_parts = f"Of {', '.join(known)}."

    def command(
        scale: Annotated[
            str, typer.Option(metavar="NAME", help="small, or paper: the published size; see below.")
        ] = "small",
        seeds: Annotated[
            str, typer.Option(metavar="S,S,...", help="One run of each setting for each; noise is always fresh.")
        ] = "1,2,3",
        workers: Annotated[
            int | None, typer.Option(help="Processes, one run in each at a time.", show_default="one for each core")
        ] = None,
        output: Annotated[
            Path | None,
            typer.Option(metavar="FOLDER", help="For runs, tables and figures.", show_default=f"experiment-{name}"),
        ] = None,
        data: Annotated[
            str | None,
            typer.Option(
                metavar="NAME", help="Data set of images, instead of the scale's.", show_default="the scale's"
            ),
        ] = None,
        colour: Annotated[
            str | None,
            typer.Option(
                metavar="NAME", help="CIFAR-10, for the papers' size.", show_default="none", hidden=name != "blur-lus"
            ),
        ] = None,
        text: Annotated[
            str | None,
            typer.Option(metavar="NAME", help="Data set of words.", show_default="the scale's", hidden=name != "bits"),
        ] = None,
        parts: Annotated[
            str | None, typer.Option(metavar="PART,...", help=about_parts, show_default="all", hidden=not known)
        ] = None,
        device: Annotated[
            str, typer.Option(metavar="NAME", help="Of models that train with torch: cpu, cuda or auto.")
        ] = "cpu",
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    ) -> int:
        from sordino.cli.options import one_of
        from sordino.lab.experiments.outcome import Request

        one_of("--scale", scale, ("small", "paper"))
        one_of("--device", device, ("cpu", "cuda", "auto"))
        for option, value, fits in (
            ("--colour", colour, name == "blur-lus"),
            ("--text", text, name == "bits"),
            ("--parts", parts, bool(known)),
        ):
            if value is not None and not fits:
                raise InputFailure(f"{option} {value}: {name} has no use for it. Leave it out.")
        chosen = [] if parts is None else [part.strip() for part in parts.split(",")]
        for part in chosen:
            one_of("--parts", part, known)
        count = workers if workers is not None else os.cpu_count() or 1
        if not 1 <= count <= 256:
            raise InputFailure(f"--workers {count} is out of range. Use 1 to 256.")
        kinds = {"--data": ("images", data), "--colour": ("colour", colour), "--text": ("text", text)}
        request = Request(scale, _seeds(seeds), _data_sets(kinds), parts=chosen)
        return _play(name, module, request, output or Path(f"experiment-{name}"), count, device, as_json)

    command.__name__ = module
    return command


def _seeds(given: str) -> list[int]:
    from sordino.cli.options import numbers
    from sordino.lab.experiments.selection import SEEDS

    found = list(dict.fromkeys(numbers("--seeds", given, int, "whole numbers")))
    if min(found) < 0 or len(found) > _MOST_SEEDS:
        raise InputFailure(f"--seeds {given}: up to {_MOST_SEEDS} whole numbers from 0 on.")
    if set(found) & set(SEEDS):
        wording = " and ".join(map(str, SEEDS))
        raise InputFailure(f"--seeds {given}: {wording} are those of selections. Use others.")
    return found


def _data_sets(kinds: dict[str, tuple[str, str | None]]) -> dict[str, str]:
    """Return the named data sets by kind. Raises Failure: an option holds no name of a data set."""
    from learning.data_names import check_dataset_name

    found = {}
    for option, (kind, name) in kinds.items():
        if name is not None:
            try:
                check_dataset_name(name)
            except ValueError as error:
                raise InputFailure(f"{option} {name} {error}.") from None
            found[kind] = name
    return found


def _play(name: str, module: str, request: "Request", folder: Path, workers: int, device: str, as_json: bool) -> int:
    from learning.blocks import DatasetError
    from learning.options import OptionError
    from sordino.lab.experiments.outcome import write
    from sordino.lab.experiments.run_pool import ExperimentError, RunPool
    from sordino.lab.simulation.record import versions
    from sordino.lab.simulation.settings import SimulationError

    began = time.monotonic()
    teller = _Teller(quiet=as_json)
    try:
        pool = RunPool(folder, workers, teller, device)
        outcome = import_module(f"sordino.lab.experiments.{module}").play(pool, request)
        files = write(outcome, folder)
    except (ExperimentError, DatasetError, OptionError, SimulationError) as error:
        raise InputFailure(f"{error}.") from None
    except OSError as error:
        raise InputFailure(f"--output {folder} can't be used: {error}.") from None
    except KeyboardInterrupt:
        print(f"\nsordino experiment: stopped. The same command continues from {folder}.", file=sys.stderr)
        raise
    body: dict[str, Any] = {
        "experiment": name,
        "scale": request.scale,
        "seeds": request.seeds,
        "data": request.data,
        "parts": request.parts,
        "versions": versions(),
        "wall_s": round(time.monotonic() - began, 1),
        **outcome.to_json(),
    }
    wording = json.dumps(body)
    (folder / "outcome.json").write_text(wording + "\n", encoding="utf-8")
    if as_json:
        typer.echo(wording)
        return int(ExitCode.OK)
    for note in outcome.notes:
        typer.echo(note)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None  # a file is as wide as its table
    for table in outcome.tables:
        typer.echo("\n" + table.text(width), nl=False)
    typer.echo(f"\nWritten: {len(files) + 1} files in {folder}")
    return int(ExitCode.OK)


class _Teller:
    """Progress: one line on a terminal, rewritten; elsewhere a line now and then."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = rewritable()
        self._last = float("-inf")

    def __call__(self, standing: "Standing") -> None:
        from sordino.lab.simulation.progress import duration

        ended = standing.done == standing.of
        now = time.monotonic()
        if self._quiet or (not self._terminal and not ended and now - self._last < _BETWEEN_LINES_S):
            return
        self._last = now
        left = "" if ended or standing.seconds_left is None else f", {duration(standing.seconds_left)} left"
        kept = f" ({standing.kept} kept)" if standing.kept else ""
        line = f"{standing.stage}: {standing.done} of {standing.of} runs{kept}{left}"
        if self._terminal:
            line = f"\r\x1b[K{line}" + ("\n" if ended else "")
        print(line, end="" if self._terminal else "\n", file=sys.stderr, flush=True)
