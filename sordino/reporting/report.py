"""``report.html``: one study on one page that needs no network, with the meaning of its figures in words."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median_high
from typing import Any, Final

from authority.new_study import ONE_MACHINE
from mechanisms.plan import Plan
from runtime import VERSION
from runtime.durable import StorageError
from runtime.failure import ExitCode, Failure, InputFailure
from runtime.text import counted
from secagg.messages import PHASES
from server.events import RoundCompleted
from server.study_view import StudyView
from sordino.reporting import statistic_text as statistic
from sordino.reporting.report_terms import clip_rows, layer_names, mechanism_rows, outcome, plan_of, terms
from sordino.reporting.results import ServedStudy
from sordino.reporting.statistic_text import figure_of, figure_words, headline, known, title, values_of
from sordino.reporting.study_text import dropout_groups, people, reported_figures, size_text
from wire.guarantee import TRUSTED_COORDINATOR, guarantee
from wire.records.ledger import ChangedLedger

BASELINE_FILE = "without_noise.json"
MEASURED_FILE = "measured.json"
_MOST_ROWS = 256


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What the coordinator's events don't hold; ``measured``: lines (what, how much, note) of the demo."""

    without_noise: tuple[float, ...] = ()  # accuracy of the same training without noise, by round
    measured: tuple[tuple[str, str, str], ...] = ()
    one_machine: bool = False  # all parts ran on one machine
    ledger: str = ""  # one line about the privacy ledger


def write_report(directory: Path, output: Path | None = None) -> tuple[Path, StudyView]:
    """Read a study's events and write its report; by default ``report.html`` beside ``study.toml``.

    Raises Failure: no study, nothing recorded yet, or the ledger isn't what was written: no epsilon is stated then.
    """
    if directory.is_file() and directory.suffix != ".toml":
        raise InputFailure(f"{directory} is no study: name the study's folder, or its study.toml.")
    study = ServedStudy.read(directory)
    home, view = directory if directory.is_dir() else directory.parent, study.view
    coordinator = study.configuration.coordinator
    if view.started_at is None:
        raise InputFailure(f"{coordinator.state}: nothing is recorded yet. Run `sordino serve {home}`, then ask again.")
    extras = Extras(  # the demo left the first two beside the study
        without_noise=tuple(float(value) for value in _read_json(home / BASELINE_FILE) or ()),
        measured=tuple((str(a), str(b), str(c)) for a, b, c in _read_json(home / MEASURED_FILE) or ()),
        one_machine=coordinator.one_machine,
        ledger=_checked_ledger(study),
    )
    path = output if output is not None else home / "report.html"
    path.write_text(render(view, extras), encoding="utf-8")
    return path, view


def _checked_ledger(study: ServedStudy) -> str:
    """One line about the ledger beside the journal; raises `Failure` for one that was changed."""
    try:
        head = study.ledger().head
    except ChangedLedger as error:
        raise Failure(ExitCode.LEDGER, f"no report is written, the ledger was changed. {error}") from error
    except StorageError as error:
        raise InputFailure(f"no report is written without its ledger. {error}") from error
    return f"Privacy ledger: {counted(head.rows, 'row')}, nothing changed; head {head.hash.hex()}."


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def render(view: StudyView, extras: Extras) -> str:
    """The whole page, from the template ``report.html.j2``; the study may be unfinished."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from sordino.planning.text import figures_of, plan_table
    from sordino.reporting import figures

    here = Path(__file__).parent
    pages = Environment(loader=FileSystemLoader(here), autoescape=True, undefined=StrictUndefined)
    plan = plan_of(view)
    left = "Number of participants of each host that left, by phase."
    left = left if view.dropouts else "No participant left during a round."
    wrapped = [(done.wrapped_share, done.round) for done in view.rounds if done.wrapped_share is not None]
    promised = terms(view, plan) + ([("On one machine", ONE_MACHINE)] if extras.one_machine else [])
    return pages.get_template("report.html.j2").render(
        style=(here / "report.css").read_text(encoding="utf-8"),
        view=view,
        facts=_facts(view),
        tiles=_tiles(view, extras),
        summary=_summary(view, extras),
        mechanism=mechanism_rows(view, plan, wrapped) if plan is not None else [],
        finding=_finding(view, extras),
        epsilon=_figure("Privacy spent", _epsilon_caption(view), figures.epsilon_figure(view))
        | {"below": _JUMP if view.started.rounds > 1 else ""},
        statistic=_statistic(view),
        clips=_clips(view, plan),
        dropouts=_figure("Dropouts", left, figures.dropout_figure(view)),
        left=_dropout_list(view),
        phases=_figure("Phase times", _phase_caption(view), figures.phase_figure(view)),
        round_heads=_round_heads(view),
        rounds=[(done.attempt, _round_cells(view, done)) for done in view.rounds],
        measured=extras.measured,
        plan=plan_table(figures_of(plan)) if plan is not None else [],
        # Assumptions such as ``A = 2`` stay on one line.
        promised=[(name, text.replace(" = ", "\u00a0=\u00a0")) for name, text in promised],
        ledger=extras.ledger,
        made=time.strftime("%d %B %Y, %H:%M"),
        version=VERSION,
    )


def _figure(title: str, caption: str, svg: str = "") -> dict[str, str]:
    """Arguments of the template's ``figure``."""
    return {"title": title, "caption": caption, "svg": svg}


