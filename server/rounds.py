"""One attempt of a round: drives the protocol core through its phases against real sessions and clocks.

Everything that arrives goes through one inbox and is handled in order; arithmetic runs in the worker thread, never on
the event loop. A phase ends as soon as everybody it waits for has answered or left, at the latest at its
deadline. Too few, and the attempt aborts with nothing revealed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Protocol

from secagg.context import RoundConfig
from secagg.errors import InvalidMessage, ProtocolError, ReconstructionFailed, TooFewClients
from secagg.messages import (
    ADVERTISE_KEYS,
    CONSISTENCY_CHECK,
    MASKED_INPUT,
    SHARE_KEYS,
    UNMASKING,
    MaskedInput,
    SurvivorSets,
    UnmaskingRequest,
)
from secagg.packing import packed_size
from secagg.parallel import Parallel
from secagg.parameters import RoundParameters
from secagg.server_phases import (
    AdvertiseKeys,
    ConsistencyCheck,
    MaskedInputCollection,
    Unmasking,
)
from secagg.unmasking import Completed
from server.outgoing import Outgoing
from server.sessions import Session, Sessions
from server.uploads import UnexpectedUpload, UploadRefused, Uploads
from wire import assembled, codec
from wire import coordinator_pb2 as pb
from wire.codec import MalformedMessage

PHASE_FIELDS = {
    "advertise_keys": ADVERTISE_KEYS,
    "share_keys": SHARE_KEYS,
    "masked_input": MASKED_INPUT,
    "consistency": CONSISTENCY_CHECK,
    "unmasking": UNMASKING,
}
REFUSALS = {
    pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED: "refused: a message of the coordinator failed its checks",
    pb.REFUSAL_CODE_POLICY: "refused: the round breaks its policy or budget",
    pb.REFUSAL_CODE_ALREADY_JOINED: "sits this attempt out after a restart",
    pb.REFUSAL_CODE_LOCAL_FAILURE: "failed on its own side",
}
PROGRESS_INTERVAL_S = 0.5
MOST_MESSAGES = 2 * len(PHASE_FIELDS)

Emit = Callable[..., None]


@lru_cache(maxsize=4)
def most_control_bytes(parameters: RoundParameters) -> int:
    """The most that a participant sends in one attempt, its vector aside.

    Of each neighbour a sealed share, two commitments and a revealed share, which take 240 bytes with their headers.
    """
    # Of a large cohort not every size: the degree of the next one differs by less than the reserve.
    step = max(1, (parameters.cohort - parameters.quorum) // 512)
    sizes = (*range(parameters.quorum, parameters.cohort, step), parameters.cohort)
    return 256 * (max(parameters.sharing(u1).degree for u1 in sizes) + 1) + 1024


# Vectors of millions of values are staged by fewer at a time, so that a large model doesn't need 64 times its memory.
_MOST_STAGED_BYTES: Final = 96 << 20
_FEWEST_CREDITS: Final = 4


class AttemptAborted(Exception):
    """The attempt ended without a sum."""

    def __init__(self, phase: str, reason: str, received: int, needed: int) -> None:
        super().__init__(f"{phase}: {reason}")
        self.phase, self.reason, self.received, self.needed = phase, reason, received, needed


class Phase(Protocol):
    """What the driver needs of any phase of the core."""

    @property
    def received(self) -> frozenset[int]: ...

    def receive(self, sender: int, message: Any) -> None: ...


@dataclass
class AttemptFigures:
    """What an attempt measured."""

    phase_seconds: dict[str, float] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    dropouts: int = 0
    first_key_at: float | None = None
    key_to_sum_s: float = 0.0


class Attempt:
    """Runs one attempt; `run` returns the sum or raises `AttemptAborted`."""

    def __init__(
        self,
        config: RoundConfig,
        cohort: frozenset[int],
        sessions: Sessions,
        deadlines_s: Mapping[str, float],
        upload_credits: int,
        worker: Executor,
        parallel: Parallel,
        emit: Emit,
        freeze: Callable[[ConsistencyCheck], Any],
        charge: Callable[[Unmasking, bytes], Any],
        roster_sha256: bytes,
    ) -> None:
        """
        Args:
            cohort: participants to invite, all with a session.
            deadlines_s: seconds for each phase by its name.
            parallel: threads for the masks of an unmasking.
            freeze: awaited before u3 is told to anyone.
            charge: awaited before the unmasking request is sent; is given that request, serialised.
            roster_sha256: of the signed roster file, by which participants fetch it.
        """
        self.config, self.cohort = config, cohort
        self._sessions, self._deadlines_s, self._worker = sessions, deadlines_s, worker
        self._emit_event, self._freeze, self._charge = emit, freeze, charge
        self._roster_sha256, self._parallel = roster_sha256, parallel
        self._inbox: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self._alive = set(cohort)
        self._messages: Counter[int] = Counter()
        self._control_bytes: Counter[int] = Counter()  # of messages
        self._most_control_bytes = most_control_bytes(config.parameters)
        self._overran: set[int] = set()
        self._vector_bytes: Counter[int] = Counter()  # of uploads
        self._outgoing = Outgoing(sessions, self._alive, self._compute)
        self._over = False
        self._phase_name = ADVERTISE_KEYS
        self._waiting: set[int] = set()  # of the phase under way: who may still answer
        self._answered: set[int] = set()  # and whose answer counts
        parameters = config.parameters
        size = packed_size(parameters.dim, parameters.bits)
        credits = min(upload_credits, max(_FEWEST_CREDITS, _MOST_STAGED_BYTES // size))
        self._uploads = Uploads(size, credits, self._grant_credit, self.upload_failed)
        self.figures = AttemptFigures()
        self.cheats: dict[int, str] = {}  # who did what an honest participant never does, and what
        self.conflicts: Mapping[int, frozenset[int]] = {}  # dealer -> holders without a share of it: either has cheated
        self.starved: frozenset[int] = frozenset()  # dealers who ended the attempt by that, if they did

    # ------------------------------------------------------------ from the service

    def deliver(self, session: Session, message: pb.PhaseMessage, size: int) -> None:
        """A phase message of this attempt arrived, in so many bytes."""
        if self._takes(session):
            said = _Said(message.WhichOneof("message"), message.SerializeToString())
            self._take(session.participant, said, size)

    def refused(self, session: Session, message: pb.Refusal, size: int) -> None:
        """A participant will not go on."""
        if self._takes(session):
            self._take(session.participant, _Left(REFUSALS.get(message.code, "refused")), size)

    def _takes(self, session: Session) -> bool:
        """Whether its participant is still in the attempt and within its limits; else the message is a stray one."""
        takes = session.participant in self._alive and session.participant not in self._overran
        if takes:
            session.strays = 0
        else:
            session.stray()
        return takes

    def _take(self, participant: int, item: Any, size: int) -> None:
        """Into the inbox, which holds no more of one participant than an attempt can need."""
        self._messages[participant] += 1
        self._control_bytes[participant] += size
        if self._messages[participant] > MOST_MESSAGES:
            self._overran.add(participant)
            item = _Left("sent more messages than an attempt has")
        if self._control_bytes[participant] > self._most_control_bytes:
            self._overran.add(participant)
            item = _Left("sent more bytes than an attempt has")
        self._inbox.put_nowait((participant, item))

    def lost(self, participant: int, reason: str) -> None:
        """A participant's stream ended."""
        self._inbox.put_nowait((participant, _Left(reason)))

    async def upload(self, participant: int, chunks: AsyncIterator[bytes]) -> bytes:
        """Stage and add one vector; returns its digest once it counts.

        Raises:
            UploadRefused: not expected, malformed, late, or not what was offered.
        """
        offer, packed = await self._uploads.stage(participant, chunks)
        if self._over:
            raise UnexpectedUpload("the attempt is over")
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._inbox.put_nowait((participant, _Staged(MaskedInput(packed, offer.sha256, offer.signature), done)))
        if not await done:
            raise UploadRefused("the vector was not taken")
        self._vector_bytes[participant] += len(packed)
        return offer.sha256

    # ------------------------------------------------------------ the phases

    async def run(self) -> Completed:
        """All five phases."""
        try:
            return await self._run()
        except TooFewClients as error:
            raise AttemptAborted(
                error.phase, f"{error.received} participants, {error.needed} needed", error.received, error.needed
            ) from error
        except ReconstructionFailed as error:
            self.cheats.update(error.culprits)
            raise AttemptAborted(self._phase_name, "shares rebuild no secret", 0, 0) from error
        except ProtocolError as error:
            raise AttemptAborted(self._phase_name, str(error), 0, 0) from error
        finally:
            self._over = True
            self._uploads.close()
            self._fail_staged()

    async def _run(self) -> Completed:
        parameters = self.config.parameters
        round_, attempt = self.config.round, self.config.attempt

        advertise: AdvertiseKeys = await self._compute(AdvertiseKeys, self.config, self.cohort)
        start = pb.RoundStart(
            round=round_,
            attempt=attempt,
            model_sha256=self.config.model_digest,
            study_sha256=self.config.study_digest,
            roster_sha256=self._roster_sha256,
            ticket=codec.write_ticket(self.config.ticket),
        )
        await self._outgoing.broadcast(self.cohort, assembled.message(round_start=start))
        await self._collect(
            _Step(
                ADVERTISE_KEYS,
                advertise,
                self.cohort,
                parameters.quorum,
                lambda who, m: advertise.receive(who, codec.read_advertisement(m.advertise_keys)),
                leave=advertise.drop,
            )
        )
        share, cohort_keys = await self._compute(advertise.close)

        writer = assembled.CohortKeysWriter(round_, attempt)
        await self._outgoing.each(cohort_keys, writer.write)
        del writer, cohort_keys
        await self._collect(
            _Step(
                SHARE_KEYS,
                share,
                frozenset(share.cohort.u1),
                parameters.quorum,
                lambda who, m: share.receive(who, codec.read_sealed_shares(m.share_keys)),
                leave=share.drop,
            )
        )
        masked, shares = await self._compute(share.close)

        await self._outgoing.each(shares, lambda one: assembled.neighbour_shares(round_, attempt, one))
        # The ciphertexts hold both kinds of share: they are gone once they are passed on, and so are the paths.
        del shares
        await self._collect(
            _Step(
                MASKED_INPUT,
                masked,
                masked.u2,
                parameters.min_survivors,
                lambda who, m: _check_offer(masked, who, m.masked_input),
                then=self._queue_offer,
            )
        )
        check, sets = await self._compute(masked.close)

        await self._freeze(check)
        survivors = next(iter(sets.values()))
        survivor_sets = codec.write_survivor_sets(round_, attempt, survivors)
        if parameters.signed:
            unmasking = await self._signed(check, sets, survivors)
        else:
            unmasking = await self._compute(check.without_signatures)
            await self._charge(unmasking, b"")
            await self._outgoing.broadcast(sets, assembled.message(survivor_sets=survivor_sets))
        completed = await self._open(unmasking)
        if self.figures.first_key_at is not None:
            self.figures.key_to_sum_s = time.monotonic() - self.figures.first_key_at
        return completed

    async def _signed(
        self, check: ConsistencyCheck, sets: Mapping[int, SurvivorSets], survivors: SurvivorSets
    ) -> Unmasking:
        """The sets signed by enough, charged, and shares asked for."""
        round_, attempt = self.config.round, self.config.attempt
        survivor_sets = codec.write_survivor_sets(round_, attempt, survivors)
        await self._outgoing.broadcast(sets, assembled.message(survivor_sets=survivor_sets))
        await self._collect(
            _Step(
                CONSISTENCY_CHECK,
                check,
                check.u3,
                check.needed,
                lambda who, m: check.receive(who, codec.read_consistency(m.consistency)),
            )
        )
        unmasking, requests = await self._compute(check.close)

        # The signatures that are journaled with the charge; on the complete graph these are all that is asked with.
        shown = UnmaskingRequest(check.proof)
        request = codec.write_unmasking_request(round_, attempt, shown).SerializeToString()
        await self._charge(unmasking, request)
        if unmasking.cohort.graph.complete:
            await self._outgoing.broadcast(requests, assembled.enveloped("unmasking_request", request))
        else:
            await self._outgoing.each(requests, assembled.UnmaskingRequestWriter(round_, attempt).write)
        # Whoever was charged and isn't in this sum may take that back; from here on no other sum can be opened.
        proof = assembled.message(survivor_proof=codec.write_survivor_proof(round_, attempt, survivors, shown))
        for who in sorted(unmasking.u2 - unmasking.u3):
            session = self._sessions.get(who)
            if session is not None:
                session.send(proof)
        return unmasking

    async def _open(self, unmasking: Unmasking) -> Completed:
        """As soon as there are enough shares; if some of them are rotten, once everybody has answered."""

        def reveal(who: int, message: pb.PhaseMessage) -> bool:
            unmasking.receive(who, codec.read_unmasking_reply(message.unmasking))
            return unmasking.enough

        try:
            return await self._opened(unmasking, reveal)
        finally:
            self.conflicts, self.starved = unmasking.conflicts, unmasking.starved

    async def _opened(self, unmasking: Unmasking, reveal: Callable[[int, pb.PhaseMessage], bool]) -> Completed:
        await self._collect(_Step(UNMASKING, unmasking, unmasking.u4, unmasking.needed, reveal))
        try:
            completed: Completed = await self._compute(unmasking.close, self._parallel)
        except ReconstructionFailed:
            if not (unmasking.u4 & self._alive) - unmasking.received:
                raise

            def reveal_all(who: int, message: pb.PhaseMessage) -> None:
                unmasking.receive(who, codec.read_unmasking_reply(message.unmasking))

            await self._collect(_Step(UNMASKING, unmasking, unmasking.u4, unmasking.needed, reveal_all))
            completed = await self._compute(unmasking.close, self._parallel)
        self.cheats.update(completed.cheats)
        return completed

    # ------------------------------------------------------------ one phase

    async def _collect(self, step: _Step) -> None:
        """Wait until everybody has answered or left, enough have, too few can, or the deadline is over."""
        name, needed = step.name, step.needed
        self._phase_name = name
        began = time.monotonic()
        deadline = began + self._deadlines_s[name]
        self._answered = set(step.phase.received)  # nobody, unless the phase goes on
        self._waiting = set(step.expected & self._alive) - self._answered
        expected = len(step.expected)
        self._emit("phase_started", phase=name, expected=expected, needed=needed, deadline_s=self._deadlines_s[name])
        last_progress = 0.0
        too_few: TooFewClients | None = None
        while self._waiting and not step.enough:
            possible = len(self._answered) + len(self._waiting)
            if possible < needed:
                # Waiting longer helps nobody, and those who could still answer are not to blame.
                too_few = TooFewClients(name, possible, needed)
                break
            now = time.monotonic()
            left_s = deadline - now
            if left_s <= 0:
                for who in sorted(self._waiting):
                    await self._leave(step, who, "did not answer before the deadline")
                break
            if now - last_progress >= PROGRESS_INTERVAL_S:
                last_progress = now
                self._emit(
                    "phase_progress",
                    phase=name,
                    received=len(self._answered),
                    expected=expected,
                    needed=needed,
                    left_s=round(left_s, 1),
                )
            try:
                # Not wait_for: with Python 3.11 it can swallow the cancellation by which a study is stopped.
                async with asyncio.timeout(min(left_s, PROGRESS_INTERVAL_S)):
                    who, item = await self._inbox.get()
            except TimeoutError:
                continue
            await self._handle(step, who, item)
        assert self._answered == step.phase.received  # noqa: S101  # counted twice, by the core and here
        seconds = time.monotonic() - began
        self.figures.phase_seconds[name] = round(seconds, 4)
        self.figures.received[name] = len(self._answered)
        self._emit("phase_ended", phase=name, received=len(self._answered), seconds=round(seconds, 4))
        if too_few is not None:
            raise too_few

    async def _handle(self, step: _Step, who: int, item: Any) -> None:
        if isinstance(item, _Left):
            if who in self._alive:
                await self._leave(step, who, item.reason)
            return
        if who not in self._alive:
            if isinstance(item, _Staged):
                item.settle(False)
            return
        try:
            if isinstance(item, _Staged):
                await self._add_staged(step, who, item)
                return
            if PHASE_FIELDS.get(item.kind) != step.name:
                if PHASE_FIELDS.get(item.kind) is None:
                    raise MalformedMessage("an empty phase message")
                return  # late: its phase is over, and it was dropped there or didn't count
            if item.kind == "advertise_keys" and self.figures.first_key_at is None:
                self.figures.first_key_at = time.monotonic()
            step.enough = bool(await self._compute(lambda: step.handle(who, item.read())))
            if step.then is not None:
                step.then(who, item.read())
            else:
                self._counts(who)
        except (InvalidMessage, MalformedMessage) as error:
            # No honest participant sends such a message, whatever it was told, and nobody else speaks in its name.
            reason = getattr(error, "reason", None) or str(error)
            self.cheats[who] = f"{step.name}: {reason}"
            await self._leave(step, who, reason)
        except (ProtocolError, UploadRefused) as error:
            await self._leave(step, who, getattr(error, "reason", None) or str(error))

    def _counts(self, who: int) -> None:
        self._waiting.discard(who)
        self._answered.add(who)

    async def _leave(self, step: _Step, who: int, reason: str) -> None:
        """Out of the attempt, and out of the phase where that costs the others nothing."""
        self._drop(who, step.name, reason)
        if step.leave is not None:
            await self._compute(step.leave, who)
            self._answered.discard(who)

    def _queue_offer(self, who: int, message: pb.PhaseMessage) -> None:
        self._uploads.offer(who, message.masked_input.sha256, message.masked_input.signature)

    async def _add_staged(self, step: _Step, who: int, staged: _Staged) -> None:
        taken = False
        try:
            if step.name == MASKED_INPUT:
                await self._compute(step.phase.receive, who, staged.message)
                taken = True
                self._counts(who)
        finally:
            staged.settle(taken)
            self._uploads.forget(who)

    def upload_failed(self, participant: int, reason: str) -> None:
        """An upload broke off: nothing of it counts, and its credit goes on."""
        self.lost(participant, f"upload failed: {reason}")

    def upload_malformed(self, participant: int, reason: str) -> None:
        """An upload that could never have been a vector."""
        self.cheats[participant] = f"{MASKED_INPUT}: {reason}"
        self.upload_failed(participant, reason)

    def count_download(self, participant: int, size: int) -> None:
        """The model went to the process that hosts this participant."""
        self._outgoing.bytes[participant] += size

    def mean_traffic(self, participants: frozenset[int]) -> tuple[int, int]:
        """Mean bytes these participants sent, and the whole cohort received, in this attempt.

        Protobuf framing included, TLS not. A model fetched once for several participants of a process counts once.
        """
        sent = sum(self._control_bytes[who] + self._vector_bytes[who] for who in participants)
        received = sum(self._outgoing.bytes.values()) / max(len(self.cohort), 1)
        return round(sent / max(len(participants), 1)), round(received)

    # ------------------------------------------------------------ helpers

    async def _compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Arithmetic off the loop; one worker, so the core is only ever touched by one thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)

    def _grant_credit(self, participant: int) -> None:
        credit = pb.UploadCredit(round=self.config.round, attempt=self.config.attempt)
        self._outgoing.tell(participant, assembled.message(upload_credit=credit))

    def _drop(self, who: int, phase: str, reason: str) -> None:
        """Out of this attempt; the session stays, so that the participant can join the next one."""
        self._alive.discard(who)
        self._waiting.discard(who)
        self._uploads.forget(who)
        self.figures.dropouts += 1
        host = self.config.roster.entries[who].host
        self._emit("participant_dropped", phase=phase, participant=who, host=host, reason=reason)
        session = self._sessions.get(who)
        if session is not None:
            end = pb.RoundEnd(
                round=self.config.round, attempt=self.config.attempt, completed=False, reason=f"left out: {reason}"
            )
            session.send(assembled.message(round_end=end))

    def _emit(self, kind: str, **body: Any) -> None:
        self._emit_event(kind, round=self.config.round, attempt=self.config.attempt, **body)

    def _fail_staged(self) -> None:
        while not self._inbox.empty():
            _, item = self._inbox.get_nowait()
            if isinstance(item, _Staged):
                item.settle(False)


