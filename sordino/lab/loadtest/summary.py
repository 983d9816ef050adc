"""The result of a load test: events folded into rounds, rounds into figures, and figures held against bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, Final

import numpy as np

from runtime.cpu_split import KINDS
from runtime.text import counted
from secagg.messages import PHASES
from server.events import CONNECTING, AttemptAborted, AttemptStarted, Event, ParticipantDropped, RoundCompleted
from server.study_view import AttemptView, StudyView
from sordino.lab.loadtest.faults import Delay, Drop
from sordino.lab.loadtest.options import LoadOptions

UNSEEN: Final = {
    "signing": "at the consistency check, which goes on once enough have signed",
    "unmasking": "at unmasking, which goes on once enough shares are there",
    "aborted": "left in a round that was aborted before they were noted",
    "next_round": "noticed only in the next round",
    "other_phase": "noted in another phase of the same round",
    "unnoted": "never noted",
}
"""Why the coordinator didn't record a planned dropout in its phase: JSON name -> words."""
CAUSES: Final = {
    "straggler": ("answered later than a deadline",) * 2,
    "cheat": ("cheated",) * 2,
    "away": ("was away", "were away"),
    "storm": ("was struck by a storm", "were struck by a storm"),
    "link": ("has a bad link", "have a bad link"),
}
"""Why participants were dropped that were not planned to leave: JSON name -> words for one, and for several."""
UNPLANNED: Final = "unplanned"
"""The cause where no planned fault explains a dropout."""
_NOTICED_S: Final = 1.0  # within which the coordinator notices a lost connection
_MOST_POINTS: Final = 600  # that are kept of a curve
_SIGNING: Final = "ConsistencyCheck"
BETWEEN: Final = "between phases"
"""Of a round's seconds what belongs to no phase: closing each one, journal, opening the sum, the new model."""


@dataclass(frozen=True)
class EndedRound:
    """One round that was begun and has ended, with a sum or without."""

    round: int
    attempt: int
    seconds: float
    """From its start to the sum, or to its abort."""
    phase_seconds: Mapping[str, float]
    cohort: int
    """Participants that were connected when it began."""
    drops_expected: Mapping[str, int]
    """Phase -> participants that were to leave in it, of those connected, where it was reached."""
    drops_observed: Mapping[str, int]
    """Phase -> of these, the number that the coordinator noted as dropouts in it."""
    drops_late: int
    """Participants cut at the end of the attempt before, noticed only in this one, before their first message."""
    completed: bool = False
    reason: str = ""
    """Why it aborted; empty for a round that ended in a sum."""
    survivors: int = 0
    """Inputs in the sum."""
    sum_ok: bool | None = None
    """Whether the sum is that of the survivors; None without a sum."""
    besides: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Other dropouts: (name in ``CAUSES`` or ``UNPLANNED``, why the coordinator dropped them) -> how many."""
    late_answers: int = 0
    """Participants that were to answer late in a phase that was reached."""
    resumed: int = 0
    """Connections that broke and were taken up again within the round."""
    server_rss_mb: float | None = None
    """The coordinator's resident memory at its end."""
    server_files: int | None = None
    server_tasks: int | None = None
    journal_bytes: int | None = None
    """With its log, when the round was read."""
    loop_lag_ms: Mapping[str, float] = field(default_factory=dict)
    """Of the coordinator's event loop."""

    def to_json(self) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if name != "besides"}
        reasons = _by_cause(self.besides)
        by_cause, unplanned = _counts(reasons)
        return values | {
            "seconds": round(self.seconds, 3),
            "drops_unplanned": unplanned,
            "drops_by_cause": by_cause,
            "drop_reasons_by_cause": reasons,
        }


GROWTH: Final = {
    "server_rss_mb": ("MB", "the coordinator's memory in MB"),
    "server_files": ("files", "its open files"),
    "server_tasks": ("tasks", "its tasks"),
    "seconds": ("seconds a round", ""),
    "journal_bytes": ("bytes of journal a round", "what a round adds to its journal, in bytes,"),
}
"""Figure of `growth` -> its unit, and its name in a broken bound; empty where --max-growth doesn't bound it."""
SumCheck = Callable[[RoundCompleted], bool]
"""Whether a round's sum is the plain sum of its survivors."""


