"""``sordino experiment``: the papers' curves, and an audit, without a network."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from runtime.failure import ExitCode, Failure, InputFailure, listing
from runtime.option_values import built, check_folder, check_picture, check_ranges, one_of
from runtime.settings_file import Table
from runtime.settings_keys import key
from server.study_file import StudyConfiguration
from sordino.cli.options import chosen, options, with_options
from sordino.cli.verbs import Json, answer, counting, epilog, rewritable, verb_group
from sordino.planning.options import numbers

if TYPE_CHECKING:
    from sordino.lab.experiments.runs import Standing

NAME = "experiment"
app = verb_group(NAME, "Reproduce published experiments with the encoder and the plans that a study uses.")
_MOST_CANARIES: Final = 65_536
_SEEDS: Final = 1 << 53
_MOST_SEEDS: Final = 100
_BETWEEN_LINES_S: Final = 30.0
_option = partial(key, panel="Options")
_MECHANISMS: Final = {"help": "of ddgauss, skellam, gaussian and local-gaussian", "metavar": "NAME,..."}
_FIGURE: Final = {"help": "draw as .svg or .png", "metavar": "FILE", "shown": "no figure"}


def _mechanism_names(text: str) -> list[str]:
    """What ``--mechanisms`` lists, each once. Raises Failure: a name that isn't one."""
    from mechanisms.statement import VECTOR_MECHANISMS

    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        one_of("--mechanisms", name, VECTOR_MECHANISMS)
    return names


class DmeOptions(Table):
    """Options of ``dme``; lists are crossed."""

    clients: str = _option("100", help="participants", metavar="N,N,...")
    dim: int = _option(250, help="values of a vector", ge=1)
    epsilons: str = _option("0.75,1,2,3,4,5,6", help="targets of one round", metavar="E,E,...")
    bits: str = _option("10,12,14,16,18,20", help="bits of one value", metavar="B,B,...")
    mechanisms: str = _option("ddgauss,skellam", **_MECHANISMS)
    trials: int = _option(80, help="of each setting; 0 for closed forms alone", ge=0, le=100_000)
    delta: float = _option(1e-5, help="chance that the guarantee fails")
    clip: float = _option(10.0, help="radius of the sphere, and L2 clip")
    k_stddevs: float = _option(4.0, help="standard deviations before a sum could wrap around")
    data: Literal["sphere", "equal"] = _option(
        "sphere", help="sphere: independent vectors; equal: all hold the same one, which wraps most", metavar="HOW"
    )
    seed: int = _option(1, help="of vectors and rotations; noise is always fresh", ge=0, le=2**63)
    workers: int = _option(1, help="processes", ge=1, le=64)
    csv: Path | None = _option(None, help="write one row a setting", metavar="FILE", shown="no file")
    figure: Path | None = _option(None, **_FIGURE)


def _dme(as_json: Json = False, **given: Any) -> int:
    own = built(DmeOptions, chosen(given, DmeOptions))
    names = _mechanism_names(own.mechanisms)
    if own.csv is not None:
        check_folder("--csv", own.csv)
    if own.figure is not None:
        check_picture("--figure", own.figure)
    sizes = sorted(set(numbers("--clients", own.clients, int, "whole numbers")))
    targets = sorted(set(numbers("--epsilons", own.epsilons, float, "numbers")))
    widths = sorted(set(numbers("--bits", own.bits, int, "whole numbers")))
    check_ranges(StudyConfiguration, delta=own.delta, clip=own.clip, k_stddevs=own.k_stddevs)
    for width in widths:
        check_ranges(StudyConfiguration, bits=width)
    for target in targets:
        check_ranges(StudyConfiguration, "--epsilons", epsilon=target)
    if sizes[0] < 3:
        raise InputFailure(f"--clients {sizes[0]} is too few. Use at least 3.")

    from sordino.lab.experiments.dme import Setting, body_of, draw, run, table_lines, write_csv

    same = own.model_dump(include={"dim", "delta", "clip", "k_stddevs", "data", "seed"})
    settings = [
        Setting(clients=count, mechanism=name, bits=width, epsilon=target, **same)
        for count, name, width, target in product(sizes, names, widths, targets)
    ]
    rows = run(settings, own.trials, workers=own.workers, progress=counting("encodings"))
    if not any(row["feasible"] for row in rows):
        raise Failure(ExitCode.INFEASIBLE, str(rows[0]["reason"]), rows[0]["suggestion"] or None)
    body = body_of(settings[0], rows, own.trials)
    if own.csv is not None:
        write_csv(rows, own.csv)
    if own.figure is not None:
        draw(body, own.figure)
    written = [f"Written: {file}" for file in (own.csv, own.figure) if file is not None]
    return answer(as_json, body, [*table_lines(body), *written])


