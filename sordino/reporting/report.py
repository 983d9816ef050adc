"""``report.html``: one study on one page that needs no network, with what its figures mean in plain words."""

from __future__ import annotations

import html
import json
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from authority.new_study import ONE_MACHINE
from runtime import VERSION
from runtime.failure import ExitCode, Failure
from runtime.plurals import counted
from sordino.reporting.panel import size_text
from sordino.reporting.report_style import STYLE
from sordino.reporting.report_terms import clip_rows, layer_names, mechanism_rows, outcome, terms
from sordino.reporting.statistic_text import (
    HISTOGRAM,
    QUANTILE,
    about,
    asked_rows,
    figure_of,
    headline,
    in_words,
    known,
    table_rows,
    title,
    values_of,
)
from sordino.reporting.study_view import PHASES, StudyView, people
from wire.guarantee import TRUSTED_COORDINATOR, guarantee

if TYPE_CHECKING:
    from mechanisms.plan import Plan

BASELINE_FILE = "without_noise.json"
MEASURED_FILE = "measured.json"
_MOST_ROWS = 256


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What the coordinator's events don't hold.

    Attributes:
        without_noise: accuracy of the same training without noise, round by round; empty when it wasn't run.
        measured: lines (what, how much, note) measured by the demo beside the coordinator's own figures.
        one_machine: all parts ran on one machine.
        ledger: one line about the privacy ledger.
    """

    without_noise: tuple[float, ...] = ()
    measured: tuple[tuple[str, str, str], ...] = field(default=())
    one_machine: bool = False
    ledger: str = ""


def write_report(directory: Path, output: Path | None = None) -> tuple[Path, StudyView]:
    """Read a study's events and write its report.

    Args:
        directory: the study's folder or its ``study.toml``.
        output: where to write; None is ``report.html`` beside ``study.toml``.

    Raises:
        Failure: no study, nothing recorded yet, or the ledger isn't what was written: no epsilon is stated then.
    """
    from server.journal import read_events
    from server.study_file import load

    if directory.is_file() and directory.suffix != ".toml":
        raise Failure(ExitCode.INPUT, f"{directory} is no study: name the study's folder, or its study.toml.")
    configuration = load(directory)
    home = directory if directory.is_dir() else directory.parent
    state = configuration.coordinator.state
    events = read_events(state) if state.is_file() else []
    if not events:
        raise Failure(ExitCode.INPUT, f"{state}: nothing is recorded yet. Run `sordino serve {home}`, then ask again.")
    ledger = _checked_ledger(state)
    view = StudyView().apply_all(events)
    extras = replace(read_extras(home, one_machine=configuration.coordinator.one_machine), ledger=ledger)
    path = output if output is not None else home / "report.html"
    path.write_text(render(view, extras), encoding="utf-8")
    return path, view


def _checked_ledger(state: Path) -> str:
    """One line about the ledger beside the journal; raises `Failure` for one that was changed."""
    from runtime.durable import StorageError
    from sordino.reporting.budget import Place, read
    from wire.records.ledger import LEDGER_FILE, ChangedLedger

    try:
        contents = read(Place(state.with_name(LEDGER_FILE), state=state))
    except ChangedLedger as error:
        raise Failure(ExitCode.LEDGER, f"no report is written, the ledger was changed. {error}") from error
    except StorageError as error:
        raise Failure(ExitCode.INPUT, f"no report is written without its ledger. {error}") from error
    return f"Privacy ledger: {counted(contents.head.rows, 'row')}, nothing changed; head {contents.head.hash.hex()}."


def read_extras(home: Path, *, one_machine: bool) -> Extras:
    """What the demo left beside the study: the training without noise, and its measurements."""
    baseline = _read_json(home / BASELINE_FILE)
    measured = _read_json(home / MEASURED_FILE)
    return Extras(
        without_noise=tuple(float(value) for value in baseline or ()),
        measured=tuple((str(a), str(b), str(c)) for a, b, c in measured or ()),
        one_machine=one_machine,
    )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def render(view: StudyView, extras: Extras) -> str:
    """The whole page.

    Args:
        view: the study; may be unfinished.
        extras: see ``Extras``.
    """
    from sordino.reporting import figures

    plan = _plan_of(view)
    title = f"{view.study or 'Study'}: report"
    parts = [
        _header(view),
        _tiles(view, extras),
        _summary(view, extras),
        _mechanism(view, plan),
        '<section class="pair">',
        _finding(view, extras),
        _figure(
            "Privacy spent",
            _epsilon_caption(view),
            figures.epsilon_figure(view),
            below=_JUMP if view.planned_rounds > 1 else "",
        ),
        "</section>",
        _statistic(view),
        _clips(view, plan),
        _figure("Dropouts", _dropout_caption(view), figures.dropout_figure(view), wide=True),
        _dropout_list(view),
        _figure("Phase times", _phase_caption(view), figures.phase_figure(view), wide=True),
        _rounds(view),
        _measured(extras),
        _plan_section(view, plan),
        _promise(view, extras, plan),
        _footer(extras),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{_e(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
    )


def _plan_of(view: StudyView) -> Plan | None:
    """The plan as the coordinator recorded it; None when this version can't read it."""
    from mechanisms.plan import Plan

    try:
        return Plan.from_json(json.dumps(dict(view.plan)))
    except (TypeError, ValueError):
        return None


