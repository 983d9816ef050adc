"""``sordino plan``: what a study would cost and promise, before anything runs."""

from __future__ import annotations

import json
import math
import textwrap
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from runtime.failure import ExitCode, Failure, listing
from sordino.cli import clip_options as _options
from sordino.cli import task_options as _task
from sordino.planning.default_bounds import defaults_told

NAME = "plan"
HELP = (
    "Go from a privacy budget to noise, thresholds and bytes, and refuse what no plan can keep.\n\nThe noise is "
    "sized for the smallest sum that may be opened, without the shares of the participants assumed to collude, "
    "so the budget holds whoever drops out. Figures are in the units of the update, not grid steps. The epsilon "
    "is never above the one asked for.\n\n"
    "Mechanisms: ddgauss and skellam, every participant adds a share; gaussian, the coordinator is trusted and adds "
    "all of it; local-gaussian, each report is private by itself; binomial, like ddgauss but composed in epsilon and "
    "delta only, for comparison.\n\n"
    "Readers: epsilon_coordinator is for whoever knows who took part; epsilon_released for readers of released models "
    "alone, amplified by the sampling rate; epsilon_conditional is the published figure, on the condition that "
    "everybody was drawn by an independent coin. A plan with the target conditional is for comparison only.\n\n"
    "Clips by layer: with --clip-scaling proportional or least-noise each layer is divided by a scale of its own; "
    "clip, inflated_clip, granularity, local_stddev, central_stddev and full_stddev are then in scaled units. "
    "layer_noise_stddev lists the noise of each layer in units of the update: central_stddev, of the smallest sum, "
    "times the layer's scale.\n\n"
    "Statistics: --task mean, sum, histogram or quantile, with --task-option as of `sordino init`, tells how exact the "
    "answer will be before any budget is spent: the standard error that the result will state, if everybody has a "
    "value; of a quantile, that of the share at or below it. JSON has it under expected.\n\n"
    "JSON: quantile_stderr is the standard error of the share of norms below a clip that adapts, in the smallest sum; "
    "null with fixed clips. Other figures may be null, too. An epsilon is null above 70, which the sampler's distance "
    "from its law can't state; epsilon_conditional without sampling; epsilon_exact and epsilon_pld but for gaussian, "
    "epsilon_pld without Poisson sampling; both budgets of a conditional plan. 'accountant' names the smallest valid "
    "bound on the target. 'alternatives' is there with --alternatives."
)
EPILOG = (
    "Example: [bold]sordino plan --clients 100 --dim 500 --epsilon 8 --rounds 15 --min-survivors "
    "70[/bold]\n\n" + listing(ExitCode.OK, ExitCode.INPUT, ExitCode.INFEASIBLE)
)
_PRIVACY, _PROTOCOL, _CODING, _OUTPUT = "Privacy", "Protocol", _options.PANEL, "Output"
QUICK_S = 2.0
"""Alternatives are shown unasked if they are expected to take less."""


