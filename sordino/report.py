"""``report.html``: one study on one page that needs no network, with what its figures mean in plain words."""

from __future__ import annotations

import html
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sordino
from sordino.exit_codes import ExitCode, Failure
from sordino.local_study import ONE_MACHINE
from sordino.panel import size_text
from sordino.progress import PHASES, StudyView, people

if TYPE_CHECKING:
    from mechanisms.plan import Plan

BASELINE_FILE = "without_noise.json"
MEASURED_FILE = "measured.json"


@dataclass(frozen=True, kw_only=True)
class Extras:
    """What the coordinator's events don't hold.

    Attributes:
        without_noise: accuracy of the same training without noise, round by round; empty when it wasn't run.
        measured: lines (what, how much, note) measured by the demo beside the coordinator's own figures.
        one_machine: all parts ran on one machine.
    """

    without_noise: tuple[float, ...] = ()
    measured: tuple[tuple[str, str, str], ...] = field(default=())
    one_machine: bool = False


def write_report(directory: Path, output: Path | None = None) -> tuple[Path, StudyView]:
    """Read a study's events and write its report.

    Args:
        directory: the study's folder or its ``study.toml``.
        output: where to write; None is ``report.html`` beside ``study.toml``.

    Raises:
        Failure: nothing recorded yet, or nowhere to write.
    """
    from server.configuration import load
    from server.journal import read_events

    configuration = load(directory)
    home = directory if directory.is_dir() else directory.parent
    state = configuration.coordinator.state
    events = read_events(state) if state.is_file() else []
    if not events:
        raise Failure(ExitCode.INPUT, f"{state}: nothing is recorded yet. Run `sordino serve {home}`, then ask again.")
    view = StudyView().apply_all(events)
    extras = read_extras(home, one_machine=configuration.coordinator.one_machine)
    path = output if output is not None else home / "report.html"
    path.write_text(render(view, extras), encoding="utf-8")
    return path, view


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
    from sordino import figures

    plan = _plan_of(view)
    title = f"{view.study or 'Study'}: report"
    parts = [
        _header(view),
        _tiles(view, extras),
        _summary(view, extras, plan),
        '<section class="pair">',
        _figure(
            "Accuracy",
            "On held-out data at the coordinator.",
            figures.accuracy_figure(view, extras.without_noise),
        ),
        _figure("Privacy spent", _epsilon_caption(view), figures.epsilon_figure(view)),
        "</section>",
        _figure("Dropouts", _dropout_caption(view), figures.dropout_figure(view), wide=True),
        _dropout_list(view),
        _figure("Phase times", _phase_caption(view), figures.phase_figure(view), wide=True),
        _rounds(view),
        _measured(extras),
        _plan_section(view, plan),
        _promise(view, extras, plan),
        _footer(),
    ]
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{_e(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<style>\n{_STYLE}</style>\n</head>\n<body>\n<main>\n" + "\n".join(parts) + "\n</main>\n</body>\n</html>\n"
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
    facts = [view.task, f"{view.participants} participants", partition, when]
    return (
        f'<header><p class="kind">Sordino study report</p><h1>{_e(view.study)}</h1>'
        f'<p class="facts">{" &middot; ".join(_e(fact) for fact in facts if fact)}</p></header>'
    )


def _tiles(view: StudyView, extras: Extras) -> str:
    reached = view.accuracy
    beside = f"{extras.without_noise[-1]:.3f} without noise" if extras.without_noise else "on held-out data"
    lost = len(view.dropouts)
    last = view.rounds[-1] if view.rounds else None
    tiles = [
        ("Accuracy", f"{reached:.3f}" if reached is not None else "–", beside),
        (
            "Epsilon",
            f"{view.epsilon_coordinator:.2f}",
            f"of {view.epsilon_target:g}, at delta {view.delta:g}",
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


def _aborted_words(view: StudyView) -> str:
    count = len(view.aborted)
    return f"{count} {'attempt' if count == 1 else 'attempts'} aborted" if count else ""


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else 0.0


def _summary(view: StudyView, extras: Extras, plan: Plan | None) -> str:
    finished = view.finished
    if finished is None:
        ending = "The study has not finished; this is its state so far."
    elif finished.get("reason") == "rounds done":
        ending = f"All {view.planned_rounds} rounds ended in a sum."
    elif finished.get("reason") == "budget reached":
        ending = f"The privacy budget was reached after {len(view.rounds)} of {view.planned_rounds} rounds."
    else:
        reason = finished.get("reason", "")
        ending = f"The study ended after {len(view.rounds)} of {view.planned_rounds} rounds: {reason}."
    text = [ending]
    if view.rounds:
        fewest = min(done.survivors for done in view.rounds)
        most = max(done.survivors for done in view.rounds)
        sums = f"between {fewest} and {most}" if fewest != most else f"{most}"
        text.append(
            f"In each round the coordinator learned one noisy sum over {sums} updates, and no single update. "
            f"What all it received can tell about one participant's data, over all rounds, is bounded by "
            f"epsilon {view.epsilon_coordinator:.2f} at delta {view.delta:g}."
        )
    if extras.one_machine:
        text.append(ONE_MACHINE)
    return f'<p class="lead">{_e(" ".join(text))}</p>'


def _figure(title: str, caption: str, svg: str, *, wide: bool = False) -> str:
    body = f'<div class="scroll wide">{svg}</div>' if wide else svg
    return f"<figure><h2>{_e(title)}</h2><p>{_e(caption)}</p>{body}</figure>"


def _epsilon_caption(view: StudyView) -> str:
    if abs(view.epsilon_coordinator - view.epsilon_released) < 5e-3:
        return "Nobody is sampled, so coordinator and released are the same."
    return "Coordinator: who sees every sum. Released: who sees the models only."


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


def _rounds(view: StudyView) -> str:
    rows = []
    for done in view.rounds:
        cells = [
            str(done.round) + (f" <small>attempt {done.attempt}</small>" if done.attempt > 1 else ""),
            str(done.sizes[0]),
            str(done.survivors),
            str(done.dropouts or "–"),
            f"{done.accuracy:.3f}",
            f"{done.loss:.3f}",
            f"{done.epsilon_coordinator:.2f}",
            f"{done.epsilon_released:.2f}",
            f"{done.seconds:.1f}",
            f"{done.key_to_sum_s:.1f}",
            f"{done.upload_bytes / 1e3:.1f}",
            f"{done.download_bytes / 1e3:.1f}",
            f"{done.coordinator_rss_mb:.0f}",
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    heads = [
        ("Round", ""),
        ("Began", "u1"),
        ("In the sum", "u3"),
        ("Left", ""),
        ("Accuracy", ""),
        ("Loss", "nats"),
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
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
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
    from sordino.plan_text import figures_of, plan_table

    rows = "".join(
        f"<tr><th>{_e(what)}</th><td>{_e(much)}</td><td>{_e(meaning)}</td></tr>"
        for what, much, meaning in plan_table(figures_of(plan))
    )
    return f'<section><h2>The plan</h2><table class="words plan">{rows}</table></section>'


def _promise(view: StudyView, extras: Extras, plan: Plan | None) -> str:
    facts: Mapping[str, Any] = view.plan
    colluders = facts.get("colluders", "A")
    survivors = facts.get("min_survivors", "min_survivors")
    h_min = plan.h_min if plan is not None else "h_min"
    terms = [
        (
            "What the coordinator sees",
            f"One sum a round, over at least {survivors} updates, with noise in it that no single party knows. If "
            "it lies about who survived, about keys or about the model, honest participants stop before they "
            "reveal anything that would open a second sum.",
        ),
        (
            "Who is assumed to collude",
            f"Up to A = {colluders} participants, together with the coordinator. Their noise is not counted: "
            f"every sum holds the noise of at least h_min = {h_min} honest participants. A is an assumption, not "
            "something that is measured.",
        ),
        (
            "What epsilon bounds",
            "Adjacency is zero-out: a participant's whole update in a round against an update of zeros, her "
            "noise present either way. It hides what her data says, in all rounds together. It does not hide "
            "that she took part, and telling two arbitrary updates apart has twice the sensitivity.",
        ),
        (
            "How it is charged",
            "A round is charged when its survivors are fixed, at what its sum really costs; an attempt that then "
            "fails stays charged. The figure shown is for the participant with the highest cost, at a Renyi "
            "order fixed before the study began; the first round carries the price of delta, so it looks dear. "
            "The study stops before a round that would exceed the budget.",
        ),
        (
            f"What delta {view.delta:g} means",
            "The chance with which the bound epsilon may fail altogether. It should be far below one over the "
            "number of participants.",
        ),
        (
            "What remains visible",
            "Who takes part, when messages arrive, and that somebody's task failed. Losses, norms and numbers of "
            "examples never leave a participant in the clear. A cheating participant can shift the sum by any "
            "amount: inputs are not proved.",
        ),
    ]
    if extras.one_machine:
        terms.append(("On one machine", ONE_MACHINE))
    body = "".join(f"<div><dt>{_e(name)}</dt><dd>{_e(text)}</dd></div>" for name, text in terms)
    return f'<section><h2>What is promised</h2><dl class="terms">{body}</dl></section>'


def _footer() -> str:
    made = time.strftime("%d %B %Y, %H:%M")
    return f"<footer>Written {_e(made)} by sordino {_e(sordino.__version__)}.</footer>"


_STYLE = """\
:root {
  --page: #ffffff; --ink: #1c2126; --muted: #5d6771; --grid: #dfe3e7; --quiet: #e9edf0;
  --accent: #0b6e82; --warn: #b3491f;
  --phase-1: #8c9db5; --phase-2: #3f6fa3; --phase-3: #0b8a8f; --phase-4: #c99a2e; --phase-5: #a4527a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181b; --ink: #e4e8eb; --muted: #9aa5ae; --grid: #333b42; --quiet: #262d32;
    --accent: #4fb7ca; --warn: #e2875b;
    --phase-1: #8797ae; --phase-2: #5b8fc9; --phase-3: #2f9ea3; --phase-4: #c79b3b; --phase-5: #bb6c93;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", "Helvetica Neue", "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 3rem 1.5rem 4rem; }
h1 { font-size: 2.1rem; line-height: 1.15; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 1.15rem; margin: 0 0 0.15rem; }
.kind { margin: 0 0 0.2rem; color: var(--accent); font-weight: 600; font-size: 0.9rem; }
.facts { margin: 0.4rem 0 0; color: var(--muted); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.2rem, 1fr)); gap: 1.2rem 1.5rem;
  margin: 2rem 0 1.6rem; padding: 1.2rem 0; border-top: 1px solid var(--grid);
  border-bottom: 1px solid var(--grid); }
.tiles dt { color: var(--muted); font-size: 0.875rem; }
.tiles dd { margin: 0; }
.tiles b { display: block; font-size: 1.7rem; line-height: 1.25; font-weight: 600;
  font-variant-numeric: tabular-nums; }
.tiles span { color: var(--muted); font-size: 0.8rem; }
.lead { max-width: 46rem; margin: 0 0 2.4rem; }
section { margin: 2.6rem 0 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 2rem; margin: 0; }
figure { margin: 2.4rem 0 0; min-width: 0; }
.pair figure { margin: 0; }
figure p { margin: 0 0 0.6rem; color: var(--muted); font-size: 0.9rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font-family: inherit; }
table { border-collapse: collapse; width: 100%; font-size: 0.875rem; margin-top: 0.8rem; }
th, td { text-align: left; padding: 0.35rem 0.9rem 0.35rem 0; vertical-align: top;
  border-bottom: 1px solid var(--grid); }
th { font-weight: 600; }
thead th { color: var(--muted); font-weight: 500; vertical-align: bottom; }
small { display: block; font-size: 0.75rem; color: var(--muted); font-weight: 400; }
td small { display: inline; }
.numbers { font-variant-numeric: tabular-nums; }
.numbers th, .numbers td { text-align: right; padding: 0.3rem 0 0.3rem 0.8rem; white-space: nowrap; }
.numbers th:first-child, .numbers td:first-child { text-align: left; padding-left: 0; }
.scroll { overflow-x: auto; }
.wide svg { min-width: 40rem; overflow: hidden; }
.plan th, .plan td:nth-child(2) { white-space: nowrap; }
.plan td:last-child { color: var(--muted); }
.terms { margin: 0.6rem 0 0; }
.terms div { display: grid; grid-template-columns: 14rem 1fr; gap: 0 1.5rem; padding: 0.55rem 0;
  border-bottom: 1px solid var(--grid); }
.terms dt { font-weight: 600; }
.terms dd { margin: 0; }
footer { margin-top: 2.5rem; color: var(--muted); font-size: 0.85rem; }
@media (max-width: 40rem) {
  main { padding-top: 1.5rem; }
  .pair { grid-template-columns: 1fr; }
  .terms div { grid-template-columns: 1fr; }
}
@media print {
  :root { --page: #ffffff; --ink: #000000; --muted: #444444; --grid: #cccccc; --quiet: #e6e6e6;
    --accent: #0b6e82; --warn: #b3491f; }
  body { font-size: 11px; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  figure, tr, .terms div { break-inside: avoid; }
  .pair { grid-template-columns: 1fr 1fr; }
}
"""
