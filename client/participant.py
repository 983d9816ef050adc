"""One participant: takes part in the rounds of a study through the protocol core.

Training begins when a round is announced and runs beside the key exchange. Whatever must be durable is written
before the message that depends on it; whatever fails ends the attempt for this participant and nothing else.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import structlog
from numpy.typing import NDArray

from client.conditions import NotNow
from client.connection import AHEAD, DocumentMismatch, DocumentUnavailable, Session, UploadRejected
from client.journal import AlreadyJoined, ClientJournal
from client.log_lines import RoundLines
from client.policy import PolicyRefusal, check_clips, check_round
from client.resuming import Line
from client.settings import HostSettings
from learning.datasets import Dataset
from learning.own_task import place_of
from learning.parameters import Parameters, dimension, flatten_contribution, shapes_of, unflatten
from learning.public_random import PublicRandom
from learning.task import Task
from mechanisms.encoder import Encoder, InvalidUpdate
from mechanisms.plan import Plan
from mechanisms.statement import LOTTERY
from runtime.durable import StorageError
from runtime.text import peer_text
from secagg.client_cohort import Cohort
from secagg.client_phases import AdvertiseKeys, MaskedInputCollection, Masking, ShareKeys
from secagg.client_unmasking import Answered, ConsistencyCheck, Unmasking, UnsignedUnmasking, excluding_survivors
from secagg.context import RoundConfig
from secagg.errors import CoordinatorMisbehaved
from secagg.keys import IdentityKey
from secagg.messages import SurvivorSets, UnmaskingRequest
from secagg.roster import InvalidRoster, Roster
from wire import codec
from wire import coordinator_pb2 as pb
from wire.codec import MalformedMessage
from wire.records.ledger_rows import EXACT, EXCLUDED, LedgerEntry, make_entry
from wire.round_model import RoundModel, model_bytes, read_model
from wire.study import StudyDocument, round_parameters


@dataclass(frozen=True)
class StudyTerms:
    """What the host has fetched, checked and accepted."""

    document: StudyDocument
    roster: Roster
    study_sha256: bytes
    roster_sha256: bytes


@dataclass
class _Attempt:
    """One attempt under way. The phase is whatever the core's last step returned."""

    round: int
    attempt: int
    model_sha256: bytes
    phase: Any
    model: asyncio.Task[RoundModel] = field(repr=False)
    update: asyncio.Task[NDArray[np.float32] | None] = field(repr=False)
    agreed: asyncio.Future[None] | None = field(default=None, repr=False)  # mask keys, while others deal
    packed: bytes | None = field(default=None, repr=False)  # until the coordinator says that it has it
    offset: int = 0  # where its copy ends


