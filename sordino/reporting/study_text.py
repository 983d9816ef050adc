"""A study in words: figures, dropouts, and a plain line for each event that matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from learning.progress import JUDGED, Best
from runtime.text import counted, several
from server import events
from server.reasons import WORDS, class_of_abort, class_of_dropout
from server.study_view import StudyView, ending, waiting
from sordino.reporting.statistic_text import figure_words, headline
from wire.guarantee import guarantee

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
