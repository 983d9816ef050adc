"""A study: rounds one after the other, from the roster's arrival to the last model or the end of the budget."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog

from learning.datasets import Dataset
from learning.progress import Progress
from learning.task import Task
from runtime.loop_lag import LoopLag
from secagg.context import RoundConfig
from secagg.roster import Roster
from secagg.server_phases import ConsistencyCheck
from secagg.server_unmasking import Completed, Unmasking
from server.attempt.attempt import Attempt
from server.attempt.outgoing import Outgoing
from server.attempt.record import NOTHING_KEPT, AttemptRecord, is_kept
from server.attempt.returns import Returns
from server.attempt.steps import AttemptFailed, Said, most_control_bytes
from server.attempt.uploads import UnexpectedUpload
from server.cohort_wait import CohortWait
from server.events import (
    AttemptAborted,
    AttemptResumed,
    AttemptStarted,
    Event,
    ParticipantConnected,
    ParticipantDropped,
    ParticipantLost,
    ParticipantResumed,
    Pausing,
    RoundCompleted,
    StudyFinished,
    SurvivorsFrozen,
)
from server.exclusions import draw_consequences, restore_exclusions
from server.farewell import Farewell
from server.journal import Journal, read_events
from server.membership import Membership, SignedRoster
from server.pace import BACK_S, LONGEST_REST, REST_MOST_S, Pace
from server.roster_in_use import RosterInUse
from server.round_figures import round_completed, study_started
from server.sessions import RESUMABLE, Session, Sessions
from server.study_file import StudyConfiguration
from server.study_view import StudyView
from server.trained_model import Learned, TrainedModel
from server.workers import Workers, to_its_end
from wire import codec, coordinator_pb2 as pb
from wire.ending import ABORTED, BUDGET_REACHED, NO_BETTER, ROUNDS_DONE, STOPPED
from wire.process_limits import PortBounds, process_figures
from wire.records.charges import Charges
from wire.records.ledger import Row
from wire.records.roster_file import RosterFile
from wire.records.transcript_files import Transcripts
from wire.roster_history import write_history
from wire.study import StudyDocument, round_parameters

log = structlog.get_logger()
_MUCH_WRAPPING = 1e-2  # a plan with k_stddevs = 3 expects 0.3 % at the worst


@dataclass(frozen=True)
class Outcome:
    """How a study ended: ``reason`` of `wire.ending`."""

    reason: str
    rounds_completed: int


class Study:
    """Holds what outlives a round; `run` drives the rounds. ``terms``: the study document, as participants get it."""

    def __init__(
        self,
        configuration: StudyConfiguration,
        document: StudyDocument,
        signed: SignedRoster,  # to begin with
        task: Task,
        test_data: Dataset,
        journal: Journal,
        roster_files: RosterFile,  # read between attempts: an operator may have put a later roster there
        on_event: Callable[[Event], None] | None,  # is given every event, on the event loop: must not block
        between_attempts: Callable[[], None] | None,  # called when no attempt is under way, for what would disturb one
        transcripts: Transcripts | None,  # where finished rounds are put on record; None keeps no transcripts
        cohorts_are_public: bool,  # transcripts are or were published, so that a lottery hides no participation
    ) -> None:
        self._transcripts, self._between_attempts = transcripts, between_attempts
        self._configuration, self.terms = configuration, document
        self._journal, self._on_event = journal, on_event
        self._plan = document.plan
        self._parameters = round_parameters(self._plan)
        self.charges = Charges(document, cohorts_are_public=cohorts_are_public)
        self.roster_files = roster_files
        authority, one_machine = configuration.read_authority_public_key(), configuration.coordinator.one_machine
        self._membership = Membership(self._plan, signed, authority, document.digest(), one_machine)
        learner = configuration.make_learner(task, test_data)
        folder = configuration.coordinator.state.parent / "checkpoints"
        self._model = TrainedModel(document.study, task, learner, self._plan, folder)
        self._study_bytes = document.to_bytes()
        self._study_sha256 = hashlib.sha256(self._study_bytes).digest()
        self._documents = {self._study_sha256: self._study_bytes, signed.sha256: signed.file}
        self._model_sha256 = b""
        self._completed_rounds = 0
        self._last: RoundCompleted | None = None
        self._attempt: Attempt | None = None
        self._resumed: asyncio.Task[bool] | None = None  # the attempt that the last stop cut off
        self._rows: dict[tuple[int, int], Row] = {}  # its charge, if it had one
        self._returns = Returns()
        self._progress = Progress(bool(self._plan.evaluation))
        self._finished = False
        self.loop_lag = LoopLag()
        self.workers = Workers()
        self._compute = self.workers.compute
        self.sessions = Sessions(document.study, signed.roster, self._session_lost)
        wants_statement = bool(document.roster_valid_s)
        self.roster_in_use = RosterInUse(
            self._membership, self.sessions, journal, self._documents, self._emit, roster_files, wants_statement
        )
        self.farewell = Farewell(self.sessions, self._membership, configuration.deadlines)
        parts, use_offered = (self._membership, self.sessions, self.charges), self.roster_in_use.use_offered
        self._cohort_wait = CohortWait(
            configuration, self._plan, *parts, self.loop_lag, self._emit, self._configured, use_offered
        )
        self._pace = Pace(self._plan, self._membership, configuration.deadlines, configuration.study.pause_s)

    # ------------------------------------------------------------ for the service

    def opened(self, session: Session) -> None:
        """A participant has proved its identity on a new session."""
        number = self._membership.number(session.participant)
        if not self._finished:  # its events are over too
            self._emit(ParticipantConnected(participant=number, host=session.host))
        welcome = pb.Welcome(session_token=session.token, study_sha256=self._study_sha256, roster_sha256=self.shown[1])
        session.send(codec.message(welcome=welcome))

    @property
    def shown(self) -> tuple[bytes, bytes]:
        """SHA-256 of the study document and of the roster in use, which `document` gives."""
        return self._study_sha256, self._membership.signed.sha256

    @property
    def clips(self) -> tuple[float, ...]:
        """Of the round under way, one for each layer, in data units."""
        return self._model.clips

    @property
    def roster(self) -> Roster:
        return self._membership.roster

    @property
    def bounds(self) -> PortBounds:
        """Of what the session port takes, from the roster in use and from later ones as far as the plan knows."""
        roster, largest = self.roster, self._configuration.privacy.largest_roster or 0
        most = max(len(roster), self._plan.clients, largest)
        return PortBounds(most, roster.largest_host(), most_control_bytes(self._parameters))

    def document(self, sha256: bytes, held: bytes = b"") -> bytes | None:
        return self._model.step(held, sha256) or self._documents.get(sha256)

    async def requested(self, session: Session | None, request: pb.DocumentRequest) -> bytes | None:
        """What a participant asks for; None if it isn't there."""
        return self.history(after) if (after := request.history_after) else self.document(request.sha256, request.held)

    def history(self, after: int) -> bytes:
        """The history of the roster in use after a version (`wire.roster_history`), as far as it is known here."""
        return write_history(self.roster_files.heads(after, self.roster_version))

    def downloaded(self, session: Session, size: int) -> None:
        """A document went out; the model of a round counts to the round's traffic."""
        if self._attempt is not None:
            self._attempt.traffic.told[session.participant] += size

    def session_ready(self, session: Session, message: pb.Ready) -> None:
        """A participant takes part from here on, or again."""
        if session.ready:
            return session.stray()
        self._returns.prove(session, self._attempt)
        if self.farewell.answer(session):
            return
        self.sessions.set_ready(session)
        attempt = self._attempt
        if attempt is None or session.participant not in attempt.cohort:
            self._pace.let_one_rest(session, attempt.config.round + 1 if attempt else self._completed_rounds + 1)
        self._returns.answer(session, message.resume if message.HasField("resume") else None, attempt)

    async def room(self) -> None:
        """At once: a message is dealt with before the next one is read."""

    def phase_message(self, session: Session, message: pb.PhaseMessage, size: int) -> None:
        self.said(session, (message.round, message.attempt), Said.of(message), size)

    def said(self, session: Session, number: tuple[int, int], said: Said, size: int) -> None:
        """Hand a message to the attempt it belongs to; one of another attempt is late and unread."""
        attempt = self._attempt
        if attempt is not None and number == attempt.config.number:
            attempt.deliver(session, said, size)
        else:
            session.stray()

    def refusal(self, session: Session, message: pb.Refusal, size: int) -> None:
        attempt = self._attempt
        if attempt is not None and (message.round, message.attempt) == attempt.config.number:
            if message.code == pb.REFUSAL_CODE_BUDGET:
                self.charges.refused.add(self._membership.number(session.participant))
            joined = message.joined_round, message.joined_attempt
            # Of this very attempt only who was started again in it can have joined before its announcement came.
            before = joined == attempt.config.number and attempt.hears_it_first(session.participant)
            if message.code == pb.REFUSAL_CODE_ALREADY_JOINED and (joined > attempt.config.number or before):
                self._membership.ahead[session.identity] = joined
            attempt.refused(session, message, size)
        else:
            session.stray()

    async def upload(self, session: Session, chunks: AsyncIterator[bytes]) -> bytes:
        if self._attempt is None:
            raise UnexpectedUpload("no round is under way")
        return await self._attempt.upload(session, chunks)

    def _session_lost(self, session: Session, reason: str) -> None:
        if self._finished:
            return  # they have received StudyEnd
        number = self._membership.number(session.participant)
        self._emit(ParticipantLost(participant=number, host=session.host, reason=reason))
        if self._attempt is not None:
            self._attempt.away(session, reason, keep=reason in RESUMABLE)

    # ------------------------------------------------------------ the study

    async def restore(self) -> None:
        """Continue where the journal ends: the charges stay, the last model is loaded.

        Raises:
            InputFailure, OSError: the state file belongs to another study, or its checkpoint is gone or damaged.
            wire.records.ledger.LedgerError: the ledger is missing, another study's, or isn't what was written.
        """
        await self._journal.open_study(self.terms.study, self._study_bytes)
        membership = self._membership
        membership.use(membership.signed, await self._journal.use_roster(membership.roster))
        self.charges.restore(self._journal.charges(), self._journal.ledger_path)
        restore_exclusions(membership, self._journal)
        last = self._journal.last_round()
        if last is not None:
            self._last, checkpoint = last
            self._completed_rounds = self._last.round
            self._returns.completed = self._last.round, self._last.attempt
            self._model.restore(checkpoint, self._last.next_clips)
            before = await asyncio.to_thread(read_events, self._configuration.coordinator.state)
            view = StudyView().apply_all(before)
            self._progress, rested = view.progress, time.time() - view.last_at
            # For how long isn't known, only for how long at most.
            resting = [membership.roster.entries[who].identity for who in membership.positions(view.resting)]
            self.sessions.still_rest(resting, LONGEST_REST * REST_MOST_S + BACK_S - rested)
            log.info("resumed from the journal", round=self._completed_rounds)
        if self._transcripts is not None:
            await asyncio.to_thread(self._transcripts.restore, self._completed_rounds)
        if not await self._take_up():
            for round_, attempt in await self._journal.close_open_attempts():
                log.warning("an attempt was cut off by the last stop", round=round_, attempt=attempt)

    async def _take_up(self) -> bool:
        """Continue the attempt that the last stop cut off, up to where it waits for participants to come back."""
        found = self._journal.kept_attempt() if self._configuration.deadlines.resume_s else None
        if found is None or found[0].round != self._completed_rounds + 1:
            return False
        kept, record = found
        config = await self._configured(kept.round, kept.attempt)
        model_bytes, self._model_sha256 = await self._compute(self._model.serialised)
        config = replace(config, newest=kept.newest, model_digest=self._model_sha256)
        if config.round_context() != kept.context:
            return False  # for example of a later roster: its participants have another place there
        self._documents[self._model_sha256] = model_bytes
        self._rows = {(row.entry.round, row.entry.attempt): row for row in self._journal.charges()[-1:]}
        attempt = self._attempt_of(config, kept.cohort, record)
        # Nobody excluded was invited: the process before this one has found them in this attempt.
        excluded, number = self._membership.excluded, self._membership.number
        attempt.cheats = {who: excluded[number(who)] for who in kept.cohort if number(who) in excluded}
        self._resumed = asyncio.create_task(self._run_attempt(attempt))
        listening = asyncio.create_task(attempt.listening.wait())
        await asyncio.wait({self._resumed, listening}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        log.info("goes on with the attempt that was cut off", round=kept.round, attempt=kept.attempt)
        return True

    async def run(
        self, address: str, http_address: str = "", before_round: Callable[[int], Awaitable[None]] | None = None
    ) -> Outcome:
        """All rounds that are left.

        ``address``, ``http_address``: HOST:PORT of the session port and of the port for metrics, for the first event.
        ``before_round``: awaited with the number of each round, where another program says when one begins.

        Raises asyncio.CancelledError: the study was asked to stop; its next start continues.
        """
        began = time.monotonic()
        started = study_started(self._configuration, self.terms, self._parameters, self._membership)
        self._emit(replace(started, address=address, http_address=http_address))
        if (attempt := self._attempt) is not None:
            self._emit(AttemptResumed(**attempt.number))
            attempt.goes_on.set()
        outcome = STOPPED
        sampler = asyncio.create_task(self.loop_lag.run())
        try:
            outcome = await self._rounds(before_round)
        finally:  # if it is stopped, not ended, participants come back when the same study is served again
            self._finished = True
            sampler.cancel()
            event = StudyFinished(
                reason=outcome,
                failed=isinstance(sys.exception(), Exception),  # not that it was cancelled
                rounds_completed=self._completed_rounds,
                accuracy=None if self._last is None else self._last.accuracy,
                **self.charges.epsilons(),
                delta=self._plan.delta,
                wall_s=round(time.monotonic() - began, 2),
            )
            self._emit(event)
            if outcome == STOPPED:
                self.sessions.close_all()
            else:
                self.farewell.say(codec.message(study_end=pb.StudyEnd(reason=outcome)))
        return Outcome(outcome, self._completed_rounds)

    async def _rounds(self, before_round: Callable[[int], Awaitable[None]] | None) -> str:
        while self._completed_rounds < self._plan.rounds:
            if self._resumed is None and self._progress.stalled(self._configuration.evaluation.patience):
                return NO_BETTER
            round_ = self._completed_rounds + 1
            if before_round is not None:
                await before_round(round_)
            if not await self._one_round(round_):
                return BUDGET_REACHED if self._cohort_wait.exhausted else ABORTED
            if self._completed_rounds < self._plan.rounds and (pause_s := self._pace.pause_s) > 0:
                await self._pace.let_rest(self.sessions.all(), round_ + 1, pause_s)
                self._emit(Pausing(round=round_, left_s=pause_s))
                await asyncio.sleep(pause_s)  # sessions stay, and no deadline runs
        return ROUNDS_DONE

    async def _one_round(self, round_: int) -> bool:
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            self.farewell.rounds_were_left = True
            if await resumed:
                return True
        first = self._journal.last_attempt(round_) + 1
        for attempt in range(first, first + self._configuration.coordinator.max_attempts):
            if self._cohort_wait.exhausted:
                return False
            self.farewell.rounds_were_left = True
            if self._between_attempts is not None:
                self._between_attempts()
            # A drawn cohort is the round's: a version that comes between its attempts waits for the next one, or, if it
            # only adds participants, for the next epoch: some would be in two rounds of this one.
            if attempt == first or not self._plan.drawn:
                within = (round_ - 1) % self._plan.epoch_rounds > 0
                await self.roster_in_use.use_offered(only_removals=within and not self._membership.missing())
                await self._cohort_wait.enrolment(round_, attempt)
            await self.roster_in_use.wait_for_authority(round_, attempt)
            await self._compute(self._pace.look_ahead, round_)
            gathered = await self._cohort_wait.gather(round_, attempt)
            if gathered is not None and await self._one_attempt(*gathered):
                return True
        return False

    # ------------------------------------------------------------ the roster

    def has_identity(self, identity: bytes) -> bool:
        return identity in self._membership.roster.positions

    @property
    def roster_version(self) -> int:
        return self._membership.roster.version

    def offer_roster(self, roster_file: bytes, lottery_file: bytes | None) -> None:
        """A later version, signed by the authority: it is used from the next attempt on, with a lottery the next round.

        Raises InvalidRoster: see `server.membership.Membership.offer`.
        """
        self._membership.offer(roster_file, lottery_file)
        self.sessions.changed.set()

    async def _one_attempt(self, config: RoundConfig, cohort: frozenset[int]) -> bool:
        self.loop_lag.restart()
        self._documents.pop(self._model_sha256, None)
        model_bytes, self._model_sha256 = await self._compute(self._model.serialised)
        self._documents[self._model_sha256] = model_bytes
        del model_bytes  # so that a large one is freed as soon as all have it
        # Without those that left while the model was serialised: the first phase would wait for them.
        cohort &= self.sessions.ready()
        config = replace(config, model_digest=self._model_sha256)
        kept = self._configuration.deadlines.resume_s > 0 and is_kept(config, len(cohort))
        attempt = self._attempt_of(config, cohort, self._journal.new_record() if kept else NOTHING_KEPT)
        await self._journal.begin_attempt(config, cohort, kept=kept)
        absent = tuple(sorted(map(self._membership.number, config.invited - cohort)))
        self._emit(AttemptStarted(**attempt.number, cohort=len(cohort), absent=absent))
        others = [one for one in self.sessions.all() if one.participant not in cohort]
        self._resting = asyncio.create_task(self._pace.let_rest(others, config.round + 1))
        return await self._run_attempt(attempt)

    def _attempt_of(self, config: RoundConfig, cohort: frozenset[int], record: AttemptRecord) -> Attempt:
        """An attempt, which hears of sessions that end from here on."""
        self._attempt = Attempt(
            config,
            cohort,
            self.sessions,
            self._pace.deadlines_s(config.attempt),
            self._configuration.coordinator.upload_credits,
            self.workers,
            self._emit_numbered,
            self._freeze,
            self._charge,
            self._membership.signed.sha256,
            self._configuration.deadlines.resume_s,
            record,
        )
        return self._attempt

    async def _run_attempt(self, attempt: Attempt) -> bool:
        config, cohort, began, aborted = attempt.config, attempt.cohort, time.monotonic(), ""
        consequences = partial(draw_consequences, attempt, self._membership, self._journal, self._emit)
        try:
            completed = await attempt.run()
        except AttemptFailed as error:
            await self._journal.end_attempt(config.round, config.attempt, f"aborted: {error}")
            self._emit(
                AttemptAborted(
                    **attempt.number,
                    phase=error.phase,
                    reason=error.reason,
                    received=error.received,
                    needed=error.needed,
                    loop_lag_ms=self.loop_lag.figures(),
                )
            )
            aborted = f"aborted: {error.phase}"
        finally:
            self._attempt = None  # a participant that returns from here on hears at once that it is over
            self._returns.after(attempt)
        if aborted:
            await consequences()
            await self._round_end(config, cohort, aborted)
            self._membership.check_not_older(self._completed_rounds, attempt.ahead, config.number)
            return False
        self._returns.completed = config.number
        await consequences()
        await to_its_end(self._finish(attempt, completed, began))
        await self._round_end(config, cohort)
        return True

    async def _freeze(self, attempt: Attempt, check: ConsistencyCheck) -> None:
        self._membership.check_not_older(self._completed_rounds, attempt.ahead, attempt.config.number)
        self._documents.pop(self._model_sha256, None)  # all in the sum have fetched it
        await self._journal.freeze_survivors(*attempt.config.number, check)

    async def _charge(self, attempt: Attempt, unmasking: Unmasking, request: bytes) -> None:
        charged = [self._membership.number(who) for who in unmasking.u3]
        entry = await self._compute(self.charges.entry, *attempt.config.number, charged)
        before = self._rows.get(attempt.config.number)
        row = await self._journal.charge(entry, request, before)
        if before is None:
            await self._compute(self.charges.count, row)
        if self._transcripts is not None:
            signed, numbers = self._membership.signed.file, dict(enumerate(self._membership.numbers))
            excluded = self._membership.exclusions(besides=attempt.cheats)
            await self._compute(self._transcripts.note, unmasking, request, row, signed, numbers, excluded)
        u1, u2, u3 = len(unmasking.cohort.u1), len(unmasking.u2), len(unmasking.u3)
        known: dict[str, Any] = {**attempt.number, "ledger_rows": row.number, "ledger_head": row.hash.hex()}
        spent = await self._compute(self.charges.epsilons)
        self._emit(SurvivorsFrozen(**known, u1=u1, u2=u2, u3=u3, h=u3 - self._plan.colluders, **spent))

    async def _finish(self, attempt: Attempt, completed: Completed, began: float) -> None:
        round_, number = attempt.config.number
        learned: Learned = await self._compute(self._model.learn, completed)
        head = self._journal.ledger.head
        ledger = {"ledger_rows": head.rows, "ledger_head": head.hash.hex()}
        took = {"seconds": round(time.monotonic() - began, 3), "loop_lag_ms": self.loop_lag.figures()}
        figures: dict[str, Any] = {**took, **self.charges.epsilons(), **process_figures(), **ledger}
        event = round_completed(self._plan, attempt, completed, learned, self._membership, **figures)
        if (event.wrapped_share or 0.0) > _MUCH_WRAPPING:
            log.warning("coordinates of the sum wrapped around: more bits or a larger k_stddevs help", round=round_)
        name = await asyncio.to_thread(self._model.save, round_)
        if self._transcripts is not None:
            digest = await self._compute(self._model.sha256)
            identity = self._membership.roster.identity
            caught = {identity(who): reason for who, reason in attempt.cheats.items()}
            await asyncio.to_thread(self._transcripts.finish, round_, number, learned.sum_sha256, digest, caught)
        event = await self._journal.complete_round(event, name)
        if self._transcripts is not None:
            await asyncio.to_thread(self._transcripts.publish, round_)
        self._completed_rounds, self._last = round_, event
        self._progress.note(round_, event.accuracy, event.loss, event.reported)
        self._pace.note(event)
        self._tell(event)

    # ------------------------------------------------------------ helpers

    async def _configured(self, round_: int, attempt: int) -> RoundConfig:
        return await self._compute(self._round_config, round_, attempt)

    def _round_config(self, round_: int, attempt: int) -> RoundConfig:
        """Of an attempt whose model isn't serialised yet; with its cohort, which takes a moment for a large roster."""
        config = RoundConfig(
            roster=self._membership.roster,
            round=round_,
            attempt=attempt,
            study_digest=self._study_sha256,
            model_digest=bytes(32),
            parameters=self._parameters,
            ticket=self._membership.ticket(round_),
            newest=self.roster_in_use.stated()[0],
        )
        assert config.invited  # noqa: S101  # found here, in the worker
        return config

    async def _round_end(self, config: RoundConfig, cohort: frozenset[int], aborted: str = "") -> None:
        end = pb.RoundEnd(round=config.round, attempt=config.attempt, completed=not aborted, reason=aborted)
        outgoing = Outgoing(self.sessions.get, set(cohort), self._compute)
        await outgoing.broadcast(cohort, codec.message(round_end=end))

    def _emit_numbered(self, event: Event) -> None:
        """Emit an event of an attempt, which names participants by their position in its roster."""
        if isinstance(event, ParticipantDropped | ParticipantResumed):
            event = replace(event, participant=self._membership.number(event.participant))
        self._emit(event)

    def _emit(self, event: Event) -> None:
        self._tell(self._journal.emit(event))

    def _tell(self, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(event)

    def close(self) -> None:
        if self._resumed is not None:
            self._resumed.cancel()
        self.sessions.close()
        self.workers.close()