@dataclass
class Outcomes:
    """All rounds so far, held against the planned faults; `apply` takes the coordinator's events in order."""

    options: LoadOptions
    check: SumCheck
    journal_bytes: Callable[[], int] = lambda: 0
    view: StudyView = field(default_factory=StudyView)
    rounds: list[EndedRound] = field(default_factory=list)
    unseen: Counter[str] = field(default_factory=Counter)
    """Name in ``UNSEEN`` -> planned dropouts; together with those observed they are all that were expected."""
    storms: list[frozenset[int]] = field(default_factory=list)
    """Participants struck by the storms since the last round; filled by the parent."""
    online: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the first event, and how many were connected from then on."""
    _first_at: float | None = None
    _open: AttemptView | None = None
    _delays: dict[int, Delay] = field(default_factory=dict)
    _planned: dict[int, Drop] = field(default_factory=dict)
    _planned_before: dict[int, Drop] = field(default_factory=dict)
    _unseen_before: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._presence = self.options.presence()
        self._linked, self._cheaters = self.options.linked(), self.options.cheaters()

    @property
    def connected(self) -> frozenset[int]:
        return frozenset(self.view.connected)

    @property
    def ended(self) -> str:
        """Why the study ended, once it has."""
        return "" if self.view.finished is None else self.view.finished.reason

    def apply(self, event: Event) -> EndedRound | None:
        """Take one event in; returns the round that it ended, if it ended one."""
        before, ended = len(self.view.connected), None
        self.view.apply(event)
        self._first_at = self.view.last_at if self._first_at is None else self._first_at
        match event:
            case AttemptStarted():
                ended = None if self._open is None else self._cut_off(self._open)
                self._open = self.view.current
                self._planned_before, self._planned = self._planned, self.options.drops(event.round, event.attempt)
                self._delays = self.options.delays(event.round, event.attempt)
            case RoundCompleted():
                ended = self._completed(event)
            case AttemptAborted():
                ended = self._aborted(event)
        if len(self.view.connected) != before:
            self._note_online()
        return ended

    def restarted(self) -> None:
        """The coordinator was killed and is started again: no participant is connected to it."""
        self.view.nobody_is_connected()
        self._note_online()

    def _note_online(self) -> None:
        self.online.append((self.view.last_at - (self._first_at or 0.0), len(self.view.connected)))

    def _cut_off(self, attempt: AttemptView) -> EndedRound:
        """Record an attempt that a crash ended without an event."""
        phase = attempt.reached[-1] if attempt.reached else PHASES[0]
        return self._end(attempt, reason=f"{phase}: the coordinator was started again", seconds=0.0)

    def _completed(self, event: RoundCompleted) -> EndedRound:
        # A participant that was to leave before its vector was complete can't be in the sum.
        gone = {who for who, drop in self._planned.items() if drop.phase in PHASES[:3]}
        right = gone.isdisjoint(event.survivors) and self.check(event)
        return self._end(
            self.view.current,
            completed=True,
            seconds=event.seconds,
            phase_seconds=event.phase_seconds,
            survivors=len(event.survivors),
            sum_ok=right,
            server_rss_mb=event.coordinator_rss_mb,
            server_files=event.coordinator_files,
            server_tasks=event.coordinator_tasks,
            journal_bytes=self.journal_bytes(),
            loop_lag_ms=event.loop_lag_ms,
        )

    def _aborted(self, event: AttemptAborted) -> EndedRound:
        if event.phase == CONNECTING:  # no attempt was started
            self._planned, self._delays = {}, {}
        attempt = self.view.current
        reason, seconds = f"{event.phase}: {event.reason}", event.at - attempt.began_at
        return self._end(attempt, reason=reason, seconds=seconds, loop_lag_ms=event.loop_lag_ms)

    def _end(self, attempt: AttemptView, **known: Any) -> EndedRound:
        """Count an attempt that has ended. Args: known: the fields of `EndedRound` that its end determines."""
        dropped = {one.participant: one for one in attempt.dropped}
        # Who came back after the attempt had started may take part, and leave as planned.
        took_part = attempt.connected | dropped.keys()
        planned = {who: drop.phase for who, drop in self._planned.items() if who in took_part}
        expected = Counter(phase for phase in planned.values() if phase in attempt.reached)
        noted = {who for who, one in dropped.items() if _in_its_phase(planned.get(who), one.phase)}
        observed = Counter(planned[who] for who in noted)
        others = [one for who, one in dropped.items() if who not in noted]
        self._explain_unseen(attempt, planned, dropped, completed=known.get("completed", False))
        late = [one for one in others if one.phase == PHASES[0] and one.participant in self._planned_before]
        ended = EndedRound(
            round=attempt.round,
            attempt=attempt.attempt,
            cohort=len(attempt.connected),
            drops_expected={phase: expected[phase] for phase in PHASES if expected[phase]},
            drops_observed={phase: observed[phase] for phase in PHASES if observed[phase]},
            drops_late=len(late),
            besides=Counter((self._cause(one), _why(one)) for one in others if one not in late),
            late_answers=sum(
                delay.phase in attempt.reached and who in attempt.connected for who, delay in self._delays.items()
            ),
            resumed=attempt.resumed,
            **{"phase_seconds": dict(attempt.phase_seconds)} | known,
        )
        self._open = None
        self.storms.clear()
        self.rounds.append(ended)
        return ended

    def _cause(self, dropout: ParticipantDropped) -> str:
        """The planned fault that explains an unscheduled dropout; ``UNPLANNED`` where none does."""
        who = dropout.participant
        if who in self._cheaters:
            return "cheat"
        if who in self._delays and _in_its_phase(self._delays[who].phase, dropout.phase):
            return "straggler"
        at_s = dropout.at - self.options.began_at
        if not self._presence.online(who, at_s, _NOTICED_S + self.options.kept_s):
            return "away"
        if any(who in struck for struck in self.storms):
            return "storm"
        return "link" if who in self._linked else UNPLANNED

    def _explain_unseen(
        self,
        attempt: AttemptView,
        planned: Mapping[int, str],
        dropped: Mapping[int, ParticipantDropped],
        *,
        completed: bool,
    ) -> None:
        """Count this round's planned dropouts that weren't noted in their phase, each under one name."""
        phases = {who: one.phase for who, one in dropped.items()}
        for who, name in self._unseen_before.items():
            if phases.get(who) == PHASES[0] != planned.get(who):
                self.unseen[name] -= 1
                self.unseen["next_round"] += 1
        self._unseen_before = {}
        for who, phase in planned.items():
            if phase not in attempt.reached or _in_its_phase(phase, phases.get(who)):
                continue
            if who in phases:
                self.unseen["other_phase"] += 1
                continue
            name = {_SIGNING: "signing", PHASES[-1]: "unmasking"}.get(phase, "unnoted") if completed else "aborted"
            self.unseen[name] += 1
            self._unseen_before[who] = name

    def _cheats(self) -> dict[str, Any]:
        """The cheating participants by way, and how many were excluded or set aside."""
        ways: dict[str, Counter[str]] = {}
        excluded, set_aside = self.view.excluded, self.view.set_aside
        for who, way in self._cheaters.items():
            found = ways.setdefault(way, Counter(participants=0, excluded=0, set_aside=0))
            found["participants"] += 1
            found["excluded"] += who in excluded
            found["set_aside"] += who in set_aside
        return {
            "participants": len(self._cheaters),
            "excluded": len(self._cheaters.keys() & excluded.keys()),
            "honest_excluded": sorted(excluded.keys() - self._cheaters.keys()),
            "honest_set_aside": sorted(set_aside.keys() - self._cheaters.keys()),
            "by_way": {way: dict(found) for way, found in sorted(ways.items())},
            "reasons": dict(Counter(excluded.values()).most_common()),
        }

    # ---- figures -------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """All that follows from events, under stable JSON names."""
        done, completed = [one for one in self.rounds if one.completed], self.view.rounds
        seconds = [one.seconds for one in done]
        times = {name: [seconds_in(vars(one), name) for one in done] for name in (*PHASES, BETWEEN)}
        reasons = _by_cause(sum((Counter(one.besides) for one in self.rounds), Counter()))
        by_cause, unplanned = _counts(reasons)
        return {
            "rounds_completed": len(done),
            "rounds_aborted": len(self.rounds) - len(done),
            "sums_ok": sum(one.sum_ok is True for one in done),
            "sums_wrong": [one.round for one in done if not one.sum_ok],
            "round_s": spread(seconds) | {"max": round(max(seconds), 3) if seconds else None},
            "phase_s": {name: spread(values) for name, values in times.items()},
            "phase_cpu_s": _mean_split([one.phase_cpu_s for one in completed]),
            "key_to_sum_s": median_low([one.key_to_sum_s for one in completed]) if completed else None,
            "loop_lag_ms": _worst_lag([one.loop_lag_ms for one in self.rounds if one.loop_lag_ms]),
            "upload_bytes": _mean([one.upload_bytes for one in completed]),
            "download_bytes": _mean([one.download_bytes for one in completed]),
            "vector_bytes": completed[-1].vector_bytes if completed else 0,
            "reasons": dict(Counter(one.reason for one in self.rounds if not one.completed).most_common()),
            "drops": {
                "expected": sum(sum(one.drops_expected.values()) for one in self.rounds),
                "observed": sum(sum(one.drops_observed.values()) for one in self.rounds),
                "late": sum(one.drops_late for one in self.rounds),
                "unplanned": unplanned,
                "unseen": {name: self.unseen[name] for name in UNSEEN if self.unseen[name]},
                "expected_by_phase": _added([one.drops_expected for one in self.rounds]),
                "observed_by_phase": _added([one.drops_observed for one in self.rounds]),
                # Not back from the last round's drop when this one began.
                "absent": sum(self.options.clients - one.cohort for one in self.rounds),
                "by_cause": by_cause,
                "reasons_by_cause": reasons,
            },
            "growth": growth(done),
            "late_answers": sum(one.late_answers for one in self.rounds),
            "resumed": sum(one.resumed for one in self.rounds),
            "cheats": self._cheats(),
            "online": [{"at_s": round(at_s, 2), "participants": many} for at_s, many in thinned(self.online)],
            "drop_reasons": dict(Counter(map(_why, self.view.dropouts)).most_common()),
            "rounds": [one.to_json() for one in self.rounds],
        }


def _worst_lag(rounds: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    """Of the coordinator's event loop: the median round's median, the worst round's p99, and the longest."""
    if not rounds:
        return None
    worst = {name: max(lag[name] for lag in rounds) for name in ("p99", "max")}
    return {"p50": median_low([lag["p50"] for lag in rounds])} | worst


