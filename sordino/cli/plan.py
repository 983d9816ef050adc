"""``sordino plan``: what a study would cost and promise, before anything runs."""

from __future__ import annotations

import json
import math
import textwrap
from typing import Annotated, Any

import typer

from sordino.exit_codes import ExitCode, Failure, listing

NAME = "plan"
HELP = (
    "Go from a privacy budget to noise, thresholds and bytes, and refuse what no plan can keep.\n\nThe noise is "
    "sized for the smallest sum that may be opened, without the shares of the participants assumed to collude, "
    "so the budget holds whoever drops out. Figures are in the units of the update, not grid steps. The epsilon "
    "is never above the one asked for."
)
EPILOG = (
    "Example: [bold]sordino plan --clients 100 --dim 500 --epsilon 8 --rounds 15 --min-survivors "
    "70[/bold]\n\n" + listing(ExitCode.OK, ExitCode.INPUT, ExitCode.INFEASIBLE)
)


def run(
    clients: Annotated[int, typer.Option(help="Participants invited to each round.")] = 100,
    dim: Annotated[int, typer.Option(help="Values in one update.")] = 500,
    rounds: Annotated[int, typer.Option(help="Rounds that share the budget.")] = 15,
    epsilon: Annotated[float, typer.Option(help="Budget of all rounds.")] = 8.0,
    delta: Annotated[float, typer.Option(help="Chance that the guarantee fails.")] = 1e-5,
    clip: Annotated[float, typer.Option(help="Largest L2 norm of one update.")] = 1.0,
    bits: Annotated[int, typer.Option(help="Bits of one value on the wire, 1 to 62.")] = 16,
    max_dropout: Annotated[float, typer.Option(help="Share that may leave in a round.")] = 0.3,
    adversarial: Annotated[float, typer.Option(help="Share assumed to collude.")] = 0.05,
    min_survivors: Annotated[
        int | None,
        typer.Option(
            help="Fewest participants in a sum.",
            show_default="what independent dropouts rarely miss",
        ),
    ] = None,
    quorum: Annotated[
        int | None,
        typer.Option(help="Fewest that begin a round.", show_default="min-survivors"),
    ] = None,
    beta: Annotated[float, typer.Option(help="Level of the conditional rounding.", show_default="e^-0.5")] = math.exp(
        -0.5
    ),
    k_stddevs: Annotated[
        float, typer.Option("--k-stddevs", help="Standard deviations before a sum could wrap around.")
    ] = 4.0,
    mechanism: Annotated[str, typer.Option(help="ddgauss: the distributed discrete Gaussian.")] = "ddgauss",
    sampling: Annotated[str, typer.Option(help="none: everyone is invited to every round.")] = "none",
    target: Annotated[str, typer.Option(help="coordinator: whose epsilon the budget bounds.")] = "coordinator",
    population: Annotated[
        int | None,
        typer.Option(help="Size of the roster; without sampling the same as --clients.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    for option, given, only, why in (
        ("--mechanism", mechanism, "ddgauss", "the only mechanism of this version is"),
        ("--sampling", sampling, "none", "every participant is invited to every round in this version:"),
        ("--target", target, "coordinator", "without sampling all budgets bound the coordinator's epsilon:"),
    ):
        if given != only:
            raise Failure(ExitCode.INPUT, f"{option} {given} isn't available; {why} {option} {only}.")
    if population is not None and population != clients:
        raise Failure(
            ExitCode.INPUT,
            f"--population {population} needs sampling, which isn't available; leave it out or set it to {clients}.",
        )
    from sordino.plan_checks import check_aborts, check_share, notes
    from sordino.plan_text import figures_of, plan_lines
    from wire.study import plan_study

    check_share(max_dropout)
    chosen: dict[str, Any] = {
        "mechanism": mechanism,
        "clients": clients,
        "dim": dim,
        "bits": bits,
        "clip": clip,
        "epsilon": epsilon,
        "delta": delta,
        "rounds": rounds,
        "max_dropout": max_dropout,
        "adversarial": adversarial,
        "min_survivors": min_survivors,
        "quorum": quorum,
        "beta": beta,
        "k_stddevs": k_stddevs,
    }
    figures = figures_of(plan_study(**chosen))
    check_aborts(figures, max_dropout, lambda changed: plan_study(**(chosen | changed)))
    if as_json:
        typer.echo(json.dumps(figures))
        return int(ExitCode.OK)
    typer.echo(
        f"{clients} participants, {dim} values of {bits} bits, {rounds} rounds, "
        f"epsilon at most {epsilon:g} at delta {delta:g}\n"
    )
    for line in plan_lines(figures):
        typer.echo(f"  {line}")
    for note in notes(figures, max_dropout):
        typer.echo("\n" + textwrap.fill(note, 98))
    typer.echo(f"\nAdjacency: {figures['adjacency']}.")
    return int(ExitCode.OK)
