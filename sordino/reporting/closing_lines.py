"""Closing lines of a study: the same figures and names for the demo and for `sordino serve`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median_high
from typing import Any, Final

from runtime.text import counted, several
from server.events import AttemptAborted
from server.study_view import StudyView
from sordino.reporting.statistic_text import figure_words, headline, table_rows
from sordino.reporting.study_text import best_text, reported_figures
from wire.guarantee import guarantee, unspent

REFUSED_BY_POLICY: Final = "refused: the round breaks its policy or budget"
"""The reason of a dropout that `server.attempt.attempt` gives for that code."""
_START_WHAT_IS_MISSING: Final = (
    "Start what is missing, or raise [deadlines] or max_attempts of [coordinator] in study.toml, then run the same "
    "command again; it continues there."
)
_NAMED: Final = 5
_VALUES: Final = 20


def dropout_words(dropouts: int, rounds: int, aborted: int) -> str:
    """How many participants left, each counted once in a round, in how many rounds, and what failed for it."""
    left = f"{counted(dropouts, 'participant')} in {counted(rounds, 'round')}" if dropouts else "none"
    return f"{left}, {counted(aborted, 'attempt')} aborted"


def epsilon_lines(
    coordinator: float,
    budget: float,
    released: float,
    delta: float,
    plan: Mapping[str, Any],
    *,
    all_rounds: bool = False,
) -> list[str]:
    """Both epsilons with the budget that they share, and under which condition they hold; ``plan`` as of `guarantee`.

    ``all_rounds``: the study had all its rounds; then the reason why less than the budget was spent is added.
    """
    line = f"epsilon_coordinator {coordinator:.2f} of {budget:g}, epsilon_released {released:.2f}, at delta {delta:g}"
    holds = guarantee(plan)
    lines = [f"{line},", f"{'':<20}{holds}"] if holds else [line]
    left = unspent(coordinator, budget, plan) if all_rounds else ""
    return [*lines, f"{'':<20}{left}"] if left else lines


def finding_lines(view: StudyView) -> list[str]:
    """What the study found so far: an accuracy, or the values of a statistic with their errors."""
    lines = [] if view.accuracy is None else [f"accuracy            {view.accuracy:.3f}"]
    said = ", ".join(" ".join(one) for one in reported_figures(view.reported))
    lines += [f"{'at participants':<20}{said}, after round {view.completed - 1}"] if said else []
    best = view.progress.best
    if best is not None and 0 < best.round < view.completed:
        lines.append(f"{'best model':<20}{best_text(best)}")
    found = table_rows(view.released)
    for name, number, error in found[:_VALUES]:
        lines.append(f"{name:<20}{number:>12} {error}".rstrip())
    if len(found) > _VALUES:
        lines.append(f"{'':<20}{len(found) - _VALUES} more in the report")
    if not found and headline(view.released):
        lines.append(f"{view.released.get('statistic', 'found'):<20}{headline(view.released)}")
    return lines + [f"{name:<23} {value}" for name, value in figure_words(view.errors)]


def closing_lines(view: StudyView, home: Path, state: Path) -> list[str]:
    """What ``sordino serve`` prints at its end, whether the study is finished or only stopped.

    ``home`` is the study's folder, as the user named it; ``state`` the coordinator's journal, beside which models are
    kept.
    """
    lines = [] if view.finished is not None else ["The coordinator ended early."]
    rounds = view.rounds
    if not rounds:
        return lines
    left = view.left_by_round()
    lines += [
        *finding_lines(view),
        *epsilon_lines(
            view.epsilon_coordinator,
            view.started.epsilon_target,
            view.epsilon_released,
            view.started.delta,
            view.started.plan,
            all_rounds=view.completed == view.started.rounds,
        ),
        f"rounds              {view.completed} of {view.started.rounds}, "
        f"{median_high([done.seconds for done in rounds]):.1f} s each",
        "dropouts            " + dropout_words(len(left), len({round_ for round_, _ in left}), len(view.aborted)),
        f"key to sum          {median_high([done.key_to_sum_s for done in rounds]):.2f} s, "
        f"of {rounds[-1].u3} in the last sum",
        f"upload              {median_high([done.upload_bytes for done in rounds]):,.0f} bytes a participant a round, "
        f"of it the vector {rounds[-1].vector_bytes:,.0f}",
    ]
    newest = newest_model(state)
    if newest is not None:
        here = Path.cwd()
        shown = newest.relative_to(here) if newest.is_relative_to(here) else newest
        lines.append(f"{'checkpoint' if view.seeks_statistic else 'model':<20}{shown}")
        if not view.seeks_statistic:
            lines.append(f"{'':<20}read it with sordino.load_model, see docs/your_own_model.md")
    return [*lines, f"report              sordino report {home}"]


def newest_model(state: Path) -> Path | None:
    """The file of the last model beside a coordinator's journal; None before the first."""
    models = (state.parent / "checkpoints").glob("round-*.safetensors")
    # By the round in the name: a copied folder has other file times, in any order.
    return max(models, key=lambda path: (len(path.name), path.name), default=None)


def why_stopped(view: StudyView) -> str:
    """What made the attempts of the last round fail since the coordinator started, and what to do about it."""
    aborted = [end for end in view.aborted if end.at >= view.started.at]
    if not aborted:
        return f"the study stopped: a round failed as often as it may. {_START_WHAT_IS_MISSING}"
    last = aborted[-1]
    return f"the study stopped: round {last.round}, {last.phase}: {last.reason}. {_remedy(view, aborted)}"


def _remedy(view: StudyView, aborted: Sequence[AttemptAborted]) -> str:
    round_ = aborted[-1].round
    attempts = {end.attempt for end in aborted if end.round == round_}
    refused: dict[tuple[int, str], set[int]] = {}
    for one in view.dropouts_of(round_):
        if one.reason == REFUSED_BY_POLICY and one.at >= view.started.at:
            refused.setdefault((one.participant, one.host), set()).add(one.attempt)
    if not refused:
        return _START_WHAT_IS_MISSING
    named = [f"{number} ({host})" for number, host in sorted(refused)]
    always = "all" if all(attempts <= of_one for of_one in refused.values()) else "some of"
    often = "the attempt" if len(attempts) == 1 else f"{always} {len(attempts)} attempts"
    whose, s = ("its", "") if len(named) == 1 else ("their", "s")
    return (
        f"Participant{s} {several(named, _NAMED)} refused by {whose} policy or budget in {often}. The reason is in "
        f"{whose} own log{s}. If it is a budget, serving again won't help; otherwise let more join, or serve again "
        "later."
    )
