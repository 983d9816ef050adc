"""A participant that is made anew for each message of the coordinator, as Flower's ClientApps are.

Between two messages its phase is sealed (`client.saved_phases`), and whoever holds the sealed bytes can neither read
them nor have them answer twice. What else must last is in the home's journal and ledger, as of every participant.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any, Final, cast

import numpy as np
import structlog
from google.protobuf.message import DecodeError

from client import host_file
from client.behaviour import HONEST, Behaviour, Number
from client.connection import DocumentMismatch, DocumentUnavailable, Session
from client.credentials import load_identity
from client.held_data import identity_data_name
from client.journal import ClientJournal
from client.owners_word import read_word
from client.participant import Participant
from client.resuming import COUNTED
from client.saved_phases import STATES_FILE, SavedPhases, SpentState
from client.settings import HostSettings
from client.study_terms import HostProcess, StudyAcceptance, StudyTerms
from client.training import Contribution, LocalTraining
from learning.datasets import Dataset
from learning.options import OptionError
from learning.tasks.external import External, SyntheticOptions, Vector
from runtime.durable import replace_durably
from runtime.failure import InputFailure
from secagg.client_phases import AdvertiseKeys
from secagg.client_unmasking import Answered
from secagg.context import RoundConfig
from secagg.encoding import encode
from secagg.errors import ProtocolError
from secagg.keys import IdentityKey, session_statement
from wire import coordinator_pb2 as pb
from wire.records.ledger import Found
from wire.round_model import RoundModel, write_model
from wire.transport import NONCE_BYTES

TRAININGS_FILE: Final = "trainings.json"
_ONE_EXAMPLE: Final = Dataset(np.zeros((1, 1), np.float32), np.zeros(1, np.int64))  # the app has the real ones


@dataclass(frozen=True)
class Home:
    """A participant's folder, as `sordino init` and `sordino join` make it, and what is loaded from it once."""

    settings: HostSettings
    identity: IdentityKey = field(repr=False)
    states: Path
    ledgers: list[Found] = field(default_factory=list, repr=False, compare=False)
    """Of the ledger, what the last visit left in it: a study's rows are read once in a process, not for each visit."""

    @property
    def trainings(self) -> Path:
        """What remembers how long trainings took."""
        return self.states.with_name(TRAININGS_FILE)

    @classmethod
    def open(cls, folder: Path) -> Home:
        """Raises Failure, OSError: host.toml or the key can't be used, or the study isn't one of this kind."""
        settings = host_file.load(folder).settings()
        if settings.study.task != External.name or len(settings.participants) != 1:
            raise InputFailure(
                f"{folder}: a Flower node is one participant of a study with the task {External.name}: make it by "
                f"sordino init DIR --task {External.name} --task-option dim=... --dataset own --hosts N, N participants"
            )
        return cls(settings, load_identity(settings.participants[0].key), settings.host.journal.parent / STATES_FILE)


class VisitRefused(ValueError):
    """The message isn't one of this attempt, or what it needs didn't come along."""


@dataclass(frozen=True)
class Visit:
    """One message of the coordinator, and what came along.

    Attributes:
        study_sha256, roster_sha256: of two of the ``documents``.
        history: of the roster (`wire.roster_history`).
        model: (dim + 32,), as `learning.tasks.external.External` begins with, with ``clips``; looked at only with
            NeighbourShares.
    """

    message: bytes
    study_sha256: bytes
    roster_sha256: bytes
    documents: Sequence[bytes]
    history: bytes = b""
    model: Vector | None = None
    clips: tuple[float, ...] = ()


@dataclass(frozen=True)
class Answer:
    """Attributes: messages: for the coordinator, serialised; upload: the packed vector; start, sealed: to be kept."""

    messages: tuple[bytes, ...]
    upload: bytes = b""
    start: bytes = b""
    sealed: bytes = field(default=b"", repr=False)


def sign_answer(home: Home, message: bytes, parts: Sequence[bytes]) -> bytes:
    """The identity's signature over an answer: whoever carries it can't change it in the participant's name."""
    return home.identity.sign(answer_statement(home.settings.study.name, home.identity.public, message, parts))


