"""``sordino experiment``: the papers' curves, without a network."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from runtime.failure import ExitCode, Failure, InputFailure, listing
from sordino.cli.experiment_audit import EPILOG, HELP, audit, mechanism_names
from sordino.cli.experiment_runs import add_to
from sordino.cli.verbs import counting, verb_group

NAME = "experiment"
app = verb_group(NAME, "Reproduce published experiments with the encoder and the plans that a study uses.")
_CODES = listing(ExitCode.OK, ExitCode.INPUT, ExitCode.INFEASIBLE, ExitCode.INTERRUPTED)
_MOST_TRIALS = 100_000

app.command("audit", help=HELP, epilog=EPILOG)(audit)
add_to(app)


@app.command(
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
    epilog=(
        "Example: [bold]sordino experiment dme --clients 100,1000 --trials 80 --workers 2 --csv dme.csv --figure "
        "dme.svg[/bold]\n\n" + _CODES
    ),
)
def dme(
    clients: Annotated[str, typer.Option(metavar="N,N,...", help="Participants.")] = "100",
    dim: Annotated[int, typer.Option(help="Values of a vector.")] = 250,
    epsilons: Annotated[str, typer.Option(metavar="E,E,...", help="Targets of one round.")] = "0.75,1,2,3,4,5,6",
    bits: Annotated[str, typer.Option(metavar="B,B,...", help="Bits of one value.")] = "10,12,14,16,18,20",
    mechanisms: Annotated[
        str, typer.Option(metavar="NAME,...", help="Of ddgauss, skellam, gaussian and local-gaussian.")
    ] = "ddgauss,skellam",
    trials: Annotated[int, typer.Option(help="Of each setting; 0 for closed forms alone.")] = 80,
    delta: Annotated[float, typer.Option(help="Chance that the guarantee fails.")] = 1e-5,
    clip: Annotated[float, typer.Option(help="Radius of the sphere, and L2 clip.")] = 10.0,
    k_stddevs: Annotated[
        float, typer.Option("--k-stddevs", help="Standard deviations before a sum could wrap around.")
    ] = 4.0,
    data: Annotated[
        str,
        typer.Option(
            metavar="HOW", help="sphere: independent vectors; equal: all hold the same one, which wraps most."
        ),
    ] = "sphere",
    seed: Annotated[int, typer.Option(help="Of vectors and rotations; noise is always fresh.")] = 1,
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one row a setting.", show_default="no file")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw as .svg or .png.", show_default="no figure")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    from sordino.cli.options import check_folder, check_picture, check_ranges, numbers, one_of

    names = mechanism_names(mechanisms)
    one_of("--data", data, ("sphere", "equal"))
    for option, given, least, most in (
        ("--trials", trials, 0, _MOST_TRIALS),
        ("--workers", workers, 1, 64),
        ("--seed", seed, 0, 2**63),
    ):
        if not least <= given <= most:
            raise InputFailure(f"{option} {given} is out of range. Use {least} to {most}.")
    if csv is not None:
        check_folder("--csv", csv)
    if figure is not None:
        check_picture("--figure", figure)
    sizes = numbers("--clients", clients, int, "whole numbers")
    targets = numbers("--epsilons", epsilons, float, "numbers")
    widths = numbers("--bits", bits, int, "whole numbers")
    check_ranges(delta=delta, clip=clip, k_stddevs=k_stddevs)
    for width in widths:
        check_ranges(bits=width)
    for target in targets:
        check_ranges("--epsilons", epsilon=target)
    if min(sizes) < 3:
        raise InputFailure(f"--clients {min(sizes)} is too few. Use at least 3.")
    if dim < 1:
        raise InputFailure(f"--dim {dim} is out of range. Use at least 1.")

    from sordino.lab.experiments.dme import Setting, run
    from sordino.lab.experiments.dme_output import body_of, draw, table_lines, write_csv

    settings = [
        Setting(
            mechanism=name,
            clients=count,
            dim=dim,
            bits=width,
            epsilon=target,
            delta=delta,
            clip=clip,
            k_stddevs=k_stddevs,
            data=data,
            seed=seed,
        )
        for count, name, width, target in product(sorted(set(sizes)), names, sorted(set(widths)), sorted(set(targets)))
    ]
    rows = run(settings, trials, workers=workers, progress=counting("encodings"))
    if not any(row["feasible"] for row in rows):
        raise Failure(ExitCode.INFEASIBLE, str(rows[0]["reason"]), rows[0]["suggestion"] or None)
    body = body_of(settings[0], rows, trials)
    if csv is not None:
        write_csv(rows, csv)
    if figure is not None:
        draw(body, figure)
    if as_json:
        typer.echo(json.dumps(body))
        return int(ExitCode.OK)
    for line in table_lines(body):
        typer.echo(line)
    for file in (csv, figure):
        if file is not None:
            typer.echo(f"Written: {file}")
    return int(ExitCode.OK)