def _e(text: object) -> str:
    return html.escape(str(text))


def _header(view: StudyView) -> str:
    when = time.strftime("%d %B %Y, %H:%M", time.localtime(view.started_at)) if view.started_at else ""
    partition = view.partition.get("name", "")
    if partition == "dirichlet":
        partition = f"Dirichlet {view.partition.get('alpha', 0):g} partition"
    elif partition:
        partition = f"{partition} partition"
    facts = [view.task, counted(view.participants, "participant"), partition, when]
    return (
        f'<header><p class="kind">Sordino study report</p><h1>{_e(view.study)}</h1>'
        f'<p class="facts">{" &middot; ".join(_e(fact) for fact in facts if fact)}</p></header>'
    )


def _tiles(view: StudyView, extras: Extras) -> str:
    reached = view.accuracy
    beside = f"{extras.without_noise[-1]:.3f} without noise" if extras.without_noise else "on held-out data"
    lost = len(view.left_by_round())
    last = view.rounds[-1] if view.rounds else None
    holds = guarantee(view.plan)
    tiles = [
        _found_tile(view) or ("Accuracy", f"{reached:.3f}" if reached is not None else "–", beside),
        (
            "Epsilon",
            f"{view.epsilon_coordinator:.2f}",
            f"of {view.epsilon_target:g}, at delta {view.delta:g}" + (f"; {holds}" if holds else ""),
        ),
        ("Rounds", f"{view.completed}", f"of {view.planned_rounds}"),
        ("Dropouts", f"{lost}", f"participants, {_aborted_words(view) or 'no round lost'}"),
        (
            "Key to sum",
            f"{_median([done.key_to_sum_s for done in view.rounds]):.1f} s" if last else "–",
            "median of the rounds",
        ),
        (
            "Upload",
            size_text(_median([done.upload_bytes for done in view.rounds])) if last else "–",
            "a participant a round",
        ),
    ]
    cells = "".join(
        f"<div><dt>{_e(name)}</dt><dd><b>{_e(value)}</b><span>{_e(note)}</span></dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _found_tile(view: StudyView) -> tuple[str, str, str] | None:
    """The statistic as a tile; None where a model is learnt."""
    if not view.seeks_statistic:
        return None
    values = values_of(view.released)
    if not values:
        return ("Result", "–", "no round has ended yet")
    if len(values) == 1:
        number, error = figure_of(values[0])
        if not known(view.released):
            return (title(view.released), "–", number)
        return (title(view.released), number, error)
    if view.released.get("statistic") == HISTOGRAM:
        return (title(view.released), f"{len(values)}", "bins; their counts are below")
    middle = [value for value in values if value.get("share") == 0.5 and figure_of(value)[1]]
    if view.released.get("statistic") == QUANTILE and middle:
        number, error = figure_of(middle[0])
        return ("Median", number, f"{error}; all {len(values)} quantiles are below")
    return (title(view.released), f"{len(values)}", "values; they are below")


def _aborted_words(view: StudyView) -> str:
    count = len(view.aborted)
    return f"{counted(count, 'attempt')} aborted" if count else ""


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


def _summary(view: StudyView, extras: Extras) -> str:
    finished = view.finished
    if finished is None:
        ending = "The study has not finished; this is its state so far."
    elif finished.get("reason") == "rounds done":
        count = view.planned_rounds
        ending = {1: "The one round", 2: "Both rounds"}.get(count, f"All {count} rounds") + " ended in a sum."
    elif finished.get("reason") == "budget reached":
        ending = f"The privacy budget was reached after {len(view.rounds)} of {counted(view.planned_rounds, 'round')}."
    else:
        reason = finished.get("reason", "")
        ending = f"The study ended after {len(view.rounds)} of {counted(view.planned_rounds, 'round')}: {reason}."
    text = [ending]
    if view.rounds:
        text.append(outcome(view))
        if not view.seeks_statistic and headline(view.released):
            text.append(f"{headline(view.released)[:1].upper()}{headline(view.released)[1:]}.")
    if extras.one_machine:
        text.append(ONE_MACHINE)
    return f'<p class="lead">{_e(" ".join(text))}</p>'


def _figure(title: str, caption: str, svg: str, *, wide: bool = False, below: str = "") -> str:
    body = f'<div class="scroll wide">{svg}</div>' if wide else svg
    more = f"<p>{_e(below)}</p>" if below else ""
    return f"<figure><h2>{_e(title)}</h2><p>{_e(caption)}</p>{body}{more}</figure>"


def _finding(view: StudyView, extras: Extras) -> str:
    """What the study is for, drawn: the accuracy, or the statistic."""
    from sordino.reporting import figures

    if view.seeks_statistic and view.rounds and not any(known(done.released) for done in view.rounds):
        why = figure_of(values_of(view.released)[0])[0] if values_of(view.released) else ""
        return f"<figure><h2>{_e(title(view.released))}</h2><p>No value is told: {_e(why)}. See below.</p></figure>"
    if view.seeks_statistic and view.released:
        return _figure(title(view.released), _statistic_caption(view), figures.statistic_figure(view))
    if view.seeks_statistic:
        return "<figure><h2>Result</h2><p>No round has ended yet.</p></figure>"
    return _figure(
        "Accuracy", "On held-out data at the coordinator.", figures.accuracy_figure(view, extras.without_noise)
    )


def _statistic_caption(view: StudyView) -> str:
    if view.released.get("cumulative"):
        return "The distribution function as released; bars are the intervals of the quantiles."
    if len(values_of(view.released)) == 1:
        return "After each round, all rounds so far together, with two standard errors."
    return "All rounds together; lines are two standard errors."


def _statistic(view: StudyView) -> str:
    """All values of a statistic, and what they mean."""
    found = table_rows(view.released)
    if not found:
        return ""
    shares = [value.get("share") for value in values_of(view.released)]
    with_shares = view.released.get("statistic") == HISTOGRAM and any(share is not None for share in shares)
    cells = []
    for (name, number, error), share in zip(found[:_MOST_ROWS], shares, strict=False):
        extra = f"<td>{'' if share is None else f'{100 * share:.1f} %'}</td>" if with_shares else ""
        cells.append(f"<tr><td>{_e(name)}</td><td>{_e(number)}</td><td>{_e(error)}</td>{extra}</tr>")
    more = f"<p>{len(found) - _MOST_ROWS} more are in `sordino report --json`.</p>" if len(found) > _MOST_ROWS else ""
    told = "".join(f" {_e(sentence)}" for sentence in about(view.released)).strip()
    head = f"<th></th><th>Estimate</th><th>{_exactness_head(view)}</th>" + ("<th>Share</th>" if with_shares else "")
    return (
        f'<section><h2>Values</h2><p class="lead">{told}</p>'
        f'<div class="scroll"><table class="numbers statistic"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(cells)}</tbody></table></div>{more}{_asked(view)}</section>"
    )


def _exactness_head(view: StudyView) -> str:
    """What stands beside an estimate: its standard error, or the interval that noise leaves."""
    values = values_of(view.released)
    if any(value.get("standard_error") is not None for value in values):
        return "Standard error"
    return "95 % interval" if any(value.get("low") is not None for value in values) else ""


def _asked(view: StudyView) -> str:
    """What was asked of each participant: column, bounds, what becomes of her rows, and the rest."""
    rows = asked_rows(view.released)
    cells = "".join(
        f"<tr><th>{_e(name)}</th><td>{_e(value)}</td><td>{_e(_ASKED.get(name, ''))}</td></tr>" for name, value in rows
    )
    return f'<h3>What was asked</h3><table class="words plan">{cells}</table>' if rows else ""


_ASKED = {
    "column": "of each participant's data; numbers count from 0",
    "low": "lower bound; smaller values count as the bound",
    "high": "upper bound; larger values count as the bound",
    "reduce": "what a participant's rows became",
    "count": "whether it was counted who had a value",
    "bins": "of equal width between the bounds, or classes from 0",
    "quantiles": "shares of the participants",
}


def _mechanism(view: StudyView, plan: Plan | None) -> str:
    rows = mechanism_rows(view, plan) if plan is not None else []
    if not rows:
        return ""
    cells = "".join(f"<div><dt>{_e(what)}</dt><dd>{_e(words)}</dd></div>" for what, words in rows)
    return f'<dl class="terms mechanism">{cells}</dl>'


def _clips(view: StudyView, plan: Plan | None) -> str:
    """How the clips moved, where they adapt."""
    from sordino.reporting import figures

    rows = clip_rows(view)
    if plan is None or not plan.clipping.adaptive or not rows:
        return ""
    names, quantile = layer_names(plan.clipping), plan.clipping.quantile
    return (
        '<section class="pair second">'
        + _figure("Clips", "L2 norm that an update is clipped to.", figures.clip_figure(rows, names))
        + _figure(
            "Within the clip",
            f"Share of the norms, a noisy estimate. The clips aim at {quantile:g}.",
            figures.below_clip_figure(rows, names, quantile),
        )
        + "</section>"
    )


def _epsilon_caption(view: StudyView) -> str:
    if view.plan.get("mechanism") == TRUSTED_COORDINATOR:
        return "Of everybody but the coordinator, which is trusted."
    the_same = abs(view.epsilon_coordinator - view.epsilon_released) < 5e-3
    if the_same and view.plan.get("sampling", "none") == "none":
        return "Nobody is sampled, so coordinator and released are the same."
    if the_same and view.rounds:  # the bound that counts the draws is larger: many are drawn, or few rounds were run
        return (
            f"Participants are drawn for each round. For whoever sees the {view.finding} only this gives no smaller "
            "bound here: coordinator and released are the same."
        )
    return f"Coordinator: who sees every sum. Released: who sees the {view.finding} only."


_JUMP = (
    "Stated at the order that the plan fixed (a Rényi filter), so true whenever the study is stopped; a part of the "
    "conversion to epsilon doesn't depend on rounds, and comes whole with the first."
)


def _dropout_caption(view: StudyView) -> str:
    if not view.dropouts:
        return "Nobody left during a round."
    return "How many participants of a host left, and in which phase."


def _dropout_list(view: StudyView) -> str:
    rows = [
        f"<tr><td>{number}</td><td>{_e(phase)}</td><td>{_e(people(members))}</td><td>{_e(reason)}</td></tr>"
        for number, phase, reason, members in view.dropout_groups()
    ]
    rows += [
        f"<tr><td>{end.round}</td><td>{_e(end.phase)}</td><td>attempt {end.attempt} aborted: {end.received} "
        f"answered, {end.needed} needed; nothing was revealed</td><td>{_e(end.reason)}</td></tr>"
        for end in view.aborted
    ]
    if not rows:
        return ""
    rows.sort(key=lambda row: int(row[8 : row.index("</td>")]))
    return (
        '<table class="words"><thead><tr><th>Round</th><th>Phase</th><th>Who</th><th>Reason</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _phase_caption(view: StudyView) -> str:
    slowest = max(PHASES, key=lambda name: sum(done.phase_seconds.get(name, 0.0) for done in view.rounds))
    if not view.rounds:
        return "No round has ended yet."
    if slowest == "MaskedInputCollection":
        return "MaskedInputCollection takes longest; local training is part of it."
    return f"{slowest} takes longest. Local training is part of MaskedInputCollection."


def _cell(figure: float | None) -> str:
    return "–" if figure is None else f"{figure:.3f}"


def _rounds(view: StudyView) -> str:
    judged = not view.seeks_statistic
    single = len(values_of(view.released)) == 1
    lines = []
    for done in view.rounds:
        cells = [
            str(done.round) + (f" <small>attempt {done.attempt}</small>" if done.attempt > 1 else ""),
            str(done.sizes[0]),
            str(done.survivors),
            str(done.dropouts or "–"),
            *([_cell(done.accuracy), _cell(done.loss)] if judged else []),
            *([_e(in_words(values_of(done.released)[0])) if values_of(done.released) else "–"] if single else []),
            f"{done.epsilon_coordinator:.2f}",
            f"{done.epsilon_released:.2f}",
            f"{done.seconds:.1f}",
            f"{done.key_to_sum_s:.1f}",
            f"{done.upload_bytes / 1e3:.1f}",
            f"{done.download_bytes / 1e3:.1f}",
            f"{done.coordinator_rss_mb:.0f}",
        ]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    heads = [
        ("Round", ""),
        ("Began", "u1"),
        ("In the sum", "u3"),
        ("Left", ""),
        *([("Accuracy", ""), ("Loss", "nats")] if judged else []),
        *([(title(view.released), "rounds so far")] if single else []),
        ("Epsilon", "coordinator"),
        ("Epsilon", "released"),
        ("Took", "s"),
        ("Key to sum", "s"),
        ("Upload", "kB each"),
        ("Download", "kB each"),
        ("Coordinator", "MB resident"),
    ]
    head = "".join(f"<th>{_e(name)}<small>{_e(unit)}</small></th>" for name, unit in heads)
    return (
        f'<section><h2>Rounds</h2><div class="scroll"><table class="numbers"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div></section>"
    )


def _measured(extras: Extras) -> str:
    if not extras.measured:
        return ""
    rows = "".join(
        f"<tr><td>{_e(what)}</td><td>{_e(much)}</td><td>{_e(note)}</td></tr>" for what, much, note in extras.measured
    )
    return f'<section><h2>Measured beside it</h2><table class="words">{rows}</table></section>'


def _plan_section(view: StudyView, plan: Plan | None) -> str:
    if plan is None:
        return ""
    from sordino.planning.text import figures_of, plan_table

    rows = "".join(
        f"<tr><th>{_e(what)}</th><td>{_e(much)}</td><td>{_e(meaning)}</td></tr>"
        for what, much, meaning in plan_table(figures_of(plan))
    )
    return f'<section><h2>The plan</h2><table class="words plan">{rows}</table></section>'


def _promise(view: StudyView, extras: Extras, plan: Plan | None) -> str:
    promised = terms(view, plan)
    if extras.one_machine:
        promised.append(("On one machine", ONE_MACHINE))
    body = "".join(f"<div><dt>{_e(name)}</dt><dd>{_e(_unbroken(text))}</dd></div>" for name, text in promised)
    return f'<section><h2>What is promised</h2><dl class="terms">{body}</dl></section>'


def _unbroken(text: str) -> str:
    """Assumptions such as ``A = 2`` stay on one line."""
    return text.replace(" = ", "\u00a0=\u00a0")


def _footer(extras: Extras) -> str:
    made = time.strftime("%d %B %Y, %H:%M")
    ledger = f"<p>{_e(extras.ledger)}</p>" if extras.ledger else ""
    return f"<footer>{ledger}Written {_e(made)} by sordino {_e(VERSION)}.</footer>"