app.command(
    "dme",
    help=(
        "Distributed mean estimation: error of the mean against epsilon, bits and mechanism.\n\nEach participant holds "
        "a vector on the sphere whose radius is the clip; no participant leaves or colludes. Every trial draws new "
        "vectors and a new rotation, encodes for every participant, sums modulo 2^bits and decodes. Beside the "
        "simulated error stand its closed form, that of a central Gaussian with the least noise there is, and that of "
        "a sampler that rounds its deviation up to whole grid steps. The table shows the simulated error, or with "
        "--trials 0 the closed form.\n\nTime: about 0.1 ms a participant and trial "
        "of each setting; the default is two minutes of one core."
    ),
    epilog=epilog(
        "experiment dme --clients 100,1000 --trials 80 --workers 2 --csv dme.csv --figure dme.svg",
        *(ExitCode.INFEASIBLE, ExitCode.INTERRUPTED),
    ),
)(with_options(_dme, options(DmeOptions)))

_AUDIT_HELP: Final = (
    "A lower bound on epsilon, from one run of the whole mechanism.\n\nEvery participant is a canary: a fair coin "
    "decides whether it contributes a vector of its own, of the clip's norm, or nothing (with local-gaussian that "
    "vector or its negative). From the decoded means of all rounds the audit guesses those coins that it is surest of; "
    "how many is fixed before. Many right guesses refute a small epsilon. A second check compares the noise itself "
    "with the plan's.\n\nExit code 43 says that the bound exceeds what the plan proves, or that the noise is not the "
    "plan's. With --noise-divided-by 4 that has to happen: it tests the audit.\n\nTime on one core: 20 to 40 seconds "
    "with --scale small, some minutes with paper."
)
# Canaries, which are as many as values of a vector, and rounds.
_SCALES: Final = {"small": (8192, 2), "paper": (16384, 3)}


class AuditOptions(Table):
    """Options of ``audit``; mechanisms and divisors are crossed."""

    scale: Literal["small", "paper"] = _option(
        "small", help="small: 8192 canaries, 2 rounds. paper: 16384 canaries, 3 rounds"
    )
    mechanisms: str = _option("ddgauss,skellam,gaussian,local-gaussian", **_MECHANISMS)
    noise_divided_by: str = _option(
        "1",
        help="self-test: the deviation of the noise that is really drawn, that many times less than claimed",
        metavar="X,X,...",
    )
    epsilon: float = _option(2.0, help="target of the plan, over all rounds")
    delta: float = _option(1e-6, help="far less than 1 / canaries: the bound pays for it")
    canaries: int | None = _option(None, help="participants", shown="the scale's", ge=10, le=_MOST_CANARIES)
    dim: int | None = _option(
        None, help="values of a vector, at least as many as canaries", shown="the scale's", le=1 << 20
    )
    rounds: int | None = _option(None, help="rounds of the plan", shown="the scale's", ge=1, le=100)
    bits: int = _option(24, help="bits of one value")
    clip: float = _option(1.0, help="L2 clip")
    max_dropout: float = _option(0.1, help="share that may leave, by the plan")
    leaving: float = _option(0.05, help="share that is missing in each round")
    confidence: float = _option(0.999, help="of each lower bound", ge=0.5, le=1 - 1e-9)
    seed: int | None = _option(
        None,
        help="of coins, canaries, rotations and who leaves; noise is always fresh",
        shown="drawn",
        ge=0,
        le=_SEEDS - 1,
    )
    figure: Path | None = _option(None, **_FIGURE)


