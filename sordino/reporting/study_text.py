"""A study in words: figures, dropouts, a plain line for each event that matters, and the closing lines of `demo` and
`serve`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median_high
from typing import Any, Final

from learning.progress import JUDGED, Best
from runtime.text import counted, several
from server import events
from server.reasons import WORDS, class_of_abort, class_of_dropout
from server.study_view import StudyView, ending, waiting
from sordino.reporting.statistic_text import figure_words, headline, table_rows
from wire.guarantee import guarantee, unspent

BUDGET_SHARES: Final = (0.5, 0.75, 0.9, 0.95)
"""Of a budget: once that much is spent, a line says so."""
SERIOUS: Final = (
    events.PhaseEnded,  # which tells the dropouts
    events.AttemptAborted,
    events.ParticipantExcluded,
    events.ParticipantSetAside,
    events.SurvivorsFrozen,  # which tells of the budget
    events.StudyFinished,
)
REFUSED_BY_POLICY: Final = "refused: the round breaks its policy or budget"
"""The reason of a dropout that `server.attempt.attempt` gives for that code."""
_START_WHAT_IS_MISSING: Final = (
    "Start what is missing, or raise [deadlines] or max_attempts of [coordinator] in study.toml, then run the same "
    "command again; it continues there."
)
_NAMED: Final = 5
_VALUES: Final = 20
OfParticipant = (
    events.ParticipantDropped | events.ParticipantLost | events.ParticipantExcluded | events.ParticipantSetAside
)
DropoutGroup = tuple[int, str, str, list[events.ParticipantDropped]]
"""Round, phase, reason, and the dropouts of one attempt that have these in common."""


def dropout_groups(view: StudyView) -> list[DropoutGroup]:
    """Dropouts of one attempt, phase and reason together, oldest first: ten of one host are one line."""
    groups: dict[tuple[int, int, str, str], list[events.ParticipantDropped]] = {}
    for dropout in view.dropouts:
        key = (dropout.round, dropout.attempt, dropout.phase, dropout.reason)
        groups.setdefault(key, []).append(dropout)
    return [(key[0], key[2], key[3], members) for key, members in groups.items()]


def people(members: Sequence[OfParticipant]) -> str:
    """``participant 17 (host-02)`` for one, ``20 participants (host-03, host-07)`` for more."""
    if len(members) == 1:
        return f"participant {members[0].participant} ({members[0].host})"
    hosts = sorted({member.host for member in members})
    return f"{len(members)} participants ({several(hosts, 3)})"


def size_text(count: float) -> str:
    """Bytes for people: ``812 B``, ``3.1 kB``, ``1.20 MB``."""
    if count < 1000:
        return f"{count:.0f} B"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.2f} MB"


def with_error(figure: float, stderr: float) -> str:
    """``0.710 ± 0.02``; without an error where there is none."""
    return f"{figure:.3f} ± {stderr:.2g}" if stderr else f"{figure:.3f}"


def reported_figures(reported: Mapping[str, float]) -> list[tuple[str, str]]:
    """(accuracy or loss, figure with its error) as participants report them, the more telling first."""
    return [(name, with_error(reported[name], reported[f"{name}_stderr"])) for name in JUDGED if name in reported]


def reported_text(reported: Mapping[str, float]) -> str:
    """``at participants before it: accuracy 0.710 ± 0.02``; empty where none report."""
    found = ", ".join(" ".join(one) for one in reported_figures(reported))
    return f"at participants before it: {found}" if found else ""


def best_text(best: Best) -> str:
    """``after round 7: accuracy 0.710 ± 0.02``."""
    return f"after round {best.round}: {best.name} {with_error(best.figure, best.stderr)}"


class PlainLines:
    """Plain lines for events, where there is no terminal for a panel."""

    def __init__(self, view: StudyView, *, names: bool = True) -> None:
        """
        Args:
            view: that each event is applied to before its lines are asked for.
            names: of hosts, numbers of participants and reasons in full; else counts and classes of reasons.
        """
        self._view, self._names = view, names
        self._lost: dict[str, list[events.ParticipantLost]] = {}  # by reason, not told yet
        self._told_share = 0.0  # of the budget

    def of(self, event: events.Event, *, serious: bool = False) -> list[str]:
        """Lines for an event; none for those that say little. ``serious``: only losses, aborts, exclusions, the budget.

        Dropouts are reported together when their phase ends, and sessions that end with the next other event: a lost
        host is one line, not one for each participant.
        """
        if isinstance(event, events.ParticipantLost):
            if self._view.finished is None and event.reason != events.RESTING:
                self._lost.setdefault(event.reason, []).append(event)
            return []
        if isinstance(event, events.ParticipantDropped):
            return []
        lost, self._lost = self._lost, {}
        return [
            *(f"connection lost: {self._who_and_why(members, reason)}" for reason, members in lost.items()),
            *(self._of_other(event) if isinstance(event, SERIOUS) or not serious else ()),
        ]

    def _of_other(self, event: events.Event) -> list[str]:
        view = self._view
        match event:
            case events.StudyStarted():
                return self._start(event)
            case events.RosterAdopted():
                changes = {"joined": event.joined, "left": event.left}
                members = counted(event.participants, "participant")
                changed = ", ".join(f"{len(numbers)} {what}" for what, numbers in changes.items() if numbers)
                return [f"version {event.version} of the roster: {members}, {changed}"]
            case events.WaitingForParticipants() if event.received < event.needed:  # else only for a moment
                longest = f"; this attempt waits for {event.left_s:.0f} s" if event.left_s else ""
                return [f"waiting for participants: {event.received} connected, {event.needed} needed{longest}"]
            case events.WaitingForEnrolment():
                return [waiting(view)] if event.first else []
            case events.WaitingForAuthority():
                return [waiting(view)]
            case events.Pausing():
                return [f"the next round in {event.left_s:.0f} s"]
            case events.AttemptStarted():
                again = f", attempt {event.attempt}" if event.attempt > 1 else ""
                connected = counted(len(view.connected), "participant")
                return [f"round {event.round} of {view.started.rounds}{again}: {connected} connected"]
            case events.AttemptResumed():
                return [f"round {event.round}: attempt {event.attempt} goes on where it was cut off"]
            case events.PhaseEnded():
                return self._dropouts(event.phase)
            case events.AttemptAborted():
                reason = event.reason if self._names else WORDS[class_of_abort(event.reason)]
                stated = event.needed and f"{event.needed} needed" in reason  # by the reason itself
                counts = f" ({event.received} answered, {event.needed} needed)" if event.needed and not stated else ""
                return [
                    # A phase that ended with too few has reported them when it ended.
                    *([] if event.phase in view.current.phase_seconds else self._dropouts(event.phase)),
                    f"round {event.round}, {event.phase}: attempt {event.attempt} aborted: {reason}{counts}",
                ]
            case events.RoundCompleted():
                accuracy = "" if event.accuracy is None else f"accuracy {event.accuracy:.3f}"
                found = [f"sum of {event.u3}", accuracy, headline(event.released)]
                found += [f"{name} {value}" for name, value in figure_words(event.figures)]
                found.append(reported_text(event.reported))
                return [
                    f"round {event.round}: {', '.join(part for part in found if part)}, epsilon_coordinator "
                    f"{event.epsilon_coordinator:.2f}, epsilon_released {event.epsilon_released:.2f}, "
                    f"{event.seconds:.1f} s"
                ]
            case events.ParticipantExcluded():
                return [f"excluded for good: {self._who_and_why([event], event.reason)}"]
            case events.ParticipantSetAside():
                return [f"set aside for now: {self._who_and_why([event], event.reason)}"]
            case events.SurvivorsFrozen():
                return self._budget()
            case events.StudyFinished():
                text = ending(view)
                return [text[:1].lower() + text[1:]]
        return []

    def _start(self, event: events.StudyStarted) -> list[str]:
        view, holds = self._view, guarantee(event.plan)
        return [
            f"study {event.study}: {event.task}, {counted(event.participants, 'participant')}, "
            f"{counted(event.rounds, 'round')}, epsilon at most {event.epsilon_target:g} at delta {event.delta:g}; "
            f"listening on {event.address}" + (f", page on {event.page}" if event.page else ""),
            *([f"{event.plan['mechanism']}: {holds}"] if holds else []),
            *([f"going on after round {view.completed}"] if view.completed else []),
        ]

    def _dropouts(self, phase: str) -> list[str]:
        number, attempt = self._view.round, self._view.attempt
        return [
            f"round {number}, {phase}: dropped {self._who_and_why(members, reason)}"
            for round_, its_phase, reason, members in dropout_groups(self._view)
            if (round_, its_phase, members[-1].attempt) == (number, phase, attempt)
        ]

    def _budget(self) -> list[str]:
        view, budget = self._view, self._view.started.epsilon_target
        share = view.epsilon_coordinator / budget if budget else 0.0
        reached = max((one for one in BUDGET_SHARES if one <= share), default=0.0)
        if reached <= self._told_share:
            return []
        self._told_share = reached
        return [
            f"budget: {100 * share:.0f} % is spent, epsilon_coordinator {view.epsilon_coordinator:.2f} of {budget:g}"
        ]

    def _who_and_why(self, members: Sequence[OfParticipant], reason: str) -> str:
        if self._names:
            return f"{people(members)}: {reason}"
        return f"{counted(len(members), 'participant')}: {WORDS[class_of_dropout(reason)]}"


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


def _remedy(view: StudyView, aborted: Sequence[events.AttemptAborted]) -> str:
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
