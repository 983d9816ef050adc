"""One participant, which takes part in the rounds of a study through the protocol core.

Training begins when a round is announced and runs beside the key exchange. State that must be durable is written before
the message that depends on it. A failure ends only the attempt, and only for this participant.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeVar

import structlog

from client.behaviour import HONEST, Behaviour, Encoding, Number
from client.conditions import NotNow, running
from client.connection import AHEAD, DocumentMismatch, DocumentUnavailable, Session, UploadRejected
from client.journal import AlreadyJoined
from client.policy import PolicyRefusal, check_clips, check_round
from client.resuming import ResumableSession
from client.study_terms import HostProcess, StudyAcceptance, StudyTerms
from client.training import Contribution, LocalTraining
from mechanisms.encoder import InvalidUpdate, Words
from runtime.durable import StorageError
from runtime.text import peer_text
from secagg.client_cohort import Cohort
from secagg.client_phases import AdvertiseKeys, MaskedInputCollection, ShareKeys
from secagg.client_unmasking import Answered, ConsistencyCheck, Unmasking, UnsignedUnmasking, excluding_survivors
from secagg.context import RoundConfig
from secagg.errors import CoordinatorMisbehaved
from secagg.keys import IdentityKey
from secagg.messages import Advertisement, SurvivorSets, UnmaskingRequest
from secagg.roster import InvalidRoster
from wire import codec, coordinator_pb2 as pb
from wire.codec import MalformedMessage
from wire.guarantee import ENCODING_SHARE
from wire.records.ledger_rows import EXACT, EXCLUDED, LedgerEntry, make_entry
from wire.round_model import RoundModel, read_model
from wire.study import round_parameters

P = ParamSpec("P")
T = TypeVar("T")
Phase = TypeVar("Phase")


class Resting(Exception):
    """The coordinator doesn't need this participant for some ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class Charge(NamedTuple):
    """The last charge, while it may be withdrawn."""

    terms: StudyTerms
    number: Number
    cohort: Cohort


@dataclass
class _Attempt:
    """The attempt under way; its phase is the result of the core's last step."""

    number: Number
    terms: StudyTerms
    model_sha256: bytes
    phase: object
    leaves: float  # the event loop's time, before which the offer isn't sent
    model: asyncio.Task[RoundModel] = field(repr=False)
    made: asyncio.Task[Contribution | None] = field(repr=False)
    agreed: asyncio.Future[None] | None = field(default=None, repr=False)  # mask keys, computed while others deal
    offering: asyncio.Task[None] | None = field(default=None, repr=False)  # waits for the update and the offset
    packed: bytes | bytearray | None = field(default=None, repr=False)  # until the coordinator names the survivors
    uploaded: bool = False  # the coordinator has it; one that is started again may have lost it
    offset: int = 0  # where the coordinator's copy ends
    charged: asyncio.Event = field(default_factory=asyncio.Event, repr=False)

    def is_over_after(self, kind: str, message: Any) -> bool:
        """Whether a message that waits for its turn ends this attempt."""
        number = (getattr(message, "round", 0), getattr(message, "attempt", 0))
        return (kind == "round_end" and number == self.number) or (kind == "round_start" and number != self.number)

    def drop(self) -> None:
        self.model.cancel()
        self.made.cancel()
        for task in (self.agreed, self.offering):
            if task is not None:
                task.cancel()