def _check_offer(masked: MaskedInputCollection, who: int, offer: pb.MaskedInputOffer) -> None:
    if len(offer.sha256) != 32:
        raise MalformedMessage("the offer's sha256 must have 32 bytes")
    masked.check_offer(who, offer.sha256, offer.signature)


@dataclass
class _Step:
    """How messages of one phase are handled."""

    name: str
    phase: Phase
    expected: frozenset[int]
    needed: int
    handle: Callable[[int, pb.PhaseMessage], bool | None]  # in the worker; True: no more messages are needed
    leave: Callable[[int], None] | None = None  # in the worker, for one that is gone
    then: Callable[[int, pb.PhaseMessage], None] | None = None  # on the loop, for messages that don't count yet
    enough: bool = False


@dataclass(frozen=True)
class _Left:
    reason: str


@dataclass(frozen=True)
class _Said:
    """A message until its turn comes: as bytes, since one of many small parts takes twenty times as much when read."""

    kind: str | None
    written: bytes = field(repr=False)

    def read(self) -> pb.PhaseMessage:
        return pb.PhaseMessage.FromString(self.written)


@dataclass(frozen=True)
class _Staged:
    message: MaskedInput
    done: asyncio.Future[bool]

    def settle(self, taken: bool) -> None:
        if not self.done.done():
            self.done.set_result(taken)
