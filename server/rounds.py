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
from typing import Any, Protocol

from secagg.context import RoundConfig
from secagg.errors import ProtocolError, ReconstructionFailed, TooFewClients
from secagg.messages import (
    ADVERTISE_KEYS,
    CONSISTENCY_CHECK,
    MASKED_INPUT,
    SHARE_KEYS,
    UNMASKING,
    MaskedInput,
    UnmaskingRequest,
)
from secagg.packing import packed_size
from secagg.server_phases import (
    AdvertiseKeys,
    ConsistencyCheck,
    MaskedInputCollection,
    Unmasking,
)
from secagg.unmasking import Completed
from server.sessions import Session, Sessions
from server.uploads import UnexpectedUpload, UploadRefused, Uploads
from wire import codec
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
ENVELOPE_BYTES = 4  # tag and length of a PhaseMessage inside its ParticipantMessage

Emit = Callable[..., None]


class AttemptAborted(Exception):
    """The attempt ended without a sum."""

    def __init__(self, phase: str, reason: str, received: int, needed: int, culprit: int | None = None) -> None:
        """Args: culprit is a participant that provably broke the attempt."""
        super().__init__(f"{phase}: {reason}")
        self.phase, self.reason, self.received, self.needed = phase, reason, received, needed
        self.culprit = culprit