def _audit(as_json: Json = False, **given: Any) -> int:
    own = built(AuditOptions, chosen(given, AuditOptions))
    names = _mechanism_names(own.mechanisms)
    divisors = list(dict.fromkeys(numbers("--noise-divided-by", own.noise_divided_by, float, "numbers")))
    usual, usual_rounds = _SCALES[own.scale]
    people = usual if own.canaries is None else own.canaries
    values = max(usual, people) if own.dim is None else own.dim
    check_ranges(StudyConfiguration, **own.model_dump(include={"epsilon", "delta", "bits", "clip", "max_dropout"}))
    for option, number, least, most in (
        *(("--noise-divided-by", one, 1, 1000) for one in divisors),
        ("--dim", values, people, 1 << 20),
        ("--leaving", own.leaving, 0, own.max_dropout),
    ):
        if not least <= number <= most:
            raise InputFailure(f"{option} {number:g} is out of range. Use {least:g} to {most:g}.")
    if own.figure is not None:
        check_picture("--figure", own.figure)

    from mechanisms.plan import InfeasiblePlan
    from sordino.lab.experiments.audit import Setting, UnsuitableSetting, audit, body_of, draw, table_lines

    same = own.model_dump(include={"bits", "epsilon", "delta", "clip", "max_dropout", "leaving"}) | {
        "canaries": people,
        "dim": values,
        "rounds": usual_rounds if own.rounds is None else own.rounds,
        "error": 1 - own.confidence,
        "seed": secrets.randbelow(_SEEDS) if own.seed is None else own.seed,
    }
    settings = [Setting(mechanism=name, noise_divided_by=divisor, **same) for divisor, name in product(divisors, names)]
    rows, tell = [], counting("rounds")
    for place, setting in enumerate(settings):

        def progress(done: int, of: int, place: int = place) -> None:
            tell(place * of + done, len(settings) * of)

        try:
            rows.append(audit(setting, progress=progress))
        except InfeasiblePlan as problem:
            raise Failure(ExitCode.INFEASIBLE, problem.reason, problem.suggestion) from None
        except UnsuitableSetting as problem:
            raise InputFailure(f"{setting.mechanism}: {problem}.") from None
    body = body_of(rows)
    if own.figure is not None:
        draw(body, own.figure)
    written = [] if own.figure is None else [f"Written: {own.figure}"]
    answer(as_json, body, [*table_lines(body), *written])
    return int(ExitCode.AUDIT if body["accused"] else ExitCode.OK)


app.command(
    "audit",
    help=_AUDIT_HELP,
    epilog=(
        "Example: [bold]sordino experiment audit --noise-divided-by 1,4 --figure audit.svg[/bold]\n\n"
        "What it shows and what it can't: docs/audit.md.\n\n"
        + listing(ExitCode.OK, ExitCode.INPUT, ExitCode.INFEASIBLE, ExitCode.AUDIT, ExitCode.INTERRUPTED)
    ),
)(with_options(_audit, options(AuditOptions)))

_COMMON: Final = (
    "\n\nEvery run is a whole simulated study, with the real encoder, noise and accounting. Finished runs are kept in "
    "FOLDER/runs.jsonl and not played again: after Ctrl-C the same command continues. FOLDER also takes each table as "
    ".txt, .csv and .md, each figure as .svg, and all of it as outcome.json."
)
_TIMES: Final = "\n\nTime on two cores: {small} with --scale small; {paper} with --scale paper."

EXPERIMENTS: Final = {
    "clipping": (
        "Fixed clips against clips that follow a quantile, flat and by layer: accuracy against epsilon and first clip.",
        ("10 to 20 minutes", "four months by estimate, on the CPU"),
        (),
    ),
    "blur-lus": (
        "DP-FedAvg, AE-DPFL, the distributed discrete Gaussian and BLUR + LUS: accuracy against epsilon, "
        "heterogeneity, sparsity, local steps, active participants and local rate; norms before clipping.",
        ("15 to 40 minutes", "half a year by estimate, on the CPU: see --device and --parts"),
        ("epsilon", "alpha", "sparsity", "steps", "active", "rates", "own-rates"),
    ),
    "bits": (
        "Accuracy against bits a value and epsilon: distributed discrete Gaussian and Skellam beside the central "
        "Gaussian, on images and on the next word of a text.",
        ("10 to 20 minutes", "images two months, text years, by estimate on the CPU"),
        ("images", "text"),
    ),
    "compression": (
        "Count-mean sketches, 1 to 50 times shorter than the update: accuracy against ratio and noise, and bits a "
        "parameter.",
        ("5 to 15 minutes", "a month by estimate, on the CPU"),
        (),
    ),
    "sampling": (
        "Who is invited to a round: all, a lottery's cohort, or an epoch's, at the same epsilon against the "
        "coordinator.",
        ("10 minutes", "months by estimate, on the CPU"),
        (),
    ),
    "dropout": (
        "Participants that leave silently: accuracy, epsilon as planned and as spent, aborted rounds, and what a "
        "system that ignores them claims.",
        ("1 minute", "days by estimate"),
        (),
    ),
}
"""Name to help, times of both scales, and parts that --parts may name; the module is called as the experiment."""


