"""``sordino plan``: what a study would cost and promise, before anything runs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated, Any, Final

from learning.task_names import BOUNDED
from runtime.failure import ExitCode, InputFailure
from runtime.option_values import built, check_picture, task_options
from runtime.settings_keys import settings_keys
from runtime.text import aligned, folded, terminal_width
from sordino.cli.options import chosen, options, with_options
from sordino.cli.verbs import answer, epilog, flag
from sordino.planning.expected_errors import default_bounds_note, described, expected_errors
from sordino.planning.notes import notes
from sordino.planning.options import OUTPUT, PlannedStudy, PlanOptions
from sordino.planning.plan_figures import PlanFigures

HELP = (
    "Compute noise, thresholds and bytes from a privacy budget, and refuse what no plan can keep.\n\nThe noise is "
    "sized for the smallest sum that may be opened, without the shares of the participants assumed to collude, "
    "so the budget holds for any dropouts. Figures are in the units of the update, not grid steps. The epsilon "
    "is never above the one asked for.\n\n"
    "Mechanisms: ddgauss and skellam, every participant adds a share; gaussian, the coordinator is trusted and adds "
    "all of it; local-gaussian, each report is private by itself; binomial, like ddgauss but composed in epsilon and "
    "delta only, for comparison.\n\n"
    "Readers: epsilon_coordinator is for a reader that knows who took part; epsilon_released for readers of released "
    "models alone, amplified by the sampling rate; epsilon_conditional is the published figure, on the condition "
    "that each participant was drawn by an independent coin, and the noise does not depend on who was. A plan "
    "with the target conditional is for comparison only.\n\n"
    "Clips by layer: with --clip-scaling proportional or least-noise each layer is divided by its own scale; "
    "clip, inflated_clip, granularity, local_stddev, central_stddev and full_stddev are then in scaled units. "
    "layer_noise_stddev lists the noise of each layer in units of the update: central_stddev, of the smallest sum, "
    "times the layer's scale.\n\n"
    "Statistics: --task mean, sum, histogram or quantile, with --task-option as of `sordino init`, shows how exact the "
    "answer will be before any budget is spent: the standard error that the result will state if all have a value; of "
    "a quantile, that of the share at or below it. JSON has it under expected.\n\n"
    "JSON: quantile_stderr is the standard error of the share of norms below a clip that adapts, in the smallest sum;"
    " null with fixed clips. accuracy_stderr is that of the accuracy that participants report. Other figures may be "
    "null, too. An epsilon is null above the largest that the sampler's distance from its law lets one state, about 71 "
    "by default and less with more values or rounds; epsilon_conditional without sampling; epsilon_pld unless gaussian "
    "with Poisson or fixed-size sampling; both budgets of a conditional plan. 'accountant' names the smallest valid "
    "bound on the target. 'alternatives' is there with --alternatives."
)
EPILOG = epilog("plan --clients 100 --dim 500 --epsilon 8 --rounds 15 --min-survivors 70", ExitCode.INFEASIBLE)
QUICK_S = 2.0  # alternatives are shown unasked if they are expected to take less


_PLANNED: Final = ("privacy", "evaluation")


def _run(as_json: Annotated[bool, flag("--json", "Print one JSON object.", OUTPUT)] = False, **given: Any) -> int:
    from sordino.planning.options import check_budgets, check_population, clip_rule, of_task, shape
    from sordino.planning.refusals import check_plan

    asked = chosen(given, PlanOptions)
    own = built(PlanOptions, asked)
    task, layers, clients = own.task, own.layers, own.clients
    values = {name: value for name, value in chosen(given, PlannedStudy).items() if name not in asked}
    if own.target == "conditional" and values.get("sampling", "none") == "none":
        raise InputFailure("--target conditional needs --sampling poisson and --population.")
    check_population(clients, values.get("population"), values.get("sampling", "none"))
    if "sampling" not in values or values["sampling"] == "none":
        values.pop("population", None)
    plot, with_alternatives = own.plot, own.with_alternatives
    if plot is not None:
        check_picture("--plot", plot)
    if task is None and own.task_option:
        raise InputFailure("--task-option needs a task: name it with --task.")
    if "clip_scaling" in values and values["clip_scaling"] != "uniform" and layers is None:
        raise InputFailure(f"--clip-scaling {values['clip_scaling']} needs layers: add --layers; or leave it out.")
    study = built(PlannedStudy, {"in_a_round": clients, "clip_by_layer": layers is not None} | values, values)
    privacy, clip, dim = study.privacy, study.privacy.clip, own.dim
    options_of_task = task_options(own.task_option, {})
    if task is not None:
        dim, clip = of_task(task, options_of_task, privacy, dim=dim, layers=layers, clips=own.clips)
        if study.evaluation.of_plan() and task in BOUNDED:
            raise InputFailure(f"--task {task} has no model that participants could evaluate: leave --evaluate out.")
    dim, sizes, sketch = shape(dim=dim, layers=layers, rows=privacy.sketch_rows, ratio=privacy.sketch_ratio)
    published = privacy.sampling == "poisson" and privacy.max_dropout == privacy.adversarial == 0  # isn't served
    reader = own.target or ("conditional" if published else "coordinator")
    check_budgets(reader, own.budget_coordinator, own.budget_released)
    arguments: dict[str, Any] = privacy.of_plan() | {
        "clients": clients,
        "dim": dim,
        "clipping": clip_rule(privacy, coded=sketch[0] * sketch[1] or dim, sizes=sizes, clip=clip, clips=own.clips),
        "sketch": sketch,
        "rotation": None if privacy.rotation == "auto" else privacy.rotation,
        "evaluation": study.evaluation.of_plan(),
        "rounds": study.study.rounds,
        "target": reader,
        "budget_coordinator": own.budget_coordinator,
        "budget_released": own.budget_released,
    }
    import wire.study  # its time is not the plan's

    def again(changed: dict[str, Any]) -> PlanFigures:
        return _figures(arguments | changed, bounds=bool(not changed))

    started = time.monotonic()
    figures = check_plan(arguments, again)
    expected_s = 14 * (time.monotonic() - started)
    stated = arguments | {"min_survivors": figures.min_survivors, "quorum": figures.quorum}
    if with_alternatives if with_alternatives is not None else not as_json and expected_s < QUICK_S:
        from sordino.planning.alternatives import alternatives, with_own_row

        figures = replace(figures, alternatives=with_own_row(alternatives(stated), figures))
    if task is not None:
        said = default_bounds_note(task, options_of_task) or None
        # With binomial noise there is no such figure.
        binomial = stated["mechanism"] == "binomial"
        expected = None if binomial else expected_errors(wire.study.plan_study(**stated), task, options_of_task)
        figures = replace(figures, task=task, expected=expected, default_bounds=said)
    if plot is not None:
        from sordino.planning.figure import draw_plan

        draw_plan(stated, plot)
    lines = _lines(figures, left_out=with_alternatives is None and expected_s >= QUICK_S)
    return answer(as_json, figures.to_json(), [*lines, *([] if plot is None else ["", f"Drawn: {plot}"])])


def _figures(chosen: dict[str, Any], *, bounds: bool = True) -> PlanFigures:
    if chosen["mechanism"] == "binomial":
        from sordino.planning.binomial_figures import binomial_figures, plan_binomial_study

        return binomial_figures(plan_binomial_study(chosen), chosen)
    from sordino.planning.alternatives import tighter_bounds
    from sordino.planning.text import figures_of
    from wire.study import plan_study

    plan = plan_study(**chosen)
    return replace(figures_of(plan), **tighter_bounds(plan)) if bounds else figures_of(plan)


def _lines(figures: PlanFigures, *, left_out: bool) -> list[str]:
    from sordino.planning.text import heading

    width = terminal_width()
    remarks = notes(figures)
    if figures.default_bounds is not None:
        remarks.append(figures.default_bounds)
    lines = [*folded(heading(figures), width), "", *described(figures, remarks, width)]
    about = [
        ("Mechanism:", "", f"{figures.mechanism}, {figures.theorem}"),
        ("Adjacency:", "", figures.adjacency),
        ("Trusts:", "", figures.trusts),
    ]
    if figures.epsilon_pld:
        said = f"epsilon_conditional: PLD {figures.epsilon_pld:.3f}. Smallest for the target: {figures.accountant}"
        about.append(("Bounds:", "", said))
    lines += ["", *aligned(about, width)]
    if figures.target == "conditional":
        said = "For comparison only: outsiders can't check how participants were drawn, so no study is served."
        lines += ["", *folded(said, width)]
    if figures.alternatives is not None:
        from sordino.planning.alternatives import alternatives_lines

        central = figures.alternatives["central"]
        said = (
            "Alternatives at the same target. Noise cost: variance of the mean's error if all survive, as a "
            f"factor of a central Gaussian's (noise multiplier {central['noise_multiplier']:.3f}, "
            f"{central['accountant']} bound)."
        )
        lines += ["", *folded(said, width), "", *alternatives_lines(figures.alternatives, figures)]
    elif left_out:
        lines += ["", *folded("Alternatives would take a while here: --alternatives shows them.", width)]
    return lines


run = with_options(
    _run,
    options(PlanOptions)
    + options(
        PlannedStudy,
        only=("rounds", *(name for name, one in settings_keys(PlannedStudy).items() if one.table in _PLANNED)),
        without=("clip_by_layer", "patience"),
        population={"help": "Participants that those of a round are drawn from.", "show_default": "clients"},
    ),
)
