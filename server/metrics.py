"""The metrics of a study for Prometheus: counts, times, bytes and what was spent; docs/monitoring.md explains each.

Most are folded from the study's events, as they come; the rest is read at each request. No label holds an identity, a
number of a participant, a host, or text that a peer wrote, and the values of every label are fixed beforehand.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import prometheus_client
from cryptography.x509 import load_pem_x509_certificate
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from secagg.messages import PHASES
from server import events
from server.events import CONNECTING, Event
from server.journal import Journal
from server.reasons import ABORTS, DROPOUTS, class_of_abort, class_of_dropout
from server.study import Study
from server.study_file import StudyConfiguration
from server.study_view import STATES, StudyView
from wire.codec import PROTOCOL_VERSION

CONTENT_TYPE: Final = prometheus_client.CONTENT_TYPE_LATEST
PHASE_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600)
ROUND_BUCKETS: Final = (*PHASE_BUCKETS, 1200, 3600)
READERS: Final = ("coordinator", "released")


@dataclass(frozen=True)
class Reading:
    """What is read on the event loop when metrics are asked for, so that rendering them needs no loop."""

    participants: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)  # of `_COUNTERS`, `_STAGE` and `_GAUGES`
    state: str = ""


# By name: what is set or counted as events come, with its labels.
_SET: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "sordino_study_info": ("1; what is computed, and how.", ("study", "task", "mechanism")),
    "sordino_rounds_planned": ("Rounds of the whole study.", ()),
    "sordino_last_round_completed_timestamp_seconds": ("When the last round was completed; 0 before the first.", ()),
    "sordino_round_pause_seconds": ("Configured pause between rounds.", ()),
    "sordino_attempt_longest_seconds": (
        "All deadlines of an attempt together, the wait for participants included.",
        (),
    ),
    "sordino_plan_participants": ("Participants of a round that the plan is for.", ()),
    "sordino_plan_quorum": ("Fewest participants that may begin a round.", ()),
    "sordino_plan_min_survivors": ("Fewest participants in a sum.", ()),
    "sordino_tls_certificate_expiry_timestamp_seconds": ("When the coordinator's TLS certificate ends.", ()),
    "sordino_attempt_event_loop_lag_seconds": (
        "Lateness of the event loop in the last attempt, or while it waited in vain for participants.",
        ("statistic",),
    ),
    "sordino_epsilon_spent": ("Privacy loss so far, by who is to learn little.", ("reader",)),
    "sordino_epsilon_budget": ("At which the study ends.", ("reader",)),
    "sordino_epsilon_left": ("Budget less what is spent.", ("reader",)),
    "sordino_delta": ("Of differential privacy, for both epsilons.", ()),
    "sordino_ledger_rows": ("Charges on the coordinator's ledger.", ()),
    "sordino_round_upload_bytes": ("Mean upload of a participant in the last completed round.", ()),
    "sordino_round_download_bytes": ("Mean download of a participant in the last completed round.", ()),
}
_COUNTED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "sordino_rounds_completed": ("Rounds completed since the study began.", ()),
    "sordino_attempts_aborted": ("Attempts that ended without a sum, since this process began.", ("phase", "reason")),
    "sordino_dropouts": ("Participants that left an attempt.", ("phase", "reason")),
    "sordino_sessions_lost": ("Sessions that ended.", ("reason",)),
    "sordino_sessions_opened": ("Sessions that were opened.", ()),
    "sordino_participants_excluded": ("Participants that sent what no honest one sends, and aren't invited again.", ()),
    "sordino_participants_set_aside": ("Participants set aside because they or others cheated.", ()),
}
# Likewise, of what is read when metrics are asked for.
_COUNTERS: Final = {
    "sordino_received_control_bytes": "Control messages received on the session port.",
    "sordino_received_vector_bytes": "Uploaded vectors received, refused ones and broken ones too.",
    "sordino_sent_control_bytes": "Control messages sent on the session port.",
    "sordino_sent_document_bytes": "Models, rosters and study documents sent.",
    "sordino_calls_refused": "Calls to the session port that were refused.",
    "sordino_gateways_replaced": "Gateways that failed, and in whose place others started.",
}
_OF_LAST_ROUND: Final = {  # with the field of its event
    "sordino_model_accuracy_ratio": ("Accuracy after the last round, on the coordinator's data.", "accuracy"),
    "sordino_model_loss": ("Loss after the last round, on the coordinator's data.", "loss"),
    "sordino_wrapped_ratio": ("Estimated share of the last sum's values that wrapped around.", "wrapped_share"),
}
_STAGE: Final = {
    "sordino_ready": "1 while the study runs and can be written down, as /readyz says.",
    "sordino_storage_writable": "0 while the journal can't be written.",
}
_GAUGES: Final = {
    "sordino_round": "Round under way or last attempted; 0 before the first.",
    "sordino_attempt": "Attempt of that round.",
    "sordino_participants_needed": "Participants that the wait or the phase under way needs to go on; 0 in between.",
    "sordino_attempt_cohort": "Participants with which the attempt under way began, or the last one.",
    "sordino_attempt_remaining": "Of them, those who haven't left; where too few connected, how many did.",
    "sordino_sessions_open": "Open sessions.",
    "sordino_gateways_up": "Gateways that hold sessions; 0 where the coordinator does.",
    "sordino_gateway_memory_bytes": "Resident memory of the largest gateway.",
    "sordino_gateway_sessions": "Open sessions of the gateway that has most.",
    "sordino_roster_version": "Version of the roster in use.",
    "sordino_roster_statement_expiry_timestamp_seconds": "When the statement that it is the newest ends; else +Inf.",
    "sordino_enrolment_requests_waiting": "Requests that the authority hasn't answered yet.",
    "sordino_event_loop_lag_recent_seconds": "The latest that the event loop came to a timer within the last minute.",
}


class StudyMetrics:
    """Registries of its own. `note` and `read` are for the event loop; `render` may run in any thread.

    Before `restored` it shows the process and that the study isn't ready, and no figure of the study.
    """

    def __init__(self, configuration: StudyConfiguration) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter, of no use here
        self.view = StudyView(history=False)
        # Two, since a counter that is 0 until the journal is read would look as if it had counted everything anew.
        self._always, self._of_study = CollectorRegistry(), CollectorRegistry()
        self.knows_study = False
        self._configuration = configuration
        self._reading = Reading()
        self._live: Callable[[], Mapping[str, float]] = dict
        self._budgets = dict.fromkeys(READERS, 0.0)
        self._last: events.RoundCompleted | None = None
        ProcessCollector(registry=self._always)
        try:
            release = version("sordino")
        except PackageNotFoundError:  # run from a source tree that isn't installed
            release = "unknown"
        about = "1; the release and the protocol."
        build = Gauge("sordino_build_info", about, ["version", "protocol"], registry=self._always)
        build.labels(release, str(PROTOCOL_VERSION)).set(1)
        self._always.register(_Scraped(self._stage))
        self._declare(self._of_study)
        self._of_study.register(_Scraped(self._scraped))

    def _declare(self, registry: CollectorRegistry) -> None:
        """What is folded from events. Each series of the counters is there from the beginning, at 0."""
        self._gauges = {name: Gauge(name, text, labels, registry=registry) for name, (text, labels) in _SET.items()}
        self._counters = {
            name: Counter(name, text, labels, registry=registry) for name, (text, labels) in _COUNTED.items()
        }
        name = "sordino_round_duration_seconds"
        text = "Of completed attempts, from the model's serialisation to the next model on disk."
        self._round_seconds = Histogram(name, text, buckets=ROUND_BUCKETS, registry=registry)
        name, text = "sordino_phase_duration_seconds", "Of the phases of all attempts."
        self._phase_seconds = Histogram(name, text, ["phase"], buckets=PHASE_BUCKETS, registry=registry)
        for phase in PHASES:
            self._phase_seconds.labels(phase)
            for reason in DROPOUTS:
                self._counters["sordino_dropouts"].labels(phase, reason)
        for phase in (CONNECTING, *PHASES):
            for reason in ABORTS:
                self._counters["sordino_attempts_aborted"].labels(phase, reason)
        for reason in DROPOUTS:
            self._counters["sordino_sessions_lost"].labels(reason)

    # ------------------------------------------------------------ what happens

    def restored(self, study: Study, journal: Journal) -> None:
        """The study is restored: what it is, and what its journal says, before the first event.

        To be called before anything runs in the study's own thread.
        """
        plan, deadlines = study.terms.plan, self._configuration.deadlines
        self._gauges["sordino_study_info"].labels(study.terms.study, study.terms.task, plan.mechanism).set(1)
        for name, value in {
            "sordino_rounds_planned": plan.rounds,
            "sordino_round_pause_seconds": self._configuration.study.pause_s,
            "sordino_attempt_longest_seconds": sum(deadlines.model_dump(exclude={"resume_s"}).values()),
            "sordino_plan_participants": plan.clients,
            "sordino_plan_quorum": plan.quorum,
            "sordino_plan_min_survivors": plan.min_survivors,
            "sordino_tls_certificate_expiry_timestamp_seconds": _expiry(
                self._configuration.coordinator.tls_certificate
            ),
            "sordino_delta": plan.delta,
            "sordino_ledger_rows": journal.ledger.head.rows,
        }.items():
            self._gauges[name].set(value)
        self._budgets = dict(zip(READERS, (plan.budget_coordinator, plan.budget_released), strict=True))
        for reader, budget in self._budgets.items():
            self._gauges["sordino_epsilon_budget"].labels(reader).set(budget)
        self._spend(*study.charges.epsilons().values())
        last = journal.last_round()
        if last is not None:
            self.view.round = last[0].round
            self._counters["sordino_rounds_completed"].inc(last[0].round)
            self._learnt(last[0])
        self._live = lambda: _live(study)
        self.knows_study = True

    def note(self, event: Event) -> None:
        self.view.apply(event)
        match event:
            case events.ParticipantConnected():
                self._counters["sordino_sessions_opened"].inc()
            case events.ParticipantLost():
                self._counters["sordino_sessions_lost"].labels(class_of_dropout(event.reason)).inc()
            case events.ParticipantExcluded():
                self._counters["sordino_participants_excluded"].inc()
            case events.ParticipantSetAside():
                self._counters["sordino_participants_set_aside"].inc()
            case events.ParticipantDropped() if event.phase in PHASES:
                self._counters["sordino_dropouts"].labels(event.phase, class_of_dropout(event.reason)).inc()
            case events.PhaseEnded() if event.phase in PHASES:
                self._phase_seconds.labels(event.phase).observe(event.seconds)
            case events.AttemptAborted() if event.phase in (CONNECTING, *PHASES):
                self._counters["sordino_attempts_aborted"].labels(event.phase, class_of_abort(event.reason)).inc()
                self._late(event.loop_lag_ms)
            case events.SurvivorsFrozen():
                self._spend(event.epsilon_coordinator, event.epsilon_released)
                self._gauges["sordino_ledger_rows"].set(event.ledger_rows)
            case events.RoundCompleted():
                self._counters["sordino_rounds_completed"].inc()
                self._round_seconds.observe(event.seconds)
                self._learnt(event)

    def _spend(self, *epsilons: float) -> None:
        for reader, spent in zip(READERS, epsilons, strict=True):
            self._gauges["sordino_epsilon_spent"].labels(reader).set(spent)
            self._gauges["sordino_epsilon_left"].labels(reader).set(max(0.0, self._budgets[reader] - spent))

    def _learnt(self, last: events.RoundCompleted) -> None:
        self._last = last
        self._gauges["sordino_last_round_completed_timestamp_seconds"].set(last.at)
        self._gauges["sordino_round_upload_bytes"].set(last.upload_bytes)
        self._gauges["sordino_round_download_bytes"].set(last.download_bytes)
        self._late(last.loop_lag_ms)

    def _late(self, lag_ms: Mapping[str, float]) -> None:
        for name, late_ms in lag_ms.items():
            self._gauges["sordino_attempt_event_loop_lag_seconds"].labels(name).set(late_ms / 1000)

    # ------------------------------------------------------------ what is shown

    def read(self, **more: float) -> None:
        """Take what is to be shown of the study now. ``more``: of `_STAGE` and `_GAUGES`."""
        view, current, live = self.view, self.view.current, dict(self._live())
        participants = {
            "roster": live.pop("participants_on_roster", 0),
            "connected": live.get("sordino_sessions_open", 0),
            "ready": live.pop("participants_ready", 0),
            "attempt": current.remaining if current.under_way else 0,
            "waited_for": view.wait.missing,
        }
        counts = {
            "sordino_round": view.round,
            "sordino_attempt": view.attempt,
            "sordino_participants_needed": view.wait.needed,
            "sordino_attempt_cohort": current.cohort,
            "sordino_attempt_remaining": current.remaining,
        }
        self._reading = Reading(participants, {**counts, **live, **more}, view.state)

    def connected(self) -> int:
        return int(self._live().get("sordino_sessions_open", 0))

    def render(self) -> bytes:
        """All of it in Prometheus's text format, as `read` found it."""
        always = generate_latest(self._always)
        return always + generate_latest(self._of_study) if self.knows_study else always

    def _stage(self) -> Iterator[Metric]:
        counts, now = self._reading.counts, self._reading.state
        for name, text in _STAGE.items():
            yield _gauge(name, text, counts.get(name, 0))
        phases = {state: float(state == now) for state in STATES}
        yield _gauge("sordino_phase", "1 for what the study does now, 0 for the rest.", phase=phases)

    def _scraped(self) -> Iterator[Metric]:
        """What no event tells."""
        counts = self._reading.counts
        for name, text in _COUNTERS.items():
            yield CounterMetricFamily(name, text, counts.get(name, 0))
        for name, text in _GAUGES.items():
            yield _gauge(name, text, counts.get(name, 0))
        yield _gauge("sordino_participants", "Participants by what they are.", state=self._reading.participants)
        # Of the last round. Without a value until there is one: what isn't evaluated has no accuracy of 0.
        for name, (text, of_event) in _OF_LAST_ROUND.items():
            value = getattr(self._last, of_event, None)
            yield _gauge(name, text, value if value is not None and math.isfinite(value) else None)
        reported = {} if self._last is None else self._last.reported
        yield _gauge("sordino_model_reported", "Of the model before the last round, by participants.", figure=reported)
        free = None
        with suppress(OSError):
            disk = os.statvfs(self._configuration.coordinator.state.parent)
            free = disk.f_bavail * disk.f_frsize
        yield _gauge("sordino_state_free_bytes", "Room on the disk that holds the journal.", free)