def _mean_split(rounds: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """The mean of rounds, by phase and kind."""

    def mean(phase: str, kind: str) -> float:
        return round(sum(one.get(phase, {}).get(kind, 0.0) for one in rounds) / len(rounds), 3)

    return {phase: {kind: mean(phase, kind) for kind in KINDS} for phase in (PHASES if rounds else ())}


def growth(done: Sequence[EndedRound]) -> dict[str, tuple[float, float]] | None:
    """What the coordinator held and took, in the second tenth of the rounds and in the last; None below twenty rounds.

    ``journal_bytes`` is what a round added, in the first half and in the second: the file grows in steps.
    """
    tenth = len(done) // 10
    if tenth < 2:
        return None
    parts = done[tenth : 2 * tenth], done[-tenth:]

    def median(name: str) -> tuple[float, float]:
        early, late = (round(median_low([getattr(one, name) or 0 for one in part]), 3) for part in parts)
        return early, late

    def added(part: Sequence[EndedRound]) -> float:
        return round(((part[-1].journal_bytes or 0) - (part[0].journal_bytes or 0)) / (len(part) - 1))

    figures = {name: median(name) for name in GROWTH if name != "journal_bytes"}
    half = len(done) // 2
    return figures | {"journal_bytes": (added(done[tenth : half + 1]), added(done[half:]))}


def round_name(one: Mapping[str, Any]) -> str:
    """Of a round in result.json: its number, and the attempt after the first."""
    return f"{one['round']}" if one["attempt"] == 1 else f"{one['round']}.{one['attempt']}"


def seconds_in(one: Mapping[str, Any], phase: str) -> float:
    """Of a round in result.json, in a phase or in `BETWEEN`."""
    phases = one["phase_seconds"]
    return max(0.0, one["seconds"] - sum(phases.values())) if phase == BETWEEN else float(phases.get(phase, 0.0))


def _why(dropout: ParticipantDropped) -> str:
    return f"{dropout.phase}: {dropout.reason}"


def _in_its_phase(planned: str | None, noted: str | None) -> bool:
    """Whether a dropout was noted where it was planned: shares are asked for while some have yet to sign."""
    return planned is not None and (planned == noted or (planned, noted) == (_SIGNING, PHASES[-1]))


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Median and 95th percentile by nearest rank: values that occurred; None where there are none."""
    shares = {"p50": 0.5, "p95": 0.95}
    if not values:
        return dict.fromkeys(shares)
    return {name: round(float(np.quantile(values, at, method="inverted_cdf")), 3) for name, at in shares.items()}


def thinned(points: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    """At most ``_MOST_POINTS`` of a curve, the last one among them."""
    step = -(-len(points) // _MOST_POINTS) or 1
    return [point for place, point in enumerate(points, 1) if place % step == 0 or place == len(points)]


def _mean(values: Sequence[float]) -> int:
    return round(sum(values) / len(values)) if values else 0


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = sum(map(Counter, counts), Counter[str]())
    return {phase: total[phase] for phase in PHASES if total[phase]}


def _counts(reasons: Mapping[str, Mapping[str, int]]) -> tuple[dict[str, int], int]:
    """Of `_by_cause`: dropouts that a planned fault explains, by its name, and how many none explains."""
    counts = {cause: sum(table.values()) for cause, table in reasons.items()}
    unplanned = counts.pop(UNPLANNED, 0)
    return counts, unplanned


def _by_cause(dropouts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """(cause, why the coordinator dropped them) -> how many, as a table for each cause; frequent reasons first."""
    found: dict[str, dict[str, int]] = {}
    for (cause, why), many in sorted(dropouts.items(), key=lambda one: -one[1]):
        found.setdefault(cause, {})[why] = many
    return {cause: found[cause] for cause in (*CAUSES, UNPLANNED) if cause in found}


def broken_bounds(result: Mapping[str, Any], options: LoadOptions) -> list[str]:
    """One sentence for each broken bound, with the bound and the figure; the load test then ends with exit code 1.

    A wrong sum is always one, and so are a ledger that doesn't verify and an honest participant that was excluded.
    """
    return [*_always(result), *_asked_for(result, options)]


def _always(result: Mapping[str, Any]) -> Iterator[str]:
    if wrong := result["sums_wrong"]:
        sums = counted(result["rounds_completed"], "sum")
        what = "not the noise of" if result["options"]["noise"] else "not that of"
        rounds = ", ".join(map(str, wrong))
        unplanned = result["drops"]["unplanned"] if result["options"]["thin"] else 0
        masks = f"the masks of {counted(unplanned, 'unplanned dropout')}"
        why = f" (thin participants leave out {masks})" if unplanned else ""
        yield f"{len(wrong)} of {sums} {'is' if len(wrong) == 1 else 'are'} {what} the survivors: round {rounds}{why}"
    if result.get("ledger_error"):
        yield f"the coordinator's ledger doesn't verify: {result['ledger_error']}"
    if honest := result["cheats"]["honest_excluded"]:
        participants, were = counted(len(honest), "participant"), "was" if len(honest) == 1 else "were"
        yield f"{participants} that didn't cheat {were} excluded: number {', '.join(map(str, honest))}"


def _asked_for(result: Mapping[str, Any], options: LoadOptions) -> Iterator[str]:
    p95, done = result["round_s"]["p95"], result["rounds_completed"]
    if options.max_p95_s is not None:
        bound = f"{options.max_p95_s:g} s"
        if p95 is None:
            yield f"--max-p95 asks for rounds of at most {bound}, and no round was completed"
        elif p95 > options.max_p95_s:
            yield f"the p95 round took {p95:g} s, --max-p95 allows {bound}"
    rounds = counted(options.rounds, "round")
    if options.min_completed is not None and done < options.min_completed:
        yield f"{done} of {rounds} completed, --min-completed asks for {options.min_completed}"
    if options.min_share is not None and done < options.min_share * options.rounds - 1e-9:
        yield f"{done} of {rounds} completed, --min-share asks for {100 * options.min_share:g} %"
    peak = result["server_peak_rss_mb"]
    if options.max_rss_mb is not None and peak > options.max_rss_mb:
        yield f"the coordinator took {peak:g} MB, --max-rss allows {options.max_rss_mb:g} MB"
    if options.max_growth is not None:
        grown = result["growth"]
        if grown is None:
            yield "--max-growth asks for twenty rounds or more"
        for name, what in ((name, what) for name, (_, what) in GROWTH.items() if grown and what):
            early, late = grown[name]
            if late > (1 + options.max_growth) * early:
                most = f"{100 * options.max_growth:g} %"
                yield f"{what} grew from {early:g} to {late:g}, --max-growth allows {most}"
    if options.min_resumed is not None:
        hit, resumed = (result["kills"][name] for name in ("attempts_hit", "attempts_resumed"))
        if resumed < options.min_resumed * hit:
            share = f"{100 * options.min_resumed:g} %"
            hits = counted(hit, "attempt")
            yield f"{resumed} of {hits} that were cut off ended in a sum, --min-resumed asks for {share}"
    unplanned = result["drops"]["unplanned"]
    if options.max_unplanned is not None and unplanned > options.max_unplanned:
        yield f"{counted(unplanned, 'unplanned dropout')}, --max-unplanned allows {options.max_unplanned}"
    if options.noise_within is not None:
        noise = result["noise"]
        if noise is None:
            yield "--noise-within asks for noise that can be measured, and no round was completed"
        elif abs(noise["ratio"] - 1) > options.noise_within:
            yield (
                f"the noise is {noise['ratio']:g} times what was planned (standard error {noise['ratio_stderr']:g}), "
                f"--noise-within allows {options.noise_within:g} either way"
            )
