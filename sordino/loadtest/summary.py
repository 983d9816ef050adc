"""What happened in a load test: events of the coordinator folded into rounds, and rounds into figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sordino.loadtest.options import LoadOptions
from sordino.loadtest.schedule import Drop
from sordino.plurals import counted
from sordino.progress import PHASES

UNSEEN: Final = {
    "unmasking": "at unmasking, which goes on once enough shares are there",
    "aborted": "left in a round that was aborted before they were noted",
    "next_round": "noticed only in the next round",
    "other_phase": "noted in another phase of the same round",
    "unnoted": "never noted",
}
"""Why the coordinator didn't note a planned dropout in its phase: JSON name -> words."""
BETWEEN: Final = "between phases"
"""Of a round's seconds what belongs to no phase: closing each one, journal, opening the sum, the new model."""


@dataclass(frozen=True)
class EndedRound:
    """One round that was begun and has ended, with a sum or without."""

    round: int
    attempt: int
    completed: bool
    reason: str
    """Why it aborted; empty for a round that ended in a sum."""
    seconds: float
    """From its start to the sum, or to its abort."""
    phase_seconds: Mapping[str, float]
    cohort: int
    """Participants that were connected when it began."""
    survivors: int
    """Inputs in the sum."""
    sum_ok: bool | None
    """Whether the sum is that of the survivors; None where there is none."""
    expected: Mapping[str, int]
    """Phase -> participants that were to leave in it, of those connected, where it was reached."""
    observed: Mapping[str, int]
    """Phase -> of these, how many the coordinator noted as dropouts in it."""
    late: int
    """Whose cut at the end of the attempt before was noticed only in this one, before its first message."""
    unplanned: int
    """Other dropouts that nobody planned."""
    upload_bytes: float = 0.0
    download_bytes: float = 0.0

    @property
    def between_s(self) -> float:
        return max(0.0, self.seconds - sum(self.phase_seconds.values()))

    def to_json(self) -> dict[str, Any]:
        """For result.json."""
        return {
            "round": self.round,
            "attempt": self.attempt,
            "completed": self.completed,
            "reason": self.reason,
            "seconds": round(self.seconds, 3),
            "phase_seconds": dict(self.phase_seconds),
            "cohort": self.cohort,
            "survivors": self.survivors,
            "sum_ok": self.sum_ok,
            "drops_expected": dict(self.expected),
            "drops_observed": dict(self.observed),
            "drops_late": self.late,
            "drops_unplanned": self.unplanned,
        }


SumCheck = Callable[[int, int, Sequence[int], str], bool]
"""(round, attempt, survivors, digest of the sum) -> whether that is the plain sum of the survivors."""