def run(
    mechanism: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="ddgauss, skellam, gaussian, local-gaussian or binomial.",
            rich_help_panel=_PRIVACY,
        ),
    ] = "ddgauss",
    epsilon: Annotated[float, typer.Option(help="Budget of all rounds.", rich_help_panel=_PRIVACY)] = 8.0,
    delta: Annotated[float, typer.Option(help="Chance that the guarantee fails.", rich_help_panel=_PRIVACY)] = 1e-5,
    rounds: Annotated[int, typer.Option(help="Rounds that share the budget.", rich_help_panel=_PRIVACY)] = 15,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="READER",
            help="Whose epsilon the budget bounds: coordinator, released or conditional.",
            show_default="coordinator; conditional with poisson and neither dropout nor collusion",
            rich_help_panel=_PRIVACY,
        ),
    ] = None,
    sampling: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="How the clients of a round are drawn: none, lottery, poisson, or fixed (leaving is then stated to be "
            "independent of identity).",
            rich_help_panel=_PRIVACY,
        ),
    ] = "none",
    population: Annotated[
        int | None,
        typer.Option(
            help="Participants that those of a round are drawn from.",
            show_default="clients",
            rich_help_panel=_PRIVACY,
        ),
    ] = None,
    budget_coordinator: Annotated[
        float | None,
        typer.Option(
            help="Also stop here, if the target is another.", show_default="as planned", rich_help_panel=_PRIVACY
        ),
    ] = None,
    budget_released: Annotated[
        float | None,
        typer.Option(
            help="Also stop here, if the target is another.", show_default="as planned", rich_help_panel=_PRIVACY
        ),
    ] = None,
    clients: Annotated[int, typer.Option(help="Participants invited to each round.", rich_help_panel=_PROTOCOL)] = 100,
    max_dropout: Annotated[
        float,
        typer.Option("--max-dropout", "--dropout", help="Share that may leave in a round.", rich_help_panel=_PROTOCOL),
    ] = 0.3,
    adversarial: Annotated[float, typer.Option(help="Share assumed to collude.", rich_help_panel=_PROTOCOL)] = 0.05,
    adversary: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What the coordinator may do: malicious; curious, trusted to follow the protocol: it tells everybody "
            "the same, and reads what it can; or semi-malicious, for comparison only.",
            rich_help_panel=_PROTOCOL,
        ),
    ] = "malicious",
    graph: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="On which secrets are shared: complete, harary (or ring), or auto: the ring where it halves the "
            "work.",
            rich_help_panel=_PROTOCOL,
        ),
    ] = "auto",
    min_survivors: Annotated[
        int | None,
        typer.Option(
            help="Fewest participants in a sum.",
            show_default="what independent dropouts rarely miss",
            rich_help_panel=_PROTOCOL,
        ),
    ] = None,
    quorum: Annotated[
        int | None,
        typer.Option(help="Fewest that begin a round.", show_default="min-survivors", rich_help_panel=_PROTOCOL),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Plan for this task: it says how many values are sent, and a statistic their clip. Then the error to "
            "be expected of the statistic is told.",
            show_default=False,
            rich_help_panel=_CODING,
        ),
    ] = None,
    task_option: Annotated[
        list[str] | None,
        typer.Option(
            "--task-option",
            metavar="KEY=VALUE",
            help="An option of the task; repeatable.",
            show_default=False,
            rich_help_panel=_CODING,
        ),
    ] = None,
    dim: Annotated[
        int | None,
        typer.Option(
            help="Values in one update.", show_default="500, or of all layers, or the task's", rich_help_panel=_CODING
        ),
    ] = None,
    bits: Annotated[int, typer.Option(help="Bits of one value on the wire, 1 to 62.", rich_help_panel=_CODING)] = 16,
    rotation: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="auto (hadamard unless it pads by more than 5 %), hadamard or hadamard-blocks.",
            rich_help_panel=_CODING,
        ),
    ] = "auto",
    beta: Annotated[
        float,
        typer.Option(help="Level of the conditional rounding.", show_default="e^-0.5", rich_help_panel=_CODING),
    ] = math.exp(-0.5),
    k_stddevs: Annotated[
        float,
        typer.Option(
            "--k-stddevs", help="Standard deviations before a sum could wrap around.", rich_help_panel=_CODING
        ),
    ] = 4.0,
    sketch_rows: Annotated[int, _options.SKETCH_ROWS] = 0,
    sketch_ratio: Annotated[float | None, _options.SKETCH_RATIO] = None,
    clip: Annotated[
        float | None,
        typer.Option(
            help="Largest L2 norm of one update.",
            show_default="1; where the task bounds it, that",
            rich_help_panel=_CODING,
        ),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Clip by layer: sizes of the layers in order.", rich_help_panel=_CODING),
    ] = None,
    clips: Annotated[
        str | None,
        typer.Option(
            metavar="C,C,...",
            help="Largest L2 norm of each layer.",
            show_default="clip / sqrt(number of layers) each",
            rich_help_panel=_CODING,
        ),
    ] = None,
    clip_scaling: Annotated[str, _options.CLIP_SCALING] = "uniform",
    clip_update: Annotated[str, _options.CLIP_UPDATE] = "fixed",
    clip_quantile: Annotated[float | None, _options.CLIP_QUANTILE] = None,
    clip_rate: Annotated[float | None, _options.CLIP_RATE] = None,
    clip_bit_weight: Annotated[float | None, _options.CLIP_BIT_WEIGHT] = None,
    with_alternatives: Annotated[
        bool | None,
        typer.Option(
            "--alternatives/--no-alternatives",
            help="What 10 to 20 bits and the other distributed mechanism would cost.",
            show_default="if quick; not in JSON",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw error against epsilon for four mechanisms; .png or .svg.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel=_OUTPUT)] = False,
) -> int:
    from secagg.parameters import GRAPHS
    from secagg.sharing import ADVERSARIES
    from sordino.planning.options import (
        check_budgets,
        check_names,
        check_picture,
        check_population,
        check_ranges,
        clip_rule,
        default_target,
        graph_name,
        of_task,
        one_of,
        shape,
    )
    from sordino.planning.refusals import check_aborts, check_counts, in_options

    check_names(mechanism=mechanism, target=target, sampling=sampling, rotation=rotation)
    one_of("--adversary", adversary, ADVERSARIES)
    graph = graph_name(graph, ("auto", *GRAPHS))
    check_ranges(
        epsilon=epsilon,
        delta=delta,
        rounds=rounds,
        bits=bits,
        max_dropout=max_dropout,
        adversarial=adversarial,
        beta=beta,
        k_stddevs=k_stddevs,
        budget_coordinator=budget_coordinator,
        budget_released=budget_released,
    )
    check_population(clients, population, sampling)
    if plot is not None:
        check_picture("--plot", plot)
    if task is None and task_option:
        raise Failure(ExitCode.INPUT, "--task-option is of a task: say which with --task.")
    options = _task.options_of(task_option)
    if task is not None:
        dim, clip = of_task(
            task,
            options,
            dim=dim,
            clip=clip,
            layers=layers,
            clips=clips,
            adaptive=clip_update != "fixed",
            sketch=sketch_rows > 0,
        )
    dim, sizes, sketch = shape(dim=dim, layers=layers, sketch_rows=sketch_rows, sketch_ratio=sketch_ratio)
    reader = target if target is not None else default_target(sampling, max_dropout, adversarial)
    check_budgets(reader, budget_coordinator, budget_released)
    chosen: dict[str, Any] = {
        "mechanism": mechanism,
        "clients": clients,
        "population": population,
        "sampling": sampling,
        "dim": dim,
        "bits": bits,
        "clipping": clip_rule(
            coded=sketch[0] * sketch[1] or dim,
            sizes=sizes,
            clip=clip,
            clips=clips,
            clip_scaling=clip_scaling,
            clip_update=clip_update,
            clip_quantile=clip_quantile,
            clip_rate=clip_rate,
            clip_bit_weight=clip_bit_weight,
        ),
        "sketch": sketch,
        "rotation": None if rotation == "auto" else rotation,
        "epsilon": epsilon,
        "delta": delta,
        "rounds": rounds,
        "target": reader,
        "budget_coordinator": budget_coordinator,
        "budget_released": budget_released,
        "max_dropout": max_dropout,
        "adversarial": adversarial,
        "adversary": adversary,
        "graph": graph,
        "min_survivors": min_survivors,
        "quorum": quorum,
        "beta": beta,
        "k_stddevs": k_stddevs,
    }
    import wire.study  # noqa: F401  # its time is not the plan's

    def again(changed: dict[str, Any]) -> dict[str, Any]:
        return _figures(chosen | changed, bounds=False)

    check_counts(chosen, again)
    started = time.monotonic()
    try:
        figures = _figures(chosen)
    except ValueError as problem:  # InfeasiblePlan
        raise in_options(problem, chosen, again) from None
    expected_s = 14 * (time.monotonic() - started)
    check_aborts(figures, max_dropout, again)
    settled = chosen | {"min_survivors": figures["min_survivors"], "quorum": figures["quorum"]}
    if with_alternatives if with_alternatives is not None else not as_json and expected_s < QUICK_S:
        from sordino.planning.alternatives import alternatives, with_own_row

        figures["alternatives"] = with_own_row(alternatives(settled), figures)
    if task is not None:
        figures |= {"task": task, "expected": _expected(settled, task, options)}
        if told := defaults_told(task, options):
            figures["default_bounds"] = told
    if plot is not None:
        from sordino.planning.figure import draw_plan

        draw_plan(settled, plot)
    if as_json:
        typer.echo(json.dumps(figures))
    else:
        _print(chosen, figures, left_out=with_alternatives is None and expected_s >= QUICK_S)
        if plot is not None:
            typer.echo(f"\nDrawn: {plot}")
    return int(ExitCode.OK)


