"""A coordinator that says what it likes to whom it likes, over real gRPC with mutual TLS, to the client as it is
deployed; two of the participants are in its pay.

    async with cheating(places, "nine") as coordinator:
        attempt = await coordinator.begin()               # RoundStart; everybody advertises
        cohort = await attempt.show()                     # CohortKeys; everybody deals
        await attempt.tell_u2(cohort)                     # NeighbourShares; everybody uploads
        signed = await attempt.ask_to_sign(sets)          # SurvivorSets
        await attempt.ask_to_unmask(sets, signed)         # UnmaskingRequest
        return coordinator.came_out("refused")

Each step can be said to a few, or otherwise to each; those who refused are left alone by the later steps. `twist`
changes the bytes of any message on its way out. All that arrives is written down (`Notes`), together with what was
sealed for the colluders, and at the end everything is tried on it: `broken_promises` names what should have stayed
closed. The clients run in this process, so that each step ends exactly when they have handled what they were told.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import hashlib
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import numpy as np
from attempts_in_memory import Cohort, Sets, vector_of
from host_in_process import host, ledger_of, rows_of, settings_of
from structlog.testing import capture_logs
from study_in_process import identities

import server.configuration
from client import participant_host
from client.keystore import load_identity
from learning.parameters import flatten
from learning.task import make_task
from secagg import client_phases
from secagg.client_phases import AdvertiseKeys
from secagg.context import RoundConfig
from secagg.keys import AgreementKey, ShareChannel, advertisement_statement
from secagg.lottery import Ticket
from secagg.messages import MASK_KEY, SELF_MASK_SEED, Advertisement, CohortKeys, MaskedInput, UnmaskingRequest
from secagg.roster import Roster, verify_roster
from server.coordinator import SERVER_OPTIONS, open_study, server_credentials
from server.process_memory import RefusedCalls
from server.service import handlers
from server.sessions import Session, Sessions, check_proof
from tests.adversary.script import Places, Seen
from wire import codec
from wire import coordinator_pb2 as pb
from wire.chunks import unframe
from wire.ledger_rows import CHARGE, EXACT, EXCLUDED
from wire.round_model import write_model
from wire.study import StudyDocument, round_parameters

PATIENCE_S = 30.0  # for what takes milliseconds
COLLUDERS = 2
SYNTHETIC = {"task": "synthetic", "task_options": {"dim": 12}, "epsilon": 8.0, "delta": 1e-3, "rounds": 12}
STUDIES: dict[str, dict[str, Any]] = {
    # With nine and two colluders the threshold is 6: the smallest cohort on which every attack has room.
    "nine": {"participants": 9, "min_survivors": 6, "quorum": 6, **SYNTHETIC},
    "strict": {"participants": 9, "min_survivors": 8, "quorum": 8, **SYNTHETIC},
    "three": {"participants": 9, "min_survivors": 6, "quorum": 6, **SYNTHETIC, "rounds": 3},
    "weaker": {"participants": 9, "min_survivors": 6, "quorum": 6, **SYNTHETIC, "name": "strict"},
    # The ring of tests/secagg/small_rings.py: 14 of whom 4 collude; with "looser" more may drop than its degree bears.
    "ring": {"participants": 14, "adversarial": 0.3, "min_survivors": 13, "quorum": 13, **SYNTHETIC},
    "looser": {"participants": 14, "adversarial": 0.3, "min_survivors": 10, "quorum": 10, **SYNTHETIC},
    "drawn": {
        "participants": 14,
        "sampling": "lottery",
        "cohort": 9,
        "population": 14,
        "min_survivors": 8,
        "quorum": 8,
        **SYNTHETIC,
        "rounds": 3,
    },
}
LENIENT = {"min_honest_survivors": 1, "min_colluders": 0, "max_epsilon": 1e6}
ORDER = ["advertise_keys", "share_keys", "masked_input", "upload", "consistency", "unmasking"]
SAID = {
    "advertise_keys": "keys",
    "share_keys": "shares of its secrets",
    "masked_input": "the digest of its masked input",
    "upload": "its masked input",
    "consistency": "a signature over the survivors",
    "unmasking": "shares of the others' secrets",
}
REFUSALS = {
    pb.REFUSAL_CODE_COORDINATOR_MISBEHAVED: "refused",
    pb.REFUSAL_CODE_POLICY: "refused by policy",
    pb.REFUSAL_CODE_ALREADY_JOINED: "sits it out",
    pb.REFUSAL_CODE_LOCAL_FAILURE: "fails",
}
Everybody = None  # as the argument `to`: all honest clients who are still in the attempt


@dataclass
class Public:
    """What a study's coordinator has: documents, roster, and the colluders' identities."""

    folder: Path
    document: StudyDocument
    study_bytes: bytes
    roster: Roster
    roster_bytes: bytes
    model: bytes

    @property
    def study_sha256(self) -> bytes:
        return hashlib.sha256(self.study_bytes).digest()


_public: dict[Path, Public] = {}


def public_of(folder: Path, **tables: dict[str, Any]) -> Public:
    """Read once what an honest coordinator would serve from this folder."""
    if folder not in _public:
        configuration = server.configuration.load(folder)
        overrides: dict[str, dict[str, Any]] = {"coordinator": {"state": folder / "read-once.sqlite"}, **tables}
        configuration = configuration.model_copy(
            update={name: getattr(configuration, name).model_copy(update=one) for name, one in overrides.items()}
        )
        study, journal = open_study(configuration)
        study.close()
        journal.close()
        roster_bytes = configuration.coordinator.roster.read_bytes()
        document = study._document
        task = make_task(document.task, dict(document.task_options))
        rule = document.plan.clipping
        model = write_model(flatten(task.initial_parameters()), rule.clips, rule)
        roster = verify_roster(roster_bytes, configuration.read_authority_public_key())
        _public[folder] = Public(folder, document, document.to_bytes(), roster, roster_bytes, model)
    return _public[folder]


@dataclass
class Notes(Cohort):
    """One cohort as some participants were shown it, with all that was revealed in it.

    `phases` are those of colluders alone. `channel_keys` are private ones that the coordinator has: the colluders',
    and its own where it showed keys of its own in somebody's name.
    """

    identity_keys: dict[int, Any] = field(default_factory=dict)  # of colluders
    channel_keys: dict[int, AgreementKey] = field(default_factory=dict)
    inputs: dict[int, Any] = field(default_factory=dict)  # what was masked; for judging alone

    def forge(self, colluder: int, sets: Sets) -> bytes:
        signature: bytes = self.identity_keys[colluder].sign(self.statement(sets))
        return signature

    def message(self) -> CohortKeys:
        """As an honest coordinator would show it."""
        return CohortKeys(tuple((who, self.advertisements[who]) for who in self.u1))

    def read(self, dealer: int) -> None:
        """Open what the dealer sealed for those whose channel keys the coordinator has."""
        sealed = self.sealed[dealer]
        ends = (self.config.roster.identity(dealer), self.advertisements[dealer].channel_key)
        for receiver, ciphertext in zip(self.graph.neighbours(dealer), sealed.ciphertexts, strict=True):
            if receiver not in self.channel_keys:
                continue
            end = (self.config.roster.identity(receiver), self.advertisements[receiver].channel_key)
            shared = self.channel_keys[receiver].agree(ends[1])
            plaintext = ShareChannel(shared, ends, end, self.context).open(ciphertext)
            if plaintext is None:
                continue
            for kind in (MASK_KEY, SELF_MASK_SEED):
                symbols = np.frombuffer(plaintext[48 * kind + 16 : 48 * kind + 48], dtype="<u2").astype(np.uint16)
                self.shares.setdefault((dealer, kind), {})[self.graph.x(receiver)] = symbols

    def openable(self, honest: frozenset[int]) -> list[frozenset[int]]:
        """The smallest sets of honest inputs whose sum opens; any other that opens is made of these.

        A member's own mask must be known. Where the mask with a neighbour is not, neither opens without the other, and
        both must have masked with it.
        """
        uploaded = honest & self.uploads.keys()
        bare = {who for who in uploaded if self.secret(who, SELF_MASK_SEED) is not None}
        keys = {who for who in self.u1 if self.private_mask_key(who) is not None}
        ties = {who: set() if who in keys else self.masked_with[who] - keys for who in uploaded}
        found: list[frozenset[int]] = []
        for who in bare:
            together, waiting = set(), {who}
            while waiting:
                one = waiting.pop()
                together.add(one)
                waiting |= ties.get(one, set()) - together
            if together <= bare and all(one in ties[other] for one in together for other in ties[one]):
                found.append(frozenset(together))
        return [one for one in dict.fromkeys(found) if not any(other < one for other in found)]

    def opens(self, members: Iterable[int]) -> bool:
        """Whether exactly the sum of these inputs comes out."""
        members = tuple(members)
        opened = self.open_sum(members)
        if opened is None:
            return False
        bits = self.config.parameters.bits
        total = sum(self.inputs[one].astype(object) for one in members) % (1 << bits)
        return bool((opened.astype(object) == total).all())


@dataclass
class Client:
    """One honest participant: what the coordinator heard of it, and what it did."""

    position: int
    said: list[tuple[tuple[int, int], str, Any]] = field(default_factory=list)  # (round, attempt), kind, content
    handled: int = 0
    sent: int = 0
    arrived: int = 0
    lost: int = 0  # sessions that ended
    inputs: dict[tuple[int, int], Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)  # what was raised out of the handling of a message
    participant: Any = None  # the client's own object; looked into where it turns out to collude

    def kinds(self, number: tuple[int, int] | None = None) -> list[str]:
        """What was heard of it, in an attempt or at all."""
        return [kind for one, kind, _ in self.said if number in (None, one)]


class CheatingCoordinator:
    """The service behind `server.service.handlers`, and everything it can find out."""

    def __init__(self, public: Public, colluders: int) -> None:
        self.public, self.roster = public, public.roster
        keys = identities(public.folder)
        size = len(public.roster)
        self.colluders = frozenset(range(size - colluders, size))
        self.honest = frozenset(range(size - colluders))
        self.keys = {who: keys[who] for who in range(size)}
        self.clients = {who: Client(who) for who in self.honest}
        self.documents = {public.study_sha256: public.study_bytes}
        self.roster_sha256 = self.add(public.roster_bytes)
        self.model_sha256 = self.add(public.model)
        self.study_sha256 = public.study_sha256
        self.twist: dict[str, Callable[[int, Any], Any]] = {}
        self.while_uploading: Callable[[int], Awaitable[None]] | None = None
        self.attempts: list[Attempt] = []
        self.logs: list[Any] = []
        self.journal = Path()  # of the client
        self.address = ""
        self.client_task: asyncio.Task[int] | None = None
        self.left = ""  # why the client ended by itself
        self.changed = asyncio.Event()
        self.sessions = Sessions(public.document.study, public.roster, self._session_lost)
        self.refused_calls = RefusedCalls()

    def add(self, document: bytes) -> bytes:
        """Serve a document; its digest."""
        digest = hashlib.sha256(document).digest()
        self.documents[digest] = document
        return digest

    # ------------------------------------------------------------ for the service

    def welcome(self, session: Session) -> pb.Welcome:
        return pb.Welcome(
            session_token=session.token, study_sha256=self.study_sha256, roster_sha256=self.roster_sha256
        )

    def document(self, sha256: bytes) -> bytes | None:
        return self.documents.get(sha256)

    def downloaded(self, session: Session, size: int) -> None:
        pass

    async def check_proof(self, identity: bytes, statement: bytes, signature: bytes) -> None:
        check_proof(identity, statement, signature)

    def phase_message(self, session: Session, message: pb.PhaseMessage, size: int) -> None:
        kind = message.WhichOneof("message") or "nothing"
        self._heard(session, (message.round, message.attempt), kind, getattr(message, kind, None))

    def refusal(self, session: Session, message: pb.Refusal, size: int) -> None:
        self._heard(session, (message.round, message.attempt), "refusal", message.code)

    async def upload(self, session: Session, chunks: AsyncIterator[bytes]) -> bytes:
        packed = b"".join([bytes(unframe(chunk)) async for chunk in chunks])
        client = self.clients[session.participant]
        number = next(one for one, kind, _ in reversed(client.said) if kind != "refusal")
        client.said.append((number, "upload", packed))
        self.changed.set()
        if self.while_uploading is not None:
            await self.while_uploading(session.participant)
        return hashlib.sha256(packed).digest()

    def _heard(self, session: Session, number: tuple[int, int], kind: str, content: Any) -> None:
        client = self.clients[session.participant]
        client.said.append((number, kind, content))
        client.arrived += 1
        self.changed.set()

    def _session_lost(self, session: Session, reason: str) -> None:
        self.clients[session.participant].lost += 1
        self.changed.set()

    # ------------------------------------------------------------ telling

    def disconnect(self, who: int) -> None:
        """Cut one participant's stream."""
        session = self.sessions.get(who)
        assert session is not None
        self.sessions.lost(session, "cut")

    async def ready(self, who: Iterable[int] | None = None) -> None:
        """Until these participants, or all honest ones, have a session."""
        wanted = self.honest if who is None else frozenset(who)
        async with asyncio.timeout(PATIENCE_S):
            while not wanted <= self.sessions.ready():
                self.sessions.changed.clear()
                await self.sessions.changed.wait()

    async def until_left(self) -> None:
        """Until no client is connected."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.sessions):
                self.sessions.changed.clear()
                await self.sessions.changed.wait()

    async def tell(self, messages: Mapping[int, Any]) -> None:
        """Send one message, several or raw bytes to each of these clients, and wait until they were handled and all
        that they said has arrived, or the session broke.
        """
        waits: list[tuple[Client, int, int]] = []
        for who, content in messages.items():
            client, session = self.clients[who], self.sessions.get(who)
            if session is None:
                continue
            sent = list(self._twisted(who, content))
            waits.append((client, client.handled + len(sent), client.lost))
            for one in sent:
                session.send(one if isinstance(one, bytes) else one.SerializeToString())
        await self._until(
            lambda: all(
                client.lost > lost or (client.handled >= wanted and client.arrived >= client.sent)
                for client, wanted, lost in waits
            )
        )

    def _twisted(self, who: int, content: Any) -> Iterable[Any]:
        for message in content if isinstance(content, list) else [content]:
            kind = "raw" if isinstance(message, bytes) else message.WhichOneof("message")
            if kind not in self.twist:
                yield message
                continue
            other = pb.CoordinatorMessage()
            other.CopyFrom(message)
            instead = self.twist[kind](who, getattr(other, kind))
            if instead is None:  # changed in place
                yield other
            else:
                yield from instead if isinstance(instead, list) else [instead]

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def begin(
        self,
        round_: int = 1,
        attempt: int = 1,
        *,
        to: Iterable[int] | None = Everybody,
        model: bytes | None = None,
        ticket: Ticket | None = None,
        roster: bytes | None = None,
    ) -> Attempt:
        """Announce an attempt; all who take part advertise."""
        model_sha256 = self.model_sha256 if model is None else self.add(model)
        config = RoundConfig(
            roster=self.roster,
            round=round_,
            attempt=attempt,
            study_digest=self.public.study_sha256,
            model_digest=model_sha256,
            parameters=round_parameters(self.public.document.plan),
            ticket=ticket,
        )
        start = pb.RoundStart(
            round=round_,
            attempt=attempt,
            model_sha256=model_sha256,
            study_sha256=self.study_sha256,
            roster_sha256=self.roster_sha256 if roster is None else self.add(roster),
            ticket=codec.write_ticket(ticket),
        )
        one = Attempt(self, config)
        self.attempts.append(one)
        audience = sorted(self.honest if to is None else to)
        await self.tell({who: pb.CoordinatorMessage(round_start=start) for who in audience})
        one.collect_advertisements(audience)
        return one

    # ------------------------------------------------------------ what came of it

    def refused(self) -> dict[int, int]:
        """The last refusal's code of each client that refused anything."""
        return {who: one.said[-1][2] for who, one in self.clients.items() if one.said and one.said[-1][1] == "refusal"}

    def gone(self) -> Seen | None:
        """When the client has ended by itself: that it did, and why."""
        task = self.client_task
        if task is None or not task.done():
            return None
        said = sorted({kind for one in self.clients.values() for kind in one.kinds()})
        assert not said, f"it left after it had sent {said}"
        return Seen("leaves", _why(task))

    def reasons(self) -> list[str]:
        """Why clients refused, by their own logs; each once."""
        found = [str(entry["reason"]) for entry in self.logs if str(entry.get("event", "")).startswith("refused")]
        return list(dict.fromkeys(found))

    def came_out(self, outcome: str, detail: str = "") -> Seen:
        """The outcome, with every promise that was broken."""
        return Seen(outcome, detail or "; ".join(self.reasons()[:2]), tuple(self.broken_promises()))

    def broken_promises(self) -> list[str]:
        """What should have stayed closed, or unsaid, and did not."""
        secrets = [one for attempt in self.attempts for one in attempt.lost()]
        return [*secrets, *self._two_answers(), *(self._uncharged() if self.journal.exists() else ())]

    def _two_answers(self) -> list[str]:
        broken = []
        for who, client in self.clients.items():
            answers: dict[Any, set[bytes]] = defaultdict(set)
            for number, kind, content in client.said:
                if kind not in ("refusal", "nothing"):
                    answers[number, kind].add(content if kind == "upload" else content.SerializeToString())
            broken += [
                f"participant {who} gave two different answers: {kind}"
                for (_, kind), given in answers.items()
                if len(given) > 1
            ]
        return broken

    def _uncharged(self) -> list[str]:
        ledger = rows_of(ledger_of(self.journal))
        rows = [(self.roster.positions[bytes.fromhex(row.identity or "")], row) for row in ledger]
        charged = {(who, row.round, row.attempt) for who, row in rows if row.kind == CHARGE}
        exact = {(who, row.round, row.attempt) for who, row in rows if row.kind == EXACT}
        broken = [
            f"participant {who} was told that the sum is without it, takes its charge back, and is in the sum"
            for who, row in rows
            if row.kind == EXCLUDED
            for attempt in self.attempts
            if attempt.number == (row.round, row.attempt)
            and any(who in members for cohort in attempt.cohorts for members in cohort.openable(self.honest))
        ]
        for who, client in self.clients.items():
            for number, kind, _ in client.said:
                if kind in ("masked_input", "upload", "unmasking") and (who, *number) not in charged:
                    broken.append(f"participant {who} sent its input and was not charged")
                if kind == "unmasking" and (who, *number) not in exact:
                    broken.append(f"participant {who} opened a sum that its ledger doesn't hold")
        return list(dict.fromkeys(broken))