class Participant:
    """One identity with its data, in a process that may host several.

    A load test puts its own behaviour in the place of `_vector` (what is masked), `_send` (every phase message goes
    through it) and `_upload`; everything else stays as deployed.
    """

    trained, failed, last_failure = 0, 0, ""
    """How often training has ended, how often it came to nothing, and how the last time: for her own eyes."""

    def __init__(
        self,
        configuration: HostSettings,
        identity: IdentityKey,
        task: Task,
        data: Dataset,
        data_name: str,
        journal: ClientJournal,
        executor: Executor,
        fetch: Callable[[Session, bytes, int], Any],
        accept_roster: Callable[[Session, bytes], Awaitable[StudyTerms]],
        trainer: Executor | None = None,
        lines: RoundLines | None = None,
    ) -> None:
        """
        Args:
            data_name: by which the ledger knows the data; see `client.held_data`.
            executor: for the protocol's arithmetic, so that streams are answered meanwhile.
            fetch: async (session, sha256, largest) -> bytes; shared by the host's participants.
            accept_roster: async (session, sha256) -> the terms with a later roster, checked; raises
                `secagg.roster.InvalidRoster`.
            trainer: for local training: one that lasts minutes must not keep the others of a process from answering in
                time. By default the executor.
            lines: told of what becomes of each attempt; by default nobody is.
        """
        self._lines = lines
        self._trainer = executor if trainer is None else trainer
        self._configuration, self.identity, self._task, self._data = configuration, identity, task, data
        self.data_name = data_name
        self._journal, self._executor, self._fetch, self._accept_roster = journal, executor, fetch, accept_roster
        self._shapes = shapes_of(task.initial_parameters())
        self._broadcast_dim = dimension(self._shapes)
        self._attempt: _Attempt | None = None
        # Read and not handled: an attempt goes on while its session breaks and another one is opened.
        self._inbox: asyncio.Queue[tuple[Session, str, Any]] = asyncio.Queue(AHEAD)
        self._line = Line()
        self._terms: StudyTerms | None = None
        self._worker: asyncio.Task[None] | None = None
        self._answering = False
        self.may_begin: Callable[[], bool] = lambda: True
        """Asked when an attempt is announced: where she may not, she leaves before it."""
        self._charged: tuple[int, int, Cohort] | None = None  # the last charge, while it may be taken back
        self._log = structlog.get_logger().bind(participant=identity.public.hex()[:8])

    @property
    def under_way(self) -> bool:
        """Whether she is in an attempt, or in the middle of an answer: not the moment to leave of her own accord."""
        return self._answering or self._attempt is not None or self._line.number is not None

    async def take_part(self, session: Session, terms: StudyTerms) -> str | None:
        """Handle messages until the study or the session ends; an attempt under way stays, for the next session.

        Returns:
            The coordinator's reason for the end, or None when the stream just ended.

        Raises:
            grpc.aio.AioRpcError: the stream broke.
            TimeoutError: the coordinator is silent.
            NotNow: an attempt was announced, and `may_begin` said no.
        """
        await self.rest(0)
        if self._terms is not None and self._terms.study_sha256 != terms.study_sha256:
            await self.close()
        self._terms = terms
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        await session.send(pb.ParticipantMessage(ready=self._line.attach(session)))
        listening, beating = asyncio.create_task(self._listen(session)), asyncio.create_task(session.beat())
        try:
            await asyncio.wait({listening, beating, self._worker}, return_when=asyncio.FIRST_COMPLETED)
            await self.rest(0)
            return listening.result() if listening.done() else beating.result()  # which only ever raises
        except asyncio.CancelledError:
            await session.leave()
            raise
        finally:
            self._line.detach(session)
            for task in (listening, beating):
                task.cancel()
            await asyncio.gather(listening, beating, return_exceptions=True)

    async def rest(self, seconds: float) -> None:
        """Wait, between two sessions. Raises what has ended the handling of messages, if something has."""
        if self._worker is None:
            await asyncio.sleep(seconds)
        elif (await asyncio.wait({self._worker}, timeout=seconds))[0]:
            self._worker.result()

    async def close(self) -> None:
        """No session follows: whatever is under way ends."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        self._drop_attempt()
        self._inbox, self._line = asyncio.Queue(AHEAD), Line()
        if self._lines is not None:
            self._lines.gone(self.identity.public)

    async def _listen(self, session: Session) -> str | None:
        async for message in session.messages():
            kind = message.WhichOneof("message")
            if kind in (None, "heartbeat"):
                continue
            content = getattr(message, kind)
            if kind == "round_start" and not self.may_begin():
                await self._inbox.join()  # all that came before
                self._drop_attempt()
                self._line.leave()
                await session.leave()
                raise NotNow
            if kind == "study_end":
                self._line.end()
                await self._inbox.join()
                return content.reason
            attempt = self._attempt
            if kind == "resumed" and not await self._line.heard(kind, content):
                if attempt is not None and content.uploaded:
                    attempt.packed = None
                continue
            await self._inbox.put((session, kind, content))
            # Not before there is room for it: what was counted is never sent again, and a session can end meanwhile.
            if kind != "resumed":
                await self._line.heard(kind, content)
        return None

    async def _work(self) -> None:
        """Handle what was read, in order."""
        while True:
            session, kind, content = await self._inbox.get()
            self._answering = True
            try:
                # A credit of an earlier session is void: it is granted again.
                if kind != "upload_credit" or self._line.is_on(session):
                    assert self._terms is not None  # noqa: S101  # since the first session
                    self._terms = await self._guarded(self._line, self._terms, kind, content)
            finally:
                self._answering = False
                self._inbox.task_done()

    async def _guarded(self, session: Line, terms: StudyTerms, kind: str | None, message: Any) -> StudyTerms:
        """Handle a message; returns the terms that hold from here on, with a later roster perhaps."""
        number = (getattr(message, "round", 0), getattr(message, "attempt", 0))
        try:
            if kind == "round_start":
                terms = await self._terms_of(session, terms, message)
            await self._handle(session, terms, kind, message)
        except (CoordinatorMisbehaved, MalformedMessage, DocumentMismatch) as error:
            self._log.warning("refused", round=number[0], attempt=number[1], reason=str(error))
            await self._refuse(session, number, pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED)
        except PolicyRefusal as error:
            where = {"round": number[0], "attempt": number[1]}
            self._log.warning("refused by policy", **where, rule=error.reason, reason=str(error))
            await self._refuse(session, number, pb.REFUSAL_CODE_POLICY)
        except UploadRejected as error:
            # Mostly the coordinator has left this participant out already; else it needn't wait for the deadline.
            self._log.info("upload not taken", round=number[0], attempt=number[1], reason=str(error))
            await self._refuse(session, number, pb.REFUSAL_CODE_LOCAL_FAILURE)
        except DocumentUnavailable as error:
            self._log.info("no model", round=number[0], attempt=number[1], reason=str(error))
            await self._refuse(session, number, pb.REFUSAL_CODE_LOCAL_FAILURE)
        except AlreadyJoined:
            self._log.info("sits this attempt out after a restart", round=number[0], attempt=number[1])
            await self._refuse(session, number, pb.REFUSAL_CODE_ALREADY_JOINED)
        except StorageError as error:
            self._log.error(
                "failed",
                round=number[0],
                attempt=number[1],
                error=type(error).__name__,
                reason=f"nothing can be written down, so nothing is sent: {error}; make room and start join again",
            )
            await self._refuse(session, number, pb.REFUSAL_CODE_LOCAL_FAILURE)
        except (InvalidUpdate, ValueError, ArithmeticError) as error:
            # The type and our own wording only: an update's content never reaches a log.
            self._log.error("failed", round=number[0], attempt=number[1], error=type(error).__name__)
            await self._refuse(session, number, pb.REFUSAL_CODE_LOCAL_FAILURE)

        return terms

    async def _refuse(self, session: Line, number: tuple[int, int], code: pb.RefusalCode) -> None:
        self._drop_attempt()
        self._over(number, "refused here, see above")
        refusal = pb.Refusal(round=number[0], attempt=number[1], code=code)
        await session.send(pb.ParticipantMessage(refusal=refusal))

    async def _handle(self, session: Line, terms: StudyTerms, kind: str | None, message: Any) -> None:
        if kind == "round_start":
            await self._begin(session, terms, message)
            return
        if kind == "resumed":
            raise CoordinatorMisbehaved("Resumed", "it can't have received what it says, or nobody asked")
        if kind == "survivor_proof":
            await self._take_back(terms, message)
            return
        attempt = self._attempt
        if kind in (None, "heartbeat") or attempt is None:
            return
        if (message.round, message.attempt) != (attempt.round, attempt.attempt):
            return  # about an attempt this participant is no longer in
        match kind:
            case "cohort_keys":
                phase = _expect(attempt.phase, ShareKeys, kind)
                attempt.phase, shares = await self._compute(phase.receive, codec.read_cohort_keys(message))
                await self._send(session, attempt, share_keys=codec.write_sealed_shares(shares))
                attempt.agreed = asyncio.ensure_future(self._compute(attempt.phase.agree))
                attempt.agreed.add_done_callback(_retrieve)
            case "neighbour_shares":
                await self._mask(session, terms, attempt, message)
            case "upload_credit":
                attempt.offset = message.offset
                await self._upload(session, attempt)
            case "survivor_sets":
                if not round_parameters(terms.document.plan).signed:
                    await self._unmask(session, terms, attempt, codec.read_survivor_sets(message))
                    return
                check = _expect(attempt.phase, ConsistencyCheck, kind)
                attempt.phase, signature = await self._compute(check.receive, codec.read_survivor_sets(message))
                await self._journal.sign(*self._key(terms, attempt), attempt.phase.statement)
                await self._send(session, attempt, consistency=codec.write_consistency(signature))
            case "unmasking_request":
                await self._unmask(session, terms, attempt, codec.read_unmasking_request(message))
            case "round_end":
                if not message.completed:
                    self._log.info("left out of the round", round=message.round, reason=message.reason)
                self._drop_attempt()
                self._over((message.round, message.attempt), message.reason)

    # ------------------------------------------------------------ the phases

    async def _terms_of(self, session: Line, terms: StudyTerms, message: pb.RoundStart) -> StudyTerms:
        """The terms of a round: those that hold, or with a later roster than theirs."""
        self._drop_attempt()
        if message.study_sha256 != terms.study_sha256:
            raise CoordinatorMisbehaved("AdvertiseKeys", "the round names another study document")
        # Asked every time: another participant of this process may have seen a later version than this one.
        try:
            return await session.fetched(lambda one: self._accept_roster(one, message.roster_sha256))
        except InvalidRoster as error:
            raise CoordinatorMisbehaved("AdvertiseKeys", f"the round names another roster: {error}") from error
        except DocumentUnavailable as error:
            raise CoordinatorMisbehaved("AdvertiseKeys", "the round names a roster that isn't there") from error

    async def _begin(self, session: Line, terms: StudyTerms, message: pb.RoundStart) -> None:
        plan = terms.document.plan
        if message.round > plan.rounds:  # once joined, no earlier round could be
            raise CoordinatorMisbehaved("AdvertiseKeys", f"round {message.round} of a plan with {plan.rounds}")
        ticket = None
        if plan.sampling == LOTTERY:
            if len(terms.roster) < plan.population:  # the rate that the plan counts on is that of a larger roster
                raise CoordinatorMisbehaved("AdvertiseKeys", f"{plan.population} must be on the roster before a round")
            if not message.HasField("ticket"):
                raise CoordinatorMisbehaved("AdvertiseKeys", "the plan draws cohorts, and the round has no ticket")
            ticket = codec.read_ticket(message.ticket)
        config = RoundConfig(
            roster=terms.roster,
            round=message.round,
            attempt=message.attempt,
            study_digest=terms.study_sha256,
            model_digest=message.model_sha256,
            parameters=round_parameters(plan),
            ticket=ticket,
        )
        self._check_policy(terms, message.round, message.attempt, message.model_sha256)
        study, identity = terms.document.study, self.identity.public
        advertise: AdvertiseKeys = await self._compute(AdvertiseKeys, config, self.identity, os.urandom)
        await self._journal.join(study, identity, message.round, message.attempt)
        phase, advertisement = await self._compute(advertise.advertise)
        model = asyncio.create_task(self._model(session, terms, message.model_sha256))
        update = asyncio.create_task(self._train(model, plan))
        for task in (model, update):
            task.add_done_callback(_retrieve)
        self._attempt = _Attempt(message.round, message.attempt, message.model_sha256, phase, model, update)
        if self._lines is not None:
            self._lines.begun((message.round, message.attempt), identity)
        await self._send(session, self._attempt, advertise_keys=codec.write_advertisement(advertisement))

    async def _model(self, session: Line, terms: StudyTerms, model_sha256: bytes) -> RoundModel:
        """The round's model and clips. What can fail here doesn't depend on the participant's data."""
        rule = terms.document.plan.clipping
        largest = model_bytes(self._broadcast_dim, rule)
        data = await session.fetched(lambda one: self._fetch(one, model_sha256, largest))
        try:
            return read_model(data, self._broadcast_dim, rule)
        except ValueError as error:
            raise DocumentMismatch(str(error)) from error

    async def _train(self, model: asyncio.Task[RoundModel], plan: Plan) -> NDArray[np.float32] | None:
        begun = await model
        norm = plan.update_norm(begun.clips)

        def train() -> NDArray[np.float32] | None:  # a large model is copied there too
            return self._local_update(unflatten(begun.vector, self._shapes), norm)

        return await asyncio.get_running_loop().run_in_executor(self._trainer, train)

    def _local_update(self, parameters: Parameters, l2_clip: float) -> NDArray[np.float32] | None:
        """The contribution, shape (dim,), always finite; None where training failed or diverged.

        Never an error: the coordinator chooses the model, and could choose one that overflows exactly when some example
        has a property. A refusal would then be an answer about one participant, without noise and without a charge.
        """
        try:
            # Orders examples into batches and nothing else; noise and keys never come from it.
            order = PublicRandom(os.urandom(32))
            made = self._task.local_update(parameters, self._data, order, l2_clip)
            update = flatten_contribution(made, self._task.contribution_shapes)
            diverged = update.shape != (self._task.dim,) or not np.isfinite(update).all()
        # Everything: no signal arrives in a trainer's thread, so the task itself has raised it, perhaps for what an
        # example says. SystemExit, KeyboardInterrupt or a cancellation from there would end this whole process.
        except BaseException as error:
            where = {"where": place} if (place := place_of(error)) else {}  # never what it says: that may tell of data
            kind = type(error.__cause__ or error)
            self._log.error("training failed, zeros are sent", error=kind.__name__, **where)
            self._count(f"{kind.__name__} at {where['where']}" if where else kind.__name__)
            return None
        if diverged:
            self._log.warning("training diverged, zeros are sent")
            self._count("it diverged")
            return None
        self._count("")
        return update

    def _count(self, failure: str) -> None:
        self.trained += 1
        if failure:
            self.failed, self.last_failure = self.failed + 1, failure

    async def _mask(
        self, session: Line, terms: StudyTerms, attempt: _Attempt, message: pb.NeighbourShares
    ) -> None:
        phase = _expect(attempt.phase, MaskedInputCollection, "neighbour_shares")
        if attempt.agreed is not None:
            await attempt.agreed
        masking: Masking = await self._compute(phase.receive, codec.read_neighbour_shares(message))
        attempt.phase = masking
        clips = (await attempt.model).clips
        check_clips(self._configuration.policy, clips)
        # Charged before anything that touches the data is waited for: whatever happens from here on costs a round.
        self._check_policy(terms, attempt.round, attempt.attempt, attempt.model_sha256)
        await self._journal.charge(self._entry(terms, attempt.round, attempt.attempt))
        self._charged = (attempt.round, attempt.attempt, masking.cohort)
        vector = await self._vector(terms, attempt, masking, clips)
        attempt.phase, masked = await self._compute(masking.mask, vector)
        attempt.packed = masked.packed
        offer = pb.MaskedInputOffer(sha256=masked.sha256, signature=masked.signature)
        await self._send(session, attempt, masked_input=offer)

    async def _vector(
        self, terms: StudyTerms, attempt: _Attempt, masking: Masking, clips: tuple[float, ...]
    ) -> NDArray[np.unsignedinteger[Any]]:
        """The update, encoded: words below 2^B, shape (padded_dim,)."""
        update = await attempt.update

        def encoded() -> NDArray[np.unsignedinteger[Any]]:  # the noise's tables may take a quarter of a second to make
            return self._encode(Encoder(terms.document.plan, masking.cohort.context, clips), update)

        return await self._compute(encoded)

    def _encode(self, encoder: Encoder, update: NDArray[np.float32] | None) -> NDArray[np.unsignedinteger[Any]]:
        """The update, or nothing but noise: an error here would be an answer about the data, as in `_local_update`."""
        if update is not None:
            try:
                return encoder.encode(update, os.urandom)
            except Exception as error:  # a task may have told numpy, or warnings, to raise what they don't raise here
                self._log.error("encoding failed, zeros are sent", error=type(error).__name__)
        return encoder.encode_nothing(os.urandom)

    async def _upload(self, session: Line, attempt: _Attempt) -> None:
        packed = attempt.packed
        if packed is None or attempt.offset > len(packed):  # all of it can have arrived but its end
            raise CoordinatorMisbehaved("MaskedInputCollection", "an upload credit that wasn't asked for")
        if await session.upload(packed, attempt.offset):
            attempt.packed = None

    async def _unmask(
        self, session: Line, terms: StudyTerms, attempt: _Attempt, request: UnmaskingRequest | SurvivorSets
    ) -> None:
        if isinstance(attempt.phase, Answered):
            reply = attempt.phase.receive(request)
        else:
            wanted = Unmasking if isinstance(request, UnmaskingRequest) else UnsignedUnmasking
            phase = _expect(attempt.phase, wanted, "what asks for shares")
            attempt.phase, reply = await self._compute(phase.receive, request)
            exact = self._entry(
                terms, attempt.round, attempt.attempt, kind=EXACT, survivors=len(phase.survivors)
            )
            self._charged = None  # from here on the sum holds this input
            await self._journal.answer(*self._key(terms, attempt), attempt.phase.request_digest, exact)
            if self._lines is not None:
                number = attempt.round, attempt.attempt
                self._lines.in_sum(number, self.identity.public, len(phase.survivors))
        await self._send(session, attempt, unmasking=codec.write_unmasking_reply(reply))

    async def _take_back(self, terms: StudyTerms, message: pb.SurvivorProof) -> None:
        """A sum was opened without this participant: if a quorum has signed so, the attempt costs it nothing."""
        charged = self._charged
        if charged is None or charged[:2] != (message.round, message.attempt):
            return
        if self._attempt is not None and (self._attempt.round, self._attempt.attempt) == charged[:2]:
            self._drop_attempt()  # masks and shares are gone before the charge is
        sets, request = codec.read_survivor_proof(message)
        await self._compute(excluding_survivors, charged[2], sets, request)
        self._charged = None
        await self._journal.take_back(self._entry(terms, *charged[:2], kind=EXCLUDED))
        self._log.info("the sum was opened without this participant: nothing is charged", round=charged[0])

    # ------------------------------------------------------------ helpers

    def _entry(self, terms: StudyTerms, round_: int, attempt: int, **more: Any) -> LedgerEntry:
        """A row of this participant's ledger about an attempt; unless ``more`` says otherwise a charge at h_min."""
        return make_entry(
            terms.document.plan,
            study=terms.document.study,
            study_sha256=terms.study_sha256,
            round=round_,
            attempt=attempt,
            identity=self.identity.public,
            data=self.data_name,
            **more,
        )

    def _check_policy(self, terms: StudyTerms, round_: int, attempt: int, model_sha256: bytes) -> None:
        check_round(
            self._configuration.policy,
            terms.document.plan,
            self._journal.ledger.totals,
            study_sha256=terms.study_sha256,
            data_name=self.data_name,
            number=(round_, attempt),
            model_sha256=model_sha256,
        )

    def _key(self, terms: StudyTerms, attempt: _Attempt) -> tuple[str, bytes, int, int]:
        return terms.document.study, self.identity.public, attempt.round, attempt.attempt

    async def _send(self, session: Line, attempt: _Attempt, **message: Any) -> None:
        phase = pb.PhaseMessage(round=attempt.round, attempt=attempt.attempt, **message)
        await session.send(pb.ParticipantMessage(phase=phase))

    async def _compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)

    def _over(self, number: tuple[int, int], reason: str) -> None:
        if self._lines is not None:
            self._lines.over(number, self.identity.public, peer_text(reason))

    def _drop_attempt(self) -> None:
        """Keys, shares and masks go with the attempt."""
        if self._attempt is not None:
            self._attempt.model.cancel()
            self._attempt.update.cancel()
            if self._attempt.agreed is not None:
                self._attempt.agreed.cancel()
            self._attempt = None


def _expect(phase: Any, wanted: type, kind: str) -> Any:
    if not isinstance(phase, wanted):
        raise CoordinatorMisbehaved(type(phase).__name__, f"{kind} is out of order")
    return phase


def _retrieve(task: asyncio.Future[Any]) -> None:
    """Take note of a failure that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