def _figures(chosen: dict[str, Any], *, bounds: bool = True) -> dict[str, Any]:
    if chosen["mechanism"] == "binomial":
        from sordino.planning.binomial_figures import binomial_figures, plan_binomial_study
        from sordino.planning.text import ring_warnings

        figures = binomial_figures(plan_binomial_study(chosen), chosen)
        return figures | {"warnings": [*figures["warnings"], *ring_warnings(chosen["graph"], figures)]}
    from sordino.planning.bounds import tighter_bounds
    from sordino.planning.text import figures_of
    from wire.study import plan_study

    plan = plan_study(**chosen)
    return figures_of(plan) | (tighter_bounds(plan) if bounds else {})


def _expected(settled: dict[str, Any], task: str, options: dict[str, object]) -> dict[str, Any] | None:
    """The error of a statistic; None of other tasks, and with binomial noise, for which there is no such figure."""
    if settled["mechanism"] == "binomial":
        return None
    from sordino.planning.expected_errors import expected_errors
    from wire.study import plan_study

    return expected_errors(plan_study(**settled), task, options)


def _print(chosen: dict[str, Any], figures: dict[str, Any], *, left_out: bool) -> None:
    from runtime.text import terminal_width
    from sordino.planning.notes import notes
    from sordino.planning.text import aligned, heading, plan_lines

    width = terminal_width()

    def paragraph(text: str) -> None:
        typer.echo("\n" + textwrap.fill(text, width, break_on_hyphens=False))

    typer.echo(textwrap.fill(heading(figures), width, break_on_hyphens=False) + "\n")
    for line in plan_lines(figures, width - 2):
        typer.echo(f"  {line}")
    expected = figures.get("expected")
    if expected is not None:
        from sordino.planning.expected_errors import expected_lines

        typer.echo("")
        for line in expected_lines(expected, width):
            typer.echo(line)
    for note in notes(figures, chosen["max_dropout"]):
        paragraph(note)
    if "default_bounds" in figures:
        paragraph(figures["default_bounds"])
    for warning in expected["warnings"] if expected is not None else ():
        paragraph(f"Warning: {warning}")
    typer.echo("")
    for line in aligned(_about(figures), width):
        typer.echo(line)
    if figures["target"] == "conditional":
        paragraph("For comparison only: nobody outside can check how participants were drawn, so no study is served.")
    if "alternatives" in figures:
        from sordino.planning.alternatives import alternatives_lines

        central = figures["alternatives"]["central"]
        paragraph(
            "Alternatives at the same target. Noise cost: variance of the mean's error if everybody survives, as a "
            f"factor of a central Gaussian's (noise multiplier {central['noise_multiplier']:.3f}, "
            f"{central['accountant']} bound)."
        )
        typer.echo("")
        for line in alternatives_lines(figures["alternatives"], chosen):
            typer.echo(line)
    elif left_out:
        paragraph("Alternatives would take a while here: --alternatives shows them.")


def _about(figures: dict[str, Any]) -> list[tuple[str, str, str]]:
    """What a statistician asks: whom one trusts, what neighbours are, which theorem, which bound."""
    rows = [
        ("Mechanism:", "", f"{figures['mechanism']}, {figures['theorem']}"),
        ("Adjacency:", "", figures["adjacency"]),
        ("Trusts:", "", figures["trusts"]),
    ]
    # The exact figure takes no sampling into account: it is that of somebody who knows who took part.
    bounds = [
        f"{reader}: {name} {figures[key]:.3f}"
        for reader, name, key in (
            ("epsilon_coordinator", "exact", "epsilon_exact"),
            ("epsilon_conditional", "PLD", "epsilon_pld"),
        )
        if figures[key]
    ]
    if bounds:
        spent = "" if figures["target"] == "conditional" else "; the study spends the Renyi one"
        told = f"{'; '.join(bounds)}. Smallest for the target: {figures['accountant']}{spent}"
        rows.append(("Bounds:", "", told))
    return rows