def _gauge(name: str, text: str, value: float | None = None, **labelled: Mapping[str, float]) -> Metric:
    """One with a value, with none, or with a value for each value of its one label."""
    family = GaugeMetricFamily(name, text, value, labels=list(labelled) or None)
    for values in labelled.values():
        for one, count in values.items():
            family.add_metric([one], count)
    return family


class _Scraped:
    """A collector of what is read when it is asked for."""

    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self.collect = families


def _live(study: Study) -> dict[str, float]:
    """What only the running study knows; on its event loop."""
    traffic = study.sessions.traffic
    return {
        "participants_on_roster": len(study.roster),
        "participants_ready": len(study.sessions.ready()),
        "sordino_sessions_open": len(study.sessions),
        "sordino_roster_version": study.roster_version,
        "sordino_roster_statement_expiry_timestamp_seconds": study.roster_in_use.stated()[1],
        "sordino_received_control_bytes": traffic.control_received,
        "sordino_received_vector_bytes": traffic.vectors_received,
        "sordino_sent_control_bytes": traffic.control_sent,
        "sordino_sent_document_bytes": traffic.documents_sent,
        "sordino_calls_refused": study.sessions.refused_calls.count,
        "sordino_event_loop_lag_recent_seconds": study.loop_lag.recent_s(),
        **({} if study.sessions.elsewhere is None else study.sessions.elsewhere.figures()),
    }


def _expiry(certificate: Path) -> float:
    """Seconds since 1970; 0 where the file can't be read, which is reported when the port is opened."""
    try:
        return load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError):
        return 0.0
