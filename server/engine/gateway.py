"""A gateway: holds participants' sessions and adds up their vectors, for a coordinator in another process.

It verifies who opens a session, stages vectors, and hands on everything else. It keeps nothing that lasts: the
coordinator alone knows what each participant was sent and owes, so a participant whose gateway ends goes on at another.
Partial sums of vectors stay masked: neighbours on the ring are spread over gateways.

The two sides call each other's methods by name, many at a time: `Gateway.hear` takes the coordinator's calls, and
`Gateway.said` gives those for `server.engine.links.Link`.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self

import numpy as np
import structlog
from numpy.typing import NDArray

from secagg.errors import InvalidMessage
from secagg.masking import word_dtype
from secagg.messages import MaskedInput
from secagg.parameters import RoundParameters
from secagg.roster import Roster
from secagg.server_cohort import Upload
from secagg.server_phases import add_input
from server.attempt.outgoing import AT_ONCE
from server.attempt.steps import PHASE_FIELDS, read_message
from server.attempt.uploads import Staged, UnexpectedUpload, Uploads
from server.session_port import Certificate, SessionPort
from server.sessions import Session, Sessions
from wire import coordinator_pb2 as pb
from wire.codec import MalformedMessage
from wire.gateway_channel import CallChannel, Calls, Invitation
from wire.process_limits import PortBounds, raise_limit, resident_mb

log = structlog.get_logger()

TOGETHER_S: Final = 0.02
"""From one message between the two sides to the next, so that calls travel together; what comes alone doesn't wait."""
CALLS_AT_ONCE: Final = 256
"""In one message to the coordinator: what takes longer would keep it from everything else."""
MOST_CALLS: Final = 1024
"""That wait for the coordinator before participants are read on."""
GATHER_S: Final = 0.25
_MEMORY_S: Final = 1.0  # between two looks at the memory of the process
_OF_VECTORS: Final = frozenset({"offer", "again", "forget", "merged"})
"""Methods of `VectorsOfGateway` that the coordinator calls."""
_DOCUMENTS: Final = 8  # that are held: study, roster, model, steps


@dataclass(frozen=True)
class GatewaySetup:
    """What a gateway is started with."""

    study: str
    roster: Roster = field(repr=False)
    bounds: PortBounds
    listen: str  # HOST:PORT; port 0 for a free one
    certificate: Certificate
    connections: int  # at the same time


@dataclass
class _Call:
    name: str  # empty while a message is being checked
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class _Check:
    """Of messages of one phase.

    Attributes:
        seen: participants whose first message came. Further ones are the coordinator's to refuse: a check is work.
    """

    number: tuple[int, int]
    phase: str
    verify: Callable[[int, Any], Any]
    kept: bool  # the coordinator keeps them as they came, too
    seen: set[int] = field(default_factory=set, repr=False)

    def __call__(self, participant: int, message: pb.PhaseMessage) -> tuple[Any, str]:
        """What `verify` makes of it and no error, or the error's class and text."""
        try:
            return self.verify(participant, read_message(self.phase, message)), ""
        except MalformedMessage as error:
            return MalformedMessage.__name__, str(error)
        except InvalidMessage as error:
            return InvalidMessage.__name__, error.reason
        except Exception as error:  # of one message: its sender is out, others aren't
            log.exception("a message can't be checked")
            return MalformedMessage.__name__, f"it can't be checked: {type(error).__name__}"