class Attempt:
    """One attempt in the coordinator's hands."""

    def __init__(self, coordinator: CheatingCoordinator, config: RoundConfig) -> None:
        self.coordinator, self.config = coordinator, config
        self.number = (config.round, config.attempt)
        self.advertisements: dict[int, Advertisement] = {}
        self.phases: dict[int, Any] = {}  # of colluders
        self.mask_keys: dict[int, AgreementKey] = {}  # private: colluders', and what was opened in any cohort
        self.channel_keys: dict[int, AgreementKey] = {}
        self.cohorts: list[Notes] = []
        self.shown: dict[int, Notes] = {}  # by whom it was shown to

    # ------------------------------------------------------------ who is in it

    def heard(self, who: int, kind: str) -> Any:
        """The last message of a kind of this attempt; None if there is none."""
        said = self.coordinator.clients[who].said
        return next((content for number, one, content in reversed(said) if (number, one) == (self.number, kind)), None)

    def alive(self, to: Iterable[int] | None = Everybody) -> list[int]:
        """Those who have not refused this attempt."""
        candidates = self.coordinator.honest if to is None else frozenset(to)
        return [who for who in sorted(candidates) if self.heard(who, "refusal") is None]

    def collect_advertisements(self, audience: Iterable[int]) -> None:
        for who in audience:
            message = self.heard(who, "advertise_keys")
            if message is not None:
                self.advertisements[who] = codec.read_advertisement(message)
        for who in sorted(self.coordinator.colluders):
            with contextlib.suppress(client_phases.CoordinatorMisbehaved):  # not drawn
                self.colludes(who, *AdvertiseKeys(self.config, self.coordinator.keys[who], os.urandom).advertise())

    def colludes(self, who: int, phase: Any, advertised: Advertisement) -> None:
        """Somebody of whom the coordinator has everything."""
        self.phases[who], self.advertisements[who] = phase, advertised
        self.mask_keys[who], self.channel_keys[who] = phase._keys.mask_key, phase._keys.channel_key

    def corrupt(self, who: Iterable[int]) -> None:
        """These collude as well: what they hold is the coordinator's, who says the rest in their place."""
        turned = frozenset(who)
        for one in sorted(turned):
            phase = self.coordinator.clients[one].participant._attempt.phase
            self.colludes(one, phase, self.advertisements[one])
        self.coordinator.colluders |= turned
        self.coordinator.honest -= turned

    def force(self, who: int) -> None:
        """A colluder advertises though its own client would not, not having been drawn."""
        phase = AdvertiseKeys.__new__(AdvertiseKeys)
        phase._config, phase._identity, phase._me = self.config, self.coordinator.keys[who], who
        phase._random_bytes = os.urandom
        self.colludes(who, *phase.advertise())

    def signed_by(self, colluder: int, mask_key: bytes, channel_key: bytes) -> Advertisement:
        """What a colluder advertises: any keys, under its own name."""
        assert colluder in self.coordinator.colluders
        identity = self.coordinator.keys[colluder]
        statement = advertisement_statement(self.config.round_context(), identity.public, mask_key, channel_key)
        return Advertisement(mask_key, channel_key, identity.sign(statement))

    # ------------------------------------------------------------ ShareKeys

    def cohort(
        self,
        u1: Iterable[int] | None = None,
        changed: Mapping[int, Advertisement] | None = None,
        own: Mapping[int, tuple[AgreementKey, AgreementKey]] | None = None,
    ) -> Notes:
        """A cohort to show: of these members, some with other advertisements, some with keys of the coordinator's own
        (private mask key, private channel key) in the member's name.
        """
        own = own or {}
        shown = {**self.advertisements, **(changed or {})}
        shown |= {
            who: Advertisement(mask_key.public, channel_key.public, bytes(64))
            for who, (mask_key, channel_key) in own.items()
        }
        members = tuple(sorted(shown if u1 is None else u1))
        notes = Notes(
            self.config,
            members,
            {who: shown[who] for who in members},
            {who: copy.copy(phase) for who, phase in self.phases.items() if who in members},
            self.coordinator.colluders & frozenset(members),
            self.mask_keys if not own else {**self.mask_keys, **{who: pair[0] for who, pair in own.items()}},
            identity_keys=self.coordinator.keys,
            channel_keys={**self.channel_keys, **{who: pair[1] for who, pair in own.items()}},
        )
        self.cohorts.append(notes)
        return notes

    async def show(self, cohort: Notes | None = None, to: Iterable[int] | None = Everybody) -> Notes:
        """CohortKeys; whoever takes it deals. Colluders in it deal as well, as the protocol says."""
        cohort = cohort or self.cohort()
        audience = [who for who in self.alive(to) if to is not None or who in cohort.u1]
        message = codec.write_cohort_keys(*self.number, cohort.message())
        await self.coordinator.tell({who: pb.CoordinatorMessage(cohort_keys=message) for who in audience})
        for who in audience:
            self.shown[who] = cohort
            dealt = self.heard(who, "share_keys")
            if dealt is not None:
                cohort.sealed[who] = codec.read_sealed_shares(dealt)
                with contextlib.suppress(ValueError, KeyError):  # dealt to another cohort than was written down
                    cohort.read(who)
        for who in sorted(cohort.colluders):
            with contextlib.suppress(client_phases.CoordinatorMisbehaved):  # this cohort is not fit for honest code
                cohort.deal([who])
        return cohort

    # ------------------------------------------------------------ MaskedInputCollection

    async def tell_u2(
        self,
        cohort: Notes,
        u2: Iterable[int] | None = None,
        to: Iterable[int] | None = Everybody,
        *,
        credit: bool = True,
    ) -> None:
        """NeighbourShares with this u2, all who dealt if it isn't given; then a credit for each offer."""
        members = frozenset(cohort.sealed if u2 is None else u2)
        audience = [who for who in self.alive(to) if self.shown.get(who) is cohort and who in cohort.sealed]
        await self.coordinator.tell(
            {
                who: pb.CoordinatorMessage(
                    neighbour_shares=codec.write_neighbour_shares(
                        *self.number, cohort.neighbour_shares(who, members)
                    )
                )
                for who in audience
            }
        )
        if credit:
            await self.take_uploads(cohort, members, audience)
        for who in sorted(cohort.colluders & members):
            if who not in cohort.uploads and hasattr(cohort.phases.get(who), "cohort"):
                with contextlib.suppress(client_phases.CoordinatorMisbehaved):
                    cohort.mask(who, members)
                    cohort.inputs[who] = vector_of(who, self.config.parameters)

    async def take_uploads(self, cohort: Notes, u2: frozenset[int], who: Iterable[int]) -> None:
        """Grant a credit to each who asked for one, and note what arrives."""
        round_, attempt = self.number
        credit = pb.CoordinatorMessage(upload_credit=pb.UploadCredit(round=round_, attempt=attempt))
        offers = {one: self.heard(one, "masked_input") for one in who}
        await self.coordinator.tell({one: credit for one, offer in offers.items() if offer is not None})
        for one, offer in offers.items():
            packed = self.heard(one, "upload")
            if offer is not None and packed is not None:
                neighbours = u2 & frozenset(cohort.graph.neighbours(one))
                cohort.note_upload(one, MaskedInput(packed, offer.sha256, offer.signature), neighbours)
                cohort.inputs[one] = self.coordinator.clients[one].inputs[self.number]

    # ------------------------------------------------------------ ConsistencyCheck and Unmasking

    async def ask_to_sign(
        self, cohort: Notes, sets: Sets | Mapping[int, Sets], to: Iterable[int] | None = Everybody
    ) -> dict[int, bytes]:
        """SurvivorSets, the same for all or for each their own; signatures of honest clients by who gave them."""
        audience = [who for who in self.alive(to) if self.shown.get(who) is cohort]
        told = {who: sets[who] if isinstance(sets, Mapping) else sets for who in audience}
        await self.coordinator.tell(
            {
                who: pb.CoordinatorMessage(
                    survivor_sets=codec.write_survivor_sets(*self.number, cohort.survivor_sets(told[who]))
                )
                for who in audience
            }
        )
        return {who: message.signature for who in audience if (message := self.heard(who, "consistency")) is not None}

    async def ask_to_unmask(
        self,
        cohort: Notes,
        sets: Sets | Mapping[int, Sets],
        signatures: Mapping[int, bytes] | Mapping[int, Mapping[int, bytes]],
        to: Iterable[int] | None = Everybody,
        *,
        evidence: bool = True,
    ) -> None:
        """UnmaskingRequest: the same signatures for all, or for each their own; what is revealed is noted.

        On a ring also the uploads of neighbours that are not among the signers, unless there shall be no such evidence.
        """
        audience = [who for who in self.alive(to) if self.shown.get(who) is cohort]
        requests: dict[int, pb.CoordinatorMessage] = {}
        for who in audience:
            shown = signatures.get(who, signatures)
            pairs = tuple(sorted((shown if isinstance(shown, Mapping) else signatures).items()))
            told = sets[who] if isinstance(sets, Mapping) else sets
            uploads = cohort.evidence(who, told, {signer for signer, _ in pairs}) if evidence else ()
            request = UnmaskingRequest(pairs, uploads)  # type: ignore[arg-type]
            requests[who] = pb.CoordinatorMessage(
                unmasking_request=codec.write_unmasking_request(*self.number, request)
            )
        await self.coordinator.tell(requests)
        for who in audience:
            reply = self.heard(who, "unmasking")
            if reply is not None:
                told = sets[who] if isinstance(sets, Mapping) else sets
                cohort.note_reply(who, told[0], codec.read_unmasking_reply(reply))

    def colluders_sign(self, cohort: Notes, sets: Sets) -> dict[int, bytes]:
        """Colluders sign anything."""
        return {who: cohort.forge(who, sets) for who in sorted(cohort.colluders & sets[1])}

    async def finish(self, cohort: Notes, sets: Sets) -> None:
        """Signatures and shares for these sets from everybody who gives them."""
        signed = await self.ask_to_sign(cohort, sets)
        await self.ask_to_unmask(cohort, sets, signed | self.colluders_sign(cohort, sets))

    async def run(self, cohort: Notes | None = None) -> Notes:
        """All that an honest coordinator would do; a `twist` may see to it that it isn't."""
        cohort = await self.show(cohort)
        await self.tell_u2(cohort)
        await self.finish(cohort, (frozenset(cohort.sealed), frozenset(cohort.uploads)))
        return cohort

    # ------------------------------------------------------------ what came of it

    def verdict(self, victims: Iterable[int] | None = None, never: str = "") -> Seen:
        """How it came out for those who were lied to; all honest clients if not given.

        Args:
            never: the kind of message that none of them may send; "refused" is only said of clients that sent neither
                it nor one of a later phase.
        """
        coordinator = self.coordinator
        lied_to = sorted(coordinator.honest if victims is None else victims)
        faults = [fault for who in lied_to for fault in coordinator.clients[who].faults]
        if faults:
            return coordinator.came_out("crashes", faults[0])
        forbidden = ORDER[ORDER.index(never) :] if never else []
        gave = [kind for kind in forbidden if any(self.heard(who, kind) is not None for who in lied_to)]
        if gave:
            return coordinator.came_out("goes on", f"it sends {SAID[gave[0]]}")
        codes = {self.heard(who, "refusal") for who in lied_to}
        if codes == {None}:
            done = [kind for kind in ORDER if any(self.heard(who, kind) is not None for who in lied_to)]
            return coordinator.came_out("goes on", f"it sends {SAID[done[-1]]}" if done else "it says nothing")
        return coordinator.came_out(REFUSALS.get(codes.pop(), "refused") if len(codes) == 1 else "some refuse")

    def lost(self) -> list[str]:
        """Promises about secrets and sums that do not hold for this attempt."""
        honest, parameters = self.coordinator.honest, self.config.parameters
        broken = []
        for cohort in self.cohorts:
            for who in sorted(honest & frozenset(cohort.u1)):
                if cohort.private_mask_key(who) is not None:
                    self.mask_keys.setdefault(who, cohort.private_mask_key(who))  # good in every cohort of the attempt
        for cohort in self.cohorts:
            for who, key in self.mask_keys.items():
                cohort.mask_keys.setdefault(who, key)
            broken += [
                f"both secrets of participant {who} are known"
                for who in sorted(honest & frozenset(cohort.sealed))
                if cohort.both_secrets(who)
            ]
            found = [members for members in cohort.openable(honest) if cohort.opens(members)]
            least = parameters.min_survivors - parameters.colluders
            for members in sorted(found, key=sorted):
                if len(members) == 1:
                    broken.append(f"the input of participant {next(iter(members))} is exposed")
                elif len(members) < least:
                    broken.append(f"the sum of {len(members)} honest inputs opens, {least} were promised")
            if len(found) > 1 and all(len(members) >= least for members in found):
                broken.append("two sums open")
        return list(dict.fromkeys(broken))

    def opened(self, cohort: Notes, members: Iterable[int]) -> bool:
        """Whether the sum of exactly these inputs came out."""
        members = frozenset(members)
        return members <= cohort.uploads.keys() and cohort.opens(members)