class Participant:
    """One identity with its data, in a process that may host several."""

    def __init__(
        self,
        identity: IdentityKey,
        process: HostProcess,
        study: StudyAcceptance,
        training: LocalTraining,
        *,
        may_begin: Callable[[], bool] = lambda: True,
        behaviour: Behaviour = HONEST,
    ) -> None:
        """``may_begin``: called when an attempt is announced; if it returns False, the participant leaves instead."""
        self.identity, self.training, self.behaviour = identity, training, behaviour
        self._policy, self._journal, self._executor = process.settings.policy, process.journal, process.executor
        self._data_names, self._study, self._lines = process.data_names, study, study.lines
        self._may_begin = may_begin
        self._terms: StudyTerms | None = None
        self._attempt: _Attempt | None = None
        # Read but not handled: an attempt continues while its session breaks and another one is opened.
        self._inbox: asyncio.Queue[tuple[Session, str, Any]] = asyncio.Queue(AHEAD)
        self._session = ResumableSession()
        self._worker: asyncio.Task[None] | None = None
        self._answering = False
        self._charged: Charge | None = None
        self._log = structlog.get_logger().bind(participant=identity.public.hex()[:8])

    @property
    def under_way(self) -> bool:
        """Whether an attempt or the handling of a message is, so that the participant shouldn't leave now."""
        return self._answering or self._attempt is not None or self._session.number is not None

    async def take_part(self, session: Session, terms: StudyTerms) -> str | None:
        """Handle messages until the study or the session ends; an attempt under way stays for the next session.

        Returns the coordinator's reason for the end of the study; None if the stream ended without one.

        Raises grpc.aio.AioRpcError: the stream broke; TimeoutError: the coordinator is silent; NotNow: an attempt was
        announced, and `may_begin` returned False; Resting: it isn't needed now.
        """
        await self.rest(0)
        if self._terms is not None and self._terms.study_sha256 != terms.study_sha256:
            await self.close()
        self._terms = terms
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

        await self._say((0, 0), "ready", self._session.attach(session), session)
        async with running(self._listen(session), session.beat()) as (listening, beating):
            try:
                await asyncio.wait({listening, beating, self._worker}, return_when=asyncio.FIRST_COMPLETED)
                await self.rest(0)
                if not listening.done():
                    beating.result()  # which only ever raises
                reason: str | None = listening.result()
                return reason
            except asyncio.CancelledError:
                await session.leave()
                raise
            finally:
                self._session.detach(session)

    async def rest(self, seconds: float) -> None:
        """Wait between two sessions; raises the error that ended the handling of messages, if there is one."""
        if self._worker is None:
            await asyncio.sleep(seconds)
        elif (await asyncio.wait({self._worker}, timeout=seconds))[0]:
            self._worker.result()

    async def close(self) -> None:
        """End everything under way: no session follows."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        self._drop_attempt()
        self._inbox, self._session = asyncio.Queue(AHEAD), ResumableSession()
        self._lines.gone(self.identity.public)

    async def _listen(self, session: Session) -> str | None:
        async for message in session.messages():
            kind = message.WhichOneof("message")
            if kind in (None, "heartbeat"):
                continue
            content, attempt = getattr(message, kind), self._attempt
            if attempt is not None and attempt.offering is not None and attempt.is_over_after(kind, content):
                attempt.offering.cancel()  # else the next attempt would begin without this participant
            if kind == "round_start" and not self._may_begin():
                await self._inbox.join()  # all that came before
                self._drop_attempt()
                self._session.leave()
                await session.leave()
                raise NotNow
            if kind == "rest":
                if not self.under_way:
                    await session.leave(resting=True)
                    raise Resting(content.seconds)
                continue
            if kind == "study_end":
                self._session.end()
                await self._inbox.join()
                return str(content.reason)
            if kind == "resumed" and not await self._session.heard(kind, content):
                if attempt is not None:
                    attempt.uploaded = content.uploaded
                continue
            await self._inbox.put((session, kind, content))
            # Only once there was room for it: a counted message is never sent again, and a session can end meanwhile.
            if kind != "resumed":
                await self._session.heard(kind, content)
        return None

    async def _work(self) -> None:
        while True:
            session, kind, content = await self._inbox.get()
            self._answering = True
            try:
                # A credit of an earlier session is void: the coordinator grants it again.
                if kind != "upload_credit" or self._session.is_on(session):
                    await self._guarded(kind, content)
                    self.behaviour.handled(None)
            except Exception as error:
                self.behaviour.handled(error)
                raise
            finally:
                self._answering = False
                self._inbox.task_done()

    async def _guarded(self, kind: str, message: Any) -> None:
        """Handle a message; a failure refuses the attempt and has no other effect."""
        number = (getattr(message, "round", 0), getattr(message, "attempt", 0))
        log = self._log.bind(round=number[0], attempt=number[1])
        try:
            await self._handle(kind, message)
        except (CoordinatorMisbehaved, MalformedMessage, DocumentMismatch) as error:
            log.warning("refused", reason=str(error))
            await self._refuse(number, pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED)
        except PolicyRefusal as error:
            log.warning("refused by policy", rule=error.reason, reason=str(error))
            await self._refuse(number, pb.REFUSAL_CODE_BUDGET if error.own_budget else pb.REFUSAL_CODE_POLICY)
        except UploadRejected as error:
            # Usually the coordinator has dropped this participant already; otherwise this spares it the deadline.
            log.info("upload not taken", reason=str(error))
            await self._refuse(number, pb.REFUSAL_CODE_LOCAL_FAILURE)
        except DocumentUnavailable as error:
            log.info("no model", reason=str(error))
            await self._refuse(number, pb.REFUSAL_CODE_LOCAL_FAILURE)
        except AlreadyJoined as error:
            log.info("skips this attempt: it joined it, or a later one, before")
            await self._refuse(number, pb.REFUSAL_CODE_ALREADY_JOINED, error.latest)
        except StorageError as error:
            remedy = "make room" if "disk is full" in str(error) else "see that this folder is there and writable"
            reason = f"nothing can be written down, so nothing is sent: {error}; {remedy}, and start join again"
            log.error("failed", error=type(error).__name__, reason=reason)
            await self._refuse(number, pb.REFUSAL_CODE_LOCAL_FAILURE)
        except (InvalidUpdate, ValueError, ArithmeticError) as error:
            # Only the error's type: an update's content never reaches a log.
            log.error("failed", error=type(error).__name__)
            await self._refuse(number, pb.REFUSAL_CODE_LOCAL_FAILURE)

    async def _refuse(self, number: Number, code: pb.RefusalCode, joined: Number = (0, 0)) -> None:
        self._drop_attempt()
        self._over(number, "refused here, see above")
        refusal = pb.Refusal(
            round=number[0], attempt=number[1], code=code, joined_round=joined[0], joined_attempt=joined[1]
        )
        await self._say(number, "refusal", refusal)

    async def _handle(self, kind: str, message: Any) -> None:
        match kind:
            case "round_start":
                await self._begin(message)
                return
            case "resumed":
                raise CoordinatorMisbehaved("Resumed", "the count is impossible, or no session asked to resume")
            case "survivor_proof":
                await self._take_back(message)
                return
        attempt = self._attempt
        if attempt is None or (message.round, message.attempt) != attempt.number:
            return  # about an attempt this participant is no longer in
        match kind:
            case "cohort_keys":
                sharing = _expect(attempt.phase, ShareKeys, kind)
                collecting, shares = await self._compute(sharing.receive, codec.read_cohort_keys(message))
                attempt.phase = collecting
                await self._say(attempt.number, "share_keys", codec.write_sealed_shares(shares))
                attempt.agreed = asyncio.ensure_future(self._compute(collecting.agree))
                attempt.agreed.add_done_callback(_retrieve)
            case "neighbour_shares":
                await self._mask(attempt, message)
            case "upload_credit":
                attempt.offset = message.offset
                await self._upload(attempt)
            case "survivor_sets":
                attempt.packed = None
                if not round_parameters(attempt.terms.document.plan).signed:
                    await self._unmask(attempt, codec.read_survivor_sets(message))
                    return
                check = _expect(attempt.phase, ConsistencyCheck, kind)
                unmasking, signature = await self._compute(check.receive, codec.read_survivor_sets(message))
                attempt.phase = unmasking
                await self._journal.sign(*self._key(attempt), unmasking.statement)
                await self._say(attempt.number, "consistency", codec.write_consistency(signature))
            case "unmasking_request":
                await self._unmask(attempt, codec.read_unmasking_request(message))
            case "round_end":
                if not message.completed:
                    self._log.info("left out of the round", round=message.round, reason=message.reason)
                self._drop_attempt()
                self._over((message.round, message.attempt), message.reason, left_out=not message.completed)

    # ------------------------------------------------------------ the phases

    async def _terms_of(self, message: pb.RoundStart) -> StudyTerms:
        """The terms of a round: the current ones, perhaps with a later roster."""
        assert self._terms is not None  # noqa: S101  # since the first session
        if message.study_sha256 != self._terms.study_sha256:
            raise CoordinatorMisbehaved("AdvertiseKeys", "the round names another study document")
        # Fetched every time: another participant of this process may have seen a later version.
        try:
            return await self._session.fetched(lambda one: self._study.accept_roster(one, message.roster_sha256))
        except InvalidRoster as error:
            raise CoordinatorMisbehaved("AdvertiseKeys", f"the round names another roster: {error}") from error
        except DocumentUnavailable as error:
            raise CoordinatorMisbehaved("AdvertiseKeys", "the round names a roster that isn't there") from error

    async def _configuration(self, message: pb.RoundStart) -> tuple[StudyTerms, RoundConfig]:
        """What an attempt that is announced is about, checked against the terms."""
        terms = self._terms = await self._terms_of(message)
        plan = terms.document.plan
        if message.round > plan.rounds:  # once it is joined, no earlier round could be
            raise CoordinatorMisbehaved("AdvertiseKeys", f"round {message.round} of a plan with {plan.rounds}")
        ticket = None
        if plan.drawn:
            if len(terms.roster) < plan.population:  # the plan's rate or epoch is that of a larger roster
                raise CoordinatorMisbehaved("AdvertiseKeys", f"{plan.population} must be on the roster before a round")
            if not message.HasField("ticket"):
                raise CoordinatorMisbehaved("AdvertiseKeys", "the plan draws cohorts, and the round has no ticket")
            ticket = codec.read_ticket(message.ticket)
        try:
            newest = await self._study.check_newest(terms, message.newest)
        except InvalidRoster as error:
            raise CoordinatorMisbehaved("AdvertiseKeys", f"old-roster: {error}") from error
        config = RoundConfig(
            roster=terms.roster,
            round=message.round,
            attempt=message.attempt,
            study_digest=terms.study_sha256,
            model_digest=message.model_sha256,
            parameters=round_parameters(plan),
            ticket=ticket,
            newest=newest,
        )
        return terms, config

    async def _begin(self, message: pb.RoundStart) -> None:
        self._drop_attempt()
        terms, config = await self._configuration(message)
        number = (config.round, config.attempt)
        self._allowed_charge(terms, number, config.model_digest)
        advertise = await self._compute(AdvertiseKeys, config, self.identity, os.urandom)
        await self._journal.join(terms.study_sha256.hex(), self.identity.public, *number)
        phase, advertisement = await self._advertise(advertise, config)
        self._attempt = self._under_way(terms, config, phase)
        self._lines.begun(number, self.identity.public)
        await self._say(number, "advertise_keys", codec.write_advertisement(advertisement))

    async def _advertise(self, advertise: AdvertiseKeys, config: RoundConfig) -> tuple[ShareKeys, Advertisement]:
        return await self._compute(advertise.advertise)

    def _under_way(self, terms: StudyTerms, config: RoundConfig, phase: object) -> _Attempt:
        """An attempt in this phase; its model is fetched and trained beside the protocol."""
        model = asyncio.create_task(self._model(terms, config.model_digest))
        began, offset_s = asyncio.get_running_loop().time(), terms.document.plan.offer_offset_s
        decided = began + (1 - ENCODING_SHARE) * offset_s if offset_s else None
        made = asyncio.create_task(self._train(terms, config.round, model, decided))
        for task in (model, made):
            task.add_done_callback(_retrieve)
        number = (config.round, config.attempt)
        return _Attempt(number, terms, config.model_digest, phase, began + offset_s, model, made)

    async def _model(self, terms: StudyTerms, model_sha256: bytes) -> RoundModel:
        """The round's model and clips. A failure here doesn't depend on the participant's data."""
        rule, dim = terms.document.plan.clipping, self.training.broadcast_dim
        data = await self._session.fetched(lambda one: self._study.fetch_model(one, model_sha256, dim, rule))
        try:
            return read_model(data, dim, rule)
        except ValueError as error:
            raise DocumentMismatch(str(error)) from error

    async def _train(
        self, terms: StudyTerms, round_: int, model: asyncio.Task[RoundModel], decided: float | None
    ) -> Contribution | None:
        """The contribution; where a time is given, what is ready then, and never before."""
        begun, loop, plan = await model, asyncio.get_running_loop(), terms.document.plan
        norm, done = plan.update_norm(begun.clips), (round_ - 1) / plan.rounds
        training = asyncio.create_task(self.training.train(begun.vector, norm, plan.evaluation, done))
        if decided is None:
            return await training
        await asyncio.wait({training}, timeout=max(decided - loop.time(), 0.0))
        ready = training.result() if training.done() else None
        await asyncio.sleep(decided - loop.time())
        return ready

    async def _mask(self, attempt: _Attempt, message: pb.NeighbourShares) -> None:
        phase = _expect(attempt.phase, MaskedInputCollection, "neighbour_shares")
        loop = asyncio.get_running_loop()
        # Shares that come late leave as much time for encoding, so that a training which still runs doesn't show.
        leaves = max(attempt.leaves, loop.time() + ENCODING_SHARE * attempt.terms.document.plan.offer_offset_s)
        if attempt.agreed is not None:
            await attempt.agreed
        masking = await self._compute(phase.receive, codec.read_neighbour_shares(message))
        attempt.phase = masking
        clips = (await attempt.model).clips
        check_clips(self._policy, clips)
        # Charged before this waits for anything that uses the data: from here on, the round is paid for in any case.
        charge = self._allowed_charge(attempt.terms, attempt.number, attempt.model_sha256)
        await self._journal.charge(charge)
        self._charged = Charge(attempt.terms, attempt.number, masking.cohort)
        attempt.charged.set()
        encoding = Encoding(attempt.number, attempt.terms.document.plan, masking.cohort.context, clips)

        async def encode() -> Words:
            made = await attempt.made
            return await self._compute(lambda: self.training.encode(encoding.encoder(), made, masking.noise_seeds))

        async def offer() -> None:
            vector = await self.behaviour.mask(encoding, encode)
            attempt.phase, masked = await self._compute(masking.mask, vector)
            attempt.packed = masked.packed
            await asyncio.sleep(leaves - loop.time())
            offered = pb.MaskedInputOffer(sha256=masked.sha256, signature=masked.signature)
            await self._say(attempt.number, "masked_input", offered)

        attempt.offering = offering = asyncio.create_task(offer())
        offering.add_done_callback(_retrieve)
        await asyncio.wait({offering})
        if not offering.cancelled():  # the attempt goes on
            offering.result()
            self.training.tell()

    async def _upload(self, attempt: _Attempt) -> None:
        packed = attempt.packed
        # An offset equal to the length: only the end of the stream was lost.
        if packed is None or attempt.uploaded or attempt.offset > len(packed):
            raise CoordinatorMisbehaved("MaskedInputCollection", "an upload credit that wasn't asked for")
        self._lines.uploads(attempt.number, self.identity.public)
        if await self.behaviour.upload(attempt.number, packed, attempt.offset, self._session.upload):
            attempt.uploaded = True

    async def _unmask(self, attempt: _Attempt, request: UnmaskingRequest | SurvivorSets) -> None:
        phase: Unmasking | UnsignedUnmasking
        if isinstance(attempt.phase, Answered):
            reply = attempt.phase.receive(request)
        else:
            if isinstance(request, UnmaskingRequest):
                phase = signed = _expect(attempt.phase, Unmasking, "what asks for shares")
                answered, reply = await self._compute(signed.receive, request)
            else:
                phase = unsigned = _expect(attempt.phase, UnsignedUnmasking, "what asks for shares")
                answered, reply = await self._compute(unsigned.receive, request)
            attempt.phase, survivors = answered, len(phase.survivors)
            exact = self._entry(attempt.terms, attempt.number, kind=EXACT, survivors=survivors)
            self._charged = None  # from here on, the sum may hold this input
            await self._journal.answer(*self._key(attempt), answered.request_digest, exact)
            self._lines.in_sum(attempt.number, self.identity.public, survivors)
        await self._say(attempt.number, "unmasking", codec.write_unmasking_reply(reply))

    async def _take_back(self, message: pb.SurvivorProof) -> None:
        """A sum was opened without this participant: if a quorum signed that, the attempt costs it nothing."""
        charged = self._charged
        if charged is None or charged.number != (message.round, message.attempt):
            return
        if self._attempt is not None and self._attempt.number == charged.number:
            self._drop_attempt()  # masks and shares are gone before the charge is
        sets, request = codec.read_survivor_proof(message)
        await self._compute(excluding_survivors, charged.cohort, sets, request)
        self._charged = None
        await self._journal.charge(self._entry(charged.terms, charged.number, kind=EXCLUDED))
        self._log.info("the sum was opened without this participant: nothing is charged", round=message.round)
        self._over(charged.number, "the sum was opened without this participant", left_out=True)

    # ------------------------------------------------------------ helpers

    def _entry(self, terms: StudyTerms, number: Number, **more: Any) -> LedgerEntry:
        """A ledger row of this participant about an attempt: by default a charge at h_min."""
        return make_entry(
            terms.document.plan,
            study=terms.document.study,
            study_sha256=terms.study_sha256,
            round=number[0],
            attempt=number[1],
            identity=self.identity.public,
            data=self._data_names[self.identity.public],
            **more,
        )

    def _allowed_charge(self, terms: StudyTerms, number: Number, model_sha256: bytes) -> LedgerEntry:
        """The charge for an attempt; raises PolicyRefusal."""
        charge = self._entry(terms, number)
        check_round(self._policy, terms.document.plan, self._journal.ledger.totals, charge, model_sha256)
        return charge

    def _key(self, attempt: _Attempt) -> tuple[str, bytes, int, int]:
        return attempt.terms.study_sha256.hex(), self.identity.public, *attempt.number

    async def _say(self, number: Number, kind: str, content: Any, session: Session | None = None) -> None:
        """One message; by default as soon as a session can take it."""

        async def send(content: Any) -> None:
            message: dict[str, Any] = {kind: content}
            if kind not in ("ready", "refusal"):
                message = {"phase": pb.PhaseMessage(round=number[0], attempt=number[1], **message)}
            await (session or self._session).send(pb.ParticipantMessage(**message))

        await self.behaviour.say(number, kind, content, send)

    async def _compute(self, function: Callable[P, T], *arguments: P.args, **more: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(function, *arguments, **more))

    def _over(self, number: Number, reason: str, *, left_out: bool = False) -> None:
        self._lines.over(number, self.identity.public, peer_text(reason), left_out=left_out)

    def _drop_attempt(self) -> None:
        """Forget the attempt with its keys, shares and masks."""
        if self._attempt is not None:
            self._attempt.drop()
            self._attempt = None


def _expect(phase: object, wanted: type[Phase], kind: str) -> Phase:
    if not isinstance(phase, wanted):
        raise CoordinatorMisbehaved(type(phase).__name__, f"{kind} is out of order")
    return phase


def _retrieve(task: asyncio.Future[Any]) -> None:
    """Retrieve a failure, so that asyncio doesn't report it as unhandled."""
    if not task.cancelled():
        task.exception()