class Gateway:
    """One gateway, in the event loop of its process; a `server.service.Front`."""

    def __init__(self, setup: GatewaySetup) -> None:
        self.bounds = setup.bounds
        self.sessions = Sessions(setup.study, setup.roster, self._lost)
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="messages")
        self._calls: deque[_Call] = deque()
        self._check: _Check | None = None
        self._unchecked: list[tuple[_Call, Session, pb.PhaseMessage, int]] = []
        self._checking: asyncio.Task[None] | None = None
        self._filled, self._room, self._said_at = asyncio.Event(), asyncio.Event(), 0.0
        self._documents: dict[bytes, bytes | None] = {}  # by request
        self._asked: dict[bytes, asyncio.Task[bytes | None]] = {}
        self._asking: dict[int, asyncio.Task[bytes | None]] = {}  # of each participant the last one
        self._one_at_a_time = asyncio.Lock()
        self._vectors: VectorsOfGateway | None = None
        self._port: SessionPort | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._memory = (-_MEMORY_S, 0.0)  # when it was read, monotonic, and MB

    # ------------------------------------------------------------ for the coordinator

    async def stop(self) -> None:
        """Close the port, once what was sent is written."""
        if self._port is not None:
            await self._port.stop()
        self.end_attempt()

    async def hear(self, calls: Calls) -> None:
        """Take the coordinator's calls."""
        for name, arguments in calls:
            done = getattr(self, name)(*arguments)
            if done is not None:  # later calls wait: messages must not overtake each other
                await done

    async def said(self) -> Calls:
        """Calls for the coordinator, as soon as there are some; those behind a message that is being checked wait."""
        while not self._calls or not self._calls[0].name:
            self._filled.clear()
            await self._filled.wait()
            await asyncio.sleep(self._said_at + TOGETHER_S - time.monotonic())
        self._said_at = time.monotonic()
        calls: Calls = []
        while self._calls and self._calls[0].name and len(calls) < CALLS_AT_ONCE:
            one = self._calls.popleft()
            calls.append((one.name, one.arguments))
        self._room.set()
        traffic = self.sessions.traffic
        if self._said_at > self._memory[0] + _MEMORY_S:
            self._memory = self._said_at, resident_mb()
        figures = (self._memory[1], self.sessions.refused_calls.count, len(self.sessions))
        calls.append(("figures", (vars(traffic).copy(), *figures)))
        return calls

    @classmethod
    async def begin(cls, invitation: Invitation) -> Self:
        """Connect to the coordinator, which gives the setup, and open the port.

        Raises OSError, EOFError, TimeoutError, NetworkFailure: that isn't possible.
        """
        channel = await invitation.accept()
        while not (calls := await channel.receive()):
            pass  # signs of life
        [(_, (setup,)), *calls] = calls
        raise_limit(setup.bounds.participants)
        gateway = cls(setup)
        gateway._port = await SessionPort.open(gateway, setup.connections, setup.listen, setup.certificate)
        await gateway.hear(calls)
        gateway._tasks = [asyncio.create_task(one) for one in (gateway._hear_all(channel), gateway._say_all(channel))]
        return gateway

    @property
    def address(self) -> str:
        """HOST:PORT of the port."""
        assert self._port is not None  # noqa: S101  # begun
        return self._port.address

    async def _hear_all(self, channel: CallChannel) -> None:
        try:
            while True:
                await self.hear(await channel.receive())
        except (OSError, EOFError, TimeoutError):
            log.warning("the coordinator is gone: participants go on at another gateway, if there is one")
        finally:
            channel.close()
            self.end_attempt()
            self.sessions.close_all()

    async def _say_all(self, channel: CallChannel) -> None:
        while True:
            channel.send(await self.said())
            await channel.drain()

    # ------------------------------------------------------------ calls of the coordinator

    def send(self, token: bytes, message: bytes) -> None:
        if (session := self.sessions.by_token(token)) is not None:
            session.send(message)

    async def send_each(self, written: bytes, participants: dict[bytes, int]) -> None:
        """Make messages, and send each to the session with its token."""
        loop, tokens = asyncio.get_running_loop(), list(participants)
        make = await loop.run_in_executor(self._maker, pickle.loads, written)
        for at in range(0, len(tokens), AT_ONCE):
            few = tokens[at : at + AT_ONCE]
            messages = await loop.run_in_executor(
                self._maker, lambda few: [make(participants[one]) for one in few], few
            )
            for token, message in zip(few, messages, strict=True):
                self.send(token, message)
            self._call("told", dict(zip(few, map(len, messages), strict=True)))

    def end(self, token: bytes, reason: str = "") -> None:
        """End a session after what is queued. ``reason``: why, where its participant is to blame."""
        if (session := self.sessions.by_token(token)) is not None:
            session.leaving = reason
            session.close()

    def cut(self, token: bytes) -> None:
        if (session := self.sessions.by_token(token)) is not None:
            session.cut_off()

    def adopt(self, roster: Roster) -> None:
        """Use a later roster; the coordinator ends sessions of its own accord."""
        self.sessions.adopt(roster)

    def answer(self, request: bytes, document: bytes | None, stays: bool) -> None:
        """What a participant asked for, None if it isn't there; and whether it will be the same later."""
        if stays:
            self._documents[request] = document
            while len(self._documents) > _DOCUMENTS:
                del self._documents[next(iter(self._documents))]
        self._answer.set_result(document)

    async def check(self, number: tuple[int, int], phase: str, written: bytes, kept: bool) -> None:
        """Check messages of a phase from here on. ``written``: what checks them, pickled."""
        loop = asyncio.get_running_loop()
        verify = await loop.run_in_executor(self._maker, pickle.loads, written)
        while self._checking is not None:
            await self._checking
        self._check = _Check(number, phase, verify, kept)

    def begin_attempt(self, number: int, parameters: RoundParameters, credits_: int) -> None:
        """Take vectors of a new attempt from here on."""
        self.end_attempt()
        self._vectors = VectorsOfGateway(number, parameters, credits_, self._call)

    def end_attempt(self) -> None:
        if self._vectors is not None:
            self._vectors.close()
        self._vectors = None

    def vectors(self, number: int, name: str, *arguments: Any) -> None:
        """Call a method of the vectors of an attempt, unless that is over.

        Raises ValueError: one that the coordinator never calls.
        """
        if name not in _OF_VECTORS:
            raise ValueError(f"the coordinator calls {name!r} of an attempt's vectors")
        if self._vectors is not None and self._vectors.number == number:
            getattr(self._vectors, name)(*arguments)

    # ------------------------------------------------------------ for the service

    async def room(self) -> None:
        """Until few calls wait for the coordinator: else one that is busy would have this process filled."""
        while len(self._calls) > MOST_CALLS:
            self._room.clear()
            await self._room.wait()

    def opened(self, session: Session) -> None:
        session.rests_until = 1.0  # the coordinator knows whether it may rest
        self._call("opened", session.token, session.identity)

    def phase_message(self, session: Session, message: pb.PhaseMessage, size: int) -> None:
        check, phase = self._check, PHASE_FIELDS.get(message.WhichOneof("message") or "")
        fits = check is not None and (message.round, message.attempt, phase) == (*check.number, check.phase)
        if check is None or not fits or session.participant in check.seen:
            self._call("said", session.token, "phase_message", message.SerializeToString(), size)
            return
        check.seen.add(session.participant)
        self._calls.append(_Call("", ()))  # its place among the calls
        self._unchecked.append((self._calls[-1], session, message, size))
        if self._checking is None:
            self._checking = asyncio.get_running_loop().create_task(self._check_all(check))

    async def _check_all(self, check: _Check) -> None:
        loop = asyncio.get_running_loop()
        while self._unchecked:
            few, self._unchecked = self._unchecked[:AT_ONCE], self._unchecked[AT_ONCE:]
            said = [(session.participant, message) for _, session, message, _ in few]
            outcomes = await loop.run_in_executor(self._maker, lambda said: [check(*one) for one in said], said)
            for (call, session, message, size), (outcome, error) in zip(few, outcomes, strict=True):
                written = message.SerializeToString() if check.kept else b""
                kind = message.WhichOneof("message")
                call.arguments = (session.token, check.number, kind, written, size, outcome, error)
                call.name = "checked"
            self._filled.set()
        self._checking = None

    def refusal(self, session: Session, message: pb.Refusal, size: int) -> None:
        self._call("said", session.token, "refusal", message.SerializeToString(), size)

    def session_ready(self, session: Session, message: pb.Ready) -> None:
        self._call("said", session.token, "session_ready", message.SerializeToString())

    def downloaded(self, session: Session, size: int) -> None:
        self._call("told", {session.token: size})

    async def requested(self, session: Session, request: pb.DocumentRequest) -> bytes | None:
        """A document is asked for once for all; and of each participant one at a time, whatever it lets go of.

        The coordinator holds each answer until it is sent, and anybody can make up requests.
        """
        while True:
            written = request.SerializeToString(deterministic=True)
            if (document := self._documents.get(written)) is not None:
                return document
            mine = self._asking.get(session.participant)
            if mine is None or mine.done():
                break
            await asyncio.wait({mine})
        asked = self._asked.get(written)
        if asked is None:
            asked = self._asked[written] = asyncio.get_running_loop().create_task(self._ask(written))
        self._asking[session.participant] = asked
        return await asyncio.shield(asked)

    async def _ask(self, request: bytes) -> bytes | None:
        async with self._one_at_a_time:
            answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
            self._answer = answer
            self._call("requested", request)
            document = await answer
        del self._asked[request]
        return document

    async def upload(self, session: Session, chunks: AsyncIterator[bytes]) -> bytes:
        if self._vectors is None:
            raise UnexpectedUpload("no round is under way")
        return await self._vectors.upload(session.participant, chunks)

    # ------------------------------------------------------------

    def _lost(self, session: Session, reason: str) -> None:
        self._call("lost", session.token, reason, session.writing)
        if session.writing:
            asyncio.get_running_loop().create_task(self._read_at_last(session))

    async def _read_at_last(self, session: Session) -> None:
        """Tell when gRPC holds no message of an ended session any more."""
        while session.writing:
            await asyncio.sleep(1.0)
        self._call("written", session.token)

    def _call(self, name: str, *arguments: Any) -> None:
        self._calls.append(_Call(name, arguments))
        self._filled.set()