@contextlib.asynccontextmanager
async def serving(
    places: Places, study: str = "nine", *, colluders: int = COLLUDERS, **tables: dict[str, Any]
) -> AsyncIterator[CheatingCoordinator]:
    """Serve a study, as yet without clients; ``tables`` change study.toml."""
    folder = places.study(study, **STUDIES[study])
    coordinator = CheatingCoordinator(public_of(folder, **tables), colluders)
    coordinator.journal = places.work() / "journal.sqlite"
    grpc_server = grpc.aio.server(options=SERVER_OPTIONS)
    grpc_server.add_generic_rpc_handlers((handlers(coordinator),))  # type: ignore[arg-type]
    credentials = server_credentials(server.configuration.load(folder).coordinator)
    coordinator.address = f"localhost:{grpc_server.add_secure_port('127.0.0.1:0', credentials)}"
    await grpc_server.start()
    try:
        yield coordinator
    finally:
        coordinator.sessions.close_all()
        await grpc_server.stop(None)


@contextlib.asynccontextmanager
async def joined(coordinator: CheatingCoordinator, **settings: dict[str, Any]) -> AsyncIterator[None]:
    """The honest participants in one client, as `sordino join` runs it; again with the same journal when used again.

    Until they are ready, or have left; ``settings`` change tables of host.toml.
    """
    tables = {**settings, "policy": {**LENIENT, **settings.get("policy", {})}}
    configured = settings_of(coordinator.public.folder, coordinator.journal, coordinator.address, **tables)
    hosted = {load_identity(one.key).public: one for one in configured.participants}
    participants = tuple(hosted[coordinator.keys[who].public] for who in sorted(coordinator.honest))
    configured = dataclasses.replace(configured, participants=participants)
    # Whoever was cut off comes back at once rather than after half a second.
    quickly = mock.patch.object(participant_host, "RETRY_S", (0.01, 1.0))
    with quickly, capture_logs() as logs:
        coordinator.logs = logs
        async with host(configured, lambda one: _observe(coordinator, one)) as task:
            coordinator.client_task = task
            ready = asyncio.create_task(coordinator.ready())
            await asyncio.wait({ready, task}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                ready.result()
            else:
                ready.cancel()
            yield
            coordinator.left = coordinator.left or _why(task)


def _why(task: asyncio.Task[int]) -> str:
    error = task.exception() if task.done() else None
    return "" if error is None else f"{error}"


@contextlib.asynccontextmanager
async def cheating(
    places: Places, study: str = "nine", *, colluders: int = COLLUDERS, **settings: dict[str, Any]
) -> AsyncIterator[CheatingCoordinator]:
    """Serve a study and start the honest participants' client; ``settings`` change tables of host.toml."""
    async with serving(places, study, colluders=colluders) as coordinator, joined(coordinator, **settings):
        yield coordinator


def _observe(coordinator: CheatingCoordinator, host_: Any) -> None:
    """Note when a client has handled a message, how much it said, and what it masked; nothing is changed."""
    for participant in host_._participants:
        client = coordinator.clients[coordinator.roster.positions[participant.identity.public]]
        _observe_one(coordinator, client, participant)


def _observe_one(coordinator: CheatingCoordinator, client: Client, participant: Any) -> None:
    client.participant = participant
    guarded, send, refuse, vector = participant._guarded, participant._send, participant._refuse, participant._vector

    async def on_guarded(*arguments: Any) -> Any:
        try:
            return await guarded(*arguments)
        except Exception as error:
            client.faults.append(f"{type(error).__name__}: {error}")
            raise
        finally:
            client.handled += 1
            coordinator.changed.set()

    async def on_send(*arguments: Any, **message: Any) -> None:
        client.sent += 1
        await send(*arguments, **message)

    async def on_refuse(*arguments: Any) -> None:
        client.sent += 1
        await refuse(*arguments)

    async def on_vector(terms: Any, attempt: Any, *arguments: Any) -> Any:
        words = await vector(terms, attempt, *arguments)
        client.inputs[attempt.round, attempt.attempt] = words.copy()
        return words

    participant._guarded, participant._send = on_guarded, on_send
    participant._refuse, participant._vector = on_refuse, on_vector
