"""What a study tells readers outside: one JSON snapshot, for the live page, its stream and ``sordino status``.

Counts, and names that the study's owner chose. Numbers of participants, hosts and reasons in full only where the
operator says so: as metrics, the feed may reach readers that the journal must not.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from mechanisms.plan import Plan
from runtime import VERSION
from runtime.text import counted, duration, finite, minute, printable
from secagg.messages import PHASES
from server import events
from server.reasons import WORDS, class_of_dropout
from server.study_view import StudyView, waiting
from sordino.reporting.report_terms import mechanism_rows, outcome, plan_of, terms
from sordino.reporting.statistic_text import figure_words, headline, table_rows
from sordino.reporting.study_text import PlainLines, reported_figures, size_text
from wire.guarantee import guarantee
from wire.records.transcript_files import FOLDER, PUBLISHED, file_name

MOST_ROUNDS: Final = 256
"""Points of a curve. Where there are more, every second one of the older is left out."""
_ATTEMPTS: Final = 16
_LINES: Final = 40
_TRANSCRIPTS: Final = 24
_VALUES: Final = 64
_PACED: Final = 20
Snapshot = dict[str, Any]


class RoundPoint(NamedTuple):
    """A completed round, as the curves show it."""

    round: int
    seconds: float
    u3: int  # updates in the sum
    left: int  # dropouts
    accuracy: float | None
    loss: float | None
    figure: float | None  # the first of ``figures``, where there is no accuracy
    reported: float | None  # accuracy at the participants, of the model before this round
    without_noise: float | None  # accuracy of the same training without noise
    epsilon_coordinator: float  # of all rounds so far
    epsilon_released: float
    upload: int  # bytes of a participant
    download: int


class StudyFeed:
    """A study folded from its events; memory doesn't grow with its length.

    Attributes:
        view: the study now, without its history.
    """

    def __init__(self, state: Path | None = None, *, names: bool = False) -> None:
        """
        Args:
            state: the coordinator's journal, beside which transcripts are kept.
            names: show hosts, numbers of participants, reasons in full, and transcripts that aren't published.
        """
        self.view, self.names = StudyView(history=False), names
        self._without_noise: tuple[float, ...] = ()
        self._state = state
        self._plain = PlainLines(self.view, names=names)
        self._points: list[RoundPoint] = []
        self._attempts: deque[Snapshot] = deque(maxlen=_ATTEMPTS)
        self._lines: deque[tuple[float, str]] = deque(maxlen=_LINES)
        self._dropouts: Counter[tuple[str, str]] = Counter()
        self._aborted = 0
        self._ended_at: deque[float] = deque(maxlen=_PACED + 1)
        self._sums: tuple[int, ...] = ()  # the fewest and the most updates in a sum
        self._wrapped: list[tuple[float, int]] = []  # the worst one
        self._bytes = 0
        self._plan: Plan | None = None
        self._steady: Snapshot | None = None  # what changes with a round only

    # ------------------------------------------------------------ events

    def apply(self, event: events.Event) -> None:
        """Take the next event, as the coordinator wrote it."""
        self.view.apply(event)
        self._lines.extend((event.at, printable(line)) for line in self._plain.of(event))
        match event:
            case events.StudyStarted():
                self._plan, self._steady = plan_of(self.view), None
            case events.ParticipantDropped():
                why = event.reason if self.names else WORDS[class_of_dropout(event.reason)]
                self._dropouts[event.phase, why] += 1
            case events.AttemptAborted():
                self._aborted += 1
                self._attempt(event, "aborted in " + event.phase)
            case events.RoundCompleted():
                self._completed(event)

    def _attempt(self, event: events.AttemptEvent, outcome: str) -> None:
        current = self.view.current
        seconds = {phase: current.phase_seconds.get(phase, 0.0) for phase in PHASES}
        began = {"round": event.round, "attempt": event.attempt, "cohort": current.cohort}
        left = len(current.dropped)
        self._attempts.append({**began, "left": left, "outcome": outcome, "phase_seconds": seconds})
        self._steady = None

    def _completed(self, event: events.RoundCompleted) -> None:
        self._attempt(event, f"sum of {event.u3}")
        self._attempts[-1]["phase_seconds"].update(event.phase_seconds)
        self._points.append(
            RoundPoint(
                round=event.round,
                seconds=event.seconds,
                u3=event.u3,
                left=event.dropouts,
                accuracy=event.accuracy,
                loss=event.loss,
                figure=next(iter(event.figures.values()), None) if event.accuracy is None else None,
                reported=event.reported.get("accuracy"),
                without_noise=None,
                epsilon_coordinator=event.epsilon_coordinator,
                epsilon_released=event.epsilon_released,
                upload=event.upload_bytes,
                download=event.download_bytes,
            )
        )
        if len(self._points) > MOST_ROUNDS:
            self._points = [*self._points[: MOST_ROUNDS // 2 : 2], *self._points[MOST_ROUNDS // 2 :]]
        self._ended_at.append(event.at)
        self._sums = (min((event.u3, *self._sums)), max((event.u3, *self._sums)))
        if event.wrapped_share is not None:
            self._wrapped = [max([*self._wrapped, (event.wrapped_share, event.round)], key=lambda one: one[0])]
        self._bytes += event.u1 * (event.upload_bytes + event.download_bytes)

    def compare(self, without_noise: Sequence[float]) -> None:
        """Take the accuracy of the same training without noise, by round, as far as it is known."""
        if len(without_noise) != len(self._without_noise):
            self._without_noise, self._steady = tuple(without_noise), None

    # ------------------------------------------------------------ what is shown

    def snapshot(self, now: float) -> Snapshot:
        """All sections by name; ``now`` in seconds since 1970. Numbers that aren't finite are None."""
        if self._steady is None:
            self._steady = {
                "study": self._study(),
                "curves": self._curves(),
                "attempts": list(self._attempts),
                "transcripts": self._transcripts(),
            }
        moving = {
            "now": self._now(now),
            "participants": self._participants(),
            "privacy": self._privacy(),
            "found": self._found(),
            "traffic": self._traffic(),
            "dropouts": self._left(),
            "log": [{"at": at, "line": line} for at, line in self._lines],
        }
        return {name: finite(section) for name, section in {**self._steady, **moving}.items()}

    def _study(self) -> Snapshot:
        view, started = self.view, self.view.started
        rows = terms(view, self._plan) if started.study else []
        if self._plan is not None:
            rows = mechanism_rows(view, self._plan, self._wrapped) + rows
        return {
            "name": started.study,
            "task": started.task,
            "rounds": started.rounds,
            "mechanism": str(started.plan.get("mechanism", "")),
            "guarantee": guarantee(started.plan),
            "began_at": view.started_at,
            "one_machine": started.one_machine,
            "summary": outcome(view, self._sums) if self._sums else "No round has ended yet.",
            "terms": rows,
            "version": VERSION,
        }

    def _now(self, now: float) -> Snapshot:
        view = self.view
        ended = view.current.phase_seconds if view.current.under_way else {}
        return {
            "state": view.state,
            "over": None if view.finished is None else view.finished.reason,
            "waiting": waiting(view, now),
            "at": view.last_at,
            "round": view.round,
            "attempt": view.attempt,
            "completed": view.completed,
            "received": view.wait.received,
            "needed": view.wait.needed,
            "expected": view.wait.expected,
            "left_s": round(view.wait.seconds_left(now)) if view.wait.ends_at else None,
            "phases": [{"name": name, "seconds": ended.get(name), "now": view.phase == name} for name in PHASES],
        }

    def _participants(self) -> Snapshot:
        view = self.view
        dropped = len(view.dropped_now & view.connected)
        counts: Snapshot = {
            "roster": view.participants,
            "connected": len(view.connected),
            "attempt": view.current.remaining if view.current.under_way else 0,
            "dropped": dropped,
            "waited_for": view.wait.missing,
            "away": len(view.lost),
            "resting": len(view.resting),
            "unseen": max(0, view.participants - len(view.hosts)),
            "excluded": len(view.excluded),
            "set_aside": len(view.set_aside),
        }
        if self.names:
            states = {host: Counter(map(view.state_of, view.members(host))) for host in view.hosts_in_order()}
            counts["hosts"] = [{"host": printable(host), **found} for host, found in states.items()]
        return counts

    def _privacy(self) -> Snapshot:
        view, plan = self.view, self._plan
        target = view.started.epsilon_target
        return {
            "epsilon_coordinator": view.epsilon_coordinator,
            "epsilon_released": view.epsilon_released,
            "budget_coordinator": target if plan is None else plan.budget_coordinator,
            "budget_released": target if plan is None else plan.budget_released,
            "delta": view.started.delta,
            "projected": self._projected(),
        }

    def _projected(self) -> str:
        """When the rounds end, and what will be spent then; empty before the second round and after the end."""
        view, at = self.view, list(self._ended_at)
        left = view.started.rounds - view.completed
        if view.finished is not None or left <= 0 or len(at) < 2:
            return ""
        pace_s = median(later - earlier for earlier, later in pairwise(at))
        pace = duration(pace_s)
        text = f"{counted(left, 'round')} left, about {duration(left * pace_s)} at {pace} a round"
        if self._plan is not None:
            text += f"; epsilon_coordinator is then at most {self._plan.epsilon_coordinator:.2f}"
        return text

    def _found(self) -> list[tuple[str, str, str]]:
        """(name, figure, note) of what the study has found so far."""
        view = self.view
        rows = [] if view.accuracy is None else [("Accuracy", f"{view.accuracy:.3f}", self._beside())]
        if view.rounds and view.rounds[-1].loss is not None and view.accuracy is not None:
            rows.append(("Loss", f"{view.rounds[-1].loss:.3f}", "on held-out data"))
        where = f"at participants, after round {view.completed - 1}"
        rows += [(name.capitalize(), figure, where) for name, figure in reported_figures(view.reported)]
        rows += [(name.capitalize(), figure, "on held-out data") for name, figure in figure_words(view.errors)]
        values = table_rows(view.released)
        rows += values[:_VALUES]
        if len(values) > _VALUES:
            rows.append(("", f"{len(values) - _VALUES} more", "in the report"))
        if not values and headline(view.released):
            rows.append(("Found", headline(view.released), ""))
        return [(printable(name), printable(figure), printable(note)) for name, figure, note in rows]

    def _beside(self) -> str:
        reached = min(self.view.completed, len(self._without_noise))
        return f"{self._without_noise[reached - 1]:.3f} without noise" if reached else "on held-out data"

    def _traffic(self) -> list[tuple[str, str, str]]:
        last = self.view.rounds[-1] if self.view.rounds else None
        if last is None:
            return []
        planned = self.view.started.planned_upload_bytes
        note = f"a participant in the last round; planned {size_text(planned)}" if planned else "a participant"
        return [
            ("Upload", size_text(last.upload_bytes), note),
            ("Download", size_text(last.download_bytes), "a participant in the last round"),
            ("All rounds", size_text(self._bytes), "both ways, all participants"),
            ("Last round", f"{last.seconds:.1f} s", f"{last.key_to_sum_s:.1f} s from the first key to the sum"),
        ]

    def _left(self) -> Snapshot:
        order = {phase: number for number, phase in enumerate(PHASES)}
        found = sorted(self._dropouts.items(), key=lambda one: (order.get(one[0][0], 9), one))
        rows = [{"phase": phase, "reason": printable(why), "count": count} for (phase, why), count in found]
        return {"aborted": self._aborted, "total": self._dropouts.total(), "by_phase_and_reason": rows}

    def _curves(self) -> dict[str, list[float | None]]:
        """The fields of `RoundPoint` as columns."""
        beside = dict(enumerate(self._without_noise, 1))
        points = [point._replace(without_noise=beside.get(point.round)) for point in self._points]
        return {name: [getattr(point, name) for point in points] for name in RoundPoint._fields}

    def _transcripts(self) -> Snapshot:
        done = self.view.completed
        names = [file_name(number) for number in range(done, max(0, done - _TRANSCRIPTS), -1)]
        kept = self._state is not None and self._state.with_name(FOLDER).is_dir()
        return {"kept": kept, "files": [name for name in names if self.transcript(name) is not None]}

    def transcript(self, name: str) -> Path | None:
        """The file of a completed round that may be downloaded; None where there is none of this name.

        Transcripts name who took part: all that are kept where names are shown, else the published ones.
        """
        number = name.removeprefix("round-").removesuffix(".transcript")
        if self._state is None or not number.isdecimal() or int(number) > self.view.completed:
            return None
        path = self._state.with_name(FOLDER if self.names else PUBLISHED) / file_name(int(number))
        return path if path.name == name and path.is_file() else None