class Phase(Protocol):
    """What the driver needs of any phase of the core."""

    @property
    def received(self) -> frozenset[int]: ...


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
        emit: Emit,
        freeze: Callable[[ConsistencyCheck], Any],
        charge: Callable[[Unmasking, UnmaskingRequest], Any],
        roster_sha256: bytes,
    ) -> None:
        """
        Args:
            cohort: participants to invite, all with a session.
            deadlines_s: seconds for each phase by its name.
            freeze: awaited before u3 is told to anyone.
            charge: awaited before the unmasking request is sent.
            roster_sha256: of the signed roster file, by which participants fetch it.
        """
        self.config, self.cohort = config, cohort
        self._sessions, self._deadlines_s, self._worker = sessions, deadlines_s, worker
        self._emit_event, self._freeze, self._charge = emit, freeze, charge
        self._roster_sha256 = roster_sha256
        self._inbox: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self._alive = set(cohort)
        self._messages: Counter[int] = Counter()
        self._received_bytes: Counter[int] = Counter()
        self._sent_bytes: Counter[int] = Counter()
        self._over = False
        self._phase_name = ADVERTISE_KEYS
        parameters = config.parameters
        self._uploads = Uploads(
            packed_size(parameters.dim, parameters.bits), upload_credits, self._grant_credit, self.upload_failed
        )
        self.figures = AttemptFigures()

    # ------------------------------------------------------------ from the service

    def deliver(self, session: Session, message: pb.PhaseMessage) -> None:
        """A phase message of this attempt arrived."""
        self._take(session.participant, message, message.ByteSize() + ENVELOPE_BYTES)

    def refused(self, session: Session, message: pb.Refusal) -> None:
        """A participant will not go on."""
        reason = REFUSALS.get(message.code, "refused")
        self._take(session.participant, _Left(reason), message.ByteSize() + ENVELOPE_BYTES)

    def _take(self, participant: int, item: Any, size: int) -> None:
        """Into the inbox, which holds no more of one participant than an attempt can need."""
        if participant not in self._alive or self._messages[participant] > MOST_MESSAGES:
            return
        self._messages[participant] += 1
        self._received_bytes[participant] += size
        if self._messages[participant] > MOST_MESSAGES:
            item = _Left("sent more messages than an attempt has")
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
        self._received_bytes[participant] += len(packed)
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
            raise AttemptAborted(self._phase_name, str(error), 0, 0, error.dealer) from error
        except ProtocolError as error:
            raise AttemptAborted(self._phase_name, str(error), 0, 0) from error
        finally:
            self._over = True
            self._uploads.close()
            self._fail_staged()

    async def _run(self) -> Completed:
        parameters = self.config.parameters
        round_, attempt = self.config.round, self.config.attempt

        advertise = AdvertiseKeys(self.config, self.cohort)
        start = pb.RoundStart(
            round=round_,
            attempt=attempt,
            model_sha256=self.config.model_digest,
            study_sha256=self.config.study_digest,
            roster_sha256=self._roster_sha256,
        )
        self._send(self.cohort, pb.CoordinatorMessage(round_start=start))
        await self._collect(
            ADVERTISE_KEYS,
            advertise,
            self.cohort,
            parameters.quorum,
            lambda who, m: advertise.receive(who, codec.read_advertisement(m.advertise_keys)),
            advertise.drop,
        )
        share, cohort_keys = await self._compute(advertise.close)

        for who, keys in cohort_keys.items():
            self._send(
                [who], pb.CoordinatorMessage(cohort_keys=codec.write_cohort_keys(round_, attempt, keys))
            )
        await self._collect(
            SHARE_KEYS,
            share,
            frozenset(share.cohort.u1),
            parameters.quorum,
            lambda who, m: share.receive(who, codec.read_sealed_shares(m.share_keys)),
            share.drop,
        )
        masked, neighbour_shares = await self._compute(share.close)

        for who in list(neighbour_shares):
            shares = codec.write_neighbour_shares(round_, attempt, neighbour_shares.pop(who))
            self._send([who], pb.CoordinatorMessage(neighbour_shares=shares))
        await self._collect(
            MASKED_INPUT, masked, masked.u2, parameters.min_survivors, self._offer_handler(masked)
        )
        check, sets = await self._compute(masked.close)

        await self._freeze(check)
        survivor_sets = {who: codec.write_survivor_sets(round_, attempt, one) for who, one in sets.items()}
        for who, message in survivor_sets.items():
            self._send([who], pb.CoordinatorMessage(survivor_sets=message))
        await self._collect(
            CONSISTENCY_CHECK,
            check,
            check.u3,
            check.needed,
            lambda who, m: check.receive(who, codec.read_consistency(m.consistency)),
        )
        unmasking, requests = await self._compute(check.close)

        request = next(iter(requests.values()))
        await self._charge(unmasking, request)
        message = codec.write_unmasking_request(round_, attempt, request)
        self._send(requests, pb.CoordinatorMessage(unmasking_request=message))
        await self._collect(
            UNMASKING,
            unmasking,
            unmasking.u4,
            unmasking.needed,
            lambda who, m: unmasking.receive(who, codec.read_unmasking_reply(m.unmasking)),
            enough=lambda: unmasking.enough,
        )
        completed = await self._compute(unmasking.close)
        if self.figures.first_key_at is not None:
            self.figures.key_to_sum_s = time.monotonic() - self.figures.first_key_at
        return completed

    # ------------------------------------------------------------ one phase

    async def _collect(
        self,
        name: str,
        phase: Phase,
        expected: frozenset[int],
        needed: int,
        handle: Callable[[int, pb.PhaseMessage], None],
        leave: Callable[[int], None] | None = None,
        enough: Callable[[], bool] | None = None,
    ) -> None:
        """Wait until everybody has answered or left, enough have, too few can, or the deadline is over."""
        self._phase_name = name
        began = time.monotonic()
        deadline = began + self._deadlines_s[name]
        waiting = {who for who in expected if who in self._alive}
        self._emit(
            "phase_started", phase=name, expected=len(expected), needed=needed, deadline_s=self._deadlines_s[name]
        )
        last_progress = 0.0
        too_few: TooFewClients | None = None
        while waiting and not (enough is not None and enough()):
            possible = len(phase.received) + len(waiting - phase.received)
            if possible < needed:
                # Waiting longer helps nobody, and those who could still answer are not to blame.
                too_few = TooFewClients(name, possible, needed)
                break
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            if time.monotonic() - last_progress >= PROGRESS_INTERVAL_S:
                last_progress = time.monotonic()
                self._emit(
                    "phase_progress",
                    phase=name,
                    received=len(phase.received),
                    expected=len(expected),
                    needed=needed,
                    left_s=round(left_s, 1),
                )
            try:
                # Not wait_for: with Python 3.11 it can swallow the cancellation by which a study is stopped.
                async with asyncio.timeout(min(left_s, PROGRESS_INTERVAL_S)):
                    who, item = await self._inbox.get()
            except TimeoutError:
                continue
            await self._handle(name, who, item, handle, leave)
            waiting = {who for who in waiting if who in self._alive and who not in phase.received}
        for who in sorted(waiting - phase.received):
            if too_few is not None or (enough is not None and enough()):
                break
            self._drop(who, name, "did not answer before the deadline")
            if leave is not None:
                leave(who)
        seconds = time.monotonic() - began
        self.figures.phase_seconds[name] = round(seconds, 4)
        self.figures.received[name] = len(phase.received)
        self._emit("phase_ended", phase=name, received=len(phase.received), seconds=round(seconds, 4))
        if too_few is not None:
            raise too_few

    async def _handle(
        self,
        name: str,
        who: int,
        item: Any,
        handle: Callable[[int, pb.PhaseMessage], None],
        leave: Callable[[int], None] | None,
    ) -> None:
        if isinstance(item, _Left):
            if who in self._alive:
                self._drop(who, name, item.reason)
                if leave is not None:
                    leave(who)
            return
        if who not in self._alive:
            if isinstance(item, _Staged):
                item.settle(False)
            return
        try:
            if isinstance(item, _Staged):
                await self._add_staged(who, item)
                return
            kind = item.WhichOneof("message")
            if PHASE_FIELDS.get(kind) != name:
                if PHASE_FIELDS.get(kind) is None:
                    raise MalformedMessage("an empty phase message")
                return  # late: its phase is over, and it was dropped there or didn't count
            if kind == "advertise_keys" and self.figures.first_key_at is None:
                self.figures.first_key_at = time.monotonic()
            await self._compute(handle, who, item)
        except (ProtocolError, MalformedMessage, UploadRefused) as error:
            self._drop(who, name, getattr(error, "reason", None) or str(error))
            if leave is not None:
                leave(who)

    def _offer_handler(self, masked: MaskedInputCollection) -> Callable[[int, pb.PhaseMessage], None]:
        loop = asyncio.get_running_loop()
        self._masked = masked

        def offer(who: int, message: pb.PhaseMessage) -> None:
            one = message.masked_input
            if len(one.sha256) != 32:
                raise MalformedMessage("the offer's sha256 must have 32 bytes")
            masked.check_offer(who, one.sha256, one.signature)
            loop.call_soon_threadsafe(self._queue_offer, who, one.sha256, one.signature)

        return offer

    def _queue_offer(self, who: int, sha256: bytes, signature: bytes) -> None:
        if who not in self._alive:
            return
        try:
            self._uploads.offer(who, sha256, signature)
        except UploadRefused as error:
            self._drop(who, MASKED_INPUT, str(error))

    async def _add_staged(self, who: int, staged: _Staged) -> None:
        taken = False
        try:
            if self._phase_name == MASKED_INPUT:
                await self._compute(self._masked.receive, who, staged.message)
                taken = True
        finally:
            staged.settle(taken)
            self._uploads.forget(who)

    def upload_failed(self, participant: int, reason: str) -> None:
        """An upload broke off: nothing of it counts, and its credit goes on."""
        self.lost(participant, f"upload failed: {reason}")

    def count_download(self, participant: int, size: int) -> None:
        """The model went to the process that hosts this participant."""
        self._sent_bytes[participant] += size

    def mean_traffic(self, participants: frozenset[int]) -> tuple[int, int]:
        """Mean bytes these participants sent, and the whole cohort received, in this attempt.

        Protobuf framing included, TLS not. A model fetched once for several participants of a process counts once.
        """
        sent = sum(self._received_bytes[who] for who in participants) / max(len(participants), 1)
        received = sum(self._sent_bytes.values()) / max(len(self.cohort), 1)
        return round(sent), round(received)

    # ------------------------------------------------------------ helpers

    async def _compute(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Arithmetic off the loop; one worker, so the core is only ever touched by one thread."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)

    def _send(self, participants: Any, message: pb.CoordinatorMessage) -> None:
        for who in participants:
            session = self._sessions.get(who)
            if session is not None and who in self._alive:
                session.send(message)
                self._sent_bytes[who] += message.ByteSize()

    def _grant_credit(self, participant: int) -> None:
        credit = pb.UploadCredit(round=self.config.round, attempt=self.config.attempt)
        self._send([participant], pb.CoordinatorMessage(upload_credit=credit))

    def _drop(self, who: int, phase: str, reason: str) -> None:
        """Out of this attempt; the session stays, so that the participant can join the next one."""
        self._alive.discard(who)
        self._uploads.forget(who)
        self.figures.dropouts += 1
        host = self.config.roster.entries[who].host
        self._emit("participant_dropped", phase=phase, participant=who, host=host, reason=reason)
        session = self._sessions.get(who)
        if session is not None:
            end = pb.RoundEnd(
                round=self.config.round, attempt=self.config.attempt, completed=False, reason=f"left out: {reason}"
            )
            session.send(pb.CoordinatorMessage(round_end=end))

    def _emit(self, kind: str, **body: Any) -> None:
        self._emit_event(kind, round=self.config.round, attempt=self.config.attempt, **body)

    def _fail_staged(self) -> None:
        while not self._inbox.empty():
            _, item = self._inbox.get_nowait()
            if isinstance(item, _Staged):
                item.settle(False)


@dataclass(frozen=True)
class _Left:
    reason: str


@dataclass(frozen=True)
class _Staged:
    message: MaskedInput
    done: asyncio.Future[bool]

    def settle(self, taken: bool) -> None:
        if not self.done.done():
            self.done.set_result(taken)