def _facts(view: StudyView) -> list[str]:
    when = time.strftime("%d %B %Y, %H:%M", time.localtime(view.started_at)) if view.started_at else ""
    partition = view.started.partition.get("name", "")
    if partition == "dirichlet":
        partition = f"Dirichlet {view.started.partition.get('alpha', 0):g}"
    partition = f"{partition} partition" if partition else ""
    return [fact for fact in (view.started.task, counted(view.participants, "participant"), partition, when) if fact]


def _tiles(view: StudyView, extras: Extras) -> list[tuple[str, str, str]]:
    """(name, value, note) of the figures at the top."""
    beside = f"{extras.without_noise[-1]:.3f} without noise" if extras.without_noise else "on held-out data"
    accuracy = "–" if view.accuracy is None else f"{view.accuracy:.3f}"
    for _, figure in reported_figures(view.reported)[:1]:
        where = f"at participants, after round {view.completed - 1}"
        accuracy, beside = (figure, where) if view.accuracy is None else (accuracy, f"{beside}; {figure} {where}")
    holds = guarantee(view.started.plan)
    aborted = counted(len(view.aborted), "attempt") + " aborted" if view.aborted else "no round lost"
    key_to_sum, upload = [done.key_to_sum_s for done in view.rounds], [done.upload_bytes for done in view.rounds]
    return [
        _found_tile(view) or ("Accuracy", accuracy, beside),
        (
            "Epsilon",
            f"{view.epsilon_coordinator:.2f}",
            f"of {view.started.epsilon_target:g}, at delta {view.started.delta:g}" + (f"; {holds}" if holds else ""),
        ),
        ("Rounds", f"{view.completed}", f"of {view.started.rounds}"),
        ("Dropouts", f"{len(view.left_by_round())}", f"participants, {aborted}"),
        ("Key to sum", f"{median_high(key_to_sum):.1f} s" if key_to_sum else "–", "median of the rounds"),
        ("Upload", size_text(median_high(upload)) if upload else "–", "a participant a round"),
    ]


def _found_tile(view: StudyView) -> tuple[str, str, str] | None:
    """The statistic, or the first error of a model without an accuracy, as a tile; None where there is neither."""
    if not view.seeks_statistic:
        return next(((name.capitalize(), value, "on held-out data") for name, value in figure_words(view.errors)), None)
    name, values = title(view.released), values_of(view.released)
    if not values:
        return ("Result", "–", "no round has ended yet")
    if len(values) == 1:
        number, error = figure_of(values[0])
        return (name, number, error) if known(view.released) else (name, "–", number)
    if view.released.get("statistic") == statistic.HISTOGRAM:
        return (name, f"{len(values)}", "bins; their counts are below")
    middle = [value for value in values if value.get("share") == 0.5 and figure_of(value)[1]]
    if view.released.get("statistic") == statistic.QUANTILE and middle:
        number, error = figure_of(middle[0])
        return ("Median", number, f"{error}; all {len(values)} quantiles are below")
    return (name, f"{len(values)}", "values; they are below")