def status_lines(shown: Snapshot, running: bool) -> list[str]:
    """A snapshot as lines for a terminal. ``running``: whether its coordinator does."""
    study, now, who, privacy, left = (shown[name] for name in ("study", "now", "participants", "privacy", "dropouts"))
    if not study["name"]:
        return [printable(now["waiting"])]
    waits = now["waiting"]
    if not running and now["over"] is None:
        place = f"in round {now['round']}, {now['state']}" if now["round"] else "before the first round"
        waits = f"The coordinator ended at {minute(now['at'])}, {place}; `sordino serve` goes on there"
    rare = [state for state in ("resting", "excluded", "set_aside") if who[state]]
    states = [f"{who[one]} {one.replace('_', ' ')}" for one in ("connected", "dropped", "away", "unseen", *rare)]
    gone = [f"{one['count']} in {one['phase']} ({one['reason']})" for one in left["by_phase_and_reason"]]
    rows = [
        ("study", f"{study['name']}: {study['task']}, {counted(who['roster'], 'participant')}"),
        ("now", waits),
        ("rounds", f"{now['completed']} of {study['rounds']}"),
        *(("", part) for part in privacy["projected"].split("; ")),
        ("participants", ", ".join(states)),
        *((name.lower(), f"{figure}, {note}" if note else figure) for name, figure, note in shown["found"]),
        ("epsilon_coordinator", _spent(privacy, "coordinator")),
        ("epsilon_released", f"{_spent(privacy, 'released')}, at delta {privacy['delta']:g}"),
        ("", study["guarantee"]),
        ("dropouts", f"{', '.join(gone) or 'none'}, of all attempts; {counted(left['aborted'], 'attempt')} aborted"),
        *((name.lower(), f"{figure}, {note}") for name, figure, note in shown["traffic"]),
    ]
    # From a page on another machine: it must not control this terminal.
    return [printable(f"{name:<20}{text}").replace("\n", " ").rstrip() for name, text in rows if text]


def _spent(privacy: Snapshot, reader: str) -> str:
    budget = privacy[f"budget_{reader}"]
    return f"{privacy[f'epsilon_{reader}']:.2f}" + ("" if budget is None else f" of {budget:.4g}")