@dataclass
class Outcomes:
    """All rounds so far; `apply` takes the coordinator's events in order."""

    options: LoadOptions
    check: SumCheck
    rounds: list[EndedRound] = field(default_factory=list)
    drop_reasons: Counter[str] = field(default_factory=Counter)
    lags_ms: list[Mapping[str, float]] = field(default_factory=list)
    unseen: Counter[str] = field(default_factory=Counter)
    """Name in ``UNSEEN`` -> planned dropouts; together with those observed they are all that were expected."""
    vector_bytes: int = 0
    ended: str = ""
    """Why the study ended, once it has."""
    _connected: set[int] = field(default_factory=set)
    _present: frozenset[int] = frozenset()
    _began_at: float = 0.0
    _waiting_since: float = 0.0
    _planned: dict[int, Drop] = field(default_factory=dict)
    _planned_before: dict[int, Drop] = field(default_factory=dict)
    _phases: dict[str, float] = field(default_factory=dict)
    _reached: set[str] = field(default_factory=set)
    _dropped: dict[int, str] = field(default_factory=dict)
    _unseen_before: dict[int, str] = field(default_factory=dict)

    def apply(self, event: Mapping[str, Any]) -> EndedRound | None:
        """Take one event in; returns the round that it ended, if it ended one."""
        match event.get("kind"):
            case "participant_connected":
                self._connected.add(int(event["participant"]))
            case "participant_lost":
                self._connected.discard(int(event["participant"]))
            case "waiting_for_participants":
                self._waiting_since = self._waiting_since or float(event["at"])
            case "attempt_started":
                self._waiting_since = 0.0
                self._present = frozenset(self._connected)
                self._began_at = float(event["at"])
                self._planned_before = self._planned
                self._planned = self.options.drops(int(event["round"]), int(event["attempt"]))
                self._phases, self._reached, self._dropped = {}, set(), {}
            case "phase_started":
                self._reached.add(str(event["phase"]))
            case "phase_ended":
                self._phases[str(event["phase"])] = float(event["seconds"])
            case "participant_dropped":
                self._dropped[int(event["participant"])] = str(event["phase"])
                self.drop_reasons[f"{event['phase']}: {event['reason']}"] += 1
            case "round_completed":
                return self._completed(event)
            case "attempt_aborted":
                return self._aborted(event)
            case "study_finished":
                self.ended = str(event.get("reason", ""))
        return None

    def _completed(self, event: Mapping[str, Any]) -> EndedRound:
        survivors = [int(who) for who in event.get("survivors") or ()]
        # Whoever was to leave before its vector was whole can't be in the sum.
        gone = {who for who, drop in self._planned.items() if drop.phase in PHASES[:3]}
        right = gone.isdisjoint(survivors) and self.check(
            int(event["round"]), int(event["attempt"]), survivors, str(event.get("sum_sha256", ""))
        )
        self.vector_bytes = int(event.get("vector_bytes", 0))
        return self._end(
            event,
            completed=True,
            seconds=float(event["seconds"]),
            phase_seconds={str(name): float(s) for name, s in dict(event["phase_seconds"]).items()},
            survivors=len(survivors),
            sum_ok=right,
            upload_bytes=float(event.get("upload_bytes", 0.0)),
            download_bytes=float(event.get("download_bytes", 0.0)),
        )

    def _aborted(self, event: Mapping[str, Any]) -> EndedRound:
        if event.get("phase") == "Connecting":  # no attempt was started
            self._present, self._planned = frozenset(self._connected), {}
            self._began_at, self._waiting_since = self._waiting_since or float(event["at"]), 0.0
            self._phases, self._reached, self._dropped = {}, set(), {}
        return self._end(
            event,
            completed=False,
            reason=f"{event.get('phase')}: {event.get('reason')}",
            seconds=float(event["at"]) - self._began_at,
            phase_seconds=dict(self._phases),
            survivors=0,
            sum_ok=None,
        )

    def _end(self, event: Mapping[str, Any], *, reason: str = "", **values: Any) -> EndedRound:
        planned = {who: drop.phase for who, drop in self._planned.items() if who in self._present}
        expected = Counter(phase for phase in planned.values() if phase in self._reached)
        observed = Counter(phase for who, phase in self._dropped.items() if planned.get(who) == phase)
        others = [(who, phase) for who, phase in self._dropped.items() if planned.get(who) != phase]
        self._explain_unseen(planned, completed=bool(values["completed"]))
        late = sum(phase == PHASES[0] and who in self._planned_before for who, phase in others)
        ended = EndedRound(
            round=int(event["round"]),
            attempt=int(event["attempt"]),
            reason=reason,
            cohort=len(self._present),
            expected={phase: expected[phase] for phase in PHASES if expected[phase]},
            observed={phase: observed[phase] for phase in PHASES if observed[phase]},
            late=late,
            unplanned=len(others) - late,
            **values,
        )
        lag = event.get("loop_lag_ms")
        if lag:
            self.lags_ms.append(lag)
        self.rounds.append(ended)
        return ended

    def _explain_unseen(self, planned: Mapping[int, str], *, completed: bool) -> None:
        """Count this round's planned dropouts that weren't noted in their phase, each under one name."""
        for who, name in self._unseen_before.items():
            if self._dropped.get(who) == PHASES[0] != planned.get(who):
                self.unseen[name] -= 1
                self.unseen["next_round"] += 1
        self._unseen_before = {}
        for who, phase in planned.items():
            if phase not in self._reached or self._dropped.get(who) == phase:
                continue
            if who in self._dropped:
                self.unseen["other_phase"] += 1
                continue
            name = "aborted" if not completed else "unmasking" if phase == PHASES[-1] else "unnoted"
            self.unseen[name] += 1
            self._unseen_before[who] = name

    # ---- figures -------------------------------------------------------------------------------

    @property
    def completed(self) -> list[EndedRound]:
        return [one for one in self.rounds if one.completed]

    @property
    def aborted(self) -> list[EndedRound]:
        return [one for one in self.rounds if not one.completed]

    @property
    def reasons(self) -> dict[str, int]:
        """Why rounds aborted -> how many did."""
        return dict(Counter(one.reason for one in self.aborted).most_common())

    def lag_ms(self) -> dict[str, float] | None:
        """Of the coordinator's event loop: the median round's median, the worst round's p99, and the longest."""
        if not self.lags_ms:
            return None
        return {
            "p50": percentile([lag["p50"] for lag in self.lags_ms], 0.5),
            "p99": max(lag["p99"] for lag in self.lags_ms),
            "max": max(lag["max"] for lag in self.lags_ms),
        }

    def figures(self) -> dict[str, Any]:
        """All that follows from events, under stable JSON names."""
        done = self.completed
        seconds = [one.seconds for one in done]
        times = {name: [one.phase_seconds.get(name, 0.0) for one in done] for name in PHASES}
        times[BETWEEN] = [one.between_s for one in done]
        return {
            "rounds_completed": len(done),
            "rounds_aborted": len(self.aborted),
            "sums_ok": sum(one.sum_ok is True for one in done),
            "sums_wrong": [one.round for one in done if not one.sum_ok],
            "round_s": spread(seconds, (0.5, 0.95)) | {"max": _rounded(max(seconds, default=None))},
            "phase_s": {name: spread(values, (0.5, 0.95)) for name, values in times.items()},
            "loop_lag_ms": self.lag_ms(),
            "upload_bytes": _mean([one.upload_bytes for one in done]),
            "download_bytes": _mean([one.download_bytes for one in done]),
            "vector_bytes": self.vector_bytes,
            "reasons": self.reasons,
            "drops": {
                "expected": sum(sum(one.expected.values()) for one in self.rounds),
                "observed": sum(sum(one.observed.values()) for one in self.rounds),
                "late": sum(one.late for one in self.rounds),
                "unplanned": sum(one.unplanned for one in self.rounds),
                "unseen": {name: self.unseen[name] for name in UNSEEN if self.unseen[name]},
                "expected_by_phase": _added([one.expected for one in self.rounds]),
                "observed_by_phase": _added([one.observed for one in self.rounds]),
                # Not back from the last round's drop when this one began.
                "absent": sum(self.options.clients - one.cohort for one in self.rounds),
            },
            "drop_reasons": dict(self.drop_reasons.most_common()),
            "rounds": [one.to_json() for one in self.rounds],
        }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values doesn't exceed (nearest rank): one that occurred.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]