class VectorsOfGateway:
    """Vectors of one attempt: those that are whole are added up, and the partial sum is handed to the coordinator.

    One partial sum is on its way at a time; what comes meanwhile is in the next. Vectors are held until the coordinator
    has merged their sum: it takes all of them or none, and some may have to be left out.
    """

    def __init__(self, number: int, parameters: RoundParameters, credits_: int, call: Any) -> None:
        self.number, self._parameters, self._call = number, parameters, call
        self._granted, self._broken, self._failed = (
            partial(self._at_attempt, name) for name in ("grant_credit", "upload_broken", "upload_failed")
        )
        self.uploads = Uploads(parameters.upload_size, credits_, self._granted, self._failed)
        self.offer = self.uploads.offer
        self._whole: dict[int, Staged] = {}
        self._arrived = asyncio.Event()
        self._answer: asyncio.Future[frozenset[int]] | None = None
        self._adder = ThreadPoolExecutor(1, thread_name_prefix="vectors")
        self._adding = asyncio.get_running_loop().create_task(self._add())

    async def upload(self, who: int, chunks: AsyncIterator[bytes]) -> bytes:
        """As `server.attempt.attempt.Attempt.upload`."""
        return await self.uploads.receive(who, chunks, self._put, self._broken, self._failed)

    def _put(self, who: int, staged: Staged) -> None:
        self._whole[who] = staged
        self._call("staged", self.number, who)
        self._arrived.set()

    def _at_attempt(self, name: str, who: int, *arguments: Any, **named: Any) -> None:
        """Have a method of the attempt called."""
        self._call("vector", self.number, who, name, arguments, named)

    # ------------------------------------------------------------ calls of the coordinator

    def again(self, who: int) -> None:
        """A participant is back, perhaps with a vector to go on with."""
        offset = self.uploads.again(who)
        if offset is not None:
            self._granted(who, offset)

    def forget(self, who: int) -> None:
        self.uploads.take_back(who)
        if (staged := self._whole.pop(who, None)) is not None:
            staged.settle(False)

    def merged(self, taken: Collection[int]) -> None:
        """Which vectors of the last partial sum are in the coordinator's sum, if those are all; else, which can be."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(frozenset(taken))

    # ------------------------------------------------------------

    async def _add(self) -> None:
        """Add up what is whole, again and again."""
        while True:
            await self._arrived.wait()
            await asyncio.sleep(GATHER_S)  # a partial sum is as large as a vector, of however many
            self._arrived.clear()
            batch, self._whole = self._whole, {}
            try:
                await self._hand_over(batch)
            except Exception as error:  # of one batch: the next vectors are added all the same
                log.exception("vectors couldn't be added up")
                for who in batch:
                    self._failed(who, f"its gateway failed: {type(error).__name__}")
            finally:
                for who, staged in batch.items():
                    staged.settle(False)
                    if self.uploads.complete(who):  # else it moved away meanwhile, and is expected here again
                        self.uploads.forget(who)

    async def _hand_over(self, batch: dict[int, Staged]) -> None:
        """Until the coordinator has taken the sum of some or all, or none can be taken."""
        loop = asyncio.get_running_loop()
        left = {who: staged.message for who, staged in batch.items()}
        while left:
            total, uploads, faulty = await loop.run_in_executor(self._adder, _sum_of, left, self._parameters)
            for who, reason in faulty.items():
                self._failed(who, reason, malformed=True)
            if not uploads:
                return
            self._answer = loop.create_future()
            self._call("partial", self.number, uploads, total)
            taken = await self._answer
            if taken >= uploads.keys():
                for who in uploads:
                    batch[who].settle(True)
                return
            left = {who: left[who] for who in uploads if who in taken}

    def close(self) -> None:
        self._adding.cancel()
        self.uploads.close()
        for staged in self._whole.values():
            staged.settle(False)
        self._adder.shutdown(wait=False)


def _sum_of(
    messages: dict[int, MaskedInput], parameters: RoundParameters
) -> tuple[NDArray[Any], dict[int, Upload], dict[int, str]]:
    """The sum of those inputs that are what was signed, what stays of each, and why others aren't; not on the loop."""
    total = np.zeros(parameters.dim, dtype=word_dtype(parameters.bits))
    uploads: dict[int, Upload] = {}
    faulty: dict[int, str] = {}
    for who, message in messages.items():
        try:
            uploads[who] = add_input(total, who, message, parameters)
        except InvalidMessage as error:
            faulty[who] = error.reason
    return total, uploads, faulty
