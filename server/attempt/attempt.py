"""One attempt of a round: drives the protocol core through its phases against real sessions and clocks.

Everything that arrives goes through one inbox and is handled in order; arithmetic runs in the worker thread, never on
the event loop. A phase ends as soon as all expected participants have answered or left, at the latest at its
deadline. With too few the attempt aborts and nothing is revealed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from secagg.context import RoundConfig
from secagg.errors import InvalidMessage, ProtocolError, ReconstructionFailed, TooFewClients
from secagg.messages import (
    ADVERTISE_KEYS,
    CONSISTENCY_CHECK,
    MASKED_INPUT,
    MaskedInput,
    Messages,
    SurvivorSets,
    UnmaskingRequest,
)
from secagg.server_phases import AdvertiseKeys, ConsistencyCheck, MaskedInputCollection
from secagg.server_unmasking import Completed, Unmasking
from server.attempt.inbox import Arrival, Back, Inbox, Left, PartialSum
from server.attempt.outgoing import AT_ONCE, AttemptTraffic, Outgoing
from server.attempt.reconnection_slots import ReconnectionSlots
from server.attempt.record import LATE, AttemptRecord, replay
from server.attempt.steps import REFUSALS, REJECTED, AttemptFailed, AttemptFigures, Late, Said, Step, WaitReports
from server.attempt.uploads import Staged, UnexpectedUpload, Uploads, most_credits
from server.events import Event, ParticipantDropped, ParticipantResumed, PhaseEnded, PhaseProgress, PhaseStarted
from server.sessions import CLOSED, Session, Sessions
from server.workers import Workers
from wire import codec, coordinator_pb2 as pb
from wire.codec import MalformedMessage

PROGRESS_INTERVAL_S = 0.5
RETURN_S = 15.0  # for participants to find a coordinator that was started again

Proof = tuple[frozenset[bytes], bytes]  # identities that a survivor proof is for, and the message


class Attempt:
    """Runs one attempt; `run` returns the sum or raises `AttemptFailed`."""

    def __init__(
        self,
        config: RoundConfig,
        cohort: frozenset[int],  # participants to invite, all with a session
        sessions: Sessions,
        deadlines_s: Mapping[str, float],  # for each phase by its name
        upload_credits: int,
        workers: Workers,  # for arithmetic
        emit: Callable[[Event], None],
        freeze: Callable[[Attempt, ConsistencyCheck], Any],  # awaited before u3 is sent to any participant
        charge: Callable[[Attempt, Unmasking, bytes], Any],  # awaited before shares are asked for, with the signatures
        roster_sha256: bytes,  # of the signed roster file, by which participants fetch it
        resume_s: float,  # how long a participant whose connection broke keeps its reconnection slot
        record: AttemptRecord,  # on the disk; one that an earlier process began goes on from there, after `goes_on`
    ) -> None:
        self.config, self.cohort, self._record = config, cohort, record
        self.listening, self.goes_on = asyncio.Event(), asyncio.Event()
        self._sessions, self._deadlines_s, self._workers = sessions, deadlines_s, workers
        self._emit, self._freeze, self._charge = emit, freeze, charge
        self._roster_sha256, self._compute = roster_sha256, workers.compute
        self._inbox = Inbox(config.parameters)
        self._alive = set(cohort)
        here = {who: session for who in cohort if (session := sessions.get(who)) is not None}
        self._slots = ReconnectionSlots(here, resume_s, self.lost)
        self.session_of, self.put = self._slots.get, self._inbox.put
        self._outgoing = Outgoing(self.session_of, self._alive, self._compute)
        self.traffic = AttemptTraffic(self._inbox.bytes, self._outgoing.bytes)
        self.number: dict[str, Any] = {"round": config.round, "attempt": config.attempt}  # of events and messages
        self._waiting: set[int] = set()  # of the phase under way: may still answer
        self._answered: set[int] = set()  # have answered, and it counts
        self._deadline = 0.0  # of that phase, monotonic
        size = config.parameters.upload_size
        far, held = sessions.elsewhere, most_credits(upload_credits, size)
        if far is None:
            self._uploads = Uploads(size, held, self.grant_credit, self.upload_failed)
        else:
            self._uploads = far.uploads(self, held)
        self.figures = AttemptFigures()
        self.proof: Proof | None = None  # once there is a sum that a charged participant isn't in
        self.cheats: dict[int, str] = {}  # participant -> what it did that no honest one does
        self.conflicts: Mapping[int, frozenset[int]] = {}  # dealer -> holders without a share of it: either has cheated
        self.ahead: set[int] = set()  # that say they have received more of it than it has sent
        self.starved: frozenset[int] = frozenset()  # dealers who ended the attempt by that, if they did

    # ------------------------------------------------------------ from the service

    def deliver(self, session: Session, said: Said, size: int) -> None:
        """A phase message of this attempt arrived; ``size`` in bytes."""
        if self._takes(session):
            self._inbox.put_message(session.participant, said, size)

    def refused(self, session: Session, message: pb.Refusal, size: int) -> None:
        if self._takes(session):
            self._inbox.put_message(session.participant, Left(REFUSALS.get(message.code, "refused")), size)

    def _takes(self, session: Session) -> bool:
        """Whether its participant is still in the attempt and within its limits; else the message is a stray one."""
        who = session.participant
        takes = who in self._alive and self._inbox.takes(who) and self._slots.speaks(session)
        if takes:
            session.strays = 0
        else:
            session.stray()
        return takes

    def lost(self, participant: int, reason: str) -> None:
        self._inbox.put(participant, Left(reason))

    def away(self, session: Session, reason: str, *, keep: bool) -> None:
        """A participant's session ended. ``keep``: its place, for a while."""
        if session.participant in self._alive:
            self._slots.away(session, reason, keep=keep)

    def returned(self, session: Session, resume: pb.Resume | None) -> bool:
        """A participant has opened a new session, and says what has reached it if it can go on.

        Returns whether the attempt answers; if not, it isn't a matter of this attempt, or its place is gone.
        """
        who = session.participant
        if who not in self._alive:
            return False
        if resume is None and self._inbox.messages[who] == 0 and self.figures.phase == ADVERTISE_KEYS:
            received = 0  # not even the announcement has reached it; or it was started again, and will say so
        elif resume is None:
            self._slots.give_up(who)  # it was started again: what it would need is gone
            return True
        else:
            received = resume.received
        if not self._slots.coming(session):
            self.lost(who, "its connection breaks again and again")
        self._inbox.put(who, Back(session, received))
        return True

    async def upload(self, session: Session, chunks: AsyncIterator[bytes]) -> bytes:
        """Stage and add one vector; returns and raises as `Uploads.receive`."""
        if not self._slots.speaks(session):
            raise UnexpectedUpload("no upload is expected on this session")
        put, broken, failed = self._inbox.put, self.upload_broken, self.upload_failed
        return await self._uploads.receive(session.participant, chunks, put, broken, failed)

    def hears_it_first(self, participant: int) -> bool:
        """Whether what this participant says of the attempt can only be about the announcement that it has just got.

        Not of one that was back in between, nor where another process of the coordinator has announced it.
        """
        return participant in self._alive and self._record.kept is None and not self._slots.returns(participant)

    # ------------------------------------------------------------ the phases

    async def run(self) -> Completed:
        try:
            return await self._run()
        except TooFewClients as error:
            raise AttemptFailed(
                error.phase, f"{error.received} participants, {error.needed} needed", error.received, error.needed
            ) from error
        except ReconstructionFailed as error:
            self.cheats.update(error.culprits)
            raise AttemptFailed(self.figures.phase, "shares rebuild no secret", 0, 0) from error
        except ProtocolError as error:
            raise AttemptFailed(self.figures.phase, str(error), 0, 0) from error
        finally:
            self._slots.close()
            self._uploads.close()
            self._inbox.close()

    async def _run(self) -> Completed:
        parameters, round_, attempt = self.config.parameters, self.config.round, self.config.attempt
        advertise: AdvertiseKeys = await self._compute(AdvertiseKeys, self.config, self.cohort)
        start = pb.RoundStart(
            **self.number,
            model_sha256=self.config.model_digest,
            study_sha256=self.config.study_digest,
            roster_sha256=self._roster_sha256,
            ticket=codec.write_ticket(self.config.ticket),
            newest=self.config.newest,
        )
        await self._outgoing.broadcast(self.cohort, codec.message(round_start=start))
        await self._phase(Step(advertise, self.cohort, parameters.quorum, leave=advertise.drop, kept=True))
        share, cohort_keys = await self._compute(advertise.close)

        writer = codec.CohortKeysWriter(round_, attempt)
        await self._outgoing.each(cohort_keys, writer.write)
        del writer, cohort_keys
        await self._phase(Step(share, frozenset(share.cohort.u1), parameters.quorum, leave=share.drop, kept=True))
        masked, shares = await self._compute(share.close)

        await self._outgoing.each(shares, codec.NeighbourSharesWriter(round_, attempt).write)
        # The ciphertexts hold both kinds of share. They are freed, with the paths, once all have answered: until then a
        # participant may return that lacks its own (decision 0012).
        del shares
        kept = self._record.kept
        if kept is not None and kept.masked_sum is not None:
            await self._compute(masked.restore, kept.uploads, kept.masked_sum)
            self._are_back(MASKED_INPUT, masked.received)
        else:
            least = parameters.min_survivors
            await self._phase(Step(masked, masked.u2, least, take=masked.check_offer, then=self._queue_offer))
        check, sets = await self._compute(masked.close)

        await self._freeze(self, check)
        survivors = next(iter(sets.values()))
        survivor_sets = codec.message(survivor_sets=codec.write_survivor_sets(round_, attempt, survivors))
        late = None
        if parameters.signed:
            unmasking, late = await self._signed(check, sets, survivor_sets)
        else:
            unmasking = await self._compute(check.without_signatures)
            await self._charge(self, unmasking, b"")
            await self._outgoing.broadcast(sets, survivor_sets)
        completed = await self._open(unmasking, late)
        if self.figures.first_key_at is not None:
            self.figures.key_to_sum_s = time.monotonic() - self.figures.first_key_at
        return completed

    async def _signed(
        self, check: ConsistencyCheck, sets: Mapping[int, SurvivorSets], survivor_sets: bytes
    ) -> tuple[Unmasking, Late]:
        """Collect enough signatures over the sets, charge, request shares; returns also how to handle late signers."""
        round_, attempt = self.config.round, self.config.attempt
        ends = time.monotonic() + self._deadlines_s[CONSISTENCY_CHECK]

        await self._outgoing.broadcast(sets, survivor_sets)
        # The more have signed, the fewer signatures each participant checks.
        await self._phase(Step(check, check.u3, check.needed, suffices=lambda: check.proven, linger=1.0, kept=True))
        unmasking, requests = await self._compute(check.close)

        # The signatures that are journaled with the charge.
        shown = UnmaskingRequest(check.proof)
        request = codec.write_unmasking_request(round_, attempt, shown).SerializeToString()
        await self._charge(self, unmasking, request)
        writer, complete = codec.UnmaskingRequestWriter(round_, attempt), unmasking.cohort.graph.complete
        to_everybody = await self._compute(writer.write, next(iter(requests.values()))) if complete else b""

        async def ask(requests: Messages[UnmaskingRequest]) -> None:
            if complete:
                await self._outgoing.broadcast(requests, to_everybody)
            else:
                await self._outgoing.each(requests, writer.write)

        kept = self._record.kept.phases.get(LATE, {}) if self._record.kept else {}
        late = set(kept)  # from the beginning: those that come later mustn't take their place on record

        async def admit(who: int, message: pb.PhaseMessage) -> None:
            admitted = await self._compute(unmasking.admit, who, codec.read_consistency(message.consistency))
            late.add(who)
            self._record.keep(LATE, who, message.SerializeToString())
            await self._record.close(LATE, late)
            await ask(admitted)

        await ask(requests)
        for who, written in kept.items():
            self._are_back(CONSISTENCY_CHECK, (who,), whole=False)
            await admit(who, pb.PhaseMessage.FromString(written))
        # A charged participant that isn't in this sum may take its charge back: no other sum can be opened now.
        proof = codec.message(
            survivor_proof=codec.write_survivor_proof(round_, attempt, next(iter(sets.values())), shown)
        )
        outside = sorted(unmasking.u2 - unmasking.u3)
        self.proof = frozenset(map(self.config.roster.identity, outside)), proof
        for who in outside:
            session = self._sessions.get(who)
            if session is not None:
                session.send(proof)
        return unmasking, Late(CONSISTENCY_CHECK, admit, ends)

    async def _open(self, unmasking: Unmasking, late: Late | None) -> Completed:
        """Open the sum with enough shares; if some are inconsistent, once all have answered.

        Where survivors take noise back, the others have as long again as it took until enough had answered, and half a
        second at least: the noise of who doesn't answer stays in.
        """
        inconsistent = False
        linger = 1.0 if self.config.parameters.released_seeds(len(unmasking.u3)) else 0.0

        def suffices() -> bool:
            return unmasking.enough and not inconsistent

        try:
            while True:
                step = Step(unmasking, unmasking.u3, unmasking.needed, suffices=suffices, late=late)
                await self._phase(replace(step, linger=linger, linger_s=linger / 2))
                try:
                    completed: Completed = await self._compute(unmasking.close, self._workers.parallel)
                except ReconstructionFailed:
                    if inconsistent:
                        raise
                    if not (unmasking.u3 & self._alive) - unmasking.received:
                        raise
                    inconsistent = True
                else:
                    self.cheats.update(completed.cheats)
                    return completed
        finally:
            self.conflicts, self.starved = unmasking.conflicts, unmasking.starved

    # ------------------------------------------------------------ one phase

    async def _phase(self, step: Step) -> None:
        """One phase, collected, or as an earlier process of the coordinator closed it."""
        kept = self._record.kept
        if kept is not None and (messages := kept.phases.get(step.name)) is not None:
            await self._compute(replay, step, messages)
            # Who hasn't signed before the sum was asked for may still do so; else it had left.
            self._are_back(step.name, messages, whole=step.name != CONSISTENCY_CHECK)
            return
        if kept is not None and not self.listening.is_set():
            self.listening.set()
            await self.goes_on.wait()
            for who in sorted(self._alive):
                self._slots.expect(who, CLOSED, RETURN_S)
        if self._sessions.elsewhere is not None:
            await self._sessions.elsewhere.check_there(step, self.config.number, self._compute)
        await self._collect(step)
        if step.kept:
            await self._record.close(step.name, step.phase.received)

    def _are_back(self, phase: str, members: Collection[int], *, whole: bool = True) -> None:
        """A phase is as it was when it was closed: these have answered. ``whole``: all others had left."""
        for who in members:
            self._inbox.messages[who] += 1
            self._outgoing.answered(who)
        if whole:
            self._alive.intersection_update(members)
        self.figures.received[phase] = self.figures.received.get(phase, 0) + len(members)

    async def _collect(self, step: Step) -> None:
        """Wait until all have answered or left, enough have answered, too few still can, or the deadline has passed."""
        name, needed = step.name, step.needed
        self.figures.begin(name)
        began = time.monotonic()
        self._deadline = began + self._deadlines_s[name]
        if step.late is not None:
            self._deadline = max(self._deadline, step.late.ends)
        self._answered = set(step.phase.received)  # empty, unless the phase continues
        self._waiting = set(step.expected & self._alive) - self._answered
        expected, deadline_s = len(step.expected), self._deadlines_s[name]
        self._emit(PhaseStarted(**self.number, phase=name, expected=expected, needed=needed, deadline_s=deadline_s))
        reports = WaitReports()
        too_few: TooFewClients | None = None
        ends: float | None = None
        while self._waiting:
            now = time.monotonic()
            if step.enough:
                ends = ends or now + max(step.linger * (now - began), step.linger_s)
                self._deadline = min(self._deadline, ends)
                if self._deadline <= now:
                    break
            possible = len(self._answered) + len(self._waiting)
            if possible < needed:
                # Waiting longer is useless, and participants that could still answer are not to blame.
                too_few = TooFewClients(name, possible, needed)
                break
            left_s = self._deadline - now
            if left_s <= 0:
                for who in sorted(self._waiting):
                    await self._leave(step, who, "did not answer before the deadline")
                break
            left, received = round(left_s, 1), len(self._answered)
            if reports.due((received, round(self._deadline)), PROGRESS_INTERVAL_S, now):
                counts = {"received": received, "expected": expected, "needed": needed}
                self._emit(PhaseProgress(**self.number, phase=name, **counts, left_s=left))
            try:
                # Not wait_for: with Python 3.11 it can swallow the cancellation by which a study is stopped.
                async with asyncio.timeout(min(left_s, PROGRESS_INTERVAL_S)):
                    who, item = await self._inbox.get()
            except TimeoutError:
                continue
            await self._handle(step, who, item)
        assert self._answered == step.phase.received  # noqa: S101  # counted twice, by the core and here
        seconds, received = round(time.monotonic() - began, 4), len(self._answered)
        self.figures.phase_seconds[name], self.figures.received[name] = seconds, received
        self._emit(PhaseEnded(**self.number, phase=name, received=received, seconds=seconds))
        if too_few is not None:
            raise too_few

    async def _handle(self, step: Step, who: int, item: Arrival) -> None:
        if isinstance(item, Back):
            await self._resume(step, who, item)
            return
        if isinstance(item, PartialSum):
            await self._merge(step, item)
            return
        if who not in self._alive:
            if isinstance(item, Staged):
                item.settle(False)
            return
        try:
            if isinstance(item, Said) and item.phase is None:
                raise MalformedMessage("an empty phase message")
            if isinstance(item, Left):
                await self._leave(step, who, item.reason)
            elif isinstance(item, Staged):
                await self._add_staged(step, who, item)
            elif step.late is not None and item.phase == step.late.name:
                self._outgoing.answered(who)
                await step.late.handle(who, pb.PhaseMessage.FromString(item.written))
                in_time = min(time.monotonic(), step.late.ends)
                self._deadline = max(self._deadline, in_time + self._deadlines_s[step.name])
            elif item.phase == step.name:  # else late: its phase is over, and it was dropped there or didn't count
                await self._handle_several(step, who, item)
        except REJECTED as error:
            await self._reject(step, who, getattr(item, "phase", None) or step.name, error)

    async def _handle_several(self, step: Step, first: int, item: Said) -> None:
        """A message of the phase under way, with those of others that wait behind it: each way to the worker costs."""
        if item.kind == "advertise_keys" and self.figures.first_key_at is None:
            self.figures.first_key_at = time.monotonic()
        several = self._inbox.with_others_behind(first, item, self._alive, AT_ONCE)
        outcomes = await self._compute(step.handle_each, several)
        for who, outcome in outcomes.items():
            try:
                if isinstance(outcome, Exception):
                    raise outcome
                if step.kept:
                    self._record.keep(step.name, who, several[who].written)
                (step.then or self._counts)(who, outcome)
            except REJECTED as error:
                await self._reject(step, who, step.name, error)

    async def _reject(self, step: Step, who: int, phase: str, error: Exception) -> None:
        reason = getattr(error, "reason", None) or str(error)
        if isinstance(error, (InvalidMessage, MalformedMessage)):
            # No honest participant sends such a message, whatever it received, and no one else can send in its name.
            self.cheats[who] = f"{phase}: {reason}"
        await self._leave(step, who, reason)

    async def _resume(self, step: Step, who: int, back: Back) -> None:
        """Handle a return in its turn: say how much has arrived, and send again what the participant lacks."""
        if who not in self._alive:
            back.session.send(self._left_out("its place was given up"))
            return
        if not self._slots.back(back.session):
            return
        count = self._outgoing.number[who]
        if back.received > count:
            self.ahead.add(who)
        if back.received:
            messages, uploaded = self._inbox.messages[who], self._uploads.complete(who)
            resumed = pb.Resumed(**self.number, received=messages, uploaded=uploaded)
            self._outgoing.tell(who, codec.message(resumed=resumed))
        if back.received != count and not (back.received == count - 1 and await self._outgoing.again(who)):
            await self._leave(step, who, "can't have received what it says")
            return
        offset = self._uploads.again(who)
        if offset is not None:
            self.grant_credit(who, offset)
        self._emit(ParticipantResumed(**self.number, phase=step.name, participant=who))

    def _counts(self, who: int, message: object = None) -> None:
        self._outgoing.answered(who)
        self._waiting.discard(who)
        self._answered.add(who)

    async def _leave(self, step: Step, who: int, reason: str) -> None:
        """Out of the attempt, and out of the phase where that costs the others nothing."""
        self._drop(who, step.name, reason)
        if step.leave is not None:
            await self._compute(step.leave, who)
            self._answered.discard(who)

    def _queue_offer(self, who: int, offer: MaskedInput) -> None:
        self._outgoing.answered(who)
        self._uploads.offer(who, offer.sha256, offer.signature)

    async def _add_staged(self, step: Step, who: int, staged: Staged) -> None:
        taken = False
        try:
            if step.name == MASKED_INPUT:
                await self._compute(step.phase.receive, who, staged.message)
                taken = True
                self._vector_counts(who)
        finally:
            staged.settle(taken)
            self._uploads.forget(who)

    async def _merge(self, step: Step, item: PartialSum) -> None:
        """Several vectors at once, all or none: some of their participants may have been dropped meanwhile."""
        phase, taken = step.phase, item.uploads.keys() & self._waiting
        if not isinstance(phase, MaskedInputCollection):
            taken = set()
        elif taken == item.uploads.keys():
            await self._compute(phase.merge, item.uploads, item.total)
            for who in taken:
                self._vector_counts(who)
        item.settle(taken)

    def _vector_counts(self, who: int) -> None:
        self.traffic.vectors[who] += self.config.parameters.upload_size
        self._counts(who)

    def upload_broken(self, participant: int, reason: str) -> None:
        """An upload ended too early."""
        self._slots.expect(participant, f"upload failed: {reason}")

    def upload_failed(self, participant: int, reason: str, *, malformed: bool = False) -> None:
        """An upload broke off: nothing of it counts, and its credit goes on.

        ``malformed``: it could never have been a vector.
        """
        if malformed:
            self.cheats[participant] = f"{MASKED_INPUT}: {reason}"
        self.lost(participant, f"upload failed: {reason}")

    # ------------------------------------------------------------ helpers

    def grant_credit(self, participant: int, offset: int = 0) -> None:
        credit = pb.UploadCredit(**self.number, offset=offset)
        self._outgoing.tell(participant, codec.message(upload_credit=credit))

    def _drop(self, who: int, phase: str, reason: str) -> None:
        """Out of this attempt; the session stays, so that the participant can join the next one."""
        self._alive.discard(who)
        self._waiting.discard(who)
        self._uploads.forget(who)
        self._slots.forget(who)
        self._outgoing.answered(who)
        self.figures.dropouts += 1
        host = self.config.roster.entries[who].host
        self._emit(ParticipantDropped(**self.number, phase=phase, participant=who, host=host, reason=reason))
        session = self._sessions.get(who)
        if session is not None:
            session.send(self._left_out(reason))

    def _left_out(self, reason: str) -> bytes:
        return codec.message(round_end=pb.RoundEnd(**self.number, completed=False, reason=f"left out: {reason}"))
