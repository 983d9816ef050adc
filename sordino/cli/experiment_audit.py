"""``sordino experiment audit``: a lower bound on epsilon from one run of the mechanism."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Annotated

import typer

from runtime.failure import ExitCode, Failure, InputFailure, listing
from sordino.cli.verbs import counting

_CODES = listing(ExitCode.OK, ExitCode.INPUT, ExitCode.INFEASIBLE, ExitCode.AUDIT, ExitCode.INTERRUPTED)
_MOST = 65_536
_SEEDS = 1 << 53

HELP = (
    "A lower bound on epsilon, from one run of the whole mechanism.\n\nEvery participant is a canary: a fair coin "
    "decides whether it contributes a vector of its own, of the clip's norm, or nothing (with local-gaussian that "
    "vector or its negative). From the decoded means of all rounds the audit guesses those coins that it is surest of; "
    "how many is fixed before. Many right guesses refute a small epsilon. A second check compares the noise itself "
    "with the plan's.\n\nExit code 43 says that the bound exceeds what the plan proves, or that the noise is not the "
    "plan's. With --noise-divided-by 4 that has to happen: it tests the audit.\n\nTime on one core: 20 to 40 seconds "
    "with --scale small, some minutes with paper."
)
EPILOG = (
    "Example: [bold]sordino experiment audit --noise-divided-by 1,4 --figure audit.svg[/bold]\n\n"
    "What it shows and what it can't: docs/audit.md.\n\n" + _CODES
)


# Canaries, which are as many as values of a vector, and rounds.
_SCALES = {"small": (8192, 2), "paper": (16384, 3)}


def mechanism_names(text: str) -> list[str]:
    """What ``--mechanisms`` lists, each once. Raises Failure: a name that isn't one."""
    from mechanisms.statement import VECTOR_MECHANISMS
    from sordino.cli.options import one_of

    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        one_of("--mechanisms", name, VECTOR_MECHANISMS)
    return names


def audit(
    scale: Annotated[
        str, typer.Option(metavar="NAME", help="small: 8192 canaries, 2 rounds. paper: 16384 canaries, 3 rounds.")
    ] = "small",
    mechanisms: Annotated[
        str, typer.Option(metavar="NAME,...", help="Of ddgauss, skellam, gaussian and local-gaussian.")
    ] = "ddgauss,skellam,gaussian,local-gaussian",
    noise_divided_by: Annotated[
        str,
        typer.Option(
            "--noise-divided-by",
            metavar="X,X,...",
            help="Self-test: the deviation of the noise that is really drawn, that many times less than claimed.",
        ),
    ] = "1",
    epsilon: Annotated[float, typer.Option(help="Target of the plan, over all rounds.")] = 2.0,
    delta: Annotated[float, typer.Option(help="Far less than 1 / canaries: the bound pays for it.")] = 1e-6,
    canaries: Annotated[int | None, typer.Option(help="Participants.", show_default="the scale's")] = None,
    dim: Annotated[
        int | None, typer.Option(help="Values of a vector, at least as many as canaries.", show_default="the scale's")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of the plan.", show_default="the scale's")] = None,
    bits: Annotated[int, typer.Option(help="Bits of one value.")] = 24,
    clip: Annotated[float, typer.Option(help="L2 clip.")] = 1.0,
    max_dropout: Annotated[float, typer.Option("--max-dropout", help="Share that may leave, by the plan.")] = 0.1,
    leaving: Annotated[float, typer.Option(help="Share that is missing in each round.")] = 0.05,
    confidence: Annotated[float, typer.Option(help="Of each lower bound.")] = 0.999,
    seed: Annotated[
        int | None,
        typer.Option(help="Of coins, canaries, rotations and who leaves; noise is always fresh.", show_default="drawn"),
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw as .svg or .png.", show_default="no figure")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    from sordino.cli.options import check_picture, check_ranges, numbers, one_of

    one_of("--scale", scale, tuple(_SCALES))
    names = mechanism_names(mechanisms)
    divisors = list(dict.fromkeys(numbers("--noise-divided-by", noise_divided_by, float, "numbers")))
    usual, usual_rounds = _SCALES[scale]
    people = usual if canaries is None else canaries
    values = max(usual, people) if dim is None else dim
    times = usual_rounds if rounds is None else rounds
    check_ranges(epsilon=epsilon, delta=delta, bits=bits, clip=clip, max_dropout=max_dropout)
    for option, given, least, most in (
        *(("--noise-divided-by", one, 1, 1000) for one in divisors),
        ("--canaries", people, 10, _MOST),
        ("--dim", values, people, 1 << 20),
        ("--rounds", times, 1, 100),
        ("--seed", seed or 0, 0, _SEEDS - 1),
        ("--leaving", leaving, 0, max_dropout),
        ("--confidence", confidence, 0.5, 1 - 1e-9),
    ):
        if not least <= given <= most:
            raise InputFailure(f"{option} {given:g} is out of range. Use {least:g} to {most:g}.")
    if figure is not None:
        check_picture("--figure", figure)

    from mechanisms.plan import InfeasiblePlan
    from sordino.lab.experiments.audit import Setting, UnsuitableSetting
    from sordino.lab.experiments.audit import audit as run
    from sordino.lab.experiments.audit_output import body_of, draw, table_lines

    drawn = secrets.randbelow(_SEEDS) if seed is None else seed
    settings = [
        Setting(
            mechanism=name,
            canaries=people,
            dim=values,
            rounds=times,
            bits=bits,
            epsilon=epsilon,
            delta=delta,
            clip=clip,
            max_dropout=max_dropout,
            leaving=leaving,
            error=1 - confidence,
            seed=drawn,
            noise_divided_by=divisor,
        )
        for divisor in divisors
        for name in names
    ]
    rows, tell = [], counting("rounds")
    for place, setting in enumerate(settings):

        def progress(done: int, of: int, place: int = place) -> None:
            tell(place * of + done, len(settings) * of)

        try:
            rows.append(run(setting, progress=progress))
        except InfeasiblePlan as problem:
            raise Failure(ExitCode.INFEASIBLE, problem.reason, problem.suggestion) from None
        except UnsuitableSetting as problem:
            raise InputFailure(f"{setting.mechanism}: {problem}.") from None
    body = body_of(rows)
    if figure is not None:
        draw(body, figure)
    if as_json:
        typer.echo(json.dumps(body))
    else:
        for line in table_lines(body):
            typer.echo(line)
        if figure is not None:
            typer.echo(f"Written: {figure}")
    return int(ExitCode.AUDIT if body["accused"] else ExitCode.OK)