def answer_statement(study: str, identity: bytes, message: bytes, parts: Sequence[bytes]) -> bytes:
    """What `sign_answer` signs. ``message``: of the coordinator; ``parts``: of the answer, in order."""
    digests = (hashlib.sha256(one).digest() for one in (message, *parts))
    return encode("sordino/v1/carried-answer", study.encode(), identity, *digests)


def _remembered(path: Path) -> list[float]:
    try:
        return [float(one) for one in json.loads(path.read_bytes())]
    except FileNotFoundError:
        return []


def prove(home: Home, nonce: bytes) -> tuple[bytes, bytes]:
    """Open and Proof, serialised: the answer to a challenge of the coordinator, 32 bytes."""
    own, public, study = os.urandom(NONCE_BYTES), home.identity.public, home.settings.study.name
    opened = pb.Open(protocol_version=1, identity=public, study=study, nonce=own)
    proof = pb.Proof(signature=home.identity.sign(session_statement(study, public, own, nonce)))
    return opened.SerializeToString(), proof.SerializeToString()


def answer(home: Home, visit: Visit, start: bytes, sealed: bytes, train: Any, behaviour: Behaviour = HONEST) -> Answer:
    """Answer one message. What it depends on is durable before this returns.

    Args:
        start, sealed: what the last answer said to keep; empty before an attempt.
        train: as `learning.tasks.external.External.train`.

    Raises Failure: the study can't be accepted; VisitRefused: the message can't be handled at all; SpentState:
    ``sealed`` isn't the latest state.
    """
    # Not asyncio.run, which sets and looks up signals for each message: that took a twentieth of an answer.
    loop = asyncio.SelectorEventLoop()
    try:
        return loop.run_until_complete(_answer(home, visit, start, sealed, train, behaviour))
    finally:
        for one in asyncio.all_tasks(loop):
            one.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                loop.run_until_complete(one)
        loop.close()


async def _answer(home: Home, visit: Visit, start: bytes, sealed: bytes, train: Any, behaviour: Behaviour) -> Answer:
    settings = home.settings
    known = next(iter(home.ledgers), None)
    journal = ClientJournal(settings.host.journal, settings.host.ledger, known)
    try:
        with SavedPhases(home.states) as states, ThreadPoolExecutor(1) as executor:
            participant = Visitor(home, journal, states, executor, train, behaviour)
            try:
                return await participant.visited(visit, start, sealed)
            finally:
                participant.remember()
    except (ProtocolError, DocumentMismatch, DocumentUnavailable, DecodeError) as error:
        raise VisitRefused(str(error)) from error
    finally:
        journal.close()
        if journal.ledger.left is not None:
            home.ledgers[:] = [journal.ledger.left]