def spread(values: Sequence[float], shares: Sequence[float]) -> dict[str, float | None]:
    """``{"p50": ..., "p95": ...}``; None where there are no values."""
    return {f"p{100 * share:g}": _rounded(percentile(values, share) if values else None) for share in shares}


def broken_bounds(result: Mapping[str, Any], options: LoadOptions) -> list[str]:
    """One sentence for each bound that is broken, with the bound and the figure. A wrong sum is always one."""
    found = []
    wrong = result["sums_wrong"]
    if wrong:
        sums = counted(result["rounds_completed"], "sum")
        found.append(
            f"{len(wrong)} of {sums} {'is' if len(wrong) == 1 else 'are'} not that of the "
            "survivors: round " + ", ".join(map(str, wrong))
        )
    p95 = result["round_s"]["p95"]
    if options.max_p95_s is not None and (p95 is None or p95 > options.max_p95_s):
        bound = f"{options.max_p95_s:g} s"
        if p95 is None:
            found.append(f"--max-p95 asks for rounds of at most {bound}, and no round was completed")
        else:
            found.append(f"the p95 round took {p95:g} s, --max-p95 allows {bound}")
    if options.min_completed is not None and result["rounds_completed"] < options.min_completed:
        found.append(
            f"{result['rounds_completed']} of {counted(options.rounds, 'round')} completed, --min-completed asks for "
            f"{options.min_completed}"
        )
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _mean(values: Sequence[float]) -> int:
    return round(sum(values) / len(values)) if values else 0


def _added(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return {phase: total[phase] for phase in PHASES if total[phase]}