def _summary(view: StudyView, extras: Extras) -> list[str]:
    """How the study ended, what was learnt, and the guarantee's condition on one machine."""
    ended, of = len(view.rounds), counted(view.started.rounds, "round")
    reason = None if view.finished is None else view.finished.reason
    if reason is None:
        text = ["The study has not finished; this is its state so far."]
    elif reason == "rounds done":
        rounds = {1: "The one round", 2: "Both rounds"}.get(view.started.rounds, f"All {view.started.rounds} rounds")
        text = [f"{rounds} ended in a sum."]
    elif reason == "budget reached":
        text = [f"The privacy budget was reached after {ended} of {of}."]
    else:
        text = [f"The study ended after {ended} of {of}: {reason}."]
    if view.rounds:
        text.append(outcome(view, [done.u3 for done in view.rounds]))
        found = headline(view.released)
        if not view.seeks_statistic and found:
            text.append(f"{found[:1].upper()}{found[1:]}.")
    return text + ([ONE_MACHINE] if extras.one_machine else [])


def _finding(view: StudyView, extras: Extras) -> dict[str, str]:
    """What the study is for, as a figure: the accuracy, or the statistic."""
    from sordino.reporting import figures

    values = values_of(view.released)
    if view.errors:
        name = figure_words(view.errors)[0][0].capitalize()
        return _figure(name, "On held-out data at the coordinator.", figures.error_figure(view))
    if not view.seeks_statistic:
        accuracy = figures.accuracy_figure(view, extras.without_noise)
        caption = "On held-out data at the coordinator."
        if view.reported:
            caption = "Points with two standard errors: held-out data of participants. Line: the coordinator's."
        return _figure("Accuracy", caption, accuracy)
    if view.rounds and not any(known(done.released) for done in view.rounds):
        why = figure_of(values[0])[0] if values else ""
        return _figure(title(view.released), f"No value is released: {why}. See below.")
    if not view.released:
        return _figure("Result", "No round has ended yet.")
    caption = "All rounds together; lines are two standard errors."
    if view.released.get("cumulative"):
        caption = "The distribution function as released; bars are the intervals of the quantiles."
    elif len(values) == 1:
        caption = "After each round, all rounds so far together, with two standard errors."
    return _figure(title(view.released), caption, figures.statistic_figure(view))


def _statistic(view: StudyView) -> dict[str, Any] | None:
    """All values of a statistic, and what was asked of each participant."""
    found, values = statistic.table_rows(view.released), values_of(view.released)
    if not found:
        return None
    shares = [value.get("share") for value in values]
    with_shares = view.released.get("statistic") == statistic.HISTOGRAM and any(share is not None for share in shares)
    rows = [
        [*cells, *(["" if share is None else f"{100 * share:.1f} %"] if with_shares else [])]
        for cells, share in zip(found[:_MOST_ROWS], shares, strict=False)
    ]
    beside = "95 % interval" if any(value.get("low") is not None for value in values) else ""
    if any(value.get("standard_error") is not None for value in values):
        beside = "Standard error"
    return {
        "about": " ".join(statistic.about(view.released)),
        "heads": ["", "Estimate", beside, *(["Share"] if with_shares else [])],
        "rows": rows,
        "more": max(len(found) - _MOST_ROWS, 0),
        "asked": [(name, value, _ASKED.get(name, "")) for name, value in statistic.asked_rows(view.released)],
    }


_ASKED: Final = {
    "column": "of each participant's data; numbers count from 0",
    "low": "lower bound; smaller values count as the bound",
    "high": "upper bound; larger values count as the bound",
    "reduce": "what a participant's rows became",
    "count": "whether participants with a value were counted",
    "bins": "of equal width between the bounds, or classes from 0",
    "quantiles": "shares of the participants",
}


def _clips(view: StudyView, plan: Plan | None) -> list[dict[str, str]]:
    """How the clips moved, where they adapt."""
    from sordino.reporting import figures

    rows = clip_rows(view)
    if plan is None or not plan.clipping.adaptive or not rows:
        return []
    names, quantile = layer_names(plan.clipping), plan.clipping.quantile
    aim = f"Share of the norms, a noisy estimate. The clips aim at {quantile:g}."
    return [
        _figure("Clips", "L2 norm that an update is clipped to.", figures.clip_figure(rows, names)),
        _figure("Within the clip", aim, figures.below_clip_figure(rows, names, quantile)),
    ]