class _Trainer(Executor):
    """Threads that nothing waits for: an answer leaves at its time, though training still runs."""

    def submit(self, work: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(work(*args, **more))
            except BaseException as error:
                done.set_exception(error)

        Thread(target=run, name="training", daemon=True).start()
        return done


class _Carrier:
    """Stands for `client.connection.Session`: documents came along, and what is sent waits for the answer."""

    def __init__(self, visit: Visit) -> None:
        self.welcome = pb.Welcome(study_sha256=visit.study_sha256, roster_sha256=visit.roster_sha256)
        self.documents = {hashlib.sha256(one).digest(): one for one in visit.documents}
        self._history = visit.history
        self.sent: list[pb.ParticipantMessage] = []

    async def send(self, message: pb.ParticipantMessage) -> None:
        self.sent.append(message)

    async def download(self, sha256: bytes, largest: int) -> bytes:
        if sha256 not in self.documents:
            raise DocumentUnavailable("a document that was announced didn't come along")
        if len(self.documents[sha256]) > largest:
            raise DocumentMismatch(f"a document is longer than {largest} bytes")
        return self.documents[sha256]

    async def history(self, after: int) -> bytes:
        return self._history

    async def breaks(self, within_s: float) -> bool:
        return False


class Visitor(Participant):
    """A `client.participant.Participant` that handles one message and is sealed again."""

    def __init__(
        self,
        home: Home,
        journal: ClientJournal,
        states: SavedPhases,
        executor: ThreadPoolExecutor,
        train: Any,
        behaviour: Behaviour,
    ) -> None:
        settings, identity = home.settings, home.identity
        try:
            task = External(SyntheticOptions.from_mapping(settings.task))
        except OptionError as error:
            raise InputFailure(f"[task]: {error}") from error
        task.train = train
        names = {identity.public: identity_data_name(identity.public)}
        process = HostProcess(settings, journal, executor, names)
        study = StudyAcceptance(process, task, lambda roster: roster)
        log = structlog.get_logger().bind(participant=identity.public.hex()[:8])
        training = LocalTraining(task, _ONE_EXAMPLE, _Trainer(), log, _remembered(home.trainings))
        super().__init__(identity, process, study, training, behaviour=behaviour)
        self._states, self._trainings = states, home.trainings
        self._config: RoundConfig | None = None  # of the attempt under way

    async def _begin(self, message: pb.RoundStart) -> None:
        """Nothing is connected between two messages, so the owner's word is looked at when an attempt begins."""
        if why_not := read_word(self._trainings.parent).why_not:
            self._log.info("not taking part now", reason=why_not)
            await self._refuse((message.round, message.attempt), pb.REFUSAL_CODE_POLICY)
            return
        await super()._begin(message)

    async def _refuse(self, number: Number, code: pb.RefusalCode, joined: Number = (0, 0)) -> None:
        """A policy, which may be about other studies, is nobody's business but the owner's."""
        hidden = code == pb.REFUSAL_CODE_POLICY
        await super()._refuse(number, pb.REFUSAL_CODE_LOCAL_FAILURE if hidden else code, joined)

    async def _advertise(self, advertise: AdvertiseKeys, config: RoundConfig) -> Any:
        self._config = config
        return self._states.begin(config, self.identity)

    async def _train(
        self, terms: StudyTerms, round_: int, model: asyncio.Task[RoundModel], decided: float | None
    ) -> Contribution | None:
        """Once it is charged: a message that only pretends to be due must not show how long training takes."""
        assert self._attempt is not None  # noqa: S101  # the task was made for it
        await self._attempt.charged.wait()
        return await super()._train(terms, round_, model, decided)

    def remember(self) -> None:
        """Keep how long trainings took: one that fails in a later visit must end as late as another."""
        took = list(self.training.took)
        if took != _remembered(self._trainings):
            replace_durably(self._trainings, json.dumps(took).encode())

    async def visited(self, visit: Visit, start: bytes, sealed: bytes) -> Answer:
        """Handle a message; see `answer`."""
        carrier = _Carrier(visit)
        session = cast(Session, carrier)
        terms = self._terms = await self._study.accept(session)
        message = pb.CoordinatorMessage.FromString(visit.message)
        kind = str(message.WhichOneof("message"))
        if kind not in COUNTED:
            raise VisitRefused("not a message of an attempt")
        if visit.model is not None and kind == "neighbour_shares":
            document = write_model(visit.model, visit.clips, terms.document.plan.clipping)
            carrier.documents[hashlib.sha256(document).digest()] = document
        self._session.attach(session)
        content = getattr(message, kind)
        if kind == "round_start":
            start = content.SerializeToString()
        elif not sealed:
            raise SpentState("no attempt is under way here: the message is late, or the state was lost")
        else:
            terms, config = await self._configuration(pb.RoundStart.FromString(start))
            self._config = config
            if (content.round, content.attempt) != (config.round, config.attempt):
                raise SpentState("the message is about another attempt than the one under way")
            self._attempt = self._under_way(terms, config, self._states.resume(sealed, config, self.identity))
        await self._guarded(kind, content)
        attempt, sealed, upload = self._attempt, b"", b""
        if attempt is not None:
            upload = bytes(attempt.packed or b"")
            if self._config is not None and not isinstance(attempt.phase, Answered):
                sealed = self._states.save(cast(Any, attempt.phase), self._config, self.identity)
            self._drop_attempt()
        sent = tuple(one.SerializeToString() for one in carrier.sent)
        return Answer(sent, upload, start if sealed else b"", sealed)