class GridOptions(Table):
    """Options of a grid of simulated studies."""

    scale: Literal["small", "paper"] = _option("small", help="small, or paper: the published size; see below")
    seeds: str = _option("1,2,3", help="one run of each setting for each; noise is always fresh", metavar="S,S,...")
    workers: int | None = _option(
        None, help="processes, one run in each at a time", shown="one for each core", ge=1, le=256
    )
    output: Path | None = _option(None, help="for runs, tables and figures", metavar="FOLDER")
    data: str | None = _option(
        None, help="data set of images, instead of the scale's", shown="the scale's", metavar="NAME"
    )
    colour: str | None = _option(None, help="CIFAR-10, for the papers' size", shown="none", metavar="NAME")
    text: str | None = _option(None, help="data set of words", shown="the scale's", metavar="NAME")
    parts: str | None = _option(None, help="of the experiment", shown="all", metavar="PART,...")
    device: Literal["cpu", "cuda", "auto"] = _option("cpu", help="of models that train with torch: cpu, cuda or auto")


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

    found = {}
    for option, kind, name in (
        ("data", "images", own.data),
        ("colour", "colour", own.colour),
        ("text", "text", own.text),
    ):
        if name is not None:
            try:
                check_dataset_name(name)
            except ValueError as error:
                raise InputFailure(f"--{option} {name} {error}.") from None
            found[kind] = name
    return found


def _play(name: str, own: GridOptions, as_json: bool) -> int:
    from learning.blocks import DatasetError
    from learning.options import OptionError
    from sordino.lab.experiments.outcome import Request, write
    from sordino.lab.experiments.runs import ExperimentError, RunPool
    from sordino.lab.simulation.record import versions
    from sordino.lab.simulation.settings import SimulationError

    *_, known = EXPERIMENTS[name]
    for option, value, fits in (
        ("--colour", own.colour, name == "blur-lus"),
        ("--text", own.text, name == "bits"),
        ("--parts", own.parts, bool(known)),
    ):
        if value is not None and not fits:
            raise InputFailure(f"{option} {value}: {name} has no use for it. Leave it out.")
    parts = [] if own.parts is None else [part.strip() for part in own.parts.split(",")]
    for part in parts:
        one_of("--parts", part, known)
    folder = own.output or Path(f"experiment-{name}")
    request = Request(own.scale, _seeds(own.seeds), _data_sets(own), parts=parts)
    began = time.monotonic()
    try:
        pool = RunPool(folder, own.workers or os.cpu_count() or 1, _telling(quiet=as_json), own.device)
        outcome = import_module(f"sordino.lab.experiments.{name.replace('-', '_')}").play(pool, request)
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


def _telling(*, quiet: bool) -> Callable[[Standing], None]:
    """A function of the progress: one line on a terminal, rewritten; elsewhere a line now and then."""
    from runtime.text import clock_text

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


def _command(name: str, parts: tuple[str, ...]) -> Callable[..., int]:
    def run(
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False, **given: Any
    ) -> int:
        return _play(name, built(GridOptions, chosen(given, GridOptions)), as_json)

    changed: dict[str, Any] = {
        "output": {"show_default": f"experiment-{name}"},
        "colour": {"hidden": name != "blur-lus"},
        "text": {"hidden": name != "bits"},
        "parts": {"help": f"Of {', '.join(parts)}.", "hidden": not parts},
    }
    return with_options(run, options(GridOptions, **changed))


for _name, (_wording, (_small, _paper), _parts) in EXPERIMENTS.items():
    app.command(
        _name,
        help=_wording + _COMMON + _TIMES.format(small=_small, paper=_paper),
        epilog=epilog(f"experiment {_name} --workers 2 --output {_name}", ExitCode.INTERRUPTED),
    )(_command(_name, _parts))