def _epsilon_caption(view: StudyView) -> str:
    if view.started.plan.get("mechanism") == TRUSTED_COORDINATOR:
        return "Against all readers except the coordinator, which is trusted."
    found = "statistic" if view.seeks_statistic else "models"
    the_same = abs(view.epsilon_coordinator - view.epsilon_released) < 5e-3
    if the_same and view.started.plan.get("sampling", "none") == "none":
        return "No sampling, so coordinator and released are equal."
    if the_same and view.rounds:  # the bound that counts the draws is larger: many are drawn, or few rounds were run
        return (
            f"Participants are drawn for each round. Against readers of the {found} only, this gives no smaller "
            "bound here: coordinator and released are equal."
        )
    return f"Coordinator: a party that sees every sum. Released: a reader of the {found} only."


_JUMP: Final = (
    "Stated at the order that the plan fixed (a Rényi filter), so it holds whenever the study is stopped. One part of "
    "the conversion to epsilon does not depend on the number of rounds and is charged in full with the first round."
)


def _dropout_list(view: StudyView) -> list[tuple[int, str, str, str]]:
    """(round, phase, who, reason) of dropouts and aborted attempts."""
    rows = [(number, phase, people(members), reason) for number, phase, reason, members in dropout_groups(view)]
    for end in view.aborted:
        missed = f"{end.received} answered, {end.needed} needed; nothing was revealed"
        rows.append((end.round, end.phase, f"attempt {end.attempt} aborted: {missed}", end.reason))
    return sorted(rows, key=lambda row: row[0])


def _phase_caption(view: StudyView) -> str:
    if not view.rounds:
        return "No round has ended yet."
    slowest = max(PHASES, key=lambda name: sum(done.phase_seconds.get(name, 0.0) for done in view.rounds))
    return f"{slowest} takes longest. Local training is part of MaskedInputCollection."


def _round_heads(view: StudyView) -> list[tuple[str, str]]:
    """(name, unit or set) of the columns of the rounds."""
    found = [("Accuracy", ""), ("Loss", "nats")] if not view.seeks_statistic else []
    if view.errors:
        found = [(name.capitalize(), "") for name, _ in figure_words(view.errors)]
    if view.started.plan.get("evaluation"):
        found.append(("Participants", "before it"))
    if len(values_of(view.released)) == 1:
        found.append((title(view.released), "rounds so far"))
    return [
        *(("Round", ""), ("Began", "u1"), ("In the sum", "u3"), ("Left", ""), *found),
        *(("Epsilon", "coordinator"), ("Epsilon", "released"), ("Took", "s"), ("Key to sum", "s")),
        *(("Upload", "kB each"), ("Download", "kB each"), ("Coordinator", "MB resident")),
    ]


def _round_cells(view: StudyView, done: RoundCompleted) -> list[str]:
    """The cells of `_round_heads` for one round."""
    found = []
    if not view.seeks_statistic:
        found = ["–" if figure is None else f"{figure:.3f}" for figure in (done.accuracy, done.loss)]
    if view.errors:
        words = dict(figure_words(done.figures))
        found = [words.get(name, "–") for name, _ in figure_words(view.errors)]
    if view.started.plan.get("evaluation"):
        found.append(", ".join(figure for _, figure in reported_figures(done.reported)[:1]) or "–")
    if len(values_of(view.released)) == 1:
        found.append(statistic.in_words(values_of(done.released)[0]) if values_of(done.released) else "–")
    return [
        *(f"{done.round}", f"{done.u1}", f"{done.u3}", f"{done.dropouts or '–'}", *found),
        *(f"{done.epsilon_coordinator:.2f}", f"{done.epsilon_released:.2f}"),
        *(f"{done.seconds:.1f}", f"{done.key_to_sum_s:.1f}"),
        *(f"{done.upload_bytes / 1e3:.1f}", f"{done.download_bytes / 1e3:.1f}", f"{done.coordinator_rss_mb:.0f}"),
    ]
